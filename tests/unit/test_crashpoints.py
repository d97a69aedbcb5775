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
    ("armed", "names", "code", "survived"),
    [
        ("flush.after_ack", ("open.after_mkdir", "flush.after_ack"), -signal.SIGKILL, 1),
        ("flush.after_ack:2", ("open.after_mkdir", "flush.after_ack", "flush.after_ack"), -signal.SIGKILL, 2),
        ("", NAMES, 0, len(NAMES)),
    ],
)
async def test_a_process_ends_at_the_point_that_is_armed(
    armed: str, names: tuple[str, ...], code: int, survived: int
) -> None:
    ended = passing(armed, *names)
    assert (ended.returncode, ended.stdout.split()) == (code, [*names[:survived]])
