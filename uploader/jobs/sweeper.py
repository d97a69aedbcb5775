"""Looks whether Redis was lost, and has the shard swept if so."""

import logging

from uploader.errors import StorageFailed
from uploader.jobs.runner import Job
from uploader.service.upkeep.sweeping import Sweeping

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 1.0
# Until the next sweep, if a few uploads could not be dealt with.
_PATIENCE_SECONDS = 60.0


class Sweeper:
    """The sweeper of one shard."""

    def __init__(self, shard: int, sweeping: Sweeping) -> None:
        self._shard = shard
        self._sweeping = sweeping

    def as_job(self) -> Job:
        return Job(f"sweeper {self._shard}", self.run_once)

    async def run_once(self) -> float:
        """One look, and one sweep if it is due."""
        try:
            await self._sweeping.sweep(self._shard)
        except StorageFailed as error:
            logger.warning("uploads are left for the next sweep", extra={"shard": self._shard, "reason": error.reason})
            return _PATIENCE_SECONDS
        return _INTERVAL_SECONDS
