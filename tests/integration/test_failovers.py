"""A server that hangs is given up within its time, and one that takes no writes any more is not used again."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.conftest import MakeStack
from tests.support.background import stopped, succeeds
from tests.support.content import KIB, Content
from tests.support.outages import FILL, MAKE_ROOM, execute
from tests.support.problems import problem
from tests.support.servers import (
    PRIVATE_DATABASES,
    WITH_TABLES,
    PrivateCluster,
    PrivateDatabase,
    PrivateRedis,
    PrivateSentinel,
)
from tests.support.switching import Left, switched
from tests.support.waiting import eventually
from uploader.accounting.redis import PipelinedCluster, PipelinedRedis
from uploader.database.engine import Connection, Database
from uploader.database.mysql import Mysql
from uploader.domain import reasons
from uploader.domain.reasons import spell
from uploader.errors import Unavailable
from uploader.runtime import breaker

CONTENT = Content(4 * 64 * KIB)
# Not the five seconds of the default, that the tests are short; a request waits for it once.
PATIENCE_SECONDS = 3.0
# Of the 60 s that an answer may take otherwise.
LONG_SECONDS = 50.0


@pytest.fixture(scope="module", params=PRIVATE_DATABASES)
def own_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateDatabase]:
    """One for all tests of this file: each leaves it running, and has a database of its own in it."""
    server = PRIVATE_DATABASES[request.param](tmp_path_factory.mktemp("own-server")).start()
    yield server
    server.stop()


@asynccontextmanager
async def read_only(server: PrivateDatabase) -> AsyncIterator[None]:
    await execute(server.url("mysql"), "SET GLOBAL read_only = 1")
    try:
        yield
    finally:
        await execute(server.url("mysql"), "SET GLOBAL read_only = 0")


def url_of_her(port: int) -> str:
    return f"mysql+asyncmy://hers:opensesame@127.0.0.1:{port}/{WITH_TABLES}?charset=utf8mb4"


@pytest.fixture
async def her_server(own_server: PrivateDatabase, own_server_url: str) -> PrivateDatabase:
    """One of whose users `hers` is held to what is read-only."""
    create = "CREATE USER IF NOT EXISTS hers IDENTIFIED BY 'opensesame'"
    await execute(own_server_url, create, f"GRANT ALL ON {WITH_TABLES}.* TO hers")
    return own_server


async def test_a_redis_that_hangs_is_given_up_within_its_time(make_stack: MakeStack, own_redis: PrivateRedis) -> None:
    async with make_stack(redis_url=own_redis.url, redis_timeout_seconds=PATIENCE_SECONDS) as stack:
        await stack.open(CONTENT)
        await stack.put(CONTENT, 0)
        with stopped(own_redis):
            async with asyncio.timeout(LONG_SECONDS):
                problem(await stack.put(CONTENT, 1), 503, "unavailable")
        await succeeds(lambda: stack.put(CONTENT, 1))


@pytest.fixture(params=["server", "sentinel", "cluster"])
def some_redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, list[PrivateRedis]]]:
    """A URL, and the servers that may have what is written to it."""
    made: PrivateRedis | PrivateSentinel | PrivateCluster
    match request.param:
        case "server":
            made = PrivateRedis(tmp_path / "server").start()
            servers = [made]
        case "sentinel":
            made = PrivateSentinel(tmp_path / "sentinel", down_after_ms=600_000)
            servers = [made.master]
        case _:
            made = PrivateCluster(tmp_path / "cluster")
            servers = made.nodes
    try:
        if not isinstance(made, PrivateRedis):
            made.start()
        yield made.url, servers
    finally:
        made.stop()


async def test_a_redis_that_hangs_is_not_asked_again_and_no_body_is_received_for_it(
    make_stack: MakeStack, some_redis: tuple[str, list[PrivateRedis]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "_TRY_SECONDS", 60.0)
    url, servers = some_redis
    async with make_stack(redis_url=url, redis_timeout_seconds=2.0) as stack:
        upload_id = (await stack.open(CONTENT)).json()["upload"]["id"]
        await stack.put(CONTENT, 0)
        key = stack.services.pending.shards.upload(upload_id).up
        with stopped(next(server for server in servers if server.raw("EXISTS", key).startswith(b":1"))):
            for response in await asyncio.gather(*(stack.put(CONTENT, 1) for _ in range(3))):
                problem(response, 503, "unavailable")
            problem(await stack.put(CONTENT, 1), 503, "unavailable")  # which has tried it by something cheap
            sent = []

            async def body() -> AsyncIterator[bytes]:
                sent.append("began")
                yield CONTENT.chunk(1)

            length = {"content-length": str(CONTENT.chunk_size), "expect": "100-continue"}
            refused = await stack.client.put(f"/files/{CONTENT.md5}/chunks/1", content=body(), headers=length)
            problem(refused, 503, "unavailable")
            assert (refused.headers["retry-after"], sent) == ("2", [])
            whole = await stack.client.post("/me/files?name=whole", content=b"which Redis need not know")
            assert whole.status_code == 201
        redis = stack.services.redis
        assert isinstance(redis, PipelinedRedis | PipelinedCluster)
        gate = redis._gate if isinstance(redis, PipelinedRedis) else redis._gate_to(key)
        assert gate._trying is not None
        await asyncio.wait({gate._trying})
        gate.breaker._try_at = 0.0
        await succeeds(lambda: stack.put(CONTENT, 1))


async def test_a_database_that_hangs_is_not_asked_again_and_no_body_is_received_for_it(
    make_stack: MakeStack, own_server: PrivateDatabase, own_server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "_TRY_SECONDS", 60.0)
    async with make_stack(database_url=own_server_url, database_timeout_seconds=1.0) as stack:
        await stack.open(CONTENT)
        database = stack.services.database
        with stopped(own_server):
            for _ in range(4):
                with pytest.raises(Unavailable, match="away"):
                    await database.check_writable()
            with pytest.raises(Unavailable) as raised:
                await database.check_answers()
            assert "has not answered since" in raised.value.reason
        assert isinstance(database._kind, Mysql)
        assert database._kind._hello is not None
        await asyncio.wait({database._kind._hello})
        database._kind._breaker._try_at = 0.0
        await succeeds(lambda: stack.put(CONTENT, 1))


async def test_a_database_that_hangs_is_given_up_within_its_time(
    make_stack: MakeStack, own_server: PrivateDatabase, own_server_url: str
) -> None:
    async with make_stack(database_url=own_server_url, database_timeout_seconds=PATIENCE_SECONDS) as stack:
        assert (await stack.client.get("/me/usage")).status_code == 200
        with stopped(own_server):
            async with asyncio.timeout(LONG_SECONDS):
                for response in await asyncio.gather(*(stack.client.get("/me/usage") for _ in range(30))):
                    problem(response, 503, "unavailable")
                assert (await stack.anonymous().get("/readyz")).status_code == 503
        await succeeds(lambda: stack.client.get("/me/usage"))


async def test_a_statement_that_takes_longer_than_that_is_waited_for(
    served_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="asyncmy")
    database = Database(served_url, timeout_seconds=1.5)
    slept = await database.read(lambda connection: connection.scalar(text("SELECT SLEEP(4)")))
    assert slept == 0
    assert caplog.messages == [], "it was asked for several hellos meanwhile, and nobody need know"
    await database.close()


async def test_whoever_waits_for_a_database_that_hangs_may_give_up(
    own_server: PrivateDatabase, own_server_url: str
) -> None:
    database = Database(own_server_url, timeout_seconds=30)
    await database.check_writable()
    with stopped(own_server):
        waiting = asyncio.create_task(database.check_writable())
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await database.check_writable()
    await database.close()


async def test_whoever_gives_up_twice_leaves_no_error_behind(mysql_url: str) -> None:
    """The one who ends a job asks for it again and again; the driver may miss the first time, and fail a minute later."""
    database = Database(mysql_url)
    begun, missed, fails = asyncio.Event(), asyncio.Event(), asyncio.Event()
    working: set[asyncio.Task[Any] | None] = set()

    async def stubborn(_: Connection) -> None:
        working.add(asyncio.current_task())
        begun.set()
        while not fails.is_set():
            try:
                await fails.wait()
            except asyncio.CancelledError:
                missed.set()
        raise OSError("no answer for a minute")

    told: list[object] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: told.append(context))
    try:
        waiting = asyncio.create_task(database.read(stubborn))
        await begun.wait()
        waiting.cancel()
        await missed.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        fails.set()
        await asyncio.wait({task for task in working if task})
        working.clear()
        gc.collect()
    finally:
        loop.set_exception_handler(before)
        await database.close()
    assert told == []


async def test_a_redis_that_was_demoted_is_left_for_the_one_that_took_its_place(
    make_stack: MakeStack, own_redis: PrivateRedis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heir = PrivateRedis(tmp_path / "heir").start()
    try:
        async with (
            switched(own_redis.port) as switch,
            make_stack(redis_url=f"redis://127.0.0.1:{switch.port}") as stack,
        ):
            await stack.open(CONTENT)
            await stack.put(CONTENT, 0)
            own_redis.command("REPLICAOF", "127.0.0.1", heir.port)
            switch.lead_to(heir.port, Left.KEPT)
            ready = await stack.anonymous().get("/readyz")
            assert ready.status_code == 503
            assert "READONLY" in ready.json()["checks"]["redis"]["reason"]
            # The probe has found the old one out, and its connections are left.
            await succeeds(lambda: stack.put(CONTENT, 1))
            assert (await stack.anonymous().get("/readyz")).status_code == 200
        with Redis.from_url(heir.url) as redis:
            assert redis.dbsize() > 0
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
    finally:
        heir.stop()


async def test_a_database_that_was_demoted_is_left_for_the_one_that_took_its_place(
    make_stack: MakeStack, her_server: PrivateDatabase
) -> None:
    """The same server plays both: what counts is that no connection from before is used again."""
    async with (
        switched(her_server.port) as switch,
        make_stack(database_url=url_of_her(switch.port)) as stack,
    ):
        assert (await stack.open(CONTENT)).status_code == 201
        before, other = await _connections(her_server), Content(64 * KIB, name="other")
        async with read_only(her_server):
            ready = await stack.anonymous().get("/readyz")
            assert ready.status_code == 503
            assert "read-only" in ready.json()["checks"]["database"]["reason"]
            problem(await stack.open(other), 503, "unavailable")
        assert (await stack.open(other)).status_code == 201
        assert (await stack.anonymous().get("/readyz")).status_code == 200
        assert not before & await _connections(her_server)


async def test_database_without_room_is_named_and_takes_writes_again(
    make_stack: MakeStack, own_server: PrivateDatabase, own_server_url: str
) -> None:
    async with make_stack(database_url=own_server_url) as stack:
        await execute(own_server_url, *FILL)
        try:
            refused = problem(await stack.open(CONTENT), 503, "unavailable")
            ready = await stack.anonymous().get("/readyz")
        finally:
            await execute(own_server_url, *MAKE_ROOM)
        assert refused["detail"].startswith("The disk of the database is full; nothing was acknowledged.")
        said = spell([reasons.DATABASE_FULL(how="The table is full")])
        assert (ready.status_code, ready.json()["checks"]["database"]["reason"]) == (200, said)
        assert (await stack.open(CONTENT)).status_code == 201


async def test_a_database_that_is_gone_is_given_up_once_its_address_leads_to_one_that_answers(mariadb_url: str) -> None:
    """The connections from before stay open and silent, as those to a machine without power."""
    port = make_url(mariadb_url).port
    assert port is not None
    async with switched(port) as switch:
        url = make_url(mariadb_url).set(host="127.0.0.1", port=switch.port).render_as_string(hide_password=False)
        database = Database(url, timeout_seconds=PATIENCE_SECONDS)
        await asyncio.gather(*(database.read(_connection) for _ in range(4)))
        switch.lead_to(port, Left.SILENT)
        async with asyncio.timeout(LONG_SECONDS):
            with pytest.raises(Unavailable, match="away"):
                await database.read(_connection)
            await database.read(_connection)  # none of the other silent ones is tried
        await database.close()


async def test_nothing_is_read_by_a_connection_to_a_database_that_was_demoted(
    own_server: PrivateDatabase, own_server_url: str
) -> None:
    """A replica is behind, and what it has may be less than was acknowledged."""
    database = Database(own_server_url)
    await database.check_writable()
    before = await database.read(_connection)
    assert await database.read(_connection) == before
    async with read_only(own_server):
        assert await database.read(_connection) != before
        with pytest.raises(Unavailable, match="read-only"):
            await database.check_writable()
    await database.close()


async def test_transactions_that_wait_for_one_another_do_not_hold_up_a_failover(her_server: PrivateDatabase) -> None:
    """Whoever sets `read_only` waits for the second, who waits for a row of the first, who waits for that setting."""
    maker, database = her_server.url("mysql"), Database(url_of_her(her_server.port), timeout_seconds=PATIENCE_SECONDS)
    await database.transact(lambda connection: _write(connection, "one"))
    await database.transact(lambda connection: _write(connection, "another"))
    has_it, goes_on = asyncio.Event(), asyncio.Event()

    async def hold_one_and_write_another(connection: Connection) -> None:
        await _write(connection, "one")
        has_it.set()
        await goes_on.wait()
        await _write(connection, "another")

    first = asyncio.create_task(database.transact(hold_one_and_write_another))
    await has_it.wait()
    second = asyncio.create_task(database.transact(lambda connection: _write(connection, "one")))
    await eventually(lambda: _is_anybody(her_server, "command = 'Query' AND info LIKE 'UPDATE%'"))
    demoting = asyncio.create_task(execute(maker, "SET GLOBAL read_only = 1"))
    await eventually(lambda: _is_anybody(her_server, "info LIKE 'SET GLOBAL read_only%'"))
    goes_on.set()
    async with asyncio.timeout(45):  # of the 50 s that a row is waited for without being told otherwise
        results = await asyncio.gather(first, second, demoting, return_exceptions=True)
    *refused, demoted = results
    assert [isinstance(result, Unavailable) for result in refused] == [True, True], results
    assert demoted is None
    await execute(maker, "SET GLOBAL read_only = 0")
    await database.close()


async def test_a_row_that_somebody_has_is_waited_for_once(mariadb_url: str) -> None:
    database = Database(mariadb_url, timeout_seconds=PATIENCE_SECONDS)
    await database.transact(lambda connection: _write(connection, "one"))
    attempts = 0

    async def wait(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        await _write(connection, "one")

    async def hold(connection: Connection) -> None:
        await _write(connection, "one")
        with pytest.raises(Unavailable, match="busy"):
            await database.transact(wait)

    await database.transact(hold)
    assert attempts == 1
    await database.transact(wait)
    await database.close()


async def _write(connection: AsyncConnection, name: str) -> None:
    changed = await connection.execute(
        text("UPDATE meta SET value = CONCAT(value, '.') WHERE name = :name"), {"name": name}
    )
    if not changed.rowcount:
        await connection.execute(text("INSERT INTO meta (name, value) VALUES (:name, '')"), {"name": name})


async def _is_anybody(server: PrivateDatabase, condition: str) -> bool:
    """Whether there is a connection of which that is so."""
    maker = Database(server.url("mysql"))
    query = text(f"SELECT COUNT(*) FROM information_schema.processlist WHERE {condition} AND id <> CONNECTION_ID()")
    found = await maker.read(lambda connection: connection.scalar(query))
    await maker.close()
    return bool(found)


async def _connection(connection: AsyncConnection) -> int:
    return int((await connection.execute(text("SELECT CONNECTION_ID()"))).scalar_one())


async def _connections(server: PrivateDatabase) -> set[int]:
    """Those of the stack's user."""
    maker = Database(server.url("mysql"))
    query = text("SELECT id FROM information_schema.processlist WHERE user = 'hers'")
    found = await maker.read(lambda connection: connection.scalars(query))
    await maker.close()
    return set(found)
