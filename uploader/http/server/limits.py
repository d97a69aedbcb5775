"""What the connections of a process may do: by the settings, and by what the machine lets the process open."""

import logging
import resource
from dataclasses import dataclass

from uploader.settings import Settings

logger = logging.getLogger(__name__)

# What a process opens beside its connections: stores, chunks and maps in hand.
_OWN_DESCRIPTORS = 512
# For connections beyond the limits, and of few descriptors this share.
_RESERVED_CONNECTIONS, _DESCRIPTORS_PER_RESERVED = 1024, 8
_WANTED_DESCRIPTORS = 1 << 16


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
    """The limits of connections, within what this process may open; a connection may need a descriptor for its spool."""
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
