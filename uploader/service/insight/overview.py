"""What everything adds up to: now, on each day since there are snapshots, and how fast it grows.

All figures are of the database, but for the room on the disk; no directory is walked.
"""

from contextlib import suppress
from datetime import date, datetime, timedelta

from uploader.clock import Clock
from uploader.database import contents
from uploader.database.engine import Connection, Database, Duplicate
from uploader.database.reports import snapshots, usage
from uploader.domain.growth import SPANS_DAYS, Moment, growth
from uploader.domain.reports import Day, OpenSums, Totals
from uploader.service.insight.figures import HistoryDay, Summary, day_of, summary_of
from uploader.service.uploads.admission import Admission
from uploader.storage.base import Bounded


class Overview:
    """The summary, and the snapshots of days."""

    def __init__(self, database: Database, storage: Bounded, admission: Admission, clock: Clock) -> None:
        self._database = database
        self._storage = storage
        self._admission = admission
        self._clock = clock

    async def summary(self) -> Summary:
        """How things stand. Raises Unavailable."""
        as_of = self._clock.now()
        today = as_of.date()

        async def look(connection: Connection) -> tuple[Totals, list[OpenSums], list[Day | None], int]:
            totals, months = await _totals(connection)
            days = [await snapshots.newest_day_until(connection, today - timedelta(days=span)) for span in SPANS_DAYS]
            return totals, months, days, await contents.count_damaged_blobs(connection)

        totals, months, days, damaged = await self._database.read(look, snapshot=True)
        room = await self._admission.room(sum(month.quota_bytes - month.disk_bytes for month in months))
        present = _moment(as_of, totals)
        growths = [
            growth(span, present, None if day is None else _moment(day.taken_at, day.totals), room.available_bytes)
            for span, day in zip(SPANS_DAYS, days, strict=True)
        ]
        return summary_of(totals, months, room, growths, damaged_blobs=damaged, as_of=as_of)

    async def history(self, days: int) -> list[HistoryDay]:
        """The last `days` days, today included, in order; those on which nobody looked are left out."""
        first = self._clock.now().date() - timedelta(days=days - 1)
        found = await self._database.read(lambda connection: snapshots.days_since(connection, first))
        return [day_of(day) for day in found]

    async def take_day(self) -> date:
        """Take today's snapshot, unless it is there; returns the day. Raises Unavailable."""
        now = self._clock.now()
        today = now.date()
        if await self._database.read(lambda connection: snapshots.has_day(connection, today)):
            return today
        totals, _ = await self._database.read(_totals, snapshot=True)
        free = (await self._admission.room(0)).free_bytes
        day = Day(day=today, taken_at=now, totals=totals, free_disk_bytes=free)
        with suppress(Duplicate):  # another worker was faster
            await self._database.transact(lambda connection: snapshots.add_day(connection, day))
        return today


async def _totals(connection: Connection) -> tuple[Totals, list[OpenSums]]:
    months = await usage.open_sums_by_month(connection)
    return await usage.totals(connection, months), months


def _moment(taken_at: datetime, totals: Totals) -> Moment:
    return Moment(taken_at=taken_at, use_space_finished=totals.use_space_finished, physical_bytes=totals.physical_bytes)
