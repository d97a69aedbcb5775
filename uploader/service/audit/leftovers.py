"""Finds the directories of uploads that have ended: an unlink failed, a crash came before it, or the rows are others now."""

import logging
from datetime import timedelta
from functools import partial

from uploader.clock import Clock
from uploader.database import queries
from uploader.database.engine import Database
from uploader.domain.upload import State, Upload
from uploader.errors import StorageFailed
from uploader.service.audit.drift import Drift, Findings, Kind, cannot_be_repaired
from uploader.service.upkeep.strays import is_settled
from uploader.service.uploads.closers import Closers
from uploader.storage.base import Gone
from uploader.storage.contents import Found
from uploader.storage.store import Store

logger = logging.getLogger(__name__)

# So that what was opened in this month is met, too.
_OVER_A_MONTH = timedelta(days=32)


class Leftovers:
    """Reports them. What has a row that is closed is tidied as a repair; what has none may be of another database."""

    def __init__(self, database: Database, storage: Store, closers: Closers, clock: Clock) -> None:
        self._database = database
        self._storage = storage
        self._closers = closers
        self._clock = clock

    async def check(self, found: Findings) -> None:
        """Look at the directories of all uploads, as far as they can be read. Raises Unavailable, Stopping."""
        try:
            await self._check(found)
        except StorageFailed as error:
            logger.warning("leftovers are not looked for any further", extra={"reason": error.reason})

    async def _check(self, found: Findings) -> None:
        now = self._clock.now()
        async for batch in self._storage.list_uploads(now + _OVER_A_MONTH):
            settled = [each for each in batch if is_settled(each, now)]
            rows = await self._rows([each.name for each in settled])
            for each in settled:
                row = rows.get(each.name)
                if row is None:
                    found.add([_drift(each)], cannot_be_repaired)
                elif row.state is not State.OPEN and await self._outlives(row):
                    found.add([_drift(each)], partial(self._closers.tidy, row.id))

    async def _rows(self, upload_ids: list[str]) -> dict[str, Upload]:
        return await self._database.read(lambda connection: queries.uploads_by_id(connection, upload_ids))

    async def _outlives(self, closed: Upload) -> bool:
        """Whoever ends an upload holds its locks until nothing is left of it."""
        try:
            async with self._storage.closing(closed):
                return True
        except Gone:
            return bool(await self._storage.remaining([closed]))
        except StorageFailed:
            return True


def _drift(found: Found) -> Drift:
    return Drift(Kind.LEFTOVER, found.name, None, found.place)
