"""The delay queue: tasks that become due at a time of their own, may be pushed back, and are claimed with a lease.

The logic is the Lua prelude `scripts/_delay.lua`; this module is thin verbs over it for the queues of uploads.
Knows nothing of what a task means.
"""

from dataclasses import dataclass

from redis.asyncio import Redis

from uploader.accounting.keys import queue_keys
from uploader.accounting.scripts import Script

# Claims of 100 to 300 tasks keep the script short enough not to be felt by others.
MAX_CLAIM = 300

_CLAIM_DUE = Script("claim_due")
_NEXT_DUE = Script("next_due")


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed task: what was known of its upload at that moment."""

    upload_id: str
    generation: int
    received: int
    state: str


class DelayQueue:
    """One queue of one shard."""

    def __init__(self, redis: "Redis", shard: int, queue: str, *, lease_seconds: float) -> None:
        self._redis = redis
        self._keys = queue_keys(shard, queue)
        self._lease_ms = round(lease_seconds * 1000)
        self.shard = shard

    async def claim(self, limit: int = MAX_CLAIM, now_ms: int | None = None) -> list[Claim]:
        """Claim at most `limit` due tasks. Each is due again when the lease ends, unless it is acknowledged before."""
        keys = [self._keys.due, self._keys.minutes]
        arguments = ["" if now_ms is None else now_ms, self._lease_ms, limit, self._keys.task_prefix]
        claims = await _CLAIM_DUE.run(self._redis, keys, arguments)
        return [
            Claim(upload_id.decode(), generation, received, state.decode())
            for upload_id, generation, received, state in claims
        ]

    async def next_due(self, now_ms: int | None = None) -> float | None:
        """Seconds until the earliest task is due, or None if the queue is empty."""
        keys = [self._keys.due, self._keys.minutes]
        delay_ms = await _NEXT_DUE.run(self._redis, keys, ["" if now_ms is None else now_ms])
        return None if delay_ms < 0 else delay_ms / 1000
