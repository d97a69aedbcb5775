"""The limits of a server process: how it treats memory, and how many connections it may have."""

import ctypes
import gc
import logging
import resource
from dataclasses import dataclass

from uploader.settings import Settings

logger = logging.getLogger(__name__)

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

# What a process opens beside its connections: stores, chunks and maps in hand.
_OWN_DESCRIPTORS = 512
# For connections beyond the limits, and of few descriptors this share.
_RESERVED_CONNECTIONS, _DESCRIPTORS_PER_RESERVED = 1024, 8
_WANTED_DESCRIPTORS = 1 << 16


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits in force."""

    max_connections: int
    max_connections_per_address: int
    # Beyond them, so that they can be answered.
    reserved_connections: int
    header_timeout_seconds: float
    idle_timeout_seconds: float


def connection_limits(settings: Settings) -> ConnectionLimits:
    """Return the limits of connections, within what this process may open; a connection may need a descriptor for its
    spool."""
    descriptors = _raise_descriptor_limit()
    reserved = max(1, min(_RESERVED_CONNECTIONS, descriptors // _DESCRIPTORS_PER_RESERVED))
    most = max(1, (descriptors - _OWN_DESCRIPTORS - reserved) // 2)
    if settings.max_connections > most:
        logger.warning(
            "fewer connections than UPLOADER_MAX_CONNECTIONS",
            extra={"connections": most, "open_files": descriptors},
        )
    return ConnectionLimits(
        max_connections=min(settings.max_connections, most),
        max_connections_per_address=settings.max_connections_per_address,
        reserved_connections=reserved,
        header_timeout_seconds=settings.header_timeout_seconds,
        idle_timeout_seconds=settings.body_idle_timeout_seconds,
    )


def _raise_descriptor_limit() -> int:
    """Take as many descriptors as this process may (getrlimit(2)); how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, _WANTED_DESCRIPTORS) if hard != resource.RLIM_INFINITY else _WANTED_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft if soft != resource.RLIM_INFINITY else _WANTED_DESCRIPTORS
