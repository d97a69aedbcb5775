"""Checks and prepares everything before the server serves: the settings, the database, the owner."""

import asyncio
import ipaddress
import logging
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from uploader.accounting import redis
from uploader.bootstrap.application import check_shards, create_verifier
from uploader.bootstrap.services import Services, database_url, sqlite_path
from uploader.clock import Clock
from uploader.database import migrate
from uploader.database.engine import Database, is_refusal, unfitness
from uploader.database.meta import Mishap, note_mishap
from uploader.embedded import list_aside
from uploader.errors import ConfigurationError, Unavailable
from uploader.http.server.tls import read_certificate
from uploader.service.access import OWNER_TOKEN_FILE, owner_token
from uploader.settings import Settings
from uploader.sinks.configuration import load_events
from uploader.storage.disk import close_to_others
from uploader.storage.local.store import MARK

# What a data directory has, but for the database.
_KEPT = ("blobs", "temp", "trash", "spool", "metrics", "redis", MARK, OWNER_TOKEN_FILE)

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


def check_settings(settings: Settings) -> None:
    """Raises ConfigurationError."""
    if settings.auth == "none" and not _is_loopback(settings.host):
        raise ConfigurationError(
            f"UPLOADER_AUTH: 'none' lets everybody in; it is refused on {settings.host}, which is not a loopback address"
        )
    create_verifier(settings, Clock())
    load_events(settings.events)
    if settings.tls_certificate is not None:
        read_certificate(settings).warn_unless_valid(Clock().now())


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def warn_of_settings(settings: Settings) -> None:
    if settings.instant == "trust":
        logger.warning("UPLOADER_INSTANT=trust: any user who knows the MD5 and size of a file can get it")
    if settings.auth == "jwt" and (settings.jwt_jwks or "").startswith("http://"):
        logger.warning("UPLOADER_JWT_JWKS: over plain http an attacker on the way can put in keys of their own")
    if settings.auth == "jwt" and settings.jwt_jwks is not None and settings.jwt_audience is None:
        logger.warning("UPLOADER_JWT_AUDIENCE is not set: tokens that its issuer made for others are taken, too")


async def upgrade_database(settings: Settings) -> str | None:
    """Bring the database to the schema of this version; the revision. Raises ConfigurationError, Unavailable."""
    async with _opened(settings) as database:
        await migrate.upgrade(database)
        return await migrate.current_revision(database)


async def prepare_database(settings: Settings, *, adopts: bool = False) -> None:
    """Migrate an embedded database; an external one has to be migrated already. `adopts`: a new one may take the place
    of one that is not there any more. Raises ConfigurationError, Unavailable."""
    path = sqlite_path(settings)
    # Nothing new is made where the file was: it may come back, and its log lies there still.
    if not adopts and path is not None and not path.exists() and (settings.data / MARK).exists():
        raise ConfigurationError(
            f"{path}, the database of this data directory, is not there: put it back from where it is, or from a backup; "
            "or, to begin anew without its files and users, stop all servers and run `uploader adopt --yes`"
        )
    async with _opened(settings) as database:
        if settings.database_url is None:
            await migrate.upgrade(database)
        else:
            await migrate.check(database)


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Database]:
    """Raises ConfigurationError for what is wrong with a file, which is for people to put right."""
    database = Database(database_url(settings), creates=True)
    try:
        yield database
    except Unavailable as error:
        reason = unfitness(error.__cause__)
        if reason is None:
            raise
        raise ConfigurationError(f"the database {sqlite_path(settings)} can't be used: {reason}") from error
    finally:
        await database.close()


async def begin_installation(settings: Settings) -> None:
    """Look whether disk and database are fit and belong together, which new ones do from now on. Waits for a server of
    the database that is away. Raises ConfigurationError, and Unavailable if waiting would not help."""
    async with _services(settings) as services:
        await _begin(services)


async def _begin(services: Services) -> None:
    await services.storage.prepare()
    if services.storage.doubt is not None:
        logger.warning(services.storage.doubt)
    await services.spool.prepare()
    # Before SQLite opens its file: what it makes beside it gets the same mode.
    was_open = await asyncio.to_thread(_close_to_others, services.settings)

    async def agree() -> None:
        await prepare_database(services.settings)
        await services.installation.begin()
        await check_shards(services)  # here, too: a server process that finds it out ends with a trace
        if was_open:
            now = services.clock.now()
            await services.database.transact(note_mishap, Mishap.ACCESS, now)

    await _once_there(services.settings, agree)


async def _once_there(settings: Settings, work: Callable[[], Awaitable[None]]) -> None:
    """Do what needs the database once its server is there: both may be started at the same time."""
    waits = False
    while True:
        try:
            return await work()
        except Unavailable as error:
            # Those of a kind of their own tell of damage, or of another store.
            comes = type(error) is Unavailable and sqlite_path(settings) is None and not is_refusal(error.__cause__)
            if not comes:
                raise
            if not waits:
                logger.warning("the start waits for the database", extra={"reason": error.reason})
            waits = True
        await asyncio.sleep(_RETRY_SECONDS)


def _close_to_others(settings: Settings) -> bool:
    """Return whether what an installation has here was open to others, as older versions left it: the database has the
    secret that signs links. What lies deeper is closed by what is above it; a directory in which others keep something stays
    as it is."""
    data = settings.data.resolve()
    ours = [*(data / name for name in _KEPT), *list_aside(data / "redis")]
    was_there = (data / MARK).exists()
    path = sqlite_path(settings)
    if path is not None:
        path = path.resolve()  # SQLite keeps the rest beside what a link leads to
        was_there = was_there or path.exists()
        ours += [path.with_name(f"{path.name}{suffix}") for suffix in ("", "-wal", "-shm", "-journal")]
    status = data.stat()
    if not status.st_mode & stat.S_ISVTX and set(data.iterdir()) <= set(ours):
        ours = [data, *ours]
    return close_to_others(ours) and was_there


async def check_redis(settings: Settings) -> None:
    """Look whether Redis belongs to the rest. Without it a start goes on. Raises ConfigurationError, and Unavailable if
    Redis lets nobody in."""
    async with _services(settings) as services:
        try:
            await services.installation.check_database()
            await services.installation.check_redis()
        except Unavailable as error:
            if redis.is_refusal(error.__cause__):
                raise
            logger.warning("the start goes on, and what needs this store waits for it", extra={"reason": error.reason})


@asynccontextmanager
async def _services(settings: Settings) -> AsyncIterator[Services]:
    services = Services(settings)
    try:
        yield services
    finally:
        await services.close()


async def prepare_installation(settings: Settings) -> str | None:
    """Begin it, and make the owner at the first start; return the owner's token where it lies on disk."""
    async with _services(settings) as services:
        await _begin(services)
        return await owner_token(settings.data, services.accounts) if settings.auth == "token" else None
