"""`ls`, `rm`, `mv` and `usage`: the commands about finished files."""

from typing import TYPE_CHECKING

import click

from uploader.cli.client.connecting import run_client, shown_options
from uploader.cli.client.naming.completing import complete_names
from uploader.cli.exits import EXIT_OK

if TYPE_CHECKING:
    from uploader.cli.client.showing.reporters import Reporter
    from uploader.client import AsyncClient


@click.command()
@click.argument("words", metavar="[NAME]...", nargs=-1, shell_complete=complete_names)
@click.option("--recursive", "-r", is_flag=True, help="All that is below a folder, newest first.")
@click.option("--find", "part", metavar="TEXT", help="All files, in any folder, that have this in their name.")
@shown_options
def ls(words: tuple[str, ...], recursive: bool, part: str | None, as_json: bool, quiet: bool) -> None:
    """List files: id, when they were made, size, name. Of a folder, or of all there is, one level, by name, with what is
    in the folders. NAME is a name, an id, a folder, or a pattern such as 'photos/*.jpg', in quotes.
    """

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        from uploader.cli.client.naming.listing import list_all

        return await list_all(client, reporter, words, recursive=recursive, part=part)

    run_client(work, as_json=as_json, quiet=quiet)


@click.command()
@click.argument("words", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_names)
@click.option("--recursive", "-r", is_flag=True, help="Delete folders with all that is in them.")
@click.option("--yes", is_flag=True, help="Really delete folders, and what patterns match.")
@shown_options
def rm(words: tuple[str, ...], recursive: bool, yes: bool, as_json: bool, quiet: bool) -> None:
    """Delete files, what patterns match, and with -r folders. Without --yes it only says how much that would be, unless
    each file is named. NAME is a name, an id, a folder, or a pattern, in quotes; of several files with the same name each
    has to be named by its id.
    """

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        from uploader.cli.client.naming.removing import remove_all

        return await remove_all(client, reporter, words, recursive=recursive, sure=yes)

    run_client(work, as_json=as_json, quiet=quiet)


@click.command()
@click.argument("name", shell_complete=complete_names)
@click.argument("new_name", shell_complete=complete_names)
@click.option("--force", is_flag=True, help="Even if something has that name already; it stays, too.")
@shown_options
def mv(name: str, new_name: str, force: bool, as_json: bool, quiet: bool) -> None:
    """Rename or move a file or a folder. Folders are what names have before a `/`; a NEW_NAME that ends with a `/` is the
    folder to move it into.
    """

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        from uploader.cli.client.naming.moving import move_one

        return await move_one(client, reporter, name, new_name, force=force)

    run_client(work, as_json=as_json, quiet=quiet)


@click.command()
@shown_options
def usage(as_json: bool, quiet: bool) -> None:
    """Show how much space is used, and how much is left."""

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        from uploader.cli.client.showing.events import ListedUsage

        reporter.show(ListedUsage(await client.usage()))
        return EXIT_OK

    run_client(work, as_json=as_json, quiet=quiet)
