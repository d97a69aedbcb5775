"""How often the processes of a tree have slept and woken up, and the CPU they took, as the kernel counts them (proc(5))."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Slept:
    """A wait that a thread ended itself is a voluntary switch: a busy machine makes no more of them."""

    wakeups: int
    cpu_seconds: float

    def __sub__(self, before: "Slept") -> "Slept":
        return Slept(self.wakeups - before.wakeups, self.cpu_seconds - before.cpu_seconds)


def slept(pid: int) -> Slept:
    """Look at all threads of a process."""
    wakeups = sum(_switches(task) for task in Path(f"/proc/{pid}/task").iterdir())
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Slept(wakeups, (int(fields[11]) + int(fields[12])) / _TICKS)


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that these did."""
    children = [
        int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
    ]
    return [each for child in children for each in (child, *descendants(child))]


def _switches(task: Path) -> int:
    with suppress(OSError):  # the thread ended
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                return int(line.split()[1])
    return 0
