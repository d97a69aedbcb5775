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
    """Show the ids of data directory, database and Redis.

    Those of one installation have the same, since its first `serve` or `work`.
    """
    settings = load_settings()

    async def run(services: "Services") -> "Belonging":
        wait_for_redis()
        return await services.installation.belonging()

    with embedded_redis(settings) as wait_for_redis:
        _print(with_services(settings, run, compares=False))


@click.command()
@click.option("--yes", is_flag=True, help="Really do it.")
def adopt(yes: bool) -> None:
    """Let data directory, database and Redis belong together.

    Whatever they say now, all take the id of the database, else that of the data directory, else a new one.

    For a database that was made anew, or a data directory that was put together by hand. What has no row in this database is
    its content no more: it is kept, and `uploader cleanup --yes` would remove it. Stop all servers and workers first.
    """
    settings = load_settings()

    async def run(services: "Services") -> "tuple[Belonging, str | None]":
        wait_for_redis()
        said = await services.installation.belonging()
        return said, await services.installation.adopt() if yes else None

    with embedded_redis(settings) as wait_for_redis:
        said, adopted = with_services(settings, run, compares=False, adopts=yes)
    _print(said)
    if adopted is None:
        fail("nothing was changed; if these are meant to belong together, say --yes", EXIT_USAGE)
    click.echo(f"all are of installation {adopted} now")


def _print(said: "Belonging") -> None:
    for name, installation in (("data directory", said.disk), ("database", said.database), ("Redis", said.redis)):
        click.echo(f"{name}: {installation or 'of none'}")
