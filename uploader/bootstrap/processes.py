"""The server processes, and the one that starts several. All of them sleep until something happens: uvicorn's own look ten
times a second whether a signal came, and twice whether each process is alive.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from multiprocessing.connection import wait
from types import FrameType

from uvicorn import Config
from uvicorn.config import STARTUP_FAILURE
from uvicorn.server import Server, ServerState
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from uploader.http.app import STOP_STATE
from uploader.tasks import ended

logger = logging.getLogger(__name__)

# How often each process is asked whether it hangs; that one has ended is known at once.
_ASK_SECONDS = 10.0


class Terminal:
    def __init__(self) -> None:
        self._was_there = os.isatty(0)

    @property
    def is_gone(self) -> bool:
        return self._was_there and not os.isatty(0)


class DatedState(ServerState):
    """Keeps what the connections of a server share, and makes the date when an answer asks for it."""

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
        """Leave it: uvicorn makes it empty."""


class SleepingServer(Server):
    """Serves until a signal ends it."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.server_state = DatedState()
        self._ends = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._ends.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.end()

    def end(self) -> None:
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ends.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the application end its requests with answers: uvicorn cancels those that are left a moment later."""
        stopping = asyncio.create_task(self.lifespan.state[STOP_STATE](), name="ending requests")
        try:
            await super().shutdown(sockets)
        finally:
            await ended(stopping)


class _ServerProcess(Process):
    @property
    def server(self) -> Server:
        if self._server is None:
            self._server = SleepingServer(self.config)
        return self._server


@contextmanager
def _held_back() -> Iterator[None]:
    """Hold SIGHUP back, here and in processes that are started meanwhile: a new program inherits the mask."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Yield what can be read once a signal came (https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd)."""
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
    """Several that listen to one port. At SIGHUP each of them goes on, where uvicorn would put others in their places."""

    def __init__(self, config: Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._terminal = Terminal()

    def run(self) -> None:
        with _signals() as signals:
            self.init_processes()
            try:
                while not self.should_exit.is_set():
                    wait([signals, *(process.process.sentinel for process in self.processes)], _ASK_SECONDS)
                    with suppress(BlockingIOError):
                        signals.recv(4096)
                    self.handle_signals()
                    self.keep_subprocess_alive()
            finally:
                self.terminate_all()
                self.join_all()

    def init_processes(self) -> None:
        self.processes = [self._start() for _ in range(self.processes_num)]

    def keep_subprocess_alive(self) -> None:
        """Put another one in the place of each that has ended, or hangs."""
        for place, process in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            if not process.is_alive(timeout=self.config.timeout_worker_healthcheck):
                process.kill()
                process.join()
                facts = {"server_process": process.pid, "exit_code": process.exitcode}
                if process.exitcode == STARTUP_FAILURE:  # so would the next
                    logger.error("a server process can't start, so all of them end", extra=facts)
                    self.should_exit.set()
                else:
                    logger.warning("a server process ended, and another one takes its place", extra=facts)
                    self.processes[place] = self._start()

    def _start(self) -> Process:
        with _held_back():
            process = _ServerProcess(self.config, self.sockets)
            process.start()
        # Its own end of the pipe: then that of a dead one ends, and its answer is not waited for.
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
