"""The reconciler's view of Redis: it reads uploads and minute buckets, each at one moment, and tidies a bucket."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from uploader.accounting.keys import Shards
from uploader.accounting.queues import STATES
from uploader.accounting.scripting import AWAY, RedisConnection, Script, away
from uploader.domain.chunks import Tail

# How much one script, or one step of a scan, looks at: so little that it holds up no other caller of Redis.
_TASKS_A_STEP = 300
_KEYS_A_STEP = 1000

_AUDIT_UPLOAD = Script("audit_upload")
_AUDIT_BUCKET = Script("audit_bucket")
_TIDY_BUCKET = Script("tidy_bucket")


@dataclass(frozen=True, slots=True)
class AuditedUpload:
    """What Redis holds of an upload. `state` is empty if it holds nothing, `queue` if the upload's task waits nowhere. A
    figure that is no number is -1; so is `received` if the tail is none."""

    state: str
    received: int
    flushed: int
    bitmap: bytes
    queue: str
    tail: Tail | None = None


@dataclass(frozen=True, slots=True)
class TaskBucket:
    """One minute bucket of a queue of uploads. Its minute is what stands there, which may be no number."""

    shard: int
    queue: str
    minute: bytes

    def __str__(self) -> str:
        return f"{self.queue}/{self.shard}/{self.minute.decode(errors='replace')}"


@dataclass(frozen=True, slots=True)
class BucketStep:
    """Some members of a bucket, as ids of tasks and of strays; whether the bucket exists, and whether the index names it."""

    exists: bool
    indexed: bool
    tasks: list[str]
    strays: list[str]


class Audit:
    """Reads all shards. Every method raises Unavailable if Redis is away."""

    def __init__(self, redis: RedisConnection, *, shards: Shards) -> None:
        self._redis = redis
        self._shards = shards

    async def upload(self, upload_id: str) -> AuditedUpload:
        keys = self._shards.upload(upload_id)
        reply = await _AUDIT_UPLOAD.run(self._redis, keys, [upload_id])
        state, received, flushed, bitmap, queue, number, length = reply
        tail = Tail(number, length) if length else None
        return AuditedUpload(state.decode(errors="replace"), received, flushed, bitmap, queue.decode(), tail)

    async def buckets(self) -> list[TaskBucket]:
        """Every bucket that exists, and every bucket that an index names."""
        found = set()
        try:
            for shard in range(self._shards.number):
                for queue in STATES:
                    found |= {TaskBucket(shard, queue, minute) async for minute in self._minutes(shard, queue)}
        except AWAY as error:
            raise away(self._redis, error) from error
        return sorted(found, key=lambda bucket: (bucket.shard, bucket.queue, bucket.minute))

    async def _minutes(self, shard: int, queue: str) -> AsyncIterator[bytes]:
        keys = self._shards.queue(shard, queue)
        async for minute, _ in self._redis.zscan_iter(keys.minutes, count=_TASKS_A_STEP):
            yield minute
        async for key in self._redis.scan_iter(match=f"{keys.due}:*", count=_KEYS_A_STEP):
            yield key.removeprefix(f"{keys.due}:".encode())

    async def bucket(self, bucket: TaskBucket) -> AsyncIterator[BucketStep]:
        """A bucket in steps. A task that moves meanwhile may come twice, or not at all."""
        keys, cursor = self._shards.queue(bucket.shard, bucket.queue), b""
        while cursor != b"0":
            arguments = [*self._arguments(bucket), cursor or 0, _TASKS_A_STEP]
            cursor, exists, indexed, tasks, strays = await _AUDIT_BUCKET.run(
                self._redis, [keys.due, keys.minutes], arguments
            )
            yield BucketStep(bool(exists), bool(indexed), _ids(tasks), _ids(strays))

    async def tidy(self, bucket: TaskBucket, strays: list[str]) -> None:
        """Take strays out of a bucket, but those that have become tasks since, and let the index name it if it exists."""
        keys = self._shards.queue(bucket.shard, bucket.queue)
        await _TIDY_BUCKET.run(self._redis, [keys.due, keys.minutes], [*self._arguments(bucket), *strays])

    def _arguments(self, bucket: TaskBucket) -> list[str | bytes]:
        prefix = self._shards.queue(bucket.shard, bucket.queue).task_prefix
        return [prefix, STATES[bucket.queue], bucket.minute]


def _ids(members: list[bytes]) -> list[str]:
    return [member.decode(errors="replace") for member in members]
