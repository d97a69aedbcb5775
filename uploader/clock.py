"""The one place that reads the clocks, so that tests can turn them.

Redis keeps its own time (`TIME` inside the scripts); this clock stamps rows and decides expiry.
"""

import time
from datetime import UTC, datetime


class Clock:
    """The application's UTC clock."""

    def now(self) -> datetime:
        """The present moment, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that have passed since some moment; nobody sets this one."""
        return time.monotonic()
