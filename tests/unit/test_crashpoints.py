"""The crash points: every name is used once, and an armed process ends as by a kill."""

import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import uploader
from tests.support.process import environment
from uploader.crashpoints import NAMES

PACKAGE = Path(uploader.__file__).parent


def passing(armed: str, *names: str) -> "subprocess.CompletedProcess[str]":
    """A process that passes crash points, one after the other."""
    code = "import sys; from uploader.crashpoints import *\nfor name in sys.argv[1:]: crash_point(name); print(name)"
    command = [sys.executable, "-uc", code, *names]
    return subprocess.run(
        command, env=environment({"TEST_CRASH_AT": armed}), capture_output=True, text=True, check=False
    )


async def test_each_crash_point_is_passed_at_exactly_one_place_in_the_source() -> None:
    used: Counter[str] = Counter()
    for module in PACKAGE.rglob("*.py"):
        used.update(re.findall(r"\bcrash_point\(\"([^\"]*)\"\)", module.read_text()))
    assert used == Counter(NAMES)


@pytest.mark.parametrize(
    ("armed", "survived"),
    [("flush.after_ack", ["open.after_mkdir"]), ("flush.after_ack:2", ["open.after_mkdir", "flush.after_ack"])],
)
async def test_a_process_kills_itself_at_the_point_that_is_armed(armed: str, survived: list[str]) -> None:
    ended = passing(armed, "open.after_mkdir", "flush.after_ack", "flush.after_ack")
    assert (ended.returncode, ended.stdout.split()) == (-signal.SIGKILL, survived)


async def test_points_that_are_not_armed_do_nothing() -> None:
    ended = passing("", *NAMES)
    assert (ended.returncode, tuple(ended.stdout.split())) == (0, NAMES)
