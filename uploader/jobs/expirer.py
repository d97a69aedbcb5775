"""Has idle uploads expired, but for a while after a start, an outage, or a jump of the clock."""

from datetime import timedelta

from uploader.clock import Clock
from uploader.jobs.pause import Pause
from uploader.jobs.runner import Job
from uploader.service.ids import greatest
from uploader.service.upkeep.expiry import Expiry

_INTERVAL_SECONDS = 60.0
_GRACE_SECONDS = 3600.0


class Expirer:
    """The expirer. Several at once are safe: each upload is looked at under its locks."""

    def __init__(self, expiry: Expiry, clock: Clock) -> None:
        self._expiry = expiry
        self._clock = clock
        self._interval_seconds = min(_INTERVAL_SECONDS, expiry.expiry_seconds / 2)
        grace = min(_GRACE_SECONDS, expiry.expiry_seconds)
        self._pause = Pause("expiry", clock, grace_seconds=grace, interval_seconds=self._interval_seconds)

    def as_job(self) -> Job:
        return Job("expirer", self.run_once)

    async def run_once(self) -> float:
        """Look at all uploads that may be idle, batch by batch."""
        # Asked first, so that a run that fails without the database counts as one that did not happen.
        updated_before = self._clock.now() - timedelta(seconds=self._expiry.expiry_seconds)
        idle = await self._expiry.idle(updated_before, after_id="")
        if self._pause.active():
            return self._interval_seconds
        after_id = ""
        while idle:
            await self._expiry.expire(idle)
            after_id = greatest(after_id, [upload.id for upload in idle])
            idle = await self._expiry.idle(updated_before, after_id=after_id)
        return self._interval_seconds
