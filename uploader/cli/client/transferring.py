"""`put` and `get`: the commands that move bytes."""

from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from uploader.cli.client import transfer_options
from uploader.cli.client.connecting import run_client, shown_options
from uploader.cli.client.naming.completing import complete_names
from uploader.cli.exits import EXIT_USAGE, fail
from uploader.cli.options import SIZE

if TYPE_CHECKING:
    from uploader.cli.client.local.filters import Filters
    from uploader.cli.client.showing.reporters import Reporter
    from uploader.client import AsyncClient, IfExists

_if_exists = click.option(
    "--if-exists",
    type=click.Choice(["keep", "replace", "fail"]),
    help="What happens to your files that have the name, with other content.  [default: replace]",
)
_verbose = click.option("--verbose", "-v", is_flag=True, help="A line for each file of a folder.")


@click.command(cls=transfer_options.Filtered)
@click.argument("paths", metavar="PATH...", nargs=-1, type=click.Path(exists=True, allow_dash=True))
@click.option(
    "--to", "folder", metavar="FOLDER", shell_complete=complete_names, help="Put them into this folder on the server."
)
@click.option("--name", help="The name on the server, of a single file, or of standard input.")
@transfer_options.filters
@transfer_options.files_from
@transfer_options.limit_rate
@transfer_options.connections
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
@transfer_options.delta
@click.option("--go-on", metavar="NAME_OR_ID", help="Go on with this open upload, whoever began it; of a single file.")
@click.option("--encode-names", "encode", is_flag=True, help="Write what the server takes in no name as %5C.")
@transfer_options.patience
@_verbose
@shown_options
def put(
    paths: tuple[str, ...],
    folder: str | None,
    name: str | None,
    filters: "Filters",
    files_from: IO[bytes] | None,
    limit_rate: int | None,
    connections: int,
    chunk_size: int | None,
    hash_first: int,
    if_exists: "IfExists | None",
    checksum: bool,
    delta: bool,
    go_on: str | None,
    encode: bool,
    patience: float,
    verbose: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Upload files, and directories with all regular files in them; or standard input, as `-`, with --name.

    Run it again after an interruption of any kind, here or on another machine that has the same file: what has arrived
    is not sent again. What has the size and the time of modification of your file of that name there is not even read;
    what has changed takes the place of it. What another client began, in a browser or by another protocol, is gone on with
    by --go-on, as `uploader uploads` lists it.
    """
    from uploader.cli.client.putting import put_all
    from uploader.cli.client.resuming import put_rest
    from uploader.cli.client.streaming import STDIN, put_stdin

    if not paths and files_from is None:
        fail("name what to upload, or --files-from", EXIT_USAGE)
    if STDIN in paths and (len(paths) > 1 or files_from is not None or name is None):
        fail("- is standard input, as a file of its own: it needs --name, and nothing beside it", EXIT_USAGE)
    if name is not None and (len(paths) != 1 or files_from is not None or Path(paths[0]).is_dir()):
        fail("--name is for a single file", EXIT_USAGE)
    if go_on is not None and (len(paths) != 1 or files_from is not None or name or folder or Path(paths[0]).is_dir()):
        fail("--go-on is for a single file, under the name that the upload has", EXIT_USAGE)
    listed = transfer_options.listed(files_from) if files_from is not None else []

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        if name is not None and paths == (STDIN,):
            return await put_stdin(client, reporter, folder, name, if_exists=if_exists)
        if go_on is not None:
            return await put_rest(client, reporter, paths[0], go_on)
        return await put_all(
            client,
            reporter,
            tuple(Path(path) for path in paths),
            folder,
            name,
            if_exists=if_exists,
            checksum=checksum,
            verbose=verbose,
            encode=encode,
            filters=filters,
            listed=listed,
        )

    run_client(
        work,
        as_json=as_json,
        quiet=quiet,
        patience_seconds=patience,
        connections=connections,
        chunk_size=chunk_size,
        hash_first_bytes=hash_first,
        most_bytes_per_second=limit_rate,
        delta=delta,
    )


@click.command(cls=transfer_options.Filtered)
@click.argument("words", metavar="NAME...", nargs=-1, shell_complete=complete_names)
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
@transfer_options.filters
@transfer_options.files_from
@transfer_options.limit_rate
@click.option("--decode-names", "decode", is_flag=True, help="Undo --encode-names of `put`.")
@transfer_options.connections
@transfer_options.patience
@_verbose
@shown_options
def get(
    words: tuple[str, ...],
    target: str,
    force: bool,
    checksum: bool,
    decode: bool,
    filters: "Filters",
    files_from: IO[bytes] | None,
    limit_rate: int | None,
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

    if not words and files_from is None:
        fail("name what to download, or --files-from", EXIT_USAGE)
    if target == STDOUT and (as_json or len(words) > 1 or files_from is not None):
        fail("-o - is for a single file, and nothing else is printed", EXIT_USAGE)
    listed = transfer_options.listed(files_from) if files_from is not None else []
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
            decode=decode,
            filters=filters,
            listed=listed,
        )

    run_client(
        work,
        as_json=as_json,
        quiet=quiet,
        patience_seconds=patience,
        connections=connections,
        most_bytes_per_second=limit_rate,
    )
