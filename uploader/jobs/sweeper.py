"""Looks whether Redis was lost, and has the shard swept if so."""

from uploader.jobs.runner import Job
from uploader.service.upkeep.sweeping import Sweeping

_INTERVAL_SECONDS = 1.0


class Sweeper:
    """The sweeper of one shard."""

    def __init__(self, shard: int, sweeping: Sweeping) -> None:
        self._shard = shard
        self._sweeping = sweeping

    def as_job(self) -> Job:
        return Job(f"sweeper {self._shard}", self.run_once)

    async def run_once(self) -> float:
        """One look, and one sweep if it is due."""
        await self._sweeping.sweep(self._shard)
        return _INTERVAL_SECONDS
