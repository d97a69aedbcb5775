"""Pages of a user's files, on each database: by prefix, by a part of the name, and along which index."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import event

from tests.support.rows import file_row
from tests.support.statements import sqlite_steps
from uploader.database import models, queries
from uploader.database.engine import Connection, Database

NAMES = ("a/b", "a/c", "b", "\u00e9/%b_", "B", "b/" + "x" * 250, "a/b (2)")


async def _fill(database: Database) -> None:
    rows = [file_row(seed=f"{number}", id=f"{number:032x}", name=name) for number, name in enumerate(NAMES)]
    rows.append(file_row("bob", seed="bob", id="f" * 32, name="b"))

    async def insert(connection: Connection) -> None:
        values = [{column.name: getattr(row, column.name) for column in models.file.c} for row in rows]
        await connection.execute(models.file.insert(), values)

    await database.transact(insert)


async def _names(database: Database, *, limit: int = 100, **asked: str | None) -> list[str]:
    more = {"after": None, "prefix": None, "part": None} | asked
    found = await database.read(lambda connection: queries.files(connection, "alice", limit=limit, **more))
    return [file.name for file in found]


async def test_names_are_selected_byte_by_byte(database: Database) -> None:
    await _fill(database)
    for part, expected in (
        ("b", [6, 5, 3, 2, 0]),
        ("B", [4]),
        ("%", [3]),
        ("_", [3]),
        ("\u00e9/", [3]),
        ("e", []),
        ("a/b", [6, 0]),
        ("x" * 250, [5]),
        ("", [6, 5, 4, 3, 2, 1, 0]),
    ):
        assert await _names(database, part=part) == [NAMES[number] for number in expected], part
    for prefix, expected in (
        *(("a/", [6, 1, 0]), ("A/", []), ("b", [5, 2]), ("B", [4]), ("\u00e9", [3]), ("e", []), ("c", [])),
        *(("\u00e9/%", [3]), ("\u00e9/_", []), ("%", []), ("", [6, 5, 4, 3, 2, 1, 0])),
    ):
        assert await _names(database, prefix=prefix) == [NAMES[number] for number in expected], prefix


async def test_prefix_lists_newest_files_first_with_few_or_many_names(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _fill(database)
    for most in (0, 1, 2, 3):
        monkeypatch.setattr(queries, "MOST_SORTED", most)
        assert await _names(database, prefix="a/") == [NAMES[number] for number in (6, 1, 0)]
        assert await _names(database, prefix="a/", limit=2) == [NAMES[6], NAMES[1]]
        assert await _names(database, prefix="a/", after=f"{6:032x}", limit=1) == [NAMES[1]]
        assert await _names(database, prefix="a/", after=f"{0:032x}") == []
        assert await _names(database, prefix="nothing") == []


async def test_prefix_without_names_costs_the_same_beside_many_files(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    steps: list[int] = []
    for first in (0, 3000):
        rows = [file_row(seed=f"{n}", id=f"{n:032x}", name=f"all/{n:05}") for n in range(first, first + 3000)]

        async def insert(connection: Connection, rows: Any = rows) -> None:
            values = [{column.name: getattr(row, column.name) for column in models.file.c} for row in rows]
            await connection.execute(models.file.insert(), values)

        await database.transact(insert)
        with sqlite_steps(database) as counted:
            assert await _names(database, prefix="nothing") == []
        steps.append(counted.count)
    await database.close()
    assert steps[1] <= 1.5 * steps[0] + 100


async def test_a_part_goes_with_a_prefix_a_cursor_and_a_limit(database: Database) -> None:
    await _fill(database)
    assert await _names(database, part="b", limit=2) == [NAMES[6], NAMES[5]]
    assert await _names(database, part="b", after=f"{5:032x}") == [NAMES[3], NAMES[2], NAMES[0]]
    assert await _names(database, part="b", after=f"{6:032x}", prefix="a/") == [NAMES[0]]
    assert await _names(database, part="c", prefix="a/") == [NAMES[1]]


async def test_names_are_searched_along_their_index(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    await _fill(database)
    asked: list[tuple[str, Any]] = []

    def take_down(_: object, __: object, statement: str, values: Any, *___: object) -> None:
        asked.append((statement, values))

    event.listen(database.engine.sync_engine, "before_cursor_execute", take_down)
    await _names(database, part="b", prefix="a", after="f" * 32)
    event.remove(database.engine.sync_engine, "before_cursor_execute", take_down)
    ((statement, values),) = [each for each in asked if "instr" in each[0]]

    await database.close()
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        plan = [step for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    assert "SEARCH file USING INDEX uq_file_name (user_id=? AND name>? AND name<?)" in plan
    assert not [step for step in plan if step.startswith("SCAN file") or "ix_file_user " in step]
