"""Rebuilds, after a loss of Redis, the uploads that nobody touches: their pending bytes must be accounted for, too."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice

from uploader.accounting.pending import Pending
from uploader.crashpoints import crash_point
from uploader.database import queries
from uploader.database.engine import Database
from uploader.database.transactions import NotOpen
from uploader.domain.upload import State, Upload
from uploader.errors import StorageFailed, Unavailable
from uploader.service.ids import greatest
from uploader.service.uploads.closers import Closers
from uploader.storage.base import Gone

logger = logging.getLogger(__name__)

_BATCH = 200
_AT_ONCE = 8
# Of those that could not be dealt with, so many are named in the log.
_TOLD = 10


class Sweeping:
    """One sweep of a shard looks at every open upload. Of several processes one sweeps, and another takes over."""

    def __init__(self, database: Database, pending: Pending, closers: Closers) -> None:
        self._database = database
        self._pending = pending
        self._closers = closers

    async def sweep(self, shard: int) -> int:
        """Sweep a shard if Redis is in another era than at its last sweep; returns how many uploads were rebuilt.

        Raises Unavailable; then the sweep begins again. It does so, too, if a few uploads could not be dealt with, while all
        others are: that is StorageFailed.
        """
        era = await self._pending.claim_sweep(shard)
        if era is None:
            return 0
        crash_point("sweep.after_claim")
        rebuilt, after, left = 0, "", _Left()
        while batch := await self._batch(after):
            mine = [upload for upload in batch if self._pending.shards.of(upload.id) == shard]
            rebuilt += await self._rebuild(mine, left)
            after = greatest(after, [upload.id for upload in batch])
            if await self._pending.claim_sweep(shard) != era:
                return rebuilt  # lost again, or somebody else's by now
        await self._tidy_closed(shard, left)
        crash_point("sweep.after_rebuild")
        if rebuilt:
            logger.info("uploads rebuilt after a loss of Redis", extra={"shard": shard, "rebuilt": rebuilt})
        if left.reasons:
            raise StorageFailed(f"Uploads that are not rebuilt for now: {left}.")
        await self._pending.end_sweep(shard, era)
        return rebuilt

    async def _batch(self, after: str) -> list[Upload]:
        return await self._database.read(
            lambda connection: queries.all_open_uploads(connection, after=after, limit=_BATCH)
        )

    async def _tidy_closed(self, shard: int, left: "_Left") -> None:
        """A Redis that fell back to an older state may have closed uploads as open, without a task to find them by."""
        suspects = [upload_id async for upload_id in self._pending.not_closed(shard)]
        for start in range(0, len(suspects), _BATCH):
            ids = suspects[start : start + _BATCH]
            rows = await self._uploads(ids)
            for upload_id in ids:
                if upload_id not in rows or rows[upload_id].state is not State.OPEN:
                    with left.noted(upload_id):
                        await self._closers.tidy(upload_id)

    async def _uploads(self, ids: list[str]) -> dict[str, Upload]:
        return await self._database.read(lambda connection: queries.uploads_by_id(connection, ids))

    async def _rebuild(self, uploads: list[Upload], left: "_Left") -> int:
        places = asyncio.Semaphore(_AT_ONCE)

        async def one(upload: Upload) -> bool:
            async with places:
                return await self._rebuild_one(upload, left)

        return sum(await asyncio.gather(*(one(upload) for upload in uploads)))

    async def _rebuild_one(self, upload: Upload, left: "_Left") -> bool:
        if (await self._pending.read(upload.id)).state:
            return False  # touched in this era already
        with suppress(Gone, NotOpen), left.noted(upload.id):
            await self._closers.hydrate(upload)
            return True
        return False


class _Left:
    """What one sweep could not deal with: one damaged or busy upload holds up no other. Where Redis or the database is away,
    the next look at them ends the sweep."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def __str__(self) -> str:
        return ", ".join(f"{upload_id} ({reason})" for upload_id, reason in islice(self.reasons.items(), _TOLD))

    @contextmanager
    def noted(self, upload_id: str) -> Iterator[None]:
        try:
            yield
        except Unavailable as error:
            self.reasons[upload_id] = error.reason
