"""Keeps memory that was used once: to give it back to the kernel and to touch it anew costs more than its bytes do."""

import ctypes

# mallopt(3)
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Pieces up to this size come from the heap, not from the kernel: the most that glibc allows.
_FROM_HEAP_BYTES = 32 << 20
# So much free memory at the heap's end is kept.
_KEPT_BYTES = 512 << 20


def keep_freed_memory() -> None:
    """For the rest of the process, where the C library is glibc; elsewhere nothing is changed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
