"""Those who hash at the same time, and the batches of their MD5.

Each caller is a thread that has bytes of one content for two hashes. It leaves the MD5 here, computes the other hash, and
then looks whether somebody else has done the MD5 meanwhile. If not, it does so itself: for all who have left theirs. So
nobody waits for company, and the more there is to hash, the fuller the lanes are: who has been served comes back while
the others still compute. Only as many compute as there are cores. Who has cores enough for itself hashes alone.
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from uploader import cores
from uploader.lanes.kernel import Context, Kernel, kernel

# So many threads fill the lanes of any processor.
MOST_CALLERS = 16

_here = threading.local()


@dataclass(eq=False)
class Job:
    """An MD5 that is to be advanced, by its `context` and `pieces`, or `alone`."""

    context: Context
    pieces: Sequence[memoryview]
    alone: Callable[[], None]
    error: BaseException | None = field(default=None, init=False)
    done: threading.Event = field(default_factory=threading.Event, init=False)


class Gathering:
    def __init__(self, kernel: Kernel, core_count: int) -> None:
        self._kernel = kernel
        self._cores = core_count
        self._lock = threading.Lock()
        self._callers = 0
        self._waiting: list[Job] = []
        self._free_cores = threading.BoundedSemaphore(core_count)

    def advance(self, job: Job, other: Callable[[], None], side_by_side: Callable[[], None]) -> None:
        """Do the MD5 of a job and the `other` hash of the same bytes; `side_by_side`: both, in two threads."""
        with self._lock:
            self._callers += 1
            is_alone = 2 * self._callers <= self._cores
            if not is_alone:
                self._waiting.append(job)
        try:
            if is_alone:
                side_by_side()
            else:
                self._advance_in_company(job, other)
        finally:
            with self._lock:
                self._callers -= 1

    def compute(self, work: Callable[[], None]) -> None:
        """Do what needs a core as well, and has no MD5."""
        with self._free_cores:
            work()

    def _advance_in_company(self, job: Job, other: Callable[[], None]) -> None:
        try:
            with self._free_cores:
                other()
                self._lead(job)
        finally:
            self._leave(job)
        if job.error is not None:
            raise RuntimeError("the MD5 of many contents failed") from job.error

    def _lead(self, job: Job) -> None:
        """Advance the job and those that wait beside it, unless it is being advanced."""
        with self._lock:
            if job not in self._waiting:
                return
            self._waiting.remove(job)
            batch = [job, *self._waiting[: self._kernel.lanes - 1]]
            del self._waiting[: self._kernel.lanes - 1]
        try:
            if len(batch) == 1:
                job.alone()
            else:
                self._kernel.update([(each.context, each.pieces) for each in batch])
        except BaseException as error:
            for each in batch:
                each.error = error
            raise
        finally:
            for each in batch:
                each.done.set()

    def _leave(self, job: Job) -> None:
        """Go only once nobody reads the bytes of the job: its caller may free them then."""
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)
                return
        job.done.wait()


@cache
def _gathering() -> Gathering | None:
    found = kernel()
    return None if found is None else Gathering(found, cores.count())


# A lock that another thread has at a fork is nobody's afterwards.
os.register_at_fork(after_in_child=_gathering.cache_clear)


def gather_here() -> None:
    """Let this thread wait for others where many hash: it belongs to a pool of more threads than there are cores."""
    _here.gathers = True


def gathering() -> Gathering | None:
    """Return where this thread meets others; None: it hashes alone, because there is no kernel, or it may not wait."""
    return _gathering() if getattr(_here, "gathers", False) else None


def most_threads() -> int:
    """Return how many threads a pool needs whose threads gather."""
    core_count = os.cpu_count() or 1
    return core_count if _gathering() is None else max(MOST_CALLERS, core_count)


def in_force() -> tuple[str, int]:
    """Return the kind of the kernel, and how many contents it hashes at once."""
    found = kernel()
    return ("none", 1) if found is None else (found.kind, found.lanes)
