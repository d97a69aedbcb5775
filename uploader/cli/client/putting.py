"""What `put` does: find the files, have them uploaded, and say how each ended."""

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from uploader.cli.client.connecting import exit_code_of, worst_of
from uploader.cli.client.events import Completed, Failed, Moving, Planned, Skipped, Started, TransferSummary
from uploader.cli.client.showing import Reporter
from uploader.client import AsyncClient, IfExists, LocalFile, Outcome, Progress, Watcher


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as text; names that are no UTF-8 are shown as near as can be."""
    return os.fsencode(path).decode("utf-8", "replace")


async def put_all(
    client: AsyncClient,
    reporter: Reporter,
    paths: tuple[Path, ...],
    folder: str | None,
    name: str | None,
    *,
    if_exists: IfExists,
    checksum: bool,
) -> int:
    """Upload all of it; the exit code. Failures of one file do not hold up the others, unless none can succeed."""
    started_at = time.monotonic()
    prefix = "" if not folder else folder.rstrip("/") + "/"
    found = list(_find(paths, prefix, name))
    for each in found:
        if isinstance(each, Skipped):
            reporter.show(each)
    files = [each for each in found if isinstance(each, LocalFile)]
    reporter.show(Planned(len(files), sum(each.size for each in files)))
    told = Telling(reporter)
    await client.upload_many(files, if_exists=if_exists, checksum=checksum, watcher=told)
    code = worst_of(told.codes)
    reporter.show(
        TransferSummary(
            files=len(files),
            complete=told.complete,
            failed=told.failed,
            left=len(files) - told.complete - told.failed,
            bytes=told.bytes,
            seconds=time.monotonic() - started_at,
            exit_code=code,
        )
    )
    return code


def _find(paths: tuple[Path, ...], prefix: str, name: str | None) -> Iterator[LocalFile | Skipped]:
    for path in paths:
        own_name = path.name or path.resolve().name
        if path.is_dir():
            yield from _walk(path, prefix + (f"{own_name}/" if own_name else ""))
        else:
            status = path.stat()
            yield LocalFile(path, prefix + (name or own_name), status.st_size, status.st_mtime_ns)


def _walk(directory: Path, prefix: str) -> Iterator[LocalFile | Skipped]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        yield Skipped(shown_path(directory), error.strerror or "can't be read")
        return
    for entry in entries:
        path = directory / entry.name
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path, f"{prefix}{entry.name}/")
        elif stat.S_ISREG(status.st_mode):
            yield LocalFile(path, prefix + entry.name, status.st_size, status.st_mtime_ns)
        else:
            yield Skipped(shown_path(path), "a symbolic link" if entry.is_symlink() else "no regular file")


class Telling(Watcher):
    """Makes events of what happens to the files, and counts."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.complete = self.failed = self.bytes = 0
        self.codes: set[int] = set()

    def begun(self, local: LocalFile) -> None:
        self._reporter.show(Started(shown_path(local.path), local.name, local.size))

    def moved(self, local: LocalFile, progress: Progress) -> None:
        self._reporter.show(moving(shown_path(local.path), progress))

    def ended(self, outcome: Outcome) -> None:
        path, error = shown_path(outcome.local.path), outcome.error
        if error is not None:
            self.failed += 1
            self.codes.add(exit_code_of(error))
            self._reporter.show(Failed(path, error.code, error.detail, error.retryable))
        elif outcome.file is not None:
            self.complete += 1
            self.bytes += outcome.file.size
            self._reporter.show(Completed(path, outcome.file, outcome.how))


def moving(path: str, progress: Progress) -> Moving:
    return Moving(
        path=path,
        name=progress.name,
        size=progress.size,
        state=progress.state,
        received_bytes=progress.received_bytes,
        in_flight_bytes=progress.in_flight_bytes,
        hashed_bytes=progress.hashed_bytes,
        merged_bytes=progress.merged_bytes,
        bytes_per_second=progress.bytes_per_second,
        seconds_left=progress.seconds_left,
    )
