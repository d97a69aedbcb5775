"""Reports, once an hour, what `uploader reconcile` would. It mends nothing: a drift is a fault that somebody has to see."""

import logging

from uploader.jobs.runner import Job
from uploader.observability import DRIFTS
from uploader.service.audit.reconciling import Reconciling
from uploader.storage.base import Stopping

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 3600.0
# A database that is not this disk's makes a drift of every blob.
_MAX_LINES = 100


class Reconciler:
    """The reconciler. Several at once are safe, and say the same."""

    def __init__(self, reconciling: Reconciling) -> None:
        self._reconciling = reconciling

    def as_job(self) -> Job:
        # Not at the start: there is enough to do after an outage.
        return Job("reconciler", self.run_once, first_delay_seconds=_INTERVAL_SECONDS)

    async def run_once(self) -> float:
        """Look at everything once."""
        try:
            found = await self._reconciling.reconcile()
        except Stopping:
            return _INTERVAL_SECONDS
        DRIFTS.set(len(found.drifts))
        for drift in found.drifts[:_MAX_LINES]:
            facts = {"kind": drift.kind.value, "expected": drift.expected, "actual": drift.actual}
            logger.warning("drift", extra={"subject": drift.subject, **facts})
        if len(found.drifts) > _MAX_LINES:
            logger.warning("more drifts", extra={"drifts": len(found.drifts), "told_by": "uploader reconcile"})
        return _INTERVAL_SECONDS
