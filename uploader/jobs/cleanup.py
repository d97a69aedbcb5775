"""Cleans up once after the start and once in every month, see `service/upkeep/cleanup.py`; and again after an hour as long
as something could not be dealt with.

Idle uploads it leaves to the expirer, which looks every minute and knows when to pause.
"""

import logging
from dataclasses import asdict

from uploader.clock import Clock
from uploader.jobs.runner import Job
from uploader.service.upkeep.cleanup import Cleanup
from uploader.storage.base import Stopping

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 60.0
# What was touched lately, or was busy, is settled by then.
_AGAIN_SECONDS = 3600.0
# After a start there is more urgent work for the disk.
_GRACE_SECONDS = 60.0


class Cleaner:
    """The cleaner. Several at once repeat each other's looks and do no harm."""

    def __init__(self, cleanup: Cleanup, clock: Clock) -> None:
        self._cleanup = cleanup
        self._clock = clock
        self._cleaned_in: str | None = None

    def as_job(self) -> Job:
        return Job("cleanup", self.run_once, first_delay_seconds=_GRACE_SECONDS)

    async def run_once(self) -> float:
        """Clean up if this process has not done so in this month."""
        month = f"{self._clock.now():%Y-%m}"
        if month == self._cleaned_in:
            return _INTERVAL_SECONDS
        try:
            cleaned = await self._cleanup.clean()
        except Stopping:
            return _INTERVAL_SECONDS
        logger.info("cleanup ended", extra=asdict(cleaned))
        if cleaned.stray_blobs:
            logger.warning(
                "many blobs that no row names are kept: is this their database?",
                extra={
                    "blobs": cleaned.stray_blobs,
                    "disk_bytes": cleaned.stray_bytes,
                    "remove_by": "uploader cleanup --yes",
                },
            )
        if cleaned.unsettled or cleaned.left:
            return _AGAIN_SECONDS
        self._cleaned_in = month
        return _INTERVAL_SECONDS
