"""What is looked at and made ready before anything serves: the settings, the database, the owner."""

import ipaddress
import logging

from uploader.bootstrap.application import create_verifier
from uploader.bootstrap.running import check_shards
from uploader.bootstrap.stores import database_url
from uploader.clock import Clock
from uploader.database import migrate
from uploader.database.engine import Database
from uploader.errors import ConfigurationError
from uploader.service.access.accounts import Accounts
from uploader.service.access.owner import owner_token
from uploader.settings import Settings

logger = logging.getLogger(__name__)


def check_settings(settings: Settings) -> None:
    """What can be told before anything starts. Raises ConfigurationError."""
    if settings.auth == "none" and not _is_loopback(settings.host):
        raise ConfigurationError(
            f"UPLOADER_AUTH: 'none' lets everybody in; it is refused on {settings.host}, which is not a loopback address"
        )
    create_verifier(settings, Clock())


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def warn_of_settings(settings: Settings) -> None:
    """Say at the start what a setting gives away."""
    if settings.instant == "trust":
        logger.warning("UPLOADER_INSTANT=trust: whoever knows the MD5 and size of a file can get it")
    if settings.auth == "jwt" and (settings.jwt_jwks or "").startswith("http://"):
        logger.warning("UPLOADER_JWT_JWKS: over plain http whoever is on the way can put in keys of their own")
    if settings.auth == "jwt" and settings.jwt_jwks is not None and settings.jwt_audience is None:
        logger.warning("UPLOADER_JWT_AUDIENCE is not set: tokens that its issuer made for others are taken, too")


async def upgrade_database(settings: Settings) -> str | None:
    """Bring the database to the schema of this version; the revision. Raises ConfigurationError, Unavailable."""
    # A change of a large table takes as long as it takes.
    database = Database(database_url(settings), read_timeout_seconds=None)
    try:
        await migrate.upgrade(database)
        return await migrate.current_revision(database)
    finally:
        await database.close()


async def prepare_database(settings: Settings) -> None:
    """Migrate an embedded database; an external one has to be migrated already. Raises ConfigurationError, Unavailable."""
    database = Database(database_url(settings))
    try:
        if settings.database_url is None:
            await migrate.upgrade(database)
        else:
            await migrate.check(database)
    finally:
        await database.close()


async def prepare_installation(settings: Settings) -> str | None:
    """As `prepare_database`, and make the owner at the first start; the owner's token where it lies on disk."""
    settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    await prepare_database(settings)
    database = Database(database_url(settings))
    try:
        # Here, too: a server process that finds it out ends with a trace.
        await check_shards(database, settings)
        if settings.auth != "token":
            return None
        accounts = Accounts(database, Clock(), default_total_space_bytes=settings.default_total_space_bytes)
        return await owner_token(settings.data, accounts)
    finally:
        await database.close()
