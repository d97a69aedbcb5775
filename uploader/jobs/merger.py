"""Takes up merges whose worker died, or that nobody waits for."""

import asyncio

from uploader.jobs.runner import Job
from uploader.service.upkeep.flushing import UploadQueue
from uploader.service.uploads.merging import Merging
from uploader.service.uploads.results import Complete

# A merge is hashing: more at once than this only makes each slower.
_MAX_MERGES = 4
# While some run, others may become due.
_LOOK_SECONDS = 1.0


class Merger:
    """The merger of one shard."""

    def __init__(self, queue: UploadQueue, merging: Merging) -> None:
        self._queue = queue
        self._merging = merging
        self._running: set[asyncio.Task[Complete]] = set()

    def as_job(self) -> Job:
        return Job(f"merger {self._queue.shard}", self.run_once, wake_channel=self._queue.wake_channel)

    async def run_once(self) -> float:
        """Claim as many due merges as there is room for; sleep until the next is due or one here has ended.

        A long merge holds up no other, and a stop does not wait for any: they end by themselves.
        """
        room = _MAX_MERGES - len(self._running)
        for task in await self._merging.start_due(self._queue, room) if room else []:
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        if self._running:
            await asyncio.wait(self._running, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            return 0.0
        return await self._queue.pause_seconds()
