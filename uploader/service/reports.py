"""Reports for administrators: usage by user, idle uploads, totals, waiting tasks.

Owns the figures of `/admin` and `uploader report`; `as_of` is the moment of the figures. Changes nothing except the
snapshot of a day.
"""

import csv
import io
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TypeVar

from msgspec import Struct

from uploader.accounting.pending import Pending
from uploader.accounting.queue import Measured, MinuteBucket, added_up
from uploader.database import queries, reports
from uploader.database.engine import Connection, Database, Duplicate
from uploader.database.reports import Page
from uploader.domain.reports import SPANS_DAYS, Day, Growth, OpenTotal, TempMonth, Totals, UserReport, growth
from uploader.domain.upload import File, Upload
from uploader.errors import NotFound, UploadNotFound
from uploader.runtime.clock import Clock
from uploader.service.files import Files
from uploader.service.ids import Kind, cursor, parse_cursor
from uploader.service.open import Admission
from uploader.storage.base import Housekeeping


class UserUsage(Struct):
    """A user's accounts, in bytes, and the number of files and open uploads."""

    user_id: str
    total_space: int
    use_space_finished: int
    use_space_unfinished: int
    reserved: int
    files: int
    open_uploads: int


class OpenUploadReport(Struct):
    """An open upload of any user. Its end frees `quota_bytes` and `disk_bytes`. `updated_at`: last accounted."""

    upload_id: str
    user_id: str
    name: str
    created_at: datetime
    updated_at: datetime
    quota_bytes: int
    disk_bytes: int


class OpenUploadList(Struct):
    """A page of open uploads, and the sums over all pages. `next` is the cursor of the next page."""

    uploads: list[OpenUploadReport]
    next: str | None
    total: OpenTotal
    as_of: datetime


class Disk(Struct):
    """The disk, in bytes. `free_bytes` includes `trash_bytes`, which give way; `promised_bytes` is what open uploads
    may still write; `available_bytes` is what new uploads may reserve."""

    total_bytes: int
    free_bytes: int
    floor_bytes: int
    promised_bytes: int
    available_bytes: int
    trash_bytes: int


class Summary(Totals, kw_only=True):
    """The whole installation. `damaged_blobs` counts contents whose bytes were found bad."""

    saved_bytes: int
    damaged_blobs: int
    temp: list[TempMonth]
    disk: Disk
    growth: list[Growth]
    as_of: datetime


class Report(Struct):
    """The output of `uploader report --json`: the summary, the largest users, uploads idle for `idle_seconds`."""

    summary: Summary
    users: list[UserUsage]
    idle_seconds: float
    idle: OpenUploadList


class HistoryDay(Totals, kw_only=True):
    """The totals at the first look on a UTC day."""

    saved_bytes: int
    day: date
    taken_at: datetime
    free_disk_bytes: int


S = TypeVar("S", bound=Struct)


def _told(kind: type[S], found: object, **more: object) -> S:
    """Make a struct from an object with the same fields; `more` gives the others."""
    same = {name: getattr(found, name) for name in kind.__struct_fields__ if name not in more}
    return kind(**same, **more)


def user_of(report: UserReport) -> UserUsage:
    return _told(UserUsage, report.usage, files=report.files, open_uploads=report.open_uploads)


def upload_of(upload: Upload) -> OpenUploadReport:
    held = {"quota_bytes": upload.size, "disk_bytes": upload.flushed_bytes}
    return _told(OpenUploadReport, upload, upload_id=upload.id, **held)


# Large, because sorting by counts counts anew for each batch.
_BATCH = 1000
_KINDS: dict[str, Kind] = {"user_id": "text", "updated_at": "moment"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order of a list: by a column, then by id."""

    sort: str
    descending: bool

    def page(self, limit: int, after: str | None) -> Page:
        """Ask for one row more than `limit`, to learn whether there is another page. Raises InvalidRequest."""
        position = None if after is None else parse_cursor(after, self.sort, _KINDS.get(self.sort, "number"))
        return Page(sort=self.sort, descending=self.descending, limit=limit + 1, after=position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """A choice of open uploads: of `user_id`, or of all users, with nothing accounted in the last `seconds`."""

    seconds: float = 0
    user_id: str | None = None


@dataclass(eq=False, repr=False)
class Reports:
    database: Database
    files: Files
    clock: Clock

    # Users

    async def usage(
        self, order: Order, *, limit: int, after: str | None, containing: str | None
    ) -> tuple[list[UserUsage], str | None]:
        """Return a page of users, and the cursor of the next page. Raises InvalidRequest for an unknown cursor."""
        page = order.page(limit, after)
        found = await self.database.read(reports.user_reports, page, containing, snapshot=True)
        users = [user_of(report) for report in found[:limit]]
        if len(found) <= limit:
            return users, None
        return users, cursor(order.sort, getattr(users[-1], order.sort), users[-1].user_id)

    async def all_usage(self, order: Order, *, containing: str | None) -> AsyncIterator[list[UserUsage]]:
        """Yield every user, in batches. A slow reader holds no connection of the database."""
        after: str | None = None
        while True:
            page, after = await self.usage(order, limit=_BATCH, after=after, containing=containing)
            yield page
            if after is None:
                return

    async def user(self, user_id: str) -> UserReport:
        """Raises NotFound."""
        report = await self.database.read(reports.user_report, user_id, snapshot=True)
        if report is None:
            raise NotFound("There is no such user.")
        return report

    async def files_of(
        self, user_id: str, *, limit: int, after: str | None, prefix: str | None
    ) -> tuple[list[File], str | None]:
        """Return a page of a user's files, newest first. Raises NotFound; InvalidRequest for an unknown cursor."""
        await self.user(user_id)
        return await self.files.list(user_id, limit=limit, after=after, prefix=prefix)

    # Open uploads

    async def uploads(
        self, order: Order, idle: Idle, *, limit: int, after: str | None
    ) -> tuple[list[OpenUploadReport], str | None, OpenTotal]:
        """Return a page of open uploads, the cursor of the next, and the sums over all pages. Raises InvalidRequest."""
        page, since = order.page(limit, after), self._since(idle)

        async def look(connection: Connection) -> tuple[list[Upload], OpenTotal]:
            found = await reports.open_uploads(connection, page, idle_since=since, user_id=idle.user_id)
            return found, await reports.open_sums(connection, idle_since=since, user_id=idle.user_id)

        found, total = await self.database.read(look, snapshot=True)
        uploads = [upload_of(upload) for upload in found[:limit]]
        if len(found) <= limit:
            return uploads, None, total
        return uploads, cursor(order.sort, getattr(uploads[-1], order.sort), uploads[-1].upload_id), total

    async def all_uploads(self, order: Order, idle: Idle) -> AsyncIterator[list[OpenUploadReport]]:
        page, since = order.page(_BATCH, None), self._since(idle)
        ask = partial(reports.open_uploads, idle_since=since, user_id=idle.user_id)
        while True:
            found = await self.database.read(ask, page)
            uploads = [upload_of(upload) for upload in found[:_BATCH]]
            yield uploads
            if len(found) <= _BATCH:
                return
            page = replace(page, after=(getattr(uploads[-1], order.sort), uploads[-1].upload_id))

    def _since(self, idle: Idle) -> datetime | None:
        return self.clock.now() - timedelta(seconds=idle.seconds) if idle.seconds else None


@dataclass(eq=False, repr=False)
class Overview:
    """The totals now and of past days, and the growth. All figures but the disk's space are the database's."""

    database: Database
    storage: Housekeeping
    admission: Admission
    clock: Clock

    async def summary(self) -> Summary:
        """Raises Unavailable."""
        as_of = self.clock.now()
        today = as_of.date()

        async def look(connection: Connection) -> tuple[Totals, list[TempMonth], list[Day | None], int]:
            totals, months = await _totals(connection)
            days = [await reports.newest_day_until(connection, today - timedelta(days=span)) for span in SPANS_DAYS]
            return totals, months, days, await queries.count_damaged_blobs(connection)

        totals, months, days, damaged = await self.database.read(look, snapshot=True)
        room = await self.admission.room(sum(month.quota_bytes - month.disk_bytes for month in months))
        present = Day(day=today, taken_at=as_of, totals=totals, free_disk_bytes=room.free_bytes)
        spans = zip(SPANS_DAYS, days, strict=True)
        return _told(
            Summary,
            totals,
            damaged_blobs=damaged,
            temp=months,
            disk=_told(Disk, room),
            growth=[growth(span, present, day, room.available_bytes) for span, day in spans],
            as_of=as_of,
        )

    async def history(self, days: int) -> list[HistoryDay]:
        """Return the last `days` days including today, in order. Days without a snapshot are left out."""
        first = self.clock.now().date() - timedelta(days=days - 1)
        found = await self.database.read(reports.days_since, first)
        return [
            _told(HistoryDay, day.totals, day=day.day, taken_at=day.taken_at, free_disk_bytes=day.free_disk_bytes)
            for day in found
        ]

    async def take_day(self) -> date:
        """Take today's snapshot, unless there is one. Return the day. Raises Unavailable."""
        now = self.clock.now()
        today = now.date()
        if await self.database.read(reports.has_day, today):
            return today
        totals, _ = await self.database.read(_totals, snapshot=True)
        free = (await self.admission.room(0)).free_bytes
        day = Day(day=today, taken_at=now, totals=totals, free_disk_bytes=free)
        with suppress(Duplicate):  # another worker was faster
            await self.database.transact(reports.add_day, day)
        return today


async def _totals(connection: Connection) -> tuple[Totals, list[TempMonth]]:
    months = await reports.open_sums_by_month(connection)
    return await reports.totals(connection, months), months


class WaitingMinute(Struct):
    """A minute bucket, over all shards. A task that is pushed back stays in its minute until the minute has come.
    `minute` is null for a bucket whose name is no minute."""

    queue: str
    minute: datetime | None
    tasks: int
    pending_bytes: int


class QueueReport(Struct):
    """The waiting tasks, by queue and minute, and in total. `pending_bytes` were received and are not yet in the
    database; `lateness_seconds` is the delay of the earliest overdue task."""

    buckets: list[WaitingMinute]
    tasks: int
    pending_bytes: int
    lateness_seconds: float
    as_of: datetime


@dataclass(eq=False, repr=False)
class Queues:
    database: Database
    pending: Pending
    clock: Clock

    async def report(self, *, user_id: str | None = None, upload_id: str | None = None) -> QueueReport:
        """Report the queues of all users, a user, an upload, or both. Raises NotFound, UploadNotFound, Unavailable."""
        as_of = self.clock.now()
        if user_id is None and upload_id is None:
            return _report_of(await self.pending.measure_all(), as_of)
        uploads = await self.database.read(_uploads_of, user_id, upload_id)
        found: dict[str, list[Measured]] = {}
        for upload in uploads:
            for name, measured in (await self.pending.measure(upload.id)).items():
                found.setdefault(name, []).append(measured)
        return _report_of({name: added_up(queues) for name, queues in found.items()}, as_of)


async def _uploads_of(connection: Connection, user_id: str | None, upload_id: str | None) -> list[Upload]:
    if upload_id is not None:
        upload = await queries.upload_by_id(connection, upload_id)
        if upload is None or user_id not in (None, upload.user_id):
            raise UploadNotFound()
        return [upload]
    assert user_id is not None
    if await queries.usage(connection, user_id) is None:
        raise NotFound("There is no such user.")
    return await queries.open_uploads_of_user(connection, user_id)


def _report_of(queues: dict[str, Measured], as_of: datetime) -> QueueReport:
    return QueueReport(
        buckets=[_waiting(name, bucket) for name, queue in queues.items() for bucket in queue.buckets],
        tasks=sum(queue.tasks for queue in queues.values()),
        pending_bytes=sum(queue.pending_bytes for queue in queues.values()),
        lateness_seconds=max((queue.lag_seconds for queue in queues.values()), default=0.0),
        as_of=as_of,
    )


def _waiting(name: str, bucket: MinuteBucket) -> WaitingMinute:
    minute = None if bucket.minute is None else datetime.fromtimestamp(bucket.minute * 60, UTC)
    return WaitingMinute(name, minute, bucket.tasks, bucket.pending_bytes)


# ASCII characters, and their full-width forms, which some spreadsheets treat alike.
_FORMULAS = frozenset("=+-@\t\r＝＋－＠")


def csv_lines(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV for spreadsheets. Text that a spreadsheet would run as a formula gets an apostrophe in front;
    several facts in one cell are JSON."""
    text = io.StringIO()
    csv.writer(text).writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULAS else value
