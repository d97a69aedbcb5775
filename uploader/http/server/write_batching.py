"""Puts together what is written to a connection in one turn of the event loop: the head of an answer and its body are two
writes to uvicorn, but one is enough for the kernel and for the client."""

import asyncio
from typing import Any

# What is larger is written as it is: to copy it would cost more than a call.
_MAX_HELD_BYTES = 64 << 10


class CorkedTransport:
    """A transport that holds small writes until the end of the turn; all else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._ended = False

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
