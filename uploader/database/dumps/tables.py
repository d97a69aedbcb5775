"""A MySQL or MariaDB as a dump: the rows of all tables as JSON, one a line, compressed; no program of theirs is needed.

    {"revision": "0009"}
    {"table": "file", "columns": ["id", "user_id", …]}
    ["5f…", "alice", …]

A text is bytes in UTF-8; what is none, a moment and a day are objects: {"hex": …}, {"at": …}, {"day": …}. No column is known
here: a dump of an older revision is loaded into the tables of that revision, and migrated from there.
"""

import asyncio
import gzip
import json
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Table, text
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models

FILE = "tables.jsonl.gz"
_ROWS_AT_ONCE = 1000
_NAME = re.compile(r"[a-z_0-9]+")


async def dump_tables(
    connection: AsyncConnection, directory: Path, revision: str, tell: Callable[[int, int], None]
) -> None:
    """Write all rows, as this transaction sees them: it has to see one moment. `tell` hears how many tables are done, and of
    how many."""
    dumped = await _tables(connection)
    with gzip.open(directory / FILE, "wt", compresslevel=1) as file:
        await asyncio.to_thread(_write, file, [{"revision": revision}])
        for number, table in enumerate(dumped):
            tell(number, len(dumped))
            async with connection.stream(text(_select(table))) as found:
                await asyncio.to_thread(_write, file, [{"table": table.name, "columns": list(found.keys())}])
                async for rows in found.partitions(_ROWS_AT_ONCE):
                    await asyncio.to_thread(_write_rows, file, rows)


def _select(table: Table) -> str:
    key = ", ".join(f"`{column.name}`" for column in table.primary_key)
    return f"SELECT * FROM `{table.name}` ORDER BY {key}"  # noqa: S608 (names of our own)


def _write_rows(file: Any, rows: Any) -> None:
    _write(file, [[_encoded(value) for value in row] for row in rows])


def _write(file: Any, lines: list[Any]) -> None:
    file.writelines(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)


async def load_tables(connection: AsyncConnection, directory: Path) -> None:
    """Insert all rows of a dump into tables of its revision, which are empty."""
    parts = _parts(directory)
    while (part := await asyncio.to_thread(next, parts, None)) is not None:
        table, columns, rows = part
        names, values = ", ".join(f"`{name}`" for name in columns), ", ".join(f":{name}" for name in columns)
        statement = f"INSERT INTO `{table}` ({names}) VALUES ({values})"  # noqa: S608 (they were looked at)
        await connection.execute(text(statement), [dict(zip(columns, row, strict=True)) for row in rows])


def blobs_of_tables(directory: Path) -> Iterator[tuple[str, int]]:
    """Those that have files, by their SHA-256, with their sizes."""
    for table, columns, rows in _parts(directory):
        if table != models.blob.name:
            continue
        sha256, size, refs = (columns.index(name) for name in ("sha256", "size", "refs"))
        yield from ((row[sha256].decode(), row[size]) for row in rows if row[refs] > 0)


async def first_with_rows(connection: AsyncConnection) -> str | None:
    """The name of a table that is there and not empty."""
    for table in await _tables(connection):
        if (await connection.execute(table.select().limit(1))).first() is not None:
            return table.name
    return None


async def _tables(connection: AsyncConnection) -> list[Table]:
    """Those that are there: of an older revision, not all."""
    found = await connection.execute(text("SHOW TABLES"))
    names = {name.decode() if isinstance(name, bytes) else name for (name,) in found}
    return [table for table in models.metadata.sorted_tables if table.name in names]


def _parts(directory: Path) -> Iterator[tuple[str, list[str], list[list[Any]]]]:
    """Rows of a table, with its name and columns, a few at a time."""
    table: str = ""
    columns: list[str] = []
    rows: list[list[Any]] = []
    with gzip.open(directory / FILE, "rt") as file:
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
    """What becomes a part of a statement."""
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
