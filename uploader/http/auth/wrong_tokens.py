"""How many wrong tokens an address may show before each further one takes its time."""

import asyncio
import time
from collections import Counter, OrderedDict

from uploader.errors import TooManyRequests

_DETAIL = "Too many wrong tokens came from your address: wait before you show one that is new here."
_MINUTE_SECONDS = 60.0
# What each beyond waits for, and how many of a party may wait at once: 16 questions to the database in a second.
_WAIT_SECONDS = 0.25
_MAX_WAITING = 4
# What sums of fractions of a minute may be wrong by.
_ROUNDING_SECONDS = 1e-6
# Of a flood from more than these, those that were wrong longest ago are forgotten.
_MAX_PARTIES = 10_000


class WrongTokens:
    """So many at once of each party, then as many in a minute, evenly."""

    def __init__(self, most: int) -> None:
        self._seconds_for_one = _MINUTE_SECONDS / most
        # Of each party, until when all it has shown is worked off, by the monotonic clock.
        self._busy_until: OrderedDict[str, float] = OrderedDict()
        self._waiting: Counter[str] = Counter()

    def are_too_many(self, party: str) -> bool:
        """Whether another one would be."""
        left_seconds = self._busy_until.get(party, 0.0) - time.monotonic()
        return left_seconds + self._seconds_for_one > _MINUTE_SECONDS + _ROUNDING_SECONDS

    async def slow_down(self, party: str) -> None:
        """Return after a while if there were too many. Raises TooManyRequests where others of the party wait already."""
        if not self.are_too_many(party):
            return
        if self._waiting[party] >= _MAX_WAITING:
            raise TooManyRequests(_DETAIL)
        self._waiting[party] += 1
        try:
            await asyncio.sleep(_WAIT_SECONDS)
        finally:
            self._waiting[party] -= 1
            if not self._waiting[party]:
                del self._waiting[party]

    def count(self, party: str) -> None:
        """One was wrong."""
        now = time.monotonic()
        busy_until = max(self._busy_until.get(party, 0.0), now) + self._seconds_for_one
        self._busy_until[party] = min(busy_until, now + _MINUTE_SECONDS)
        self._busy_until.move_to_end(party)
        if len(self._busy_until) > _MAX_PARTIES:
            self._busy_until.popitem(last=False)
