"""Tells the service manager about the start, the stop and the running event loop of a command: sd_notify(3) without
libsystemd. Does nothing without a service manager.
"""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

READY, STOPPING, WATCHDOG = "READY=1", "STOPPING=1", "WATCHDOG=1"


def notify(*assignments: str, timeout_seconds: float = 0.0) -> None:
    """Send assignments in one datagram to $NOTIFY_SOCKET: a path, or an abstract name after `@`. The datagram is lost if the
    socket does not take it within the timeout."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(timeout_seconds)
        sender.sendto("\n".join(assignments).encode(), address)


def watchdog_seconds() -> float | None:
    """Return the seconds between two messages to the watchdog: half of its time (sd_watchdog_enabled(3)). None: this process
    has no watchdog."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(microseconds) / 2e6 if microseconds.isdecimal() and int(microseconds) else None


@contextmanager
def watched_loop() -> Iterator[None]:
    """Feed the watchdog from the running event loop. A loop that hangs stops feeding the watchdog."""
    seconds = watchdog_seconds()
    if seconds is None:
        yield
        return

    async def feed() -> None:
        while True:
            notify(WATCHDOG)
            await asyncio.sleep(seconds)

    feeding = asyncio.get_running_loop().create_task(feed())
    try:
        yield
    finally:
        feeding.cancel()
