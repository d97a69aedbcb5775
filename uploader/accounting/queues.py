"""The queues of uploads: who works them claims from them, and who looks sees their minute buckets."""

import asyncio
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from uploader.accounting.delay import MAX_CLAIM, POLL_SECONDS, next_due
from uploader.accounting.keys import FLUSH_QUEUE, MERGE_QUEUE, QueueKeys, Shards
from uploader.accounting.scripting import RedisConnection, Script, time_argument

# The state that an upload has while its task waits in each queue.
STATES = {FLUSH_QUEUE: "open", MERGE_QUEUE: "merging"}

_CLAIM_DUE = Script("claim_due")
_MEASURE_QUEUE = Script("measure_queue")


class Claim(NamedTuple):
    """A claimed task of an upload: the upload's figures at that moment, and when the lease of the claimant ends."""

    upload_id: str
    generation: int
    received: int
    state: str
    lease_until_ms: int
    # By how much the earliest of the tasks that were claimed with it was overdue.
    late_ms: int = 0


@dataclass(frozen=True, slots=True)
class MinuteBucket:
    """What waits in a minute of a queue: the epoch minute, None if what stands there is none."""

    minute: int | None
    tasks: int
    pending_bytes: int


@dataclass(frozen=True, slots=True)
class Measured:
    """A queue of uploads as it stood a moment ago."""

    # The earliest minute first.
    buckets: list[MinuteBucket]
    # By how much the earliest task is overdue.
    lag_seconds: float

    @property
    def tasks(self) -> int:
        return sum(bucket.tasks for bucket in self.buckets)

    @property
    def pending_bytes(self) -> int:
        return sum(bucket.pending_bytes for bucket in self.buckets)


def added_up(queues: list[Measured]) -> Measured:
    """Several as one: those of shards, or pages of one."""
    minutes: dict[int | None, MinuteBucket] = {}
    for bucket in chain.from_iterable(queue.buckets for queue in queues):
        minutes[bucket.minute] = _added(minutes.get(bucket.minute), bucket)
    buckets = sorted(minutes.values(), key=lambda bucket: -1 if bucket.minute is None else bucket.minute)
    return Measured(buckets, max((queue.lag_seconds for queue in queues), default=0.0))


def _added(one: MinuteBucket | None, other: MinuteBucket) -> MinuteBucket:
    if one is None:
        return other
    return MinuteBucket(one.minute, one.tasks + other.tasks, one.pending_bytes + other.pending_bytes)


class UploadQueue:
    """A queue of uploads in one shard: to be flushed, or to be merged."""

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
        """The channel on which scripts announce a task of this queue that is due soon."""
        return self._keys.wake

    async def claim(self, limit: int = MAX_CLAIM, now_ms: int | None = None) -> list[Claim]:
        """Claim at most `limit` due tasks, none only if none is due. Each is due again when the lease ends.

        Raises Unavailable.
        """
        while True:
            looked, claims = await self._look(limit, now_ms)
            if claims or looked < limit:
                return claims

    async def claim_many(self, scripts: int, now_ms: int | None = None) -> tuple[list[Claim], bool]:
        """Claim what is due by at most so many scripts, and tell whether more may be due. Where one leaves some, all
        others are on their way at once. Raises Unavailable."""
        looked, claims = await self._look(MAX_CLAIM, now_ms)
        if looked < MAX_CLAIM:
            return claims, False
        others = await asyncio.gather(*(self._look(MAX_CLAIM, now_ms) for _ in range(scripts - 1)))
        claims += chain.from_iterable(more for _, more in others)
        return claims, all(looked == MAX_CLAIM for looked, _ in others)

    async def _look(self, limit: int, now_ms: int | None) -> tuple[int, list[Claim]]:
        """How many due places were looked at, and what was claimed; a task that was pushed back is not."""
        arguments = [time_argument(now_ms), self._lease_ms, limit, self._keys.task_prefix]
        reply = await _CLAIM_DUE.run(self._redis, [self._keys.due, self._keys.minutes], arguments)
        looked, late_ms, lease_until_ms = reply[:3]
        tasks = zip(reply[3::4], reply[4::4], reply[5::4], reply[6::4], strict=True)
        return looked, [
            Claim(_text(task), generation, received, _text(state), lease_until_ms, late_ms)
            for task, generation, received, state in tasks
        ]

    async def next_due(self, now_ms: int | None = None) -> float | None:
        """Seconds until the earliest task is due, or None if the queue is empty. Raises Unavailable."""
        return await next_due(self._redis, self._keys, now_ms)

    async def pause_seconds(self) -> float:
        """How long a worker may sleep that has nothing to do in this queue. Raises Unavailable."""
        next_due = await self.next_due()
        return POLL_SECONDS if next_due is None else min(next_due, POLL_SECONDS)

    async def measure(self, now_ms: int | None = None) -> Measured:
        """What waits, read in pages: a task that moves meanwhile may count twice, or not at all. Raises Unavailable."""
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
    """The minute that stands in the index; None if it is none."""
    return int(text) if text.isdigit() and len(text) <= 8 else None


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
