"""A fault that lasts leaves a few lines in the log, however many requests and jobs meet it, and one when it has ended."""

import asyncio
import errno
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from tests.conftest import MakeStack
from tests.support.consumer import consuming, events_file, webhook
from tests.support.content import KIB, Content
from tests.support.faults import failing_call
from tests.support.servers import PrivateDatabase, PrivateRedis
from tests.support.stack import Stack, without_database
from tests.support.waiting import eventually
from uploader.runtime import observability
from uploader.runtime.observability import Trouble

CONTENT = Content(33 * 64 * KIB)
ROUNDS = 60
# For each job that sleeps for seconds to have met it.
BACKGROUND_SECONDS = 6.0
_MOST_LINES = 8
NOWHERE = "http://127.0.0.1:9/"

Fault = Callable[[], AbstractAsyncContextManager[None]]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(observability, "_QUIET_SECONDS", 1.0)
    caplog.set_level(logging.INFO, "uploader")
    return caplog


def ends_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    ends = {"a store works again", "Redis takes everything again"}
    return [record.__dict__.get("store", "redis") for record in caplog.records if record.message in ends]


def failures() -> float:
    return sum(
        sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == "uploader_failures_total"
    )


async def ask(stack: Stack, number: int) -> list[int]:
    """Ask for what needs Redis, the disk and the database."""
    answers = await asyncio.gather(
        stack.put(CONTENT, number % 32),
        stack.client.get("/me/files"),
        stack.client.post(f"/me/files?name={number}", content=b"%d" % number),
    )
    return [answer.status_code for answer in answers]


async def works(stack: Stack, number: list[int]) -> bool:
    number[0] += 1
    return max(await ask(stack, 1000 + number[0])) < 400


async def leaves_few_lines(stack: Stack, fault: Fault, told: pytest.LogCaptureFixture) -> None:
    before, refused = failures(), 0
    async with fault():
        told.clear()
        for number in range(ROUNDS):
            refused += sum(status >= 500 for status in await ask(stack, number))
        await asyncio.sleep(BACKGROUND_SECONDS)
        lines = [record for record in told.records if not _is_of_a_good_request(record)]
        assert ROUNDS / 2 <= refused <= failures() - before + 10
        assert 1 <= len(lines) <= _MOST_LINES, [
            (line.levelname, line.message, line.__dict__.get("reason")) for line in lines
        ]
        assert ends_in(told) == []
        told.clear()
    await eventually(lambda: works(stack, [ROUNDS]))

    async def is_told() -> bool:
        await ask(stack, 500)
        return ends_in(told) != []

    await eventually(is_told)
    await asyncio.sleep(1.5)
    ends = ends_in(told)
    assert len(ends) == len(set(ends)) <= 2, ends
    lines = [record for record in told.records if not _is_of_a_good_request(record)]
    assert len(lines) <= _MOST_LINES, [(line.levelname, line.message) for line in lines]


def _is_of_a_good_request(record: logging.LogRecord) -> bool:
    return record.message == "request" and record.__dict__["status"] < 500


@pytest.mark.parametrize(
    ("call", "number"),
    [("fdatasync", errno.EIO), ("open", errno.EROFS), ("pwrite", errno.ENOSPC), ("open", errno.EIO)],
)
async def test_lasting_fault_of_the_disk_leaves_few_lines(
    make_stack: MakeStack, told: pytest.LogCaptureFixture, call: str, number: int
) -> None:
    async with make_stack(jobs=True) as stack:
        await stack.open(CONTENT)

        @asynccontextmanager
        async def fault() -> AsyncIterator[None]:
            with failing_call(call, number, times=None):
                yield

        await leaves_few_lines(stack, fault, told)


async def test_database_that_is_away_for_long_leaves_few_lines(
    make_stack: MakeStack, sqlite_url: str, told: pytest.LogCaptureFixture
) -> None:
    async with make_stack(jobs=True, database_url=sqlite_url) as stack:
        await stack.open(CONTENT)
        await leaves_few_lines(stack, lambda: without_database(stack), told)


async def test_database_server_that_is_away_for_long_leaves_few_lines(
    make_stack: MakeStack, mortal_mariadb: PrivateDatabase, mortal_mariadb_url: str, told: pytest.LogCaptureFixture
) -> None:
    async with make_stack(jobs=True, database_url=mortal_mariadb_url) as stack:
        await stack.open(CONTENT)

        @asynccontextmanager
        async def fault() -> AsyncIterator[None]:
            await asyncio.to_thread(mortal_mariadb.kill)
            yield
            await asyncio.to_thread(mortal_mariadb.revive)

        await leaves_few_lines(stack, fault, told)


@pytest.mark.parametrize("how", ["away", "out of memory"])
async def test_lasting_fault_of_redis_leaves_few_lines(
    make_stack: MakeStack, own_redis: PrivateRedis, told: pytest.LogCaptureFixture, how: str
) -> None:
    async with make_stack(jobs=True, redis_url=own_redis.url) as stack:
        await stack.open(CONTENT)

        @asynccontextmanager
        async def fault() -> AsyncIterator[None]:
            if how == "away":
                own_redis.kill()
            else:
                await stack.services.redis.config_set("maxmemory", "1")
            yield
            if how == "away":
                await asyncio.to_thread(own_redis.start)
            else:
                await stack.services.redis.config_set("maxmemory", "0")

        await leaves_few_lines(stack, fault, told)


async def test_application_that_is_asked_before_an_upload_and_is_away_leaves_few_lines(
    make_stack: MakeStack, tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    async with consuming() as consumer:
        text = f'[pre_create]\nurl = "{consumer.url}"\nsecret_file = "new.secret"\n'
        async with make_stack(events=events_file(tmp_path / "events", text)) as stack:
            consumer.status = 500
            for number in range(ROUNDS):
                assert (await stack.client.post(f"/me/files?name={number}", content=b"a")).status_code == 503
            lines = [record for record in told.records if not _is_of_a_good_request(record)]
            assert [line.message for line in lines] == [
                "nobody said whether a name may be created",
                "request",
                "request",
            ]
            consumer.status = 200
            assert (await stack.client.post("/me/files?name=a", content=b"a")).status_code == 201
            await asyncio.sleep(1.1)
            observability.tell_ended_troubles()
            assert ends_in(told) == ["pre_create"]


async def test_sink_that_is_away_for_long_leaves_one_line(
    make_stack: MakeStack, tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    async with make_stack(events=events_file(tmp_path / "events", webhook("hook", NOWHERE)), jobs=True) as stack:
        for number in range(ROUNDS):
            assert (await stack.client.post(f"/me/files?name={number}", content=b"a")).status_code == 201
        await asyncio.sleep(2)
        lines = [record for record in told.records if not _is_of_a_good_request(record)]
        assert [line.message for line in lines] == ["a sink does not answer"]


def test_fault_that_comes_and_goes_leaves_fewer_and_fewer_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    trouble = Trouble("test")
    for _ in range(600):
        trouble.note("fails", kind="a")
        now += 3
        trouble.worked()
        now += 3
        trouble.tell_end()
    assert len(caplog.records) < 24, "in an hour"
    now += 700
    trouble.worked()
    trouble.tell_end()
    (*_, end) = caplog.records
    assert end.message == "a store works again"
    caplog.clear()
    are_told = [trouble.note("fails", kind=f"kind {number}") for number in range(100)]
    assert (len(caplog.records), are_told) == (4, [False] * 2 + [True] * 98), "each error has another text"
