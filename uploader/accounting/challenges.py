"""Challenges where every worker sees them: kept for a while, taken once, within budgets of each user.

A loss of Redis loses challenges and budgets, and no more: a user who answers a lost challenge gets another one, or sends the
bytes.
"""

from dataclasses import KW_ONLY, dataclass

import msgspec

from uploader.accounting.keys import ChallengeKeys, Shards
from uploader.accounting.redis import AWAY, RedisConnection, Script, away, time_argument
from uploader.domain.digest import Challenge

_ISSUE_CHALLENGE = Script("issue_challenge")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """How often a user may ask whether content is there, and get it wrong, within a window of time."""

    max_probes: int
    max_unproven: int
    window_seconds: float


@dataclass(eq=False, repr=False)
class Challenges:
    """The challenges of all users."""

    redis: RedisConnection
    _: KW_ONLY
    shards: Shards
    budgets: Budgets

    async def issue(
        self, challenge: Challenge, *, offered: bool, ttl_seconds: float, now_ms: int | None = None
    ) -> bool:
        """Count a probe; keep the challenge if it is `offered` and the budgets allow it. Raises Unavailable.

        A challenge counts as failed until its user proves it.
        """
        budgets = self.budgets
        arguments = [
            *(time_argument(now_ms), challenge.id, msgspec.json.encode(challenge), int(offered)),
            *(round(ttl_seconds * 1000), round(budgets.window_seconds * 1000)),
            *(budgets.max_probes, budgets.max_unproven),
        ]
        keys = self._keys(challenge.user_id, challenge.id)
        return bool(await _ISSUE_CHALLENGE.run(self.redis, keys, arguments))

    async def take(self, user_id: str, challenge_id: str) -> Challenge | None:
        """Take a challenge of this user away, so that no other call can take it again. Raises Unavailable."""
        try:
            kept = await self.redis.getdel(self._keys(user_id, challenge_id).challenge)
        except AWAY as error:
            raise away(self.redis, error) from error
        return None if kept is None else msgspec.json.decode(kept, type=Challenge)

    async def give_back(self, challenge: Challenge, ttl_seconds: float) -> None:
        """Keep a challenge again that was taken and led to nothing. Raises Unavailable."""
        key = self._keys(challenge.user_id, challenge.id).challenge
        try:
            await self.redis.set(key, msgspec.json.encode(challenge), px=max(1, round(ttl_seconds * 1000)))
        except AWAY as error:
            raise away(self.redis, error) from error

    async def count_as_proven(self, challenge: Challenge) -> None:
        """Give back to the user what the challenge took of the budget. Raises Unavailable."""
        try:
            await self.redis.zrem(self._keys(challenge.user_id, challenge.id).unproven, challenge.id)
        except AWAY as error:
            raise away(self.redis, error) from error

    def _keys(self, user_id: str, challenge_id: str) -> ChallengeKeys:
        return self.shards.challenge(user_id, challenge_id)
