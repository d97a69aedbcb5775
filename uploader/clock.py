"""The one place that reads the wall clock, so that tests can turn it.

Redis keeps its own time (`TIME` inside the scripts); this clock stamps rows and decides expiry.
"""

from datetime import UTC, datetime


class Clock:
    """The application's UTC clock."""

    def now(self) -> datetime:
        """The present moment, in UTC."""
        return datetime.now(UTC)
