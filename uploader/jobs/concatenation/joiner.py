"""Takes up wholes whose worker died, and those whose parts were completed where nobody saw it."""

from uploader.jobs.runner import Job
from uploader.service.concatenation.ordering import Concatenations

_INTERVAL_SECONDS = 1.0


class Joiner:
    """Several at once are safe: parts are joined under their locks, and one process fills a whole."""

    def __init__(self, concatenations: Concatenations) -> None:
        self._concatenations = concatenations

    def as_job(self) -> Job:
        return Job("joiner", self.run_once)

    async def run_once(self) -> float:
        """One look at all that something is to be done for."""
        await self._concatenations.advance_due()
        return _INTERVAL_SECONDS
