"""The parts of reports: the rows that the database answers with, and the words that lists are sorted by."""

from dataclasses import dataclass
from datetime import date, datetime

from msgspec import Struct

from uploader.errors import QuotaExceeded

# The spans that reports look back over, in days.
SPANS_DAYS = (7, 30, 365)
_SECONDS_A_DAY = 86400.0


_DEFAULT_FLOOR_BYTES = 1 << 30
_DEFAULT_FLOOR_SHARE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The disk, in bytes, and how much room it has: the one formula, for the admission of uploads and for reports.
    `promised_bytes` is what open uploads may still write."""

    total_bytes: int
    # With what the trash holds, which gives way when it is needed.
    free_bytes: int
    trash_bytes: int
    floor_bytes: int
    promised_bytes: int

    @property
    def available_bytes(self) -> int:
        """The bytes that new uploads may still reserve."""
        return max(0, self.free_bytes - self.promised_bytes - self.floor_bytes)

    @property
    def limit_bytes(self) -> int:
        """The bytes that the empty disk could hold."""
        return max(0, self.total_bytes - self.floor_bytes)

    def fits(self, size: int) -> bool:
        """Return whether a file of `size` bytes may be opened; an empty one may only while the floor is kept."""
        return self.free_bytes - self.promised_bytes - size >= self.floor_bytes

    def lacking_bytes(self, size: int) -> int:
        """Return how much of the trash has to give way for a file of `size` bytes."""
        needed = self.floor_bytes + self.promised_bytes + size
        return max(0, needed - (self.free_bytes - self.trash_bytes))


def floor_of(total_bytes: int, set_bytes: int | None) -> int:
    """Return the space that new uploads leave free: as it is set, else the larger of 5 % and 1 GiB."""
    return max(total_bytes // _DEFAULT_FLOOR_SHARE, _DEFAULT_FLOOR_BYTES) if set_bytes is None else set_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The accounts of one user, in bytes: one row of `user_info`. Who may store how much is the one formula, for
    people; the decision itself is the conditional UPDATE in the database. `files` counts open uploads, too."""

    user_id: str
    total_space: int
    use_space_finished: int
    use_space_unfinished: int
    reserved: int
    files: int

    @property
    def available(self) -> int:
        """The bytes that new uploads may still reserve. Not negative, even if the total was lowered below what is used."""
        return max(0, self.total_space - self.use_space_finished - self.reserved)

    def fits(self, size: int) -> bool:
        """Return whether a file of `size` bytes may be opened; an empty one may only while nothing is over the total."""
        return size <= self.total_space - self.use_space_finished - self.reserved

    def takes_files(self, more: int, max_files: int) -> bool:
        """Return whether so many more may come about. What takes the place of as many needs no room."""
        return more <= 0 or self.files + more <= max_files

    def refusal(self, requested: int) -> QuotaExceeded:
        return QuotaExceeded(
            total_space=self.total_space,
            use_space_finished=self.use_space_finished,
            use_space_unfinished=self.use_space_unfinished,
            reserved=self.reserved,
            requested=requested,
        )


USER_SORTS = (
    "user_id",
    "total_space",
    "use_space_finished",
    "use_space_unfinished",
    "reserved",
    "files",
    "open_uploads",
)
# What an open upload gives back when it ends: to the quota its size, to the disk what has arrived of it.
UPLOAD_SORTS = ("updated_at", "quota_bytes", "disk_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserReport:
    usage: Usage
    files: int
    open_uploads: int


class OpenTotal(Struct):
    """The sums of some open uploads."""

    open_uploads: int
    quota_bytes: int
    disk_bytes: int


class TempMonth(OpenTotal):
    """The sums of the open uploads of a month (UTC, of their opening)."""

    month: str


class Totals(Struct, kw_only=True):
    """The totals. `logical_bytes` counts a content once for each file, `physical_bytes` once."""

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
    """One row of `usage_daily`: the first moment of a UTC day at which somebody was there to look."""

    day: date
    taken_at: datetime
    totals: Totals
    free_disk_bytes: int


class Growth(Struct):
    """The growth since `since`; null where no snapshot is that old, or where the disk does not fill up."""

    days: int
    since: datetime | None
    use_space_finished: int | None
    physical_bytes: int | None
    physical_bytes_per_day: float | None
    days_until_full: float | None


def growth(days: int, now: Day, earlier: Day | None, available_bytes: int) -> Growth:
    """Return the growth over at least `days`, back to the newest figures that are old enough; all null if none are."""
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
