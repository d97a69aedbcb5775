"""Text is data in every statement, in every SQL mode of MySQL and MariaDB: what was written is read back byte by byte."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from tests.conftest import MakeStack
from tests.support.relay import relaying
from tests.support.stack import patient
from uploader import bootstrap
from uploader.database import models
from uploader.database.engine import Connection, Database, is_refusal
from uploader.database.models import Bytewise, Octets
from uploader.database.mysql import SQL_MODE, Mysql
from uploader.domain.diagnosis import Subject
from uploader.errors import Unavailable

# The first two were sent to a server of this product, as names of files.
TEXTS = (
    "inj', 7777, 0, 20200101000000, NULL, left(1,0), NULL) #",
    "x', (SELECT GROUP_CONCAT(sha256) FROM blob), 0, 0, NULL) -- ",
    *(
        "it's.txt",
        "''",
        "'",
        '"',
        "`",
        "\\",
        "\\\\",
        "\\'",
        "'\\",
        "end\\",
        "\\n",
        "a\nb",
        "a\rb",
        "\0",
        "a\0'b",
        "\x1a",
    ),
    *("#", "-- x", "/* x", "; DROP TABLE file;", "%", "%%", "%s", "%(x)s", "%(name)s %s %d", "_", ":name", "?", "{x}"),
    *("é", "漢字'\\", "😀", "\u00bf'", "\u0391\u005c'", "X'41'", "0x41", "NULL", " ", "a ", "A", ""),
)
# As a text of GBK or Big5 these end within a character, whose second byte is the quote or the backslash that follows.
OCTETS = (*(text.encode() for text in TEXTS), b"\xbf'", b"\xbf\\'", b"\xa4\\", b"\xff\x00\x80'", bytes(range(256)))
# Those in which a quote, a backslash or a bar means something else, those of other servers' defaults, and what a proxy
# may set beside them.
SETTINGS = (
    "sql_mode = 'NO_BACKSLASH_ESCAPES'",
    "sql_mode = ''",
    "sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,IGNORE_SPACE,NO_BACKSLASH_ESCAPES'",
    "sql_mode = 'ANSI,TRADITIONAL,PAD_CHAR_TO_FULL_LENGTH'",
    f"sql_mode = '{SQL_MODE}'",
    "NAMES gbk",
    "NAMES latin1",
)
HEX = sa.text("SELECT HEX(:value)")
TAKEN_APART = sa.text(
    "SELECT HEX(name) FROM JSON_TABLE(:value, '$[*]' COLUMNS (name VARCHAR(99) CHARACTER SET utf8mb4 PATH '$')) AS item"
)


def is_text(column: sa.Column[Any]) -> bool:
    return isinstance(column.type, (Bytewise, Octets, sa.LargeBinary))


TABLES = [table for table in models.metadata.sorted_tables if any(map(is_text, table.columns))]


def texts_of(column: sa.Column[Any]) -> tuple[Any, ...]:
    """Return what a column is tried with, cut to its length."""
    if isinstance(column.type, Bytewise):
        length = column.type.impl.length
        return tuple(text.encode()[:length].decode(errors="ignore") for text in TEXTS)
    return OCTETS


def value_of(column: sa.Column[Any], number: int) -> Any:
    if is_text(column):
        texts = texts_of(column)
        return texts[number % len(texts)]
    if isinstance(column.type, models.UtcDateTime):
        return datetime(2020, 1, 2, 3, 4, 5, 678901, UTC)
    if isinstance(column.type, models.UtcDay):
        return date(2020, 1, 2)
    return None if column.nullable else 0


def raw(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Return a column whose bytes nothing decodes."""
    return sa.type_coerce(column, sa.LargeBinary).label(column.name) if is_text(column) else column


async def only(connection: Connection, read: sa.Select[Any]) -> dict[str, Any]:
    return dict((await connection.execute(read)).mappings().one())


def in_bytes(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.encode() if isinstance(value, str) else value for name, value in row.items()}


def changeable(table: sa.Table) -> list[sa.Column[Any]]:
    """Return the columns of text that may have the same value in two rows."""
    unique = {column.name for index in table.indexes if index.unique for column in index.columns}
    return [column for column in table.columns if is_text(column) and not (column.primary_key or column.name in unique)]


def rows_of(table: sa.Table) -> list[dict[str, Any]]:
    rows = [{column.name: value_of(column, number) for column in table.columns} for number in range(len(OCTETS))]
    keys = [tuple(row[column.name] for column in table.primary_key) for row in rows]
    return [row for number, row in enumerate(rows) if keys.index(keys[number]) == number]


@asynccontextmanager
async def connected(database: Database, setting: str) -> AsyncIterator[Connection]:
    """Open a transaction, which is undone, of a connection that somebody has set otherwise."""
    async with database.engine.connect() as connection:
        if database.engine.dialect.name != "sqlite":
            await connection.exec_driver_sql(f"SET {setting}")
        yield connection


def test_every_column_of_text_is_tried() -> None:
    columns = [column for table in models.metadata.sorted_tables for column in table.columns]
    assert sum(map(is_text, columns)) > 100
    untried = {type(column.type) for column in columns if not is_text(column)}
    numbers = {models.Integer64, models.UtcDateTime, models.UtcDay, sa.Boolean, sa.SmallInteger}
    assert untried == numbers, "another type of column: is it text?"


async def test_every_column_keeps_its_text(database: Database) -> None:
    """`tests/acceptance/long/test_sql_modes.py` tries the other modes."""
    await check_every_column(database, SETTINGS[2])


async def check_every_column(database: Database, setting: str) -> None:
    async with connected(database, setting) as connection:
        for table in TABLES:
            rows = rows_of(table)
            await connection.execute(table.insert(), rows)  # many in one statement
            for number, row in enumerate(rows):
                of_row = sa.and_(*(column == row[column.name] for column in table.primary_key))
                read = sa.select(*map(raw, table.columns)).where(of_row)
                assert await only(connection, read) == in_bytes(row), table.name
                changed = {column.name: value_of(column, number + 1) for column in changeable(table)}
                if changed:
                    await connection.execute(sa.update(table).where(of_row).values(changed))
                    assert await only(connection, read) == in_bytes(row | changed), table.name
            key = next(iter(table.primary_key))
            keys = [row[key.name] for row in rows]
            found = (await connection.execute(sa.select(table).where(key.in_(keys)))).all()
            deleted = await connection.execute(table.delete().where(key.in_(keys)))
            assert len(found) == deleted.rowcount == len(rows) >= len(set(keys)) > 1, table.name


@pytest.mark.parametrize("setting", SETTINGS)
async def test_every_kind_of_statement_keeps_its_text_in_every_mode(served_url: str, setting: str) -> None:
    """Try text that no column has: JSON that a statement takes apart, a streamed statement, a statement of the driver."""
    database = patient(served_url)
    async with connected(database, setting) as connection:
        values: list[str | bytes] = [*TEXTS, *OCTETS]
        for value in values:
            octets = value.encode() if isinstance(value, str) else value
            hexed, bound = octets.hex().upper(), {"value": value}
            assert (await connection.execute(HEX, bound)).scalar_one() == hexed
            assert (await connection.execute(sa.select(sa.func.hex(sa.literal(value))))).scalar_one() == hexed
            assert (await connection.exec_driver_sql("SELECT HEX(%s)", (value,))).scalar_one() == hexed
            async with connection.stream(HEX, bound) as streamed:
                assert [row async for row in streamed] == [(hexed,)]
            if isinstance(value, str):
                batch = json.dumps([value], ensure_ascii=False)
                assert (await connection.execute(TAKEN_APART, {"value": batch})).scalar_one() == hexed
    await database.close()


SET_OURS = f"sql_mode = '{SQL_MODE}'".encode()
WITHOUT_ESCAPES = SETTINGS[0].encode().ljust(len(SET_OURS))


def forget_ours(block: bytes) -> bytes:
    """Do as a proxy does that gives each connection the SQL mode of its own configuration."""
    return block.replace(SET_OURS, WITHOUT_ESCAPES)


async def mode_of(connection: Connection) -> set[str]:
    return set(str((await connection.exec_driver_sql("SELECT @@SESSION.sql_mode")).scalar_one()).split(","))


async def test_connection_whose_mode_was_changed_is_used_no_more(
    served_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = patient(served_url)
    async with connected(database, "sql_mode = 'ANSI'") as connection:
        number = (await connection.exec_driver_sql("SELECT CONNECTION_ID()")).scalar_one()
    assert await database.read(mode_of) == set(SQL_MODE.split(","))
    async with database.engine.connect() as connection:
        assert (await connection.exec_driver_sql("SELECT CONNECTION_ID()")).scalar_one() != number
    assert "its SQL mode was changed" in caplog.text
    await database.close()


async def test_each_connection_has_the_same_mode_whatever_the_mode_of_the_server(served_url: str) -> None:
    async with unusual_server(served_url, SETTINGS[2]):
        database = patient(served_url)
        assert await database.read(mode_of) == set(SQL_MODE.split(","))
        await database.close()


@asynccontextmanager
async def unusual_server(url: str, setting: str) -> AsyncIterator[None]:
    """Have a server give each new connection another SQL mode."""
    database = patient(url)

    async def change(connection: Connection, setting: str) -> str:
        before = str((await connection.exec_driver_sql("SELECT @@GLOBAL.sql_mode")).scalar_one())
        await connection.exec_driver_sql(f"SET GLOBAL {setting}")
        return before

    before = await database.read(change, setting)
    try:
        yield
    finally:
        await database.read(change, f"sql_mode = '{before}'")
        await database.close()


async def test_server_behind_a_proxy_that_changes_the_mode_is_refused_by_name(
    make_stack: MakeStack, served_url: str
) -> None:
    with relaying(sa.make_url(served_url).port or 0) as proxy:
        url = sa.make_url(served_url).set(port=proxy.server_address[1]).render_as_string(hide_password=False)
        async with make_stack(database_url=url) as stack:
            proxy.change = forget_ours
            mysql = stack.services.database._kind
            assert isinstance(mysql, Mysql)
            mysql.drop_connections()
            refused = await stack.client.get("/me/files")
            assert (refused.status_code, "another SQL mode" in refused.json()["detail"]) == (503, True)
            ready = await stack.anonymous().get("/readyz")
            reason = ready.json()["checks"]["database"]["reason"]
            assert ready.status_code == 503
            assert "with NO_BACKSLASH_ESCAPES" in reason
            found = await bootstrap.examine(stack.services.settings)
            assert [f"{each.what}, {each.do}" for each in found if each.subject is Subject.DATABASE] == [reason]
            with pytest.raises(Unavailable) as raised:
                await stack.services.database.read(mode_of)
            assert "UPLOADER_DATABASE_URL) has another SQL mode" in raised.value.reason
            assert is_refusal(raised.value.__cause__), "no waiting mends it"
            proxy.change = bytes
            assert (await stack.client.get("/me/files")).status_code == 200
            assert (await stack.anonymous().get("/readyz")).status_code == 200
