"""The connections of this process: counts them by address, keeps those that wait for a request, and answers those beyond the
limits; reads and writes in few system calls; sends files from the page cache to a socket in threads, because a cold disk
blocks; and sets how the process treats memory.

New connections go before waiting ones: a flood of connections that ask for nothing pushes out its own.
"""

import asyncio
import ctypes
import fcntl
import gc
import logging
import os
import resource
import socket
import sys
import termios
from asyncio.trsock import TransportSocket
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

from starlette.types import Message

from uploader.errors import TooManyRequests, Unavailable, UploaderError
from uploader.http.shared.mount import Mount
from uploader.http.shared.proxies import Proxies, parsed_address, party_of
from uploader.runtime.cores import run_anywhere
from uploader.runtime.observability import REFUSED_CONNECTIONS
from uploader.runtime.tasks import uninterrupted
from uploader.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")
# Gives bytes from an offset on, up to so many, in a thread.
View = Callable[[int, int], memoryview]

# Under these names the application's lifespan state carries the connections, and the senders, to the protocol.
CONNECTIONS_STATE, SENDERS_STATE = "connections", "senders"

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
# Of connections that wait longest, how many are looked at for one whose answer has left.
_LOOKED_AT = 16

# From how many bytes on the loop wakes up, while a body comes fast.
_MARK_BYTES = 512 << 10
# After so long with fewer bytes the mark is lowered, so that how a slow client gets on is seen; and raised again when so
# many are read at once.
_PATIENCE_SECONDS = 0.1
_FAST_BYTES = 64 << 10
# What is larger is written as it is: to copy it would cost more than a call.
_MAX_HELD_BYTES = 64 << 10

_THREADS = 8
# What a thread sends before it turns to another connection.
_TURN_BYTES = 4 << 20
# What goes through the transport when the socket is full: enough to find out when it no longer is.
_PIECE_BYTES = 16 << 10


def keep_freed_memory() -> None:
    """Set the thresholds of malloc for the rest of the process, where the C library is glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def collect_seldom() -> None:
    """Collect garbage seldom, for the rest of the process. What is there already, such as modules, is never looked at
    again."""
    gc.freeze()
    gc.set_threshold(*_COLLECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    max_connections: int
    max_connections_per_address: int
    # Beyond them, so that they can be answered.
    reserved_connections: int
    header_timeout_seconds: float
    idle_timeout_seconds: float


def connection_limits(settings: Settings) -> ConnectionLimits:
    """Return the limits within what this process may open; a connection may need a descriptor for its spool."""
    descriptors = _raise_descriptor_limit()
    reserved = max(1, min(_RESERVED_CONNECTIONS, descriptors // _DESCRIPTORS_PER_RESERVED))
    most = max(1, (descriptors - _OWN_DESCRIPTORS - reserved) // 2)
    if settings.max_connections > most:
        logger.warning(
            "fewer connections than UPLOADER_MAX_CONNECTIONS", extra={"connections": most, "open_files": descriptors}
        )
    return ConnectionLimits(
        max_connections=min(settings.max_connections, most),
        max_connections_per_address=settings.max_connections_per_address,
        reserved_connections=reserved,
        header_timeout_seconds=settings.header_timeout_seconds,
        idle_timeout_seconds=settings.body_idle_timeout_seconds,
    )


def _raise_descriptor_limit() -> int:
    """Take as many descriptors as this process may (getrlimit(2))."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, _WANTED_DESCRIPTORS) if hard != resource.RLIM_INFINITY else _WANTED_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft if soft != resource.RLIM_INFINITY else _WANTED_DESCRIPTORS


class Connected(Protocol):
    """A connection, as the limits see it."""

    def is_sending(self) -> bool:
        """Return True while the system has not taken all that was written."""

    def dismiss(self, error: UploaderError) -> None:
        """End it, which waits for a request, to make room."""

    def cut(self) -> None:
        """End a connection beyond the limits at once, after its answer."""


class Connections:
    """Those of a process. What is beyond the limits goes into a reserve, where the oldest give way to the newest."""

    def __init__(self, limits: ConnectionLimits, proxies: Proxies, mount: Mount) -> None:
        """`proxies`: their connections are those of many, and count for no address."""
        self.limits = limits
        self.mount = mount
        self._proxies = proxies
        # Those that are served, with whom they count for, and how many that makes.
        self._served: dict[Connected, str | None] = {}
        self._counts: Counter[str | None] = Counter()
        # Of them, those that wait for a request, the longest first: all, and by whom they count for.
        self._waiting: OrderedDict[Connected, None] = OrderedDict()
        self._waiting_of: defaultdict[str | None, OrderedDict[Connected, None]] = defaultdict(OrderedDict)
        self._reserve: OrderedDict[Connected, None] = OrderedDict()
        self._probing: set[Connected] = set()

    def enter(self, connection: Connected, host: str) -> UploaderError | None:
        """Let a new one in from this address. Return None if it is served; else what all but probes are answered."""
        address = parsed_address(host)
        party = None if self._proxies.have(address) else party_of(address)
        error = self._lack_of_room(party)
        if error is None:
            self._served[connection] = party
            self._counts[party] += 1
            self.wait(connection)
        else:
            self._retire(connection)
        return error

    def comes_by_proxy(self, connection: Connected) -> bool:
        return self._served.get(connection, "") is None

    def wait(self, connection: Connected) -> None:
        if connection in self._served:
            self._waiting[connection] = None
            self._waiting_of[self._served[connection]][connection] = None

    def work(self, connection: Connected) -> None:
        if connection in self._waiting:
            del self._waiting[connection]
            party = self._served[connection]
            waiting = self._waiting_of[party]
            del waiting[connection]
            if not waiting:
                del self._waiting_of[party]

    def probe(self, connection: Connected) -> bool:
        """Return whether a probe of one in the reserve may be answered."""
        if connection in self._reserve and len(self._probing) < max(1, self.limits.reserved_connections // 2):
            del self._reserve[connection]
            self._probing.add(connection)
        return connection in self._probing

    def refuse(self, connection: Connected) -> None:
        """Note that a connection was told that it is refused: it stays for a while so that its client can read why."""
        if connection in self._served:
            self._end_service(connection)
            self._retire(connection)

    def leave(self, connection: Connected) -> None:
        if connection in self._served:
            self._end_service(connection)
        self._reserve.pop(connection, None)
        self._probing.discard(connection)

    def _lack_of_room(self, party: str | None) -> UploaderError | None:
        """Make room for a connection of this party. Return the error if that can't be."""
        if party is not None and self._counts[party] >= self.limits.max_connections_per_address:
            error: UploaderError = TooManyRequests("There are too many connections from your address; close some.")
            if not self._dismiss_one(self._waiting_of.get(party, ()), error, "address"):
                return error
        if len(self._served) >= self.limits.max_connections:
            error = Unavailable("The server has too many connections; try again soon.")
            if not self._dismiss_one(self._waiting, error, "process"):
                return error
        return None

    def _dismiss_one(self, waiting: Iterable[Connected], error: UploaderError, limit: str) -> bool:
        """Return whether one of these could go."""
        REFUSED_CONNECTIONS.labels(limit).inc()
        found = next((one for one in islice(waiting, _LOOKED_AT) if not one.is_sending()), None)
        if found is None:
            return False
        found.dismiss(error)
        if found in self._served:
            self._end_service(found)
        return True

    def _end_service(self, connection: Connected) -> None:
        self.work(connection)
        party = self._served.pop(connection)
        self._counts[party] -= 1
        if not self._counts[party]:
            del self._counts[party]

    def _retire(self, connection: Connected) -> None:
        self._reserve[connection] = None
        if len(self._reserve) > self.limits.reserved_connections:
            oldest, _ = self._reserve.popitem(last=False)
            oldest.cut()


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
        """Need not be told while the mark is raised and less than `left_bytes`."""
        self.progress = True
        if left_bytes < self.mark_bytes:
            self._set(max(left_bytes, 1))
        elif self.mark_bytes == 1 and count >= _FAST_BYTES:
            self._raise(left_bytes)

    def end(self) -> None:
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
    """Holds small writes until the end of the turn: the head of an answer and its body are two writes to uvicorn, but one
    is enough for the kernel and for the client. All else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._ended = False
        # A method that tells whether a connection that is to be closed stays for a while, if there is one.
        self.lingers: Callable[[], Callable[[], bool] | None] = lambda: None
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
        lingers = self.lingers()
        if lingers is None or not lingers():
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
        self._timer = self._loop.call_later(self._timeout_seconds, self._check_stall, self.untaken_bytes())

    def end(self) -> None:
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
        """Count also what the kernel holds, megabytes perhaps: it tells the transport only when it has room for a third,
        and a client that takes them slowly does not stand still."""
        try:
            queued = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:
            queued = b""  # it is closed
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)


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
        file: int | View,
        offset: int,
        count: int,
    ) -> None:
        """Send all of it, by `sendfile` or as it is viewed, unless the client goes away, as `is_drained` says once the
        transport has sent what it was given. Raises EOFError, OSError, and what a view does. uvloop has no `loop.sendfile`,
        and lets nobody but the transport wait for its socket. So a thread sends what the socket takes at once, and when it
        is full, the next piece goes through the transport: that tells when there is room again, and what watches over
        clients that stand still or vanish keeps watching."""
        end = offset + count
        while offset < end and await is_drained():
            try:
                sent, piece = await self._take_turn(transport, file, offset, end)
            except (ConnectionError, TimeoutError):
                transport.abort()
                return
            transport.write(piece)
            offset += sent + len(piece)

    async def _take_turn(
        self, transport: asyncio.Transport, file: int | View, offset: int, end: int
    ) -> tuple[int, bytes]:
        async with self._free:
            if transport.is_closing():
                return 0, b""
            socket = os.dup(transport.get_extra_info("socket").fileno())
            try:
                # To its end also if the client goes away, for then these descriptors are closed and may become others.
                loop = asyncio.get_running_loop()
                if isinstance(file, int):
                    work = loop.run_in_executor(self._threads, _send, socket, file, offset, end)
                else:
                    work = loop.run_in_executor(self._threads, _send_viewed, socket, file, offset, end)
                return await uninterrupted(work)
            finally:
                os.close(socket)


def _send(socket: int, file: int, offset: int, end: int) -> tuple[int, bytes]:
    """Send a turn of bytes in a thread; return the number sent, and the next bytes if the socket is full."""
    start, stop = offset, min(end, offset + _TURN_BYTES)
    while offset < stop:
        try:
            sent = os.sendfile(socket, file, offset, stop - offset)
        except BlockingIOError:
            piece = os.pread(file, min(end - offset, _PIECE_BYTES), offset)
            return offset - start, _there(piece)
        offset += _there(sent)
    return offset - start, b""


def _send_viewed(socket: int, view: View, offset: int, end: int) -> tuple[int, bytes]:
    """As `_send`, the very bytes that were viewed."""
    start, stop = offset, min(end, offset + _TURN_BYTES)
    while offset < stop:
        piece = _there(view(offset, stop - offset))
        while piece:
            try:
                sent = os.write(socket, piece)
            except BlockingIOError:
                return offset - start, bytes(piece[:_PIECE_BYTES])
            offset, piece = offset + sent, piece[sent:]
    return offset - start, b""


def _there(found: T) -> T:
    if not found:
        raise EOFError("A file is shorter than what is to be sent of it.")
    return found


def extent_of(message: Message) -> tuple[int | View, int, int]:
    """Return descriptor, offset and count of ASGI's message to send a file, with their defaults; or those of ours, which has
    a view and no file."""
    if "view" in message:
        return message["view"], message["offset"], message["count"]
    file = message["file"]
    descriptor: int = file if isinstance(file, int) else file.fileno()
    offset, count = message.get("offset"), message.get("count")
    if offset is None:
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
    if count is None:
        count = max(0, os.fstat(descriptor).st_size - offset)
    return descriptor, offset, count
