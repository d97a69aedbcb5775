"""Whether what the server depends on works: for load balancers, and for the person who asks why it does not."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from uploader.accounting.pending import Pending
from uploader.database import migrate
from uploader.database.engine import Database
from uploader.errors import StorageFailed, UploaderError
from uploader.storage.base import Storage

# How old an answer of the disk may be.
_STORAGE_CHECK_SECONDS = 0.5


class Health:
    """Asks the disk, Redis and the database."""

    def __init__(self, database: Database, storage: Storage, pending: Pending) -> None:
        self._database = database
        self._storage = storage
        self._pending = pending
        self._storage_lock = asyncio.Lock()
        self._storage_reason: str | None = None
        self._storage_checked_at: float | None = None

    async def check(self) -> dict[str, str | None]:
        """For each part, what is wrong with it, or None."""
        return {
            "database": await self._reason(self._check_database),
            "redis": await self._reason(self._pending.ping),
            "storage": await self._reason(self._check_storage),
        }

    async def _check_database(self) -> None:
        await migrate.check(self._database)

    async def _check_storage(self) -> None:
        """However often it is asked, one check runs at a time, and none right after another: it is a write."""
        async with self._storage_lock:
            checked_at = self._storage_checked_at
            if checked_at is None or time.monotonic() > checked_at + _STORAGE_CHECK_SECONDS:
                self._storage_reason = await self._reason(self._storage.check)
                self._storage_checked_at = time.monotonic()
        if self._storage_reason is not None:
            raise StorageFailed(self._storage_reason)

    async def _reason(self, check: Callable[[], Awaitable[None]]) -> str | None:
        try:
            await check()
        except UploaderError as error:
            return error.detail
        return None
