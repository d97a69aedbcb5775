"""The accounting store: records chunks, hydrates uploads, acknowledges flushes, forgets uploads.

Every verb is one Lua script and one round trip. Time is Redis `TIME`; tests pass `now_ms` instead.
"""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from uploader.accounting.delay import MAX_CLAIM, POLL_SECONDS, next_due
from uploader.accounting.keys import (
    FLUSH_QUEUE,
    INSTALLATION,
    KINDS,
    MERGE_QUEUE,
    keys_of_upload,
    shard_of,
    sweep_keys,
    upload_prefix,
    upload_queue_keys,
)
from uploader.accounting.scripting import AWAY, RedisConnection, Script, time_argument
from uploader.crashpoints import crash_point
from uploader.errors import Unavailable

# While Redis keeps a tombstone, it answers for a closed upload; after that the row in the database does.
TOMBSTONE_SECONDS = 3600

_RECORD_CHUNK = Script("record_chunk")
_HYDRATE = Script("hydrate")
_ACK_FLUSH = Script("ack_flush")
_FORGET = Script("forget")
_LEASE_UPLOAD = Script("lease_upload")
_READ_UPLOAD = Script("read_upload")
_CLAIM_DUE = Script("claim_due")
_MEASURE_QUEUE = Script("measure_queue")
_CLAIM_SWEEP = Script("claim_sweep")
_END_SWEEP = Script("end_sweep")


class Outcome(StrEnum):
    """The word that a script answers with."""

    RECORDED = "recorded"
    DUPLICATE = "duplicate"
    HYDRATED = "hydrated"
    REHYDRATE = "rehydrate"
    ERA_MOVED = "era-moved"
    MERGING = "merging"
    DONE = "done"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RecordResult:
    """The answer of `record_chunk` and `hydrate`: the outcome, and the figures of the upload after it."""

    outcome: Outcome
    received: int
    chunks: int
    chunk_count: int
    settled: bool


@dataclass(frozen=True, slots=True)
class KnownUpload:
    """What Redis knows of an upload, and the present era. `state` is empty if Redis does not know the upload in this era."""

    era: str
    state: str
    received: int
    chunks: int


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
class Measured:
    """A queue of uploads as it stood a moment ago."""

    tasks: int
    pending_bytes: int
    # By how much the earliest task is overdue.
    lag_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """When tasks are due."""

    quiet_seconds: float
    max_delay_seconds: float
    max_pending_bytes: int
    lease_seconds: float


class UploadQueue:
    """A queue of uploads in one shard: to be flushed, or to be merged."""

    def __init__(self, redis: RedisConnection, shard: int, queue: str, *, lease_seconds: float) -> None:
        self._redis = redis
        self._keys = upload_queue_keys(shard, queue)
        self._lease_ms = round(lease_seconds * 1000)
        self.shard = shard

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
        """How much waits, read in pages: a task that moves meanwhile may count twice, or not at all. Raises Unavailable."""
        tasks, pending, lag_ms, minute, position = 0, 0, 0, b"", 0
        while True:
            arguments = [time_argument(now_ms), self._keys.task_prefix, minute, position, MAX_CLAIM]
            page = await _MEASURE_QUEUE.run(self._redis, [self._keys.due, self._keys.minutes], arguments)
            tasks, pending, lag_ms = tasks + page[0], pending + page[1], max(lag_ms, page[2])
            minute, position = page[3], page[4]
            if not minute:
                return Measured(tasks, pending, lag_ms / 1000)


class Pending:
    """The accounting store of all shards."""

    def __init__(self, redis: RedisConnection, *, shards: int, delays: Delays) -> None:
        self._redis = redis
        self._delays = delays
        self._delays_of_chunk = (
            *(_ms(delays.quiet_seconds), _ms(delays.max_delay_seconds)),
            *(delays.max_pending_bytes, _ms(delays.lease_seconds)),
        )
        self._claimant = secrets.token_hex(8)
        self.shards = shards
        lease = delays.lease_seconds
        self.flush_queues = [UploadQueue(redis, n, FLUSH_QUEUE, lease_seconds=lease) for n in range(shards)]
        self.merge_queues = [UploadQueue(redis, n, MERGE_QUEUE, lease_seconds=lease) for n in range(shards)]

    async def record_chunk(
        self, upload_id: str, chunk_number: int, length_bytes: int, now_ms: int | None = None
    ) -> RecordResult:
        """Count a chunk that is on disk. Raises Unavailable."""
        arguments = [time_argument(now_ms), _era_token(), upload_id, chunk_number, length_bytes, *self._delays_of_chunk]
        return _result(await _RECORD_CHUNK.run(self._redis, keys_of_upload(upload_id, self.shards), arguments))

    async def hydrate(
        self,
        upload_id: str,
        *,
        era: str,
        generation: int,
        bitmap: bytes,
        size: int,
        chunk_size: int,
        chunk_count: int,
        flushed_bytes: int,
        now_ms: int | None = None,
    ) -> RecordResult:
        """Rebuild an upload from its map. The caller is its closer, and read `era` before the map. Raises Unavailable."""
        arguments = [
            *(time_argument(now_ms), _era_token(), upload_id, era, generation, bitmap, size, chunk_size, chunk_count),
            *(flushed_bytes, _ms(self._delays.quiet_seconds), ""),
        ]
        return _result(await _HYDRATE.run(self._redis, keys_of_upload(upload_id, self.shards), arguments))

    async def introduce(self, upload_id: str, *, era: str, size: int, chunk_size: int, chunk_count: int) -> None:
        """Tell Redis of an upload without chunks that the caller opened after it read `era`. Raises Unavailable.

        The caller need not be a closer. Redis records chunks only of uploads that it knows in the present era. So if `era`
        still is the present one and Redis does not know the upload, no chunk of it was recorded that this could lose. If
        the era has moved, or Redis knows the upload, this changes nothing.
        """
        arguments = ["", _era_token(), upload_id, era, 0, b"", size, chunk_size, chunk_count, 0, 0, "1"]
        await _HYDRATE.run(self._redis, keys_of_upload(upload_id, self.shards), arguments)

    async def read(self, upload_id: str) -> KnownUpload:
        """Raises Unavailable."""
        keys = keys_of_upload(upload_id, self.shards)
        era, state, received, chunks = await _READ_UPLOAD.run(self._redis, [keys.up, keys.era], [_era_token()])
        return KnownUpload(era.decode(), state.decode(errors="replace"), received, chunks)

    async def ack_flush(self, shard: int, flushed: list[Claim]) -> int:
        """Say that the database has the figures of these claims; returns how many tasks are done. Raises Unavailable."""
        keys = upload_queue_keys(shard, FLUSH_QUEUE)

        def ack(claims: list[Claim]) -> Awaitable[int]:
            arguments: list[Any] = [keys.task_prefix]
            for upload_id, generation, received, _, lease_until_ms, _ in claims:
                arguments += (upload_id, generation, received, lease_until_ms)
            return _ACK_FLUSH.run(self._redis, [keys.due, keys.minutes], arguments)

        # On their way at once: Redis takes one after the other, and others in between.
        firsts = range(0, len(flushed), MAX_CLAIM)
        return sum(await asyncio.gather(*(ack(flushed[first : first + MAX_CLAIM]) for first in firsts)))

    async def forget(self, upload_id: str, word: str | None) -> None:
        """Drop a closed upload and leave a tombstone that says `word`. Without a word leave none: the database does not know
        the upload. Raises Unavailable."""
        stays = TOMBSTONE_SECONDS if word else 0
        await _FORGET.run(self._redis, keys_of_upload(upload_id, self.shards), [upload_id, word or "", stays])

    async def lease(self, upload_id: str, now_ms: int | None = None) -> None:
        """Keep the upload's task away from other workers for another lease. Raises Unavailable."""
        arguments = [time_argument(now_ms), upload_id, _ms(self._delays.lease_seconds)]
        await _LEASE_UPLOAD.run(self._redis, keys_of_upload(upload_id, self.shards), arguments)

    async def configuration(self, *names: str) -> dict[str, str]:
        """These settings of the Redis server, without those that it keeps to itself. Raises Unavailable."""
        try:
            found = [await self._redis.config_get(name) for name in names]
        except ResponseError:
            return {}  # managed servers refuse the command
        except AWAY as error:
            raise Unavailable("The accounting store is away.") from error
        pairs = [pair for settings in found for pair in settings.items()]
        return {_text(name): _text(value) for name, value in pairs}

    async def claim_sweep(self, shard: int) -> str | None:
        """Claim the sweep of a shard, or renew the claim; returns the era to sweep. None if the shard was swept in this era,
        or another process sweeps it.

        The sweeper calls it again within each lease while the sweep goes on. Raises Unavailable.
        """
        arguments = [_era_token(), self._claimant, _ms(self._delays.lease_seconds)]
        era: bytes = await _CLAIM_SWEEP.run(self._redis, sweep_keys(shard), arguments)
        return era.decode() or None

    async def end_sweep(self, shard: int, era: str) -> None:
        """Note that this process has swept a shard in `era`, unless the era has moved since. Raises Unavailable."""
        await _END_SWEEP.run(self._redis, sweep_keys(shard), [_era_token(), self._claimant, era])

    async def not_closed(self, shard: int) -> AsyncIterator[str]:
        """The uploads of a shard that Redis calls open or merging, of any era. Raises Unavailable."""
        prefix = upload_prefix(shard)
        try:
            async for key in self._redis.scan_iter(match=f"{prefix}*", count=1000):
                if await self._redis.hget(key, "state") in (b"open", b"merging"):
                    yield key.decode(errors="replace").removeprefix(prefix)
        except AWAY as error:
            raise Unavailable("The accounting store is away.") from error

    async def reset(self) -> int:
        """Delete every key of the installation, of any number of shards; returns how many. Whose they are goes last, so that
        a reset that dies halfway may be ended by nobody else. Raises Unavailable."""
        deleted = 0
        try:
            for kind in KINDS:
                async for key in self._redis.scan_iter(match=f"{kind}:{{s[0-9][0-9]}}*", count=1000):
                    deleted += await self._redis.unlink(key)
                    crash_point("reset.after_key")
            deleted += await self._redis.unlink(INSTALLATION)
        except AWAY as error:
            raise Unavailable("The accounting store is away.") from error
        return deleted

    def shard_of(self, upload_id: str) -> int:
        """The shard of an upload."""
        return shard_of(upload_id, self.shards)


def _era_token() -> str:
    """A random token. The script makes it the era's token if Redis has none, so that a loss of everything shows.

    Each call brings a new one. It is no secret, so it does without the kernel, whose randomness costs as much as the rest of
    a call.
    """
    return f"{random.getrandbits(64):016x}"


def _text(reply: str | bytes | None) -> str:
    return reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _result(reply: bytes) -> RecordResult:
    outcome, received, chunks, chunk_count, state = reply.split(b" ")
    return RecordResult(
        Outcome(outcome.decode()), int(received), int(chunks), int(chunk_count), settled=state == b"merging"
    )
