"""On which cores the threads of a server process run.

Where a small chunk goes from the event loop to a thread on another core and back, the lock of the interpreter and the memory
that both use move with it, and that costs more than what the thread does (docs/decisions/0017). So the threads that hand
short work to each other share a core; what takes long, and lets go of that lock, runs anywhere. To Linux 0 is the calling
thread, and new threads and processes inherit its cores (sched_setaffinity(2)).
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
# Those of this process before its threads were given one to share; empty: they share none.
_everywhere: set[int] = set()
# The threads that run anywhere, whatever the others do.
_anywhere: set[int] = set()


def share_a_core(directory: Path) -> int | None:
    """Keep this thread, and those that it starts from here on, on one core: of those that the fewest of its siblings, the
    other processes of its parent, share. One process after the other chooses, by a lock of the directory.

    None, and nothing changes, where there is one core only; and where a quota rations them, because then others run on the
    same cores, nobody here sees how busy each is, and who may use any has to go round them.
    """
    allowed = os.sched_getaffinity(0)
    if len(allowed) == 1 or any(quota < len(allowed) for quota in quotas()):
        return None
    import fcntl  # here, because the client imports this, on Windows, too

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
    """Return how many cores' time this process may use, at least 1."""
    allowed = len(_everywhere or os.sched_getaffinity(0))
    return max(1, min(allowed, *(ceil(quota) for quota in quotas()), allowed))


# How often the core is looked at while there is work.
_LOOK_SECONDS = 1.0
# Of the time between two looks: how much the event loop waited for others to leave a core, from which it is contended, and
# up to which it is not.
_CONTENDED, _QUIET = 0.25, 0.1
# How much it has to work for a look to count.
_LEAST_WORK = 0.05
# How many such looks in a row it takes to let go, and to take one again, the first time and at most: where the core was
# contended again at once, twice as many as before.
_LOOKS_TO_LET_GO = 2
_LOOKS_TO_TAKE, _MOST_LOOKS_TO_TAKE = 10, 640


@dataclass(eq=False, repr=False)
class Patience:
    """Decides whether a core is shared, from how much of the time others kept it from the event loop."""

    is_shared: bool = True
    _looks: int = field(default=0, init=False)
    _looks_to_take: int = field(default=_LOOKS_TO_TAKE, init=False)
    _looks_since_taken: int = field(default=_LOOKS_TO_TAKE, init=False)

    def note(self, worked: float, kept: float) -> bool:
        """Note shares of the time since the last look; return whether the decision has changed."""
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
    """Lets go of the core that the short work of this process shares while others want it, and takes one again when they do
    not: where the event loop runs then. To be made in its thread."""

    def __init__(self) -> None:
        self._loop = threading.get_native_id()
        self._patience = Patience()
        self._seen_at, self._seen = time.monotonic(), self._times()

    async def look(self) -> float:
        """Return when to look again while there is work, in seconds."""
        self._look()
        return _LOOK_SECONDS

    def _look(self) -> None:
        now, times = time.monotonic(), self._times()
        passed, before = (now - self._seen_at) * 1e9, self._seen
        self._seen_at, self._seen = now, times
        if not passed or self._loop not in times or self._loop not in before:
            return
        worked, waited = (after - first for after, first in zip(times[self._loop], before[self._loop], strict=True))
        # Those that share the core with it keep it from the loop, too, as long as they run.
        others = sum(ran - before.get(task, (ran, 0))[0] for task, (ran, _) in times.items() if task != self._loop)
        if self._patience.note(worked / passed, max(0, waited - others) / passed):
            cores = {_core_of(self._loop)} if self._patience.is_shared else _everywhere
            logger.info(_KEPT if self._patience.is_shared else _GIVEN_BACK)
            for task in _threads() - _anywhere:
                with suppress(ProcessLookupError):  # it ended
                    os.sched_setaffinity(task, cores)

    def _times(self) -> dict[int, tuple[int, int]]:
        """Return for how many nanoseconds each thread that shares has run, and has waited for a core (schedstat of
        proc(5)); nothing where the kernel does not count them."""
        found = {}
        for task in _threads() - _anywhere:
            with suppress(OSError, ValueError):
                ran, waited, _ = (_PROC / f"self/task/{task}/schedstat").read_text().split()
                found[task] = (int(ran), int(waited))
        return found


def _threads() -> set[int]:
    return {int(task.name) for task in (_PROC / "self/task").iterdir()}


def _core_of(task: int) -> int:
    """Return the core that a thread ran on last."""
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
