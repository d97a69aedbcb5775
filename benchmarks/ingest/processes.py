"""What the kernel says of a server and all that it started: processor time and memory."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_QUIET_SECONDS = 0.15
_QUIET_SHARE = 0.2
_SETTLING_SECONDS = 30.0


def tree(pids: Sequence[int]) -> list[int]:
    """These processes and all their descendants."""
    found = []
    for pid in pids:
        with suppress(OSError):
            children = [text for task in Path(f"/proc/{pid}/task").glob("*/children") for text in [task.read_text()]]
            found += [pid, *tree([int(child) for text in children for child in text.split()])]
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """What these processes and their descendants have used, in user and kernel mode, those that ended included."""
    return sum(_user_and_kernel_seconds(pids))


def kernel_seconds(pids: Sequence[int]) -> float:
    """What of it was in kernel mode."""
    return _user_and_kernel_seconds(pids)[1]


def _user_and_kernel_seconds(pids: Sequence[int]) -> tuple[float, float]:
    in_user = in_kernel = 0
    for pid in tree(pids):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own_user, own_kernel, ended_user, ended_kernel = map(int, fields[11:15])
            in_user, in_kernel = in_user + own_user + ended_user, in_kernel + own_kernel + ended_kernel
    return in_user / _TICKS, in_kernel / _TICKS


def wait_until_quiet(pids: Sequence[int]) -> float:
    """Until they have nothing left to do, such as hashing what they have acknowledged; the seconds that took."""
    began = quiet_at = time.monotonic()
    used = cpu_seconds(pids)
    while time.monotonic() < began + _SETTLING_SECONDS:
        time.sleep(_QUIET_SECONDS)
        now_used = cpu_seconds(pids)
        if now_used - used < _QUIET_SHARE * _QUIET_SECONDS:
            break
        used, quiet_at = now_used, time.monotonic()
    return quiet_at - began


def resident_bytes(pids: Sequence[int], *, peak: bool = False, alone: bool = False) -> int:
    """The memory they hold now, with or without their descendants, or the sum of the most that each has ever held."""
    name, total = "VmHWM:" if peak else "VmRSS:", 0
    for pid in pids if alone else tree(pids):
        with suppress(OSError):
            total += int(Path(f"/proc/{pid}/status").read_text().partition(name)[2].split()[0]) * 1024
    return total
