"""Pending bytes in Redis: records chunks, hydrates uploads, acknowledges flushes, forgets uploads.

Every verb is a Lua script and takes a single round trip. Time is Redis `TIME`; tests pass `now_ms` instead.
"""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any

import msgspec
from redis.exceptions import ResponseError

from uploader.accounting.keys import FLUSH_QUEUE, INSTALLATION, KINDS, MERGE_QUEUE, Shards
from uploader.accounting.queue import (
    MAX_CLAIM,
    STATES,
    Claim,
    Measured,
    MinuteBucket,
    UploadQueue,
    added_up,
    epoch_minute,
)
from uploader.accounting.redis import (
    AWAY,
    PipelinedCluster,
    PipelinedRedis,
    RedisConnection,
    Script,
    asking,
    away,
    time_argument,
)
from uploader.domain.digest import Challenge
from uploader.domain.upload import Tail, Upload, chunk_count, to_bitmap
from uploader.runtime.crashpoints import crash_point
from uploader.settings import Settings

# Redis keeps a tombstone for a closed upload for this long. After that, only the database knows the upload.
TOMBSTONE_SECONDS = 3600

_RECORD_CHUNK = Script("record_chunk")
_RECORD_TAIL = Script("record_tail")
_HYDRATE = Script("hydrate")
_ACK_FLUSH = Script("ack_flush")
_FORGET = Script("forget")
_LEASE_UPLOAD = Script("lease_upload")
_READ_UPLOAD = Script("read_upload")
_MEASURE_UPLOAD = Script("measure_upload")
_CLAIM_SWEEP = Script("claim_sweep")
_END_SWEEP = Script("end_sweep")


class Outcome(StrEnum):
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
    CONSUMED = "consumed"


@dataclass(frozen=True, slots=True)
class RecordResult:
    """The reply of `record_chunk`, `record_tail` and `hydrate`: the outcome, and the figures of the upload."""

    outcome: Outcome
    received: int
    chunks: int
    chunk_count: int
    settled: bool


@dataclass(frozen=True, slots=True)
class KnownUpload:
    """An upload in Redis, and the present era. `state` is empty if Redis does not know the upload in this era."""

    era: str
    state: str
    received: int
    chunks: int


@dataclass(eq=False, repr=False)
class Pending:
    redis: RedisConnection
    _: KW_ONLY
    shards: Shards
    settings: Settings

    def __post_init__(self) -> None:
        self._delays_of_chunk = (
            *(_ms(self.settings.quiet_interval_seconds), _ms(self.settings.max_delay_seconds)),
            *(self.settings.max_pending_bytes, _ms(self.settings.claim_lease_seconds)),
        )
        self._claimant = secrets.token_hex(8)
        lease, numbers = self.settings.claim_lease_seconds, range(self.shards.number)
        self.flush_queues = [UploadQueue(self.redis, self.shards, n, FLUSH_QUEUE, lease_seconds=lease) for n in numbers]
        self.merge_queues = [UploadQueue(self.redis, self.shards, n, MERGE_QUEUE, lease_seconds=lease) for n in numbers]

    async def record_chunk(
        self, upload_id: str, chunk_number: int, length_bytes: int, now_ms: int | None = None
    ) -> RecordResult:
        """Count a chunk that is on disk. Raises Unavailable."""
        arguments = [time_argument(now_ms), _era_token(), upload_id, chunk_number, length_bytes, *self._delays_of_chunk]
        return _result(await _RECORD_CHUNK.run(self.redis, self.shards.upload(upload_id), arguments))

    async def record_tail(self, upload_id: str, tail: Tail, now_ms: int | None = None) -> RecordResult:
        """Count the bytes of a tail that is on disk. Raises Unavailable."""
        arguments = [time_argument(now_ms), _era_token(), upload_id, tail.number, tail.length, *self._delays_of_chunk]
        return _result(await _RECORD_TAIL.run(self.redis, self.shards.upload(upload_id), arguments))

    async def hydrate(
        self, upload: Upload, present: bytearray, tail: Tail | None, *, era: str, now_ms: int | None = None
    ) -> RecordResult:
        """Rebuild an upload from the database row and the chunk map. The caller is a closer of the upload, and read
        `era` before row and map. Raises Unavailable."""
        arguments = [
            *(
                time_argument(now_ms),
                _era_token(),
                upload.id,
                era,
                upload.generation,
                to_bitmap(present),
                *_shape(upload),
            ),
            *(upload.flushed_bytes, _ms(self.settings.quiet_interval_seconds), ""),
            *(f"{tail.number} {tail.length}" if tail else "", "1" if upload.is_part else ""),
        ]
        return _result(await _HYDRATE.run(self.redis, self.shards.upload(upload.id), arguments))

    async def introduce(self, upload: Upload, *, era: str) -> None:
        """Add an upload, not a part, that the caller opened after reading `era`. Does nothing if the era has moved or
        Redis knows the upload. So no recorded chunk is lost, and the caller need not be a closer. Raises Unavailable."""
        arguments = ["", _era_token(), upload.id, era, 0, b"", *_shape(upload), 0, 0, "1", "", ""]
        await _HYDRATE.run(self.redis, self.shards.upload(upload.id), arguments)

    async def read(self, upload_id: str) -> KnownUpload:
        """Raises Unavailable."""
        keys = self.shards.upload(upload_id)
        era, state, received, chunks = await _READ_UPLOAD.run(self.redis, [keys.up, keys.era], [_era_token()])
        return KnownUpload(era.decode(), state.decode(errors="replace"), received, chunks)

    async def check_answers(self, upload_id: str) -> None:
        """Raises Unavailable if the server with the upload is known to be silent."""
        if isinstance(self.redis, PipelinedRedis | PipelinedCluster):
            with asking(self.redis):
                await self.redis.check_answers(self.shards.upload(upload_id).up)

    async def measure_all(self) -> dict[str, Measured]:
        """Measure each queue over all shards. Raises Unavailable."""
        queues = {FLUSH_QUEUE: self.flush_queues, MERGE_QUEUE: self.merge_queues}
        return {name: added_up([await queue.measure() for queue in shards]) for name, shards in queues.items()}

    async def measure(self, upload_id: str, now_ms: int | None = None) -> dict[str, Measured]:
        """Measure the task of one upload, by queue. Empty if Redis does not know the upload. Raises Unavailable."""
        keys = self.shards.upload(upload_id)
        state, minute, pending_bytes, lag_ms = await _MEASURE_UPLOAD.run(self.redis, [keys.up], [time_argument(now_ms)])
        found = Measured([MinuteBucket(epoch_minute(minute), 1, pending_bytes)] if minute else [], lag_ms / 1000)
        return {queue: found for queue, its_state in STATES.items() if its_state.encode() == state}

    async def ack_flush(self, shard: int, flushed: list[Claim]) -> int:
        """Record that the database has the figures of these claims. Return the number of finished tasks. Raises
        Unavailable."""
        keys = self.shards.queue(shard, FLUSH_QUEUE)

        def ack(claims: list[Claim]) -> Awaitable[int]:
            arguments: list[Any] = [keys.task_prefix]
            for upload_id, generation, received, _, lease_until_ms, _ in claims:
                arguments += (upload_id, generation, received, lease_until_ms)
            return _ACK_FLUSH.run(self.redis, [keys.due, keys.minutes], arguments)

        # Concurrent scripts: Redis can run calls of others in between.
        firsts = range(0, len(flushed), MAX_CLAIM)
        return sum(await asyncio.gather(*(ack(flushed[first : first + MAX_CLAIM]) for first in firsts)))

    async def forget(self, upload_id: str, word: str | None) -> None:
        """Drop a closed upload. Leave a tombstone with `word`, unless `word` is None. Raises Unavailable."""
        stays = TOMBSTONE_SECONDS if word else 0
        await _FORGET.run(self.redis, self.shards.upload(upload_id), [upload_id, word or "", stays])

    async def lease(self, upload_id: str, now_ms: int | None = None) -> None:
        """Keep the upload's task from other workers for another lease. Raises Unavailable."""
        arguments = [time_argument(now_ms), upload_id, _ms(self.settings.claim_lease_seconds)]
        await _LEASE_UPLOAD.run(self.redis, self.shards.upload(upload_id), arguments)

    async def configuration(self, *names: str) -> dict[str, str]:
        """Return these settings of the Redis server; empty if the server does not tell them. Raises Unavailable."""
        try:
            found = [await self.redis.config_get(name) for name in names]
        except ResponseError:
            return {}  # managed servers refuse the command
        except AWAY as error:
            raise away(self.redis, error) from error
        pairs = [pair for settings in found for pair in settings.items()]
        return {_text(name): _text(value) for name, value in pairs}

    async def claim_sweep(self, shard: int) -> str | None:
        """Claim the sweep of a shard, or renew the claim; renew within each lease during the sweep. Return the era to
        sweep; None if the shard was swept in this era, or another process sweeps it. Raises Unavailable."""
        arguments = [_era_token(), self._claimant, _ms(self.settings.claim_lease_seconds)]
        era: bytes = await _CLAIM_SWEEP.run(self.redis, self.shards.sweep(shard), arguments)
        return era.decode() or None

    async def end_sweep(self, shard: int, era: str) -> None:
        """Note that this process has swept a shard in `era`, unless the era has moved. Raises Unavailable."""
        await _END_SWEEP.run(self.redis, self.shards.sweep(shard), [_era_token(), self._claimant, era])

    async def not_closed(self, shard: int) -> AsyncIterator[str]:
        """Yield the uploads of a shard that are open or merging in Redis, of any era. Raises Unavailable."""
        prefix = self.shards.queue(shard, FLUSH_QUEUE).task_prefix
        with asking(self.redis):
            async for key in self.redis.scan_iter(match=f"{prefix}*", count=1000):
                if await self.redis.hget(key, "state") in (b"open", b"merging"):
                    yield key.decode(errors="replace").removeprefix(prefix)

    async def reset(self) -> int:
        """Delete every key, for any number of shards. The mark of the installation goes last: only the same
        installation can continue a reset that was cut off. Raises Unavailable."""
        deleted = 0
        with asking(self.redis):
            for kind in KINDS:
                async for key in self.redis.scan_iter(match=f"{kind}:{{s[0-9][0-9]*}}*", count=1000):
                    deleted += await self.redis.unlink(key)
                    crash_point("reset.after_key")
            deleted += await self.redis.unlink(INSTALLATION)
        return deleted


def _shape(upload: Upload) -> tuple[int, int, int]:
    return upload.extent, upload.chunk_size, chunk_count(upload.extent, upload.chunk_size)


def _era_token() -> str:
    """Return a random token. If Redis has no era, a script stores the token: so a loss of all keys shows. The
    token is no secret: the kernel's randomness would cost as much as the rest of a call."""
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


# Limits for one script (tasks) and one step of a scan (keys): low, because other callers wait meanwhile.
_TASKS_A_STEP = 300
_KEYS_A_STEP = 1000

_AUDIT_UPLOAD = Script("audit_upload")
_AUDIT_BUCKET = Script("audit_bucket")
_TIDY_BUCKET = Script("tidy_bucket")


@dataclass(frozen=True, slots=True)
class AuditedUpload:
    """An upload as Redis has it. `state` is empty without an upload, `queue` is empty without a waiting task. -1 stands
    for an unreadable figure; `received` is also -1 if the tail is unreadable."""

    state: str
    received: int
    flushed: int
    bitmap: bytes
    queue: str
    tail: Tail | None = None


@dataclass(frozen=True, slots=True)
class TaskBucket:
    """A minute bucket of a queue of uploads. `minute` is the raw text, which may not be a number."""

    shard: int
    queue: str
    minute: bytes

    def __str__(self) -> str:
        return f"{self.queue}/{self.shard}/{self.minute.decode(errors='replace')}"


@dataclass(frozen=True, slots=True)
class BucketStep:
    """Some members of a bucket, as tasks and strays; `exists`: the bucket has members; `indexed`: the index names the
    bucket."""

    exists: bool
    indexed: bool
    tasks: list[str]
    strays: list[str]


@dataclass(eq=False, repr=False)
class Audit:
    """Reads the uploads and buckets of all shards for the reconciler, and tidies buckets. Every method raises
    Unavailable."""

    redis: RedisConnection
    _: KW_ONLY
    shards: Shards

    async def upload(self, upload_id: str) -> AuditedUpload:
        keys = self.shards.upload(upload_id)
        reply = await _AUDIT_UPLOAD.run(self.redis, keys, [upload_id])
        state, received, flushed, bitmap, queue, number, length = reply
        tail = Tail(number, length) if length else None
        return AuditedUpload(state.decode(errors="replace"), received, flushed, bitmap, queue.decode(), tail)

    async def buckets(self) -> list[TaskBucket]:
        """Return all existing buckets and all buckets in an index."""
        found = set()
        with asking(self.redis):
            for shard in range(self.shards.number):
                for queue in STATES:
                    found |= {TaskBucket(shard, queue, minute) async for minute in self._minutes(shard, queue)}
        return sorted(found, key=lambda bucket: (bucket.shard, bucket.queue, bucket.minute))

    async def _minutes(self, shard: int, queue: str) -> AsyncIterator[bytes]:
        keys = self.shards.queue(shard, queue)
        async for minute, _ in self.redis.zscan_iter(keys.minutes, count=_TASKS_A_STEP):
            yield minute
        async for key in self.redis.scan_iter(match=f"{keys.due}:*", count=_KEYS_A_STEP):
            yield key.removeprefix(f"{keys.due}:".encode())

    async def bucket(self, bucket: TaskBucket) -> AsyncIterator[BucketStep]:
        """Yield a bucket in steps. A task that moves meanwhile may come twice, or not at all."""
        keys, cursor = self.shards.queue(bucket.shard, bucket.queue), b""
        while cursor != b"0":
            arguments = [*self._arguments(bucket), cursor or 0, _TASKS_A_STEP]
            cursor, exists, indexed, tasks, strays = await _AUDIT_BUCKET.run(
                self.redis, [keys.due, keys.minutes], arguments
            )
            yield BucketStep(bool(exists), bool(indexed), _ids(tasks), _ids(strays))

    async def tidy(self, bucket: TaskBucket, strays: list[str]) -> None:
        """Take strays out of a bucket, except strays that became tasks. Let the index name the bucket if it exists."""
        keys = self.shards.queue(bucket.shard, bucket.queue)
        await _TIDY_BUCKET.run(self.redis, [keys.due, keys.minutes], [*self._arguments(bucket), *strays])

    def _arguments(self, bucket: TaskBucket) -> list[str | bytes]:
        prefix = self.shards.queue(bucket.shard, bucket.queue).task_prefix
        return [prefix, STATES[bucket.queue], bucket.minute]


def _ids(members: list[bytes]) -> list[str]:
    return [member.decode(errors="replace") for member in members]


_ISSUE_CHALLENGE = Script("issue_challenge")


# The window of a user's budgets: probes for content, and challenges without a good answer.
_BUDGET_WINDOW_MS = 3_600_000


@dataclass(eq=False, repr=False)
class Challenges:
    """Stores challenges for all workers: for a limited time, each for one answer, within budgets per user. If Redis
    loses a challenge, the client gets a new challenge or sends the bytes."""

    settings: Settings
    redis: RedisConnection
    _: KW_ONLY
    shards: Shards

    async def issue(
        self, challenge: Challenge, *, offered: bool, ttl_seconds: float, now_ms: int | None = None
    ) -> bool:
        """Count a probe. If `offered` and within the budgets, keep the challenge and return True; it counts as failed
        until proven. Raises Unavailable."""
        arguments = [
            *(time_argument(now_ms), challenge.id, msgspec.json.encode(challenge), int(offered), _ms(ttl_seconds)),
            *(_BUDGET_WINDOW_MS, self.settings.proof_max_probes, self.settings.proof_max_failures),
        ]
        keys = self.shards.challenge(challenge.user_id, challenge.id)
        return bool(await _ISSUE_CHALLENGE.run(self.redis, keys, arguments))

    async def take(self, user_id: str, challenge_id: str) -> Challenge | None:
        """Remove and return a challenge of this user; no other call can take it again. Raises Unavailable."""
        with asking(self.redis):
            kept = await self.redis.getdel(self.shards.challenge(user_id, challenge_id).challenge)
        return None if kept is None else msgspec.json.decode(kept, type=Challenge)

    async def give_back(self, challenge: Challenge, ttl_seconds: float) -> None:
        """Keep a taken challenge again, because the attempt led to nothing. Raises Unavailable."""
        key = self.shards.challenge(challenge.user_id, challenge.id).challenge
        with asking(self.redis):
            await self.redis.set(key, msgspec.json.encode(challenge), px=max(1, _ms(ttl_seconds)))

    async def count_as_proven(self, challenge: Challenge) -> None:
        """Return the challenge's share of the failure budget to the user. Raises Unavailable."""
        with asking(self.redis):
            await self.redis.zrem(self.shards.challenge(challenge.user_id, challenge.id).unproven, challenge.id)
