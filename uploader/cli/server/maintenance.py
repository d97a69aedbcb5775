"""Commands that look after an installation: what is in force and belongs together, the stores, cleaning, the recount, rot,
deleted files that are kept for a while."""

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from uploader.cli.server.services import (
    EXIT_FAILED,
    load_settings,
    make_data_directory,
    run_to_end,
    with_everything,
    with_services,
)
from uploader.cli.terminal import DURATION, EXIT_OK, EXIT_USAGE, MONTH, RATE, exact_bytes, fail
from uploader.units import format_duration

if TYPE_CHECKING:
    from uploader.bootstrap import Services
    from uploader.service.cleanup import Reset
    from uploader.service.heal import Damage
    from uploader.service.scrub import ScrubProgress

_LOST = " (open, and its chunks are lost, as after a restore, which brings back none)"
_CLOSE_LOST = (
    "temp: `uploader reset-unfinished --lost --yes` closes the uploads whose chunks are lost; they are to be sent anew"
)


@click.command()
def config() -> None:
    """Print the settings in force, secrets masked."""
    for name, value in load_settings().shown().items():
        click.echo(f"{name}={value}")


@click.command()
@click.option("--notes", is_flag=True, help="Tell also what is only good to know.")
@click.option(
    "--all-files", is_flag=True, help="Look at the mode of every file, however long that takes; else for 1 s."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list of objects: level, subject, what, do.")
def doctor(notes: bool, all_files: bool, as_json: bool) -> None:
    """Look at an installation, and say what is wrong and what to do, the worst first. Changes nothing.

    At its settings, files, disk, database, Redis, bucket, clocks and libraries, and at what its jobs found. Works while the
    server runs, without it, and if the database or Redis is away; run it as the account of the server, with its settings.

    \b
    Each line says: level  subject: what is wrong; what to do
      error    bytes can be lost, strangers are let in, or the server can't work
      warning  it works, and would not withstand an attacker, a power cut or the next months
      note     good to know; shown by --notes

    Exit codes: 0 nothing to do, 1 an error or a warning, 2 bad usage or settings that can't be read.
    """
    settings = load_settings()
    from uploader import bootstrap
    from uploader.domain.diagnosis import to_act_on

    found = run_to_end(bootstrap.examine(settings, all_files=all_files))
    acted_on = to_act_on(found)
    shown = found if notes else acted_on
    if as_json:
        click.echo(json.dumps([asdict(each) for each in shown]))
    else:
        for each in shown:
            click.echo(each)
        if not acted_on:
            click.echo("nothing to do")
    sys.exit(EXIT_FAILED if acted_on else EXIT_OK)


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
    from uploader import bootstrap

    click.echo(f"{with_services(settings, bootstrap.reset_redis, redis=True)} keys deleted")


@click.command()
@click.option("--before", type=MONTH, help="Clean the months before this one.  [default: the present one, in UTC]")
@click.option("--idle", type=DURATION, help="Expire uploads idle for so long.  [default: UPLOADER_UPLOAD_EXPIRY, 7d]")
@click.option("--yes", is_flag=True, help="Put away many blobs that no row names, too: no other database does.")
@click.option("--dry-run", is_flag=True, help="Remove nothing, only say what would be.")
def cleanup(before: datetime | None, idle: float | None, yes: bool, dry_run: bool) -> None:
    """Give back what idle uploads and crashes left.

    Expires idle uploads that were opened in past months, and removes upload directories that no open upload has, once
    nothing touched them for an hour. Servers and workers do the same once a month.

    Blobs and chunks that no row in the database names go to the trash, and come back if a row names them again. More blobs
    than 100, and than 1 % of all, are hardly what crashes left: they are counted and kept, because they may be of another
    database, one that was forgotten in the settings, or is to be restored. --yes puts them away.
    """
    settings = load_settings()
    idle_seconds = idle or settings.upload_expiry_seconds
    cleaned = with_everything(
        settings,
        lambda services: services.cleanup.clean(
            opened_before=before, idle_seconds=idle_seconds, all_strays=yes, dry_run=dry_run
        ),
    )
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
    found = with_everything(load_settings(), lambda services: services.reconciling.reconcile(repair=repair))
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


@click.command()
def installation() -> None:
    """Show the ids of store, database and Redis.

    Those of one installation have the same, since its first `serve` or `work`.
    """
    with_services(load_settings(), _print_ids, redis=True, compares=False)


@click.command()
@click.option("--yes", is_flag=True, help="Really do it.")
def adopt(yes: bool) -> None:
    """Let store, database and Redis belong together. The store is the data directory, or the bucket of UPLOADER_STORAGE.

    Whatever they say now, all take the id of the database, else that of the store, else a new one.

    For a database that was made anew, or a store that was put together by hand. What has no row in this database is
    its content no more: it is kept, and `uploader cleanup --yes` would remove it. Stop all servers and workers first.
    """

    async def run(services: "Services") -> str | None:
        await _print_ids(services)
        return await services.installation.adopt() if yes else None

    adopted = with_services(load_settings(), run, redis=True, compares=False, adopts=yes)
    if adopted is None:
        fail("nothing was changed; if these are meant to belong together, say --yes", EXIT_USAGE)
    click.echo(f"all are of installation {adopted} now")


async def _print_ids(services: "Services") -> None:
    store, said = services.installation.store_name, await services.installation.belonging()
    for name, installation in ((store, said.disk), ("database", said.database), ("Redis", said.redis)):
        click.echo(f"{name}: {installation or 'of none'}")


@click.command()
@click.option("--rate", type=RATE, default="50MiB/s", show_default=True, help="Bytes a second; 0: all the disk gives.")
@click.option("--restart", is_flag=True, help="Begin with the first blob, even if the last run did not end.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object a line: every damaged blob, then the summary."
)
def scrub(rate: int, restart: bool, as_json: bool) -> None:
    """Read all stored content again, and report what rotted. Works while the server runs.

    What is damaged is healed by a good copy from the trash, if there is one, or else marked, so that nobody is given its
    bytes. Interrupted, it goes on where it was. Servers and workers do the same all the time, at UPLOADER_SCRUB_RATE.

    Exit codes: 0 no damage, 1 any damage, also if it was healed, or an earlier run of the same pass found it.
    """
    from uploader.service.scrub import RateLimit

    async def run(services: "Services") -> "ScrubProgress":
        async for damage in services.scrubbing.scrub(RateLimit(rate), restart=restart):
            click.echo(_as_json(damage) if as_json else _as_text(damage))
            sys.stdout.flush()
        return services.scrubbing.progress

    done = with_services(load_settings(), run, stores=True)
    if as_json:
        checked = {"blobs": done.blobs, "bytes": done.bytes}
        click.echo(json.dumps({"event": "summary", "checked": checked, "damaged": done.damaged}))
    else:
        click.echo(f"{done.damaged} damaged; checked {done.blobs} blobs, {done.bytes} bytes")
    sys.exit(EXIT_FAILED if done.damaged else EXIT_OK)


def _as_json(damage: "Damage") -> str:
    files = [{"user_id": file.user_id, "id": file.id, "name": file.name} for file in damage.files]
    facts = {"sha256": damage.sha256, "size": damage.size, "problem": damage.problem, "healed": damage.healed}
    return json.dumps({"event": "damaged", **facts, "files": files})


def _as_text(damage: "Damage") -> str:
    # Names are the users' own: shown so that none can pass for another line.
    files = ", ".join(f"{file.id} {file.name!a} of {file.user_id}" for file in damage.files)
    problem = f"{damage.problem}, and healed" if damage.healed else damage.problem
    return f"{problem}: {damage.sha256}, {damage.size} bytes; files: {files}"


@click.group()
def trash() -> None:
    """List, restore or remove deleted content. UPLOADER_TRASH_RETENTION says how long it is kept.

    What a row names again comes back by itself: when somebody asks for it, at a start, and once in an hour.
    """


@trash.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
def list_(as_json: bool) -> None:
    """Print what is there, the oldest first: since when, its bytes on disk, and the SHA-256 or the id of the upload."""
    for found in with_services(load_settings(), lambda services: services.trash.entries(), stores=True):
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
    if not with_services(load_settings(), lambda services: services.trash.restore(name), stores=True):
        fail(f"nothing is restored: no row needs {name}, or the trash has no good copy of it", EXIT_FAILED)
    click.echo(f"restored: {name}")


@trash.command()
@click.option("--yes", is_flag=True, help="Really do it.")
def empty(yes: bool) -> None:
    """Remove for good all that is there and that no row needs."""
    if not yes:
        fail("this removes for good what was deleted; say --yes", EXIT_USAGE)
    purged = with_services(load_settings(), lambda services: services.trash.empty(), stores=True)
    click.echo(f"removed for good: {purged.entries}")
    click.echo(f"disk given back: {exact_bytes(purged.disk_bytes)}")
