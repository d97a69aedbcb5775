"""What goes over the wire under `/admin`, as types; see `wire.py`. `as_of` is the moment that the figures are of."""

from datetime import date, datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from uploader.database.reports.usage import Day, OpenSums, UserReport
from uploader.domain import growth as domain
from uploader.domain.quota import Usage
from uploader.domain.upload import File, Upload
from uploader.http.shared.schemas import Size
from uploader.service.audit import drift as findings
from uploader.service.insight.overview import Summary as DomainSummary

# Requests


class SetTotalSpace(Struct, forbid_unknown_fields=True):
    """A user's quota."""

    total_space: Size


class Recount(Struct, forbid_unknown_fields=True):
    """What to recount: everything, or one user."""

    user_id: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET


# Answers


class UserUsage(Struct):
    """A user's accounts, in bytes, and how much there is of what."""

    user_id: str
    total_space: int
    use_space_finished: int
    use_space_unfinished: int
    reserved: int
    files: int
    open_uploads: int


class UserUsageList(Struct):
    """A page of users; `next` is the cursor of the following one."""

    users: list[UserUsage]
    next: str | None
    as_of: datetime


class UserDetail(UserUsage, kw_only=True):
    """One user; `available` is what they may still open."""

    available: int
    as_of: datetime


class UserFile(Struct):
    """Somebody's file. Without its digests: with them an administrator could ask for the content by instant upload."""

    id: str
    name: str
    size: int
    created_at: datetime
    instant: bool


class UserFiles(Struct):
    """A page of a user's files; `next` is the cursor of the following one."""

    files: list[UserFile]
    next: str | None
    as_of: datetime


class UserAccount(Struct):
    """A user's accounts after a change, in bytes."""

    user_id: str
    total_space: int
    use_space_finished: int
    use_space_unfinished: int
    reserved: int


class OpenUpload(Struct):
    """An open upload of anybody: what the quota and the disk get back when it ends. `updated_at`: last accounted."""

    upload_id: str
    user_id: str
    name: str
    created_at: datetime
    updated_at: datetime
    quota_bytes: int
    disk_bytes: int


class OpenTotal(Struct):
    """What some open uploads hold together."""

    open_uploads: int
    quota_bytes: int
    disk_bytes: int


class OpenUploadList(Struct):
    """A page of open uploads, and the sums over all pages; `next` is the cursor of the following one."""

    uploads: list[OpenUpload]
    next: str | None
    total: OpenTotal
    as_of: datetime


class TempMonth(OpenTotal):
    """What the open uploads of a month (UTC, of their opening) hold."""

    month: str


class Disk(Struct):
    """The disk, in bytes. `promised_bytes` is what open uploads may still write; `available_bytes` what may still be
    opened."""

    total_bytes: int
    free_bytes: int
    floor_bytes: int
    promised_bytes: int
    available_bytes: int


class Growth(Struct):
    """What was added since `since`; null where no snapshot is that old, or where the disk does not fill up."""

    days: int
    since: datetime | None
    use_space_finished: int | None
    physical_bytes: int | None
    physical_bytes_per_day: float | None
    days_until_full: float | None


class Totals(Struct, kw_only=True):
    """What everything adds up to. `logical_bytes` counts a content once for each file, `physical_bytes` once."""

    users: int
    files: int
    blobs: int
    open_uploads: int
    total_space: int
    use_space_finished: int
    use_space_unfinished: int
    reserved: int
    logical_bytes: int
    physical_bytes: int
    saved_bytes: int


class Summary(Totals, kw_only=True):
    """The whole installation."""

    temp: list[TempMonth]
    disk: Disk
    growth: list[Growth]
    as_of: datetime


class Report(Struct):
    """What `uploader report --json` prints: the summary, the largest users, and the uploads idle for so long."""

    summary: Summary
    users: list[UserUsage]
    idle_seconds: float
    idle: OpenUploadList


class HistoryDay(Totals, kw_only=True):
    """The totals at the first look on a UTC day."""

    day: date
    taken_at: datetime
    free_disk_bytes: int


class History(Struct):
    """One row a day, in order. Days on which nothing ran have none."""

    days: list[HistoryDay]
    as_of: datetime


class Drift(Struct):
    """A figure that is not what its definition makes it; null where there is nothing."""

    kind: str
    subject: str
    expected: int | str | None
    actual: int | str | None


class Recounted(Struct):
    """What a recount found. `notes` are no drifts: users that hold more than an administrator has left them."""

    checked: dict[str, int]
    drifts: list[Drift]
    notes: list[Drift]
    as_of: datetime


# From the service's words to the wire's


def user_of(report: UserReport) -> UserUsage:
    return UserUsage(**_accounts(report.usage), files=report.files, open_uploads=report.open_uploads)


def detail_of(report: UserReport, as_of: datetime) -> UserDetail:
    return UserDetail(**msgspec.structs.asdict(user_of(report)), available=report.usage.available, as_of=as_of)


def account_of(usage: Usage) -> UserAccount:
    return UserAccount(**_accounts(usage))


def _accounts(usage: Usage) -> dict[str, Any]:
    return {name: getattr(usage, name) for name in UserAccount.__struct_fields__}


def file_of(file: File) -> UserFile:
    return UserFile(file.id, file.name, file.size, file.created_at, file.instant)


def upload_of(upload: Upload) -> OpenUpload:
    return OpenUpload(
        upload.id,
        upload.user_id,
        upload.name,
        upload.created_at,
        upload.updated_at,
        upload.size,
        upload.flushed_bytes,
    )


def total_of(sums: OpenSums) -> OpenTotal:
    return OpenTotal(sums.open_uploads, sums.quota_bytes, sums.disk_bytes)


def summary_of(summary: DomainSummary) -> Summary:
    room = summary.room
    return Summary(
        **_totals(summary.totals),
        temp=[TempMonth(sums.open_uploads, sums.quota_bytes, sums.disk_bytes, sums.month) for sums in summary.months],
        disk=Disk(room.total_bytes, room.free_bytes, room.floor_bytes, room.promised_bytes, room.available_bytes),
        growth=[_growth(growth) for growth in summary.growths],
        as_of=summary.as_of,
    )


def _totals(totals: object) -> dict[str, int]:
    return {name: getattr(totals, name) for name in Totals.__struct_fields__}


def _growth(growth: domain.Growth) -> Growth:
    return Growth(**{name: getattr(growth, name) for name in Growth.__struct_fields__})


def day_of(day: Day) -> HistoryDay:
    return HistoryDay(**_totals(day.totals), day=day.day, taken_at=day.taken_at, free_disk_bytes=day.free_disk_bytes)


def recounted_of(found: findings.Findings, as_of: datetime) -> Recounted:
    return Recounted(found.checked, list(map(_drift, found.drifts)), list(map(_drift, found.notes)), as_of)


def _drift(drift: findings.Drift) -> Drift:
    return Drift(drift.kind.value, drift.subject, drift.expected, drift.actual)
