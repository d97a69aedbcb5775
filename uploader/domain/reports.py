"""The parts of reports: rows from the database, and the sort keys of lists."""

from dataclasses import dataclass
from datetime import date, datetime

from msgspec import Struct

from uploader.domain.upload import Usage

# The periods that reports cover, in days.
SPANS_DAYS = (7, 30, 365)
_SECONDS_A_DAY = 86400.0


USER_SORTS = (
    "user_id",
    "total_space",
    "use_space_finished",
    "use_space_unfinished",
    "reserved",
    "files",
    "open_uploads",
)
# The quota and the disk space that come back when an upload ends: its size, and its received bytes.
UPLOAD_SORTS = ("updated_at", "quota_bytes", "disk_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserReport:
    usage: Usage
    files: int
    open_uploads: int


class OpenTotal(Struct):
    """Sums over open uploads."""

    open_uploads: int
    quota_bytes: int
    disk_bytes: int


class TempMonth(OpenTotal):
    """Sums over the open uploads that were opened in a month (UTC)."""

    month: str


class Totals(Struct, kw_only=True):
    """The totals. `logical_bytes` counts a content once per file, `physical_bytes` counts it once."""

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

    @property
    def saved_bytes(self) -> int:
        return self.logical_bytes - self.physical_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """One row of `usage_daily`: the totals at the first moment of a UTC day when a job ran."""

    day: date
    taken_at: datetime
    totals: Totals
    free_disk_bytes: int


class Growth(Struct):
    """The growth since `since`. Null: there is no snapshot of that age, or the disk does not fill up."""

    days: int
    since: datetime | None
    use_space_finished: int | None
    physical_bytes: int | None
    physical_bytes_per_day: float | None
    days_until_full: float | None


def growth(days: int, now: Day, earlier: Day | None, available_bytes: int) -> Growth:
    """Return the growth since `earlier`, the newest snapshot that is at least `days` old. All null without such a
    snapshot."""
    passed_days = 0.0 if earlier is None else (now.taken_at - earlier.taken_at).total_seconds() / _SECONDS_A_DAY
    if earlier is None or passed_days <= 0:
        return Growth(days, None, None, None, None, None)
    added = now.totals.physical_bytes - earlier.totals.physical_bytes
    return Growth(
        days=days,
        since=earlier.taken_at,
        use_space_finished=now.totals.use_space_finished - earlier.totals.use_space_finished,
        physical_bytes=added,
        physical_bytes_per_day=added / passed_days,
        days_until_full=available_bytes * passed_days / added if added > 0 else None,
    )
