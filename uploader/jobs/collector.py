"""Removes blobs that no file refers to, and what is left of closed uploads; forgets those that were closed long ago, and old
acts of the trail."""

from datetime import timedelta

from uploader.clock import Clock
from uploader.jobs.runner import Job
from uploader.service.files import Files
from uploader.service.trail.keeping import Trail
from uploader.service.upkeep.cleanup import Cleanup
from uploader.service.uploads.closers import Closers

_INTERVAL_SECONDS = 60.0
_BATCH = 1000


class Collector:
    """The collector. Several at once are safe: each blob is removed under the lock of its row."""

    def __init__(
        self,
        files: Files,
        closers: Closers,
        cleanup: Cleanup,
        trail: Trail,
        clock: Clock,
        *,
        closed_retention_seconds: float,
    ) -> None:
        self._files = files
        self._closers = closers
        self._cleanup = cleanup
        self._trail = trail
        self._clock = clock
        self._closed_retention = timedelta(seconds=closed_retention_seconds)

    def as_job(self) -> Job:
        return Job("collector", self.run_once)

    async def run_once(self) -> float:
        """Collect one batch of each."""
        collected = await self._files.collect_all(_BATCH)
        purged = await self._cleanup.purge_closed(self._clock.now() - self._closed_retention, _BATCH)
        forgotten = await self._trail.forget_old(_BATCH)
        await self._closers.tidy_left()
        return 0.0 if _BATCH in (collected, purged, forgotten) else _INTERVAL_SECONDS
