"""Measures the reports, and writes the table of `docs/capacity.md`: `python -m benchmarks.reports`."""

import argparse
import asyncio
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import text

from benchmarks import interpreter, report
from benchmarks.accounting.stores import database_server, versions
from benchmarks.report import Row
from benchmarks.reports.rows import FULL, QUICK, Scale, fill
from tests.support.process import UPLOADER, environment
from uploader.bootstrap import Services, build_application, running
from uploader.database.engine import Database
from uploader.domain.reports import UPLOAD_SORTS, USER_SORTS
from uploader.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"
SECTION = "reports"

_TARGET_MS = 1000
_DAYS_IDLE = 7
_TOTALS = {
    "users": "SELECT COUNT(*) FROM user_info",
    "files": "SELECT COUNT(*) FROM file",
    "blobs": "SELECT COUNT(DISTINCT sha256) FROM file",
    "open_uploads": "SELECT COUNT(*) FROM upload WHERE state = 'OPEN'",
    "use_space_finished": "SELECT SUM(size) FROM file",
    "use_space_unfinished": "SELECT SUM(flushed_bytes) FROM upload WHERE state = 'OPEN'",
    "reserved": "SELECT SUM(size) FROM upload WHERE state = 'OPEN'",
    "logical_bytes": "SELECT SUM(size) FROM file",
    "physical_bytes": "SELECT SUM(size) FROM (SELECT MIN(size) AS size FROM file GROUP BY sha256) AS content",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reports", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything; the page stays as it is")
    arguments = parser.parse_args()
    interpreter.choose()
    scale = QUICK if arguments.quick else FULL
    machine = report.machine(versions()[1:])
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        rows = asyncio.run(measure(Path(directory), scale))
    section = f"{machine}.\n\n{report.table(rows)}"
    print(section)
    if not arguments.quick:
        report.write(PAGE, SECTION, section)


async def measure(directory: Path, scale: Scale) -> list[Row]:
    async with database_server(directory / "mariadb", "mariadb") as (database, _):
        return await measure_on(database, directory / "data", scale)


async def measure_on(database: Database, data: Path, scale: Scale) -> list[Row]:
    """Every report over the application, as an administrator asks for it; then the sums are compared with a recount."""
    begin = time.monotonic()
    await fill(database, scale)
    print(f"filled in {time.monotonic() - begin:.0f} s", flush=True)
    url = database.engine.url.render_as_string(hide_password=False)
    # No report asks Redis.
    services = Services(Settings(data=data, database_url=url, redis_url="redis://127.0.0.1:1"))
    async with running(services, jobs=False):
        token = await services.accounts.create_token("root", admin=True)
        transport = httpx2.ASGITransport(app=build_application(services))
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://benchmark", headers=headers) as client:
            rows = [await _timed(what, client, path, scale.rounds) for what, path in _pages(scale)]
            rows.append(await _timed("all users as CSV", client, "/admin/usage?format=csv", 1, None))
            rows.append(await _commanded(data, url))
            rows.append(await _recounted(client))
            rows.append(await _exact(client, database))
    return rows


def _pages(scale: Scale) -> list[tuple[str, str]]:
    """What an administrator looks at, and how it is asked for."""
    idle = f"idle_for={_DAYS_IDLE * 86400}"
    largest = "user000000"
    return [
        ("summary, with growth", "/admin/usage/summary"),
        ("history of a year", "/admin/usage/history?days=365"),
        *((f"100 users by {sort}", f"/admin/usage?sort={sort}") for sort in USER_SORTS),
        ("100 users whose id contains a text", f"/admin/usage?q={scale.users // 2:05d}"),
        *((f"100 idle uploads by {sort}", f"/admin/uploads?{idle}&sort={sort}") for sort in UPLOAD_SORTS),
        ("the user with most files", f"/admin/users/{largest}"),
        ("100 files of that user", f"/admin/users/{largest}/files"),
    ]


async def _timed(what: str, client: httpx2.AsyncClient, path: str, rounds: int, target: int | None = _TARGET_MS) -> Row:
    async def ask() -> None:
        response = await client.get(path)
        assert response.status_code == 200, response.text

    return await _row(what, ask, rounds, target)


async def _row(what: str, ask: Callable[[], Awaitable[None]], rounds: int, target: int | None) -> Row:
    taken_ms = []
    for _ in range(rounds):
        begin = time.perf_counter()
        await ask()
        taken_ms.append((time.perf_counter() - begin) * 1000)
    row = report.compared(what, taken_ms, "ms") if target is None else report.at_most(what, target, taken_ms, "ms")
    print(f"  {row}", flush=True)
    return row


async def _commanded(data: Path, url: str) -> Row:
    async def run() -> None:
        settings = environment({"DATA": str(data), "DATABASE_URL": url})
        ended = await asyncio.create_subprocess_exec(UPLOADER, "report", env=settings, stdout=subprocess.DEVNULL)
        assert await ended.wait() == 0

    return await _row("`uploader report`, a process from its start to its end", run, 3, None)


async def _recounted(client: httpx2.AsyncClient) -> Row:
    async def ask() -> None:
        found = (await client.post("/admin/usage/recount")).json()
        assert found["drifts"] == [], found

    return await _row("recount of all accounts and refs", ask, 1, None)


async def _exact(client: httpx2.AsyncClient, database: Database) -> Row:
    """By how much the totals of the summary differ from a plain sum over all rows."""
    summary: dict[str, Any] = (await client.get("/admin/usage/summary")).json()
    differences = {}
    async with database.engine.connect() as connection:
        for name, query in _TOTALS.items():
            differences[name] = abs(summary[name] - int((await connection.execute(text(query))).scalar_one()))
    return report.at_most(
        "totals that differ from a recount of all rows", 0, [sum(map(bool, differences.values()))], ""
    )


if __name__ == "__main__":
    main()
