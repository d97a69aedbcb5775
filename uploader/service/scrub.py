"""Reads contents back from the disk and compares them with their SHA-256. Rotten contents are marked as damaged, or
healed from the trash.

An administrator's scrub goes through all contents by SHA-256, from where the last run ended. The background scrub reads
contents first that were never read back since they were placed, then those read longest ago. On a disk, scrubbing also
makes missing checksums, which downloads are compared with.
"""

import logging
import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

import msgspec

from uploader.database import meta, queries
from uploader.database.engine import Database
from uploader.errors import DatabaseDamaged, StorageFailed, StorageFull
from uploader.runtime.clock import Clock
from uploader.runtime.observability import level_of
from uploader.service.heal import DUE, Damage, Healing
from uploader.service.ids import greatest
from uploader.service.leases import Lease
from uploader.settings import Settings
from uploader.storage.base import Pace

logger = logging.getLogger(__name__)

_BATCH = 200
# At a time: many unreadable contents must not hold up the others.
_REREADS = 20
_POSITION = "scrub"
_REMEMBER_INTERVAL_SECONDS = 5.0
_SAMPLE_SECONDS = 3600.0


class RateLimit:
    """Keeps reads at a rate of bytes per second; 0 means as fast as the disk."""

    def __init__(self, rate_bytes_per_second: int) -> None:
        self._rate = rate_bytes_per_second
        self._due = time.monotonic()

    def __call__(self, read_bytes: int) -> None:
        if not self._rate:
            return
        now = time.monotonic()
        # A delay by a slow disk is made up for by at most one second of faster reading.
        self._due = max(self._due, now - 1) + read_bytes / self._rate
        time.sleep(max(0.0, self._due - now))


class ScrubProgress(msgspec.Struct):
    after: str = ""
    blobs: int = 0
    bytes: int = 0
    damaged: int = 0


@dataclass(frozen=True, slots=True)
class Age:
    """The seconds since the longest waiting content was read back or placed."""

    seconds: float
    within_goal: bool


@dataclass(eq=False, repr=False)
class Scrubbing:
    settings: Settings
    database: Database
    healing: Healing
    clock: Clock
    _sample_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        scrub = self.settings.scrub or ("all" if self.settings.storage is None else "sample")
        # `sample`: read back a random content now and then, instead of all contents within the times of the settings.
        self._samples = scrub == "sample"
        self._lease = Lease(self.database, self.clock, "scrubber")
        self.progress = ScrubProgress()

    async def scrub_due(self, pace: Pace) -> bool:
        """Read back the due contents, and contents that could not be read before. Return whether there may be more. One
        worker does this at a time, or two while a content takes longer than a lease. Raises Unavailable, Stopping."""
        if not await self._lease.take():
            return False
        await self._reread(pace)
        if self._samples:
            await self._scrub_sample(pace)
            return False
        now = self.clock.now()
        placed_before = now - timedelta(seconds=DUE * self.settings.scrub_first_seconds)
        scrubbed_before = now - timedelta(seconds=DUE * self.settings.scrub_every_seconds)
        ask = partial(queries.blobs_to_scrub, placed_before=placed_before, scrubbed_before=scrubbed_before)
        due = await self.database.read(partial(ask, limit=_BATCH))
        for blob in due:
            await self._examine(blob.sha256, pace)
            if not await self._lease.take():
                return False
            await self._reread(pace)
        return len(due) == _BATCH

    async def _reread(self, pace: Pace) -> None:
        now = self.clock.now()
        for blob in await self.database.read(queries.blobs_to_reread, now, _REREADS):
            await self._examine(blob.sha256, pace)

    async def _scrub_sample(self, pace: Pace) -> None:
        now = self.clock.monotonic()
        if now < self._sample_at:
            return
        self._sample_at = now + _SAMPLE_SECONDS
        # SHA-256 values are evenly spread: the first one after a random number is a random content.
        for blob in await self._blobs(secrets.token_hex(32), 1) or await self._blobs("", 1):
            await self._examine(blob.sha256, pace)

    async def _examine(self, sha256: str, pace: Pace) -> Damage | None:
        """Examine a blob. An unreadable blob or a damaged row does not hold up the others; the reconciler reports it."""
        try:
            return await self.healing.examine(sha256, pace)
        except (DatabaseDamaged, StorageFailed, StorageFull) as error:
            logger.log(
                level_of(error), "a content is not read back for now", extra={"sha256": sha256, "reason": error.reason}
            )
            return None

    async def age(self) -> Age:
        """Raises Unavailable."""
        placed_at, scrubbed_at = await self.database.read(queries.unscrubbed_since)
        first, again = self._seconds_since(placed_at), self._seconds_since(scrubbed_at)
        within = self._samples or (
            first <= self.settings.scrub_first_seconds and again <= self.settings.scrub_every_seconds
        )
        return Age(max(first, again), within)

    def _seconds_since(self, moment: datetime | None) -> float:
        return 0.0 if moment is None else (self.clock.now() - moment).total_seconds()

    async def scrub(self, pace: Pace, *, restart: bool = False) -> AsyncGenerator[Damage]:
        """Yield damaged contents, from where the last run ended. Begin with the first blob after a complete pass, or with
        `restart`. `pace` gets the bytes of each read, in a thread, and may sleep there. Raises Unavailable, Stopping."""
        interrupted = None if restart else await self.database.read(meta.kept, _POSITION, ScrubProgress)
        self.progress = interrupted or ScrubProgress()
        remembered_at = self.clock.monotonic()
        while blobs := await self._blobs(self.progress.after):
            for blob in blobs:
                damage = await self._examine(blob.sha256, pace)
                self.progress.after = greatest(self.progress.after, [blob.sha256])
                self.progress.blobs += 1
                self.progress.bytes += blob.size
                if damage is not None:
                    self.progress.damaged += 1
                    yield damage
                if damage or self.clock.monotonic() - remembered_at > _REMEMBER_INTERVAL_SECONDS:
                    await self._remember(self.progress)
                    remembered_at = self.clock.monotonic()
        await self._remember(ScrubProgress())

    async def _blobs(self, after: str, limit: int = _BATCH) -> list[queries.Blob]:
        return await self.database.read(queries.blobs_in_use, after, limit)

    async def _remember(self, progress: ScrubProgress) -> None:
        await self.database.transact(meta.keep, _POSITION, progress)
