"""Looks after the ballast: gives it up where Redis has no room for its log, and makes it again when the disk has room.

The database and the trash give it up by themselves, where a write of theirs finds no room.
"""

import asyncio
import logging
from dataclasses import dataclass

from uploader.accounting.redis import RedisConnection, can_write
from uploader.errors import StorageFailed, Unavailable
from uploader.service.trash import TrashKeeping
from uploader.storage.ballast import Ballast
from uploader.storage.store import Store

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0


@dataclass(eq=False, repr=False)
class BallastKeeping:
    ballast: Ballast
    storage: Store
    trash: TrashKeeping
    # The embedded one, whose log is on the same disk.
    redis: RedisConnection | None

    async def look(self) -> float:
        """Look, in each process, whether another one has made the ballast, and whether Redis needs it; return when to look
        again, in seconds."""
        await asyncio.to_thread(self._look)
        if self.redis is not None and not await self._redis_can_write(self.redis):
            await asyncio.to_thread(self.ballast.make_room)
        return _LOOK_SECONDS

    def _look(self) -> None:
        try:
            self.ballast.look()
        except OSError as error:
            raise StorageFailed(inside=f"{self.ballast.path} can't be opened: {error.strerror}") from error

    async def _redis_can_write(self, redis: RedisConnection) -> bool:
        try:
            return await can_write(redis)
        except Unavailable:
            return False  # it may have ended, and find no room to start again

    def is_wanted(self, *, first: bool) -> bool:
        """Return whether to `make` it, as far as the last look in this process tells."""
        return self.ballast.is_used or (first and (self.ballast.reserve is None or not self.ballast.has_inodes))

    async def make(self, *, first: bool) -> None:
        """Make the ballast again if there is room, or the `first` one. Where it was used, the trash gives way to it. Raises
        Unavailable, Stopping."""
        await asyncio.to_thread(self._look)
        was_used = self.ballast.is_used
        if not was_used and not first:
            return
        try:
            if was_used and self.storage.keeps_files:
                lacking_bytes = await asyncio.to_thread(self.ballast.lacking_bytes)
                if lacking_bytes:
                    await self.trash.make_room(lacking_bytes)
            if await asyncio.to_thread(self.ballast.fill) and was_used:
                logger.warning("the ballast is there again: the disk takes bytes")
        except OSError as error:
            raise StorageFailed(inside=f"{self.ballast.path} can't be made: {error.strerror}") from error
