"""`uploader installation` and `uploader adopt`: what belongs to what, and to let it belong together."""

from typing import TYPE_CHECKING

import click

from uploader.cli.exits import EXIT_USAGE, fail
from uploader.cli.server.running import embedded_redis, load_settings, with_services

if TYPE_CHECKING:
    from uploader.bootstrap import Services
    from uploader.service.installation import Belonging


@click.command()
def installation() -> None:
    """Show the ids of store, database and Redis.

    Those of one installation have the same, since its first `serve` or `work`.
    """
    settings = load_settings()

    async def run(services: "Services") -> None:
        wait_for_redis()
        _print(services.installation.store_name, await services.installation.belonging())

    with embedded_redis(settings) as wait_for_redis:
        with_services(settings, run, compares=False)


@click.command()
@click.option("--yes", is_flag=True, help="Really do it.")
def adopt(yes: bool) -> None:
    """Let store, database and Redis belong together. The store is the data directory, or the bucket of UPLOADER_STORAGE.

    Whatever they say now, all take the id of the database, else that of the store, else a new one.

    For a database that was made anew, or a store that was put together by hand. What has no row in this database is
    its content no more: it is kept, and `uploader cleanup --yes` would remove it. Stop all servers and workers first.
    """
    settings = load_settings()

    async def run(services: "Services") -> str | None:
        wait_for_redis()
        _print(services.installation.store_name, await services.installation.belonging())
        return await services.installation.adopt() if yes else None

    with embedded_redis(settings) as wait_for_redis:
        adopted = with_services(settings, run, compares=False, adopts=yes)
    if adopted is None:
        fail("nothing was changed; if these are meant to belong together, say --yes", EXIT_USAGE)
    click.echo(f"all are of installation {adopted} now")


def _print(store: str, said: "Belonging") -> None:
    for name, installation in ((store, said.disk), ("database", said.database), ("Redis", said.redis)):
        click.echo(f"{name}: {installation or 'of none'}")
