"""What reports are made of: the rows that the database answers with, and the words that lists are sorted by."""

from dataclasses import dataclass
from datetime import date, datetime

from uploader.domain.quota import Usage

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
    """The accounts of a user, with how much there is of what."""

    usage: Usage
    files: int
    open_uploads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSums:
    """What some open uploads hold; `month` where they are those of one month."""

    month: str = ""
    open_uploads: int
    quota_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What everything adds up to. Logical bytes count a content once for each file, physical bytes once."""

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
        """What deduplication saves."""
        return self.logical_bytes - self.physical_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """One row of `usage_daily`: the first moment of a UTC day at which somebody was there to look."""

    day: date
    taken_at: datetime
    totals: Totals
    free_disk_bytes: int
