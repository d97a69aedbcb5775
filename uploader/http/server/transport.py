"""Reads and writes of a connection in few system calls, and clients that do not take their answer."""

import asyncio
import fcntl
import socket
import sys
import termios
from asyncio.trsock import TransportSocket
from typing import Any

_MARK_BYTES = 512 << 10
# After so long with fewer bytes the mark is lowered, so that how a slow client gets on is seen; and raised again when so
# many are read at once.
_PATIENCE_SECONDS = 0.1
_FAST_BYTES = 64 << 10
# What is larger is written as it is: to copy it would cost more than a call.
_MAX_HELD_BYTES = 64 << 10


class ReadBatching:
    """The low-water mark of a socket that a body is read from (`SO_RCVLOWAT`, socket(7)): while the body comes fast, the
    event loop wakes up for many bytes only. End it."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, left_bytes: int) -> None:
        """`left_bytes`: what of the body is still to be read from the socket."""
        self._transport = transport
        self._socket: TransportSocket | None = transport.get_extra_info("socket")
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        # How many bytes there have to be before the loop wakes up.
        self.mark_bytes = 1
        # Whether anything was read since the last look; the reader sets it.
        self.progress = False
        self._raise(left_bytes)

    def received(self, count: int, left_bytes: int) -> None:
        """So many bytes were read at once. Need not be told while the mark is raised and less than `left_bytes`."""
        self.progress = True
        if left_bytes < self.mark_bytes:
            self._set(max(left_bytes, 1))
        elif self.mark_bytes == 1 and count >= _FAST_BYTES:
            self._raise(left_bytes)

    def end(self) -> None:
        """End it: what comes next is no body."""
        self._set(1)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _raise(self, left_bytes: int) -> None:
        if self._socket is None or left_bytes < _MARK_BYTES:
            return
        self._set(_MARK_BYTES)
        if self._timer is None:
            self._timer = self._loop.call_later(_PATIENCE_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = None
        if self.progress:
            self.progress = False
            self._timer = self._loop.call_later(_PATIENCE_SECONDS, self._check)
        else:
            self._set(1)

    def _set(self, mark_bytes: int) -> None:
        # The descriptor of one that is closing may be that of another connection already.
        if self._socket is None or mark_bytes == self.mark_bytes or self._transport.is_closing():
            return
        self.mark_bytes = mark_bytes
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark_bytes)


class WriteBatching:
    """A transport that holds small writes until the end of the turn: the head of an answer and its body are two writes to
    uvicorn, but one is enough for the kernel and for the client. All else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._ended = False
        # Asked for often, so without a step in between.
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.get_extra_info = transport.get_extra_info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, content: bytes) -> None:
        if self._ended:
            return  # as on a connection that is closed: it was refused, and its request may not know yet
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(content)
        self._held_bytes += len(content)
        if self._held_bytes > _MAX_HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        held, self._held, self._held_bytes = self._held, [], 0
        if not held or self._transport.is_closing():
            return
        if len(held[-1]) > _MAX_HELD_BYTES:
            self._transport.writelines(held)
        else:
            self._transport.write(b"".join(held))

    def write_eof(self) -> None:
        self.flush()
        self._ended = True
        self._transport.write_eof()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.flush()  # so that the transport says at once whether it is over them
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + self._held_bytes


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
        """Return what the client has not taken of what was written. The kernel may hold megabytes of it, and tells the
        transport only when it has room for a third: a client that takes them slowly does not stand still."""
        try:
            queued = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:
            queued = b""  # it is closed
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)
