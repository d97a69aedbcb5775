"""Events arrive at real consumers: an HTTP server and a stream of Redis; and what becomes of those that do not."""

import asyncio
import json
import os
import re
import signal
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2
import pytest
from redis.asyncio import Redis
from sqlalchemy import insert, select

from tests.conftest import MakeStack
from tests.support.archives import Entry, archive
from tests.support.background import until
from tests.support.clock import ManualClock
from tests.support.consumer import SECRETS, Consumer, consuming, events_file, webhook
from tests.support.content import Content
from tests.support.process import Mortal, workers_of
from tests.support.servers import PrivateRedis
from tests.support.stack import Stack, running_stack
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.database import deliveries, models
from uploader.database.engine import Connection, Database
from uploader.database.outbox import delivery_row
from uploader.domain import reasons
from uploader.domain.diagnosis import Diagnosis
from uploader.domain.reasons import Check, spell
from uploader.errors import ConfigurationError, Unavailable
from uploader.jobs.events import EventKeeper
from uploader.runtime.tasks import ended
from uploader.service import events
from uploader.service.events import RETRY_SECONDS, Relay
from uploader.sinks import webhook as webhooks

_JITTER = 0.1
NOWHERE = "http://127.0.0.1:9/"
STREAM = '[sinks.log]\ntype = "redis"\nstream = "told"\n'


async def rows(database: Database, table: Any = models.delivery) -> list[dict[str, Any]]:
    async def read(connection: Connection) -> list[dict[str, Any]]:
        return [dict(row) for row in (await connection.execute(select(table))).mappings()]

    return await database.read(read)


async def upload(stack: Stack, seed: int, count: int = 1) -> list[str]:
    """Small files in one request; their ids."""
    contents = [Content(100, seed=seed + number, name=f"{seed + number}.bin") for number in range(count)]
    body = archive(*(Entry(each.name, each.data) for each in contents))
    results = (await stack.client.post("/files/batch", content=body)).json()["results"]
    assert {result["status"] for result in results} == {201}
    return [result["file"]["id"] for result in results]


async def relay_all(relay: Relay) -> float:
    """Until nothing is due; for how long."""
    while (pause := await relay.relay_due()) == 0.0:
        pass
    return pause


@dataclass
class Hook:
    """A webhook, and a server that tells it of events when it is asked to."""

    consumer: Consumer
    stack: Stack

    @property
    def relay(self) -> Relay:
        (relay,) = self.stack.services.relays
        return relay

    async def relay_all(self) -> float:
        return await relay_all(self.relay)

    async def rows(self) -> list[dict[str, Any]]:
        return await rows(self.stack.services.database)

    async def states(self) -> set[str]:
        return {row["state"] for row in await self.rows()}


@pytest.fixture(autouse=True)
def without_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_REST_SECONDS", 0.0)


def _telling(make_stack: MakeStack, directory: Path, text: str, **settings: Any) -> AbstractAsyncContextManager[Stack]:
    return make_stack(events=events_file(directory, text), **settings)


@pytest.fixture
def telling(make_stack: MakeStack, tmp_path: Path, clock: ManualClock) -> MakeStack:
    """Makes a stack whose events are told to these sinks."""
    return partial(_telling, make_stack, tmp_path / "events", clock=clock)


@pytest.fixture
def telling_on(make_stack_on: MakeStack, tmp_path: Path, clock: ManualClock) -> MakeStack:
    """The same, once on each kind of database."""
    return partial(_telling, make_stack_on, tmp_path / "events", clock=clock)


@pytest.fixture
async def hook(telling: MakeStack) -> AsyncIterator[Hook]:
    async with consuming() as consumer, telling(webhook("hook", consumer.url)) as stack:
        yield Hook(consumer, stack)


def ids_of(consumer: Consumer) -> list[str]:
    return [event["id"] for event in consumer.events]


async def test_what_happens_arrives_at_each_sink_as_the_contract_says(telling_on: MakeStack) -> None:
    async with consuming() as scan, consuming() as rotated:
        text = (
            webhook("scan", scan.url, types='["file.finished"]')
            + webhook("rotated", rotated.url, secrets='["new.secret", "old.secret"]')
            + STREAM
        )
        async with telling_on(text, jobs=True, clock=None) as stack:
            redis = Redis.from_url(stack.services.settings.redis_url or "")
            await redis.xgroup_create("told", "indexers", id="0", mkstream=True)
            content = Content(1000, seed=1)
            file = (await stack.upload(content)).json()["file"]
            assert (await stack.client.delete(f"/me/files/{file['id']}")).status_code == 204
            await eventually(lambda: has(rotated, 3))
            await eventually(lambda: has(scan, 1))
            await eventually(lambda: holds(redis, 3))
            source = f"/uploader/{stack.services.installation.id}"
        read: Any = await redis.xreadgroup("indexers", "one", {"told": ">"}, count=10)
        await redis.aclose()
    entries = read[0][1]
    (request,) = scan.requests
    assert request.headers["content-type"] == "application/cloudevents+json"
    assert request.headers["webhook-id"] == request.event["id"]
    assert request.is_signed_with(SECRETS[0])
    assert not request.is_signed_with(SECRETS[1])
    assert all(each.is_signed_with(secret) for each in rotated.requests for secret in SECRETS)
    assert {
        name: request.event[name] for name in ("specversion", "source", "type", "subject", "datacontenttype", "data")
    } == {
        "specversion": "1.0",
        "source": source,
        "type": "file.finished",
        "subject": file["id"],
        "datacontenttype": "application/json",
        "data": {"user_id": "alice", "file": file},
    }
    by_type = {event["type"]: event for event in rotated.events}
    assert set(by_type) == {"upload.created", "file.finished", "file.deleted"}
    assert by_type["file.finished"] == request.event
    found = {entry[b"type"].decode(): json.loads(entry[b"event"]) for _, entry in entries}
    assert found == by_type
    assert {entry[b"id"].decode() for _, entry in entries} == {event["id"] for event in rotated.events}


async def holds(redis: Redis, count: int) -> bool:
    return bool(await redis.xlen("told") == count)


async def has(consumer: Consumer, count: int) -> bool:
    return len(consumer.requests) >= count


async def test_a_hanging_sink_holds_up_no_other(telling: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_SECONDS", 3600.0)  # nobody looks unasked
    async with consuming() as hanging, consuming() as good:
        hanging.going_on.clear()
        text = webhook("hanging", hanging.url) + webhook("good", good.url)
        async with telling(text, jobs=True, clock=None) as stack:
            await upload(stack, 1, 5)
            await eventually(lambda: has(good, 5))
            await upload(stack, 6, 5)
            await eventually(lambda: has(good, 10))
            assert hanging.waiting == len(hanging.requests)
            hanging.going_on.set()
            await eventually(lambda: has(hanging, 10))
    assert sorted(ids_of(hanging)) == sorted(ids_of(good))


async def test_what_is_refused_is_told_again_by_the_plan_and_in_the_end_is_dead(hook: Hook, clock: ManualClock) -> None:
    consumer, stack = hook.consumer, hook.stack
    consumer.status, consumer.body = 500, b"no\xff" * 1000
    (file_id,) = await upload(stack, 1)
    for attempt, delay in enumerate(RETRY_SECONDS, 1):
        await hook.relay_all()
        (row,) = await hook.rows()
        assert (row["attempt"], row["state"], len(consumer.requests)) == (attempt, "waiting", attempt)
        assert row["last_error"].startswith("500 no")
        wait = (row["due_at"] - clock.now()).total_seconds()
        assert delay * (1 - _JITTER) <= wait <= delay * (1 + _JITTER)
        clock.advance(wait - 0.001)
        assert await hook.relay.relay_due() > 0
        assert len(consumer.requests) == attempt
        clock.advance(0.001)
    await hook.relay_all()
    (row,) = await hook.rows()
    assert (row["attempt"], row["state"]) == (len(RETRY_SECONDS) + 1, "dead")
    assert stack.services.watching.names == ("hook",)
    ready = (await stack.client.get("/readyz")).json()["checks"]["events"]
    assert ready == {"ok": True, "reason": spell([reasons.EVENTS_DEAD(sink="hook", dead=1)])}
    assert 'uploader_dead_events{sink="hook"} 1.0' in await stack.metrics()
    clock.advance(86400)
    await hook.relay_all()
    assert {event["subject"] for event in consumer.events} == {file_id}
    assert len({request.body for request in consumer.requests}) == 1  # the same bytes, and the same id
    assert len({request.headers["webhook-timestamp"] for request in consumer.requests}) == len(consumer.requests)
    assert all(request.is_signed_with(SECRETS[0]) for request in consumer.requests)


async def test_a_sink_that_is_down_is_asked_seldom_and_gets_all_later(hook: Hook, clock: ManualClock) -> None:
    hook.consumer.status, end = 503, clock.monotonic() + 3600
    await upload(hook.stack, 1, 20)
    while clock.monotonic() < end:
        clock.advance(max(1, await hook.relay_all()))
    # All 20, once more those whose first retry is due before it is sure; then one a minute.
    assert 20 + 30 < len(hook.consumer.requests) < 20 + 80
    hook.consumer.status, told = 200, len(hook.consumer.requests)
    for _ in range(60):
        clock.advance(600)
        await hook.relay_all()
    assert await hook.states() == {"delivered"}
    assert await hook.relay.relay_due() > 0
    assert len(set(ids_of(hook.consumer)[told:])) == len(hook.consumer.requests) - told == 20


@pytest.mark.parametrize(("status", "is_down"), [(404, False), (429, True), (500, True)])
async def test_a_sink_that_refuses_is_not_taken_for_one_that_is_down(hook: Hook, status: int, is_down: bool) -> None:
    hook.consumer.status = status
    await upload(hook.stack, 1, 10)
    await hook.relay_all()
    hook.consumer.status = 200
    await upload(hook.stack, 11)
    await hook.relay_all()
    assert ("delivered" in await hook.states()) is not is_down
    assert len(await hook.rows()) == 11


async def test_what_a_sink_raises_is_a_failure_as_any_other(hook: Hook, clock: ManualClock) -> None:
    await upload(hook.stack, 1, 5)
    with patch.object(hook.relay.sink, "deliver", side_effect=ZeroDivisionError("so")):
        assert await hook.stack.services.reviewing.test("hook") == "ZeroDivisionError: so"
        await hook.relay_all()
    told = {(row["state"], row["attempt"], row["last_error"]) for row in await hook.rows()}
    assert told == {("waiting", 1, "ZeroDivisionError: so")}
    assert await hook.relay.relay_due() > 0, "five failures in a row"
    clock.advance(10)
    with patch.object(hook.relay.sink._post, "_send", side_effect=ZeroDivisionError("so")):  # type: ignore[attr-defined]
        await hook.relay.relay_due()
    clock.advance(400)
    await hook.relay_all()
    assert await hook.states() == {"delivered"}


async def test_a_sink_that_is_gone_is_told_nothing_until_switched_on(hook: Hook, clock: ManualClock) -> None:
    hook.consumer.status = 410
    await upload(hook.stack, 1)
    await hook.relay_all()
    await upload(hook.stack, 2)
    clock.advance(86400)
    await hook.relay_all()
    assert len(hook.consumer.requests) == 1
    assert [(row["state"], row["attempt"]) for row in await hook.rows()] == [("waiting", 0)] * 2
    assert await hook.stack.services.watching.diagnoses() == [reasons.EVENTS_OFF(sink="hook")]
    hook.consumer.status = 200
    await hook.stack.services.database.transact(lambda connection: events.switch_on(connection, "hook"))
    await hook.relay_all()
    assert len(set(ids_of(hook.consumer))) == 2


async def test_many_relays_share_the_work_and_what_one_leaves_is_taken_by_another(
    telling_on: MakeStack, clock: ManualClock, redis_url: str
) -> None:
    """Each event is told once, because each row is one relay's. But one relay dies before it notes what it told."""
    async with AsyncExitStack() as ending:
        consumer = await ending.enter_async_context(consuming())
        first = await ending.enter_async_context(telling_on(webhook("hook", consumer.url)))
        settings = first.services.settings
        same = partial(running_stack, settings.data, settings.database_url or "", redis_url, events=settings.events)
        others = [await ending.enter_async_context(same(clock=clock)) for _ in range(2)]
        await upload(first, 1, 100)
        relays = [stack.services.relays[0] for stack in (first, *others)]
        with patch.object(relays[0], "_count", side_effect=ZeroDivisionError), pytest.raises(ZeroDivisionError):
            await relays[0].relay_due()
        lost = len(consumer.requests)
        assert lost == 64
        await asyncio.gather(*map(relay_all, relays))
        assert len(set(ids_of(consumer))) == len(consumer.requests) == 100
        clock.advance(61)
        await asyncio.gather(*map(relay_all, relays))
        assert len(consumer.requests) == 100 + lost
        assert {row["state"] for row in await rows(first.services.database)} == {"delivered"}


async def test_claims_of_a_dead_process_are_taken_over_at_once_and_those_of_a_living_one_are_not(
    telling_on: MakeStack, clock: ManualClock, redis_url: str
) -> None:
    async with AsyncExitStack() as ending:
        consumer = await ending.enter_async_context(consuming())
        first = await ending.enter_async_context(telling_on(webhook("hook", consumer.url)))
        settings = first.services.settings
        same = partial(running_stack, settings.data, settings.database_url or "", redis_url, events=settings.events)
        other = await ending.enter_async_context(same(clock=clock))
        refused, settled, lost = [(await upload(first, number))[0] for number in range(3)]
        relay, mark = first.services.relays[0], first.services.process_mark
        consumer.status = 500
        with patch.object(relay.sink, "batch", 1):
            await relay.relay_due()
            consumer.status = 204
            await relay.relay_due()
            with patch.object(relay, "_count", side_effect=ZeroDivisionError), pytest.raises(ZeroDivisionError):
                await relay.relay_due()
        assert await other.services.takeover.take_over() == 0, "the process lives"
        assert mark._descriptor is not None
        os.close(mark._descriptor)  # as the kernel does when the process dies
        mark._descriptor = None
        takeovers = await asyncio.gather(other.services.takeover.take_over(), other.services.takeover.take_over())
        assert sum(takeovers) == 1, "what has failed waits for its next attempt"
        await relay_all(other.services.relays[0])
        subjects = [event["subject"] for event in consumer.events]
        assert subjects == [refused, settled, lost, lost]
        assert await other.services.takeover.take_over() == 0
        assert [path.suffix for path in (first.data / "metrics").iterdir() if mark.name in path.name] == []


async def test_relay_that_is_stopped_while_a_sink_stands_gives_its_claims_back(hook: Hook) -> None:
    await upload(hook.stack, 1, 3)
    hook.consumer.going_on.clear()
    relaying = asyncio.create_task(hook.relay.relay_due())
    await until(lambda: hook.consumer.waiting == 3)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await ended(relaying)
    hook.consumer.going_on.set()
    await hook.relay_all()
    assert {(row["state"], row["attempt"]) for row in await hook.rows()} == {("delivered", 0)}


@pytest.mark.parametrize("workers", [1, 2])
async def test_what_a_killed_relay_had_claimed_is_told_when_its_process_is_there_again(
    tmp_path: Path, workers: int
) -> None:
    async with consuming() as consumer:
        path = events_file(tmp_path / "events", webhook("hook", consumer.url))
        mortal = await asyncio.to_thread(Mortal, tmp_path / "server", EVENTS=str(path), WORKERS=str(workers))
        with ExitStack() as ending:
            ending.callback(mortal.end)
            consumer.going_on.clear()
            async with httpx2.AsyncClient(
                base_url=mortal.url, headers={"Authorization": f"Bearer {mortal.token}"}
            ) as client:
                sent = await client.post("/me/files?name=a", content=b"a")
                assert sent.status_code == 201
                await until(lambda: consumer.waiting == 1)
                began = time.monotonic()
                if workers == 1:
                    await asyncio.to_thread(mortal.kill_and_start)
                else:
                    for process in workers_of(mortal.server):
                        os.kill(process, signal.SIGKILL)
                consumer.going_on.set()
                await until(lambda: len(consumer.requests) == 2)
                # On a machine that is so busy that the start takes a minute the claim has ended by itself.
                assert "a process that died" in mortal.server.output() or time.monotonic() - began > 55


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("redirect", "307"),
        ("long", None),
        ("silent", "no answer within 0.2 s"),
        ("nobody", "ConnectionRefusedError: "),
    ],
)
async def test_a_webhook_that_is_not_as_it_should_be(
    telling: MakeStack, trouble: str, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with consuming() as elsewhere, consuming() as consumer:
        async with consuming() as closed:
            url = closed.url if trouble == "nobody" else consumer.url
        match trouble:
            case "redirect":
                consumer.status, consumer.head = 307, f"Location: {elsewhere.url}\r\n"
            case "long":
                consumer.status, consumer.body = 200, b"x" * (1 << 20)
            case "silent":
                consumer.going_on.clear()
                monkeypatch.setattr(webhooks, "_TIMEOUT_SECONDS", 0.2)
        async with telling(webhook("hook", url)) as stack:
            await upload(stack, 1, 2)
            await stack.services.relays[0].relay_due()
            found = await rows(stack.services.database)
    assert {row["state"] for row in found} == {"waiting" if told else "delivered"}
    assert all(row["attempt"] == 1 and row["last_error"].startswith(told) for row in found if told)
    assert elsewhere.requests == []


async def test_a_bounded_stream_waits_for_its_redis(
    telling: MakeStack, clock: ManualClock, own_redis: PrivateRedis
) -> None:
    text = f'[sinks.log]\ntype = "redis"\nurl = "{own_redis.url}"\nmaxlen = 100\n'
    async with telling(text) as stack:
        (relay,) = stack.services.relays
        await upload(stack, 1)
        own_redis.kill()
        await relay_all(relay)
        assert {row["state"] for row in await rows(stack.services.database)} == {"waiting"}
        own_redis.start()
        clock.advance(6)
        await upload(stack, 2, 300)
        await relay_all(relay)
        assert {row["state"] for row in await rows(stack.services.database)} == {"delivered"}
        redis = Redis.from_url(own_redis.url)
        assert 100 <= await redis.xlen("uploader:events") < 301
        await redis.aclose()


async def test_events_are_forgotten_after_a_week(telling_on: MakeStack, clock: ManualClock) -> None:
    async with telling_on(webhook("hook", NOWHERE)) as stack:
        await upload(stack, 1, 3)
        keeper = EventKeeper(stack.services.watching, clock)
        clock.advance(7 * 86400 - 7200)
        (kept,) = await upload(stack, 4)
        await keep_for(119, keeper, clock)
        assert len(await rows(stack.services.database)) == 4
        await keep_for(2, keeper, clock)
        assert [row["subject"] for row in await rows(stack.services.database, models.outbox)] == [kept]
        assert len(await rows(stack.services.database)) == 1


async def keep_for(minutes: int, keeper: EventKeeper, clock: ManualClock) -> None:
    for _ in range(minutes):
        clock.advance(60)
        await keeper.run_once()


async def test_what_seems_old_after_an_outage_or_a_jump_is_told_first(hook: Hook, clock: ManualClock) -> None:
    keeper = EventKeeper(hook.stack.services.watching, clock)
    for seed, let_pass in ((1, clock.advance), (2, clock.jump)):
        await upload(hook.stack, seed)
        let_pass(8 * 86400)  # and nothing ran
        await keeper.run_once()
        await hook.relay_all()
        assert len(hook.consumer.requests) == seed
        if seed == 1:
            await keep_for(120, keeper, clock)
            assert await hook.rows() == []


async def test_what_waits_for_a_sink_of_another_name_is_warned_of_and_forgotten(
    telling: MakeStack, make_stack: MakeStack, clock: ManualClock
) -> None:
    async with telling(webhook("hook", NOWHERE)) as stack:
        await upload(stack, 1, 3)
        clock.advance(3600)
        assert await stack.services.watching.diagnoses() == [reasons.EVENTS_LATE(sink="hook", seconds="3600")]
    clock.advance(6 * 86400)
    async with telling(webhook("new", NOWHERE)) as stack:
        await upload(stack, 4)
        late = "3 wait for hook, which UPLOADER_EVENTS does not name"
        assert [each.what for each in await stack.services.watching.diagnoses()] == [late]
        assert {name: state.waiting for name, state in (await stack.services.watching.states()).items()} == {"new": 1}
    clock.advance(2 * 86400)
    async with make_stack(clock=clock) as stack:
        ready = (await stack.client.get("/readyz")).json()["checks"]["events"]
        assert ready["reason"].startswith(late)
        await keep_for(120, EventKeeper(stack.services.watching, clock), clock)
        assert len(await rows(stack.services.database)) == 1


async def test_who_asks_how_it_is_makes_nobody_count_twice(telling: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at once, not again when it failed, and not more than is worth knowing."""
    async with telling(webhook("hook", NOWHERE)) as stack:
        asked, going_on = 0, asyncio.Event()

        async def fail() -> list[Diagnosis]:
            nonlocal asked
            asked += 1
            await going_on.wait()
            raise Unavailable

        async def is_asked() -> bool:
            return asked > 0

        stack.services.health._asks[Check.EVENTS] = [fail]
        asking = [asyncio.ensure_future(stack.client.get("/readyz")) for _ in range(3)]
        await eventually(is_asked)
        going_on.set()
        answers = [*await asyncio.gather(*asking), await stack.client.get("/readyz")]
        assert {answer.status_code for answer in answers} == {200}
        assert asked == 1
        await upload(stack, 1, 5)
        monkeypatch.setattr(deliveries, "MOST_COUNTED", 3)
        assert (await stack.services.watching.states())["hook"].waiting == 3


async def test_a_delivery_of_no_event_holds_up_no_other(hook: Hook, clock: ManualClock) -> None:
    """As a byte that flips in its row makes one."""
    broken = insert(models.delivery).values(delivery_row("0" * 32, "hook", clock.now()))
    await hook.stack.services.database.transact(lambda connection: connection.execute(broken))
    (file_id,) = await upload(hook.stack, 1)
    await hook.relay.relay_due()
    assert [event["subject"] for event in hook.consumer.events] == [file_id]


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "redis+sentinel"])
async def test_a_url_that_is_none_is_told_without_its_password(telling: MakeStack, scheme: str) -> None:
    table = f'[sinks.log]\ntype = "redis"\nurl = "{scheme}://user:open#sesame@host:6379/service"\n'
    with pytest.raises(ConfigurationError) as refused:
        async with telling(table):
            pass
    assert "events.toml: [sinks.log] url: a '/', '?', '#' or '%' of a password is written" in refused.value.reason
    assert not re.search("open#|sesame", "".join(traceback.format_exception(refused.value)))


async def test_a_mistake_in_the_file_stops_the_start(make_stack: MakeStack, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="UPLOADER_EVENTS"):
        async with make_stack(events=tmp_path / "none.toml"):
            pass
