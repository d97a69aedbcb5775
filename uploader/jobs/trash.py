"""Gives back what lies in the trash and is named again, and removes for good what lies there for long enough."""

import logging
from contextlib import suppress
from dataclasses import asdict

from uploader.clock import Clock
from uploader.jobs.pause import Pause
from uploader.jobs.runner import Job
from uploader.service.contents.trash import TrashKeeping
from uploader.service.uploads.admission import Admission
from uploader.storage.base import Stopping

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 60.0
# Of a short retention, and of none where the store keeps things all the same.
_SHORTEST_SECONDS = 1.0
# To walk through a million entries takes seconds; what is wanted at once comes back when it is asked for.
_WALK_SECONDS = 3600.0
_GRACE_SECONDS = 3600.0


class TrashKeeper:
    """The keeper of the trash. Several at once are safe: each entry is looked at under its row's lock."""

    def __init__(self, keeping: TrashKeeping, admission: Admission, clock: Clock) -> None:
        self._keeping = keeping
        self._admission = admission
        self._clock = clock
        retention = keeping.retention_seconds
        # Where nothing comes, there may be what another retention has left, of this process or of one that still runs.
        shortest = _SHORTEST_SECONDS if keeping.keeps else _INTERVAL_SECONDS
        self._walk_seconds = min(_WALK_SECONDS, max(retention / 2, shortest))
        self._interval_seconds = min(_INTERVAL_SECONDS, self._walk_seconds)
        grace = min(_GRACE_SECONDS, retention)
        self._pause = Pause("the trash", clock, grace_seconds=grace, interval_seconds=self._interval_seconds)
        self._walked_at = float("-inf")

    def as_job(self) -> Job:
        return Job("trash", self.run_once)

    async def run_once(self) -> float:
        """Give way where the disk is short; and now and then look at all that is there."""
        # After a jump of the clock all of it seems to be old. Asked each time, or a pause itself looks like an outage.
        paused = self._pause.active()
        with suppress(Stopping):
            await self._admission.keep_floor()
            if self._clock.monotonic() - self._walked_at >= self._walk_seconds:
                await self._keeping.restore_named()
                if not paused:
                    await self._purge()
                self._walked_at = self._clock.monotonic()
        return self._interval_seconds

    async def _purge(self) -> None:
        purged = await self._keeping.purge_old()
        if purged.entries:
            logger.info("purged from the trash", extra=asdict(purged))
