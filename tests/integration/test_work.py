"""`/queues`: tasks are handed out to one worker at a time, whatever workers, Redis and clocks do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
from redis.asyncio import Redis

from tests.conftest import MakeStack
from tests.integration.test_relaying import upload
from tests.support.clock import ManualClock
from tests.support.consumer import events_file
from tests.support.problems import problem
from tests.support.servers import PrivateRedis
from tests.support.stack import Stack
from tests.support.statements import statements
from tests.support.waiting import PATIENCE_SECONDS
from uploader.accounting.keys import Shards
from uploader.accounting.queue import DelayQueue
from uploader.database import work as database
from uploader.errors import LeaseLost, NotFound, Unavailable
from uploader.service import work
from uploader.service.work import Handed, WorkQueue

QUEUE = '[queues.scan]\ntypes = ["file.finished"]\n'
# Long enough for one round on a busy machine, and soon over.
BRIEF_SECONDS = 0.2


def queues(tmp_path: Path, more: str = "") -> Path:
    return events_file(tmp_path / "events", QUEUE + more)


@pytest.fixture
async def stack(make_stack: MakeStack, tmp_path: Path) -> AsyncIterator[Stack]:
    async with make_stack(events=queues(tmp_path)) as made:
        yield made


@pytest.fixture
async def stack_on(make_stack_on: MakeStack, tmp_path: Path) -> AsyncIterator[Stack]:
    """Once on each kind of database."""
    async with make_stack_on(events=queues(tmp_path)) as made:
        yield made


async def worker_of(stack: Stack, queue: str = "scan") -> httpx2.AsyncClient:
    token = await stack.services.accounts.create_token("worker", admin=False, scope=f"queue:{queue}")
    return stack._client(token)


async def claim(worker: httpx2.AsyncClient, **asked: Any) -> list[dict[str, Any]]:
    response = await worker.post("/queues/scan/claim", json={"max": 100, **asked})
    assert response.status_code == 200, response.text
    tasks: list[dict[str, Any]] = response.json()["tasks"]
    return tasks


async def end(worker: httpx2.AsyncClient, task: dict[str, Any], verb: str = "ack", **asked: Any) -> httpx2.Response:
    return await worker.post(f"/queues/scan/tasks/{task['id']}/{verb}", json={"lease": task["lease"], **asked})


def scan(stack: Stack) -> WorkQueue:
    return stack.services.work.queue("scan")


async def next_of(queue: WorkQueue, lease_seconds: float = 60.0, worker: str = "bob") -> Handed:
    """The next task, as soon as it is to be had."""
    (handed,) = await queue.claim(worker, 1, lease_seconds=lease_seconds, wait_seconds=PATIENCE_SECONDS)
    return handed


async def test_a_task_is_handed_out_extended_released_and_acknowledged(stack_on: Stack) -> None:
    worker = await worker_of(stack_on)
    assert await claim(worker) == []
    ids = await upload(stack_on, 1, 3)
    first, second = await claim(worker, max=2, lease_seconds=600)
    (third,) = await claim(worker)
    tasks = [first, second, third]
    assert [task["event"]["subject"] for task in tasks] == ids, "the oldest first"
    assert {task["event"]["type"] for task in tasks} == {"file.finished"}
    assert [(task["attempt"], task["fence"]) for task in tasks] == [(1, 1)] * 3
    assert await claim(worker) == []

    longer = await end(worker, first, "extend", lease_seconds=3600)
    assert longer.status_code == 200
    assert longer.json().items() >= {"id": first["id"], "lease": first["lease"], "event": first["event"]}.items()
    assert longer.json()["lease_until"] > first["lease_until"]

    assert (await end(worker, second, "release", error="no time")).status_code == 204
    (again,) = await claim(worker)
    assert (again["id"], again["attempt"], again["fence"]) == (second["id"], 2, 2)
    for verb, more in (("ack", {}), ("release", {}), ("extend", {"lease_seconds": 5})):
        problem(await end(worker, second, verb, **more), 409, "lease-lost")

    for _ in range(2):
        assert (await end(worker, again)).status_code == 204, "repeated by who ended it"
    for verb, more in (("release", {}), ("extend", {"lease_seconds": 5})):
        problem(await end(worker, again, verb, **more), 409, "lease-lost")
    for _ in range(2):
        assert (await end(worker, third, "release", delay_seconds=3600)).status_code == 204
    problem(await end(worker, third), 409, "lease-lost")
    assert await claim(worker) == []


async def test_the_content_is_for_who_holds_the_task(stack: Stack) -> None:
    worker = await worker_of(stack)
    (file_id,) = await upload(stack, 1)
    (task,) = await claim(worker)
    place, lease = f"/queues/scan/tasks/{task['id']}/content", {"Lease": task["lease"]}
    whole = await worker.get(place, headers=lease)
    assert (whole.status_code, whole.content) == (200, (await stack.client.get(f"/me/files/{file_id}/content")).content)
    assert (await worker.get(place, headers={**lease, "Range": "bytes=10-19"})).content == whole.content[10:20]
    assert (await worker.head(place, headers=lease)).headers["content-length"] == "100"
    problem(await worker.get(place), 422, "invalid-request")
    problem(await worker.get(place, headers={"Lease": "0" * 32}), 409, "lease-lost")
    await stack.client.delete(f"/me/files/{file_id}")
    problem(await worker.get(place, headers=lease), 404, "file-not-found")
    assert (await end(worker, task)).status_code == 204
    problem(await worker.get(place, headers=lease), 409, "lease-lost")


async def test_a_queue_is_for_its_own_token_and_for_administrators(make_stack: MakeStack, tmp_path: Path) -> None:
    async with make_stack(events=queues(tmp_path, '[queues.thumbs]\ntypes = ["file.finished"]\n')) as stack:
        own, other, root = (
            await worker_of(stack),
            await worker_of(stack, "thumbs"),
            await stack.client_of("r", admin=True),
        )
        assert await claim(own) == await claim(root) == []
        for client in (other, stack.client):
            problem(await client.post("/queues/scan/claim"), 403, "forbidden")
        problem(await stack.anonymous().post("/queues/scan/claim"), 401, "unauthenticated")
        for path in ("/me/usage", "/admin/work", "/metrics"):
            problem(await own.get(path), 403, "forbidden")
        problem(await root.post("/queues/none/claim"), 404, "not-found")
        problem(await own.post("/queues/none/claim"), 403, "forbidden")
        nobodys = {"id": "0" * 32, "lease": "0" * 32}
        for verb, more in (("ack", {}), ("release", {}), ("extend", {"lease_seconds": 5})):
            problem(await end(own, nobodys, verb, **more), 404, "not-found")
        problem(await own.get("/queues/scan/tasks/none/content", headers={"Lease": "x"}), 404, "not-found")
        for body in ({"max": 0}, {"max": 101}, {"wait_seconds": 31}, {"lease_seconds": 0.5}, {"more": 1}, {"max": "1"}):
            problem(await own.post("/queues/scan/claim", json=body), 422, "invalid-request")
        await upload(stack, 1)
        assert len(await claim(own)) == 1
        assert len((await other.post("/queues/thumbs/claim")).json()["tasks"]) == 1, "each queue has a task of its own"


async def test_a_lease_that_ran_out_is_lost_to_the_next_worker_and_to_nobody_else(stack_on: Stack) -> None:
    queue = scan(stack_on)
    await upload(stack_on, 1)
    first = await next_of(queue, BRIEF_SECONDS)
    second = await next_of(queue, BRIEF_SECONDS)
    assert (second.id, second.fence, second.attempt) == (first.id, 2, 2)
    for lost in (queue.ack(first.id, first.lease), queue.extend(first.id, first.lease, 60)):
        with pytest.raises(LeaseLost):
            await lost
    await asyncio.sleep(BRIEF_SECONDS)
    await queue.extend(second.id, second.lease, BRIEF_SECONDS)
    await asyncio.sleep(BRIEF_SECONDS)
    await queue.ack(second.id, second.lease)
    assert await queue.claim("bob", 1) == []


async def test_acks_of_one_moment_share_a_commit_and_each_has_its_own_answer(stack_on: Stack) -> None:
    queue = scan(stack_on)
    await upload(stack_on, 1, 5)
    tasks = await queue.claim("bob", 5)
    stale, held, ended, released, last = tasks
    await queue.ack(ended.id, ended.lease)
    await queue.release(released.id, released.lease, 60.0, None)
    with pytest.raises(LeaseLost):
        await queue.extend(released.id, released.lease, 60.0)
    with statements(stack_on.services.database) as sent:
        asked = [(held.id, held.lease), (ended.id, ended.lease), (held.id, held.lease), (stale.id, "another's")]
        asked += [(released.id, released.lease), ("nobody's", held.lease), (last.id, last.lease)]
        outcomes = await asyncio.gather(*(queue.ack(*each) for each in asked), return_exceptions=True)
    kinds = [type(None), type(None), type(None), LeaseLost, LeaseLost, NotFound, type(None)]
    assert [type(outcome) for outcome in outcomes] == kinds
    assert len([each for each in sent if each.startswith("UPDATE delivery")]) == 1
    assert (await stack_on.services.work.report()).queues[0].held == 1, "the one of another's lease"
    await queue.ack(stale.id, stale.lease)
    assert (await stack_on.services.work.report()).queues[0].waiting == 1, "the one that was given back"


async def test_a_task_that_was_claimed_in_vain_too_often_is_dead_until_it_is_replayed(
    make_stack_on: MakeStack, tmp_path: Path
) -> None:
    async with make_stack_on(events=queues(tmp_path, "max_attempts = 2\n")) as stack:
        root, worker = await stack.client_of("root", admin=True), await worker_of(stack)
        queue = scan(stack)

        async def figures() -> dict[str, Any]:
            (found,) = (await root.get("/admin/work")).json()["queues"]
            return dict(found)

        await upload(stack, 1, 2)
        held, other = await claim(worker)
        told = await figures()
        assert {name: told[name] for name in ("queue", "waiting", "held", "dead", "attempts")} == {
            "queue": "scan",
            "waiting": 2,
            "held": 2,
            "dead": 0,
            "attempts": 1,
        }
        assert {each["id"]: each["worker"] for each in told["holders"]} == {
            held["id"]: "worker",
            other["id"]: "worker",
        }
        assert (await end(worker, other)).status_code == 204
        assert (await end(worker, held, "release", error="no luck")).status_code == 204
        assert (await next_of(queue, BRIEF_SECONDS)).attempt == 2
        assert (await root.post("/admin/events/replay", json={"sink": "scan"})).json() == {"deliveries": 0}
        assert await queue.claim("bob", 1, wait_seconds=3 * BRIEF_SECONDS) == []
        told = await figures()
        assert (told["waiting"], told["held"], told["dead"]) == (0, 0, 1)
        (dead,) = told["given_up"]
        assert (dead["id"], dead["attempt"]) == (held["id"], 2)
        assert "the lease ended" in dead["last_error"]
        assert (await root.get("/admin/events")).json()["sinks"] == [], "a queue is no sink"
        assert (await root.post("/admin/events/replay", json={"sink": "scan"})).json() == {"deliveries": 1}
        await queue.keep()
        for attempt in (1, 2):
            again = await next_of(queue)
            assert (again.id, again.attempt, again.fence) == (held["id"], attempt, 2 + attempt)
            await queue.release(again.id, again.lease, 0.0, "no luck")
        (dead,) = (await figures())["given_up"]
        assert dead["last_error"] == "no luck"


async def test_whatever_the_clock_of_a_node_says_a_task_is_to_be_had_and_a_held_one_stays_its_workers(
    make_stack_on: MakeStack, tmp_path: Path, clock: ManualClock
) -> None:
    """MySQL and MariaDB have a clock of their own, which counts."""
    clock.advance((datetime.now(UTC) - clock.now()).total_seconds() + 30 * 86400)
    async with make_stack_on(events=queues(tmp_path), clock=clock) as stack:
        root, queue = await stack.client_of("root", admin=True), scan(stack)
        await upload(stack, 1)
        held = await next_of(queue)
        replayed = await stack.services.reviewing.replay(
            sink="scan", event_id=None, since=datetime(1970, 1, 1, tzinfo=UTC), dead=False
        )
        assert replayed == 0
        assert await queue.claim("bob", 1) == []
        assert (await root.get("/admin/work")).json()["queues"][0]["held"] == 1
        await queue.ack(held.id, held.lease)


async def test_who_waits_is_served_in_turn_wherever_the_file_comes_in(make_stack: MakeStack, tmp_path: Path) -> None:
    path = queues(tmp_path)
    async with make_stack(events=path) as stack, make_stack(events=path) as elsewhere:
        queue = scan(stack)
        waiting = [asyncio.ensure_future(next_of(queue, worker=str(number))) for number in range(3)]
        gone = asyncio.get_running_loop().create_future()
        left = asyncio.ensure_future(queue.claim("left", 1, wait_seconds=PATIENCE_SECONDS, gone=gone))
        await asyncio.sleep(BRIEF_SECONDS)
        assert await queue.claim("brief", 1, wait_seconds=BRIEF_SECONDS) == [], "its turn never came"
        for number in range(3):
            await upload(elsewhere, 10 + number)
            assert (await waiting[number]).attempt == 1
            assert not any(each.done() for each in waiting[number + 1 :])
        gone.set_result(None)
        assert await left == []
        await upload(elsewhere, 20)
        assert (await next_of(queue)).attempt == 1, "who left has taken nothing"


async def test_whatever_redis_forgot_or_believes_a_task_has_one_holder(
    make_stack_on: MakeStack, tmp_path: Path, own_redis: PrivateRedis
) -> None:
    async with make_stack_on(events=queues(tmp_path), redis_url=own_redis.url) as stack:
        queue = scan(stack)
        await upload(stack, 1, 3)
        held = await next_of(queue)
        redis = stack.services.redis
        assert isinstance(redis, Redis)
        await redis.flushall()
        await queue.keep()
        rest = await queue.claim("bob", 100)
        assert len(rest) == 2
        assert held.id not in {each.id for each in rest}
        await queue.proposals.schedule({held.id: 0.0, "0" * 32: 0.0})
        assert await queue.claim("bob", 100) == [], "the row says that it is held, and that the other is none"
        due = await DelayQueue(redis, Shards(1), "work:scan").next_due()
        assert due is not None
        assert due <= 60, "Redis was told when the lease ends"
        own_redis.kill()
        await queue.ack(held.id, held.lease)
        with pytest.raises(Unavailable):
            await queue.claim("bob", 100)
        own_redis.start()
        await queue.keep()
        await queue.proposals.schedule({held.id: 0.0})
        assert await queue.claim("bob", 100) == []
        assert await redis.keys(f"task:*{held.id}") == [], "what has ended is proposed no more"


async def test_a_keeper_proposes_all_that_nobody_did_and_puts_forward_what_waits_too_long(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "_KEPT", 2)
    queue = scan(stack)
    monkeypatch.setattr(stack.services.work, "_propose", forgets)
    await upload(stack, 1, 5)
    assert await queue.claim("bob", 100) == []
    await queue.proposals.schedule({(await first_due(stack))[0]: 3600.0})
    await queue.keep()
    assert [each.id for each in await queue.claim("bob", 100)] == await first_due(stack)


async def forgets(_: object) -> None:
    """What a process does that is killed after its commit."""


async def first_due(stack: Stack) -> list[str]:
    due = partial(database.due_after, limit=100, max_attempts=5)
    rows = await stack.services.database.read(due, "scan", database.BEFORE_ALL)
    return [task_id for (_, task_id), _ in rows]


async def test_workers_that_come_go_and_hang_never_hold_a_task_together(
    make_stack_on: MakeStack, tmp_path: Path
) -> None:
    """Each fence is given once, and of what two workers did in one row, one is refused."""
    async with make_stack_on(events=queues(tmp_path, "max_attempts = 100\n"), shards=3) as stack:
        queue = scan(stack)
        await upload(stack, 1, 60)
        claims: list[tuple[str, int]] = []
        ended: list[str] = []

        async def work(name: str, drawn: Random) -> None:
            while len(ended) < 60:
                hangs = drawn.random() < 0.3
                lasting = BRIEF_SECONDS if hangs else 60.0
                for task in await queue.claim(
                    name, drawn.randint(1, 5), lease_seconds=lasting, wait_seconds=BRIEF_SECONDS
                ):
                    claims.append((task.id, task.fence))
                    with suppress(LeaseLost):
                        if hangs:
                            await asyncio.sleep(BRIEF_SECONDS * drawn.random())
                        if drawn.random() < 0.3:
                            await queue.release(task.id, task.lease, 0.0, None)
                        else:
                            await queue.ack(task.id, task.lease)
                            ended.append(task.id)

        await asyncio.gather(*(work(str(number), Random(number)) for number in range(8)))
        assert sorted(ended) == sorted(set(ended)), "nothing is acknowledged twice"
        fences: dict[str, list[int]] = {}
        for task_id, fence in claims:
            fences.setdefault(task_id, []).append(fence)
        assert all(sorted(each) == list(range(1, len(each) + 1)) for each in fences.values()), "each is given once"
