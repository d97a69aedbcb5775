"""A relay between a client and a server on this machine: it counts what passes, and cuts one request off."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from socketserver import BaseRequestHandler, ThreadingTCPServer

from tests.support.waiting import SERVER_SECONDS

_BLOCK_BYTES = 64 << 10


class Relay(ThreadingTCPServer):
    """Passes on what comes, until `cut_at_bytes` came from clients: then `then` is called, and that connection ends.

    Nobody is let in meanwhile: a browser that sends its request once more at once would else pour it into the backlog of
    a server that is being killed, and that is counted as sent.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, server_port: int, cut_at_bytes: int | None, then: Callable[[], object], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Passing)
        self.server_port = server_port
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.sent_bytes = self.received_bytes = 0
        self.is_cut = self.is_closed = False
        self._cut_at_bytes = cut_at_bytes
        self._then = then
        # What becomes of the bytes of a client.
        self.change: Callable[[bytes], bytes] = bytes
        self._counting = threading.Lock()

    def passed_back(self, count: int) -> None:
        """A client was given these bytes."""
        with self._counting:
            self.received_bytes += count

    def passes(self, count: int) -> bool:
        """Whether the next bytes of a client may pass."""
        with self._counting:
            self.sent_bytes += count
            if self._cut_at_bytes is None or self.is_cut or self.sent_bytes < self._cut_at_bytes:
                return True
            self.is_cut = self.is_closed = True
        self._then()
        self.is_closed = False
        return False


class _Passing(BaseRequestHandler):
    """One connection."""

    server: Relay

    def handle(self) -> None:
        if self.server.is_closed:
            return
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.server.server_port), SERVER_SECONDS) as upstream,
        ):
            back = threading.Thread(target=self._pass_back, args=(upstream,), daemon=True)
            back.start()
            while (block := self.request.recv(_BLOCK_BYTES)) and self.server.passes(len(block)):
                upstream.sendall(self.server.change(block))
            upstream.shutdown(socket.SHUT_RDWR)
            back.join()

    def _pass_back(self, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := upstream.recv(_BLOCK_BYTES):
                self.server.passed_back(len(block))
                self.request.sendall(block)
        with contextlib.suppress(OSError):
            self.request.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def relaying(
    server_port: int, cut_at_bytes: int | None = None, then: Callable[[], object] = lambda: None, *, port: int = 0
) -> Iterator[Relay]:
    """`port`: where it listens."""
    with Relay(server_port, cut_at_bytes, then, port) as relay:
        threading.Thread(target=relay.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield relay
        finally:
            relay.shutdown()
