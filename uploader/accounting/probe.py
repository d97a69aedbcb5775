"""The probe of Redis: runs the commands of chunks and jobs in each shard, on keys that nothing else uses.

A command that Redis would refuse to chunks and jobs is refused to the probe. It runs at a start, in `/readyz`, in
`uploader doctor`, and each second while Redis refuses anything.
"""

import asyncio
from dataclasses import dataclass
from itertools import chain

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from uploader.accounting.keys import INSTALLATION, Shards
from uploader.accounting.redis import AWAY, RedisConnection, Script, asking
from uploader.accounting.refusals import LackedRights, RedisTooOld, Refusals, code_of, named_right, refusals_of
from uploader.domain import reasons
from uploader.domain.diagnosis import Diagnosis
from uploader.errors import Unavailable

_PROBE = Script("probe")
_TTL_MS = 60_000
_DO_NOTHING = "return 1"
# Without these rights workers are late by a second, and nothing fails.
_WAKING = frozenset({"+publish", "&wake:*"})
_SUBSCRIBE = "+subscribe"
_SUBSCRIBE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Probe:
    redis: RedisConnection
    shards: Shards

    @property
    def refusals(self) -> Refusals:
        return refusals_of(self.redis)

    def diagnosis_of(self, error: BaseException) -> Diagnosis | None:
        """Return the diagnosis of an error from `run`; None if Redis did not answer."""
        return None if error.__cause__ is None or code_of(error.__cause__) is None else self.refusals.diagnosis

    async def run(self) -> None:
        """Raises Unavailable if Redis is away, or refuses something; then `refusals` has the diagnosis."""
        try:
            # Uses EVAL, too: scripts run by EVAL for the first time after a start of Redis.
            runs = asyncio.gather(*map(self._run_in, range(self.shards.number)))
            lacking = {*chain(*await runs), *([] if await self._may_touch(INSTALLATION) else [f"~{INSTALLATION}"])}
        except Unavailable as error:
            if code_of(error.__cause__ or error) != "NOPERM":
                raise
            lacking = await self._lacking_keys()
            if not lacking:  # a right for a command, which the error names
                raise
        self.refusals.mute = (self.refusals.mute & {_SUBSCRIBE}) | (lacking & _WAKING)
        if lacking - _WAKING:
            with asking(self.redis):
                raise LackedRights(sorted(lacking))
        self.refusals.passed()

    async def _run_in(self, shard: int) -> list[str]:
        """Return the lacking rights. Raises Unavailable."""
        found = await _PROBE.run(self.redis, self.shards.probe(shard), [_TTL_MS, self._channel(shard)])
        if isinstance(found, bytes):
            with asking(self.redis):
                raise RedisTooOld(found.decode())
        return [right.decode() for right in found]

    def _channel(self, shard: int) -> str:
        return self.shards.tasks(shard, "probe").wake

    async def _lacking_keys(self) -> set[str]:
        keys = {f"~{key.partition(':')[0]}:*": key for key in self.shards.probe(0)} | {f"~{INSTALLATION}": INSTALLATION}
        return {right for right, key in keys.items() if not await self._may_touch(key)}

    async def _may_touch(self, key: str) -> bool:
        with asking(self.redis):
            try:
                await self.redis.eval(_DO_NOTHING, 1, key)
            except NoPermissionError as error:
                if named_right(error) is not None:
                    raise
                return False
        return True

    async def diagnoses(self) -> list[Diagnosis]:
        """Return a diagnosis if Redis' announcements can't reach workers."""
        if isinstance(self.redis, Redis):
            try:
                async with self.redis.pubsub() as subscription, asyncio.timeout(_SUBSCRIBE_SECONDS):
                    await subscription.subscribe(self._channel(0))
                    await subscription.get_message(timeout=_SUBSCRIBE_SECONDS)
                self.refusals.mute.discard(_SUBSCRIBE)
            except AWAY as error:
                if code_of(error) == "NOPERM":
                    self.refusals.mute.add(named_right(error) or "&wake:*")
        mute = " ".join(sorted(self.refusals.mute))
        return [reasons.REDIS_MUTE(rights=mute)] if mute else []
