"""Measures tasks of queues on MySQL: `python -m benchmarks.work`.

Workers claim batches and acknowledge each task, in one process, while many other tasks wait; one acknowledges a task
alone; and one that waits is woken by a commit.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from redis.asyncio import Redis
from sqlalchemy import insert, text

from benchmarks import interpreter, report
from benchmarks.report import Row, at_least, at_most, compared
from tests.support.consumer import events_file
from tests.support.servers import PRIVATE_DATABASES, PrivateRedis
from tests.support.stack import Stack, running_stack
from uploader.accounting.queue import MAX_CLAIM
from uploader.database import migrate, models
from uploader.database.engine import Connection, Database
from uploader.database.outbox import Told, delivery_row
from uploader.service.ids import new_id
from uploader.service.work import Handed, WorkQueue

_PER_SECOND, _WAKING_MS = 2000.0, 100.0
_AT_ONCE, _WORKERS = 500, 4
# Nobody comes for the tasks of the first; whoever waits does so at the other.
_QUEUES = '[queues.scan]\ntypes = ["file.finished"]\n[queues.thumbnails]\ntypes = ["file.finished"]\n'
_TASK_BYTES = 400.0


@dataclass(frozen=True)
class Scale:
    """How many tasks wait beside those that are done in a round, and how many are waited for."""

    pending: int = 1_000_000
    done: int = 4000
    rounds: int = 5
    woken: int = 50


TINY = Scale(pending=200, done=100, rounds=1, woken=2)


def measure(scale: Scale = Scale()) -> list[Row]:
    """All figures."""
    with tempfile.TemporaryDirectory() as place:
        return asyncio.run(_measure(Path(place), scale))


async def _measure(directory: Path, scale: Scale) -> list[Row]:
    async with _stack(directory) as (stack, redis):
        scan, thumbnails = (stack.services.work.queue(name) for name in ("scan", "thumbnails"))
        empty_bytes = await _used_bytes(redis)
        await _add(stack, scale.pending)
        task_bytes = (await _used_bytes(redis) - empty_bytes) / scale.pending
        woken = [await _waking_ms(stack, thumbnails, number) for number in range(scale.woken)]
        rates = [await _rate(scan, scale.done) for _ in range(scale.rounds)]
        alone = [await _ack_ms(scan, task) for task in await scan.claim("worker", scale.woken)]
    waiting = f"{scale.pending:,} waiting"
    return [
        at_least(f"claims in batches of {MAX_CLAIM}, and as many acks, {waiting}", 2 * _PER_SECOND, rates, "a second"),
        compared("an ack alone", alone, "ms"),
        at_most(
            f"from a commit until who waits has its task, {waiting} in another queue",
            _WAKING_MS,
            [max(woken)],
            "ms",
            f"median {statistics.median(woken):.3g} ms",
        ),
        at_most("Redis for each that waits", _TASK_BYTES, [task_bytes], "bytes"),
    ]


async def _used_bytes(redis: Redis) -> float:
    return float((await redis.info("memory"))["used_memory"])


@asynccontextmanager
async def _stack(directory: Path) -> AsyncIterator[tuple[Stack, Redis]]:
    mysql, redis = PRIVATE_DATABASES["mysql"](directory / "mysql"), PrivateRedis(directory / "redis")
    mysql.start()
    redis.start()
    try:
        server = Database(mysql.url("mysql"))
        async with server.engine.connect() as connection:
            await connection.execute(text("CREATE DATABASE uploader"))
        await server.close()
        empty = Database(mysql.url("uploader"))
        await migrate.upgrade(empty)
        await empty.close()
        events = events_file(directory / "events", _QUEUES)
        async with (
            running_stack(directory / "data", mysql.url("uploader"), redis.url, jobs=True, events=events) as stack,
            Redis.from_url(redis.url) as client,
        ):
            yield stack, client
    finally:
        redis.stop()
        mysql.stop()


async def _add(stack: Stack, count: int) -> None:
    """Add tasks that have waited for a while, and propose them."""
    began = datetime.now(UTC) - timedelta(hours=1)
    for first in range(0, count, _AT_ONCE):
        ids = [new_id() for _ in range(min(_AT_ONCE, count - first))]

        async def add(connection: Connection, ids: Sequence[str] = ids) -> None:
            event = {"type": "file.finished", "user_id": "alice", "created_at": began, "data": b"{}"}
            await connection.execute(insert(models.outbox), [{"id": each, "subject": each, **event} for each in ids])
            await connection.execute(insert(models.delivery), [delivery_row(each, "scan", began) for each in ids])

        await stack.services.database.transact(add)
        await stack.services.work.propose([Told(each, "scan") for each in ids])


async def _rate(queue: WorkQueue, count: int) -> float:
    left = count

    async def work(name: str) -> None:
        nonlocal left
        while left > 0:
            left -= MAX_CLAIM
            tasks = await queue.claim(name, MAX_CLAIM)
            await asyncio.gather(*(_ack(queue, task) for task in tasks))

    began = time.perf_counter()
    await asyncio.gather(*(work(str(number)) for number in range(_WORKERS)))
    return 2 * count / (time.perf_counter() - began)


async def _ack(queue: WorkQueue, task: Handed) -> None:
    await queue.ack(task.id, task.lease)


async def _ack_ms(queue: WorkQueue, task: Handed) -> float:
    began = time.perf_counter()
    await _ack(queue, task)
    return (time.perf_counter() - began) * 1000


async def _waking_ms(stack: Stack, queue: WorkQueue, number: int) -> float:
    waiting = asyncio.ensure_future(queue.claim("worker", 1, wait_seconds=30))
    await asyncio.sleep(0.1)
    answer = await stack.client.post(f"/me/files?name={number}", content=str(number).encode())
    assert answer.status_code == 201, answer.text
    committed = time.perf_counter()
    (task,) = await waiting
    waited = time.perf_counter() - committed
    await queue.ack(task.id, task.lease)
    return waited * 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.work", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of each")
    arguments = parser.parse_args()
    interpreter.choose()
    print(f"{report.machine([])}.\n\n{report.table(measure(TINY if arguments.quick else Scale()))}")


if __name__ == "__main__":
    main()
