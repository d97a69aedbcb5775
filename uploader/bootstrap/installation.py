"""Checks and prepares everything before the server serves: the settings, the database, the owner."""

import asyncio
import logging
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from uploader.accounting.refusals import RedisTooOld
from uploader.bootstrap.application import check_public_url, check_shards, create_verifier
from uploader.bootstrap.services import Services, copies_of, database_url, redis_directory, secret_of
from uploader.bootstrap.services import list_aside as aside_of
from uploader.database import migrate
from uploader.database.copies import files_beside
from uploader.database.damage import parts_of
from uploader.database.engine import Database, damage_of_file
from uploader.database.meta import Mishap, note_mishap
from uploader.diagnosis.doctor import Doctor, Kept
from uploader.diagnosis.exposure import outside_hosts
from uploader.diagnosis.health import Integrity
from uploader.domain.diagnosis import Diagnosis, Level, Subject, error, to_act_on, worst_first
from uploader.errors import ConfigurationError, Unavailable, UploaderError
from uploader.http.server.tls import read_certificate
from uploader.runtime import embedded
from uploader.runtime.clock import Clock
from uploader.runtime.embedded import list_aside
from uploader.runtime.tasks import give_way_to_all
from uploader.service.access import OWNER_TOKEN_FILE, owner_token
from uploader.service.secret import SECRET_FILE
from uploader.settings import Settings
from uploader.sinks.configuration import EventSettings, load_events
from uploader.storage.ballast import INODES_SUFFIX, Ballast
from uploader.storage.ballast import NAME as BALLAST
from uploader.storage.local.store import MARK
from uploader.storage.modes import close_to_others

# A full check keeps SQLite from reusing its log, so the log grows meanwhile.
_FULL_LOOK_SECONDS = 60.0
# The names in a data directory, without the files of the database.
_BALLASTS = (BALLAST, f"{BALLAST}{INODES_SUFFIX}")
_KEPT = (OWNER_TOKEN_FILE, SECRET_FILE, MARK, *_BALLASTS, "redis", "metrics", "spool", "trash", "temp", "blobs")

logger = logging.getLogger(__name__)


def check_settings(settings: Settings) -> None:
    """Check the settings, without stores. Raises ConfigurationError."""
    if settings.auth == "none" and (host := next(outside_hosts(settings), None)) is not None:
        raise ConfigurationError(
            f"UPLOADER_AUTH: 'none' lets everybody in; it is refused on {host}, which is not a loopback address"
        )
    check_public_url(settings)
    create_verifier(settings, Clock())
    load_events(settings.events)
    if settings.tls_certificate is not None:
        read_certificate(settings)


async def upgrade_database(settings: Settings) -> str | None:
    """Bring the database to the schema of this version, and return its revision. With an external database the secret must
    be in the settings, because the command may run on a machine without a server. Raises ConfigurationError, Unavailable."""
    async with _opened(settings) as database:
        if settings.sqlite_path is None and settings.installation_secret is None:
            (await migrate.schema_of(database)).refuse_newer()
            raise ConfigurationError(_no_secret(settings))
        await _migrate(settings, database)
        return await migrate.current_revision(database)


def _no_secret(settings: Settings) -> str:
    """Say how to set the secret: the secret of a server, or a new one."""
    here = settings.data.absolute() / SECRET_FILE
    what = "UPLOADER_SECRET is not set, and with UPLOADER_DATABASE_URL an upgrade needs the secret of the installation"
    if here.exists():
        return f"{what}: `export UPLOADER_SECRET_FILE={here}` names the file in which it is"
    return (
        f"{what}. Where a server of 0.3.0 ran, its UPLOADER_DATA has it: `export UPLOADER_SECRET_FILE=…/{SECRET_FILE}`. "
        "Otherwise make it: `(umask 077; openssl rand -hex 32 >uploader.secret)`, then `export "
        "UPLOADER_SECRET_FILE=$PWD/uploader.secret`. All nodes need the same. Links and signed URLs of before stay good"
    )


async def prepare_database(settings: Settings, *, adopts: bool = False) -> None:
    """Migrate an embedded database. Check that an external database is migrated already. `adopts`: make a new database if
    the file of the old one is missing. Raises ConfigurationError, Unavailable."""
    path = settings.sqlite_path
    # Make no new file: the missing file may come back, and its log may still exist.
    if not adopts and path is not None and not path.exists() and (settings.data / MARK).exists():
        offer = "or by `uploader restore-backup --last`; " if copies_of(settings, Clock()).listed() else ""
        raise ConfigurationError(
            f"{path}, the database of this data directory, is not there: put it back from where it is, or from a backup; "
            f"{offer}or, to begin anew without its files and users, stop all servers and run `uploader adopt --yes`"
        )
    async with _opened(settings) as database:
        if settings.database_url is None:
            await _migrate(settings, database)
        else:
            await migrate.check(database)


async def _migrate(settings: Settings, database: Database) -> None:
    """Migrate a database. Copy a SQLite before, unless it is empty. Raises ConfigurationError, Unavailable."""
    schema = await migrate.schema_of(database)
    schema.refuse_newer()
    if schema.revision is not None and schema.is_behind:
        try:
            await copies_of(settings, Clock()).make()
        except UploaderError as error:
            raise ConfigurationError(f"a migration needs a copy of the database before: {error.reason}") from error
    secret = await secret_of(settings, database, Clock()).obtain() if schema.is_behind else None
    await migrate.upgrade(database, secret=secret)


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Database]:
    """Yield the database. Raises ConfigurationError if the SQLite file is damaged or no database, Unavailable."""
    ballast = Ballast.beside(settings.data.absolute(), settings.sqlite_path)
    database = Database(
        database_url(settings),
        timeout_seconds=settings.database_timeout_seconds,
        creates=True,
        make_room=ballast.make_room,
    )
    try:
        yield database
    except Unavailable as error:
        reason = damage_of_file(error.__cause__)
        if reason is None:
            raise
        copies = copies_of(settings, Clock())
        offer = f". {copies.offer()}" if copies.listed() else ""
        raise ConfigurationError(f"the database {settings.sqlite_path} can't be used: {reason}{offer}") from error
    finally:
        await database.close()


async def _begin(services: Services, *, quick: bool = False) -> None:
    if services.settings.link_secret is not None:
        logger.warning(
            "UPLOADER_LINK_SECRET is called UPLOADER_SECRET now, and the next version does not know the former name"
        )
    await services.storage.prepare()
    await services.spool.prepare()
    # Before SQLite opens its file: SQLite gives the files beside it the same mode.
    was_open = await asyncio.to_thread(_close_to_others, services.settings)
    await asyncio.to_thread(services.copies.refuse_damaged, quick=quick)
    await prepare_database(services.settings)
    await services.installation.begin()
    await check_shards(services)  # here, too: a server process would end with a traceback
    await services.secret.begin(protects=True)
    if was_open:
        await services.database.transact(note_mishap, Mishap.ACCESS, services.clock.now())


def _close_to_others(settings: Settings) -> bool:
    """Take the access to the installation's files from other accounts. Return whether an installation was open to them:
    older versions left the secret and all names readable. Only the top level changes, because it also closes everything
    below. A data directory with files of others stays as it is."""
    kept = _kept_by(settings)
    return close_to_others([kept.data, *kept.paths] if kept.owns_all else kept.paths) and kept.is_begun


def _kept_by(settings: Settings) -> Kept:
    """List the files and directories of an installation on this machine. Raises OSError."""
    data = settings.data.resolve()
    # The largest directories last.
    ours = [*(data / name for name in _KEPT), *list_aside(data / "redis")]
    is_begun = (data / MARK).exists()
    path = settings.sqlite_path
    if path is not None:
        path = path.resolve()  # SQLite keeps its other files beside the target of a symlink
        is_begun = is_begun or path.exists()
        ours = [
            *parts_of(path),
            *files_beside(path),
            *(path.with_name(f"{path.name}.{name}") for name in _BALLASTS),
            *ours,
        ]
    owns_all = False
    with suppress(FileNotFoundError):
        owns_all = not data.stat().st_mode & stat.S_ISVTX and set(data.iterdir()) <= set(ours)
    return Kept(data, ours, owns_all, is_begun, path)


async def examine(settings: Settings, *, all_files: bool = False) -> list[Diagnosis]:
    """Run all checks and return the diagnoses, the worst first. Changes nothing. `all_files`: check the mode of every
    file."""
    found = _problems_of(settings)
    events = _events_of(settings)
    async with _services(settings if events is not None else replace(settings, events=None)) as services:
        try:
            doctor = _doctor(services, events or EventSettings())
        except OSError as failure:
            what = f"{settings.data} can't be looked at: {failure.strerror}"
            return worst_first([*found, error(Subject.FILES, what, "run this as the account of the server")])
        return worst_first([*found, *await doctor.examine(all_files=all_files)])


async def tell_worst(settings: Settings) -> None:
    """Log one line with the worst problem that a start can find in a moment."""
    async with _services(settings) as services:
        found = to_act_on(await _doctor(services, load_events(settings.events)).examine_at_start())
    if found:
        more = f" (and {len(found) - 1} more)" if found[1:] else ""
        level = logging.ERROR if found[0].level is Level.ERROR else logging.WARNING
        logger.log(level, f"{found[0].subject}: {found[0].what}; {found[0].do}{more}: `uploader doctor` says all")


def _problems_of(settings: Settings) -> list[Diagnosis]:
    try:
        check_settings(settings)
    except ConfigurationError as failure:
        return [
            error(Subject.SETTINGS, line, "correct it: no server starts before") for line in failure.detail.splitlines()
        ]
    return []


def _events_of(settings: Settings) -> EventSettings | None:
    with suppress(ConfigurationError):
        return load_events(settings.events)
    return None


def _doctor(services: Services, events: EventSettings) -> Doctor:
    """Raises OSError if the data directory can't be read."""
    settings, validity = services.settings, None
    with suppress(ConfigurationError):
        if settings.tls_certificate is not None:
            certificate = read_certificate(settings)
            validity = (certificate.valid_from, certificate.valid_until)
    return Doctor(
        settings,
        events,
        services.database,
        services.storage,
        services.pending,
        services.probe,
        services.installation,
        services.secret,
        Integrity(services.database, services.scrubbing),
        services.watching,
        services.clock,
        kept=_kept_by(settings),
        list_aside=partial(aside_of, settings),
        asks_redis=settings.redis_url is not None or embedded.is_running(redis_directory(settings)),
        validity=validity,
    )


def look_again(settings: Settings, gives_up: Callable[[], bool]) -> None:
    """Do the checks that a start need not wait for: log the worst problem, and check all of a SQLite until `gives_up`
    returns true, for a minute at most. Blocks. Raises ConfigurationError if the SQLite is damaged."""
    with suppress(UploaderError):  # the server reports these errors itself
        asyncio.run(tell_worst(settings))
    give_way_to_all()
    until = time.monotonic() + _FULL_LOOK_SECONDS
    copies_of(settings, Clock()).refuse_damaged(gives_up=lambda: gives_up() or time.monotonic() > until)


async def check_redis(settings: Settings) -> None:
    """Check that Redis belongs to the installation. A start goes on while Redis or the database is away. Raises
    ConfigurationError, also for a Redis that is too old."""
    async with _services(settings) as services:
        try:
            await services.installation.check_database()
            await services.probe.run()
            await services.installation.check_redis()
        except Unavailable as error:
            if isinstance(error.__cause__, RedisTooOld):
                raise ConfigurationError(f"UPLOADER_REDIS_URL: {error.__cause__}") from error
            logger.warning("the start goes on, and what needs this store waits for it", extra={"reason": error.reason})


@asynccontextmanager
async def _services(settings: Settings) -> AsyncIterator[Services]:
    services = Services(settings)
    try:
        yield services
    finally:
        await services.close()


async def prepare_start(
    settings: Settings, wait_for_redis: Callable[[], None], *, makes_owner: bool = True
) -> str | None:
    """Prepare the installation, wait for the embedded Valkey, and check Redis. A start goes on without Valkey. Returns the
    owner's token. Raises ConfigurationError, Unavailable, StorageFailed, StorageFull."""
    token = await prepare_installation(settings, makes_owner=makes_owner)
    with suppress(Unavailable):
        await asyncio.to_thread(wait_for_redis)
    await check_redis(settings)
    return token


async def prepare_installation(settings: Settings, *, makes_owner: bool = True) -> str | None:
    """Check that the disk and the database work and belong together; new ones belong together from now on. Make the owner at
    the first start. Returns the owner's token if its file exists. `look_again` does the slow checks. Raises
    ConfigurationError, Unavailable, StorageFailed, StorageFull."""
    async with _services(settings) as services:
        await _begin(services, quick=makes_owner)  # workers do not call `look_again`
        makes_owner = makes_owner and settings.auth == "token"
        return await owner_token(settings.data, services.accounts) if makes_owner else None
