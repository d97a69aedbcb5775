"""SIGHUP: the certificate is read anew. Or the server ends, where it says that its terminal is gone."""

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


class Terminal:
    """Where a process was started, if it was in one."""

    def __init__(self) -> None:
        self._was_there = os.isatty(0)

    @property
    def is_gone(self) -> bool:
        return self._was_there and not os.isatty(0)


@contextmanager
def reloading(certificate: CertificateInForce | None) -> Iterator[None]:
    """The time in which a process listens to SIGHUP; without a certificate there is nothing to read."""
    loop, clock, terminal = asyncio.get_running_loop(), Clock(), Terminal()
    reloads: set[asyncio.Task[None]] = set()

    def hang_up() -> None:
        if terminal.is_gone:
            signal.raise_signal(signal.SIGTERM)
        elif certificate is not None:
            task = loop.create_task(certificate.reload(clock.now()))
            reloads.add(task)
            task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


class ServerProcesses(Multiprocess):
    """Several that listen to one port. At SIGHUP each of them goes on, where uvicorn would put others in their places."""

    def __init__(self, config: Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._terminal = Terminal()

    def handle_hup(self) -> None:
        if self._terminal.is_gone:
            self.handle_term()
            return
        for pid in [process.pid for process in self.processes]:
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGHUP)
