"""Settings that say how many connections there are at most: whoever finds all of them in use waits for one."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.support.servers import PrivateCluster, PrivateRedis, PrivateSentinel
from uploader.accounting.connection import connect
from uploader.database.engine import Database
from uploader.database.mysql import SYNCING_CONNECTIONS

CALLS = 8


@contextmanager
def a_server(directory: Path) -> Iterator[tuple[str, list[PrivateRedis]]]:
    server = PrivateRedis(directory).start()
    try:
        yield f"redis://127.0.0.1:{server.port}", [server]
    finally:
        server.stop()


@contextmanager
def a_cluster(directory: Path) -> Iterator[tuple[str, list[PrivateRedis]]]:
    cluster = PrivateCluster(directory)
    try:
        cluster.start()
        yield cluster.url, cluster.nodes
    finally:
        cluster.stop()


@contextmanager
def sentinels(directory: Path) -> Iterator[tuple[str, list[PrivateRedis]]]:
    sentinel = PrivateSentinel(directory)
    try:
        sentinel.start()
        yield sentinel.url, [sentinel.master]
    finally:
        sentinel.stop()


@pytest.mark.parametrize("kind", [a_server, a_cluster, sentinels])
async def test_calls_of_redis_wait_for_a_connection(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    with kind(tmp_path) as (url, servers):
        async with aclosing(connect(url, connections=2)) as redis:
            calls = asyncio.gather(*(redis.blpop(["nothing"], timeout=0.2) for _ in range(CALLS)))
            most = 0
            while not calls.done():
                most = max(most, sum(server.raw("CLIENT", "LIST").count(b" flags=b ") for server in servers))
                await asyncio.sleep(0.02)
            assert await calls == [None] * CALLS
            assert most == 2


async def test_calls_of_the_database_wait_for_a_connection(served_url: str) -> None:
    database = Database(served_url, connections=4)

    async def ask(connection: AsyncConnection) -> int:
        answer = (await connection.execute(text("SELECT CONNECTION_ID(), SLEEP(0.1)"))).one()
        return int(answer[0])

    numbers = await asyncio.gather(*(database.read(ask) for _ in range(CALLS)))
    assert len(set(numbers)) == 4 - SYNCING_CONNECTIONS
    await database.close()
