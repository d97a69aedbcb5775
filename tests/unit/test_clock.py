"""The clock is in UTC."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support.process import environment
from uploader.clock import Clock


def test_the_clock_tells_the_present_moment_in_utc() -> None:
    before = datetime.now(UTC)
    now = Clock().now()
    assert before <= now <= datetime.now(UTC)
    assert now.tzinfo is UTC


def test_the_clock_of_a_whole_process_can_be_turned_in_tests(tmp_path: Path) -> None:
    offset = tmp_path / "seconds"
    offset.write_text("-864000")
    code = "from uploader.clock import Clock; print(Clock().now().timestamp())"
    settings = {"TEST_CLOCK": str(offset)}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment(settings), capture_output=True, text=True, check=True
    )
    past = datetime.now(UTC) - timedelta(days=10)
    assert abs(float(told.stdout) - past.timestamp()) < 3600
