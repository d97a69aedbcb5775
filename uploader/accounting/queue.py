"""The delay queue: each task becomes due at its own time, can be pushed back or cancelled, and is claimed with a lease.

The logic is in the Lua prelude `scripts/_delay.lua`, which the scripts about uploads share; the verbs here are thin.
Knows nothing of the meaning of a task. Time is Redis `TIME`; tests pass `now_ms` instead.
"""

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeGuard

from redis.asyncio import Redis

from uploader.accounting.keys import FLUSH_QUEUE, MERGE_QUEUE, QueueKeys, Shards
from uploader.accounting.redis import AWAY, RedisConnection, Script, time_argument
from uploader.accounting.refusals import code_of, named_right, refusals_of
from uploader.runtime.bell import Bell
from uploader.runtime.tasks import ended

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_RETRY_REFUSED_SECONDS = 15.0  # an administrator has to grant the right first
_READ_SECONDS = 4.0  # shorter than the time-out of the connection, which closes silent connections


@asynccontextmanager
async def wakeups(redis: RedisConnection, bells: Mapping[str, Bell]) -> AsyncIterator[None]:
    """Wake sleeping workers: ring the bell of a channel when a script announces an earlier task there, for any process.
    Pub/sub may lose a message; then a worker is late by its longest sleep."""
    listening = asyncio.create_task(_listen(redis, bells), name="waker") if bells and _has_channels(redis) else None
    try:
        yield
    finally:
        if listening is not None:
            await ended(listening)


def _has_channels(redis: RedisConnection) -> TypeGuard[Redis]:
    """Return whether the client hears announcements. redis-py has no pub/sub for a Cluster; there workers sleep
    briefly."""
    return isinstance(redis, Redis)


def _announces(redis: RedisConnection) -> bool:
    return _has_channels(redis) and not refusals_of(redis).mute


async def _listen(redis: Redis, bells: Mapping[str, Bell]) -> None:
    lost, refusals = False, refusals_of(redis)
    while True:
        pause_seconds = _RETRY_SECONDS
        try:
            async with redis.pubsub(ignore_subscribe_messages=True) as subscription:
                await subscription.subscribe(*bells)
                await subscription.get_message(timeout=_READ_SECONDS)  # the confirmation, or a refusal
                lost, refusals.mute = False, refusals.mute - {"+subscribe", "&wake:*"}
                for bell in bells.values():
                    bell.ring()  # a script may have announced a task before the subscription
                while True:
                    message = await subscription.get_message(timeout=_READ_SECONDS)
                    if message is not None:
                        bells[message["channel"].decode()].ring()
        except AWAY as error:
            if not lost and not refusals.lasts:
                logger.warning("not woken by Redis for now", extra={"reason": str(error)})
            lost = True
            if code_of(error) == "NOPERM":
                refusals.mute = refusals.mute | {named_right(error) or "&wake:*"}
                pause_seconds = _RETRY_REFUSED_SECONDS
        await asyncio.sleep(pause_seconds)


# Tasks that one claim looks at: they take about 1 ms, so other callers of Redis do not wait long.
MAX_CLAIM = 100
# Tasks that were pushed back, to look at for the earliest due time.
_LOOKED_AT = 50
# The longest sleeps of a worker, while tasks wait and while none wait. `_delay.lua` announces a task that is due
# sooner. If an announcement to an idle server is lost, the first bytes are still due only after the quiet interval, by
# default no sooner than the next look.
POLL_SECONDS = 1.0
IDLE_SECONDS = 5.0

_SCHEDULE = Script("delay_schedule")
_CANCEL = Script("delay_cancel")
_CLAIM = Script("delay_claim")
_NEXT_DUE = Script("next_due")


@dataclass(frozen=True, slots=True)
class Task:
    """A claimed task. The token identifies the claim."""

    id: str
    token: str


class DelayQueue:
    """A named queue over all shards. The id of a task determines its shard. Every verb runs scripts in the shards of
    its tasks, and raises Unavailable if Redis is away."""

    def __init__(self, redis: RedisConnection, shards: Shards, name: str) -> None:
        self._redis = redis
        self._shards = shards
        self._name = name
        self._first = 0

    @property
    def wake_channels(self) -> list[str]:
        return [keys.wake for keys in self._all]

    @property
    def _all(self) -> list[QueueKeys]:
        return [self._shards.tasks(shard, self._name) for shard in range(self._shards.number)]

    async def schedule(
        self, delays_seconds: Mapping[str, float], *, sooner: bool = False, now_ms: int | None = None
    ) -> int:
        """Schedule each task after its own delay, and replace earlier times. With `sooner`, keep a time that is as
        early. Return the number of scheduled tasks."""
        of_shards: dict[int, list[tuple[str, float]]] = defaultdict(list)
        for task_id, delay in delays_seconds.items():
            of_shards[self._shards.of(task_id)].append((task_id, delay))
        scheduled, mode = 0, "sooner" if sooner else "always"
        for tasks in of_shards.values():
            for first in range(0, len(tasks), MAX_CLAIM):
                scheduled += await self._schedule(tasks[first : first + MAX_CLAIM], mode, now_ms)
        return scheduled

    async def push_back(self, task_id: str, delay_seconds: float, *, now_ms: int | None = None) -> bool:
        """Schedule a waiting task anew, later or sooner, counted from now. Return False if the task does not wait."""
        return bool(await self._schedule([(task_id, delay_seconds)], "present", now_ms))

    async def extend(self, task: Task, lease_seconds: float, *, now_ms: int | None = None) -> bool:
        """Let the lease of a claim end this many seconds from now. Return False if the claim has lost the task."""
        return bool(await self._schedule([(task.id, lease_seconds)], "present", now_ms, task.token))

    async def _schedule(
        self, delays_seconds: Sequence[tuple[str, float]], mode: str, now_ms: int | None, token: str = ""
    ) -> int:
        keys = self._keys_of(delays_seconds[0][0])
        each = [(task_id, round(delay * 1000)) for task_id, delay in delays_seconds]
        tasks = [f"{keys.task_prefix}{task_id}" for task_id, _ in each]
        arguments = [time_argument(now_ms), mode, token, *chain.from_iterable(each)]
        return int(await _SCHEDULE.run(self._redis, [keys.due, keys.minutes, *tasks], arguments))

    async def cancel(self, *task_ids: str) -> int:
        """Remove tasks, claimed or not. Return the number of removed tasks."""
        return sum([await self.ack(Task(task_id, "")) for task_id in task_ids])

    async def ack(self, task: Task) -> bool:
        """Mark a claimed task as done. Return False and do nothing if the claim has lost the task: the lease ended and
        another worker claimed the task, or the task was scheduled again."""
        keys = self._keys_of(task.id)
        task_keys = [keys.due, keys.minutes, f"{keys.task_prefix}{task.id}"]
        return bool(await _CANCEL.run(self._redis, task_keys, [task.id, task.token]))

    async def claim(
        self, limit: int = MAX_CLAIM, *, lease_seconds: float, token: str | None = None, now_ms: int | None = None
    ) -> list[Task]:
        """Claim at most `limit` due tasks. The result is empty only if no task is due. A task is due again when the
        lease ends, unless it was acknowledged."""
        token, claimed = token or secrets.token_hex(16), list[Task]()
        self._first = (self._first + 1) % self._shards.number  # start at another shard each time, to be fair
        for keys in self._all[self._first :] + self._all[: self._first]:
            looked = left = limit - len(claimed)
            while left and looked >= left:
                arguments = [time_argument(now_ms), round(lease_seconds * 1000), left, keys.task_prefix, token]
                looked, ids = await _CLAIM.run(self._redis, [keys.due, keys.minutes], arguments)
                if ids:
                    claimed += [Task(_text(task_id), token) for task_id in ids]
                    break
        return claimed

    async def next_due(self, *, now_ms: int | None = None) -> float | None:
        due = [await next_due(self._redis, keys, now_ms) for keys in self._all]
        return min((seconds for seconds in due if seconds is not None), default=None)

    async def pause_seconds(self) -> float:
        """Return how long to sleep if no task is due."""
        return _pause_seconds(self._redis, await self.next_due())

    def _keys_of(self, task_id: str) -> QueueKeys:
        return self._shards.tasks(self._shards.of(task_id), self._name)


async def next_due(redis: RedisConnection, keys: QueueKeys, now_ms: int | None = None) -> float | None:
    """Return the seconds until the earliest task is due; fewer if many tasks were pushed back. Raises Unavailable."""
    arguments = [time_argument(now_ms), keys.task_prefix, _LOOKED_AT]
    delay_ms = await _NEXT_DUE.run(redis, [keys.due, keys.minutes], arguments)
    return None if delay_ms < 0 else delay_ms / 1000


def _pause_seconds(redis: RedisConnection, due_seconds: float | None) -> float:
    if due_seconds is not None:
        return min(due_seconds, POLL_SECONDS)
    return IDLE_SECONDS if _announces(redis) else POLL_SECONDS


# The state of an upload whose task waits in each queue.
STATES = {FLUSH_QUEUE: "open", MERGE_QUEUE: "merging"}

_CLAIM_DUE = Script("claim_due")
_MEASURE_QUEUE = Script("measure_queue")


class Claim(NamedTuple):
    """A claimed task of an upload: the upload's figures at the claim, and the end of the lease."""

    upload_id: str
    generation: int
    received: int
    state: str
    lease_until_ms: int
    # How overdue the earliest task of the same claim was.
    late_ms: int = 0


@dataclass(frozen=True, slots=True)
class MinuteBucket:
    """A minute of a queue and its tasks. `minute` is None if the index entry is not a number."""

    minute: int | None
    tasks: int
    pending_bytes: int


@dataclass(frozen=True, slots=True)
class Measured:
    # The earliest minute first.
    buckets: list[MinuteBucket]
    # How overdue the earliest task is.
    lag_seconds: float

    @property
    def tasks(self) -> int:
        return sum(bucket.tasks for bucket in self.buckets)

    @property
    def pending_bytes(self) -> int:
        return sum(bucket.pending_bytes for bucket in self.buckets)


def added_up(queues: list[Measured]) -> Measured:
    """Add up the measures of several shards, or of several pages of one shard."""
    minutes: dict[int | None, MinuteBucket] = {}
    for other in chain.from_iterable(queue.buckets for queue in queues):
        one = minutes.get(other.minute, MinuteBucket(other.minute, 0, 0))
        both = MinuteBucket(one.minute, one.tasks + other.tasks, one.pending_bytes + other.pending_bytes)
        minutes[other.minute] = both
    buckets = sorted(minutes.values(), key=lambda bucket: -1 if bucket.minute is None else bucket.minute)
    return Measured(buckets, max((queue.lag_seconds for queue in queues), default=0.0))


class UploadQueue:
    def __init__(self, redis: RedisConnection, shards: Shards, shard: int, queue: str, *, lease_seconds: float) -> None:
        self._redis = redis
        self._shards = shards
        self._queue = queue
        self._lease_ms = round(lease_seconds * 1000)
        self.shard = shard

    @property
    def _keys(self) -> QueueKeys:
        return self._shards.queue(self.shard, self._queue)

    @property
    def wake_channel(self) -> str:
        return self._keys.wake

    async def claim(self, limit: int = MAX_CLAIM, now_ms: int | None = None) -> list[Claim]:
        """Claim at most `limit` due tasks until the lease ends. The result is empty only if no task is due. Raises
        Unavailable."""
        while True:
            looked, claims = await self._look(limit, now_ms)
            if claims or looked < limit:
                return claims

    async def claim_many(self, scripts: int, now_ms: int | None = None) -> tuple[list[Claim], bool]:
        """Claim due tasks by at most `scripts` scripts; return whether more may be due. If the first script finds a
        full batch, the other scripts run concurrently. Raises Unavailable."""
        looked, claims = await self._look(MAX_CLAIM, now_ms)
        if looked < MAX_CLAIM:
            return claims, False
        others = await asyncio.gather(*(self._look(MAX_CLAIM, now_ms) for _ in range(scripts - 1)))
        claims += chain.from_iterable(more for _, more in others)
        return claims, all(looked == MAX_CLAIM for looked, _ in others)

    async def _look(self, limit: int, now_ms: int | None) -> tuple[int, list[Claim]]:
        """Return the number of due members that were looked at, and the claims. A task that was pushed back is not
        claimed."""
        arguments = [time_argument(now_ms), self._lease_ms, limit, self._keys.task_prefix]
        reply = await _CLAIM_DUE.run(self._redis, [self._keys.due, self._keys.minutes], arguments)
        looked, late_ms, lease_until_ms = reply[:3]
        tasks = zip(reply[3::4], reply[4::4], reply[5::4], reply[6::4], strict=True)
        return looked, [
            Claim(_text(task), generation, received, _text(state), lease_until_ms, late_ms)
            for task, generation, received, state in tasks
        ]

    async def next_due(self, now_ms: int | None = None) -> float | None:
        return await next_due(self._redis, self._keys, now_ms)

    async def pause_seconds(self) -> float:
        """Return how long a worker may sleep if no task of this queue is due. Raises Unavailable."""
        return _pause_seconds(self._redis, await self.next_due())

    async def measure(self, now_ms: int | None = None) -> Measured:
        """Count the waiting tasks page by page. A task that moves meanwhile may count twice, or not at all. Raises
        Unavailable."""
        found: list[Measured] = []
        minute, position = b"", 0
        while True:
            arguments = [time_argument(now_ms), self._keys.task_prefix, minute, position, MAX_CLAIM]
            page = await _MEASURE_QUEUE.run(self._redis, [self._keys.due, self._keys.minutes], arguments)
            lag_ms, minute, position = page[:3]
            rows = zip(page[3::3], page[4::3], page[5::3], strict=True)
            buckets = [MinuteBucket(epoch_minute(text), tasks, pending) for text, tasks, pending in rows]
            found.append(Measured(buckets, lag_ms / 1000))
            if not minute:
                return added_up(found)


def epoch_minute(text: bytes) -> int | None:
    """Return the minute of an index entry; None if it is not a number."""
    return int(text) if text.isdigit() and len(text) <= 8 else None


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
