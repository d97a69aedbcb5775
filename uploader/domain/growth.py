"""What the figures of two moments say about growth, and about when the disk will be full. Nothing is invented: where
there is no earlier figure, there is no answer."""

from dataclasses import dataclass
from datetime import datetime

# The spans that reports look back over, in days.
SPANS_DAYS = (7, 30, 365)
_SECONDS_A_DAY = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is compared."""

    taken_at: datetime
    use_space_finished: int
    physical_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What was added since `since`, in bytes; negative where something went. All None: no figures are that old."""

    days: int
    since: datetime | None = None
    use_space_finished: int | None = None
    physical_bytes: int | None = None
    physical_bytes_per_day: float | None = None
    # None as well where the disk does not fill up.
    days_until_full: float | None = None


def growth(days: int, now: Moment, earlier: Moment | None, available_bytes: int) -> Growth:
    """The growth over `days`, which may be more where the newest figures that are old enough are older."""
    passed_days = 0.0 if earlier is None else (now.taken_at - earlier.taken_at).total_seconds() / _SECONDS_A_DAY
    if earlier is None or passed_days <= 0:
        return Growth(days=days)
    added = now.physical_bytes - earlier.physical_bytes
    return Growth(
        days=days,
        since=earlier.taken_at,
        use_space_finished=now.use_space_finished - earlier.use_space_finished,
        physical_bytes=added,
        physical_bytes_per_day=added / passed_days,
        days_until_full=available_bytes * passed_days / added if added > 0 else None,
    )
