"""A client that costs little: plain HTTP on sockets; one chunk of memory, sent again and again with another stamp."""

import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_TIMEOUT_SECONDS = 300.0
_stamps = itertools.count()


class Bytes:
    """Chunks that no other upload has, in memory that is used again for each."""

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size
        self._content = bytearray(os.urandom(chunk_size))

    def chunk(self, length: int) -> memoryview:
        """The next chunk, until the next one is asked for."""
        self._content[:8] = next(_stamps).to_bytes(8, "big")
        return memoryview(self._content)[:length]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server said, and how long after the last byte of the request."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replies = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._replies.close()
        self._socket.close()

    def request(
        self,
        method: str,
        path: str,
        body: memoryview | bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        exact: bool = False,
    ) -> Reply:
        """`exact`: the last byte goes once the server has read all others, so that the clock does not start while
        megabytes are still on their way through the buffers of the kernel."""
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        view = memoryview(body)
        if exact and view:
            self._socket.sendall(view[:-1])
            self._wait_until_read()
            view = view[-1:]
        if len(view):
            self._socket.sendall(view)
        sent = time.perf_counter()
        status = int(self._replies.readline().split()[1])
        received = {}
        while line := self._replies.readline().strip():
            name, _, value = line.decode().partition(":")
            received[name.lower()] = value.strip()
        content = self._replies.read(int(received.get("content-length", 0)))
        return Reply(status, received, content, time.perf_counter() - sent)

    def _wait_until_read(self) -> None:
        """Until nothing is left in the buffers on both sides (`tx_queue:rx_queue` in proc_net(5))."""
        here, there = (f":{address[1]:04X}" for address in (self._socket.getsockname(), self._socket.getpeername()))
        while True:
            queued = []
            for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
                _, local, remote, _, queues, *_ = line.split()
                if (local.endswith(here) and remote.endswith(there)) or (
                    local.endswith(there) and remote.endswith(here)
                ):
                    queued.append(queues)
            if queued == ["00000000:00000000"] * 2:
                return
            time.sleep(0.0002)

    def expect(self, statuses: set[int], *request: Any, exact: bool = False) -> Reply:
        reply = self.request(*request, exact=exact)
        if reply.status not in statuses:
            raise RuntimeError(f"{request[:2]} was answered {reply.status}: {reply.body[:300]!r}")
        return reply


def in_parallel(work: Sequence[Callable[[], None]]) -> None:
    """Run functions in threads of their own; what one raises is raised."""
    errors: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
