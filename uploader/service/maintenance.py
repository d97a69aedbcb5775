"""Reports when the store was last put in order (reconciled, totals noted, backed up), for `/readyz` and the doctor."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from uploader.database import audit_log, reports
from uploader.database.audit_log import Wanted
from uploader.database.engine import Database
from uploader.database.reports import Page
from uploader.domain import reasons
from uploader.domain.audit_log import Action
from uploader.domain.diagnosis import Diagnosis, Subject, note, to_act_on
from uploader.runtime.clock import Clock
from uploader.service.reconcile import last_reconciled
from uploader.units import format_ago

# Beyond these ages the hourly or daily job is not running.
_RECONCILED_WITHIN, _SNAPSHOT_WITHIN = timedelta(days=1), timedelta(days=2)
_BACKUP_WITHIN = timedelta(days=8)
_EVER = datetime.min.replace(tzinfo=UTC)


@dataclass(eq=False, repr=False)
class Maintenance:
    # `since`: when jobs could begin to run. `/readyz` does not report jobs that did not run while no server did.
    database: Database
    clock: Clock
    since: datetime = _EVER

    @property
    def looks(self) -> dict[Subject, Callable[[], Awaitable[list[Diagnosis]]]]:
        return {Subject.RECONCILE: self.reconcile, Subject.SNAPSHOT: self.snapshot, Subject.BACKUP: self.backup}

    async def diagnoses(self) -> list[Diagnosis]:
        """Return the diagnoses that need an action. Raises Unavailable."""
        return to_act_on([each for look in self.looks.values() for each in await look()])

    async def reconcile(self) -> list[Diagnosis]:
        last = await self.database.read(last_reconciled)
        if last is None:
            return []
        ago = self._ago(last.at)
        if last.drifts > last.repaired:
            return [reasons.DRIFTS(ago=ago, count=last.drifts)]
        if self._is_late(last.at, _RECONCILED_WITHIN):
            return [reasons.RECONCILE_OLD(ago=ago)]
        return [note(Subject.RECONCILE, f"the last reconcile, {ago}, found nothing", "nothing to do")]

    async def snapshot(self) -> list[Diagnosis]:
        day = await self.database.read(reports.newest_day_until, self.clock.now().date())
        if day is None:
            return []
        ago = self._ago(day.taken_at)
        if self._is_late(day.taken_at, _SNAPSHOT_WITHIN):
            return [reasons.SNAPSHOT_OLD(ago=ago)]
        return [note(Subject.SNAPSHOT, f"the last snapshot was taken {ago}", "nothing to do")]

    async def backup(self) -> list[Diagnosis]:
        newest = Page(sort="created_at", descending=True, limit=1, after=None)
        made = await self.database.read(audit_log.acts, Wanted(action=Action.BACKUP_MADE.value), newest)
        if not made:
            what = "`uploader backup` has made none"
            return [note(Subject.BACKUP, what, "make one every day, unless something else does")]
        at, lacking = made[0].created_at, made[0].details.get("lacking")
        if lacking:
            return [reasons.BACKUP_LACKS(ago=self._ago(at), count=lacking)]
        if self.clock.now() - at > _BACKUP_WITHIN:  # no job of a server makes backups
            return [reasons.BACKUP_OLD(ago=self._ago(at))]
        return [note(Subject.BACKUP, f"the last backup was made {self._ago(at)}", "nothing to do")]

    def _is_late(self, at: datetime, within: timedelta) -> bool:
        return self.clock.now() - max(at, self.since) > within

    def _ago(self, moment: datetime) -> str:
        return format_ago(self.clock.now() - moment)
