"""Measures moves, deletions and restores of large folders, and what they cost others: `python -m benchmarks.folders`.

The server is a real process. A user has 100,000 files in a folder that moves, while others send small files; 11,000 small
files that are deleted and restored; and 6,700 links, while a folder of one file moves. CPU is the server's and the
database server's.
"""

import argparse
import asyncio
import io
import json
import tarfile
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from sqlalchemy import text

from benchmarks import fairness, interpreter, report
from benchmarks.accounting.stores import cpu_seconds
from benchmarks.report import Row
from tests.support.servers import PRIVATE_DATABASES
from tests.support.waiting import eventually
from uploader.database import migrate, queries
from uploader.database.engine import Connection, Database

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
SECTION = "folders"

_AT_ONCE, _PACKED_AT_ONCE, _RESTORED_AT_ONCE = 5_000, 1_000, 5_000
_IN_A_FOLDER = 500
_FILE = "INSERT INTO file (id, user_id, sha256, name, size, instant, created_at) "
_LINK = "INSERT INTO link (id, user_id, slug, slug_sha256, kind, name, label, created_at, expires_at) "
# A file, and a link, of each number: by SQLite and by the others.
_FILES = {
    "sqlite": f"""{_FILE}SELECT CAST(printf('%032d', value) AS BLOB), :user_id, CAST(:sha256 AS BLOB),
  CAST(printf('big/%06d/%06d', value / {_IN_A_FOLDER}, value) AS BLOB), 5, 0, '2030-01-01 00:00:00.000000'
FROM json_each(:numbers)""",
    "mysql": f"""{_FILE}SELECT LPAD(number, 32, '0'), :user_id, :sha256,
  CONCAT('big/', LPAD(number DIV {_IN_A_FOLDER}, 6, '0'), '/', LPAD(number, 6, '0')), 5, 0, '2030-01-01'
FROM JSON_TABLE(:numbers, '$[*]' COLUMNS (number BIGINT PATH '$')) AS item""",
}
_LINKS = {
    "sqlite": f"""{_LINK}SELECT CAST(printf('%032d', value) AS BLOB), :user_id, X'', CAST(printf('%064d', value) AS BLOB),
  CAST('download' AS BLOB), CAST(printf('shared/%06d/', value) AS BLOB), X'', '2030-01-01 00:00:00.000000',
  '2099-01-01 00:00:00.000000' FROM json_each(:numbers)""",
    "mysql": f"""{_LINK}SELECT LPAD(number, 32, '0'), :user_id, '', LPAD(number, 64, '0'), 'download',
  CONCAT('shared/', LPAD(number, 6, '0'), '/'), '', '2030-01-01', '2099-01-01'
FROM JSON_TABLE(:numbers, '$[*]' COLUMNS (number BIGINT PATH '$')) AS item""",
}
_BLOB = "INSERT INTO `blob` (sha256, size, refs, created_at) VALUES (:sha256, 5, :refs, '2030-01-01 00:00:00.000000')"
_COUNT = """UPDATE user_info SET files = files + :files, use_space_finished = use_space_finished + 5 * :files
WHERE user_id = :user_id"""
_MOVER, _LINKED = b"user-0", b"user-1"


@dataclass(frozen=True)
class Size:
    moved: int
    deleted: int
    links: int
    # How long others are measured.
    seconds: float
    # Whether to wait for the collector, which has a pause of a minute.
    collects: bool = True


FULL, QUICK = Size(100_000, 11_000, 6_700, 10.0), Size(2_000, 1_000, 500, 1.0, collects=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.folders", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few files; the page stays as it is")
    parser.add_argument("--databases", nargs="*", default=["SQLite", "MariaDB"], help="also MySQL")
    arguments = parser.parse_args()
    interpreter.choose()
    machine = report.machine(())
    rows = measure(QUICK if arguments.quick else FULL, arguments.databases)
    section = f"{machine}.\n\n{report.table(rows)}"
    print(section)
    if not arguments.quick:
        report.write(PAGE, SECTION, section)


def measure(size: Size, products: list[str]) -> list[Row]:
    rows: list[Row] = []
    for product in products:
        with (
            tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True) as directory,
            _database(Path(directory) / "database", product) as (url, pid),
            fairness.running(Path(directory), url, {"MAX_FILES": "10000000", "FREE_SPACE_FLOOR": "0"}) as found,
        ):
            server, tokens = found
            pids = [server.process.pid, *([] if pid is None else [pid])]
            database = url or f"sqlite:///{directory}/data/uploader.db"
            user = _User(server.port, tokens[0], pids)
            asyncio.run(_fill(database, size))
            measured = (
                _moving(user, tokens[2:], size),
                _linked(user, tokens[1], size),
                _deleting(user, size, database),
            )
            rows += [_named(product, row) for row in chain(*measured)]
            server.stop()
    return rows


def _named(product: str, row: Row) -> Row:
    print(f"  {product}: {row}", flush=True)
    return Row(f"{product}: {row.figure}", row.target, row.measured, row.met, row.missed_by)


@contextmanager
def _database(directory: Path, product: str) -> Iterator[tuple[str | None, int | None]]:
    """The URL of a migrated database, and its process; None: a SQLite that the server makes."""
    if product == "SQLite":
        yield None, None
        return
    server = PRIVATE_DATABASES[product.lower()](directory).start()
    try:
        asyncio.run(_migrate(server.url("mysql"), server.url("benchmark")))
        yield server.url("benchmark"), int((directory / "data" / "pid").read_text())
    finally:
        server.stop()


async def _migrate(first_url: str, url: str) -> None:
    first, database = Database(first_url), Database(url)
    async with first.engine.connect() as connection:
        await connection.execute(text("CREATE DATABASE benchmark"))
    await first.close()
    await migrate.upgrade(database)
    await database.close()


async def _fill(url: str, size: Size) -> None:
    database, sha256 = Database(url), b"5" * 64

    async def run(statement: str, **values: Any) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute(text(statement), values)

        await database.transact(work)

    dialect = database.engine.dialect.name
    await run(_BLOB, sha256=sha256, refs=size.moved)
    for first in range(0, size.moved, _AT_ONCE):
        numbers = json.dumps([*range(first, min(first + _AT_ONCE, size.moved))])
        await run(_FILES[dialect], user_id=_MOVER, sha256=sha256.decode(), numbers=numbers)
    await run(_COUNT, user_id=_MOVER, files=size.moved)
    await run(_LINKS[dialect], user_id=_LINKED, numbers=json.dumps([*range(size.links)]))
    await database.close()


@dataclass(frozen=True)
class _User:
    port: int
    token: str
    pids: list[int]

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token or self.token}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=1200) as answer:
            return json.loads(answer.read() or b"null")

    def cpu(self) -> float:
        return sum(map(cpu_seconds, self.pids))


def _moving(user: _User, ordinary: list[str], size: Size) -> Iterator[Row]:
    cpu, began = user.cpu(), time.perf_counter()
    _move(user, size, "big/", "large/")
    took, used = time.perf_counter() - began, user.cpu() - cpu
    yield report.at_most(f"move {size.moved:,} files", 10, [took], "s", f"{used / size.moved * 1e6:.0f} µs of CPU each")
    asyncio.run(fairness.be_ordinary(user.port, ordinary, size.seconds / 4, "warm"))
    alone = asyncio.run(fairness.be_ordinary(user.port, ordinary, size.seconds, "alone"))
    beside = asyncio.run(_beside(user, ordinary, size))
    quiet, busy = report.percentile(alone, 0.99), report.percentile(beside, 0.99)
    yield report.at_most(
        "p99 of others meanwhile to p99 alone", 3, [busy / quiet], "times", f"{busy:.1f} and {quiet:.1f} ms"
    )
    yield _listing(user, size, "prefix=no-such", 50)


def _move(user: _User, size: Size, source: str, target: str) -> None:
    assert user.ask("PATCH", f"/me/files?prefix={source}", {"prefix": target}) == {"files": size.moved}


async def _beside(user: _User, ordinary: list[str], size: Size) -> list[float]:
    """Let others send files while the folder moves, to and fro for as long as they were alone."""
    took, folders, end = list[float](), ("large/", "big/"), time.monotonic() + size.seconds
    while time.monotonic() < end:
        moving = asyncio.create_task(asyncio.to_thread(_move, user, size, *folders))
        while not moving.done():
            took += await fairness.be_ordinary(user.port, ordinary, 0.3, f"beside/{len(took)}")
        await moving
        folders = folders[1], folders[0]
    return took


def _listing(user: _User, size: Size, query: str, target_ms: float) -> Row:
    user.ask("GET", f"/me/files?{query}")
    took = []
    for _ in range(5):
        began = time.perf_counter()
        user.ask("GET", f"/me/files?{query}")
        took.append((time.perf_counter() - began) * 1000)
    return report.at_most(f"list `{query}` among {size.moved:,} files", target_ms, took, "ms")


def _deleting(user: _User, size: Size, database: str) -> Iterator[Row]:
    for first in range(0, size.deleted, _PACKED_AT_ONCE):
        user.ask("POST", "/files/batch", _packed(range(first, min(first + _PACKED_AT_ONCE, size.deleted))))
    cpu, began = user.cpu(), time.perf_counter()
    assert user.ask("DELETE", "/me/files?prefix=gone/") == {"files": size.deleted}
    took, used = time.perf_counter() - began, user.cpu() - cpu
    yield report.at_most(
        f"delete {size.deleted:,} files", 2, [took], "s", f"{used / size.deleted * 1e6:.0f} µs of CPU each"
    )
    yield _restoring(user, size, "whose contents are in place")
    if not size.collects:
        return
    assert user.ask("DELETE", "/me/files?prefix=gone/") == {"files": size.deleted}
    asyncio.run(_collected(database))
    yield _restoring(user, size, "whose contents are in the trash of the store")


async def _collected(url: str) -> None:
    """Wait until the collector, which has a pause of a minute, has put all contents away that have no files."""
    database = Database(url)

    async def is_done() -> bool:
        return not await database.read(queries.blobs_without_refs, 1)

    await eventually(is_done)
    await database.close()


def _restoring(user: _User, size: Size, what: str) -> Row:
    ids, after = [], ""
    while True:
        page = user.ask("GET", f"/me/trash?limit=1000{after}")
        ids += [file["id"] for file in page["files"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert len(ids) == size.deleted
    cpu, began, answers = user.cpu(), time.perf_counter(), Counter[int]()
    for first in range(0, len(ids), _RESTORED_AT_ONCE):
        some = ids[first : first + _RESTORED_AT_ONCE]
        while some:
            results = user.ask("POST", "/me/trash/restore", {"ids": some})["results"]
            answers.update(each["status"] for each in results)
            some = [each["id"] for each in results if each["status"] in (202, 503)]  # or the store was busy
    took, used = time.perf_counter() - began, user.cpu() - cpu
    assert answers[200] + answers[409] == size.deleted, answers  # 409: its name is taken by itself, once it is back
    figure = f"restore {size.deleted:,} files {what}"
    return report.at_most(figure, 0.5, [used / size.deleted * 1000], "ms of CPU each", f"{took:.1f} s")


def _packed(numbers: range) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for number in numbers:
            member = tarfile.TarInfo(f"gone/{number // _IN_A_FOLDER:06}/{number:06}")
            member.size = 16
            tar.addfile(member, io.BytesIO(b"%016d" % number))
    return archive.getvalue()


def _linked(user: _User, token: str, size: Size) -> Iterator[Row]:
    user.ask("POST", "/me/files?name=here/file", b"x", token)
    used, times = list[float](), 20
    for _ in range(3):
        began = user.cpu()
        for number in range(times):
            names = ("here/", "there/") if number % 2 == 0 else ("there/", "here/")
            user.ask("PATCH", f"/me/files?prefix={names[0]}", {"prefix": names[1]}, token)
        used.append((user.cpu() - began) / times * 1000)
    yield report.at_most(f"move a folder of one file beside {size.links:,} links", 20, used, "ms of CPU")


if __name__ == "__main__":
    main()
