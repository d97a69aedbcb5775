"""A request waits for silent stores once: not for each of them, nor for each call, nor again behind others who wait."""

import asyncio
import re
import signal
from contextlib import aclosing

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError
from sqlalchemy import text

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.servers import PrivateDatabase, PrivateRedis
from tests.support.stack import Stack
from tests.support.switching import Left, switched
from tests.support.waiting import eventually
from tests.support.waits import as_request
from uploader import wait_budget
from uploader.accounting.redis import connect
from uploader.database.engine import Database
from uploader.database.mysql import SYNCING_CONNECTIONS
from uploader.domain.upload import Upload
from uploader.errors import Unavailable, UploadBusy
from uploader.service.results import Target
from uploader.tasks import ended
from uploader.wait_budget import LEAST

CONTENT = Content(4 * 64 * KIB)
ECHO = "return ARGV[1]"


async def test_a_chunk_that_waited_for_the_database_does_not_wait_as_long_for_redis(
    make_stack: MakeStack,
    own_server: PrivateDatabase,
    own_server_url: str,
    own_redis: PrivateRedis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    timeouts = {"database_timeout_seconds": 8, "redis_timeout_seconds": 5}
    async with make_stack(database_url=own_server_url, redis_url=own_redis.url, **timeouts) as stack:
        await stack.open(CONTENT)
        await stack.put(CONTENT, 0)
        own_redis.command("FLUSHALL")  # so that the chunk has to ask both
        own_server.send_signal(signal.SIGSTOP)
        try:
            sending = asyncio.create_task(stack.put(CONTENT, 1))
            await eventually(_the_database_was_asked_for_a_hello)
            own_redis.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1.8)  # and not yet given up
        finally:
            own_server.send_signal(signal.SIGCONT)
        try:
            problem(await sending, 503, "unavailable")
        finally:
            own_redis.send_signal(signal.SIGCONT)
        assert _patience_with_redis(caplog) < 2


async def test_a_chunk_that_waited_for_others_does_not_wait_as_long_for_redis(
    make_stack: MakeStack, own_redis: PrivateRedis, caplog: pytest.LogCaptureFixture
) -> None:
    """They may have waited for Redis, one after the other."""
    async with make_stack(redis_url=own_redis.url, redis_timeout_seconds=4) as stack:
        upload = await _begun(stack)
        own_redis.send_signal(signal.SIGSTOP)
        try:
            async with stack.services.storage.closing(upload):
                sending = asyncio.create_task(stack.put(CONTENT, 1))
                await asyncio.sleep(2.5)
            problem(await sending, 503, "unavailable")
        finally:
            own_redis.send_signal(signal.SIGCONT)
        assert _patience_with_redis(caplog) < 2


async def test_a_list_waits_for_redis_once_and_not_for_each_upload(
    make_stack: MakeStack, own_redis: PrivateRedis
) -> None:
    contents = [Content(64 * KIB, seed) for seed in range(10)]
    async with make_stack(redis_url=own_redis.url, redis_timeout_seconds=1) as stack:
        for content in contents:
            await stack.open(content)
        own_redis.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(5):  # ten times a second would be longer
                listed = await stack.client.get("/uploads")
        finally:
            own_redis.send_signal(signal.SIGCONT)
        assert len(listed.json()["uploads"]) == len(contents)


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

        own_redis.send_signal(signal.SIGSTOP)
        try:
            calling = asyncio.create_task(call())
            await asyncio.sleep(3.5)
            switch.lead_to(own_redis.port, Left.CUT)
            with pytest.raises(RedisTimeoutError, match=r"no answer within 1(\.\d+)? s"):
                await calling
        finally:
            own_redis.send_signal(signal.SIGCONT)


async def test_who_has_little_patience_left_cuts_off_nobody_else(own_redis: PrivateRedis) -> None:
    async with aclosing(connect(own_redis.url, timeout_seconds=10)) as client:
        sha = await client.script_load(ECHO)
        await client.evalsha(sha, 0, "connected")
        connections = len(await client.client_list())

        async def call(text: str, waited_seconds: float = 0.0) -> bytes:
            with as_request(waited_seconds=waited_seconds):
                echoed: bytes = await client.evalsha(sha, 0, text)
            return echoed

        own_redis.send_signal(signal.SIGSTOP)
        try:
            calls = [asyncio.create_task(call("before")), asyncio.create_task(call("worn", waited_seconds=60))]
            calls.append(asyncio.create_task(call("after")))
            with pytest.raises(RedisTimeoutError, match="no answer within 2 s"):
                await calls[1]
            assert not calls[0].done()
            assert not calls[2].done()
        finally:
            own_redis.send_signal(signal.SIGCONT)
        assert (await calls[0], await calls[2]) == (b"before", b"after")
        assert len(await client.client_list()) == connections


async def test_a_request_gives_a_database_up_once_and_a_job_each_time(
    own_server: PrivateDatabase, own_server_url: str
) -> None:
    database = Database(own_server_url, timeout_seconds=1)
    await database.check_writable()
    own_server.send_signal(signal.SIGSTOP)
    try:
        with as_request():
            of_request = [await _refusal(database) for _ in range(2)]
        of_job = [await _refusal(database) for _ in range(2)]
    finally:
        own_server.send_signal(signal.SIGCONT)
    assert of_request == ["no answer within 1 s", "it did not answer this request before"]
    assert of_job == ["no answer within 1 s"] * 2
    await database.close()


async def test_a_request_that_gave_up_a_store_does_not_wait_long_for_one_that_works(
    own_server: PrivateDatabase, own_server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a replica that does not confirm a commit. A hello is answered meanwhile."""
    monkeypatch.setattr(wait_budget, "IN_ALL_SECONDS", 1)
    database = Database(own_server_url, timeout_seconds=1)
    await database.check_writable()
    with as_request() as own:
        assert await _sleeps(database, 3)
        own.give_up("redis")
        with pytest.raises(Unavailable) as raised:
            await _sleeps(database, 60)
    assert raised.value.reason.endswith("no answer in time for a request that has waited for others, too")
    await database.close()


async def test_a_merge_waits_little_for_what_it_goes_on_without(make_stack: MakeStack, own_redis: PrivateRedis) -> None:
    """As the lease, before the commit that closes its upload."""
    async with make_stack(redis_url=own_redis.url, redis_timeout_seconds=10) as stack:
        upload = await _begun(stack)
        own_redis.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(8):  # each of them would last longer
                with as_request() as own:
                    await stack.services.closers.announce(upload)
                    assert own.left("redis", 10) == 0
                    await stack.services.closers.announce(upload)
        finally:
            own_redis.send_signal(signal.SIGCONT)


async def test_who_has_waited_waits_less_for_the_right_to_append(stack: Stack) -> None:
    upload = await _begun(stack)
    async with stack.services.storage.appending(upload), asyncio.timeout(6):  # without having waited it is longer
        with as_request(waited_seconds=60), pytest.raises(UploadBusy):
            async with stack.services.storage.appending(upload):
                pass


async def test_a_database_that_works_long_is_asked_as_patiently_as_before_and_redis_less(
    own_server: PrivateDatabase, own_server_url: str
) -> None:
    database = Database(own_server_url, timeout_seconds=1)
    await database.check_writable()
    with as_request() as own:
        assert await _sleeps(database, 2)
        assert own.left("database", 1) > 0.9
        assert own.left("redis", 1) == LEAST
    await database.close()


async def test_who_waited_for_a_connection_waits_less_for_a_server_that_falls_silent_then(
    own_server: PrivateDatabase, own_server_url: str
) -> None:
    database = Database(own_server_url, connections=SYNCING_CONNECTIONS + 1, timeout_seconds=1)
    await database.check_writable()
    busy = asyncio.create_task(database.read(lambda connection: connection.execute(text("SELECT SLEEP(60)"))))
    await asyncio.sleep(0.3)  # it has the only connection
    with as_request() as own:
        refusal = asyncio.create_task(_refusal(database))
    async with asyncio.timeout(10):
        while own.left("database", 1) > LEAST:
            await asyncio.sleep(0.02)
    own_server.send_signal(signal.SIGSTOP)
    try:
        assert await refusal == "no answer within 0.2 s"
    finally:
        own_server.send_signal(signal.SIGCONT)
        await ended(busy)
        await database.close()


async def _begun(stack: Stack) -> Upload:
    await stack.open(CONTENT)
    await stack.put(CONTENT, 0)
    upload = await stack.services.uploads.find(Target("alice", CONTENT.md5))
    assert isinstance(upload, Upload)
    return upload


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
