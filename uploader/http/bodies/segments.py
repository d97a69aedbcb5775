"""Memory for bodies that is used again and again: a page that is touched for the first time costs more than all that is
done with its bytes.

Owns the segments that are free. How many there may be is their takers' business.
"""

import mmap
from collections import defaultdict

_LARGE_BYTES = 1 << 20
# So that a user's share of a small budget is more than one of them.
_MIN_LARGE = 16
# Of a body that has only begun there is little to hold, and many may begin at once.
_SMALL_BYTES = 64 << 10
_SMALL_SHARE = 4


class Segments:
    """Free segments of two sizes, the one that was used last on top, because it is warm."""

    def __init__(self, budget_bytes: int) -> None:
        """`budget_bytes`: what all of them may hold together."""
        self._budget_bytes = budget_bytes
        self._made_bytes = 0
        self._free: dict[int, list[memoryview]] = defaultdict(list)
        self.large_bytes = max(min(_LARGE_BYTES, budget_bytes // _MIN_LARGE), 1)
        self.small_bytes = max(min(_SMALL_BYTES, self.large_bytes // _SMALL_SHARE), 1)

    def take(self, size_bytes: int) -> memoryview:
        """Memory of `large_bytes` or `small_bytes`; what is in it is anybody's. Raises OSError if the system has none."""
        free = self._free[size_bytes]
        return free.pop() if free else self._make(size_bytes)

    def give_back(self, segment: memoryview) -> None:
        """Nothing reads or writes it any more."""
        self._free[len(segment)].append(segment)

    def _make(self, size_bytes: int) -> memoryview:
        """In place of free ones of the other size, where together they would be more than the budget."""
        for free in self._free.values():
            while free and self._made_bytes + size_bytes > self._budget_bytes:
                self._made_bytes -= len(free.pop())
        # Private, so that the kernel joins neighbours: it bounds the mappings of a process, and shared ones stay apart.
        made = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._made_bytes += size_bytes
        return memoryview(made)
