"""SIGHUP: the certificate is read anew. Or the server ends, where it says that its terminal is gone.

A server process that has just been started hears it as well: it is held back until the process can answer it, where it would
end the process otherwise; and the files are read only after that, so that none is left with what was before.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from uvicorn import Config
from uvicorn.supervisors import Multiprocess

from uploader.clock import Clock
from uploader.http.server.certificate import CertificateInForce
from uploader.settings import Settings


class Terminal:
    """Where a process was started, if it was in one."""

    def __init__(self) -> None:
        self._was_there = os.isatty(0)

    @property
    def is_gone(self) -> bool:
        return self._was_there and not os.isatty(0)


@contextmanager
def certificate_in_force(settings: Settings) -> Iterator[CertificateInForce | None]:
    """That of this process, if there is one, read anew at each SIGHUP. Raises ConfigurationError."""
    loop, clock, terminal = asyncio.get_running_loop(), Clock(), Terminal()
    certificate: CertificateInForce | None = None
    reloads: set[asyncio.Task[None]] = set()

    def hang_up() -> None:
        if terminal.is_gone:
            signal.raise_signal(signal.SIGTERM)
        elif certificate is not None:
            task = loop.create_task(certificate.reload(clock.now()))
            reloads.add(task)
            task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    try:
        if settings.tls_certificate is not None:
            certificate = CertificateInForce(settings)
        yield certificate
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


@contextmanager
def _held_back() -> Iterator[None]:
    """The time in which SIGHUP waits, here and in each process that is started: a new program inherits the mask."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


class ServerProcesses(Multiprocess):
    """Several that listen to one port. At SIGHUP each of them goes on, where uvicorn would put others in their places."""

    def __init__(self, config: Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._terminal = Terminal()

    def init_processes(self) -> None:
        with _held_back():
            super().init_processes()

    def keep_subprocess_alive(self) -> None:
        """Starts others for those that died."""
        with _held_back():
            super().keep_subprocess_alive()

    def handle_hup(self) -> None:
        if self._terminal.is_gone:
            self.handle_term()
            return
        for pid in [process.pid for process in self.processes]:
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGHUP)
