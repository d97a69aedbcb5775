"""`put` and `get`: the commands that move bytes."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from uploader.cli.client.connecting import run_client, shown_options
from uploader.cli.exits import EXIT_USAGE, fail
from uploader.cli.options import DURATION, SIZE

if TYPE_CHECKING:
    from uploader.cli.client.showing import Reporter
    from uploader.client import AsyncClient, IfExists

_connections = click.option(
    "--connections",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Chunks, and files, at the same time.",
)
_if_exists = click.option(
    "--if-exists",
    type=click.Choice(["keep", "replace", "fail"]),
    default="keep",
    show_default=True,
    help="What happens to your files that have the name, with other content.",
)
_patience = click.option(
    "--patience",
    type=DURATION,
    default="5m",
    show_default=True,
    help="How long to keep trying while the server can't be reached.",
)


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--to", "folder", metavar="FOLDER", help="Put them into this folder on the server.")
@click.option("--name", help="The name on the server, of a single file.")
@_connections
@click.option("--chunk-size", type=SIZE, help="Ask for chunks of this size.  [default: the server's]")
@click.option(
    "--hash-first",
    type=SIZE,
    default="64MiB",
    show_default=True,
    help="Up to this size a file is hashed before it is sent, larger ones meanwhile.",
)
@_if_exists
@click.option("--checksum", is_flag=True, help="Compare by content, not by size and time, what is there already.")
@_patience
@shown_options
def put(
    paths: tuple[Path, ...],
    folder: str | None,
    name: str | None,
    connections: int,
    chunk_size: int | None,
    hash_first: int,
    if_exists: "IfExists",
    checksum: bool,
    patience: float,
    as_json: bool,
    quiet: bool,
) -> None:
    """Upload files, and directories with all regular files in them.

    Run it again after an interruption of any kind, here or on another machine that has the same file: what has arrived
    is not sent again. What has the size and the time of modification of your file of that name there is not even read.
    """
    from uploader.cli.client.putting import put_all

    if name is not None and (len(paths) > 1 or paths[0].is_dir()):
        fail("--name is for a single file", EXIT_USAGE)

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        return await put_all(client, reporter, paths, folder, name, if_exists=if_exists, checksum=checksum)

    run_client(
        work,
        as_json=as_json,
        quiet=quiet,
        patience_seconds=patience,
        connections=connections,
        chunk_size=chunk_size,
        hash_first_bytes=hash_first,
    )


@click.command()
@click.argument("words", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--output",
    "-o",
    "target",
    default=".",
    metavar="PATH",
    help="A directory; for one file, also its path, or - for standard output.  [default: this directory]",
)
@click.option("--force", is_flag=True, help="Replace files that are here with other content.")
@click.option("--checksum", is_flag=True, help="Compare by content, not by size and time, what is here already.")
@_connections
@_patience
@click.option("--verbose", "-v", is_flag=True, help="A line for each file of a folder.")
@shown_options
def get(
    words: tuple[str, ...],
    target: str,
    force: bool,
    checksum: bool,
    connections: int,
    patience: float,
    verbose: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Download files, folders with all that is in them, and what patterns match. NAME is a name, an id, or a pattern such
    as 'photos/*.jpg' or '**/*.pdf', in quotes.

    A folder comes under its own name, below the directory of --output. Run it again after an interruption: it goes on
    where it stopped, and what is here with its size and time is not asked for. A file appears when it is whole and was
    compared, with the time at which it was last modified.
    """
    from uploader.cli.client.getting import STDOUT, get_all

    if target == STDOUT and (as_json or len(words) > 1):
        fail("-o - is for a single file, and nothing else is printed", EXIT_USAGE)
    is_directory = target.endswith("/") or Path(target).is_dir()

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        return await get_all(
            client,
            reporter,
            words,
            target,
            is_directory=is_directory,
            overwrite=force,
            checksum=checksum,
            verbose=verbose,
        )

    run_client(work, as_json=as_json, quiet=quiet, patience_seconds=patience, connections=connections)
