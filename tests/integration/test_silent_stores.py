"""A request waits for silent stores once: not for each of them, nor for each call, nor again behind others who wait."""

import asyncio
import re
import signal
import time
from contextlib import aclosing

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError
from sqlalchemy import text

from tests.conftest import MakeStack
from tests.support.background import open_with_chunks, stopped
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.servers import PrivateDatabase, PrivateRedis
from tests.support.stack import Stack
from tests.support.switching import Left, switched
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tests.support.waits import as_request
from uploader.accounting.redis import connect
from uploader.database import mysql
from uploader.database.engine import Connection, Database
from uploader.database.mysql import SYNCING_CONNECTIONS
from uploader.errors import Unavailable, UploadBusy
from uploader.runtime import wait_budget
from uploader.runtime.tasks import ended
from uploader.runtime.wait_budget import LEAST, WaitBudget
from uploader.storage.local import locks

CONTENT = Content(4 * 64 * KIB)
ECHO = "return ARGV[1]"


# More than what is not silent takes, and less than any time-out here.
MOMENT_SECONDS = 0.2


@pytest.fixture
def waits_count_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waited for a moment has waited for a minute."""
    note = WaitBudget.note

    def longer(self: WaitBudget, began: float, short_seconds: float, worked: str = "") -> None:
        long = time.monotonic() - began >= MOMENT_SECONDS
        note(self, began - 60 if long else began, short_seconds, worked)

    monkeypatch.setattr(WaitBudget, "note", longer)


@pytest.fixture
def given_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stores that requests have given up."""
    stores: list[str] = []
    give_up = WaitBudget.give_up

    def noted(self: WaitBudget, store: str) -> None:
        stores.append(store)
        give_up(self, store)

    monkeypatch.setattr(WaitBudget, "give_up", noted)
    return stores


@pytest.mark.usefixtures("waits_count_long")
async def test_a_chunk_that_waited_for_the_database_does_not_wait_as_long_for_redis(
    make_stack: MakeStack,
    mortal_mariadb: PrivateDatabase,
    mortal_mariadb_url: str,
    own_redis: PrivateRedis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mysql, "LEAST", 0.01)
    timeouts = {"database_timeout_seconds": 6, "redis_timeout_seconds": 5}  # half of which pass before the hello
    async with make_stack(database_url=mortal_mariadb_url, redis_url=own_redis.url, **timeouts) as stack:
        await open_with_chunks(stack, CONTENT, 0)
        own_redis.command("FLUSHALL")  # so that the chunk has to ask both
        with stopped(mortal_mariadb):
            sending = asyncio.create_task(stack.put(CONTENT, 1))
            await eventually(_the_database_was_asked_for_a_hello)
            own_redis.send_signal(signal.SIGSTOP)
            await asyncio.sleep(MOMENT_SECONDS)  # and not yet given up
        with stopped(own_redis):
            problem(await sending, 503, "unavailable")
        assert _patience_with_redis(caplog) == 1


@pytest.mark.usefixtures("waits_count_long")
async def test_a_chunk_that_waited_for_others_does_not_wait_as_long_for_redis(
    make_stack: MakeStack, own_redis: PrivateRedis, caplog: pytest.LogCaptureFixture
) -> None:
    """They may have waited for Redis, one after the other."""
    async with make_stack(redis_url=own_redis.url, redis_timeout_seconds=4) as stack:
        upload = await open_with_chunks(stack, CONTENT, 0)
        with stopped(own_redis):
            async with stack.services.storage.closing(upload):
                sending = asyncio.create_task(stack.put(CONTENT, 1))
                await asyncio.sleep(2 * MOMENT_SECONDS)  # so that its wait counts as long
            problem(await sending, 503, "unavailable")
        assert _patience_with_redis(caplog) == pytest.approx(0.8)


async def test_a_request_waits_for_redis_once_and_a_list_not_for_each_upload(
    make_stack: MakeStack, own_redis: PrivateRedis, given_up: list[str]
) -> None:
    contents = [Content(64 * KIB, seed) for seed in range(10)]
    async with make_stack(redis_url=own_redis.url, redis_timeout_seconds=1) as stack:
        for content in contents:
            await stack.open(content)
        with stopped(own_redis):
            listed = await stack.client.get("/uploads")
            assert len(listed.json()["uploads"]) == len(contents)
            assert given_up == ["redis"]
            problem(await stack.put(contents[0], 0), 503, "unavailable")
            assert given_up == ["redis"] * 2


@pytest.mark.usefixtures("waits_count_long")
async def test_a_connection_that_is_lost_after_a_silence_is_no_new_beginning(own_redis: PrivateRedis) -> None:
    async with (
        switched(own_redis.port) as switch,
        aclosing(connect(f"redis://127.0.0.1:{switch.port}", timeout_seconds=5)) as client,
    ):
        sha = await client.script_load(ECHO)
        await client.evalsha(sha, 0, "connected")

        async def call() -> object:
            with as_request():
                return await client.evalsha(sha, 0, "text")

        with stopped(own_redis):
            calling = asyncio.create_task(call())
            await asyncio.sleep(2 * MOMENT_SECONDS)  # so that the silence counts as long
            switch.lead_to(own_redis.port, Left.CUT)
            with pytest.raises(RedisTimeoutError, match="no answer within 1 s"):
                await calling


async def test_who_has_little_patience_left_cuts_off_nobody_else(
    own_redis: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_budget, "LEAST", 0.01)
    async with aclosing(connect(own_redis.url, timeout_seconds=60)) as client:
        sha = await client.script_load(ECHO)
        await client.evalsha(sha, 0, "connected")
        connections = len(await client.client_list())

        async def call(text: str, waited_seconds: float = 0.0) -> bytes:
            with as_request(waited_seconds=waited_seconds):
                echoed: bytes = await client.evalsha(sha, 0, text)
            return echoed

        with stopped(own_redis):
            calls = [asyncio.create_task(call("before")), asyncio.create_task(call("worn", waited_seconds=60))]
            calls.append(asyncio.create_task(call("after")))
            with pytest.raises(RedisTimeoutError, match=r"no answer within 0\.6 s"):
                await calls[1]
            assert not calls[0].done()
            assert not calls[2].done()
        assert (await calls[0], await calls[2]) == (b"before", b"after")
        assert len(await client.client_list()) == connections


async def test_a_request_gives_a_database_up_once_and_a_job_each_time(
    mortal_mariadb: PrivateDatabase, mortal_mariadb_url: str
) -> None:
    database = Database(mortal_mariadb_url, timeout_seconds=1)
    await database.check_writable()
    with stopped(mortal_mariadb):
        with as_request():
            of_request = [await _refusal(database) for _ in range(2)]
        of_job = [await _refusal(database) for _ in range(2)]
    assert of_request == ["no answer within 1 s", "it did not answer this request before"]
    assert of_job == ["no answer within 1 s"] * 2
    await database.close()


async def test_a_database_that_works_long_is_waited_for_as_before_but_not_by_who_gave_up_another_store(
    mortal_mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a replica that does not confirm a commit. A hello is answered meanwhile."""
    monkeypatch.setattr(wait_budget, "IN_ALL_SECONDS", 1)
    database = Database(mortal_mariadb_url, timeout_seconds=3)
    await database.check_writable()
    with as_request() as own:
        assert await _sleeps(database, 4)
        assert own.left("database", 3) > 2.7
        assert own.left("redis", 3) == 3 * LEAST
        own.give_up("redis")
        with pytest.raises(Unavailable) as raised:
            await _sleeps(database, 60)
    assert raised.value.reason.endswith("no answer in time for a request that has waited for others, too")
    await database.close()


async def test_a_merge_waits_little_for_what_it_goes_on_without(
    make_stack: MakeStack, own_redis: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the lease, before the commit that closes its upload."""
    monkeypatch.setattr(wait_budget, "LEAST", 0.01)
    async with make_stack(redis_url=own_redis.url) as stack:
        upload = await open_with_chunks(stack, CONTENT, 0)
        with stopped(own_redis):
            async with asyncio.timeout(50):  # the 60 s that Redis has would be longer
                with as_request() as own:
                    await stack.services.closers.announce(upload)
                    assert own.left("redis", 60) == 0
                    await stack.services.closers.announce(upload)


async def test_who_has_waited_waits_less_for_the_right_to_append(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_budget, "LEAST", 0.01)
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 60.0)
    upload = await open_with_chunks(stack, CONTENT, 0)
    async with stack.services.storage.appending(upload), asyncio.timeout(50):  # without having waited it is longer
        with as_request(waited_seconds=60), pytest.raises(UploadBusy):
            async with stack.services.storage.appending(upload):
                pass


async def test_who_waited_for_a_connection_waits_less_for_a_server_that_falls_silent_then(
    mortal_mariadb: PrivateDatabase, mortal_mariadb_url: str
) -> None:
    database = Database(mortal_mariadb_url, connections=SYNCING_CONNECTIONS + 1, timeout_seconds=1)
    await database.check_writable()
    has_it = asyncio.Event()

    async def sleep(connection: Connection) -> None:
        has_it.set()
        await connection.execute(text("SELECT SLEEP(60)"))

    busy = asyncio.create_task(database.read(sleep))
    await has_it.wait()  # the only connection
    with as_request() as own:
        refusal = asyncio.create_task(_refusal(database))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while own.left("database", 1) > LEAST:
            await asyncio.sleep(0.02)
    with stopped(mortal_mariadb):
        assert await refusal == "no answer within 0.2 s"
    await ended(busy)
    await database.close()


async def _the_database_was_asked_for_a_hello() -> bool:
    return "asking a silent database" in {task.get_name() for task in asyncio.all_tasks()}


def _patience_with_redis(caplog: pytest.LogCaptureFixture) -> float:
    """For how long the last request waited for Redis, by its own words."""
    *_, reason = (record.__dict__["reason"] for record in caplog.records if "reason" in record.__dict__)
    found = re.search(r"Redis at .* is away: no answer within ([\d.]+) s", reason)
    assert found, reason
    return float(found[1])


async def _sleeps(database: Database, seconds: int) -> bool:
    slept = await database.read(lambda connection: connection.execute(text(f"SELECT SLEEP({seconds})")))
    return slept.scalar() == 0


async def _refusal(database: Database) -> str:
    """Why it is away, by its own words."""
    with pytest.raises(Unavailable) as raised:
        await database.check_writable()
    return raised.value.reason.rpartition(": ")[2]
