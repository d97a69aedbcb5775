"""Writes what is due into the accounts of the database."""

from uploader.accounting.delay import MAX_CLAIM, POLL_SECONDS
from uploader.accounting.pending import UploadQueue
from uploader.jobs.runner import Job
from uploader.service.flushing import Flushing


class Flusher:
    """The flusher of one shard."""

    def __init__(self, queue: UploadQueue, flushing: Flushing) -> None:
        self._queue = queue
        self._flushing = flushing

    def as_job(self) -> Job:
        return Job(f"flusher {self._queue.shard}", self.run_once, wake_channel=self._queue.wake_channel)

    async def run_once(self) -> float:
        """Flush what is due; sleep until the next is."""
        if await self._flushing.flush_due(self._queue) >= MAX_CLAIM:
            return 0.0
        next_due = await self._queue.next_due()
        return POLL_SECONDS if next_due is None else min(next_due, POLL_SECONDS)
