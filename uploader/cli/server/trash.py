"""`uploader trash`: what was deleted and is kept for a while."""

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from uploader.cli.exits import EXIT_USAGE, fail
from uploader.cli.readable import exact_bytes
from uploader.cli.server.running import EXIT_FAILED, load_settings, with_services

if TYPE_CHECKING:
    from uploader.bootstrap import Services
    from uploader.service.trash import Purged
    from uploader.storage.contents import Found


@click.group()
def trash() -> None:
    """What was deleted and is kept for a while. For how long says UPLOADER_TRASH_RETENTION.

    What a row names again comes back by itself: when somebody asks for it, at a start, and once in an hour.
    """


@trash.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
def list_(as_json: bool) -> None:
    """Print what is there, the oldest first: since when, its bytes on disk, and the SHA-256 or the id of the upload."""

    async def run(services: "Services") -> "list[Found]":
        await services.storage.prepare()
        return await services.trash.entries()

    for found in with_services(load_settings(), run):
        since = datetime.fromtimestamp(found.changed_at, UTC)
        kind = "blob" if found.is_blob else "upload"
        if as_json:
            facts = {"kind": kind, "name": found.name, "since": since.isoformat(), "disk_bytes": found.disk_bytes}
            click.echo(json.dumps(facts))
        else:
            click.echo(f"{since:%Y-%m-%d %H:%M:%S}  {found.disk_bytes:>16}  {kind} {found.name}")


@trash.command()
@click.argument("name")
def restore(name: str) -> None:
    """Put NAME, a SHA-256 or the id of an upload, back in its place, if a row names it and lacks its bytes.

    The bytes of a content are compared with its SHA-256 first.
    """

    async def run(services: "Services") -> bool:
        await services.storage.prepare()
        return await services.trash.restore(name)

    if not with_services(load_settings(), run):
        fail(f"nothing is restored: no row needs {name}, or the trash has no good copy of it", EXIT_FAILED)
    click.echo(f"restored: {name}")


@trash.command()
@click.option("--yes", is_flag=True, help="Really do it.")
def empty(yes: bool) -> None:
    """Remove for good all that is there and that no row needs."""
    if not yes:
        fail("this removes for good what was deleted; say --yes", EXIT_USAGE)

    async def run(services: "Services") -> "Purged":
        await services.storage.prepare()
        return await services.trash.empty()

    purged = with_services(load_settings(), run)
    click.echo(f"removed for good: {purged.entries}")
    click.echo(f"disk given back: {exact_bytes(purged.disk_bytes)}")
