"""`put`: finds the files on this machine, or reads standard input, uploads them, and reports the results."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from functools import partial
from glob import glob
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import click

from uploader.cli.client import options
from uploader.cli.client.connection import run_client
from uploader.cli.client.events import EXIT_FAILED, Failed, NamesRefused, Noted, Planned
from uploader.cli.client.filters import Filters
from uploader.cli.client.folders import make_there
from uploader.cli.client.links import ask_password, link_of, need
from uploader.cli.client.local import FoundFiles, find
from uploader.cli.client.names import complete_names
from uploader.cli.client.reporters import Reporter, Telling
from uploader.cli.terminal import EXIT_USAGE, SIZE, fail
from uploader.client import AsyncClient, ClientError, How, IfExists, LocalFile, Outcome, errors
from uploader.client.plan import checked_name
from uploader.units import human_bytes

_EXAMPLES = 5

STDIN = "-"
_PATH = "/dev/stdin"

_BLOCK_BYTES = 1 << 20
_DESCRIPTOR = 0
# Many systems keep `/tmp` in memory, but not this directory (file-hierarchy(7)).
_LARGE = Path("/var/tmp")  # noqa: S108 (the file has no name that others could take)


class Paths(click.Argument):
    """Local paths; on Windows, where shells do not expand patterns, also patterns."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        if sys.platform == "win32" and isinstance(value, list | tuple):  # otherwise no path was given
            value = [path for word in value for path in sorted(glob(word)) or [word]]  # noqa: PTH207 (as it was given)
        return super().process_value(ctx, value)


@click.command(cls=options.Filtered)
@click.argument("paths", metavar="PATH...", nargs=-1, type=click.Path(exists=True, allow_dash=True), cls=Paths)
@click.option(
    "--to",
    "folder",
    metavar="FOLDER_OR_LINK",
    shell_complete=complete_names,
    help="Upload into this folder on the server, or by a link (https://…/s/…).",
)
@click.option("--name", help="Name on the server of a single file, or of standard input.")
@options.follow
@options.no_empty
@options.filters
@options.files_from
@options.limit_rate
@options.connections
@click.option("--chunk-size", type=SIZE, help="Ask for chunks of this size.  [default: the server's]")
@click.option(
    "--hash-first",
    "hash_first_bytes",
    type=SIZE,
    default="64MiB",
    show_default=True,
    help="Hash files up to this size before sending them, and larger ones meanwhile.",
)
@click.option(
    "--if-exists",
    type=click.Choice(["keep", "replace", "fail"]),
    help="If you have a file of that name with other content: keep both, replace it, or fail.  [default: replace]",
)
@click.option("--checksum", is_flag=True, help="Compare with files on the server by content, not by size and time.")
@options.delta
@click.option(
    "--go-on",
    metavar="NAME_OR_ID",
    help="Go on with this open upload of a single file, also if another client began it.",
)
@click.option(
    "--encode-names", "encode", is_flag=True, help="Write characters that the server takes in no name as %5C."
)
@options.patience
@options.verbose
@options.shown_options
def put(
    paths: tuple[str, ...],
    folder: str | None,
    name: str | None,
    follows: bool,
    no_empty: bool,
    filters: Filters,
    files_from: IO[bytes] | None,
    if_exists: IfExists | None,
    checksum: bool,
    go_on: str | None,
    encode: bool,
    verbose: bool,
    **of_client: Any,
) -> None:
    """Upload files, directories or standard input (-). A directory stands for all regular files and empty folders in it;
    standard input needs --name.

    Run it again after any interruption, here or on another machine that has the file: it sends only the missing bytes. It
    reads no file whose name, size and time of modification the server has, and replaces the server's file if yours has
    changed. --go-on continues an upload that another client began, in a browser or by another protocol: `uploader uploads`
    lists them.
    """
    if not paths and files_from is None:
        fail("name the files to upload, or give --files-from", EXIT_USAGE)
    if STDIN in paths and (len(paths) > 1 or files_from is not None or name is None):
        fail("- is standard input: give its --name, and no other file", EXIT_USAGE)
    if name is not None and (len(paths) != 1 or files_from is not None or Path(paths[0]).is_dir()):
        fail("--name takes a single file", EXIT_USAGE)
    if go_on is not None and (len(paths) != 1 or files_from is not None or name or folder or Path(paths[0]).is_dir()):
        fail("--go-on takes a single file, and no --name", EXIT_USAGE)
    listed = options.listed(files_from) if files_from is not None else []
    link = link_of(folder)
    if link is not None:
        if go_on is not None or if_exists not in (None, "keep"):
            fail("a link keeps all files, and needs no --go-on: leave --if-exists and --go-on out", EXIT_USAGE)
        folder, if_exists, no_empty = None, "keep", True

    async def work(client: AsyncClient, reporter: Reporter) -> int:
        if link is not None:
            await need(client, "upload")
        if name is not None and paths == (STDIN,):
            return await put_stdin(client, reporter, folder, name, if_exists=if_exists)
        if go_on is not None:
            return await put_rest(client, reporter, paths[0], go_on)
        prefix = "" if not folder else folder.rstrip("/") + "/"
        found = find(tuple(map(Path, paths)), listed, prefix, name, filters, encode=encode, follows=follows)
        if no_empty:
            found.empty.clear()
        return await put_found(client, reporter, found, if_exists=if_exists, checksum=checksum, verbose=verbose)

    run_client(work, link=link, password=ask_password, **of_client)


async def put_found(
    client: AsyncClient,
    reporter: Reporter,
    found: FoundFiles,
    *,
    if_exists: IfExists | None,
    checksum: bool,
    verbose: bool,
) -> int:
    """Upload the found files and folders; return the exit code. A failed file does not stop the others, unless all would
    fail. Without `if_exists`, new files replace files of the same names, if the server supports that."""
    for each in found.skipped:
        reporter.show(each)
    reporter.show(Planned(len(found.files), sum(each.size for each in found.files)))
    told = Telling(reporter) if verbose else Telling(reporter, lambda local: found.folders.get(local.path))
    codes = set[int]()
    try:
        chosen = await choice(client, if_exists)
    except ClientError as error:
        if not found.files:
            raise
        told.begun(found.files[0])
        told.ended(Outcome(found.files[0], error=error))
    else:
        outcomes = await client.upload_many(found.files, if_exists=chosen, checksum=checksum, watcher=told)
        note_kept(reporter, told, if_exists, chosen)
        if len(outcomes) == len(found.files):  # otherwise the server went away
            codes = await make_there(client, reporter, found.empty)
    for refused in found.refused:
        failed = Failed(refused.path, errors.InvalidName.code, refused.reason, retryable=False, together=True)
        told.refused(failed, EXIT_FAILED)
    if found.refused:
        reporter.show(NamesRefused(len(found.refused), found.refused[:_EXAMPLES], found.encoded))
    return told.sum_up(len(found.files) + len(found.refused), codes)


async def choice(client: AsyncClient, if_exists: IfExists | None) -> IfExists:
    """Choose the action for equal names: `if_exists`, or by default `replace` if the server can replace. Raises
    ClientError."""
    return if_exists or ("replace" if await client.can_replace() else "keep")


def note_kept(reporter: Reporter, told: Telling, if_exists: IfExists | None, chosen: IfExists) -> None:
    """Tell that the server cannot replace files, if `keep` was not the user's choice. Requires a completed file, because a
    wrong URL is not an old server."""
    if if_exists is None and chosen == "keep" and told.sums.complete:
        reporter.show(Noted("the server is too old to replace files: others of the same names stay beside the new"))


async def put_stdin(
    client: AsyncClient, reporter: Reporter, folder: str | None, name: str, *, if_exists: IfExists | None
) -> int:
    """Read standard input completely, upload it, and report the result; return the exit code. Raises InvalidName before
    reading."""
    name = checked_name(f"{folder.rstrip('/')}/{name}" if folder else name)
    told = Telling(reporter)
    with spool() as opened:
        local = LocalFile(_PATH, name, 0, 0)
        try:
            local = LocalFile(_PATH, name, await fill(opened, client, name), 0)
            reporter.show(Planned(1, local.size))
            told.begun(local)
            chosen = await choice(client, if_exists)
            transfer = client.start(opened, name, if_exists=chosen, on_progress=partial(told.moved, local))
            file = await transfer
        except ClientError as error:
            told.ended(Outcome(local, error=error))
        else:
            how: How = "sent" if transfer.progress.moved_bytes else "instant" if file.instant else "present"
            told.ended(Outcome(local, file, how))
            note_kept(reporter, told, if_exists, chosen)
    return told.sum_up(1)


def spool() -> BinaryIO:
    """Open a file without a name, which disappears on any exit: in TMPDIR, or in a directory for large files."""
    import tempfile  # imported here, because most uploads are files

    elsewhere = os.environ.get("TMPDIR") or not os.access(_LARGE, os.W_OK | os.X_OK)
    return cast(BinaryIO, tempfile.TemporaryFile(dir=None if elsewhere else _LARGE))  # a wrapper on Windows


async def fill(opened: BinaryIO, client: AsyncClient, name: str) -> int:
    """Save standard input; return its size. Raises QuotaExceeded as soon as it cannot fit, Unreadable."""
    if await client.link() is not None:
        return await _fill(opened, None)
    usage = await client.usage()
    # The upload may replace a file of this name or continue an upload; their bytes count as available, too.
    there = sum(file.size for file in await client.named(name))
    begun = sum(upload.size for upload in await client.uploads() if upload.name == name)
    return await _fill(opened, usage.available + there + begun)


async def _fill(opened: BinaryIO, room: int | None) -> int:
    size = 0
    async for block in _blocks():
        size += len(block)
        if room is not None and size > room:
            detail = f"standard input is larger than the {human_bytes(room)} that are available"
            raise errors.QuotaExceeded(detail, code="quota-exceeded", status=413)
        try:
            opened.write(block)
        except OSError as error:
            raise errors.Unreadable(f"standard input can't be saved to a temporary file: {error.strerror}") from error
    opened.seek(0)
    return size


async def _blocks() -> AsyncIterator[bytes]:
    while True:
        try:
            block = await _read_block()
        except OSError as error:
            raise errors.Unreadable(f"standard input: {error.strerror}") from error
        if not block:
            return
        yield block


async def _read_block() -> bytes:
    if sys.platform == "win32":  # Windows event loops only wait for sockets
        return await asyncio.to_thread(os.read, _DESCRIPTOR, _BLOCK_BYTES)
    await _wait_for_bytes()
    return os.read(_DESCRIPTOR, _BLOCK_BYTES)


async def _wait_for_bytes() -> None:
    """Wait for bytes without blocking a thread, which Ctrl-C would have to wait for. Each wait needs a new event: epoll
    reports bytes until they are read, so a reused event would still be set after the read, and the next read would block the
    loop."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(_DESCRIPTOR, readable.set)
    except PermissionError:
        return await asyncio.sleep(0)  # epoll refuses regular files, which never block
    try:
        await readable.wait()
    finally:
        loop.remove_reader(_DESCRIPTOR)


async def put_rest(client: AsyncClient, reporter: Reporter, path: str, name_or_id: str) -> int:
    """Send the rest of a file, and report the result; return the exit code. Raises ClientError if no single upload
    matches."""
    meant = [upload for upload in await client.uploads() if name_or_id in (upload.id, upload.name)]
    if not meant:
        raise errors.NotFound(f"there is no open upload {name_or_id!r}", code="upload-not-found", status=404)
    if len(meant) > 1:
        raise errors.AmbiguousName(
            f"several open uploads have this name, choose one: {', '.join(each.id for each in meant)}"
        )
    upload, told = meant[0], Telling(reporter)
    local = LocalFile.at(path, upload.name)
    reporter.show(Planned(1, local.size))
    told.begun(local)
    try:
        file = await client.go_on(upload, path, on_progress=partial(told.moved, local))
    except ClientError as error:
        told.ended(Outcome(local, error=error))
    else:
        told.ended(Outcome(local, file, "sent"))
    return told.sum_up(1)
