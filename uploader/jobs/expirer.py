"""Expires uploads that nobody sent a chunk to for `UPLOADER_UPLOAD_EXPIRY`, and gives back what they held."""

import logging
from datetime import datetime, timedelta

from uploader.clock import Clock
from uploader.database import queries
from uploader.database.engine import Database
from uploader.domain.upload import Upload
from uploader.errors import Unavailable
from uploader.jobs.pause import Pause
from uploader.jobs.runner import Job
from uploader.service.uploads.closers import Closers

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 60.0
_BATCH = 100
_GRACE_SECONDS = 3600.0


class Expirer:
    """The expirer. It asks the database who may be idle, and the disk, under the upload's locks, who is."""

    def __init__(self, database: Database, closers: Closers, clock: Clock, *, expiry_seconds: float) -> None:
        self._database = database
        self._closers = closers
        self._clock = clock
        self._expiry_seconds = expiry_seconds
        self._interval_seconds = min(_INTERVAL_SECONDS, expiry_seconds / 2)
        grace = min(_GRACE_SECONDS, expiry_seconds)
        self._pause = Pause(clock, grace_seconds=grace, interval_seconds=self._interval_seconds)

    def as_job(self) -> Job:
        return Job("expirer", self.run_once)

    async def run_once(self) -> float:
        """Look at all uploads that may be idle, batch by batch."""
        # Asked first, so that a run that fails without the database counts as one that did not happen.
        oldest = self._clock.now() - timedelta(seconds=self._expiry_seconds)
        idle = await self._idle(oldest, "")
        if self._pause.active():
            return self._interval_seconds
        while idle:
            for upload in idle:
                await self._expire(upload)
            idle = await self._idle(oldest, idle[-1].id)
        return self._interval_seconds

    async def _idle(self, oldest: datetime, after: str) -> list[Upload]:
        return await self._database.read(lambda connection: queries.idle_uploads(connection, oldest, after, _BATCH))

    async def _expire(self, upload: Upload) -> None:
        try:
            await self._closers.expire(upload, self._expiry_seconds)
        except Unavailable as error:
            # One that is busy must not hold up the others.
            logger.warning("an upload is not expired for now", extra={"upload_id": upload.id, "reason": error.detail})
