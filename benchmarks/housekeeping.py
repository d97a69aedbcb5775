"""What looking after a bucket asks of S3: `python -m benchmarks.housekeeping`

A bucket has contents of a byte each, as uploads and whole files leave them. Counted are the requests, with those that were
tried again, and the time of what the jobs do with them; beside it, what asking for each content by itself takes, as the
reconciler did until 0.3.0.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from benchmarks import report
from benchmarks.ingest.places import memory_directory
from benchmarks.report import Row
from benchmarks.s3 import GATEWAYS, PRODUCTS
from tests.support.buckets import requests
from tests.support.gateways import settings_of
from tests.support.servers import PrivateRedis
from tests.support.stack import Stack, running_stack
from uploader.database import migrate, models
from uploader.database.engine import Database
from uploader.storage.base import BytesBody
from uploader.storage.s3.bucket import MAX_CONNECTIONS
from uploader.storage.s3.store import S3Store

PAGE = Path(__file__).parents[1] / "docs" / "s3.md"
SECTION = "housekeeping"

# Of a list.
_PAGE_KEYS = 1000
# Lists that end, the clock of the server, multipart uploads.
_BESIDE = 6


async def measure(directory: Path, count: int, kind: str = "juicefs") -> list[Row]:
    with ExitStack() as stack:
        gateway = stack.enter_context(GATEWAYS[kind](directory / "gateway")).gateway
        redis = PrivateRedis(directory / "redis").start()
        stack.callback(redis.stop)
        url, data = f"sqlite:///{directory}/uploader.db", directory / "data"
        database = Database(url, creates=True)
        await migrate.upgrade(database)
        await database.close()
        data.mkdir()
        settings = settings_of(gateway.address("housekeeping")) | {"min_chunk_size_bytes": 5 << 20}
        async with running_stack(data, url, redis.url, **settings) as made:
            sha256s = await _fill(made, count)
            services = made.services
            most = -(-count // _PAGE_KEYS) + _BESIDE
            return [
                *await _rows("reconcile", services.reconciling.reconcile, most),
                *await _rows("cleanup", services.cleanup.clean, most),
                *await _rows("a HEAD for each content", lambda: services.storage.blob_sizes(sha256s), None),
            ]


async def _fill(stack: Stack, count: int) -> list[str]:
    store = stack.services.storage
    assert isinstance(store, S3Store)
    keys = [f"u/{number:032x}.{number:016x}" if number % 2 else f"w/{number:032x}" for number in range(count)]
    with ThreadPoolExecutor(MAX_CONNECTIONS // 2) as pool:
        list(pool.map(lambda key: store._bucket.put(key, BytesBody(b"0")), keys))
    now = stack.services.clock.now()
    rows = [
        {"sha256": f"{number:064x}", "size": 1, "refs": 1, "location": key, "created_at": now}
        for number, key in enumerate(reversed(keys))
    ]
    async with stack.services.database.engine.begin() as connection:
        await connection.execute(models.blob.insert(), rows)
    return [str(row["sha256"]) for row in rows]


async def _rows(what: str, work: Callable[[], Awaitable[object]], most: int | None) -> list[Row]:
    began = time.monotonic()
    with requests() as asked:
        await work()
    took = time.monotonic() - began
    by_kind = ", ".join(f"{number} {operation}" for operation, number in asked.most_common())
    counted, unit = [float(asked.total())], "requests"
    row = (
        report.compared(what, counted, unit, by_kind)
        if most is None
        else report.at_most(what, most, counted, unit, by_kind)
    )
    return [row, report.compared(f"{what}: time", [took], "s")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.housekeeping", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few contents; the page stays as it is")
    parser.add_argument("--gateway", choices=GATEWAYS, default="juicefs", help="(default: juicefs)")
    given = parser.parse_args()
    machine = report.machine([f"boto3 {version('boto3')}", PRODUCTS[given.gateway]])
    count = 300 if given.quick else 10_000
    with tempfile.TemporaryDirectory(prefix="housekeeping-", dir=memory_directory()) as directory:
        rows = asyncio.run(measure(Path(directory), count, given.gateway))
    section = f"{machine}. {count:,} contents of a byte each.\n\n{report.table(rows)}"
    print(section)
    if not given.quick:
        report.write(PAGE, SECTION, section)


if __name__ == "__main__":
    main()
