"""The load generator, in a process of its own: `python -m benchmarks.ingest.generator`, told on standard input what to send.

One thread and an epoll; bodies go from warm pages straight to the socket (`sendfile`), so that it costs little beside the
server. Says how long each request took, and what itself used of the processor.
"""

import mmap
import os
import pickle
import select
import socket
import sys
import time
from collections import deque

from benchmarks.ingest.load import HELD, Outcome, Plan, Request

_TIMEOUT_SECONDS = 120.0
# Up to here a body is sent with its head, in one call.
_SMALL_BYTES = 256 << 10
_GOOD = (b"200", b"201", b"202", b"204")
_SENDING, _RECEIVING = select.EPOLLIN | select.EPOLLOUT, select.EPOLLIN


class Failed(Exception):
    """A server did not answer as it should."""


class Bodies:
    """Bytes to send, touched before: every body is the end of the same ones."""

    def __init__(self, length: int) -> None:
        self._length = max(length, mmap.PAGESIZE)
        self._file = os.memfd_create("body")
        os.ftruncate(self._file, self._length)
        self._memory = memoryview(mmap.mmap(self._file, self._length))
        pattern = os.urandom(1 << 20)
        for start in range(0, self._length, len(pattern)):
            self._memory[start : start + len(pattern)] = pattern[: self._length - start]

    def send(self, connection: socket.socket, left: int, at_most: int) -> int:
        """Bytes of a body of which `left` are left; how many went."""
        return os.sendfile(connection.fileno(), self._file, self._length - left, at_most)

    def send_with_head(self, connection: socket.socket, head: bytes, left: int) -> int:
        return connection.sendmsg([head, self._memory[self._length - left :]])


class Connection:
    """Sends its requests one after the other, each when the one before it was answered."""

    def __init__(self, poll: select.epoll, plan: Plan, requests: list[Request], bodies: Bodies) -> None:
        self._poll, self._address, self._bodies = poll, plan.address, bodies
        self._held_bytes = plan.held_bytes
        self._requests = deque(requests)
        self.took_seconds: list[float] = []
        self.holding = False
        self.connect()

    def connect(self) -> None:
        self.socket = socket.create_connection(self._address, timeout=_TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._interest = _RECEIVING
        self._poll.register(self.socket, self._interest)

    def begin(self) -> bool:
        """Send the next request; False if there is none."""
        if not self._requests:
            return False
        request = self._requests.popleft()
        self._head, self._left = request.head, request.length
        self._answer = b""
        self._began = time.perf_counter()
        self.send()
        return True

    def send(self) -> None:
        """As much as the socket takes."""
        try:
            while self._head:
                self._send_head()
            while self._left > self._held_bytes:
                self._left -= self._bodies.send(self.socket, self._left, self._left - self._held_bytes)
        except BlockingIOError:
            self._wait_for(_SENDING)
            return
        self.holding = self._left > 0
        self._wait_for(_RECEIVING)

    def _send_head(self) -> None:
        if 0 < self._left <= _SMALL_BYTES and not self._held_bytes:
            sent = self._bodies.send_with_head(self.socket, self._head, self._left)
            self._left -= max(0, sent - len(self._head))
        else:
            sent = self.socket.send(self._head, socket.MSG_MORE if self._left else 0)
        self._head = self._head[sent:]

    def _wait_for(self, interest: int) -> None:
        if interest != self._interest:
            self._interest = interest
            self._poll.modify(self.socket, interest)

    def let_go(self) -> None:
        """Send what was held back."""
        self._held_bytes, self.holding = 0, False
        self.send()

    def receive(self) -> bool:
        """Whether the answer is whole now. Raises Failed."""
        data = self.socket.recv(65536)
        self._answer += data
        if not data or self._answer[9:12] not in _GOOD or self._left:
            raise Failed(f"answered too early or badly: {self._answer[:600]!r}")
        closes = _closes_after(self._answer)
        if closes is None:
            return False
        self.took_seconds.append(time.perf_counter() - self._began)
        if closes and self._requests:
            self.socket.close()
            self.connect()
        return True


def _closes_after(answer: bytes) -> bool | None:
    """Whether the connection ends with this answer; None if the answer is not whole."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = answer[:end].lower()
    _, _, length = head.partition(b"content-length:")
    if length:
        if len(answer) < end + 4 + int(length.partition(b"\r")[0]):
            return None
    elif b"transfer-encoding: chunked" in head and not answer.endswith(b"0\r\n\r\n"):
        return None
    return b"connection: close" in head


def run(plan: Plan) -> Outcome:
    """Send everything; ends with the last answer. Raises Failed."""
    bodies = Bodies(max((request.length for requests in plan.connections for request in requests), default=0))
    poll = select.epoll()
    connections = [Connection(poll, plan, requests, bodies) for requests in plan.connections]
    began, cpu_began = time.perf_counter(), time.process_time()
    _finish(poll, [connection for connection in connections if connection.begin()])
    if plan.held_bytes:
        _say_held()
        for connection in connections:
            connection.let_go()
        _finish(poll, connections)
    outcome = Outcome(
        seconds=time.perf_counter() - began,
        cpu_seconds=time.process_time() - cpu_began,
        took_seconds=[seconds for connection in connections for seconds in connection.took_seconds],
    )
    if plan.stays:
        _say_held()
    return outcome


def _finish(poll: select.epoll, connections: list[Connection]) -> None:
    """Until each of these has had all its answers, or holds back the end of a body."""
    active = {connection.socket.fileno(): connection for connection in connections if not connection.holding}
    while active:
        events = poll.poll(_TIMEOUT_SECONDS)
        if not events:
            raise Failed("nothing happened for too long")
        for descriptor, event in events:
            connection = active.pop(descriptor, None)
            if connection is None:
                raise Failed("a connection was closed while it was idle")
            goes_on = True
            if event & ~select.EPOLLOUT:
                goes_on = not connection.receive() or connection.begin()
            else:
                connection.send()
            if goes_on and not connection.holding:
                active[connection.socket.fileno()] = connection


def _say_held() -> None:
    """Say that it is as far as it is to be, and wait for leave to go on."""
    pickle.dump(HELD, sys.stdout.buffer)
    sys.stdout.buffer.flush()
    sys.stdin.buffer.read(1)


def main() -> None:
    answer: Outcome | str
    try:
        answer = run(pickle.load(sys.stdin.buffer))
    except (Failed, OSError) as error:
        answer = f"{type(error).__name__}: {error}"
    pickle.dump(answer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
