"""A clock that tests turn by hand."""

from datetime import UTC, datetime, timedelta

from uploader.clock import Clock


class ManualClock(Clock):
    """Stands still until it is advanced."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime.now(UTC)

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
