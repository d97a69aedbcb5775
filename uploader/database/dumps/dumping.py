"""Writes a dump of a database, and makes a database of a dump: each kind in its own way."""

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import migrate
from uploader.database.dumps import sqlite_file, tables
from uploader.database.dumps.listing import write_listing
from uploader.database.engine import Database
from uploader.errors import ConfigurationError, Unavailable

SQLITE, TABLES = "sqlite", "tables"


@dataclass(frozen=True, slots=True)
class Dumped:
    """What a dump is."""

    # Of SQLite, or of tables of MySQL and MariaDB.
    kind: str
    revision: str
    # What the database says of itself that is wrong.
    doubt: str | None


def kind_of(database: Database) -> str:
    """Which dumps such a database can be made of."""
    return SQLITE if database.engine.dialect.name == "sqlite" else TABLES


async def write_dump(database: Database, directory: Path, tell: Callable[[int, int], None]) -> Dumped:
    """Write the whole database, as it is at one moment, and which blobs it names. `tell` hears how much is done, and of how
    much. Raises Unavailable, OSError."""
    revision = await migrate.current_revision(database) or ""
    if kind_of(database) == TABLES:

        async def dump(connection: AsyncConnection) -> None:
            await tables.dump_tables(connection, directory, revision, tell)

        await database.read(dump, snapshot=True)
        await asyncio.to_thread(write_listing, directory, tables.blobs_of_tables(directory))
        return Dumped(TABLES, revision, None)
    path = _path_of(database)
    try:
        await asyncio.to_thread(sqlite_file.copy_sqlite, path, directory, tell)
        doubt = await asyncio.to_thread(sqlite_file.doubt_about, directory)
        await asyncio.to_thread(write_listing, directory, sqlite_file.blobs_of_sqlite(directory))
    except sqlite3.Error as error:
        raise Unavailable("The database can't be copied.", inside=f"{path} can't be copied: {error}") from error
    return Dumped(SQLITE, revision, doubt)


async def check_empty(database: Database, revision: str) -> None:
    """Whether a dump of this revision can be loaded. Raises ConfigurationError, Unavailable."""
    if kind_of(database) == SQLITE:
        path = _path_of(database)
        for there in (path, *(path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm", "-journal"))):
            if there.exists():  # also a log alone: it would be taken for that of the new one
                raise ConfigurationError(f"{there} is there: move it away, a restore makes a new database")
        return
    at = await migrate.current_revision(database)
    if at not in (None, revision):
        raise ConfigurationError(
            f"the database is at revision {at}, the backup at {revision}: give it one without tables"
        )
    table = await database.read(tables.first_with_rows)
    if table is not None:
        raise ConfigurationError(f"the database is not empty, it has rows in {table}: a restore needs one of its own")


async def load_dump(database: Database, directory: Path, revision: str) -> None:
    """Make the database, which is empty, what was dumped, all of it or nothing; then bring it to the schema of this version.

    Raises ConfigurationError, Unavailable, OSError.
    """
    if kind_of(database) == SQLITE:
        await asyncio.to_thread(sqlite_file.place_sqlite, directory, _path_of(database))
    else:
        await migrate.upgrade(database, revision)
        await database.transact(lambda connection: tables.load_tables(connection, directory))
    await migrate.upgrade(database)


def _path_of(database: Database) -> Path:
    path = database.engine.url.database
    if path in (None, "", ":memory:"):
        raise ConfigurationError("a database in memory can't be backed up")
    return Path(path)
