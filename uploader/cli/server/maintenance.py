"""Commands that look after an installation: what is in force, the stores, cleaning, the recount."""

import sys
from typing import TYPE_CHECKING

import click

from uploader.cli.exits import EXIT_OK, EXIT_USAGE, fail
from uploader.cli.options import DURATION, MONTH
from uploader.cli.readable import exact_bytes
from uploader.cli.server.running import (
    EXIT_FAILED,
    embedded_redis,
    load_settings,
    make_data_directory,
    run_to_end,
    with_everything,
    with_services,
)
from uploader.units import format_duration

if TYPE_CHECKING:
    from datetime import datetime

    from uploader.bootstrap import Services
    from uploader.service.cleanup import Cleaned, Reset
    from uploader.service.reconcile import Findings

_LOST = " (open, and its chunks are lost, as after a restore, which brings back none)"
_CLOSE_LOST = (
    "temp: `uploader reset-unfinished --lost --yes` closes the uploads whose chunks are lost; they are to be sent anew"
)


@click.command()
def config() -> None:
    """Print the settings in force, secrets masked."""
    for name, value in load_settings().shown().items():
        click.echo(f"{name}={value}")


@click.group()
def db() -> None:
    """The database."""


@db.command()
def upgrade() -> None:
    """Bring the database to the schema of this version. Safe to repeat, and to run twice at once."""
    from uploader import bootstrap

    settings = load_settings()
    if settings.database_url is None:
        make_data_directory(settings)
    click.echo(f"the database is at revision {run_to_end(bootstrap.upgrade_database(settings))}")


@click.group()
def redis() -> None:
    """Redis, the accounting store."""


@redis.command("reset")
@click.option("--yes", is_flag=True, help="Really do it.")
def redis_reset(yes: bool) -> None:
    """Delete all that this installation keeps in Redis; it is rebuilt from the disk and the database.

    Needed after a change of UPLOADER_SHARDS. Stop all servers and workers first. Nothing that was acknowledged is lost.
    """
    if not yes:
        fail("this deletes all keys of the installation in Redis; say --yes", EXIT_USAGE)
    settings = load_settings()

    async def run(services: "Services") -> int:
        from uploader import bootstrap

        wait_for_redis()
        return await bootstrap.reset_redis(services)

    with embedded_redis(settings) as wait_for_redis:
        click.echo(f"{with_services(settings, run)} keys deleted")


@click.command()
@click.option("--before", type=MONTH, help="Clean the months before this one.  [default: the present one, in UTC]")
@click.option("--idle", type=DURATION, help="Expire uploads idle for so long.  [default: UPLOADER_UPLOAD_EXPIRY, 7d]")
@click.option("--yes", is_flag=True, help="Put away many blobs that no row names, too: no other database does.")
@click.option("--dry-run", is_flag=True, help="Remove nothing, only say what would be.")
def cleanup(before: "datetime | None", idle: float | None, yes: bool, dry_run: bool) -> None:
    """Give back what idle uploads and crashes left.

    Expires idle uploads that were opened in past months, and removes upload directories that no open upload has, once
    nothing touched them for an hour. Servers and workers do the same once a month.

    Blobs and chunks that no row in the database names go to the trash, and come back if a row names them again. More blobs
    than 100, and than 1 % of all, are hardly what crashes left: they are counted and kept, because they may be of another
    database, one that was forgotten in the settings, or is to be restored. --yes puts them away.
    """
    settings = load_settings()
    idle_seconds = idle or settings.upload_expiry_seconds

    async def run(services: "Services") -> "Cleaned":
        return await services.cleanup.clean(
            opened_before=before, idle_seconds=idle_seconds, all_strays=yes, dry_run=dry_run
        )

    cleaned = with_everything(settings, run)
    would = "would be " if dry_run else ""
    click.echo(f"uploads idle for {format_duration(idle_seconds)} {would}expired: {cleaned.expired_uploads}")
    click.echo(f"directories without an open upload {would}removed: {cleaned.directories}")
    click.echo(f"blobs without a row {would}put away: {cleaned.blobs}")
    if cleaned.stray_blobs:
        click.echo(
            f"kept, because no row names so many: {cleaned.stray_blobs} blobs, {exact_bytes(cleaned.stray_bytes)}; "
            "if no other database does, --yes puts them away"
        )
    click.echo(f"disk {would}given back, or to the trash: {exact_bytes(cleaned.disk_bytes)}")
    click.echo(f"quota {would}given back: {exact_bytes(cleaned.quota_bytes)}")
    _fail_if_left(cleaned.left)


@click.command("reset-unfinished")
@click.option("--lost", is_flag=True, help="Only those whose chunks are lost, as after a restore.")
@click.option("--yes", is_flag=True, help="Really do it.")
def reset_unfinished(lost: bool, yes: bool) -> None:
    """Cancel every open upload of every user. Their bytes are lost; finished files stay.

    --lost: only those whose chunks are lost already, because a restore brings back none, or somebody removed them. What the
    trash has of them comes back first.
    """
    if not yes:
        which = "open upload whose chunks are lost" if lost else "open upload of every user"
        fail(f"this cancels every {which}; say --yes", EXIT_USAGE)

    async def run(services: "Services") -> "Reset":
        if lost:
            await services.trash.restore_named()
        return await services.cleanup.reset_unfinished(only_lost=lost)

    reset = with_everything(load_settings(), run)
    click.echo(f"uploads cancelled: {reset.uploads}")
    click.echo(f"quota given back: {exact_bytes(reset.quota_bytes)}")
    _fail_if_left(reset.left)


def _fail_if_left(left: int) -> None:
    if left:
        fail(f"left for now: {left}; the log says why", EXIT_FAILED)


@click.command()
@click.option("--repair", is_flag=True, help="Mend what can be mended, each under its locks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def reconcile(repair: bool, as_json: bool) -> None:
    """Recount every figure, and print each that drifted. Works while the server runs.

    Exit codes: 0 no drift, 1 any drift, also if --repair mended it: run it again to see.
    """
    import json
    from dataclasses import asdict

    async def run(services: "Services") -> "Findings":
        return await services.reconciling.reconcile(repair=repair)

    found = with_everything(load_settings(), run)
    if as_json:
        facts = {"repaired": found.repaired, "checked": found.checked}
        lists = {"drifts": [asdict(drift) for drift in found.drifts], "notes": [asdict(note) for note in found.notes]}
        click.echo(json.dumps(lists | facts))
    else:
        for drift in found.drifts:
            click.echo(f"{drift}{_LOST if drift.kind == 'temp' else ''}")
        if any(drift.kind == "temp" for drift in found.drifts):
            click.echo(_CLOSE_LOST)
        for note in found.notes:
            click.echo(f"note: {note}")
        checked = ", ".join(f"{count} {name}" for name, count in found.checked.items())
        click.echo(f"{len(found.drifts)} drifts, {found.repaired} repaired; checked {checked}")
    sys.exit(EXIT_FAILED if found.drifts else EXIT_OK)
