"""`ls`, `rm`, `mv` and `usage`: the commands about finished files."""

from typing import TYPE_CHECKING

import click

from uploader.cli.client.connecting import exit_code_of, run_client, shown_options, worst_of
from uploader.cli.exits import EXIT_OK

if TYPE_CHECKING:
    from uploader.cli.client.showing import Reporter
    from uploader.client import AsyncClient


@click.command()
@click.argument("prefix", required=False)
@shown_options
def ls(prefix: str | None, as_json: bool, quiet: bool) -> None:
    """List your files, newest first: id, when they were made, size, name. PREFIX: only names that begin so."""

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        from uploader.cli.client.events import Listed

        async for file in client.files(prefix):
            reporter.show(Listed(file))
        return EXIT_OK

    run_client(work, as_json=as_json, quiet=quiet)


@click.command()
@click.argument("names_or_ids", metavar="NAME_OR_ID...", nargs=-1, required=True)
@shown_options
def rm(names_or_ids: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Delete files. Of several with the same name each has to be named by its id."""

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        from uploader.cli.client.events import Deleted, Failed
        from uploader.cli.client.getting import the_file
        from uploader.client import ClientError

        failed = set()
        for name_or_id in names_or_ids:
            try:
                file = await the_file(client, name_or_id)
                await client.delete(file.id)
            except ClientError as error:
                failed.add(exit_code_of(error))
                reporter.show(Failed(name_or_id, error.code, error.detail, error.retryable))
            else:
                reporter.show(Deleted(file))
        return worst_of(failed)

    run_client(work, as_json=as_json, quiet=quiet)


@click.command()
@click.argument("name_or_id")
@click.argument("new_name")
@shown_options
def mv(name_or_id: str, new_name: str, as_json: bool, quiet: bool) -> None:
    """Rename a file, or move it to another folder: folders are what names have before a `/`."""

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        from uploader.cli.client.events import Renamed
        from uploader.cli.client.getting import the_file

        file = await the_file(client, name_or_id)
        reporter.show(Renamed(await client.rename(file.id, new_name), old_name=file.name))
        return EXIT_OK

    run_client(work, as_json=as_json, quiet=quiet)


@click.command()
@shown_options
def usage(as_json: bool, quiet: bool) -> None:
    """Show how much space is used, and how much is left."""

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        from uploader.cli.client.events import ListedUsage

        reporter.show(ListedUsage(await client.usage()))
        return EXIT_OK

    run_client(work, as_json=as_json, quiet=quiet)
