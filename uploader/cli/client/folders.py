"""Makes empty folders, on the server or on this machine, and reports the results. Folders with files need no such step."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from uploader.cli.client import events
from uploader.cli.client.connection import with_client
from uploader.cli.client.names import complete_names, told
from uploader.cli.client.reporters import Reporter
from uploader.cli.terminal import shown_path
from uploader.client import AsyncClient, ClientError, ServerTooOld, errors
from uploader.client.download import placed
from uploader.client.plan import checked_path
from uploader.client.transfer import all_or_none

_AT_ONCE = 4


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_names)
@with_client
async def mkdir(client: AsyncClient, reporter: Reporter, names: tuple[str, ...]) -> int:
    """Make empty folders on the server, and those that they lie in.

    An existing folder stays as it is.
    """
    codes = set()
    for name in names:
        try:
            made = await client.make_folder(name)
        except ClientError as error:
            codes.add(told(reporter, name, error))
        else:
            folder = f"{name.rstrip('/')}/"
            reporter.show(events.MadeFolder(folder) if made else events.Noted(f"there is a folder {folder} already"))
    return events.worst_of(codes)


async def make_there(client: AsyncClient, reporter: Reporter, names: Iterable[str]) -> set[int]:
    """Make folders on the server; return the exit codes of failures. An error of the connection or the token ends the work,
    because it would repeat for each folder. Older servers have no empty folders, which is reported once."""
    waiting, codes, made = list(reversed(list(names))), set[int](), 0

    async def go_on() -> None:
        nonlocal made
        while waiting:
            name = waiting.pop()
            try:
                if await client.make_folder(name):
                    made += 1
                    reporter.show(events.MadeFolder(f"{name.rstrip('/')}/", together=True))
            except ServerTooOld as error:
                left = len(waiting) + 1
                waiting.clear()
                reporter.show(events.Noted(f"left out: {_count(left)}, as {error.detail}"))
            except ClientError as error:
                if isinstance(error, errors.Unauthenticated | errors.Unreachable):
                    waiting.clear()
                codes.add(events.exit_code_of(error))
                reporter.show(events.failed(name, error))

    await all_or_none(go_on() for _ in range(min(_AT_ONCE, len(waiting))))
    if made:
        reporter.show(events.Noted(f"made: {_count(made)}"))
    return codes


def _count(folders: int) -> str:
    return "1 empty folder" if folders == 1 else f"{folders} empty folders"


def _make_here(root: Path, paths: Iterable[str]) -> Iterator[tuple[str, ClientError | None]]:
    """Make folders below a directory. Yield each new folder, or each failure with its error. Follows no symbolic links.
    Blocks."""
    for path in paths:
        try:
            placed(root, checked_path(path)).mkdir()
        except FileExistsError:
            here = root / path
            if here.is_symlink() or not here.is_dir():
                yield path, errors.TargetExists(f"{shown_path(here)} is there already, and is no folder")
        except (errors.InvalidName, errors.LeadsOutside) as error:
            yield path, error
        except OSError as error:
            yield path, errors.Unwritable(f"{error.filename or root / path}: {error.strerror}")
        else:
            yield path, None


async def make_here(reporter: Reporter, root: Path, paths: Iterable[str]) -> set[int]:
    """Make folders below a directory, and report each; return the exit codes of failures."""
    codes, made = set[int](), 0
    for path, error in await asyncio.to_thread(lambda: list(_make_here(root, paths))):
        here = shown_path(root / path)
        if error is None:
            made += 1
            reporter.show(events.MadeFolder(f"{here}/", together=True))
        else:
            codes.add(events.exit_code_of(error))
            reporter.show(events.failed(here, error))
    if made:
        reporter.show(events.Noted(f"made: {_count(made)}"))
    return codes
