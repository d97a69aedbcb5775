"""Expires uploads that nobody sent a chunk to for `UPLOADER_UPLOAD_EXPIRY`, and gives back what they held."""

from datetime import timedelta

from uploader.clock import Clock
from uploader.database import queries
from uploader.database.engine import Database
from uploader.jobs.runner import Job
from uploader.service.closers import Closers

_INTERVAL_SECONDS = 60.0
_BATCH = 100


class Expirer:
    """The expirer. It asks the database who may be idle, and the disk, under the upload's locks, who is."""

    def __init__(self, database: Database, closers: Closers, clock: Clock, *, expiry_seconds: float) -> None:
        self._database = database
        self._closers = closers
        self._clock = clock
        self._expiry_seconds = expiry_seconds

    def as_job(self) -> Job:
        return Job("expirer", self.run_once)

    async def run_once(self) -> float:
        """Expire one batch."""
        oldest = self._clock.now() - timedelta(seconds=self._expiry_seconds)
        idle = await self._database.read(lambda connection: queries.idle_uploads(connection, oldest, _BATCH))
        expired = 0
        for upload in idle:
            expired += await self._closers.expire(upload, self._expiry_seconds)
        return 0.0 if expired == _BATCH else min(_INTERVAL_SECONDS, self._expiry_seconds / 2)
