"""What `get` does; and how commands find the file that a person names."""

import time
import unicodedata
from pathlib import Path

from uploader.cli.client.connecting import EXIT_FAILED
from uploader.cli.client.events import Completed, Failed, Planned, Started, TransferSummary
from uploader.cli.client.putting import moving, shown_path
from uploader.cli.client.showing import Reporter
from uploader.cli.exits import EXIT_OK
from uploader.client import AsyncClient, ClientError, File, NotFound, Progress

_ID_LENGTH = 32


class NoSuchFile(ClientError):
    """There is no such file."""

    code = "file-not-found"


class AmbiguousName(ClientError):
    """Several files have this name."""

    code = "ambiguous-name"


async def files_named(client: AsyncClient, name_or_id: str) -> list[File]:
    """The files that are meant, newest first: the one with this id, or all with this name. Raises NoSuchFile."""
    if len(name_or_id) == _ID_LENGTH and set(name_or_id) <= set("0123456789abcdef"):
        try:
            return [await client.file(name_or_id)]
        except NotFound:
            pass  # perhaps it is a name all the same
    name = unicodedata.normalize("NFC", name_or_id)
    found = [file async for file in client.files(name) if file.name == name]
    if not found:
        raise NoSuchFile(f"there is no file {name_or_id!r}")
    return found


async def the_file(client: AsyncClient, name_or_id: str) -> File:
    """The one file that is meant. Raises NoSuchFile, AmbiguousName."""
    found = await files_named(client, name_or_id)
    if len(found) > 1:
        ids = ", ".join(file.id for file in found)
        raise AmbiguousName(f"{len(found)} files are named {name_or_id!r}; say which by its id: {ids}")
    return found[0]


async def get_one(client: AsyncClient, reporter: Reporter, name_or_id: str, target: Path, *, overwrite: bool) -> int:
    """Download it; the exit code."""
    started_at = time.monotonic()
    file = (await files_named(client, name_or_id))[0]

    def tell(progress: Progress) -> None:
        reporter.show(moving(path, progress))

    path = shown_path(_target_of(file, target))
    transfer = client.start_download(file, target, overwrite=overwrite, on_progress=tell)
    reporter.show(Planned(1, file.size))
    reporter.show(Started(path, file.name, file.size))
    try:
        await transfer
    except OSError as error:
        reporter.show(Failed(path, "unwritable", error.strerror or str(error), retryable=False))
        return EXIT_FAILED
    reporter.show(Completed(path, file, "fetched" if transfer.progress.moved_bytes else "present"))
    seconds = time.monotonic() - started_at
    reporter.show(TransferSummary(1, 1, 0, 0, bytes=file.size, seconds=seconds, exit_code=EXIT_OK))
    return EXIT_OK


def _target_of(file: File, target: Path) -> Path:
    return target / file.name.rsplit("/", 1)[-1] if target.is_dir() else target
