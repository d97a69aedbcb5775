"""What `put` does: find the files, have them uploaded, and say how each ended."""

from collections.abc import Sequence
from pathlib import Path

from uploader.cli.client.connecting import EXIT_FAILED
from uploader.cli.client.local.filters import EVERYTHING, Filters
from uploader.cli.client.local.finding import FoundFiles, find
from uploader.cli.client.showing.events import Failed, NamesRefused, Noted, Planned
from uploader.cli.client.showing.reporters import Reporter
from uploader.cli.client.telling import Telling
from uploader.client import AsyncClient, ClientError, IfExists, InvalidName, Outcome

_EXAMPLES = 5


async def put_all(
    client: AsyncClient,
    reporter: Reporter,
    paths: tuple[Path, ...],
    folder: str | None,
    name: str | None,
    *,
    if_exists: IfExists | None,
    checksum: bool,
    verbose: bool,
    encode: bool,
    filters: Filters = EVERYTHING,
    listed: Sequence[str] = (),
) -> int:
    """Upload all of it, and what is listed; the exit code. Failures of one file do not hold up the others, unless none can
    succeed."""
    prefix = "" if not folder else folder.rstrip("/") + "/"
    found = find(paths, listed, prefix, name, filters, encode=encode)
    return await put_found(client, reporter, found, if_exists=if_exists, checksum=checksum, verbose=verbose)


async def put_found(
    client: AsyncClient,
    reporter: Reporter,
    found: FoundFiles,
    *,
    if_exists: IfExists | None,
    checksum: bool,
    verbose: bool,
) -> int:
    """As `put_all`, of files that were found. If nobody chose `if_exists`, new files replace others of their names, where
    the server can do that."""
    for each in found.skipped:
        reporter.show(each)
    _note_empty(reporter, found.empty)
    reporter.show(Planned(len(found.files), sum(each.size for each in found.files)))
    told = Telling(reporter) if verbose else Telling(reporter, found.folder_of)
    try:
        chosen = await choice(client, if_exists)
    except ClientError as error:
        if not found.files:
            raise
        told.begun(found.files[0])
        told.ended(Outcome(found.files[0], error=error))
    else:
        await client.upload_many(found.files, if_exists=chosen, checksum=checksum, watcher=told)
        note_kept(reporter, told, if_exists, chosen)
    for refused in found.refused:
        told.refused(
            Failed(refused.path, InvalidName.code, refused.reason, retryable=False, together=True), EXIT_FAILED
        )
    if found.refused:
        reporter.show(NamesRefused(len(found.refused), found.refused[:_EXAMPLES], found.encoded))
    return told.sum_up(len(found.files) + len(found.refused), set())


async def choice(client: AsyncClient, if_exists: IfExists | None) -> IfExists:
    """What happens to files of equal names: by default the new one replaces them, if the server can. Raises ClientError."""
    return if_exists or ("replace" if await client.can_replace() else "keep")


def note_kept(reporter: Reporter, told: Telling, if_exists: IfExists | None, chosen: IfExists) -> None:
    """Say that nothing was replaced, though nobody chose that. A URL that leads to no server at all is no old server."""
    if if_exists is None and chosen == "keep" and told.complete:
        reporter.show(Noted("the server is too old to replace files: others of the same names stay beside the new"))


def _note_empty(reporter: Reporter, empty: list[str]) -> None:
    if not empty:
        return
    shown = ", ".join(empty[:_EXAMPLES]) + (", …" if len(empty) > _EXAMPLES else "")
    folders = "empty folder is" if len(empty) == 1 else "empty folders are"
    reporter.show(Noted(f"{len(empty)} {folders} left out, as the server keeps files alone: {shown}"))
