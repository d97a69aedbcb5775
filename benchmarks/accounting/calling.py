"""What a call of `record_chunk` costs the process that makes it: as the product sends scripts, and by redis-py alone."""

import asyncio
import time
from pathlib import Path

import uvloop
from redis.asyncio import BlockingConnectionPool, Redis

from benchmarks.accounting.scale import Scale
from benchmarks.accounting.stores import DELAYS, upload_id, valkey
from benchmarks.report import Row, compared
from uploader.accounting.connection import connect
from uploader.accounting.pending import Outcome, Pending
from uploader.accounting.scripting import RedisConnection

_CALLERS = 16
_CHUNK_BYTES = 64 << 10
_CHUNK_COUNT = 1 << 20


async def calling(directory: Path, scale: Scale) -> list[Row]:
    """On the event loop of the server, in a thread, because this one is another."""
    return await asyncio.to_thread(lambda: uvloop.run(_measure(directory, scale)))


async def _measure(directory: Path, scale: Scale) -> list[Row]:
    with valkey(directory, append_only=True) as server:
        product = connect(server.url)
        pool = BlockingConnectionPool.from_url(server.url, protocol=2, socket_timeout=5)
        clients: dict[str, RedisConnection] = {"one connection, pipelined": product, "redis-py": Redis.from_pool(pool)}
        callers = {name: _Callers(client, number) for number, (name, client) in enumerate(clients.items())}
        cpu: dict[str, list[float]] = {name: [] for name in clients}
        for each in callers.values():
            await each.prepare()
            await each.call(scale.few_pending)  # warm
        for _ in range(scale.rounds):
            for name, each in callers.items():
                cpu[name].append(await each.call(scale.records))
        for client in clients.values():
            await client.aclose()
    return [compared(f"record_chunk, CPU of the caller, {name}", cpu[name], "µs") for name in clients]


class _Callers:
    """Requests that record chunks, each one after the other, each of its own upload."""

    def __init__(self, redis: RedisConnection, number: int) -> None:
        self._pending = Pending(redis, shards=1, delays=DELAYS)
        self._uploads = [upload_id(number * _CALLERS + caller) for caller in range(_CALLERS)]
        self._next_chunk = 0

    async def prepare(self) -> None:
        for upload in self._uploads:
            known = await self._pending.read(upload)
            await self._pending.hydrate(
                upload,
                era=known.era,
                generation=0,
                bitmap=bytes(_CHUNK_COUNT // 8),
                size=_CHUNK_COUNT * _CHUNK_BYTES,
                chunk_size=_CHUNK_BYTES,
                chunk_count=_CHUNK_COUNT,
                flushed_bytes=0,
            )

    async def call(self, calls: int) -> float:
        """µs of CPU a call."""
        chunks = range(self._next_chunk, self._next_chunk + max(calls // _CALLERS, 1))
        self._next_chunk = chunks.stop

        async def record(upload: str) -> None:
            for chunk in chunks:
                figures = await self._pending.record_chunk(upload, chunk, _CHUNK_BYTES)
                assert figures.outcome is Outcome.RECORDED

        begin = time.process_time()
        await asyncio.gather(*(record(upload) for upload in self._uploads))
        return 1e6 * (time.process_time() - begin) / (len(chunks) * _CALLERS)
