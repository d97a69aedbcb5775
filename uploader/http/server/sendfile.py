"""Sends a part of a file from the page cache to the socket, without Python in between.

Owns the threads that do it, because a cold disk blocks whoever sends from it. Refuses TLS, and to know what is sent.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.types import Message

from uploader.cores import run_anywhere
from uploader.tasks import uninterrupted

# Under this name the application's lifespan state carries the senders to the protocol.
SENDERS_STATE = "senders"

T = TypeVar("T")

_THREADS = 8
# What a thread sends before it turns to another connection.
_TURN_BYTES = 4 << 20
# What goes through the transport when the socket is full: enough to find out when it no longer is.
_PIECE_BYTES = 16 << 10


class Senders:
    """Threads that send, each to a descriptor of its own: that of a connection may, when it ends, become another's."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sending", initializer=run_anywhere)
        self._free = asyncio.Semaphore(_THREADS)

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def send(
        self,
        transport: asyncio.Transport,
        is_drained: Callable[[], Awaitable[bool]],
        file: int,
        offset: int,
        count: int,
    ) -> None:
        """Send all of it, unless the client goes away: `is_drained` waits until the transport has sent what it was given,
        and says whether the client is still there. Raises EOFError, OSError.

        uvloop has no `loop.sendfile`, and lets nobody but the transport wait for its socket. So a thread sends what the
        socket takes at once, and when it is full, the next piece goes through the transport as an ordinary one does: that
        tells when there is room again, and what watches over clients that stand still or vanish keeps watching.
        """
        end = offset + count
        while offset < end and await is_drained():
            try:
                sent, piece = await self._take_turn(transport, file, offset, end)
            except (ConnectionError, TimeoutError):
                transport.abort()
                return
            transport.write(piece)
            offset += sent + len(piece)

    async def _take_turn(self, transport: asyncio.Transport, file: int, offset: int, end: int) -> tuple[int, bytes]:
        async with self._free:
            if transport.is_closing():
                return 0, b""
            socket = os.dup(transport.get_extra_info("socket").fileno())
            try:
                # To its end also if the client goes away, for then these descriptors are closed and may become others.
                loop = asyncio.get_running_loop()
                return await uninterrupted(loop.run_in_executor(self._threads, _send, socket, file, offset, end))
            finally:
                os.close(socket)


def _send(socket: int, file: int, offset: int, end: int) -> tuple[int, bytes]:
    """Return how many bytes went at one go, and the ones after them if the socket is full. In a thread."""
    start, stop = offset, min(end, offset + _TURN_BYTES)
    while offset < stop:
        try:
            sent = os.sendfile(socket, file, offset, stop - offset)
        except BlockingIOError:
            piece = os.pread(file, min(end - offset, _PIECE_BYTES), offset)
            return offset - start, _there(piece)
        offset += _there(sent)
    return offset - start, b""


def _there(found: T) -> T:
    if not found:
        raise EOFError("A file is shorter than what is to be sent of it.")
    return found


def extent_of(message: Message) -> tuple[int, int, int]:
    """Return the descriptor, the offset and the count of a message, the latter two as the extension fills them in."""
    file = message["file"]
    descriptor: int = file if isinstance(file, int) else file.fileno()
    offset, count = message.get("offset"), message.get("count")
    if offset is None:
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
    if count is None:
        count = max(0, os.fstat(descriptor).st_size - offset)
    return descriptor, offset, count
