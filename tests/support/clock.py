"""A clock that tests turn by hand."""

from datetime import UTC, datetime, timedelta

from uploader.runtime.clock import Clock


class ManualClock(Clock):
    """Stands still until it is advanced."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime.now(UTC)
        self._monotonic = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Let the wall clock be set, and no time pass."""
        self._now += timedelta(seconds=seconds)
