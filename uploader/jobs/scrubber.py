"""Reads contents back from the disk, at a rate, when nobody else wants it: see `service/upkeep/scrubbing.py`."""

from uploader.jobs.runner import Job
from uploader.service.upkeep.scrubbing import RateLimit, Scrubbing
from uploader.storage.base import Stopping

# What could not be read is tried again within a minute.
_INTERVAL_SECONDS = 20.0
_LOOKS_WITHIN_GOAL = 10


class Scrubber:
    """The scrubber. Of several workers one reads at a time."""

    def __init__(self, scrubbing: Scrubbing, *, rate_bytes_per_second: int) -> None:
        self._scrubbing = scrubbing
        self._pace = RateLimit(rate_bytes_per_second)
        self._interval_seconds = min(_INTERVAL_SECONDS, scrubbing.goals.first_seconds / _LOOKS_WITHIN_GOAL)

    def as_job(self) -> Job:
        return Job("scrubber", self.run_once)

    async def run_once(self) -> float:
        """Read back what is due."""
        try:
            more = await self._scrubbing.scrub_due(self._pace)
        except Stopping:
            return self._interval_seconds
        return 0.0 if more else self._interval_seconds
