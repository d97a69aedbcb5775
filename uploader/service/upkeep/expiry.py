"""Expires uploads that nobody sent a chunk to for a while, and gives back what they held."""

import logging
from datetime import datetime

from uploader.database import queries
from uploader.database.engine import Database
from uploader.domain.upload import Upload
from uploader.errors import Unavailable
from uploader.service.uploads.closers import Closers

logger = logging.getLogger(__name__)

_BATCH = 100


class Expiry:
    """Asks the database which uploads may be idle, and the store, under an upload's locks, which are."""

    def __init__(self, database: Database, closers: Closers, *, expiry_seconds: float) -> None:
        self._database = database
        self._closers = closers
        self.expiry_seconds = expiry_seconds

    async def idle(self, updated_before: datetime, *, after_id: str) -> list[Upload]:
        """The next uploads, by their ids, that may be idle. Raises Unavailable."""
        return await self._database.read(
            lambda connection: queries.idle_uploads(connection, updated_before, after_id, _BATCH)
        )

    async def expire(self, uploads: list[Upload]) -> None:
        """Expire those that are idle. One that is busy holds up no other."""
        for upload in uploads:
            try:
                await self._closers.expire(upload, self.expiry_seconds)
            except Unavailable as error:
                logger.warning(
                    "an upload is not expired for now", extra={"upload_id": upload.id, "reason": error.reason}
                )
