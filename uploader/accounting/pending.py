"""What is pending of each open upload: records chunks, hydrates, acknowledges flushes, forgets.

Every verb is one Lua script and one round trip. Time is Redis `TIME`; tests pass `now_ms` instead.
"""

import random
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from uploader.accounting.connection import AWAY, RedisConnection
from uploader.accounting.delay import MAX_CLAIM, POLL_SECONDS, next_due
from uploader.accounting.keys import (
    FLUSH_QUEUE,
    KINDS,
    MERGE_QUEUE,
    shard_of,
    sweep_keys,
    upload_keys,
    upload_prefix,
    upload_queue_keys,
)
from uploader.accounting.scripts import Script
from uploader.crashpoints import crash_point
from uploader.errors import Unavailable

# A tombstone spares the database the question; after that the row answers.
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
    """What a script answers."""

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
    """The answer of `record_chunk` and `hydrate`: what came of it, and where the upload stands."""

    outcome: Outcome
    received: int
    chunks: int
    chunk_count: int
    settled: bool


@dataclass(frozen=True, slots=True)
class Known:
    """What Redis knows of an upload; `state` is empty if it knows nothing in this era."""

    era: str
    state: str
    received: int
    chunks: int


class Claim(NamedTuple):
    """A claimed task of an upload: what was known of it at that moment, and until when it is the claimant's."""

    upload_id: str
    generation: int
    received: int
    state: str
    lease_until_ms: int
    # By how much the earliest task that was claimed with it was overdue.
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
        """Where it is announced that something is due soon."""
        return self._keys.wake

    async def claim(self, limit: int = MAX_CLAIM, now_ms: int | None = None) -> list[Claim]:
        """Claim at most `limit` due tasks. Each is due again when the lease ends. Raises Unavailable."""
        arguments = [_time(now_ms), self._lease_ms, limit, self._keys.task_prefix]
        claims = await _CLAIM_DUE.run(self._redis, [self._keys.due, self._keys.minutes], arguments)
        return [
            Claim(upload_id.decode(), generation, received, state.decode(), lease_until_ms, late_ms)
            for upload_id, generation, received, state, lease_until_ms, late_ms in claims
        ]

    async def next_due(self, now_ms: int | None = None) -> float | None:
        """Seconds until the earliest task is due, or None if the queue is empty. Raises Unavailable."""
        return await next_due(self._redis, self._keys, now_ms)

    async def pause_seconds(self) -> float:
        """How long a worker may sleep that has nothing to do in this queue. Raises Unavailable."""
        next_due = await self.next_due()
        return POLL_SECONDS if next_due is None else min(next_due, POLL_SECONDS)

    async def measure(self, now_ms: int | None = None) -> Measured:
        """How much waits, read in pages: what moves meanwhile may be missed or met twice. Raises Unavailable."""
        tasks, pending, lag_ms, minute, position = 0, 0, 0, "", 0
        while True:
            arguments = [_time(now_ms), self._keys.task_prefix, minute, position, MAX_CLAIM]
            page = await _MEASURE_QUEUE.run(self._redis, [self._keys.due, self._keys.minutes], arguments)
            tasks, pending, lag_ms = tasks + page[0], pending + page[1], max(lag_ms, page[2])
            minute, position = page[3].decode(), page[4]
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
        arguments = [_time(now_ms), _era_token(), upload_id, chunk_number, length_bytes, *self._delays_of_chunk]
        return _result(await _RECORD_CHUNK.run(self._redis, self._keys(upload_id), arguments))

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
        """Rebuild an upload from its map; `era` was read before the map. Raises Unavailable."""
        arguments = [
            *(_time(now_ms), _era_token(), upload_id, era, generation, bitmap, size, chunk_size, chunk_count),
            *(flushed_bytes, _ms(self._delays.quiet_seconds), ""),
        ]
        return _result(await _HYDRATE.run(self._redis, self._keys(upload_id), arguments))

    async def introduce(self, upload_id: str, *, era: str, size: int, chunk_size: int, chunk_count: int) -> None:
        """Make an upload known that was opened after `era` was read, unless somebody else did. Raises Unavailable.

        Nobody need hold it: who is not known in the era of its opening has no chunk that was recorded.
        """
        arguments = ["", _era_token(), upload_id, era, 0, b"", size, chunk_size, chunk_count, 0, 0, "1"]
        await _HYDRATE.run(self._redis, self._keys(upload_id), arguments)

    async def read(self, upload_id: str) -> Known:
        """What is known of an upload, and the present era. Raises Unavailable."""
        keys = upload_keys(self.shard_of(upload_id), upload_id)
        era, state, received, chunks = await _READ_UPLOAD.run(self._redis, [keys.up, keys.era], [_era_token()])
        return Known(era.decode(), state.decode(), received, chunks)

    async def ack_flush(self, shard: int, flushed: list[Claim]) -> int:
        """Say that the figures of these claims are in the database; returns how many tasks are done. Raises Unavailable."""
        keys = upload_queue_keys(shard, FLUSH_QUEUE)
        removed = 0
        for first in range(0, len(flushed), MAX_CLAIM):
            arguments: list[Any] = [keys.task_prefix]
            for upload_id, generation, received, _, lease_until_ms, _ in flushed[first : first + MAX_CLAIM]:
                arguments += (upload_id, generation, received, lease_until_ms)
            removed += await _ACK_FLUSH.run(self._redis, [keys.due, keys.minutes], arguments)
        return removed

    async def forget(self, upload_id: str, word: str | None) -> None:
        """Drop a closed upload, leaving a tombstone that says `word`; None: nobody knows, and none is left.

        Raises Unavailable.
        """
        stays = TOMBSTONE_SECONDS if word else 0
        await _FORGET.run(self._redis, self._keys(upload_id), [upload_id, word or "", stays])

    async def lease(self, upload_id: str, now_ms: int | None = None) -> None:
        """Keep the task of an upload this worker's for another lease. Raises Unavailable."""
        arguments = [_time(now_ms), upload_id, _ms(self._delays.lease_seconds)]
        await _LEASE_UPLOAD.run(self._redis, self._keys(upload_id), arguments)

    async def ping(self) -> None:
        """Raises Unavailable if Redis is away."""
        try:
            await self._redis.ping()
        except AWAY as error:
            raise Unavailable("The accounting store is away.") from error

    async def configuration(self, *names: str) -> dict[str, str]:
        """What these settings of the server are; without those that it does not tell. Raises Unavailable."""
        try:
            found = [await self._redis.config_get(name) for name in names]
        except ResponseError:
            return {}  # managed servers keep it to themselves
        except AWAY as error:
            raise Unavailable("The accounting store is away.") from error
        pairs = [pair for settings in found for pair in settings.items()]
        return {_text(name): _text(value) for name, value in pairs}

    async def claim_sweep(self, shard: int) -> str | None:
        """The era that this process is to sweep in a shard, or keeps sweeping; None if there is nothing to do.

        Call it again within the lease while the sweep goes on. Raises Unavailable.
        """
        arguments = [_era_token(), self._claimant, _ms(self._delays.lease_seconds)]
        era: bytes = await _CLAIM_SWEEP.run(self._redis, sweep_keys(shard), arguments)
        return era.decode() or None

    async def end_sweep(self, shard: int, era: str) -> None:
        """Note that a shard was swept in an era, unless that has moved. Raises Unavailable."""
        await _END_SWEEP.run(self._redis, sweep_keys(shard), [_era_token(), self._claimant, era])

    async def not_closed(self, shard: int) -> AsyncIterator[str]:
        """The uploads of a shard that Redis does not know as closed, in whatever era. Raises Unavailable."""
        prefix = upload_prefix(shard)
        try:
            async for key in self._redis.scan_iter(match=f"{prefix}*", count=1000):
                if await self._redis.hget(key, "state") in (b"open", b"merging"):
                    yield key.decode().removeprefix(prefix)
        except AWAY as error:
            raise Unavailable("The accounting store is away.") from error

    async def reset(self) -> int:
        """Delete every key of the installation, of any number of shards; how many. Raises Unavailable."""
        deleted = 0
        try:
            for kind in KINDS:
                async for key in self._redis.scan_iter(match=f"{kind}:{{s[0-9][0-9]}}*", count=1000):
                    deleted += await self._redis.unlink(key)
                    crash_point("reset.after_key")
        except AWAY as error:
            raise Unavailable("The accounting store is away.") from error
        return deleted

    def shard_of(self, upload_id: str) -> int:
        """The shard of an upload."""
        return shard_of(upload_id, self.shards)

    def _keys(self, upload_id: str) -> list[str]:
        return upload_keys(self.shard_of(upload_id), upload_id).as_list()


def _era_token() -> str:
    """Taken as the era's token where there is none: new with every call, so that a loss of everything shows.

    Nobody is kept from guessing it, so it does without the kernel, whose randomness costs as much as the rest of a call.
    """
    return f"{random.getrandbits(64):016x}"


def _time(now_ms: int | None) -> int | str:
    return "" if now_ms is None else now_ms


def _text(reply: str | bytes | None) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _result(reply: list[Any]) -> RecordResult:
    outcome, received, chunks, chunk_count, state = reply
    return RecordResult(Outcome(outcome.decode()), received, chunks, chunk_count, settled=state == b"merging")
