"""The one place that reads the clocks, so that tests can turn them.

Redis keeps its own time (`TIME` inside the scripts); this clock stamps rows and decides expiry.
"""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

# The seconds in this file are added to the wall clock, so that tests can turn that of a whole process. No setting.
_offset_file = os.environ.get("UPLOADER_TEST_CLOCK")


class Clock:
    """The application's UTC clock."""

    def now(self) -> datetime:
        """Return the present moment, in UTC."""
        now = datetime.now(UTC)
        return now if _offset_file is None else now + timedelta(seconds=float(Path(_offset_file).read_text()))

    def monotonic(self) -> float:
        """Seconds that have passed since some moment; nobody sets this one."""
        return time.monotonic()
