"""Looks for rows of SQLite that a byte flipped in: it keeps no checksums, as InnoDB does of its pages.

What can be told is what is kept twice (a column that an index repeats), and what can't be a value of its column. Which
values nothing repeats is in docs/operations.md.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Boolean, Column, LargeBinary, SmallInteger, Table, text
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database.columns.types import Bytewise, Integer64, Octets, UtcDateTime
from uploader.database.models import metadata, upload
from uploader.domain.upload import State

# So many of a kind are told.
_MAX_TOLD = 100
_MAX_SHOWN = 100
_HEX_DIGITS = {
    **dict.fromkeys(("id", "md5", "file_id", "upload_id", "digest_md5"), 32),
    **dict.fromkeys(("sha256", "token_sha256", "digest_sha256"), 64),
}
# Those texts that neither an index repeats nor a pattern tells.
_TEXTS = [
    *(("upload", "name"), ("upload", "temp_path"), ("meta", "value"), ("token", "scope"), ("token", "made_by")),
    *(("concatenation", "name"), ("concatenation", "ordered")),
    *(("multipart", "multipart_id"), ("multipart", "appender"), ("chunk", "etag")),
]
_SECOND = "substr({column}, 1, 19)"
_CLOSED = "(closed_at IS NULL) = (open_flag IS 1) AND (CAST(state AS TEXT) = 'OPEN') = (open_flag IS 1)"


@dataclass(frozen=True, slots=True)
class Malformed:
    """A value that its column can't have."""

    table: str
    rowid: int
    column: str
    value: str


async def contradictions(connection: AsyncConnection) -> list[str]:
    """What SQLite finds wrong in its file: pages, rows that an index does not have as they are, broken constraints. It reads
    the whole file (https://sqlite.org/pragma.html#pragma_integrity_check)."""
    if connection.dialect.name != "sqlite":
        return []
    rows = await connection.execute(text(f"PRAGMA integrity_check({_MAX_TOLD})"))
    lines = [line.strip() for told in rows.scalars() for line in str(told).splitlines()]
    return [line for line in lines if line and line != "ok"]


async def malformed(connection: AsyncConnection) -> list[Malformed]:
    """Values that their columns can't have, of all tables; one of a row is told."""
    if connection.dialect.name != "sqlite":
        return []
    found: list[Malformed] = []
    for table in metadata.sorted_tables:
        found += await _malformed_rows(connection, table)
    for table_name, column_name in _TEXTS:
        found += await _broken_texts(connection, table_name, column_name)
    return found


async def _malformed_rows(connection: AsyncConnection, table: Table) -> list[Malformed]:
    wrong = " ".join(f"WHEN ({_rule(column)}) IS NOT TRUE THEN '{column.name}'" for column in table.columns)
    if table is upload:
        wrong += f" WHEN ({_CLOSED}) IS NOT TRUE THEN 'state'"
    query = f"SELECT rowid, CASE {wrong} END AS wrong FROM {table.name} WHERE wrong IS NOT NULL LIMIT {_MAX_TOLD}"  # noqa: S608
    rows = (await connection.execute(text(query))).all()
    return [
        Malformed(table.name, rowid, name, await _shown(connection, table.name, rowid, name)) for rowid, name in rows
    ]


async def _shown(connection: AsyncConnection, table_name: str, rowid: int, column_name: str) -> str:
    query = text(f"SELECT {column_name} FROM {table_name} WHERE rowid = :rowid")  # noqa: S608
    return repr((await connection.execute(query, {"rowid": rowid})).scalar())[:_MAX_SHOWN]


def _rule(column: Column[Any]) -> str:
    """What every value of a column is."""
    rule = _rule_of_value(column).format(column=column.name)
    return f"{column.name} IS NULL OR ({rule})" if column.nullable else rule


def _rule_of_value(column: Column[Any]) -> str:
    if column is upload.c.state:
        words = ", ".join(f"'{state.value}'" for state in State)
        return f"typeof({{column}}) = 'blob' AND CAST({{column}} AS TEXT) IN ({words})"
    if column.name in _HEX_DIGITS:
        length = f"typeof({{column}}) = 'blob' AND length({{column}}) = {_HEX_DIGITS[column.name]}"
        return f"{length} AND CAST({{column}} AS TEXT) NOT GLOB '*[^0-9a-f]*'"
    match column.type:
        case Bytewise() | Octets():
            return "typeof({column}) = 'blob'"
        case LargeBinary():
            return "typeof({column}) = 'blob' AND json_valid(CAST({column} AS TEXT))"
        case Integer64():
            return "typeof({column}) = 'integer' AND {column} >= 0"
        case Boolean():
            return "typeof({column}) = 'integer' AND {column} IN (0, 1)"
        case SmallInteger():
            return "{column} = 1"
        case UtcDateTime():
            second = f"strftime('%Y-%m-%d %H:%M:%S', {_SECOND}) = {_SECOND} AND {{column}} > '0001'"
            return f"length({{column}}) = 26 AND {{column}} GLOB '*.[0-9][0-9][0-9][0-9][0-9][0-9]' AND {second}"
        case _:
            return "length({column}) = 10 AND date({column}) = {column} AND {column} > '0001'"


async def _broken_texts(connection: AsyncConnection, table: str, column: str) -> list[Malformed]:
    suspect = f"CAST({column} AS TEXT) GLOB '*[^ -~]*' OR instr({column}, X'00') > 0"
    query = f"SELECT rowid, {column} FROM {table} WHERE {suspect}"  # noqa: S608
    rows = (await connection.execute(text(query))).all()
    return [Malformed(table, rowid, column, repr(value)[:_MAX_SHOWN]) for rowid, value in rows if not _is_text(value)]


def _is_text(value: Any) -> bool:
    """Whether it is UTF-8 without control characters, which no name has."""
    try:
        return not any(character < " " for character in bytes(value).decode())
    except (TypeError, UnicodeDecodeError):
        return False
