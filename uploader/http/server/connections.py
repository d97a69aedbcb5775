"""The connections of this process. Counts them per address, answers connections beyond the limits, batches reads and writes
into few system calls, sends files with `sendfile` in threads (a cold disk blocks), and tunes malloc and the garbage
collector.

A new connection replaces a connection that waits for a request. A flood of silent connections only displaces itself.
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
# Returns up to `count` bytes at an offset; called in a thread.
View = Callable[[int, int], memoryview]

# The keys in the lifespan state for the `Connections` and the `Senders` of the process.
CONNECTIONS_STATE, SENDERS_STATE = "connections", "senders"

# mallopt(3)
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Allocations up to this size come from the heap instead of the kernel: the largest threshold that glibc allows.
_FROM_HEAP_BYTES = 32 << 20
# Free memory to keep at the end of the heap.
_KEPT_BYTES = 512 << 20
# Thresholds of the garbage collector. With Python's own 700 and 10, its runs are among the largest costs of a small chunk.
_COLLECTED = (10_000, 20, 50)

# Descriptors for everything but connections: stores, open chunks and maps.
_OWN_DESCRIPTORS = 512
# Connections beyond the limits that may still be answered; with few descriptors, one in 8 descriptors.
_RESERVED_CONNECTIONS, _DESCRIPTORS_PER_RESERVED = 1024, 8
_WANTED_DESCRIPTORS = 1 << 16
# The number of longest-waiting connections to search for one whose answer has been sent.
_LOOKED_AT = 16

# `SO_RCVLOWAT` while a body arrives fast: the loop wakes up for this many bytes.
_MARK_BYTES = 512 << 10
# After this time without a wake-up the mark is lowered, so that the progress of a slow client is seen. A read of
# `_FAST_BYTES` raises the mark again.
_PATIENCE_SECONDS = 0.1
_FAST_BYTES = 64 << 10
# Larger writes are not joined: copying them would cost more than a system call.
_MAX_HELD_BYTES = 64 << 10

_THREADS = 8
# Bytes to send in a thread before another connection gets the thread.
_TURN_BYTES = 4 << 20
# Bytes to give to the transport when the socket is full; the transport then notices when the socket has space again.
_PIECE_BYTES = 16 << 10


def keep_freed_memory() -> None:
    """Set malloc's thresholds for this process, to keep freed memory. Does nothing without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def collect_seldom() -> None:
    """Run the garbage collector seldom, and exempt all objects that exist now, such as modules."""
    gc.freeze()
    gc.set_threshold(*_COLLECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    max_connections: int
    max_connections_per_address: int
    # Connections beyond `max_connections` that may be answered with an error.
    reserved_connections: int
    header_timeout_seconds: float
    idle_timeout_seconds: float


def connection_limits(settings: Settings) -> ConnectionLimits:
    """Return the limits of this process. Each connection may need two descriptors: its socket and a file of the spool."""
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
    """Raise the soft limit of open files (getrlimit(2)) and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, _WANTED_DESCRIPTORS) if hard != resource.RLIM_INFINITY else _WANTED_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft if soft != resource.RLIM_INFINITY else _WANTED_DESCRIPTORS


class Connected(Protocol):
    """The part of a connection that `Connections` uses."""

    def is_sending(self) -> bool:
        """Return True while the kernel has not taken all written bytes."""

    def dismiss(self, error: UploaderError) -> None:
        """Close this waiting connection to free its place."""

    def cut(self) -> None:
        """Answer a connection beyond the limits, and close it at once."""


class Connections:
    """All connections of the process. Connections beyond the limits wait in a reserve for their answer; when the reserve is
    full, the oldest is cut."""

    def __init__(self, limits: ConnectionLimits, proxies: Proxies, mount: Mount) -> None:
        """Connections from `proxies` carry many clients, and do not count for an address."""
        self.limits = limits
        self.mount = mount
        self._proxies = proxies
        # The served connections with their party (address or /64; None for a proxy), and their number per party.
        self._served: dict[Connected, str | None] = {}
        self._counts: Counter[str | None] = Counter()
        # The served connections that wait for a request, longest first: all of them, and per party.
        self._waiting: OrderedDict[Connected, None] = OrderedDict()
        self._waiting_of: defaultdict[str | None, OrderedDict[Connected, None]] = defaultdict(OrderedDict)
        self._reserve: OrderedDict[Connected, None] = OrderedDict()
        self._probing: set[Connected] = set()

    def enter(self, connection: Connected, host: str) -> UploaderError | None:
        """Add a new connection. Return None if it is served, otherwise the error for every request except probes."""
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
        """Return True if a probe on this connection of the reserve may be answered."""
        if connection in self._reserve and len(self._probing) < max(1, self.limits.reserved_connections // 2):
            del self._reserve[connection]
            self._probing.add(connection)
        return connection in self._probing

    def refuse(self, connection: Connected) -> None:
        """Move a refused connection to the reserve, where it stays until its client has read the answer."""
        if connection in self._served:
            self._end_service(connection)
            self._retire(connection)

    def leave(self, connection: Connected) -> None:
        if connection in self._served:
            self._end_service(connection)
        self._reserve.pop(connection, None)
        self._probing.discard(connection)

    def _lack_of_room(self, party: str | None) -> UploaderError | None:
        """Free a place for a connection of this party. Return the error if there is none."""
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
        """Dismiss one of the waiting connections. Return False if none can go."""
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
    """Sets the low-water mark of a socket (`SO_RCVLOWAT`, socket(7)) while a body is read from it: if the body arrives fast,
    the event loop wakes up only for many bytes. The caller must call `end`."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, left_bytes: int) -> None:
        """`left_bytes`: bytes of the body that are still to be read from the socket."""
        self._transport = transport
        self._socket: TransportSocket | None = transport.get_extra_info("socket")
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        # The current mark: bytes that must be there before the loop wakes up.
        self.mark_bytes = 1
        # True if bytes were read since the last check; the reader sets it.
        self.progress = False
        self._raise(left_bytes)

    def received(self, count: int, left_bytes: int) -> None:
        """Note bytes that were read. The reader may skip the call while the mark is raised and below `left_bytes`."""
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
        # After a close, the descriptor may already belong to another connection.
        if self._socket is None or mark_bytes == self.mark_bytes or self._transport.is_closing():
            return
        self.mark_bytes = mark_bytes
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark_bytes)


class WriteBatching:
    """Collects small writes until the end of the loop's turn. uvicorn writes the head and the body of an answer separately;
    one write is cheaper for kernel and client. Everything else passes to the transport."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._ended = False
        # Returns a method that says if the connection must linger when it is to be closed, or None.
        self.lingers: Callable[[], Callable[[], bool] | None] = lambda: None
        # Called often, hence without a wrapper.
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.get_extra_info = transport.get_extra_info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, content: bytes) -> None:
        if self._ended:
            return  # as on a closed connection: a refused request may still write
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
        self.flush()  # the transport then reports at once if the limits are exceeded
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + self._held_bytes


class StallWatch:
    """Aborts a connection whose client takes no written bytes for a while."""

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
        """Count the bytes that the client has not taken, including those in the kernel (perhaps megabytes). The kernel
        reports space only when a third is free, so a slow client would seem to stand still."""
        try:
            queued = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:
            queued = b""  # the socket is closed
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)


class Senders:
    """Threads that send files. Each uses a duplicate of the socket's descriptor: when a connection ends, its own number may
    be reused by another one."""

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
        """Send `count` bytes of a file or a view. Stops if the client is gone. `is_drained` waits until the transport's
        buffer is empty, and returns False for a lost connection. Raises EOFError, OSError, and the errors of the view.

        uvloop has no `loop.sendfile`, and only the transport can wait for the socket. So a thread fills the socket; when the
        socket is full, the next piece goes through the transport. The transport knows when there is space again, and the
        watch on clients that stop reading stays in effect.
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

    async def _take_turn(
        self, transport: asyncio.Transport, file: int | View, offset: int, end: int
    ) -> tuple[int, bytes]:
        async with self._free:
            if transport.is_closing():
                return 0, b""
            socket = os.dup(transport.get_extra_info("socket").fileno())
            try:
                # Finish even if the client goes away: the descriptors are closed afterwards, and their numbers may be
                # reused.
                loop = asyncio.get_running_loop()
                if isinstance(file, int):
                    work = loop.run_in_executor(self._threads, _send, socket, file, offset, end)
                else:
                    work = loop.run_in_executor(self._threads, _send_viewed, socket, file, offset, end)
                return await uninterrupted(work)
            finally:
                os.close(socket)


def _send(socket: int, file: int, offset: int, end: int) -> tuple[int, bytes]:
    """Send up to `_TURN_BYTES` in a thread. Return the number of sent bytes, and the next piece if the socket is full."""
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
    """Send like `_send`, from a view: the bytes sent are exactly the bytes viewed."""
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
    """Return file, offset and count of a zero-copy message of ASGI, with its defaults; or view, offset and count of a
    message of this package."""
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
