"""The server processes and their parent. All of them sleep until an event wakes them. uvicorn's own classes poll: ten times
a second for signals, twice a second for dead processes.
"""

import asyncio
import ctypes
import logging
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from email.utils import formatdate
from multiprocessing.connection import wait
from types import FrameType

from uvicorn import Config
from uvicorn.config import STARTUP_FAILURE
from uvicorn.server import Server, ServerState
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from uploader.bootstrap.systemd import STOPPING, WATCHDOG, notify, watchdog_seconds, watched_loop
from uploader.http.app import STOP_STATE
from uploader.http.shared.exchange import UNREADY_STATE
from uploader.runtime.tasks import ended

logger = logging.getLogger(__name__)

# Seconds between two pings of each process. The parent learns of an ended process at once.
_ASK_SECONDS = 10.0
# The parent's message to a process before the stop. All other messages are uvicorn's pings.
_DRAIN = b"drain"
_STOPS = "the process stops"
_LETS_END = "STATUS=lets requests end"
# Seconds to wait while the service manager's socket is full.
_NOTIFY_SECONDS = 5.0

# A program that drops TCP segments with SYN (https://docs.kernel.org/networking/filter.html). Its input begins with the TCP
# header.
_NO_SYN = (
    (0x30, 0, 0, 13),  # load the byte with the flags
    (0x45, 0, 1, 0x02),  # is SYN set?
    (0x06, 0, 0, 0),  # yes: drop
    (0x06, 0, 0, 0xFFFFFFFF),  # no: pass
)
_SO_ATTACH_FILTER = 26  # <asm-generic/socket.h>
# Seconds for TCP handshakes that have begun.
_HANDSHAKE_SECONDS = 0.1


def begin_no_connection(listener: socket.socket) -> None:
    """Drop requests for new connections, to let the server accept all present ones before the listener closes. At the close
    the kernel resets connections that nobody has accepted, and their clients may have sent a request already. A client whose
    SYN was dropped has sent nothing. The client tries again after a second, and finds a closed port or the next server."""
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in _NO_SYN))
    with suppress(OSError):
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(_NO_SYN), ctypes.addressof(program))
        )


class Terminal:
    def __init__(self) -> None:
        self._was_there = os.isatty(0)

    @property
    def is_gone(self) -> bool:
        return self._was_there and not os.isatty(0)


class DatedState(ServerState):
    """The state that all connections of a server share. Makes the Date header when an answer needs it."""

    _second = 0
    _headers: list[tuple[bytes, bytes]]

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        second = int(time.time())
        if second != self._second:
            self._second, self._headers = second, [(b"date", formatdate(second, usegmt=True).encode())]
        return self._headers

    @default_headers.setter
    def default_headers(self, _none_yet: list[tuple[bytes, bytes]]) -> None:
        """Ignore the empty list that uvicorn assigns."""


class SleepingServer(Server):
    """Serves until a signal ends the server."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.server_state = DatedState()
        self._ends = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._ends.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the application end its requests with answers. uvicorn cancels the remaining requests a moment later."""
        self.tell_unready(_STOPS)
        stopping = asyncio.create_task(self.lifespan.state[STOP_STATE](), name="ending requests")
        try:
            await super().shutdown(sockets)
        finally:
            await ended(stopping)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.end()

    def end(self) -> None:
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ends.set)

    def tell_unready(self, reason: str) -> None:
        """Let `/readyz` give this reason. Callable from any thread."""
        if hasattr(self, "lifespan"):
            self.lifespan.state[UNREADY_STATE] = reason

    def turn(self) -> None:
        """Wait in a thread until the event loop has turned once. Return at once if the loop does not serve yet, or has
        ended."""
        turned = threading.Event()
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(turned.set)
                turned.wait()


class SingleServer(SleepingServer):
    """The only server process. Closes the port and talks to the service manager itself."""

    def __init__(self, config: Config, drain_seconds: float) -> None:
        super().__init__(config)
        self._drain_seconds = drain_seconds

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        with watched_loop():
            await super().serve(sockets)

    async def main_loop(self) -> None:
        await super().main_loop()
        self.tell_unready(_STOPS)
        await asyncio.to_thread(notify, STOPPING, _LETS_END, timeout_seconds=_NOTIFY_SECONDS)
        self._ends.clear()  # another signal ends the wait
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ends.wait(), self._drain_seconds)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():
            begin_no_connection(listener)
        await asyncio.sleep(_HANDSHAKE_SECONDS)
        await super().shutdown(sockets)


class _SideServer(SleepingServer):
    """A server beside other work of the same process. The other work handles the signals."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.listens: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set_result(None)

    def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]
        return nullcontext()


@asynccontextmanager
async def served(config: Config, listener: socket.socket) -> AsyncIterator[Callable[[str], None]]:
    """Serve inside this context, beside other work. Yields `tell_unready`."""
    server = _SideServer(config)
    serving = asyncio.ensure_future(server.serve([listener]))
    try:
        await asyncio.wait([serving, server.listens], return_when=asyncio.FIRST_COMPLETED)
        yield server.tell_unready
    finally:
        server.handle_exit(signal.SIGTERM, None)
        await serving


class _ServerProcess(Process):
    @property
    def server(self) -> SleepingServer:
        if self._server is None:
            self._server = SleepingServer(self.config)
        assert isinstance(self._server, SleepingServer)
        return self._server

    def pong(self) -> None:
        """Answer a ping after the event loop has turned. This thread alone would answer even if the loop hangs."""
        if self.child_conn.recv() == _DRAIN:
            self.server.tell_unready(_STOPS)
            return
        self.server.turn()
        self.child_conn.send(self.server.started)


@contextmanager
def _held_back() -> Iterator[None]:
    """Block SIGHUP in this thread and in processes that start inside this context: a new program inherits the mask."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Yield a socket that becomes readable when a signal arrives
    (https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd)."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(before)


class ServerProcesses(Multiprocess):
    """Several server processes on one port. SIGHUP goes to each process, which keeps running; uvicorn would replace the
    processes."""

    def __init__(self, config: Config, sockets: list[socket.socket], drain_seconds: float) -> None:
        super().__init__(config, sockets)
        self._terminal = Terminal()
        # True once a process has ended because waiting can't mend its start.
        self.has_failed = False
        self._drain_seconds = drain_seconds

    def run(self) -> None:
        watchdog = watchdog_seconds()
        ask_seconds = _ASK_SECONDS if watchdog is None else min(_ASK_SECONDS, watchdog)
        with _signals() as signals:
            self.init_processes()
            try:
                while not self.should_exit.is_set():
                    wait([signals, *(process.process.sentinel for process in self.processes)], ask_seconds)
                    with suppress(BlockingIOError):
                        signals.recv(4096)
                    self.handle_signals()
                    self.keep_subprocess_alive()
                    if watchdog is not None:  # every process has answered
                        notify(WATCHDOG)
                self._drain(signals)
            finally:
                self.terminate_all()
                self._close_port()
                self.join_all()

    def _drain(self, signals: socket.socket) -> None:
        """Let the processes finish the connections that have begun. A process closes the port only for itself, so the parent
        keeps new connections off."""
        notify(STOPPING, _LETS_END, timeout_seconds=_NOTIFY_SECONDS)
        if self.has_failed or not any(process.process.is_alive() for process in self.processes):
            return
        for process in self.processes:
            with suppress(OSError):
                process.parent_conn.send(_DRAIN)
        wait([signals], self._drain_seconds)  # another signal ends the wait
        for listener in self.sockets:
            begin_no_connection(listener)
        time.sleep(_HANDSHAKE_SECONDS)

    def _close_port(self) -> None:
        """Close the port before the processes have ended: nobody would accept connections after their end."""
        for listener in self.sockets:
            listener.close()

    def init_processes(self) -> None:
        self.processes = [self._start() for _ in range(self.processes_num)]

    def keep_subprocess_alive(self) -> None:
        """Replace each process that has ended or hangs. Stop everything if a start has failed for good."""
        for place, process in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            if not process.is_alive(timeout=self.config.timeout_worker_healthcheck):
                process.kill()
                process.join()
                facts = {"server_process": process.pid, "exit_code": process.exitcode}
                if process.exitcode == STARTUP_FAILURE:  # the next one would fail, too
                    logger.error("a server process can't start, so all of them end", extra=facts)
                    self.has_failed = True
                    self.should_exit.set()
                else:
                    logger.warning("a server process ended, and another one takes its place", extra=facts)
                    self.processes[place] = self._start()

    def _start(self) -> Process:
        with _held_back():
            process = _ServerProcess(self.config, self.sockets)
            process.start()
        # Close the parent's copy of the child's end. Then a read from a dead process fails at once, instead of waiting for
        # an answer.
        process.child_conn.close()
        return process

    def handle_hup(self) -> None:
        if self._terminal.is_gone:
            self.handle_term()
            return
        for pid in [process.pid for process in self.processes]:
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGHUP)
