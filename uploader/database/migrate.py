"""Brings a database to the schema of this version, and tells whether it is there.

The migrations lie at the top level of a checkout and inside the package of an installed wheel.
"""

import logging
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError, NoSuchTableError
from sqlalchemy.ext.asyncio import AsyncConnection

import uploader
from uploader.database import models
from uploader.database.engine import Database, is_retried
from uploader.errors import ConfigurationError, Unavailable

_LOCK_TIMEOUT_SECONDS = 120


def migrations_directory() -> Path:
    package = Path(uploader.__file__).parent
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def head_revision() -> str:
    """The newest revision; their files are named by it, in order."""
    return max(path.stem.split("_")[0] for path in (migrations_directory() / "versions").glob("[0-9]*.py"))


async def current_revision(database: Database) -> str | None:
    """The revision that the database is at, or None if it is empty. Raises Unavailable."""
    return await database.read(_current_revision)


async def _current_revision(connection: AsyncConnection) -> str | None:
    if not await connection.run_sync(lambda sync: inspect(sync).has_table("alembic_version")):
        return None
    revision: str | None = (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar()
    return revision


async def check(database: Database) -> None:
    """Raises ConfigurationError if the database is not at this version's schema, Unavailable if it is away."""
    current, head = await current_revision(database), head_revision()
    _refuse_newer(current, head)
    if current != head:
        raise ConfigurationError(
            f"the database is at revision {current or 'none'}, not {head}: run `uploader db upgrade`"
        )


def _refuse_newer(current: str | None, head: str) -> None:
    if current is not None and current > head:
        raise ConfigurationError(
            f"the database is at revision {current}, newer than this version's {head}: install the newer version"
        )


async def upgrade(database: Database, revision: str = "head") -> None:
    """Migrate to `revision`. Two at once wait for each other. Raises ConfigurationError, Unavailable."""
    current, head = await current_revision(database), head_revision()
    if current == head and revision == "head" and database.engine.dialect.name == "sqlite":
        return  # its migrations are whole or not at all
    _refuse_newer(current, head)

    async def run(connection: AsyncConnection) -> None:
        await connection.run_sync(_run_alembic, "upgrade", revision)

    await database.transact(run)


async def downgrade(database: Database, revision: str) -> None:
    """Migrate down to `revision`; `base` is an empty database. One that was interrupted has to be run again.

    Raises ConfigurationError, Unavailable.
    """

    async def run(connection: AsyncConnection) -> None:
        await connection.run_sync(_run_alembic, "downgrade", revision)

    await database.transact(run)


def _run_alembic(connection: Connection, direction: str, revision: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_directory()).replace("%", "%%"))
    config.attributes["connection"] = connection
    verb: Any = getattr(command, direction)
    # MySQL ignores the name that alembic gives its primary key, and the driver makes a warning of that.
    logging.getLogger("asyncmy").setLevel(logging.ERROR)
    # MySQL commits with every DDL statement, so a lock of its own keeps a second migration out; SQLite's transaction does.
    locks = connection.dialect.name != "sqlite"
    if locks:
        wait = text("SELECT GET_LOCK('uploader_migrate', :seconds)")
        if connection.execute(wait, {"seconds": _LOCK_TIMEOUT_SECONDS}).scalar() != 1:
            raise Unavailable("Another migration is running.")
    try:
        verb(config, revision)
        if (direction, revision) == ("upgrade", "head"):
            _refuse_gaps(connection)
        if locks:
            # The revision, too, while the lock is held: who gets it next goes on from there.
            connection.exec_driver_sql("COMMIT")
    except NoSuchTableError as error:
        raise _lacking([str(error)]) from error
    except DBAPIError as error:
        if connection.invalidated or is_retried(error):
            raise  # the engine knows what to do
        raise ConfigurationError(f"the database refuses a migration: {error.orig}") from error
    finally:
        # With the connection the lock is lost.
        if locks and not connection.invalidated:
            connection.execute(text("SELECT RELEASE_LOCK('uploader_migrate')"))


def _refuse_gaps(connection: Connection) -> None:
    """Raises ConfigurationError if tables, columns or indexes are missing: going down is many statements, and the revision
    changes after them."""
    inspector, gaps = inspect(connection), []
    for table in models.metadata.sorted_tables:
        if not inspector.has_table(table.name):
            gaps.append(table.name)
            continue
        there = {column["name"] for column in inspector.get_columns(table.name)}
        there |= {str(index["name"]) for index in inspector.get_indexes(table.name)}
        wanted = [*(column.name for column in table.columns), *(str(index.name) for index in table.indexes)]
        gaps += [f"{table.name}.{name}" for name in wanted if name not in there]
    if gaps:
        raise _lacking(gaps)


def _lacking(gaps: list[str]) -> ConfigurationError:
    return ConfigurationError(
        f"the database lacks {', '.join(gaps)}: end the migration down that was interrupted, or restore the backup"
    )
