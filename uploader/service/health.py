"""Whether what the server depends on works: for load balancers, and for the person who asks why it does not."""

from collections.abc import Awaitable, Callable

from uploader.accounting.pending import Pending
from uploader.database import migrate
from uploader.database.engine import Database
from uploader.errors import UploaderError
from uploader.storage.base import Storage


class Health:
    """Asks the disk, Redis and the database."""

    def __init__(self, database: Database, storage: Storage, pending: Pending) -> None:
        self._database = database
        self._storage = storage
        self._pending = pending

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
        await self._storage.space()

    async def _reason(self, check: Callable[[], Awaitable[None]]) -> str | None:
        try:
            await check()
        except UploaderError as error:
            return error.detail
        return None
