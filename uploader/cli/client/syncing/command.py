"""`sync`: the command that makes one end as the other is."""

from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from uploader.cli.client import transfer_options
from uploader.cli.client.connecting import run_client, shown_options
from uploader.cli.exits import EXIT_USAGE, fail

if TYPE_CHECKING:
    from uploader.cli.client.local.filters import Filters
    from uploader.cli.client.showing.reporters import Reporter
    from uploader.client import AsyncClient

_REMOTE = ":"


@click.command(cls=transfer_options.Filtered)
@click.argument("source")
@click.argument("target")
@click.option("--delete", is_flag=True, help="Delete at the target what the source has not, after all else went well.")
@click.option("--dry-run", "-n", is_flag=True, help="Only say what would be done.")
@click.option("--checksum", is_flag=True, help="Compare by content, not by size and time, what both have.")
@transfer_options.delta
@transfer_options.filters
@transfer_options.files_from
@transfer_options.limit_rate
@transfer_options.connections
@transfer_options.patience
@click.option("--verbose", "-v", is_flag=True, help="A line for each file that is moved.")
@shown_options
def sync(
    source: str,
    target: str,
    delete: bool,
    dry_run: bool,
    checksum: bool,
    delta: bool,
    filters: "Filters",
    files_from: IO[bytes] | None,
    limit_rate: int | None,
    connections: int,
    patience: float,
    verbose: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make the contents of a folder those of another one: of one here and one on the server, which is written with a colon,
    as in `sync photos :photos` and `sync :photos photos`; : alone is all that is there.

    What has the same size and time of modification at both ends is left as it is. Run it again after an interruption of
    any kind: it goes on where it stopped.
    """
    here, there = (target, source) if source.startswith(_REMOTE) else (source, target)
    if here.startswith(_REMOTE) or not there.startswith(_REMOTE):
        fail("one of the two is to be on the server, such as :photos", EXIT_USAGE)
    upwards = here is source
    path, prefix = Path(here), _prefix(there)
    if upwards and not path.is_dir():
        fail(f"{here} is no directory here", EXIT_USAGE)
    if not upwards and path.exists() and not path.is_dir():
        fail(f"{here} is no directory", EXIT_USAGE)
    if files_from is not None:
        filters = filters.only(transfer_options.listed(files_from))

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        from uploader.cli.client.syncing.downwards import Downwards
        from uploader.cli.client.syncing.telling import SyncTelling
        from uploader.cli.client.syncing.upwards import Upwards

        told = SyncTelling(reporter, None if verbose else source, dry_run=dry_run)
        kind = Upwards if upwards else Downwards
        return await kind(client, told, prefix, filters, delete=delete, checksum=checksum).run(path)

    run_client(
        work,
        as_json=as_json,
        quiet=quiet,
        patience_seconds=patience,
        connections=connections,
        most_bytes_per_second=limit_rate,
        delta=delta,
    )


def _prefix(word: str) -> str:
    """What all names begin with in a folder on the server."""
    from uploader.client import InvalidName
    from uploader.client.transfers.names import checked_name, folder_name

    name = word.removeprefix(_REMOTE).rstrip("/")
    try:
        return folder_name(checked_name(name)) if name else ""
    except InvalidName as error:
        fail(error.detail, EXIT_USAGE)
