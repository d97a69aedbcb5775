"""Makes every Redis key. The hash tag `{sNN}` keeps the keys of a shard in one slot of a Cluster.

The slots of these tags lie close together, so that many masters get none. So a new installation has spread tags
`{sNN.suffix}` (decision 0026); older installations keep their tags.
"""

from binascii import crc_hqx
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import count
from typing import NamedTuple
from zlib import crc32

# The version of all keys and values, and a part of every era. Data of an older version is rebuilt, not read.
FORMAT = 3

FLUSH_QUEUE = "flush"
MERGE_QUEUE = "merge"

# The key with the id of the installation. No script uses this key.
INSTALLATION = "installation"

# The slots of a Cluster. Each master has ranges of consecutive slots.
SLOTS = 16384

# Uploads whose keys a process caches, because each chunk needs them.
_REMEMBERED_UPLOADS = 1000
# The first words of all keys, for a reset. The reset deletes the era first: if it is cut off, the next process begins
# another era, in which the remaining keys do not count.
KINDS = (
    *("era", "up", "chunks", "due", "minutes", "task", "swept", "sweeping"),
    *("challenge", "probes", "unproven", "cost"),
)


@dataclass(frozen=True, slots=True)
class QueueKeys:
    due: str  # followed by `:<epoch minute>`: the minute buckets
    minutes: str  # the index of the buckets that are not empty
    task_prefix: str  # followed by the task's id: the hash that knows the task's bucket
    wake: str  # the channel for announcements of tasks due soon


class UploadKeys(NamedTuple):
    """The keys of a script about one upload, in the script's order."""

    up: str
    chunks: str
    era: str
    flush_due: str
    flush_minutes: str
    merge_due: str
    merge_minutes: str


class ChallengeKeys(NamedTuple):
    """The keys of a challenge to a user, in the script's order."""

    challenge: str
    probes: str
    unproven: str


def shard_of(identifier: str, shards: int) -> int:
    return crc32(identifier.encode()) % shards


@cache
def tag_of(shard: int, spread_over: int = 0) -> str:
    """`spread_over`: the number of shards whose slots are spread evenly; 0: no spreading."""
    tag = f"s{shard:02d}"
    if not spread_over:
        return f"{{{tag}}}"
    slot = (2 * shard + 1) * SLOTS // (2 * spread_over)
    # CRC-16/XMODEM: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
    begun = crc_hqx(f"{tag}.".encode(), 0)
    suffix = next(suffix for suffix in count() if crc_hqx(b"%x" % suffix, begun) % SLOTS == slot)
    return f"{{{tag}.{suffix:x}}}"


class Shards:
    def __init__(self, number: int) -> None:
        self.number = number
        self._tag(0)

    def spread(self) -> None:
        """Use spread tags, as the database says for this installation. Call before any key is used."""
        self._tag(self.number)

    def _tag(self, spread_over: int) -> None:
        self._spread_over = spread_over
        # Cached, because each chunk needs the keys of its upload.
        self.upload: Callable[[str], UploadKeys] = lru_cache(_REMEMBERED_UPLOADS)(self._upload)

    def _upload(self, upload_id: str) -> UploadKeys:
        return upload_keys(self.of(upload_id), upload_id, self._spread_over)

    def of(self, identifier: str) -> int:
        """Return the shard of an upload, of a task, or of a user's challenges."""
        return shard_of(identifier, self.number)

    def queue(self, shard: int, name: str) -> QueueKeys:
        return upload_queue_keys(shard, name, self._spread_over)

    def tasks(self, shard: int, name: str) -> QueueKeys:
        """Return the keys of a plain queue, whose tasks have their own hashes."""
        return queue_keys(shard, name, self._spread_over)

    def sweep(self, shard: int) -> list[str]:
        """Return the keys for the sweep of a shard, in the scripts' order."""
        tag = tag_of(shard, self._spread_over)
        return [f"era:{tag}", f"swept:{tag}", f"sweeping:{tag}"]

    def probe(self, shard: int) -> list[str]:
        """Return one unused key of each kind in a shard, the upload's kind first."""
        tag = tag_of(shard, self._spread_over)
        return [f"{kind}:{tag}:probe" for kind in sorted(KINDS, key=lambda kind: kind != "up")]

    def cost(self, hour: int) -> str:
        """Return the key for the cost of requests in an hour (hours since the epoch), by user."""
        return f"cost:{tag_of(0, self._spread_over)}:{hour}"

    def challenge(self, user_id: str, challenge_id: str) -> ChallengeKeys:
        return challenge_keys(self.of(user_id), user_id, challenge_id, self._spread_over)


@cache
def queue_keys(shard: int, queue: str, spread_over: int = 0) -> QueueKeys:
    tag = tag_of(shard, spread_over)
    return QueueKeys(f"due:{tag}:{queue}", f"minutes:{tag}:{queue}", f"task:{tag}:{queue}:", f"wake:{tag}:{queue}")


@cache
def upload_queue_keys(shard: int, queue: str, spread_over: int = 0) -> QueueKeys:
    """Return the keys of a queue of uploads, whose tasks are the uploads' hashes."""
    tag = tag_of(shard, spread_over)
    return QueueKeys(f"due:{tag}:{queue}", f"minutes:{tag}:{queue}", f"up:{tag}:", f"wake:{tag}:{queue}")


def upload_keys(shard: int, upload_id: str, spread_over: int = 0) -> UploadKeys:
    tag = tag_of(shard, spread_over)
    queues = (upload_queue_keys(shard, queue, spread_over) for queue in (FLUSH_QUEUE, MERGE_QUEUE))
    places = [place for queue in queues for place in (queue.due, queue.minutes)]
    return UploadKeys(f"up:{tag}:{upload_id}", f"chunks:{tag}:{upload_id}", f"era:{tag}", *places)


def challenge_keys(shard: int, user_id: str, challenge_id: str, spread_over: int = 0) -> ChallengeKeys:
    """Return the keys of a challenge. No two users share a key: user ids hold no `/`, and challenge ids are made here
    or matched whole."""
    tag = tag_of(shard, spread_over)
    challenge = f"challenge:{tag}:{user_id}/{challenge_id}"
    return ChallengeKeys(challenge, f"probes:{tag}:{user_id}", f"unproven:{tag}:{user_id}")
