"""What it costs to list files on each database, however many there are: `python -m benchmarks.listing`

A user has folders of 15 files in one folder. Listed are pages of these folders, that one folder, a page of files, and those
whose names have a text. CPU is this process's, and the database server's.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import text

from benchmarks import interpreter, report
from benchmarks.accounting.stores import cpu_seconds, database_server
from benchmarks.report import Row
from tests.support.faults import sync_nothing
from uploader.database import levels, migrate, queries
from uploader.database.engine import Connection, Database

PAGE = Path(__file__).parents[1] / "docs" / "limits.md"
SECTION = "listing"

_FILES_OF_A_FOLDER = 15
_INSERTED_AT_ONCE = 20_000
_INSERT = "INSERT INTO file (id, user_id, sha256, name, size, instant, created_at) "
_INSERT_MYSQL = f"""{_INSERT} SELECT id, user_id, REPEAT(id, 2), name, 5, 0, '2030-01-01'
FROM JSON_TABLE(:items, '$[*]' COLUMNS (
  id VARCHAR(32) PATH '$[0]', user_id VARCHAR(32) PATH '$[1]', name VARCHAR(64) PATH '$[2]'
)) AS item"""
_INSERT_SQLITE = f"""{_INSERT} SELECT CAST(value ->> 0 AS BLOB), CAST(value ->> 1 AS BLOB),
  CAST((value ->> 0) || (value ->> 0) AS BLOB), CAST(value ->> 2 AS BLOB), 5, 0, '2030-01-01 00:00:00.000000'
FROM json_each(:items)"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.listing", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few files, one round; the page stays as it is")
    arguments = parser.parse_args()
    interpreter.choose()
    machine = report.machine(())
    counts, rounds = ((1500,), 1) if arguments.quick else ((10_000, 150_000, 1_000_000), 5)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        rows = asyncio.run(measure(Path(directory), counts, rounds))
    section = f"{machine}.\n\n{report.table(rows)}"
    print(section)
    if not arguments.quick:
        report.write(PAGE, SECTION, section)


async def measure(directory: Path, counts: Sequence[int], rounds: int) -> list[Row]:
    rows: list[Row] = []
    for product in ("SQLite", "MySQL", "MariaDB"):
        async with _database(directory, product.lower()) as (database, pid):
            for count in counts:
                await _fill(database, count)
            for what, ask in _ASKED.items():
                for count in counts:
                    row = await _row(
                        f"{product}, {count:,} files: {what}", database, pid, partial(ask, f"user{count}"), rounds
                    )
                    print(f"  {row}", flush=True)
                    rows.append(row)
    return rows


@asynccontextmanager
async def _database(directory: Path, product: str) -> AsyncIterator[tuple[Database, int]]:
    if product != "sqlite":
        async with database_server(directory / product, product) as found:
            yield found
        return
    database = Database(f"sqlite:///{directory}/listing.db", creates=True)
    sync_nothing(database)
    await migrate.upgrade(database)
    yield database, os.getpid()
    await database.close()


async def _fill(database: Database, count: int) -> None:
    of_sqlite = database.engine.dialect.name == "sqlite"
    for batch in _batches(count):

        async def insert(connection: Connection, batch: str = batch) -> None:
            await connection.execute(text(_INSERT_SQLITE if of_sqlite else _INSERT_MYSQL), {"items": batch})

        await database.transact(insert)
    if not of_sqlite:
        async with database.engine.begin() as connection:
            await connection.execute(text("ANALYZE TABLE file"))


def _batches(count: int) -> Iterator[str]:
    """Files in the order of their names, as a tree is uploaded."""
    for first in range(0, count, _INSERTED_AT_ONCE):
        numbers = range(first, min(first + _INSERTED_AT_ONCE, count))
        yield json.dumps(
            [
                (
                    f"{count:016x}{number:016x}",
                    f"user{count}",
                    f"all/folder-{number // _FILES_OF_A_FOLDER:06}/{number:07}",
                )
                for number in numbers
            ]
        )


def _level(prefix: str, limit: int) -> Any:
    async def ask(user_id: str, connection: Connection) -> object:
        return await levels.page(connection, user_id, prefix, limit=limit, after=None)

    return ask


def _files(part: str | None) -> Any:
    async def ask(user_id: str, connection: Connection) -> object:
        return await queries.files(connection, user_id, limit=100, after=None, prefix=None, part=part)

    return ask


_ASKED = {
    "100 folders": _level("all/", 100),
    "1,000 folders": _level("all/", 1000),
    "the folder of all": _level("", 100),
    "100 files, newest first": _files(None),
    "files with a text that no name has": _files("no such text"),
}


async def _row(figure: str, database: Database, pid: int, ask: Any, rounds: int) -> Row:
    await database.read(ask)
    used_ms, took_ms = list[float](), list[float]()
    for _ in range(rounds):
        begun, own, theirs = time.perf_counter(), time.process_time(), cpu_seconds(pid)
        times = 0
        # The kernel counts another process's time in hundredths of a second.
        while not times or (time.perf_counter() - begun < 0.3 and rounds > 1):
            await database.read(ask)
            times += 1
        took_ms.append((time.perf_counter() - begun) * 1000 / times)
        used = time.process_time() - own + (0 if pid == os.getpid() else cpu_seconds(pid) - theirs)
        used_ms.append(used * 1000 / times)
    return report.compared(figure, used_ms, "ms of CPU", f"{report.amount(min(took_ms))} ms at the least")


if __name__ == "__main__":
    main()
