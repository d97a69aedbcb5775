"""`uploads` and `cancel`: the commands about open uploads."""

from typing import TYPE_CHECKING

import click

from uploader.cli.client.connecting import exit_code_of, run_client, shown_options, worst_of
from uploader.cli.exits import EXIT_OK, EXIT_USAGE, fail

if TYPE_CHECKING:
    from uploader.cli.client.showing import Reporter
    from uploader.client import AsyncClient, Upload


@click.command()
@shown_options
def uploads(as_json: bool, quiet: bool) -> None:
    """List your open uploads, also of other devices: id, how far, when they expire, name."""

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        from uploader.cli.client.events import ListedUpload

        for upload in await client.uploads():
            reporter.show(ListedUpload(upload))
        return EXIT_OK

    run_client(work, as_json=as_json, quiet=quiet)


@click.command()
@click.argument("names_or_ids", metavar="NAME_OR_ID...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All open uploads.")
@shown_options
def cancel(names_or_ids: tuple[str, ...], everything: bool, as_json: bool, quiet: bool) -> None:
    """Cancel open uploads: what has arrived of them is dropped, and its space is given back."""
    if everything == bool(names_or_ids):
        fail("name the uploads, or say --all", EXIT_USAGE)

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        from uploader.cli.client.events import CancelledUpload, Failed
        from uploader.client import ClientError

        opened = await client.uploads()
        chosen = opened if everything else [each for each in opened if {each.id, each.name} & set(names_or_ids)]
        failed = set()
        for missing in _unknown(names_or_ids, opened):
            failed.add(exit_code_of(ClientError()))
            reporter.show(Failed(missing, "upload-not-found", "there is no such open upload", retryable=False))
        for upload in chosen:
            try:
                await client.cancel(upload.id)
            except ClientError as error:
                failed.add(exit_code_of(error))
                reporter.show(Failed(upload.name, error.code, error.detail, error.retryable))
            else:
                reporter.show(CancelledUpload(upload))
        return worst_of(failed)

    run_client(work, as_json=as_json, quiet=quiet)


def _unknown(names_or_ids: tuple[str, ...], opened: "list[Upload]") -> list[str]:
    known = {word for upload in opened for word in (upload.id, upload.name)}
    return [word for word in names_or_ids if word not in known]
