"""On which cores the threads of a server process run.

Where a small chunk goes from the event loop to a thread on another core and back, the lock of the interpreter and the memory
that both use move with it, and that costs more than what the thread does (docs/decisions/0017). So the threads that hand
short work to each other share a core; what takes long, and lets go of that lock, runs anywhere. To Linux 0 is the calling
thread, and new threads and processes inherit its cores (sched_setaffinity(2)).
"""

import fcntl
import os
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# Those of this process before its threads were given one to share; empty: they share none.
_everywhere: set[int] = set()


def share_a_core(directory: Path) -> int | None:
    """Keep this thread, and those that it starts from here on, on one core: of those that the fewest of its siblings, the
    other processes of its parent, share. One process after the other chooses, by a lock of the directory.

    None, and nothing changes, where there is one core only; and where a quota rations them, because then others run on the
    same cores, nobody here sees how busy each is, and who may use any has to go round them.
    """
    allowed = os.sched_getaffinity(0)
    if len(allowed) == 1 or any(quota < len(allowed) for quota in quotas()):
        return None
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        core = least_shared(allowed, _shared_by_siblings())
        os.sched_setaffinity(0, {core})
    finally:
        os.close(descriptor)
    _everywhere.update(allowed)
    return core


def run_anywhere() -> None:
    if _everywhere:
        os.sched_setaffinity(0, _everywhere)


def count() -> int:
    """Return how many cores' time this process may use, at least 1."""
    allowed = len(_everywhere or os.sched_getaffinity(0))
    return max(1, min(allowed, *(ceil(quota) for quota in quotas()), allowed))


def least_shared(allowed: Collection[int], shared: Collection[int]) -> int:
    times = Counter(shared)
    return min(sorted(allowed), key=lambda core: times[core])


def _shared_by_siblings() -> list[int]:
    cores = []
    for process in _children_of(os.getppid()):
        with suppress(ProcessLookupError):
            cores.append(os.sched_getaffinity(process))
    return [core for (core, *others) in cores if not others]


def _children_of(process: int) -> Iterator[int]:
    for children in _PROC.glob(f"{process}/task/*/children"):
        with suppress(OSError):  # that thread ended
            yield from map(int, children.read_text().split())


def quotas(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> Iterator[float]:
    """Return how many cores' time this process may use, by each control group that it is in (cgroup-v2, cpu.max; of
    version 1, cpu.cfs_quota_us)."""
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _of_groups(cgroups, path, "cpu.max")
            elif "cpu" in controllers.split(","):
                yield from _of_groups(cgroups / "cpu", path, "cpu.cfs_quota_us", "cpu.cfs_period_us")


def _of_groups(root: Path, path: str, *files: str) -> Iterator[float]:
    """Yield the quotas of a group and of the groups above it that can be read: a container may see none of these."""
    group = root / path.lstrip("/")
    for directory in (group, *group.parents):
        with suppress(OSError, ValueError):
            quota, period = " ".join((directory / file).read_text() for file in files).split()
            if int(quota) > 0:  # version 1 has -1, version 2 the word max, where there is none
                yield int(quota) / int(period)
        if directory == root:
            return
