"""Gives back what lies in the trash and is named again, and removes for good what lies there for long enough."""

import logging
from dataclasses import asdict

from uploader.clock import Clock
from uploader.jobs.pause import Pause
from uploader.jobs.runner import Job
from uploader.service.contents.trash import TrashKeeping
from uploader.service.uploads.admission import Admission
from uploader.storage.base import Stopping

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 60.0
_GRACE_SECONDS = 3600.0


class TrashKeeper:
    """The keeper of the trash. Several at once are safe: each entry is looked at under its row's lock."""

    def __init__(self, keeping: TrashKeeping, admission: Admission, clock: Clock) -> None:
        self._keeping = keeping
        self._admission = admission
        self._interval_seconds = min(_INTERVAL_SECONDS, max(keeping.retention_seconds / 2, 0.1))
        grace = min(_GRACE_SECONDS, keeping.retention_seconds)
        self._pause = Pause("the trash", clock, grace_seconds=grace, interval_seconds=self._interval_seconds)

    def as_job(self) -> Job:
        return Job("trash", self.run_once)

    async def run_once(self) -> float:
        """Look at all that is there."""
        try:
            await self._keeping.restore_named()
            await self._admission.keep_floor()
            # After a jump of the clock all of it seems to be old.
            if not self._pause.active():
                purged = await self._keeping.purge_old()
                if purged.entries:
                    logger.info("purged from the trash", extra=asdict(purged))
        except Stopping:
            pass
        return self._interval_seconds
