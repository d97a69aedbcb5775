"""Holds back what goes by age: after a start or an outage, when clients could not have sent a chunk, and after a jump of the
clock."""

import logging

from uploader.clock import Clock

logger = logging.getLogger(__name__)

# More than the wall clock drifts or is corrected by between two looks.
_JUMP_SECONDS = 60.0


class Pause:
    """Ask `active` before every run. A pause lasts `grace_seconds` from its last cause on."""

    def __init__(self, what: str, clock: Clock, *, grace_seconds: float, interval_seconds: float) -> None:
        """`what` it holds back, for the log. `interval_seconds`: how often a run is to be expected; many missed ones were
        an outage."""
        self._what = what
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._outage_seconds = max(3 * interval_seconds, _JUMP_SECONDS)
        self._ends_at = clock.monotonic() + grace_seconds
        self._last = (clock.now().timestamp(), clock.monotonic())

    def active(self) -> bool:
        """Whether to wait. A suspended machine shows as a jump, a run that failed for long as an outage."""
        wall, steady = self._clock.now().timestamp(), self._clock.monotonic()
        wall_passed, steady_passed = wall - self._last[0], steady - self._last[1]
        self._last = (wall, steady)
        if steady_passed > self._outage_seconds or abs(wall_passed - steady_passed) > _JUMP_SECONDS:
            logger.warning("pauses after an outage or a jump of the clock", extra={"paused": self._what})
            self._ends_at = steady + self._grace_seconds
        return steady < self._ends_at
