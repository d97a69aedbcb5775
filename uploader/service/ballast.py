"""Looks after the ballast: releases the ballast when Redis lacks space for its log, and makes another when the disk has
space.

The database and the trash release the ballast themselves when their writes find no space.
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
    # The embedded Redis, whose log is on the same disk.
    redis: RedisConnection | None

    async def look(self) -> float:
        """Notice a ballast that another process has made, and release the ballast if Redis needs space. Runs in each
        process. Return the seconds until the next look."""
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
            return False  # Redis may have ended, and lack the space to start again

    def is_wanted(self, *, first: bool) -> bool:
        """Return whether to call `make`, according to the last look in this process."""
        return self.ballast.is_used or (first and (self.ballast.reserve is None or not self.ballast.has_inodes))

    async def make(self, *, first: bool) -> None:
        """Make the `first` ballast, or a used one again, with space from the trash. Raises Unavailable, Stopping."""
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
