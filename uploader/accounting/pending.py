"""What is pending of each open upload: records chunks, hydrates, acknowledges flushes, forgets.

Every verb is one Lua script and one round trip. Time is Redis `TIME`; tests pass `now_ms` instead.
"""

import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from uploader.accounting.delay import Claim, DelayQueue
from uploader.accounting.keys import FLUSH_QUEUE, MERGE_QUEUE, queue_keys, shard_of, upload_keys
from uploader.accounting.scripts import Script
from uploader.errors import Unavailable

# A tombstone spares the database the question; after that the row answers.
TOMBSTONE_SECONDS = 3600

_RECORD_CHUNK = Script("record_chunk")
_HYDRATE = Script("hydrate")
_ACK_FLUSH = Script("ack_flush")
_FORGET = Script("forget")
_LEASE_UPLOAD = Script("lease_upload")
_READ_UPLOAD = Script("read_upload")


class Word(StrEnum):
    """What a script says."""

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
class Figures:
    """The answer of `record_chunk` and `hydrate`: a word, and where the upload stands."""

    word: Word
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
    merged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """When tasks are due."""

    quiet_seconds: float
    max_delay_seconds: float
    max_pending_bytes: int
    lease_seconds: float


class Pending:
    """The accounting store of all shards."""

    def __init__(self, redis: "Redis", *, shards: int, delays: Delays) -> None:
        self._redis = redis
        self._shards = shards
        self._delays = delays
        self.flush_queues = [
            DelayQueue(redis, n, FLUSH_QUEUE, lease_seconds=delays.lease_seconds) for n in range(shards)
        ]
        self.merge_queues = [
            DelayQueue(redis, n, MERGE_QUEUE, lease_seconds=delays.lease_seconds) for n in range(shards)
        ]

    async def record_chunk(
        self, upload_id: str, chunk_number: int, length_bytes: int, now_ms: int | None = None
    ) -> Figures:
        """Count a chunk that is on disk. Raises Unavailable."""
        delays = self._delays
        arguments = [
            *(_time(now_ms), _era_token(), upload_id, chunk_number, length_bytes),
            *(_ms(delays.quiet_seconds), _ms(delays.max_delay_seconds)),
            *(delays.max_pending_bytes, _ms(delays.lease_seconds)),
        ]
        return _figures(await _RECORD_CHUNK.run(self._redis, self._keys(upload_id), arguments))

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
    ) -> Figures:
        """Rebuild an upload from its map; `era` was read before the map. Raises Unavailable."""
        arguments = [
            *(_time(now_ms), _era_token(), upload_id, era, generation, bitmap, size, chunk_size, chunk_count),
            *(flushed_bytes, _ms(self._delays.quiet_seconds)),
        ]
        return _figures(await _HYDRATE.run(self._redis, self._keys(upload_id), arguments))

    async def read(self, upload_id: str) -> Known:
        """What is known of an upload, and the present era. Raises Unavailable."""
        keys = upload_keys(self._shard(upload_id), upload_id)
        era, state, received, chunks, merged = await _READ_UPLOAD.run(self._redis, [keys.up, keys.era], [_era_token()])
        return Known(era.decode(), state.decode(), received, chunks, merged)

    async def ack_flush(self, shard: int, flushed: list[Claim]) -> int:
        """Say that the figures of these claims are in the database; returns how many tasks are done. Raises Unavailable."""
        keys = queue_keys(shard, FLUSH_QUEUE)
        arguments: list[Any] = [keys.task_prefix]
        for claim in flushed:
            arguments += [claim.upload_id, claim.generation, claim.received]
        removed: int = await _ACK_FLUSH.run(self._redis, [keys.due, keys.minutes], arguments)
        return removed

    async def forget(self, upload_id: str, word: str) -> None:
        """Drop a closed upload, leaving a tombstone that says `word`. Raises Unavailable."""
        await _FORGET.run(self._redis, self._keys(upload_id), [upload_id, word, TOMBSTONE_SECONDS])

    async def lease(self, upload_id: str, merged_bytes: int | None = None, now_ms: int | None = None) -> None:
        """Keep the task of an upload this worker's for another lease. Raises Unavailable."""
        merged = "" if merged_bytes is None else merged_bytes
        arguments = [_time(now_ms), upload_id, _ms(self._delays.lease_seconds), merged]
        await _LEASE_UPLOAD.run(self._redis, self._keys(upload_id), arguments)

    async def ping(self) -> None:
        """Raises Unavailable if Redis is away."""
        try:
            await self._redis.ping()
        except (RedisError, OSError, TimeoutError) as error:
            raise Unavailable("The accounting store is away.") from error

    def _shard(self, upload_id: str) -> int:
        return shard_of(upload_id, self._shards)

    def _keys(self, upload_id: str) -> list[str]:
        return upload_keys(self._shard(upload_id), upload_id).as_list()


def _era_token() -> str:
    """Taken as the era's token where there is none: new with every call, so that a loss of everything shows."""
    return secrets.token_hex(8)


def _time(now_ms: int | None) -> int | str:
    return "" if now_ms is None else now_ms


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _figures(reply: list[Any]) -> Figures:
    word, received, chunks, chunk_count, state = reply
    return Figures(Word(word.decode()), received, chunks, chunk_count, settled=state == b"merging")
