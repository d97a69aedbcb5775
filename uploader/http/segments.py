"""Memory for bodies that is used again and again: a page that is touched for the first time costs more than all that is
done with its bytes.

Owns the segments that are free. How many there may be is their takers' business.
"""

import mmap

_SEGMENT_BYTES = 1024 << 10
# So that a user's share of a small budget is more than one of them.
_MIN_SEGMENTS = 16


class Segments:
    """Free segments, the one that was used last on top, because it is warm."""

    def __init__(self, budget_bytes: int) -> None:
        """`budget_bytes`: what all of them may hold together."""
        self._free: list[memoryview] = []
        self.segment_bytes = max(min(_SEGMENT_BYTES, budget_bytes // _MIN_SEGMENTS), 1)

    def take(self) -> memoryview:
        """Memory of `segment_bytes`; what is in it is anybody's."""
        if self._free:
            return self._free.pop()
        # Private, so that the kernel joins neighbours: it bounds the mappings of a process, and shared ones stay apart.
        return memoryview(mmap.mmap(-1, self.segment_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def give_back(self, segment: memoryview) -> None:
        """Nothing reads or writes it any more."""
        self._free.append(segment)
