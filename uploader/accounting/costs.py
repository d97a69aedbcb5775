"""The cost of requests by user and hour: a sorted set for each hour, with an expiry."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from uploader.accounting.keys import Shards
from uploader.accounting.redis import RedisConnection, asking

# Longer than any period that reports ask for.
_TTL_SECONDS = 25 * 3600
# Users to keep for each hour: those with the highest cost.
_MAX_USERS = 1000


@dataclass(frozen=True, slots=True)
class CostsByHour:
    redis: RedisConnection
    shards: Shards

    async def add(self, hour: int, seconds: Mapping[str, float]) -> None:
        """Add seconds to the cost of users in an hour (hours since the epoch). Raises Unavailable."""
        key = self.shards.cost(hour)
        with asking(self.redis):
            async with self.redis.pipeline(transaction=False) as pipeline:
                for user_id, spent in seconds.items():
                    pipeline.zincrby(key, spent, user_id)
                pipeline.zremrangebyrank(key, 0, -1 - _MAX_USERS)
                pipeline.expire(key, _TTL_SECONDS)
                await pipeline.execute()

    async def read(self, hours: Iterable[int]) -> list[dict[str, float]]:
        """Return the cost in seconds by user, for each hour. Raises Unavailable."""
        found = []
        with asking(self.redis):
            for hour in hours:
                members: Any = await self.redis.zrange(self.shards.cost(hour), 0, -1, withscores=True)
                found.append({user_id.decode(errors="replace"): float(seconds) for user_id, seconds in members})
        return found
