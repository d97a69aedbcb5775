"""Clients that do not take their answer."""

import asyncio
import fcntl
import sys
import termios


class StallWatch:
    """Ends a connection whose client takes nothing of what was written for a while."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, timeout_seconds: float) -> None:
        self.transport = transport
        self._loop = loop
        self._timeout_seconds = timeout_seconds
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The transport holds more than it wants to."""
        self._timer = self._loop.call_later(self._timeout_seconds, self._check_stall, self.untaken_bytes())

    def end(self) -> None:
        """It has room again, or is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_stall(self, untaken_before: int) -> None:
        self._timer = None
        if self.untaken_bytes() < untaken_before:
            self.begin()
        else:
            self.transport.abort()

    def untaken_bytes(self) -> int:
        """What the client has not taken of what was written. The kernel may hold megabytes of it, and tells the transport
        only when it has room for a third: a client that takes them slowly does not stand still."""
        try:
            queued = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:
            queued = b""  # it is closed
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)
