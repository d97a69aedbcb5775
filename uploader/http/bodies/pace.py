"""How fast a body has to come."""

# A body that takes longer than this moves out of memory; the minimum rate is asked for from here on, too.
GRACE_SECONDS = 10.0


class Pace:
    """When a body stands still for too long, or is slower than it may be; by the loop's clock, in seconds."""

    def __init__(self, started_at: float, idle_timeout_seconds: float, min_rate_bytes: int) -> None:
        self._started_at = started_at
        self._idle_timeout_seconds = idle_timeout_seconds
        self._min_rate_bytes = min_rate_bytes
        self.slow_at = started_at + GRACE_SECONDS
        # Since when it is waited for.
        self._ready_at = started_at

    def excuse(self, since: float, now: float) -> None:
        """What a busy disk took between the two is not the client's."""
        if now == since:
            return
        self._started_at += now - since
        self.slow_at += now - since
        self._ready_at = now

    def late_at(self, progressed_at: float, length: int) -> float:
        """For a body that gets no further than this."""
        still_at = max(progressed_at, self._ready_at) + self._idle_timeout_seconds
        if not self._min_rate_bytes:
            return still_at
        return min(still_at, max(self.slow_at, self._started_at + length / self._min_rate_bytes))
