"""A worker over private stores, and uploads that are open in all of them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.accounting.filled import Filled, Shape
from benchmarks.accounting.stores import DELAYS, connected, cpu_seconds, database_server, open_uploads, valkey
from tests.support.invariants import checked_accounts
from uploader.accounting.keys import FLUSH_QUEUE, Shards
from uploader.accounting.pending import Pending
from uploader.accounting.queue import MAX_CLAIM, Claim, UploadQueue
from uploader.accounting.redis import RedisConnection
from uploader.database.engine import Database
from uploader.jobs.uploads import Flusher
from uploader.runtime.clock import Clock
from uploader.service.close import Closers
from uploader.service.flush import Flushing
from uploader.settings import Settings
from uploader.storage.local.store import LocalStore

_NEVER = 1 << 40


@dataclass
class Worker:
    """One worker process with its stores: the product's own parts, and nothing else that runs."""

    uploads: Filled
    redis: RedisConnection
    database: Database
    database_pid: int
    pending: Pending
    flushing: Flushing
    delays: Settings
    recorded: int = 0

    @property
    def queue(self) -> UploadQueue:
        return self.pending.flush_queues[0]

    def record_all(self, at_once: int = 500) -> None:
        """Record the next chunk of every upload, `at_once` on their way together; all are due for the flusher."""
        delays = [0, _NEVER, _NEVER, round(self.delays.claim_lease_seconds * 1000)]
        commands = [self.uploads.recording(number, "", delays) for number in range(self.uploads.count)]
        self.uploads.send(commands, at_once)
        self.recorded += 1

    async def flush_all(self, queue: UploadQueue | None = None) -> None:
        """What the jobs of a flusher do until nothing is due."""
        queue = queue or self.queue

        async def run() -> None:
            while (await self.flushing.flush_due(queue)).more:
                pass

        await asyncio.gather(*(run() for _ in Flusher(queue, self.flushing).as_jobs()))

    def used_seconds(self) -> list[float]:
        """CPU of the worker, Valkey and the database so far."""
        return [time.process_time(), cpu_seconds(self.uploads.process_id), cpu_seconds(self.database_pid)]

    async def check(self, chunks: int) -> None:
        """The sums in the database are exact, to the byte, with so many chunks flushed of all uploads together."""
        accounts = await checked_accounts(self.database)
        unfinished = sum(account.unfinished for account in accounts.values())
        assert unfinished == chunks * self.uploads.shape.chunk_bytes, unfinished


class TimedQueue(UploadQueue):
    """The queue of a shard at a time that the benchmark tells: what is to be seen need not be waited for."""

    def __init__(self, redis: RedisConnection, delays: Settings, now_ms: Callable[[], int]) -> None:
        super().__init__(redis, Shards(1), 0, FLUSH_QUEUE, lease_seconds=delays.claim_lease_seconds)
        self.now_ms = now_ms

    async def claim(self, limit: int = MAX_CLAIM, now_ms: int | None = None) -> list[Claim]:
        return await super().claim(limit, now_ms or self.now_ms())

    async def claim_many(self, scripts: int, now_ms: int | None = None) -> tuple[list[Claim], bool]:
        return await super().claim_many(scripts, now_ms or self.now_ms())

    async def next_due(self, now_ms: int | None = None) -> float | None:
        return await super().next_due(now_ms or self.now_ms())


@asynccontextmanager
async def worker(
    directory: Path, count: int, shape: Shape, *, delays: Settings = DELAYS, database: str = "mariadb"
) -> AsyncIterator[Worker]:
    """A worker over `count` open uploads of a hundred users."""
    with valkey(directory / "redis", append_only=True) as server:
        async with connected(server) as redis, database_server(directory / database, database) as (rows, database_pid):
            await open_uploads(rows, count, size=shape.chunk_bytes * shape.chunk_count, chunk_size=shape.chunk_bytes)
            uploads = Filled(server, count, shape)
            pending = Pending(redis, shards=Shards(1), settings=delays)
            storage = LocalStore(directory / "data", durable=False)
            clock = Clock()
            flushing = Flushing(rows, pending, Closers(rows, storage, pending, clock), clock)
            yield Worker(uploads, redis, rows, database_pid, pending, flushing, delays)
            uploads.close()
            storage.close()
