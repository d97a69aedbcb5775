"""The cost of requests by user, for each hour: a sorted set that expires by itself."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from uploader.accounting.keys import Shards
from uploader.accounting.redis import RedisConnection, asking

# Longer than anybody asks for.
_TTL_SECONDS = 25 * 3600
# So many users of an hour are remembered: those who cost most.
_MAX_USERS = 1000


@dataclass(frozen=True, slots=True)
class CostsByHour:
    redis: RedisConnection
    shards: Shards

    async def add(self, hour: int, seconds: Mapping[str, float]) -> None:
        """Add to the cost of users in an hour since the epoch. Raises Unavailable."""
        key = self.shards.cost(hour)
        with asking(self.redis):
            async with self.redis.pipeline(transaction=False) as pipeline:
                for user_id, spent in seconds.items():
                    pipeline.zincrby(key, spent, user_id)
                pipeline.zremrangebyrank(key, 0, -1 - _MAX_USERS)
                pipeline.expire(key, _TTL_SECONDS)
                await pipeline.execute()

    async def read(self, hours: Iterable[int]) -> list[dict[str, float]]:
        """Return the seconds by user of each hour. Raises Unavailable."""
        found = []
        with asking(self.redis):
            for hour in hours:
                members: Any = await self.redis.zrange(self.shards.cost(hour), 0, -1, withscores=True)
                found.append({user_id.decode(errors="replace"): float(seconds) for user_id, seconds in members})
        return found
