"""The low-water mark of a connection that receives a body: how many bytes have to be there before the event loop wakes up
for them (`SO_RCVLOWAT`, socket(7)). A client that is fast is then read in a few large pieces, and not packet by packet.
"""

import asyncio
import socket
from asyncio.trsock import TransportSocket

_MARK_BYTES = 512 << 10
# After so long with fewer bytes the mark is lowered, so that how a slow client gets on is seen; and raised again when so
# many are read at once.
_PATIENCE_SECONDS = 0.1
_FAST_BYTES = 64 << 10


class LowWaterMark:
    """Raised while a body comes fast. End it."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, left_bytes: int) -> None:
        """`left_bytes`: what of the body is still to be read from the socket."""
        self._transport = transport
        self._socket: TransportSocket | None = transport.get_extra_info("socket")
        self._loop = loop
        self._bytes = 1
        self._read = False
        self._timer: asyncio.TimerHandle | None = None
        self._raise(left_bytes)

    def received(self, count: int, left_bytes: int) -> None:
        """So many bytes were read at once."""
        self._read = True
        if left_bytes < self._bytes:
            self._set(max(left_bytes, 1))
        elif self._bytes == 1 and count >= _FAST_BYTES:
            self._raise(left_bytes)

    def end(self) -> None:
        """What comes next is no body."""
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
        if self._read:
            self._read = False
            self._timer = self._loop.call_later(_PATIENCE_SECONDS, self._check)
        else:
            self._set(1)

    def _set(self, mark_bytes: int) -> None:
        # The descriptor of one that is closing may be that of another connection already.
        if self._socket is None or mark_bytes == self._bytes or self._transport.is_closing():
            return
        self._bytes = mark_bytes
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark_bytes)
