"""Every Redis key is made here. The hash tag `{sNN}` keeps the keys of a shard in one slot of a Cluster."""

from dataclasses import dataclass
from zlib import crc32

FLUSH_QUEUE = "flush"
MERGE_QUEUE = "merge"


@dataclass(frozen=True, slots=True)
class Queue:
    """The keys of one delay queue in one shard."""

    due: str  # followed by `:<epoch minute>`: the minute buckets
    minutes: str  # the index of the buckets that are not empty
    task_prefix: str  # followed by the task's id: the hash that knows the task's bucket


@dataclass(frozen=True, slots=True)
class UploadKeys:
    """The keys that a script about one upload touches, in the order it takes them."""

    up: str
    chunks: str
    era: str
    flush: Queue
    merge: Queue

    def as_list(self) -> list[str]:
        return [
            self.up,
            self.chunks,
            self.era,
            self.flush.due,
            self.flush.minutes,
            self.merge.due,
            self.merge.minutes,
        ]


def shard_of(upload_id: str, shards: int) -> int:
    """The shard of an upload."""
    return crc32(upload_id.encode()) % shards


def _tag(shard: int) -> str:
    return f"{{s{shard:02d}}}"


def queue_keys(shard: int, queue: str) -> Queue:
    tag = _tag(shard)
    return Queue(f"due:{tag}:{queue}", f"minutes:{tag}:{queue}", f"up:{tag}:")


def upload_keys(shard: int, upload_id: str) -> UploadKeys:
    tag = _tag(shard)
    return UploadKeys(
        up=f"up:{tag}:{upload_id}",
        chunks=f"chunks:{tag}:{upload_id}",
        era=f"era:{tag}",
        flush=queue_keys(shard, FLUSH_QUEUE),
        merge=queue_keys(shard, MERGE_QUEUE),
    )
