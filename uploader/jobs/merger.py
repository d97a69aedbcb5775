"""Takes up merges whose worker died, or that nobody waits for."""

import asyncio

from uploader.accounting.delay import DelayQueue
from uploader.errors import UploaderError
from uploader.jobs.runner import Job
from uploader.service.merging import Merging
from uploader.storage.base import Stopping

# A merge is hashing: more at once than this only makes each slower.
_MAX_MERGES = 4
_MAX_SLEEP_SECONDS = 1.0


class Merger:
    """The merger of one shard."""

    def __init__(self, queue: DelayQueue, merging: Merging) -> None:
        self._queue = queue
        self._merging = merging

    def as_job(self) -> Job:
        return Job(f"merger {self._queue.shard}", self.run_once)

    async def run_once(self) -> float:
        """Claim due merges and carry them out; sleep until the next is due."""
        claims = await self._queue.claim(_MAX_MERGES)
        if claims:
            await asyncio.gather(*(self._merge(claim.upload_id) for claim in claims))
            return 0.0
        next_due = await self._queue.next_due()
        return _MAX_SLEEP_SECONDS if next_due is None else min(next_due, _MAX_SLEEP_SECONDS)

    async def _merge(self, upload_id: str) -> None:
        try:
            await asyncio.shield(self._merging.start(upload_id))
        except (UploaderError, Stopping):
            return  # refused, cancelled or put off: its row says so, or it is due again when the lease ends
