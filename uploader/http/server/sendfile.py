"""`http.response.zerocopysend`, the ASGI extension (asgi.readthedocs.io/en/latest/extensions.html), for uvicorn's HTTP/1.1:
a part of a file goes from the page cache to the socket, without Python in between.

Owns the threads that do it, because a cold disk blocks whoever sends from it. Refuses TLS, and to know what is sent.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.types import Message
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from uploader.cores import run_anywhere
from uploader.http.shared.responses import ZERO_COPY_SEND
from uploader.tasks import uninterrupted

# Under this name the application's lifespan state carries the senders to the protocol.
SENDERS_STATE = "senders"

T = TypeVar("T")

_THREADS = 8
# What a thread sends before it turns to another connection.
_TURN_BYTES = 4 << 20
# What goes through the transport when the socket is full: enough to find out when it no longer is.
_PIECE_BYTES = 16 << 10
# Of requests whose answers may be files: to offer it to all others costs each of them two layers.
SENDING_METHODS = frozenset({"GET", "HEAD"})


class Senders:
    """Threads that send, each to a descriptor of its own: that of a connection may, when it ends, become another's."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sending", initializer=run_anywhere)
        self._free = asyncio.Semaphore(_THREADS)

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def send(self, cycle: RequestResponseCycle, file: int, offset: int, count: int) -> None:
        """Send all of it, unless the client goes away. Raises EOFError, OSError.

        uvloop has no `loop.sendfile`, and lets nobody but the transport wait for its socket. So a thread sends what the
        socket takes at once, and when it is full, the next piece goes through the transport as an ordinary one does: that
        tells when there is room again, and what watches over clients that stand still or vanish keeps watching.
        """
        transport, end = cycle.transport, offset + count
        while offset < end and await _is_drained(cycle):
            try:
                sent, piece = await self._take_turn(cycle, file, offset, end)
            except (ConnectionError, TimeoutError):
                transport.abort()
                return
            transport.write(piece)
            offset += sent + len(piece)

    async def _take_turn(self, cycle: RequestResponseCycle, file: int, offset: int, end: int) -> tuple[int, bytes]:
        async with self._free:
            if cycle.transport.is_closing():
                return 0, b""
            socket = os.dup(cycle.transport.get_extra_info("socket").fileno())
            try:
                # To its end also if the client goes away, for then these descriptors are closed and may become others.
                loop = asyncio.get_running_loop()
                return await uninterrupted(loop.run_in_executor(self._threads, _send, socket, file, offset, end))
            finally:
                os.close(socket)


def _send(socket: int, file: int, offset: int, end: int) -> tuple[int, bytes]:
    """How many bytes went at one go, and the ones after them if the socket is full. In a thread."""
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


async def _is_drained(cycle: RequestResponseCycle) -> bool:
    """Wait until the transport has sent what it was given; whether the client is still there."""
    transport = cycle.transport
    if not transport.is_closing() and transport.get_write_buffer_size():
        low, high = transport.get_write_buffer_limits()
        transport.set_write_buffer_limits(high=0)
        await cycle.flow.drain()
        if not transport.is_closing():
            transport.set_write_buffer_limits(high=high, low=low)
    return not (cycle.disconnected or transport.is_closing())


class _Sending:
    """The `send` of one request: uvicorn's, and the message of the extension."""

    def __init__(self, cycle: RequestResponseCycle, send: ASGISendCallable, senders: Senders) -> None:
        self._cycle = cycle
        self._send = send
        self._senders = senders

    async def __call__(self, message: Any) -> None:
        cycle = self._cycle
        if message["type"] != ZERO_COPY_SEND or not cycle.response_started or cycle.response_complete:
            await self._send(message)
            return
        if cycle.scope["method"] != "HEAD":
            await self._send_file(message)
        if not message.get("more_body", False):
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_file(self, message: Message) -> None:
        """As uvicorn does it with bytes."""
        cycle, (file, offset, count) = self._cycle, _extent(message)
        if not cycle.chunked_encoding:
            if count > cycle.expected_content_length:
                raise RuntimeError("Response content longer than Content-Length")
            cycle.expected_content_length -= count
        if not count:
            return
        if cycle.chunked_encoding:
            cycle.transport.write(b"%x\r\n" % count)
        await self._senders.send(cycle, file, offset, count)
        if cycle.chunked_encoding:
            cycle.transport.write(b"\r\n")


def _extent(message: Message) -> tuple[int, int, int]:
    """The descriptor, the offset and the count of a message, the latter two as the extension fills them in."""
    file = message["file"]
    descriptor: int = file if isinstance(file, int) else file.fileno()
    offset, count = message.get("offset"), message.get("count")
    if offset is None:
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
    if count is None:
        count = max(0, os.fstat(descriptor).st_size - offset)
    return descriptor, offset, count


def with_sendfile(app: ASGI3Application, cycle: RequestResponseCycle, senders: Senders | None) -> ASGI3Application:
    """An application that may send files in its answer to one request, where that can be."""
    if senders is None or cycle.transport.get_extra_info("sslcontext") is not None:
        return app
    cycle.scope.setdefault("extensions", {})[ZERO_COPY_SEND] = {}

    async def sending(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await app(scope, receive, _Sending(cycle, send, senders))

    return sending
