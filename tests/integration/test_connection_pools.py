"""Settings that say how many connections there are at most: whoever finds all of them in use waits for one, and is told
after a while that the server is busy, not that a store is away."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

import uploader.accounting.redis
from tests.conftest import MakeStack
from tests.support.problems import problem
from tests.support.servers import PrivateCluster, PrivateDatabase, PrivateRedis, PrivateSentinel
from uploader.accounting.redis import connect, time_of
from uploader.database import mysql, sqlite
from uploader.database.engine import Database
from uploader.database.mysql import SYNCING_CONNECTIONS, is_read_only
from uploader.domain import reasons
from uploader.domain.reasons import spell
from uploader.errors import ServerBusy

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


BUSY = "The server is busy; nothing was acknowledged. Try again soon."


async def test_full_pool_of_the_database_is_busy_and_names_the_setting_and_the_number(
    make_stack: MakeStack, served_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mysql, "POOL_TIMEOUT_SECONDS", 1)
    async with make_stack(database_url=served_url, database_connections=4) as stack:
        database = stack.services.database

        async def sleep(connection: AsyncConnection) -> None:
            await connection.execute(text("SELECT SLEEP(5)"))

        sleeping = [asyncio.create_task(database.read(sleep)) for _ in range(4 - SYNCING_CONNECTIONS)]
        await asyncio.sleep(0.5)
        answers = await asyncio.gather(*(stack.client.get("/me/files?state=held") for _ in range(CALLS)))
        for answer in answers:
            assert problem(answer, 503, "unavailable")["detail"] == BUSY
            assert int(answer.headers["retry-after"]) > 0
        assert database.crowd is not None
        said = spell([reasons.DATABASE_BUSY(how=database.crowd)])
        await asyncio.gather(*sleeping)
        ready = await stack.client.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["database"]) == (200, {"ok": True, "reason": said})
        lines = [record.__dict__["reason"] for record in caplog.records if record.message == "the database is busy"]
        assert len(lines) == 1
        advice = re.search(
            r"(?P<callers>\d+) callers want the 2 connections .* UPLOADER_DATABASE_CONNECTIONS to (?P<number>\d+) \(now 4\)",
            lines[0],
        )
        assert advice is not None
        assert 4 < int(advice["callers"]) < int(advice["number"]) < 20
        assert "away" not in caplog.text


async def test_server_without_more_connections_is_busy(own_server: PrivateDatabase, own_server_url: str) -> None:
    others = create_async_engine(own_server_url, poolclass=NullPool)
    async with AsyncExitStack() as open_:
        first = await open_.enter_async_context(others.connect())
        await first.exec_driver_sql("SET GLOBAL max_connections = 10")
        with pytest.raises(OperationalError):
            for _ in range(20):  # of a superuser one more
                await open_.enter_async_context(others.connect())
        async with aclosing_database(Database(own_server_url)) as database:
            with pytest.raises(ServerBusy) as refused:
                await database.read(is_read_only)
            assert "raise its max_connections, or lower UPLOADER_DATABASE_CONNECTIONS (22): " in str(
                refused.value.inside
            )
        await first.exec_driver_sql("SET GLOBAL max_connections = 151")


async def test_sqlite_that_another_process_keeps_locked_is_busy(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_MS", 100)
    async with aclosing_database(Database(sqlite_url)) as database:
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(ServerBusy, match="The server is busy") as refused:
                await database.transact(is_there)
            assert "locked for 0 s" in str(refused.value.inside)
            assert await database.read(is_there)
        await database.transact(is_there)


async def test_full_pool_of_redis_is_busy_and_names_the_setting(
    own_redis: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader.accounting.redis, "_CONNECT_SECONDS", 0.3)
    async with aclosing(connect(own_redis.url, connections=2)) as redis:
        calls: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(redis.blpop(["nothing"], timeout=2)) for _ in range(2)
        ]
        await asyncio.sleep(0.2)
        with pytest.raises(ServerBusy) as refused:
            await time_of(redis)
        assert "all 2 connections are in use: set UPLOADER_REDIS_CONNECTIONS to 4" in str(refused.value.inside)
        await asyncio.gather(*calls)
        await time_of(redis)


async def is_there(connection: AsyncConnection) -> bool:
    return (await connection.execute(text("SELECT 1"))).first() is not None


@asynccontextmanager
async def aclosing_database(database: Database) -> AsyncIterator[Database]:
    try:
        yield database
    finally:
        await database.close()
