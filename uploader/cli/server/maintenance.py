"""Commands that maintain an installation: settings, diagnosis, migration, ids, cleanup, recount, scrubbing, and the store's
trash.
"""

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
    waiting,
    with_everything,
    with_services,
)
from uploader.cli.terminal import DURATION, EXIT_OK, EXIT_USAGE, MONTH, RATE, exact_bytes, fail, say
from uploader.units import format_duration

if TYPE_CHECKING:
    from uploader.bootstrap import Services
    from uploader.service.cleanup import Reset, Unnamed
    from uploader.service.heal import Damage
    from uploader.service.scrub import ScrubProgress
    from uploader.storage.base import Found

_LOST = " (open, and its chunks are lost, as after a restore, which brings back none)"
_CLOSE_LOST = (
    "temp: `uploader reset-unfinished --lost --yes` closes uploads whose chunks are lost; clients send them again"
)


@click.command()
def config() -> None:
    """Print the settings in force, secrets masked."""
    from uploader.lanes.kernel import in_force

    for name, value in load_settings().shown().items():
        say(f"{name}={value}")
    for name, (kind, lanes) in (("MD5", in_force("md5")), ("SHA-256", in_force("sha256"))):
        say(f"# {name}: {lanes} contents at once ({kind})" if lanes > 1 else f"# {name}: no compiled kernel")


@click.command()
@click.option("--notes", is_flag=True, help="Tell also what is only good to know.")
@click.option(
    "--all-files", is_flag=True, help="Look at the mode of every file, however long that takes; else for 1 s."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list of objects: level, subject, what, do.")
def doctor(notes: bool, all_files: bool, as_json: bool) -> None:
    """Say what is wrong with an installation. The worst comes first, each with what to do; nothing is changed.

    Looks at settings, files, disk, database, Redis, bucket, clocks and libraries, and at the findings of the jobs. Works
    while the server runs, without it, and if the database or Redis is away; run it with the account and the
    settings of the server.

    \b
    Each line says: level  subject: what is wrong; what to do
      error    bytes can be lost, strangers are let in, or the server can't work
      warning  it works, but would not withstand an attacker, a power cut or the next months
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
        say(json.dumps([asdict(each) for each in shown]))
    else:
        for each in shown:
            say(str(each), is_prose=True)
        if not acted_on:
            say("nothing to do")
    sys.exit(EXIT_FAILED if acted_on else EXIT_OK)


@click.group()
def db() -> None:
    """Migrate the database."""


@db.command()
def upgrade() -> None:
    """Bring the database to the schema of this version. Safe to repeat, and to run twice at once."""
    settings = load_settings()
    from uploader import bootstrap

    if settings.database_url is None:
        make_data_directory(settings)
    say(f"the database is at revision {run_to_end(waiting(lambda: bootstrap.upgrade_database(settings)))}")


@click.group()
def redis() -> None:
    """Reset Redis, the accounting store."""


@redis.command("reset")
@click.option("--yes", is_flag=True, help="Really do it.")
def redis_reset(yes: bool) -> None:
    """Delete the keys of this installation in Redis; servers rebuild them from the disk and the database.

    Needed after a change of UPLOADER_SHARDS. Stop all servers and workers first. Nothing that was acknowledged is lost.
    """
    if not yes:
        fail("this deletes all keys of the installation in Redis; say --yes", EXIT_USAGE)
    settings = load_settings()
    from uploader import bootstrap

    say(f"{with_services(settings, bootstrap.reset_redis, redis=True)} keys deleted")


@click.command()
@click.option("--before", type=MONTH, help="Clean months before this one.  [default: the present month, in UTC]")
@click.option(
    "--idle", type=DURATION, help="Expire uploads that were idle for so long.  [default: UPLOADER_UPLOAD_EXPIRY, 7d]"
)
@click.option("--yes", is_flag=True, help="Also put many blobs that the database does not name into the trash.")
@click.option("--dry-run", is_flag=True, help="Remove nothing, only print what would be removed.")
@click.option("--list", "lists", is_flag=True, help="Only list the bytes that the database does not name.")
def cleanup(before: datetime | None, idle: float | None, yes: bool, dry_run: bool, lists: bool) -> None:
    """Free the space of idle uploads and of crashes.

    Expires idle uploads of past months, and removes directories of no open upload, once nothing touched them for an hour.
    Servers and workers do so each month.

    Blobs and chunks that the database does not name go to the trash, and come back if the database names them again. More
    than 100 such blobs, if more than 1 % of all, stay: the settings may name a wrong database, or a database that must be
    restored first. Blobs that are newer than a copy restored by `uploader restore-backup --last` stay, too. --yes trashes
    them.

    --list prints them, and removes nothing: since when, bytes on disk, SHA-256 or id of the upload.
    """
    settings = load_settings()
    if lists:
        for unnamed in with_services(settings, _unnamed, stores=True):
            _print_found(unnamed.found, is_blob=unnamed.is_blob)
        return
    idle_seconds = idle or settings.upload_expiry_seconds
    cleaned = with_everything(
        settings,
        lambda services: services.cleanup.clean(
            opened_before=before, idle_seconds=idle_seconds, all_strays=yes, dry_run=dry_run
        ),
    )
    would = "would be " if dry_run else ""
    say(f"uploads idle for {format_duration(idle_seconds)} {would}expired: {cleaned.expired_uploads}")
    say(f"directories without an open upload {would}removed: {cleaned.directories}")
    say(f"blobs without a row {would}put away: {cleaned.blobs}")
    if cleaned.stray_blobs:
        say(
            f"kept, because no row names so many: {cleaned.stray_blobs} blobs, {exact_bytes(cleaned.stray_bytes)}; "
            "if no other database does, --yes puts them away"
        )
    if cleaned.unsettled:
        young = f"{cleaned.unsettled}, {exact_bytes(cleaned.unsettled_bytes)}"
        say(f"touched within the last hour, so that they may still get a row; look again in an hour: {young}")
    say(f"disk {would}given back, or to the trash: {exact_bytes(cleaned.disk_bytes)}")
    say(f"quota {would}given back: {exact_bytes(cleaned.quota_bytes)}")
    _fail_if_left(cleaned.left)


async def _unnamed(services: "Services") -> "list[Unnamed]":
    return sorted([each async for each in services.cleanup.unnamed()], key=lambda each: each.found.changed_at)


def _print_found(found: "Found", *, is_blob: bool) -> None:
    since, kind = datetime.fromtimestamp(found.changed_at, UTC), "blob" if is_blob else "upload"
    say(f"{since:%Y-%m-%d %H:%M:%S}  {found.disk_bytes:>16}  {kind} {found.name}")


@click.command("reset-unfinished")
@click.option("--lost", is_flag=True, help="Cancel only uploads whose chunks are lost, as after a restore.")
@click.option("--yes", is_flag=True, help="Really do it.")
def reset_unfinished(lost: bool, yes: bool) -> None:
    """Cancel every open upload of every user. Their bytes are lost; finished files stay.

    --lost: cancel only uploads whose chunks are lost, because a restore brings back none, or somebody removed them. Chunks
    in the trash come back first.
    """
    if not yes:
        which = "open upload whose chunks are lost" if lost else "open upload of every user"
        fail(f"this cancels every {which}; say --yes", EXIT_USAGE)

    async def run(services: "Services") -> "Reset":
        if lost:
            await services.trash.restore_named()
        return await services.cleanup.reset_unfinished(only_lost=lost)

    reset = with_everything(load_settings(), run)
    say(f"uploads cancelled: {reset.uploads}")
    say(f"quota given back: {exact_bytes(reset.quota_bytes)}")
    _fail_if_left(reset.left)


def _fail_if_left(left: int) -> None:
    if left:
        fail(f"left for now: {left}; the log says why", EXIT_FAILED)


@click.command()
@click.option("--repair", is_flag=True, help="Repair each figure under its locks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def reconcile(repair: bool, as_json: bool) -> None:
    """Recount all figures, and print those that drifted. Works while the server runs.

    Exit codes: 0 no drift, 1 any drift, also if --repair repaired it: run it again to check.
    """
    found = with_everything(load_settings(), lambda services: services.reconciling.reconcile(repair=repair))
    if as_json:
        facts = {"repaired": found.repaired, "checked": found.checked}
        lists = {"drifts": [asdict(drift) for drift in found.drifts], "notes": [asdict(note) for note in found.notes]}
        say(json.dumps(lists | facts))
    else:
        for drift in found.drifts:
            say(f"{drift}{_LOST if drift.kind == 'temp' else ''}")
        if any(drift.kind == "temp" for drift in found.drifts):
            say(_CLOSE_LOST)
        for note in found.notes:
            say(f"note: {note}")
        checked = ", ".join(f"{count} {name}" for name, count in found.checked.items())
        say(f"{len(found.drifts)} drifts, {found.repaired} repaired; checked {checked}")
    sys.exit(EXIT_FAILED if found.drifts else EXIT_OK)


@click.command()
def installation() -> None:
    """Show the ids of store, database and Redis.

    They are equal, since the first `serve` or `work` of an installation.
    """
    with_services(load_settings(), _print_ids, redis=True, compares=False)


@click.command()
@click.option("--yes", is_flag=True, help="Really do it.")
def adopt(yes: bool) -> None:
    """Give store, database and Redis one installation id. The store is the data directory, or UPLOADER_STORAGE.

    All take the id of the database, else that of the store, else a new one.

    Use it after the database was made anew, or the store was put together by hand. Contents that the database does not name
    stay until `uploader cleanup --yes`. If the database has another secret than is here, it takes this one, and all links
    end. Stop all servers and workers first.
    """

    async def run(services: "Services") -> str | None:
        await _print_ids(services)
        if not yes:
            return None
        ended = await services.secret.adopt()
        if ended is not None:
            say(f"the secret is another one than before: {ended} links and all signed URLs have ended")
        return await services.installation.adopt()

    adopted = with_services(load_settings(), run, redis=True, compares=False, adopts=yes)
    if adopted is None:
        fail("nothing was changed; if these are meant to belong together, say --yes", EXIT_USAGE)
    say(f"all are of installation {adopted} now")


async def _print_ids(services: "Services") -> None:
    store, said = services.installation.store_name, await services.installation.belonging()
    for name, installation in ((store, said.disk), ("database", said.database), ("Redis", said.redis)):
        say(f"{name}: {installation or 'of none'}")


@click.command()
@click.option(
    "--rate", type=RATE, default="50MiB/s", show_default=True, help="Bytes a second to read; 0: as fast as the disk."
)
@click.option("--restart", is_flag=True, help="Begin with the first blob, even if the last run did not end.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object a line: every damaged blob, then the summary."
)
def scrub(rate: int, restart: bool, as_json: bool) -> None:
    """Read all stored contents again, and report damaged ones. Works while the server runs.

    Heals a damaged content from a good copy in the trash. Without a good copy, marks the content, and nobody can download it
    any more. An interrupted run goes on where it stopped. Servers and workers do the same all the time, at
    UPLOADER_SCRUB_RATE.

    Exit codes: 0 no damage, 1 any damage, also if it was healed, or an earlier run of the same pass found it.
    """

    async def run(services: "Services") -> "ScrubProgress":
        from uploader.service.scrub import RateLimit

        async for damage in services.scrubbing.scrub(RateLimit(rate), restart=restart):
            say(_as_json(damage) if as_json else _as_text(damage))
        return services.scrubbing.progress

    done = with_services(load_settings(), run, stores=True)
    if as_json:
        checked = {"blobs": done.blobs, "bytes": done.bytes}
        say(json.dumps({"event": "summary", "checked": checked, "damaged": done.damaged}))
    else:
        say(f"{done.damaged} damaged; checked {done.blobs} blobs, {done.bytes} bytes")
    sys.exit(EXIT_FAILED if done.damaged else EXIT_OK)


def _as_json(damage: "Damage") -> str:
    files = [{"user_id": file.user_id, "id": file.id, "name": file.name} for file in damage.files]
    facts = {"sha256": damage.sha256, "size": damage.size, "problem": damage.problem, "healed": damage.healed}
    return json.dumps({"event": "damaged", **facts, "files": files})


def _as_text(damage: "Damage") -> str:
    # Users choose the names: quote them, or a name could imitate another line.
    files = ", ".join(f"{file.id} {file.name!a} of {file.user_id}" for file in damage.files)
    problem = f"{damage.problem}, and healed" if damage.healed else damage.problem
    return f"{problem}: {damage.sha256}, {damage.size} bytes; files: {files}"


@click.group()
def store_trash() -> None:
    """List, restore or remove deleted contents. UPLOADER_TRASH_RETENTION says how long it is kept.

    A content that the database names again comes back by itself: when somebody asks for it, at a start, and once an hour.
    """


@store_trash.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
def list_(as_json: bool) -> None:
    """Print deleted contents, oldest first: since when, bytes on disk, SHA-256 or id of the upload."""
    for found in with_services(load_settings(), lambda services: services.trash.entries(), stores=True):
        if as_json:
            since = datetime.fromtimestamp(found.changed_at, UTC).isoformat()
            kind = "blob" if found.is_blob else "upload"
            say(json.dumps({"kind": kind, "name": found.name, "since": since, "disk_bytes": found.disk_bytes}))
        else:
            _print_found(found, is_blob=found.is_blob)


@store_trash.command()
@click.argument("name")
def restore(name: str) -> None:
    """Put NAME, a SHA-256 or the id of an upload, back in its place, if the database names it and its bytes are missing.

    Compares the bytes of a content with its SHA-256 first.
    """
    if not with_services(load_settings(), lambda services: services.trash.restore(name), stores=True):
        fail(f"nothing is restored: no row needs {name}, or the trash has no good copy of it", EXIT_FAILED)
    say(f"restored: {name}")


@store_trash.command()
@click.option("--yes", is_flag=True, help="Really do it.")
def empty(yes: bool) -> None:
    """Remove all deleted contents for good, except those that the database needs."""
    if not yes:
        fail("this removes for good what was deleted; say --yes", EXIT_USAGE)
    purged = with_services(load_settings(), lambda services: services.trash.empty(), stores=True)
    say(f"removed for good: {purged.entries}")
    say(f"disk given back: {exact_bytes(purged.disk_bytes)}")
