"""`uploads` and `cancel`: the commands about open uploads."""

from typing import TYPE_CHECKING

import click

from uploader.cli.client.connecting import exit_code_of, run_client, shown_options, worst_of
from uploader.cli.exits import EXIT_OK, EXIT_USAGE, fail

if TYPE_CHECKING:
    from uploader.cli.client.showing.reporters import Reporter
    from uploader.client import AsyncClient, Upload


@click.command()
@shown_options
def uploads(as_json: bool, quiet: bool) -> None:
    """List your open uploads, also of other devices. Each with its id, how far it is, when it expires, and its name."""

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        from uploader.cli.client.showing.events import ListedUpload

        for upload in await client.uploads():
            reporter.show(ListedUpload(upload))
        return EXIT_OK

    run_client(work, as_json=as_json, quiet=quiet)


@click.command()
@click.argument("names_or_ids", metavar="NAME_OR_ID...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All open uploads.")
@shown_options
def cancel(names_or_ids: tuple[str, ...], everything: bool, as_json: bool, quiet: bool) -> None:
    """Cancel open uploads. What has arrived of them is dropped, and its space is given back."""
    if everything == bool(names_or_ids):
        fail("name the uploads, or say --all", EXIT_USAGE)

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        from uploader.cli.client.showing.events import CancelledUpload, Failed
        from uploader.cli.client.showing.failures import failed
        from uploader.client import ClientError

        opened = await client.uploads()
        chosen = opened if everything else [each for each in opened if {each.id, each.name} & set(names_or_ids)]
        codes = set()
        for missing in _unknown(names_or_ids, opened):
            codes.add(exit_code_of(ClientError()))
            reporter.show(Failed(missing, "upload-not-found", "there is no such open upload", retryable=False))
        for upload in chosen:
            try:
                await client.cancel(upload.id)
            except ClientError as error:
                codes.add(exit_code_of(error))
                reporter.show(failed(upload.name, error))
            else:
                reporter.show(CancelledUpload(upload))
        return worst_of(codes)

    run_client(work, as_json=as_json, quiet=quiet)


def _unknown(names_or_ids: tuple[str, ...], opened: "list[Upload]") -> list[str]:
    known = {word for upload in opened for word in (upload.id, upload.name)}
    return [word for word in names_or_ids if word not in known]
