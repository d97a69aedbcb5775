"""Chooses the cores for the threads of a server process.

If a small chunk goes from the event loop to a thread on another core and back, the lock of the interpreter and shared
memory move with it. That costs more than the thread's work (docs/decisions/0017). So threads with short work for each
other share a core. Long work that releases the interpreter's lock runs on any core. On Linux, process id 0 is the
calling thread, and new threads and processes inherit its cores (sched_setaffinity(2)).
"""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

logger = logging.getLogger(__name__)

_KEPT, _GIVEN_BACK = "a core is kept for short work", "no core is kept for short work: other programs want it"

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# The cores of this process before its threads were bound to a single core; empty: they were not bound.
_everywhere: set[int] = set()
# The threads that are never bound.
_anywhere: set[int] = set()


def share_a_core(directory: Path) -> int | None:
    """Bind this thread, and threads started from here on, to a core: the core with the fewest sibling processes
    (other children of the same parent). A lock on the directory lets one process choose at a time.

    Return None and change nothing if there is only one core, or a quota limits them. With a quota other programs run on
    the same cores, this process can't see how busy each core is, and the scheduler needs the choice among all.
    """
    allowed = os.sched_getaffinity(0)
    if len(allowed) == 1 or any(quota < len(allowed) for quota in quotas()):
        return None
    import fcntl  # here, because the client imports this module, also on Windows

    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        core = least_shared(allowed, _shared_by_siblings())
        os.sched_setaffinity(0, {core})
    finally:
        os.close(descriptor)
    _everywhere.update(allowed)
    _anywhere.update(_threads() - {threading.get_native_id()})
    return core


def run_anywhere() -> None:
    if _everywhere:
        _anywhere.add(threading.get_native_id())
        os.sched_setaffinity(0, _everywhere)


def count() -> int:
    """Return the number of cores whose time this process may use, at least 1."""
    allowed = len(_everywhere or os.sched_getaffinity(0))
    return max(1, min(allowed, *(ceil(quota) for quota in quotas()), allowed))


# How often to look at the core while there is work.
_LOOK_SECONDS = 1.0
# Shares of the time between two looks in which other programs kept the event loop from the core: the core is contended
# above the first, and quiet below the second.
_CONTENDED, _QUIET = 0.25, 0.1
# The least share of work for a look to count.
_LEAST_WORK = 0.05
# Looks in a row before the core is given up, and before one is taken again. The latter doubles up to the maximum each
# time the new core was soon contended.
_LOOKS_TO_LET_GO = 2
_LOOKS_TO_TAKE, _MOST_LOOKS_TO_TAKE = 10, 640


@dataclass(eq=False, repr=False)
class Patience:
    """Decides whether threads share a core, by the share of time in which other programs kept the event loop from the
    core."""

    is_shared: bool = True
    _looks: int = field(default=0, init=False)
    _looks_to_take: int = field(default=_LOOKS_TO_TAKE, init=False)
    _looks_since_taken: int = field(default=_LOOKS_TO_TAKE, init=False)

    def note(self, worked: float, kept: float) -> bool:
        """Record shares of the time since the last look. Return whether the decision has changed."""
        if worked < _LEAST_WORK and kept < _LEAST_WORK:
            return False
        wants_change = kept > _CONTENDED if self.is_shared else kept < _QUIET
        self._looks = self._looks + 1 if wants_change else 0
        self._looks_since_taken += 1
        if self._looks < (_LOOKS_TO_LET_GO if self.is_shared else self._looks_to_take):
            return False
        self.is_shared, self._looks = not self.is_shared, 0
        if self.is_shared:
            self._looks_since_taken = 0
        else:
            is_soon = self._looks_since_taken < self._looks_to_take
            longer = min(2 * self._looks_to_take, _MOST_LOOKS_TO_TAKE)
            self._looks_to_take = longer if is_soon else _LOOKS_TO_TAKE
        return True


class SharedCore:
    """Stops sharing a core while other programs want it, and shares one again when they do not: the core where the
    event loop runs at that moment. Create it in the thread of the event loop."""

    def __init__(self) -> None:
        self._loop = threading.get_native_id()
        self._patience = Patience()
        self._seen_at, self._seen = time.monotonic(), self._times()

    async def look(self) -> float:
        """Look at the core. Return the seconds until the next look while there is work."""
        self._look()
        return _LOOK_SECONDS

    def _look(self) -> None:
        now, times = time.monotonic(), self._times()
        passed, before = (now - self._seen_at) * 1e9, self._seen
        self._seen_at, self._seen = now, times
        if not passed or self._loop not in times or self._loop not in before:
            return
        worked, waited = (after - first for after, first in zip(times[self._loop], before[self._loop], strict=True))
        # Threads that share the core delay the event loop, too: their time does not count as other programs' time.
        others = sum(ran - before.get(task, (ran, 0))[0] for task, (ran, _) in times.items() if task != self._loop)
        if self._patience.note(worked / passed, max(0, waited - others) / passed):
            cores = {_core_of(self._loop)} if self._patience.is_shared else _everywhere
            logger.info(_KEPT if self._patience.is_shared else _GIVEN_BACK)
            for task in _threads() - _anywhere:
                with suppress(ProcessLookupError):  # the thread ended
                    os.sched_setaffinity(task, cores)

    def _times(self) -> dict[int, tuple[int, int]]:
        """Return the nanoseconds of running, and of waiting for a core, of each thread that shares the core (schedstat,
        proc(5)). Empty if the kernel does not count them."""
        found = {}
        for task in _threads() - _anywhere:
            with suppress(OSError, ValueError):
                ran, waited, _ = (_PROC / f"self/task/{task}/schedstat").read_text().split()
                found[task] = (int(ran), int(waited))
        return found


def _threads() -> set[int]:
    return {int(task.name) for task in (_PROC / "self/task").iterdir()}


def _core_of(task: int) -> int:
    """Return the core on which a thread ran last."""
    return int((_PROC / f"self/task/{task}/stat").read_text().rpartition(")")[2].split()[36])


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
        with suppress(OSError):  # the thread ended
            yield from map(int, children.read_text().split())


def quotas(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> Iterator[float]:
    """Yield the quota of each control group of this process, as a number of cores (cgroup-v2, cpu.max; version 1,
    cpu.cfs_quota_us)."""
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _of_groups(cgroups, path, "cpu.max")
            elif "cpu" in controllers.split(","):
                yield from _of_groups(cgroups / "cpu", path, "cpu.cfs_quota_us", "cpu.cfs_period_us")


def _of_groups(root: Path, path: str, *files: str) -> Iterator[float]:
    """Yield the quotas of a group and of its parents, as far as they are readable: in a container they may not be."""
    group = root / path.lstrip("/")
    for directory in (group, *group.parents):
        with suppress(OSError, ValueError):
            quota, period = " ".join((directory / file).read_text() for file in files).split()
            if int(quota) > 0:  # without a quota version 1 has -1, version 2 the word max
                yield int(quota) / int(period)
        if directory == root:
            return
