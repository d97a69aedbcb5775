"""The figures of reports as they are told, by `/admin` and by `uploader report`. `as_of` is the moment that they are of."""

from datetime import date, datetime

from msgspec import Struct

from uploader.domain.growth import Growth
from uploader.domain.reports import Day, OpenSums, Totals, UserReport
from uploader.domain.room import Room
from uploader.domain.upload import Upload


class UserUsage(Struct):
    """A user's accounts, in bytes, and how much there is of what."""

    user_id: str
    total_space: int
    use_space_finished: int
    use_space_unfinished: int
    reserved: int
    files: int
    open_uploads: int


class OpenUploadReport(Struct):
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

    uploads: list[OpenUploadReport]
    next: str | None
    total: OpenTotal
    as_of: datetime


class TempMonth(OpenTotal):
    """What the open uploads of a month (UTC, of their opening) hold."""

    month: str


class Disk(Struct):
    """The disk, in bytes. `free_bytes` counts `trash_bytes`, which give way; `promised_bytes` is what open uploads may still
    write; `available_bytes` what may still be opened."""

    total_bytes: int
    free_bytes: int
    floor_bytes: int
    promised_bytes: int
    available_bytes: int
    trash_bytes: int


class GrowthSchema(Struct):
    """What was added since `since`; null where no snapshot is that old, or where the disk does not fill up."""

    days: int
    since: datetime | None
    use_space_finished: int | None
    physical_bytes: int | None
    physical_bytes_per_day: float | None
    days_until_full: float | None


class TotalFigures(Struct, kw_only=True):
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


class Summary(TotalFigures, kw_only=True):
    """The whole installation. `damaged_blobs` are contents whose bytes were found bad."""

    damaged_blobs: int
    temp: list[TempMonth]
    disk: Disk
    growth: list[GrowthSchema]
    as_of: datetime


class Report(Struct):
    """What `uploader report --json` prints: the summary, the largest users, and the uploads idle for so long."""

    summary: Summary
    users: list[UserUsage]
    idle_seconds: float
    idle: OpenUploadList


class HistoryDay(TotalFigures, kw_only=True):
    """The totals at the first look on a UTC day."""

    day: date
    taken_at: datetime
    free_disk_bytes: int


# From what was read to what is told


def user_of(report: UserReport) -> UserUsage:
    usage = report.usage
    return UserUsage(
        usage.user_id,
        usage.total_space,
        usage.use_space_finished,
        usage.use_space_unfinished,
        usage.reserved,
        report.files,
        report.open_uploads,
    )


def upload_of(upload: Upload) -> OpenUploadReport:
    return OpenUploadReport(
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


def summary_of(
    totals: Totals,
    months: list[OpenSums],
    room: Room,
    growths: list[Growth],
    *,
    damaged_blobs: int,
    as_of: datetime,
) -> Summary:
    return Summary(
        **_figures_of(totals),
        damaged_blobs=damaged_blobs,
        temp=[TempMonth(sums.open_uploads, sums.quota_bytes, sums.disk_bytes, sums.month) for sums in months],
        disk=Disk(**{name: getattr(room, name) for name in Disk.__struct_fields__}),
        growth=[_growth_of(growth) for growth in growths],
        as_of=as_of,
    )


def day_of(day: Day) -> HistoryDay:
    return HistoryDay(
        **_figures_of(day.totals), day=day.day, taken_at=day.taken_at, free_disk_bytes=day.free_disk_bytes
    )


def _figures_of(totals: Totals) -> dict[str, int]:
    return {name: getattr(totals, name) for name in TotalFigures.__struct_fields__}


def _growth_of(growth: Growth) -> GrowthSchema:
    return GrowthSchema(**{name: getattr(growth, name) for name in GrowthSchema.__struct_fields__})
