"""Maintenance jobs: cleanup, collection, links, trash, bulk operations, ballast, copies, scrubbing, reconciliation, the
daily snapshot."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass, field
from datetime import date, timedelta
from pathlib import Path

from uploader.errors import UploaderError
from uploader.jobs.runner import Job, Pause
from uploader.runtime.clock import Clock
from uploader.runtime.observability import level_of
from uploader.service.audit_log import AuditLog
from uploader.service.ballast import BallastKeeping
from uploader.service.bulk import BulkOperations
from uploader.service.cleanup import Cleanup, LastCleanup
from uploader.service.close import Closers
from uploader.service.deleted import DeletedFiles
from uploader.service.files import Files
from uploader.service.installation import Installation
from uploader.service.leases import Lease
from uploader.service.links import LinkKeeping
from uploader.service.open import Admission
from uploader.service.reconcile import Kind, Reconciling
from uploader.service.reports import Overview
from uploader.service.scrub import RateLimit, Scrubbing
from uploader.service.trash import TrashKeeping
from uploader.storage.base import Stopping

logger = logging.getLogger(__name__)

_CLEANUP_INTERVAL_SECONDS = 60.0
# By then, recently changed or busy files are settled.
_AGAIN = timedelta(hours=1)
# After a start, the disk has more urgent work.
_CLEANUP_GRACE_SECONDS = 60.0


@dataclass(eq=False, repr=False)
class Cleaner:
    """Cleans up after a start and once a month. Repeats, at most once an hour, while something is unsettled or left, or
    after the reconciler found something. Leaves idle uploads to the expirer. One of several workers cleans up for all."""

    cleanup: Cleanup
    lease: Lease
    clock: Clock

    def __post_init__(self) -> None:
        self._started_at = self.clock.now()

    def as_job(self) -> Job:
        return Job("cleanup", self.run_once, first_delay_seconds=_CLEANUP_GRACE_SECONDS)

    async def run_once(self) -> float:
        await self.lease.do_once(self._is_due, self._clean)
        return _CLEANUP_INTERVAL_SECONDS

    async def _is_due(self) -> bool:
        last, now = await self.cleanup.last(), self.clock.now()
        if last is None:
            return True
        if timedelta() <= now - last.at < _AGAIN:
            return False
        return last.left or last.at < self._started_at or f"{last.at:%Y-%m}" != f"{now:%Y-%m}"

    async def _clean(self) -> None:
        cleaned = await self.cleanup.clean()
        logger.info("cleanup ended", extra=asdict(cleaned))
        if cleaned.stray_blobs:
            logger.warning(
                "many blobs that no row names are kept: is this their database?",
                extra={
                    "blobs": cleaned.stray_blobs,
                    "disk_bytes": cleaned.stray_bytes,
                    "remove_by": "uploader cleanup --yes",
                },
            )
        await self.cleanup.remember(LastCleanup(self.clock.now(), bool(cleaned.unsettled or cleaned.left)))


_INTERVAL_SECONDS = 60.0
_BATCH = 1000


@dataclass(eq=False, repr=False)
class Collector:
    """Removes blobs without refs and leftovers of closed uploads. Forgets closed uploads that are old or beyond the newest
    of their caller, and old acts of the audit log. Several workers may run at once, because each blob is removed under the
    lock of its row."""

    files: Files
    closers: Closers
    cleanup: Cleanup
    audit_log: AuditLog
    clock: Clock
    _: KW_ONLY
    closed_retention_seconds: float

    def __post_init__(self) -> None:
        self._closed_retention = timedelta(seconds=self.closed_retention_seconds)

    async def run_once(self) -> float:
        collected = await self.files.collect_all(_BATCH)
        purged = await self.cleanup.purge_closed(self.clock.now() - self._closed_retention, _BATCH)
        more = await self.cleanup.purge_crowded(_BATCH)
        more = await self.cleanup.find_left(_BATCH) or more
        forgotten = await self.audit_log.forget_old(_BATCH)
        await self.closers.tidy_left()
        return 0.0 if more or _BATCH in (collected, purged, forgotten) else _INTERVAL_SECONDS


_LINK_INTERVAL_SECONDS, _LINK_GRACE_SECONDS = 10.0, 3600.0


@dataclass(eq=False, repr=False)
class LinkKeeper:
    """Closes open uploads of ended links; forgets old links and expired sessions. Several workers may run at once. For a
    while after a start, an outage or a jump of the clock, expired links are left alone, because they may only seem
    expired."""

    keeping: LinkKeeping
    clock: Clock

    def __post_init__(self) -> None:
        self._pause = Pause(
            "links", self.clock, grace_seconds=_LINK_GRACE_SECONDS, interval_seconds=_LINK_INTERVAL_SECONDS
        )

    async def run_once(self) -> float:
        if self._pause.active():
            return 0.0 if await self.keeping.close_ended(_BATCH, expired=False) == _BATCH else _LINK_INTERVAL_SECONDS
        closed = await self.keeping.close_ended(_BATCH, expired=True)
        forgotten = await self.keeping.forget(_BATCH)
        return 0.0 if _BATCH in (closed, forgotten) else _LINK_INTERVAL_SECONDS


# The shortest interval between walks, for a short retention.
_SHORTEST_SECONDS = 1.0
# A walk through a million entries takes seconds. There is no hurry: content that somebody wants is brought back on request.
_WALK_SECONDS = 3600.0
_TRASH_GRACE_SECONDS = 3600.0


@dataclass(eq=False, repr=False)
class TrashKeeper:
    """Walks through the trash of the store: brings back contents that a row names again, and purges old entries. Forgets old
    deleted files of users, and keeps the floor of free space. One of several workers walks. Two at once are safe, because
    each entry is handled under the lock of its row."""

    keeping: TrashKeeping
    deleted_files: DeletedFiles
    admission: Admission
    lease: Lease
    clock: Clock

    def __post_init__(self) -> None:
        retention = self.keeping.retention_seconds
        # Without a trash, entries may remain from an earlier retention or from a process with another retention.
        shortest = _SHORTEST_SECONDS if self.keeping.storage.keeps_trash else _INTERVAL_SECONDS
        self._walk_seconds = min(_WALK_SECONDS, max(retention / 2, shortest))
        self._interval_seconds = min(_INTERVAL_SECONDS, self._walk_seconds)
        grace = min(_TRASH_GRACE_SECONDS, retention)
        self._pause = Pause("the trash", self.clock, grace_seconds=grace, interval_seconds=self._interval_seconds)
        self._walked_at = float("-inf")

    async def run_once(self) -> float:
        # After a jump of the clock, all entries seem old. Ask at each run, or the gap between two questions looks like an
        # outage.
        paused = self._pause.active()
        with suppress(Stopping):
            await self.admission.keep_floor()
            if not paused:
                await self.deleted_files.forget_old()
            if self.clock.monotonic() - self._walked_at >= self._walk_seconds:
                async with self.lease.held() as is_ours:
                    if is_ours:
                        await self._walk(paused=paused)
        return self._interval_seconds

    async def _walk(self, *, paused: bool) -> None:
        await self.keeping.restore_named()
        purged = None if paused else await self.keeping.purge_old()
        if purged is not None and purged.entries:
            logger.info("purged from the trash", extra=asdict(purged))
        self._walked_at = self.clock.monotonic()


_BULK_SECONDS = 5.0


@dataclass(eq=False, repr=False)
class BulkFinisher:
    """Finishes bulk operations after their server died or stopped. Several workers may run at once, because each range of
    names is taken under the lock of the operation's row."""

    bulk_operations: BulkOperations

    async def run_once(self) -> float:
        await self.bulk_operations.resume_left()
        return _BULK_SECONDS


_BALLAST_SECONDS = 5.0
# After a start, the disk has more urgent work.
_BALLAST_GRACE_SECONDS = 30.0


@dataclass(eq=False, repr=False)
class BallastKeeper:
    """Makes the ballast, and makes it again when the disk has free space. Several workers may run at once: one makes it."""

    keeping: BallastKeeping
    installation: Installation
    clock: Clock

    def __post_init__(self) -> None:
        self._makes_first_at = self.clock.monotonic() + _BALLAST_GRACE_SECONDS

    async def run_once(self) -> float:
        first = self.clock.monotonic() >= self._makes_first_at
        if self.keeping.is_wanted(first=first):
            await self.installation.check()  # the trash may give way to the ballast
            with suppress(Stopping):
                await self.keeping.make(first=first)
        return _BALLAST_SECONDS


COPY_GRACE_SECONDS = 60.0
_COPY_SECONDS, _COPY_AGAIN_SECONDS = 60.0, 600.0


@dataclass(eq=False, repr=False)
class CopyKeeper:
    """Keeps fresh copies of the database. Several workers may run at once: one makes a copy."""

    keep: Callable[[], Awaitable[Path | None]]

    async def run_once(self) -> float:
        try:
            if (made := await self.keep()) is not None:
                logger.info("the database is copied", extra={"path": str(made)})
        except Stopping:
            pass
        except UploaderError as error:  # a copy takes long and would fail again
            logger.log(
                level_of(error, logging.ERROR), "no copy of the database is made", extra={"reason": error.reason}
            )
            return _COPY_AGAIN_SECONDS
        return _COPY_SECONDS


# Unreadable contents are tried again within a minute.
_SCRUB_INTERVAL_SECONDS = 20.0
_LOOKS_WITHIN_GOAL = 10


class Scrubber:
    """Reads contents back from the disk at a limited rate, when no other thread wants the disk. One of several workers reads
    at a time."""

    def __init__(self, scrubbing: Scrubbing, *, rate_bytes_per_second: int) -> None:
        self._scrubbing = scrubbing
        self._pace = RateLimit(rate_bytes_per_second)
        first_seconds = scrubbing.settings.scrub_first_seconds
        self._interval_seconds = min(_SCRUB_INTERVAL_SECONDS, first_seconds / _LOOKS_WITHIN_GOAL)

    async def run_once(self) -> float:
        try:
            more = await self._scrubbing.scrub_due(self._pace)
        except Stopping:
            return self._interval_seconds
        return 0.0 if more else self._interval_seconds


_RECONCILE_EVERY = timedelta(hours=1)
_RECONCILE_INTERVAL_SECONDS = 60.0
# Drifts that a cleanup may remove.
_FOR_A_CLEANUP = frozenset({Kind.STRAY_BLOB, Kind.LEFTOVER})
# With the database of another disk, every blob is a drift.
_MAX_LINES = 100


@dataclass(eq=False, repr=False)
class Reconciler:
    """Reports drifts once an hour, like `uploader reconcile`, and repairs nothing: a drift is a fault that somebody has to
    see. Leaves the remains of crashes to the cleanup. One of several workers reconciles; if it dies, another one
    continues."""

    reconciling: Reconciling
    cleanup: Cleanup
    lease: Lease
    clock: Clock

    def as_job(self) -> Job:
        # Not right after a start, when there is enough to do.
        return Job("reconciler", self.run_once, first_delay_seconds=_RECONCILE_EVERY.total_seconds())

    async def run_once(self) -> float:
        await self.lease.do_once(self._is_due, self._reconcile)
        return _RECONCILE_INTERVAL_SECONDS

    async def _is_due(self) -> bool:
        last = await self.reconciling.last()
        return last is None or not timedelta() <= self.clock.now() - last.at < _RECONCILE_EVERY

    async def _reconcile(self) -> None:
        found = await self.reconciling.reconcile(goes_on=True)
        if any(drift.kind in _FOR_A_CLEANUP for drift in found.drifts):
            await self.cleanup.ask_again()
        for drift in found.drifts[:_MAX_LINES]:
            facts = {"kind": drift.kind.value, "expected": drift.expected, "actual": drift.actual}
            logger.warning("drift", extra={"subject": drift.subject, **facts})
        if len(found.drifts) > _MAX_LINES:
            logger.warning("more drifts", extra={"drifts": len(found.drifts), "told_by": "uploader reconcile"})


@dataclass(eq=False, repr=False)
class Snapshot:
    """Stores a snapshot of the totals once per UTC day, for history and growth in reports. Several workers may run at once:
    the first row of a day stays. A day without a running worker has no snapshot."""

    overview: Overview
    clock: Clock
    _taken: date | None = field(default=None, init=False)

    async def run_once(self) -> float:
        if self.clock.now().date() != self._taken:
            self._taken = await self.overview.take_day()
        return _INTERVAL_SECONDS
