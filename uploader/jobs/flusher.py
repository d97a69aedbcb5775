"""Writes what is due into the accounts of the database."""

import asyncio

from uploader.jobs.runner import Job
from uploader.service.upkeep.flushing import Flushing, UploadQueue

# What becomes due within this time after a flush is written together: a commit costs as much as several hundred rows.
_REST_SECONDS = 0.2


class Flusher:
    """The flusher of one shard."""

    def __init__(self, queue: UploadQueue, flushing: Flushing) -> None:
        self._queue = queue
        self._flushing = flushing

    def as_jobs(self) -> list[Job]:
        """Two, so that one claims or acknowledges a batch while the database writes the other's."""
        name = f"flusher {self._queue.shard}"
        return [Job(name, self.run_once, wake_channel=self._queue.wake_channel) for name in (name, f"{name}, second")]

    async def run_once(self) -> float:
        """Flush what is due; sleep until the next is."""
        batch = await self._flushing.flush_due(self._queue)
        if batch.more:
            return 0.0
        if batch.claimed:
            await asyncio.sleep(_REST_SECONDS)
        return await self._queue.pause_seconds()
