"""What `put` does: find the files, upload several at a time, and say how each ended."""

import asyncio
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from uploader.cli.client.connecting import exit_code_of, worst_of
from uploader.cli.client.events import Completed, Failed, How, Moving, Planned, Skipped, Started, TransferSummary
from uploader.cli.client.showing import Reporter
from uploader.client import AsyncClient, ClientError, File, Progress, Unauthenticated, Unreachable


@dataclass(frozen=True, slots=True)
class FileToPut:
    """A file here and its name on the server."""

    path: Path
    name: str
    size: int

    @property
    def shown(self) -> str:
        return shown_path(self.path)


def shown_path(path: Path) -> str:
    """A path as text; names that are no UTF-8 are shown as near as can be."""
    return os.fsencode(path).decode("utf-8", "replace")


async def put_all(
    client: AsyncClient,
    reporter: Reporter,
    paths: tuple[Path, ...],
    folder: str | None,
    name: str | None,
    parallel: int,
) -> int:
    """Upload all of it; the exit code. Failures of one file do not hold up the others, unless none can succeed."""
    prefix = "" if not folder else folder.rstrip("/") + "/"
    found = list(_find(paths, prefix, name))
    for each in found:
        if isinstance(each, Skipped):
            reporter.show(each)
    files = [each for each in found if isinstance(each, FileToPut)]
    return await Putting(client, reporter, files).run(parallel)


def _find(paths: tuple[Path, ...], prefix: str, name: str | None) -> Iterator[FileToPut | Skipped]:
    for path in paths:
        own_name = path.name or path.resolve().name
        if path.is_dir():
            yield from _walk(path, prefix + (f"{own_name}/" if own_name else ""))
        else:
            yield FileToPut(path, prefix + (name or own_name), path.stat().st_size)


def _walk(directory: Path, prefix: str) -> Iterator[FileToPut | Skipped]:
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
            yield FileToPut(path, prefix + entry.name, status.st_size)
        else:
            yield Skipped(shown_path(path), "a symbolic link" if entry.is_symlink() else "no regular file")


class Putting:
    """A number of uploads, several at the same time."""

    def __init__(self, client: AsyncClient, reporter: Reporter, files: list[FileToPut]) -> None:
        self._client = client
        self._reporter = reporter
        self._files = files
        self._next = 0
        self._complete = self._bytes = 0
        self._failed: list[int] = []
        self._hopeless = False

    async def run(self, parallel: int) -> int:
        started_at = time.monotonic()
        self._reporter.show(Planned(len(self._files), sum(each.size for each in self._files)))
        async with asyncio.TaskGroup() as group:
            for _ in range(min(parallel, len(self._files))):
                group.create_task(self._put_one_after_the_other())
        code = worst_of(set(self._failed))
        self._reporter.show(
            TransferSummary(
                files=len(self._files),
                complete=self._complete,
                failed=len(self._failed),
                left=len(self._files) - self._next,
                bytes=self._bytes,
                seconds=time.monotonic() - started_at,
                exit_code=code,
            )
        )
        return code

    async def _put_one_after_the_other(self) -> None:
        while self._next < len(self._files) and not self._hopeless:
            to_put = self._files[self._next]
            self._next += 1
            try:
                await self._put(to_put)
            except ClientError as error:
                # What stands between us and the server stands between it and the other files, too.
                self._hopeless |= isinstance(error, Unauthenticated | Unreachable)
                self._failed.append(exit_code_of(error))
                self._reporter.show(Failed(to_put.shown, error.code, error.detail, error.retryable))

    async def _put(self, to_put: FileToPut) -> None:
        def tell(progress: Progress) -> None:
            self._reporter.show(moving(to_put.shown, progress))

        transfer = self._client.start(to_put.path, to_put.name, on_progress=tell)
        begun = transfer.progress
        self._reporter.show(Started(to_put.shown, begun.name, begun.size))
        file = await transfer
        self._complete += 1
        self._bytes += file.size
        self._reporter.show(Completed(to_put.shown, file, _how(file, transfer.progress)))


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


def _how(file: File, progress: Progress) -> How:
    if progress.moved_bytes:
        return "sent"
    return "instant" if file.instant else "present"
