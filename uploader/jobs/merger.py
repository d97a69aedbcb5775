"""Takes up merges whose worker died, or that nobody waits for."""

import asyncio

from uploader.accounting.delay import POLL_SECONDS
from uploader.accounting.pending import UploadQueue
from uploader.domain.upload import File
from uploader.jobs.runner import Job
from uploader.service.uploads.merging import Merging

# A merge is hashing: more at once than this only makes each slower.
_MAX_MERGES = 4


class Merger:
    """The merger of one shard."""

    def __init__(self, queue: UploadQueue, merging: Merging) -> None:
        self._queue = queue
        self._merging = merging
        self._running: set[asyncio.Task[File]] = set()

    def as_job(self) -> Job:
        return Job(f"merger {self._queue.shard}", self.run_once, wake_channel=self._queue.wake_channel)

    async def run_once(self) -> float:
        """Claim as many due merges as there is room for; sleep until the next is due or one here has ended.

        A long merge holds up no other, and a stop does not wait for any: they end by themselves.
        """
        room = _MAX_MERGES - len(self._running)
        for claim in await self._queue.claim(room) if room else []:
            task = self._merging.start(claim.upload_id)
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        if self._running:
            await asyncio.wait(self._running, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            return 0.0
        next_due = await self._queue.next_due()
        return POLL_SECONDS if next_due is None else min(next_due, POLL_SECONDS)
