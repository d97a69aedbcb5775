"""Settings that say how many connections there are at most: whoever finds all of them in use waits for one."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.support.servers import PrivateCluster, PrivateRedis, PrivateSentinel
from uploader.accounting.redis import connect
from uploader.database.engine import Database
from uploader.database.mysql import SYNCING_CONNECTIONS

CALLS = 8


def answering(servers: Any) -> list[PrivateRedis]:
    """The servers that calls go to."""
    if isinstance(servers, PrivateCluster):
        return servers.nodes
    return [servers.master if isinstance(servers, PrivateSentinel) else servers]


@pytest.mark.parametrize("kind", [PrivateRedis, PrivateCluster, PrivateSentinel])
async def test_calls_of_redis_wait_for_a_connection(kind: type[Any], tmp_path: Path) -> None:
    servers = kind(tmp_path)
    try:
        servers.start()
        async with aclosing(connect(servers.url, connections=2)) as redis:
            calls = asyncio.gather(*(redis.blpop(["nothing"], timeout=0.5) for _ in range(CALLS)))
            most = 0
            while not calls.done():
                most = max(most, sum(each.raw("CLIENT", "LIST").count(b" flags=b ") for each in answering(servers)))
                await asyncio.sleep(0.02)
            assert await calls == [None] * CALLS
            assert most == 2
    finally:
        servers.stop()


async def test_calls_of_the_database_wait_for_a_connection(served_url: str) -> None:
    database = Database(served_url, connections=4)

    async def ask(connection: AsyncConnection) -> int:
        answer = (await connection.execute(text("SELECT CONNECTION_ID(), SLEEP(0.1)"))).one()
        return int(answer[0])

    numbers = await asyncio.gather(*(database.read(ask) for _ in range(CALLS)))
    assert len(set(numbers)) == 4 - SYNCING_CONNECTIONS
    await database.close()
