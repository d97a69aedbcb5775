"""What `get` does: find what is meant, bring it here, and say how each ended."""

import os
import sys
import time
from collections import defaultdict
from pathlib import Path

from uploader.cli.client.connecting import exit_code_of, worst_of
from uploader.cli.client.events import Completed, Failed, FolderEnded, Planned, Started, TransferSummary
from uploader.cli.client.naming.words import Meaning, one_thing_each
from uploader.cli.client.putting import Telling, moving, shown_path
from uploader.cli.client.showing import Reporter
from uploader.cli.exits import EXIT_OK, EXIT_USAGE, fail
from uploader.client import AsyncClient, ClientError, File, LocalFile, Outcome, Progress, Wanted

STDOUT = "-"


async def get_all(
    client: AsyncClient,
    reporter: Reporter,
    words: tuple[str, ...],
    target: str,
    *,
    is_directory: bool,
    overwrite: bool,
    checksum: bool,
    verbose: bool,
) -> int:
    """Download all of it; the exit code. Failures of one file do not hold up the others, unless none can succeed."""
    found, codes = await one_thing_each(client, reporter, words)
    if not found:
        return worst_of(codes)
    alone = found[0].files[0] if len(words) == 1 and found[0].is_file else None
    if target == STDOUT:
        if alone is None:
            fail("-o - is for a single file", EXIT_USAGE)
        return await _write(client, reporter, alone)
    if alone is not None and not is_directory:
        return await _get_as(client, reporter, alone, Path(target), overwrite=overwrite)
    started_at = time.monotonic()
    wanted, folders = await _plan(client, found)
    files = len({each.path for each in wanted})
    reporter.show(Planned(files, sum(each.file.size for each in wanted)))
    told = _TellingFolders(reporter, {} if verbose else folders)
    await client.download_many(wanted, target, overwrite=overwrite, checksum=checksum, watcher=told)
    told.end_folders()
    return _sum_up(reporter, told, files, started_at, codes)


async def _plan(client: AsyncClient, found: list[Meaning]) -> tuple[list[Wanted], dict[str, str]]:
    """Which file goes where; and the word of each file, by its name, that came with others by one word."""
    wanted: dict[tuple[str, str], Wanted] = {}
    words: dict[str, str] = {}
    for each in found:
        async for file in each.all_files(client):
            path = file.name.removeprefix(each.base)
            wanted[file.id, path] = Wanted(file, path)
            if not each.is_file:
                words.setdefault(file.name, each.folder or each.word)
    return list(wanted.values()), words


class _TellingFolders(Telling):
    """Tells of the files of a folder together, but of failures each for itself."""

    def __init__(self, reporter: Reporter, folders: dict[str, str]) -> None:
        super().__init__(reporter)
        self._folders = folders
        self._outcomes: dict[str, list[Outcome]] = defaultdict(list)

    def ended(self, outcome: Outcome) -> None:
        folder = self._folders.get(outcome.local.name)
        if folder is not None:
            self._outcomes[folder].append(outcome)
        if folder is None or outcome.file is None:
            super().ended(outcome)
            return
        self.complete += 1
        self.bytes += outcome.file.size
        self._reporter.show(Completed(shown_path(outcome.local.path), outcome.file, outcome.how, folder))

    def end_folders(self) -> None:
        for folder, outcomes in self._outcomes.items():
            files = [outcome.file for outcome in outcomes if outcome.file is not None]
            self._reporter.show(
                FolderEnded(
                    name=folder,
                    files=len(outcomes),
                    bytes=sum(file.size for file in files),
                    fetched=sum(outcome.file is not None and outcome.how == "fetched" for outcome in outcomes),
                    present=sum(outcome.file is not None and outcome.how == "present" for outcome in outcomes),
                    failed=len(outcomes) - len(files),
                )
            )


def _sum_up(reporter: Reporter, told: Telling, files: int, started_at: float, codes: set[int]) -> int:
    code = worst_of(codes | told.codes)
    reporter.show(
        TransferSummary(
            files=files,
            complete=told.complete,
            failed=told.failed,
            left=max(0, files - told.complete - told.failed),
            bytes=told.bytes,
            seconds=time.monotonic() - started_at,
            exit_code=code,
        )
    )
    return code


async def _get_as(client: AsyncClient, reporter: Reporter, file: File, target: Path, *, overwrite: bool) -> int:
    """Under a name of its own, which is compared by its content."""
    started_at = time.monotonic()
    told, local = Telling(reporter), LocalFile(target, file.name, file.size, 0)

    def tell(progress: Progress) -> None:
        told.moved(local, progress)

    reporter.show(Planned(1, file.size))
    told.begun(local)
    transfer = client.start_download(file, target, overwrite=overwrite, on_progress=tell)
    try:
        await transfer
    except ClientError as error:
        told.ended(Outcome(local, error=error))
    else:
        told.ended(Outcome(local, file, "fetched" if transfer.progress.moved_bytes else "present"))
    return _sum_up(reporter, told, 1, started_at, set())


async def _write(client: AsyncClient, reporter: Reporter, file: File) -> int:
    """To standard output, where nothing else goes: that it is whole says the exit code."""

    def tell(progress: Progress) -> None:
        reporter.show(moving(STDOUT, progress))

    reporter.show(Planned(1, file.size))
    reporter.show(Started(STDOUT, file.name, file.size))
    with os.fdopen(sys.stdout.fileno(), "wb", buffering=0, closefd=False) as stdout:
        try:
            await client.download_into(file, stdout, on_progress=tell)
        except ClientError as error:
            reporter.show(Failed(file.name, error.code, error.detail, error.retryable))
            return exit_code_of(error)
    return EXIT_OK
