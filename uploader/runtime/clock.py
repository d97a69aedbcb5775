"""The only place for reading clocks, so that tests can set the time.

Redis keeps its own time (`TIME` in the scripts). This clock stamps rows and decides about expiry.
"""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

# A file with seconds to add to the wall clock, so that tests can move the clock of a whole process. Not a setting.
_offset_file = os.environ.get("UPLOADER_TEST_CLOCK")


class Clock:
    """The application's UTC clock."""

    def now(self) -> datetime:
        now = datetime.now(UTC)
        return now if _offset_file is None else now + timedelta(seconds=float(Path(_offset_file).read_text()))

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment; setting the system clock does not change them."""
        return time.monotonic()
