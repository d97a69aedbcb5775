"""`backup` and `restore-backup`."""

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from uploader.cli.server.services import EXIT_FAILED, embedded_redis, load_settings, run_to_end, with_services
from uploader.cli.terminal import EXIT_OK, EXIT_USAGE, exact_bytes, fail, percent, say, say_over
from uploader.domain.audit_log import Action
from uploader.units import format_ago, human_bytes

if TYPE_CHECKING:
    from uploader.bootstrap import Services
    from uploader.service.backup import BackedUp, Copied
    from uploader.settings import Settings

_TERMINAL_SECONDS, _LINES_SECONDS = 0.2, 10.0
_LOST = "what was done since: names of new files, changes of names, deletions, open uploads, users, quotas, tokens"
_DIRECTORY = click.Path(file_okay=False, path_type=Path)


class _Progress:
    """Shows progress on standard error: one changing line on a terminal, otherwise a line every 10 s."""

    def __init__(self) -> None:
        self._on_terminal = sys.stderr.isatty()
        self._told_at = 0.0 if self._on_terminal else time.monotonic()

    def tell(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._told_at < (_TERMINAL_SECONDS if self._on_terminal else _LINES_SECONDS):
            return
        self._told_at = now
        figures = f", {human_bytes(done)} of {human_bytes(total)}" if what == "blobs" else ""
        line = f"{what}: {percent(done, total)}{figures}"
        if self._on_terminal:
            say_over(line)
        else:
            say(line, err=True)

    def close(self) -> None:
        if self._on_terminal:
            say_over("")


@click.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--keep", type=click.IntRange(min=1), help="Keep so many backups, and remove older ones.  [default: all]")
@click.option("--reread", is_flag=True, help="Read blobs of earlier backups again, and replace damaged ones.")
@click.option("--with-secret", is_flag=True, help="Back up the secret too.")
def backup(directory: Path, keep: int | None, reread: bool, with_secret: bool) -> None:
    """Back up database and contents into DIRECTORY. Works while the server runs.

    Makes a missing DIRECTORY. Each backup is a dump, named by its time in UTC; all backups share their blobs. If DIRECTORY
    is on the filesystem of the data directory, blobs are linked and take no space; that helps against mistakes, not against
    a broken disk. Compares each new blob with its SHA-256.

    After an interruption the next run goes on. Not backed up: chunks of open uploads, contents that only deleted files have,
    Redis, settings, the file owner.token, contents in a bucket, and, without --with-secret, the secret of links and signed
    URLs.

    Exit codes: 0 ok; 1 no backup was made, or it lacks the contents that the command names as damaged or missing. Then
    --keep removes nothing.
    """
    settings, progress = load_settings(), _Progress()

    async def run(services: "Services") -> "BackedUp":
        with closing(progress):
            return await services.backups.back_up(
                directory, progress.tell, rereads=reread, keeps=keep, with_secret=with_secret
            )

    with _told():
        made = with_services(settings, run, stores=True)
    copied, doubt = made.copied, made.dumped.doubt
    _tell_lacking(copied)
    if doubt is not None:
        say(f"the database is damaged, and so is its dump: {doubt}")
    say(f"backup {made.stamp}: {copied.blobs} blobs, {exact_bytes(copied.bytes)}")
    if made.bucket is None:
        new = f"{copied.new_blobs} blobs, {exact_bytes(copied.new_bytes)}"
        say(f"new: {new}; of these linked: {copied.linked_blobs}")
    else:
        say(f"the backup has the database; the blobs stay in the {made.bucket}")
    if keep is not None:
        say(f"removed: {made.removed_backups} backups, {made.removed_blobs} blobs")
    sys.exit(EXIT_FAILED if copied.lacking or doubt is not None else EXIT_OK)


@click.command()
@click.argument("directory", type=_DIRECTORY, required=False)
@click.option("--at", "stamp", metavar="STAMP", help="The name of a backup in DIRECTORY.  [default: the newest]")
@click.option("--last", is_flag=True, help="Bring back the newest good copy of a damaged SQLite, without DIRECTORY.")
@click.option("--yes", is_flag=True, help="With --last: really do it.")
def restore_backup(directory: Path | None, stamp: str | None, last: bool, yes: bool) -> None:
    """Restore an installation from a backup in DIRECTORY, or its database from the last copy.

    The settings in force say where to. The database has to be empty. The data directory has to be new or empty, or that of
    the same installation, whose blobs then stay. Stop all servers and workers first. Compares each blob with its SHA-256,
    and deletes the installation's keys in Redis, which servers rebuild. Run it again after an interruption.

    All links end, unless the secret is in UPLOADER_SECRET, the data directory or the backup.

    Contents in a bucket have to be in that of the installation. Missing ones are named.

    No backup has the chunks of open uploads: the command prints the number of these, and `uploader reset-unfinished --lost
    --yes` closes them.

    --last: servers and workers copy a SQLite every hour, and before each migration. Say what is lost; with --yes put the
    newest good copy in the place of the database, which keeps another name. All contents stay: `uploader cleanup --list`.

    Exit codes: 0 ok; 1 nothing was restored, or all but the contents that the command names; 2 the database or the directory
    is not empty, or of another installation.
    """
    settings, progress = load_settings(), _Progress()
    if last == (directory is not None) or (stamp is not None and last) or (yes and not last):
        fail("say DIRECTORY, and perhaps --at; or --last, and perhaps --yes", EXIT_USAGE)
    if directory is None:
        _restore_last(settings, yes)
        return

    async def run() -> "tuple[str, Copied, int]":
        from uploader import bootstrap

        services = bootstrap.Services(settings)
        async with bootstrap.closing_services(services):
            with closing(progress):
                plan = await services.restoring.look(directory, stamp)
                with embedded_redis(settings) as wait_for_redis:
                    wait_for_redis()
                    copied = await services.restoring.restore(plan, progress.tell)
            await services.storage.prepare()
            details = {"backup": plan.stamp, "directory": str(plan.directory), "lacking": len(copied.lacking)}
            if copied.links_ended is not None:
                details["links_ended"] = copied.links_ended
            await services.audit_log.note(Action.INSTALLATION_RESTORED, subject=plan.installation, details=details)
            return plan.stamp, copied, await services.cleanup.count_lost()

    with _told():
        restored, copied, lost = run_to_end(run())
    _tell_lacking(copied)
    say(f"restored {restored}: {copied.blobs - len(copied.lacking)} blobs, of {exact_bytes(copied.bytes)}")
    if copied.links_ended is not None:
        say(f"the secret is another one than before: {copied.links_ended} links and all signed URLs have ended")
    say(f"open uploads whose chunks are in no backup: {lost}")
    if lost:
        say("`uploader reset-unfinished --lost --yes` closes them; their clients have to send them again")
    sys.exit(EXIT_FAILED if copied.lacking else EXIT_OK)


def _restore_last(settings: "Settings", yes: bool) -> None:
    async def run() -> bool:
        from uploader import bootstrap

        services = bootstrap.Services(settings)
        async with bootstrap.closing_services(services):
            last = await services.restoring.look_for_last()
            age = format_ago(services.clock.now() - last.copy.made_at)
            for name, how in last.damaged.items():
                say(f"damaged, and passed over: {name}: {how}")
            say(f"newest good copy: {last.copy.path.name}, made at {last.copy.made_at:%Y-%m-%d %H:%M:%S} UTC, {age}")
            say(f"lost: {_LOST}")
            if not yes:
                return False
            with embedded_redis(settings) as wait_for_redis:
                wait_for_redis()
                aside = await services.restoring.restore_last(last)
            say(f"restored {last.copy.path.name}" + (f"; what was damaged is {aside}" if aside else ""))
            await services.storage.prepare()
            unnamed = [each async for each in services.cleanup.unnamed()]
            say(f"kept, though the copy does not name them: {len(unnamed)} contents and uploads")
            say(f"open uploads whose chunks are missing: {await services.cleanup.count_lost()}")
            return True

    with _told():
        done = run_to_end(run())
    if not done:
        fail("nothing was changed; to lose that, say --yes", EXIT_USAGE)
    say("`uploader cleanup --list` lists what is kept, `uploader reset-unfinished --lost --yes` closes such uploads")


def _tell_lacking(copied: "Copied") -> None:
    for sha256, why in sorted(copied.lacking.items()):
        say(f"{why}: {sha256}")


@contextmanager
def _told() -> Iterator[None]:
    from uploader.storage.backups import BackupRefused

    try:
        yield
    except BackupRefused as error:
        fail(str(error), EXIT_FAILED)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), EXIT_FAILED)
