"""Keeps off a sink that does not take what it is told: nobody tries it again and again, its events wait in their rows."""

from collections.abc import Callable

# So many failures in a row open it.
_PATIENCE = 5
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0


class Breaker:
    """Closed, all goes through. Open, nothing does for a while, and then one attempt, whose outcome decides."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._failures = 0
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._opens_at = 0.0

    @property
    def is_closed(self) -> bool:
        return self._failures < _PATIENCE

    def pause_seconds(self) -> float:
        """For how long nothing goes through from now on."""
        return 0.0 if self.is_closed else max(0.0, self._opens_at - self._monotonic())

    def note(self, *, answered: int, failed: int) -> None:
        """What became of a batch. One event that is taken, or refused for what it is, shows that the sink is there."""
        if answered:
            self._failures, self._pause_seconds = 0, _FIRST_PAUSE_SECONDS
            return
        was_closed = self.is_closed
        self._failures += failed
        if self.is_closed:
            return
        if not was_closed:
            self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
        self._opens_at = self._monotonic() + self._pause_seconds
