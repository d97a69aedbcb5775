"""Writes a dump of a database, and makes a database of a dump: each kind in its own way.

That of a SQLite is another such file. That of a MySQL or MariaDB is the rows of all tables as JSON, one a line,
compressed; no program of theirs is needed:

{"revision": "0009"} {"table": "file", "columns": ["id", "user_id", …]} ["5f…", "alice", …]

A text is bytes in UTF-8; what is none, a moment and a day are objects: {"hex": …}, {"at": …}, {"day": …}. No column is
known here: a dump of an older revision is loaded into the tables of that revision, and migrated from there.
"""

import asyncio
import gzip
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Table, text

from uploader.database import migrate, models
from uploader.database.connection import AsyncConnection
from uploader.database.copies import copy_file, copy_sqlite, damage_of, opened, parts_of, sync_directory
from uploader.database.engine import Database
from uploader.domain.secret import Secret
from uploader.errors import ConfigurationError, Unavailable

LISTING = "blobs.gz"


def write_listing(directory: Path, blobs: Iterable[tuple[str, int]]) -> None:
    """List the blobs that a dump has files of, in order: SHA-256, size in bytes."""
    with gzip.open(directory / LISTING, "wt", compresslevel=1) as file:
        file.writelines(f"{sha256} {size}\n" for sha256, size in blobs)


def read_listing(directory: Path) -> Iterator[tuple[str, int]]:
    with gzip.open(directory / LISTING, "rt") as file:
        for line in file:
            sha256, _, size = line.partition(" ")
            yield sha256, int(size)


SQLITE_FILE = "uploader.db"
_IN_USE = "SELECT sha256, size FROM blob WHERE refs > 0 ORDER BY sha256"


def blobs_of_sqlite(directory: Path) -> Iterator[tuple[str, int]]:
    with closing(opened(directory / SQLITE_FILE, "ro")) as copied:
        for sha256, size in copied.execute(_IN_USE):
            yield bytes(sha256).decode(errors="replace"), int(size)


def place_sqlite(directory: Path, target: Path) -> None:
    """Put the database in place all at once and durably."""
    # Where contents are in a bucket nobody else has made it.
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.new")
    copy_file(directory / SQLITE_FILE, draft)
    draft.rename(target)
    sync_directory(target.parent)


TABLES_FILE = "tables.jsonl.gz"
_ROWS_AT_ONCE = 1000
_NAME = re.compile(r"[a-z_0-9]+")


async def dump_tables(
    connection: AsyncConnection, directory: Path, revision: str, tell: Callable[[int, int], None]
) -> None:
    """Write all rows, as this transaction sees them: it has to see one moment. `tell` hears of tables."""
    dumped = await _tables(connection)
    with gzip.open(directory / TABLES_FILE, "wt", compresslevel=1) as file:
        await asyncio.to_thread(_write, file, {"revision": revision})
        for number, table in enumerate(dumped):
            tell(number, len(dumped))
            key = ", ".join(f"`{column.name}`" for column in table.primary_key)
            query = text(f"SELECT * FROM `{table.name}` ORDER BY {key}")  # noqa: S608 (names of our own)
            async with connection.stream(query) as found:
                await asyncio.to_thread(_write, file, {"table": table.name, "columns": list(found.keys())})
                async for rows in found.partitions(_ROWS_AT_ONCE):
                    await asyncio.to_thread(_write_rows, file, rows)


def _write(file: Any, facts: object) -> None:
    file.write(json.dumps(facts, ensure_ascii=False, separators=(",", ":")) + "\n")


def _write_rows(file: Any, rows: Any) -> None:
    for row in rows:
        _write(file, [_encoded(value) for value in row])


async def load_tables(connection: AsyncConnection, directory: Path) -> None:
    """Insert into the tables of the dump's revision, which are empty but for the facts of its migrations."""
    await connection.execute(models.meta.delete())
    parts = _parts(directory)
    while part := await asyncio.to_thread(next, parts, None):
        table, columns, rows = part
        names, values = ", ".join(f"`{name}`" for name in columns), ", ".join(f":{name}" for name in columns)
        statement = f"INSERT INTO `{table}` ({names}) VALUES ({values})"  # noqa: S608 (they were looked at)
        await connection.execute(text(statement), [dict(zip(columns, row, strict=True)) for row in rows])


def blobs_of_tables(directory: Path) -> Iterator[tuple[str, int]]:
    for table, columns, rows in _parts(directory):
        if table != models.blob.name:
            continue
        sha256, size, refs = (columns.index(name) for name in ("sha256", "size", "refs"))
        yield from ((row[sha256].decode(), row[size]) for row in rows if row[refs] > 0)


async def first_with_rows(connection: AsyncConnection) -> str | None:
    for table in await _tables(connection):
        if (await connection.execute(table.select().limit(1))).first() is not None:
            return table.name
    return None


async def _tables(connection: AsyncConnection) -> list[Table]:
    """Return the tables that are there: an older revision lacks some."""
    found = await connection.execute(text("SHOW TABLES"))
    names = {name.decode() if isinstance(name, bytes) else name for (name,) in found}
    return [table for table in models.metadata.sorted_tables if table.name in names]


def _parts(directory: Path) -> Iterator[tuple[str, list[str], list[list[Any]]]]:
    """Rows of a table, with its name and columns, a few at a time."""
    table: str = ""
    columns: list[str] = []
    rows: list[list[Any]] = []
    with gzip.open(directory / TABLES_FILE, "rt") as file:
        next(file)
        for line in file:
            facts = json.loads(line)
            if isinstance(facts, list):
                rows.append([_decoded(value) for value in facts])
            if rows and (isinstance(facts, dict) or len(rows) == _ROWS_AT_ONCE):
                yield table, columns, rows
                rows = []
            if isinstance(facts, dict):
                table, columns = _checked(facts["table"]), [_checked(name) for name in facts["columns"]]
    if rows:
        yield table, columns, rows


def _checked(name: str) -> str:
    """Check a name that becomes a part of a statement."""
    if not _NAME.fullmatch(name):
        raise ValueError(name)
    return name


def _encoded(value: Any) -> Any:
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"hex": value.hex()}
        case datetime():
            return {"at": value.isoformat()}
        case date():
            return {"day": value.isoformat()}
        case None | int():
            return value
    raise TypeError(f"no dump has a {type(value).__name__}")


def _decoded(value: Any) -> Any:
    match value:
        case str():
            return value.encode()
        case {"hex": digits}:
            return bytes.fromhex(digits)
        case {"at": moment}:
            return datetime.fromisoformat(moment)
        case {"day": day}:
            return date.fromisoformat(day)
    return value


SQLITE, TABLES = "sqlite", "tables"


@dataclass(frozen=True, slots=True)
class Dumped:
    # Of SQLite, or of tables of MySQL and MariaDB.
    kind: str
    revision: str
    # What the database says of itself that is wrong.
    doubt: str | None


def kind_of(database: Database) -> str:
    return SQLITE if database.engine.dialect.name == "sqlite" else TABLES


async def write_dump(database: Database, directory: Path, tell: Callable[[int, int], None]) -> Dumped:
    """Write the whole database, as of one moment, and the list of its blobs. Raises ConfigurationError, Unavailable,
    OSError."""
    schema = await migrate.schema_of(database)
    revision = schema.revision or ""
    if kind_of(database) == TABLES:
        if schema.is_ahead:
            raise ConfigurationError(
                f"the database is at revision {revision}, which may have tables that this version does not know: back it up "
                "with the newer version"
            )

        async def dump(connection: AsyncConnection) -> None:
            await dump_tables(connection, directory, revision, tell)

        await database.read(dump, snapshot=True)
        await asyncio.to_thread(write_listing, directory, blobs_of_tables(directory))
        return Dumped(TABLES, revision, None)
    path = path_of(database)
    try:
        copied = directory / SQLITE_FILE
        await asyncio.to_thread(copy_sqlite, path, copied, tell)
        told = await asyncio.to_thread(damage_of, copied)
        await asyncio.to_thread(write_listing, directory, blobs_of_sqlite(directory))
    except sqlite3.Error as error:
        raise Unavailable("The database can't be copied.", inside=f"{path} can't be copied: {error}") from error
    return Dumped(SQLITE, revision, told[0] if told else None)


async def check_empty(database: Database, revision: str) -> None:
    """Raises ConfigurationError if a dump of this revision can't be loaded, Unavailable."""
    if kind_of(database) == SQLITE:
        path = path_of(database)
        for there in parts_of(path):
            if there.exists():  # also a log alone: it would be taken for that of the new one
                raise ConfigurationError(f"{there} is there: move it away, a restore makes a new database")
        return
    at = await migrate.current_revision(database)
    if at not in (None, revision):
        raise ConfigurationError(
            f"the database is at revision {at}, the backup at {revision}: give it one without tables"
        )
    table = await database.read(first_with_rows)
    if table is not None:
        raise ConfigurationError(f"the database is not empty, it has rows in {table}: a restore needs one of its own")


async def load_dump(database: Database, directory: Path, revision: str, secret: Secret | None = None) -> None:
    """Make the empty database what was dumped, all of it or nothing, and migrate it, for which `secret` is as in
    `migrate.upgrade`. Raises ConfigurationError, Unavailable, OSError."""
    if kind_of(database) == SQLITE:
        await asyncio.to_thread(place_sqlite, directory, path_of(database))
    else:
        await migrate.upgrade(database, revision)
        await database.transact(load_tables, directory)
    await migrate.upgrade(database, secret=secret)


def path_of(database: Database) -> Path:
    path = database.engine.url.database
    if path in (None, "", ":memory:"):
        raise ConfigurationError("a database in memory can't be backed up")
    return Path(path)
