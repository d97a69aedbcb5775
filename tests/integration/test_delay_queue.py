"""The delay queue for its own sake: tasks of any user, on real Valkey, with the clock turned by hand where it can be."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from tests.support.servers import PrivateRedis
from tests.support.waiting import PATIENCE_SECONDS
from uploader.accounting.keys import Shards
from uploader.accounting.queue import DelayQueue, Task
from uploader.accounting.redis import RedisConnection, connect
from uploader.errors import Unavailable

START_MS = 1_800_000_000_000
LEASE = 30
ONE = Shards(1)


def at(seconds: float) -> int:
    return START_MS + round(seconds * 1000)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[RedisConnection]:
    connection = connect(redis_url)
    yield connection
    await connection.aclose()


@pytest.fixture
def queue(redis: RedisConnection) -> DelayQueue:
    return DelayQueue(redis, ONE, "desks")


async def claimed(queue: DelayQueue, seconds: float, limit: int = 300) -> list[str]:
    return [task.id for task in await queue.claim(limit, lease_seconds=LEASE, now_ms=at(seconds))]


async def test_every_task_is_due_after_its_own_delay(queue: DelayQueue) -> None:
    for number, delay in enumerate((90, 1, 30, 3600, 59.9, 60.1)):
        await queue.schedule({f"task-{number}": delay}, now_ms=at(0))
    assert await claimed(queue, 0.9) == []
    assert await claimed(queue, 1) == ["task-1"]
    assert await queue.cancel("task-1")
    assert await claimed(queue, 30.9) == ["task-2"]
    assert await queue.next_due(now_ms=at(30.9)) == pytest.approx(29.0)
    assert sorted(await claimed(queue, 60.2)) == ["task-4", "task-5"]


async def test_a_task_that_is_pushed_back_is_due_later_and_one_that_is_put_forward_sooner(queue: DelayQueue) -> None:
    await queue.schedule({"desk": 5}, now_ms=at(0))
    assert await queue.push_back("desk", 500, now_ms=at(1))
    assert await queue.next_due(now_ms=at(1)) == 500
    assert await queue.push_back("desk", 100, now_ms=at(4))
    assert await claimed(queue, 103) == []
    assert await queue.next_due(now_ms=at(103)) == 1
    assert await claimed(queue, 104) == ["desk"]
    assert not await queue.push_back("nobody", 1, now_ms=at(0))
    assert await claimed(queue, 1000) == ["desk"], "only the lease had it wait"


async def test_those_that_were_pushed_back_hide_none_that_is_due(queue: DelayQueue) -> None:
    """Whatever the limit of a claim, which counts them, too."""
    for number in range(20):
        await queue.schedule({f"task-{number}": 1}, now_ms=at(0))
        await queue.push_back(f"task-{number}", 70, now_ms=at(0))
    await queue.schedule({"desk": 2}, now_ms=at(0))
    assert await claimed(queue, 2, limit=1) == ["desk"]
    assert await claimed(queue, 3, limit=1) == []
    assert await queue.cancel("desk")
    assert len(await claimed(queue, 70)) == 20


async def test_a_cancelled_task_is_never_due(queue: DelayQueue) -> None:
    await queue.schedule({"desk": 5}, now_ms=at(0))
    assert await claimed(queue, 5) == ["desk"]
    assert await queue.cancel("desk")
    assert not await queue.cancel("desk")
    assert await claimed(queue, 1000) == []
    assert await queue.next_due(now_ms=at(0)) is None


async def test_a_claimed_task_is_nobody_elses_until_its_lease_ends_or_it_is_acknowledged(queue: DelayQueue) -> None:
    await queue.schedule({"desk": 5}, now_ms=at(0))
    (stale,) = await queue.claim(lease_seconds=LEASE, now_ms=at(5))
    assert await claimed(queue, 5 + LEASE - 0.1) == []
    (fresh,) = await queue.claim(lease_seconds=LEASE, now_ms=at(5 + LEASE))
    assert not await queue.ack(stale)
    (third,) = await queue.claim(lease_seconds=LEASE, now_ms=at(5 + 2 * LEASE))
    assert not await queue.ack(fresh), "a third worker has it by now"
    assert await queue.ack(third)
    assert not await queue.ack(third)
    assert await claimed(queue, 1000) == []


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_was_scheduled_anew_is_not_acknowledged_by_an_older_claim(
    queue: DelayQueue, cancelled: bool
) -> None:
    await queue.schedule({"desk": 5}, now_ms=at(0))
    (task,) = await queue.claim(lease_seconds=LEASE, now_ms=at(5))
    if cancelled:
        await queue.cancel("desk")
    await queue.schedule({"desk": 10}, now_ms=at(6))
    assert not await queue.ack(task)
    assert await claimed(queue, 16) == ["desk"]
    assert not await queue.ack(task)


async def test_a_task_is_put_forward_and_never_back_by_who_only_wants_it_sooner(queue: DelayQueue) -> None:
    assert await queue.schedule({"desk": 50}, sooner=True, now_ms=at(0))
    assert not await queue.schedule({"desk": 60}, sooner=True, now_ms=at(0))
    assert not await queue.schedule({"desk": 50}, sooner=True, now_ms=at(0))
    assert await queue.schedule({"desk": 40}, sooner=True, now_ms=at(0))
    assert await claimed(queue, 40) == ["desk"]


async def test_a_claim_is_extended_by_its_worker_alone(queue: DelayQueue) -> None:
    await queue.schedule({"desk": 0}, now_ms=at(0))
    (stale,) = await queue.claim(lease_seconds=LEASE, now_ms=at(0))
    assert await queue.extend(stale, 2 * LEASE, now_ms=at(1))
    assert await claimed(queue, 2 * LEASE) == []
    (fresh,) = await queue.claim(lease_seconds=LEASE, now_ms=at(1 + 2 * LEASE))
    assert not await queue.extend(stale, 9 * LEASE, now_ms=at(2 + 2 * LEASE))
    assert await queue.extend(fresh, LEASE, now_ms=at(2 + 2 * LEASE))
    assert await queue.ack(fresh)


async def test_competing_workers_never_claim_one_task_twice(redis: RedisConnection, queue: DelayQueue) -> None:
    names = {f"task-{number}" for number in range(500)}
    for name in names:
        await queue.schedule({name: 0})
    workers = [DelayQueue(redis, ONE, "desks") for _ in range(5)]

    async def work(worker: DelayQueue) -> list[Task]:
        mine: list[Task] = []
        while tasks := await worker.claim(lease_seconds=LEASE, limit=7):
            mine += tasks
            for task in tasks:
                assert await worker.ack(task)
        return mine

    done = [task.id for tasks in await asyncio.gather(*(work(worker) for worker in workers)) for task in tasks]
    assert len(done) == len(names)
    assert set(done) == names


async def test_queues_are_apart(redis: RedisConnection, queue: DelayQueue) -> None:
    await queue.schedule({"desk": 0}, now_ms=at(0))
    other = DelayQueue(redis, ONE, "chairs")
    assert await other.claim(lease_seconds=LEASE, now_ms=at(100)) == []
    assert not await other.cancel("desk")
    assert await claimed(queue, 0) == ["desk"]


async def test_queue_serves_the_tasks_of_all_shards(redis: RedisConnection) -> None:
    queue, names = DelayQueue(redis, Shards(4), "desks"), {f"task-{number}" for number in range(20)}
    assert await queue.schedule(dict.fromkeys(names, 5.0), now_ms=at(0)) == len(names)
    assert len(await redis.keys("minutes:*:desks")) == 4
    assert await queue.next_due(now_ms=at(1)) == 4
    first = await claimed(queue, 5, limit=7)
    assert len(first) == 7
    assert {*first, *await claimed(queue, 5)} == names
    assert await queue.cancel(*names, "nobody") == len(names)
    assert await queue.next_due(now_ms=at(5)) is None


async def test_an_emptied_queue_leaves_no_key(redis: RedisConnection, queue: DelayQueue) -> None:
    for number in range(5):
        await queue.schedule({f"task-{number}": number * 40}, now_ms=at(0))
    for task in await queue.claim(lease_seconds=LEASE, now_ms=at(500)):
        await queue.ack(task)
    assert await redis.keys("*{s00}:desks*") == []


async def test_nothing_is_lost_when_the_server_is_killed(own_redis: PrivateRedis) -> None:
    redis = connect(own_redis.url)
    queue = DelayQueue(redis, ONE, "desks")
    await queue.schedule({"desk": 5}, now_ms=at(0))
    await queue.schedule({"chair": 50}, now_ms=at(0))
    (task,) = await queue.claim(lease_seconds=LEASE, now_ms=at(5))
    with SyncRedis.from_url(own_redis.url) as control:
        control.execute_command("WAITAOF", 1, 0, 0)  # however long the disk takes
    own_redis.kill()
    with pytest.raises(Unavailable):
        await queue.cancel("desk")
    own_redis.start()
    assert await claimed(queue, 5 + LEASE - 1) == []
    assert await queue.ack(task)
    assert await claimed(queue, 50) == ["chair"]
    await redis.aclose()


async def test_the_first_task_of_an_empty_queue_is_announced_and_others_only_if_they_are_due_soon(
    redis: RedisConnection, queue: DelayQueue
) -> None:
    assert isinstance(redis, Redis)
    async with redis.pubsub(ignore_subscribe_messages=True) as subscription:
        await subscription.subscribe("wake:{s00}:desks")

        async def announced() -> bool:
            await redis.publish("wake:{s00}:desks", "end")
            count = 0
            while (message := await subscription.get_message(timeout=PATIENCE_SECONDS)) is None or not message["data"]:
                count += message is not None
            return count == 1

        await announced()
        for task, delay, is_told in (
            ("first", 60, True),
            ("second", 50, False),
            ("soon", 0.5, True),
            ("third", 1, False),
        ):
            await queue.schedule({task: delay}, now_ms=at(0))
            assert await announced() is is_told, task
        for task in ("first", "second", "soon", "third"):
            assert await queue.cancel(task)
        await queue.schedule({"anew": 60}, now_ms=at(0))
        assert await announced()
