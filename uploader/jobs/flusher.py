"""Writes what is due into the accounts of the database."""

from uploader.accounting.delay import MAX_CLAIM, DelayQueue
from uploader.jobs.runner import Job
from uploader.service.flushing import Flushing

_MAX_SLEEP_SECONDS = 1.0


class Flusher:
    """The flusher of one shard."""

    def __init__(self, queue: DelayQueue, flushing: Flushing) -> None:
        self._queue = queue
        self._flushing = flushing

    def as_job(self) -> Job:
        return Job(f"flusher {self._queue.shard}", self.run_once)

    async def run_once(self) -> float:
        """Flush one batch; sleep until the next is due."""
        if await self._flushing.flush_due(self._queue) == MAX_CLAIM:
            return 0.0
        next_due = await self._queue.next_due()
        return _MAX_SLEEP_SECONDS if next_due is None else min(next_due, _MAX_SLEEP_SECONDS)
