"""How a server process treats memory: what was used once is kept, because to give it back to the kernel and to touch it anew
costs more than its bytes do; and garbage in cycles, of which requests leave hardly any, is seldom looked for.
"""

import ctypes
import gc

# mallopt(3)
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Pieces up to this size come from the heap, not from the kernel: the most that glibc allows.
_FROM_HEAP_BYTES = 32 << 20
# So much free memory at the heap's end is kept.
_KEPT_BYTES = 512 << 20
# How many more objects than at the last look there have to be before the next, and how many looks make a longer one. With
# Python's 700 and 10 the looks are among what small chunks cost most.
_COLLECTED = (10_000, 20, 50)


def keep_freed_memory() -> None:
    """For the rest of the process, where the C library is glibc; elsewhere nothing is changed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def collect_seldom() -> None:
    """For the rest of the process. What is there already, such as modules, is never looked at again."""
    gc.freeze()
    gc.set_threshold(*_COLLECTED)
