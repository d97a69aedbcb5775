"""`get`: finds the files that the words name, downloads them, and reports the results."""

import asyncio
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import click

from uploader.cli.client import options
from uploader.cli.client.connection import run_client
from uploader.cli.client.events import Planned, Started, exit_code_of, failed, worst_of
from uploader.cli.client.filters import Filters
from uploader.cli.client.folders import make_here
from uploader.cli.client.links import ask_password, behind, link_of
from uploader.cli.client.local import decode_name
from uploader.cli.client.names import Meaning, NoSuchFile, complete_names, one_thing_each, told
from uploader.cli.client.reporters import Reporter, Telling, moving
from uploader.cli.terminal import EXIT_OK, EXIT_USAGE, fail
from uploader.client import AsyncClient, ClientError, File, HiddenName, LocalFile, Outcome, Progress, Wanted
from uploader.client.files import prefixes_of
from uploader.client.plan import folders_of

STDOUT = "-"


@click.command(cls=options.Filtered)
@click.argument("words", metavar="NAME... | LINK [DIRECTORY]", nargs=-1, shell_complete=complete_names)
@click.option(
    "--output",
    "-o",
    "target",
    metavar="PATH",
    help="Directory to download to; for one file also its path, or - for standard output.  [default: this directory]",
)
@click.option("--force", is_flag=True, help="Replace files that are here with other content.")
@click.option("--checksum", is_flag=True, help="Compare with files that are here by content, not by size and time.")
@options.no_empty
@options.filters
@options.files_from
@options.limit_rate
@click.option("--allow-hidden", is_flag=True, help="Take hidden names of a LINK, too.")
@click.option("--decode-names", "decode", is_flag=True, help="Undo --encode-names of `put`.")
@options.connections
@options.patience
@options.verbose
@options.shown_options
def get(
    words: tuple[str, ...],
    target: str | None,
    force: bool,
    checksum: bool,
    decode: bool,
    no_empty: bool,
    allow_hidden: bool,
    filters: Filters,
    files_from: IO[bytes] | None,
    verbose: bool,
    **of_client: Any,
) -> None:
    """Download files and folders. NAME is a name, an id, or a pattern such as 'photos/*.jpg' or '**/*.pdf', in quotes.

    A folder keeps its name, below the directory of --output, with the empty folders in it. Run it again after an
    interruption: it goes on where it stopped, and skips files that are here with the same size and time. A file appears when
    all bytes are there and the digest was compared, with the time of modification.

    A LINK (https://…/s/…) needs no account. The files of a linked folder come into DIRECTORY, by default a directory with
    the folder's name, except hidden names.
    """
    link = link_of(words[0]) if words else None
    if link is not None:
        if len(words) > 2 or files_from is not None or (len(words) == 2 and target is not None):
            fail("a link takes one directory, and no other names", EXIT_USAGE)
        target = f"{words[1]}/" if len(words) == 2 else target
    if not words and files_from is None:
        fail("name the files to download, or give --files-from", EXIT_USAGE)
    if target == STDOUT and (of_client["as_json"] or len(words) > 1 or files_from is not None):
        fail("-o - takes a single file, and no --json", EXIT_USAGE)
    listed = options.listed(files_from) if files_from is not None else []

    async def work(client: AsyncClient, reporter: Reporter) -> int:
        if link is not None:
            found, codes = [await behind(client)], set[int]()
        else:
            found, codes = await one_thing_each(client, reporter, words)
        if not found and not listed:
            return worst_of(codes)
        into, folder = target or ".", ""
        if link is not None and target is None:
            # Strangers chose this name, too: without `--allow-hidden` it must not look like an option when a shell expands a
            # pattern.
            if found[0].word.startswith("-") and not allow_hidden:
                raise HiddenName(
                    f"{found[0].word!r} would be an option of a command: name a DIRECTORY, or --allow-hidden"
                )
            folder = "" if found[0].is_file else found[0].word
        is_directory = into.endswith(("/", os.sep)) or await asyncio.to_thread(Path(into).is_dir)
        is_alone = (len(words) == 1 or link is not None) and not listed
        alone = found[0].files[0] if is_alone and found[0].is_file else None
        if alone is not None and not filters.take(alone.name.rpartition("/")[2]):
            alone = None
        if into == STDOUT:
            if alone is None:
                fail("-o - takes a single file", EXIT_USAGE)
            return await _write(client, reporter, alone)
        if alone is not None and not is_directory:
            return await _get_as(client, reporter, alone, Path(into), overwrite=force)
        wanted, folders, missing = await _plan(client, found, listed, filters, decode_name if decode else str, folder)
        for name in sorted(missing):
            codes.add(told(reporter, name, NoSuchFile(f"there is no file or folder {name!r}")))
        files = len({each.path for each in wanted})
        reporter.show(Planned(files, sum(each.file.size for each in wanted)))
        telling = Telling(reporter) if verbose else Telling(reporter, lambda local: folders.get(local.name))
        allowed = True if link is None else allow_hidden
        outcomes = await client.download_many(
            wanted, into, overwrite=force, checksum=checksum, allow_hidden=allowed, watcher=telling
        )
        if not no_empty and len(outcomes) >= files:  # otherwise the server went away
            empty = await _empty_folders(client, found, listed, filters, decode_name if decode else str)
            codes |= await make_here(reporter, Path(into), empty)
        return telling.sum_up(files, codes)

    run_client(work, link=link, password=ask_password, **of_client)


async def _plan(
    client: AsyncClient,
    found: list[Meaning],
    listed: list[str],
    filters: Filters,
    decode: Callable[[str], str],
    into: str,
) -> tuple[list[Wanted], dict[str, str], set[str]]:
    """Return the wanted files with their paths below the folder `into`; the word that selected each file together with
    others, by the file's name; and the listed paths that do not exist. Listed files are queried by as few prefixes as
    possible."""
    wanted: dict[tuple[str, str], Wanted] = {}
    words: dict[str, str] = {}
    for each in found:
        async for file in each.all_files(client):
            path = decode(file.name.removeprefix(each.base))
            if not filters.take(path):
                continue
            wanted[file.id, path] = Wanted(file, into + path)
            if not each.is_file:
                words.setdefault(file.name, each.folder or each.word)
    several, only = list(wanted.values()), Filters(listed=listed)
    missing = set(only.listed or ())
    for prefix in prefixes_of(listed):
        async for file in client.files(prefix):
            if only.take(file.name):
                missing -= {file.name, *folders_of(file.name)}
                path = decode(file.name)
                several += [Wanted(file, path)] if filters.take(path) else []
    return several, words, missing


async def _empty_folders(
    client: AsyncClient, found: list[Meaning], listed: list[str], filters: Filters, decode: Callable[[str], str]
) -> list[str]:
    """Return the paths of empty folders in the named folders."""
    paths: list[str] = []
    for each in found:
        paths += [name.removeprefix(each.base) async for name in each.empty_folders(client)]
    only = Filters(listed=listed)
    for prefix in prefixes_of(listed):
        paths += [name async for name in client.empty_folders(prefix) if only.take(name.rstrip("/"))]
    return [path for name in dict.fromkeys(paths) if filters.take(path := decode(name.rstrip("/")))]


async def _get_as(client: AsyncClient, reporter: Reporter, file: File, target: Path, *, overwrite: bool) -> int:
    """Download a single file to the path of `--output`; an existing file is compared by content."""
    told, local = Telling(reporter), LocalFile(target, file.name, file.size, 0)
    reporter.show(Planned(1, file.size))
    told.begun(local)
    transfer = client.start_download(file, target, overwrite=overwrite, on_progress=partial(told.moved, local))
    try:
        await transfer
    except ClientError as error:
        told.ended(Outcome(local, error=error))
    else:
        told.ended(Outcome(local, file, "fetched" if transfer.progress.moved_bytes else "present"))
    return told.sum_up(1)


async def _write(client: AsyncClient, reporter: Reporter, file: File) -> int:
    """Write a file to standard output and nothing else; the exit code tells if it is complete."""

    def tell(progress: Progress) -> None:
        reporter.show(moving(STDOUT, progress))

    reporter.show(Planned(1, file.size))
    reporter.show(Started(STDOUT, file.name, file.size))
    with os.fdopen(sys.stdout.fileno(), "wb", buffering=0, closefd=False) as stdout:
        try:
            await client.download_into(file, stdout, on_progress=tell)
        except ClientError as error:
            reporter.show(failed(file.name, error))
            return exit_code_of(error)
    return EXIT_OK
