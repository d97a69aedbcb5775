"""Takes one snapshot of the totals on every UTC day, for the history and the growth in reports."""

from datetime import date

from uploader.clock import Clock
from uploader.jobs.runner import Job
from uploader.service.insight.overview import Overview

_INTERVAL_SECONDS = 60.0


class Snapshot:
    """The snapshot job. Several at once are safe: a day has one row, and the first one stands. A day on which no worker
    runs has none."""

    def __init__(self, overview: Overview, clock: Clock) -> None:
        self._overview = overview
        self._clock = clock
        self._taken: date | None = None

    def as_job(self) -> Job:
        return Job("snapshot", self.run_once)

    async def run_once(self) -> float:
        """Take today's snapshot if this process does not know that it is there."""
        if self._clock.now().date() != self._taken:
            self._taken = await self._overview.take_day()
        return _INTERVAL_SECONDS
