"""The jobs for uploads: flush, merge, join and fill concatenations, expire, sweep after a loss of Redis."""

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import timedelta

from uploader.errors import StorageFailed
from uploader.jobs.runner import Job, Pause
from uploader.runtime.clock import Clock
from uploader.runtime.observability import level_of
from uploader.service.cleanup import Expiry
from uploader.service.concatenate import Concatenations
from uploader.service.flush import Flushing, Sweeping, UploadQueue
from uploader.service.ids import greatest
from uploader.service.merge import Merging
from uploader.service.results import Complete

# The pause after a flush. Tasks that become due meanwhile are flushed together: a commit costs as much as several
# hundred rows.
_REST_SECONDS = 0.2


@dataclass(eq=False, repr=False)
class Flusher:
    queue: UploadQueue
    flushing: Flushing

    def as_jobs(self) -> list[Job]:
        """Make two jobs: one can claim or acknowledge a batch while the database writes the batch of the other."""
        name = f"flusher {self.queue.shard}"
        return [Job(name, self.run_once, wake_channel=self.queue.wake_channel) for name in (name, f"{name}, second")]

    async def run_once(self) -> float:
        batch = await self.flushing.flush_due(self.queue)
        if batch.more:
            return 0.0
        if batch.claimed:
            await asyncio.sleep(_REST_SECONDS)
        return await self.queue.pause_seconds()


# Merges at once. A merge hashes: more merges at once would only be slower.
_MAX_MERGES = 4
# How long to wait for a running merge before looking for due merges again.
_LOOK_SECONDS = 1.0


@dataclass(eq=False, repr=False)
class Merger:
    """Takes over merges of a shard after their worker died, and merges for which no request waits."""

    queue: UploadQueue
    merging: Merging
    _running: set[asyncio.Task[Complete]] = field(default_factory=set, init=False)

    def as_job(self) -> Job:
        return Job(f"merger {self.queue.shard}", self.run_once, wake_channel=self.queue.wake_channel)

    async def run_once(self) -> float:
        """Start due merges. Sleep until the next merge is due, or a running merge ends. Merges run beside each other,
        and end by themselves after a stop."""
        room = _MAX_MERGES - len(self._running)
        for task in await self.merging.start_due(self.queue, room) if room else []:
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        if self._running:
            await asyncio.wait(self._running, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            return 0.0
        return await self.queue.pause_seconds()


# While any concatenation waits, and while none waits.
_JOIN_INTERVAL_SECONDS, _JOIN_IDLE_SECONDS = 1.0, 5.0


@dataclass(eq=False, repr=False)
class Joiner:
    """Advances concatenations after their worker died, or after the last part was completed unnoticed. Several
    processes may run this job: parts are joined under their locks, and only one process fills a whole."""

    concatenations: Concatenations

    async def run_once(self) -> float:
        return _JOIN_INTERVAL_SECONDS if await self.concatenations.advance_due() else _JOIN_IDLE_SECONDS


_EXPIRY_INTERVAL_SECONDS = 60.0
_GRACE_SECONDS = 3600.0


@dataclass(eq=False, repr=False)
class Expirer:
    """Expires idle uploads, except for a while after a start, an outage, or a jump of the clock. Several processes may
    run this job: each upload is checked under its locks."""

    expiry: Expiry
    clock: Clock

    def __post_init__(self) -> None:
        self._interval_seconds = min(_EXPIRY_INTERVAL_SECONDS, self.expiry.expiry_seconds / 2)
        grace = min(_GRACE_SECONDS, self.expiry.expiry_seconds)
        self._pause = Pause("expiry", self.clock, grace_seconds=grace, interval_seconds=self._interval_seconds)

    async def run_once(self) -> float:
        # Queried before `active`: without the database the run fails here, and counts as missed.
        updated_before = self.clock.now() - timedelta(seconds=self.expiry.expiry_seconds)
        idle = await self.expiry.idle(updated_before, after_id="")
        if self._pause.active():
            return self._interval_seconds
        after_id = ""
        while idle:
            await self.expiry.expire(idle)
            after_id = greatest(after_id, [upload.id for upload in idle])
            idle = await self.expiry.idle(updated_before, after_id=after_id)
        return self._interval_seconds


logger = logging.getLogger(__name__)

# Until the next sweep, if a few uploads failed.
_PATIENCE_SECONDS = 60.0


@dataclass(eq=False, repr=False)
class Sweeper:
    """Sweeps a shard after a loss of Redis. Looks as often as the shard's flusher, and wakes with it, because a loss
    deletes the tasks of that queue."""

    queue: UploadQueue
    sweeping: Sweeping

    def as_job(self) -> Job:
        return Job(f"sweeper {self.queue.shard}", self.run_once, wake_channel=self.queue.wake_channel)

    async def run_once(self) -> float:
        shard, pause_seconds = self.queue.shard, await self.queue.pause_seconds()  # before the sweep reads the era
        try:
            await self.sweeping.sweep(shard)
        except StorageFailed as error:
            logger.log(
                level_of(error), "uploads are left for the next sweep", extra={"shard": shard, "reason": error.reason}
            )
            return _PATIENCE_SECONDS
        return pause_seconds
