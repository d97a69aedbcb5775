"""The costs of requests by user, over all processes of an installation, summed up in Redis by the hour for one day.

A loss of Redis loses only these figures. A process that is killed loses its costs since the last report to Redis.
"""

from collections import Counter
from datetime import datetime

from msgspec import Struct

from uploader.accounting.costs import CostsByHour
from uploader.runtime.clock import Clock
from uploader.runtime.meter import Meter
from uploader.runtime.observability import COST_SECONDS, TURN_SECONDS, TURNS

HOURS = 24
_TELL_SECONDS = 5.0
_HOUR_SECONDS = 3600


class UserCost(Struct):
    """The CPU seconds that a user's requests have cost."""

    user_id: str
    cpu_seconds: float


class CostReport(Struct):
    """The users whose requests have cost the most CPU seconds in the last `hours`, including the present one."""

    hours: int
    users: list[UserCost]
    as_of: datetime


class Costs:
    def __init__(self, meter: Meter, by_hour: CostsByHour, clock: Clock) -> None:
        self._meter = meter
        self._by_hour = by_hour
        self._clock = clock
        # Costs that could not be reported to Redis yet.
        self._untold: Counter[str] = Counter()

    async def tell(self) -> float:
        """Report the costs of this process since the last call. Return the seconds until the next call. Raises
        Unavailable; the next call then reports these costs, too."""
        taken = self._meter.take()
        for kind, seconds in taken.by_kind.items():
            COST_SECONDS.labels(kind).inc(seconds)
        for outcome, count in (("begun", taken.turns - taken.refusals), ("refused", taken.refusals)):
            TURNS.labels(outcome).inc(count)
        TURN_SECONDS.inc(taken.turn_seconds)
        self._untold.update(taken.by_user)
        if self._untold:
            await self._by_hour.add(self._hour(), self._untold)
            self._untold.clear()
        return _TELL_SECONDS

    async def report(self, limit: int) -> CostReport:
        """Raises Unavailable."""
        now, hour = self._clock.now(), self._hour()
        spent: Counter[str] = Counter()
        for found in await self._by_hour.read(range(hour - HOURS + 1, hour + 1)):
            spent.update(found)
        return CostReport(HOURS, [UserCost(*one) for one in spent.most_common(limit)], now)

    def _hour(self) -> int:
        return int(self._clock.now().timestamp()) // _HOUR_SECONDS
