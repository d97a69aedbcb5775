"""Tells the service manager that a command is ready, that it stops, and that its event loop turns: sd_notify(3) without
libsystemd. Does nothing where no service manager listens.
"""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

READY, STOPPING, WATCHDOG = "READY=1", "STOPPING=1", "WATCHDOG=1"


def notify(*assignments: str, timeout_seconds: float = 0.0) -> None:
    """Send assignments in one datagram to $NOTIFY_SOCKET: a path, or an abstract name after `@`. A datagram that the
    socket does not take within the timeout is lost."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(timeout_seconds)
        sender.sendto("\n".join(assignments).encode(), address)


def watchdog_seconds() -> float | None:
    """Return how often this process tells that it is well: twice in the time of the watchdog (sd_watchdog_enabled(3)).
    None: it has no watchdog."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(microseconds) / 2e6 if microseconds.isdecimal() and int(microseconds) else None


@contextmanager
def watched_loop() -> Iterator[None]:
    """Feed the watchdog from the running event loop: a loop that hangs feeds it no more."""
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
