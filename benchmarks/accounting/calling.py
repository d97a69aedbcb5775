"""What a call of `record_chunk` costs the process that makes it: as the product sends scripts, and by redis-py alone; to a
server and to a Cluster of three."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster

from benchmarks.accounting.scale import Scale
from benchmarks.accounting.stores import DELAYS, upload_id, valkey
from benchmarks.report import Row, compared
from tests.support.rows import upload_row
from tests.support.servers import PrivateCluster
from uploader.accounting.keys import Shards
from uploader.accounting.pending import Outcome, Pending
from uploader.accounting.redis import RedisConnection, connect

_CALLERS = 16
_CHUNK_BYTES = 64 << 10
_CHUNK_COUNT = 1 << 20


async def calling(directory: Path, scale: Scale) -> list[Row]:
    """On the event loop of the server, in a thread, because this one is another."""
    return await asyncio.to_thread(lambda: uvloop.run(_measure(directory, scale)))


async def _measure(directory: Path, scale: Scale) -> list[Row]:
    with valkey(directory / "server", append_only=True) as server, _cluster(directory / "cluster") as cluster:
        pool = BlockingConnectionPool.from_url(server.url, protocol=2, socket_timeout=5)
        port = cluster.nodes[0].port
        clients: dict[str, RedisConnection] = {
            "one connection, pipelined": connect(server.url),
            "redis-py": Redis.from_pool(pool),
            "a Cluster, pipelined": connect(cluster.url),
            "a Cluster, redis-py": RedisCluster("127.0.0.1", port, protocol=2, socket_timeout=5),
        }
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


@contextmanager
def _cluster(directory: Path) -> Iterator[PrivateCluster]:
    cluster = PrivateCluster(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class _Callers:
    """Requests that record chunks, each one after the other, each of its own upload."""

    def __init__(self, redis: RedisConnection, number: int) -> None:
        self._pending = Pending(redis, shards=Shards(1), settings=DELAYS)
        self._uploads = [upload_id(number * _CALLERS + caller) for caller in range(_CALLERS)]
        self._next_chunk = 0

    async def prepare(self) -> None:
        for upload in self._uploads:
            known, size = await self._pending.read(upload), _CHUNK_COUNT * _CHUNK_BYTES
            row = upload_row("alice", size, id=upload, chunk_size=_CHUNK_BYTES)
            await self._pending.hydrate(row, bytearray(_CHUNK_COUNT), None, era=known.era)

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
