"""Every Redis key is made here. The hash tag `{sNN}` keeps the keys of a shard in one slot of a Cluster."""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple
from zlib import crc32

# The version of all keys and values, a part of every era: what an older version wrote is rebuilt, not read.
FORMAT = 2

FLUSH_QUEUE = "flush"
MERGE_QUEUE = "merge"

# Whose keys all others are. No script touches it, so it needs no slot.
INSTALLATION = "installation"

# How many uploads' keys a process keeps at hand: each chunk needs them.
_REMEMBERED_UPLOADS = 1000
# What every key of an installation begins with, for a reset, which deletes all keys. It deletes the era first: if it dies
# halfway, the next process begins another era, in which the keys that are left count for nothing.
KINDS = (
    *("era", "up", "chunks", "due", "minutes", "task", "swept", "sweeping"),
    *("challenge", "probes", "unproven"),
)


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one delay queue in one shard."""

    due: str  # followed by `:<epoch minute>`: the minute buckets
    minutes: str  # the index of the buckets that are not empty
    task_prefix: str  # followed by the task's id: the hash that knows the task's bucket
    wake: str  # the channel on which the scripts announce a task that is due soon


class UploadKeys(NamedTuple):
    """The keys that a script about one upload touches, in the order it takes them."""

    up: str
    chunks: str
    era: str
    flush_due: str
    flush_minutes: str
    merge_due: str
    merge_minutes: str


class ChallengeKeys(NamedTuple):
    """The keys of a challenge to a user, in the order the script takes them."""

    challenge: str
    probes: str
    unproven: str


def shard_of(identifier: str, shards: int) -> int:
    """The shard of an upload, or of the challenges of a user."""
    return crc32(identifier.encode()) % shards


def _tag(shard: int) -> str:
    return f"{{s{shard:02d}}}"


def queue_keys(shard: int, queue: str) -> QueueKeys:
    """The keys of a plain queue, whose tasks are hashes of their own."""
    tag = _tag(shard)
    return QueueKeys(f"due:{tag}:{queue}", f"minutes:{tag}:{queue}", f"task:{tag}:{queue}:", f"wake:{tag}:{queue}")


@cache
def upload_queue_keys(shard: int, queue: str) -> QueueKeys:
    """The keys of a queue of uploads, whose tasks are the uploads' hashes."""
    tag = _tag(shard)
    return QueueKeys(f"due:{tag}:{queue}", f"minutes:{tag}:{queue}", f"up:{tag}:", f"wake:{tag}:{queue}")


@lru_cache(_REMEMBERED_UPLOADS)
def keys_of_upload(upload_id: str, shards: int) -> UploadKeys:
    """The keys of an upload where there are so many shards."""
    return upload_keys(shard_of(upload_id, shards), upload_id)


def upload_keys(shard: int, upload_id: str) -> UploadKeys:
    """The keys of an upload in its shard."""
    tag, flush, merge = _tag(shard), upload_queue_keys(shard, FLUSH_QUEUE), upload_queue_keys(shard, MERGE_QUEUE)
    return UploadKeys(
        up=f"up:{tag}:{upload_id}",
        chunks=f"chunks:{tag}:{upload_id}",
        era=f"era:{tag}",
        flush_due=flush.due,
        flush_minutes=flush.minutes,
        merge_due=merge.due,
        merge_minutes=merge.minutes,
    )


def upload_prefix(shard: int) -> str:
    """What the hashes of all uploads of a shard begin with; the upload's id follows."""
    return f"up:{_tag(shard)}:"


def sweep_keys(shard: int) -> list[str]:
    """The keys of the sweep of a shard, in the order the scripts take them."""
    tag = _tag(shard)
    return [f"era:{tag}", f"swept:{tag}", f"sweeping:{tag}"]


def challenge_keys(shard: int, user_id: str, challenge_id: str) -> ChallengeKeys:
    """No user's key is another's: ids of users hold no `/`, those of challenges are made here or matched whole."""
    tag = _tag(shard)
    return ChallengeKeys(
        challenge=f"challenge:{tag}:{user_id}/{challenge_id}",
        probes=f"probes:{tag}:{user_id}",
        unproven=f"unproven:{tag}:{user_id}",
    )
