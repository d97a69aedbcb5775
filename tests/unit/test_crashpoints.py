"""What the environment does to a process in tests: it turns its clock, and ends it at a crash point as by a kill."""

import re
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import uploader
from tests.support.process import environment, run_program
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import NAMES


def running(code: str, *arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-uc", code, *arguments]
    return run_program(command, env=environment(settings), check=False)


def test_the_clock_tells_the_present_moment_in_utc_and_that_of_a_process_can_be_turned(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    now = Clock().now()
    assert before <= now <= datetime.now(UTC)
    assert now.tzinfo is UTC
    (tmp_path / "seconds").write_text("-864000")
    code = "from uploader.runtime.clock import Clock; print(Clock().now().timestamp())"
    told = running(code, TEST_CLOCK=str(tmp_path / "seconds"))
    past = datetime.now(UTC) - timedelta(days=10)
    assert abs(float(told.stdout) - past.timestamp()) < 3600


def test_each_crash_point_is_passed_at_exactly_one_place_in_the_source() -> None:
    used: Counter[str] = Counter()
    for module in Path(uploader.__file__).parent.rglob("*.py"):
        used.update(re.findall(r"\bcrash_point\(\"([^\"]*)\"\)", module.read_text()))
    assert used == Counter(NAMES)


@pytest.mark.parametrize(
    ("armed", "names", "code", "survived"),
    [
        ("flush.after_ack", ("open.after_mkdir", "flush.after_ack"), -signal.SIGKILL, 1),
        ("flush.after_ack:2", ("open.after_mkdir", "flush.after_ack", "flush.after_ack"), -signal.SIGKILL, 2),
        ("", NAMES, 0, len(NAMES)),
    ],
)
def test_a_process_ends_at_the_point_that_is_armed(
    armed: str, names: tuple[str, ...], code: int, survived: int
) -> None:
    load = "import sys; from uploader.runtime.crashpoints import *"
    pass_them = f"{load}\nfor name in sys.argv[1:]: crash_point(name); print(name)"
    ended = running(pass_them, *names, TEST_CRASH_AT=armed)
    assert (ended.returncode, ended.stdout.split()) == (code, [*names[:survived]])
