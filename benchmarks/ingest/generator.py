"""The load generator, in a process of its own: `python -m benchmarks.ingest.generator`, told on standard input what to send.

One thread and an epoll; every body is the same warm memory, unless it is told, so that it costs little beside the server.
(`sendfile` from memory costs both sides more: the kernel then handles single pages.) Says how long each request took, and
what itself used of the processor.
"""

import os
import pickle
import select
import socket
import sys
import time
from collections import deque

from benchmarks.ingest.load import HELD, Outcome, Plan, Request, content_of

_TIMEOUT_SECONDS = 120.0
_GOOD = (b"200", b"201", b"202", b"204")
_SENDING, _RECEIVING = select.EPOLLIN | select.EPOLLOUT, select.EPOLLIN


class Failed(Exception):
    """A server did not answer as it should."""


class Connection:
    """Sends its requests one after the other, each when the one before it was answered."""

    def __init__(self, poll: select.epoll, plan: Plan, requests: list[Request], memory: memoryview) -> None:
        self._poll, self._address, self._memory = poll, plan.address, memory
        self._held_bytes = plan.held_bytes
        self._until = time.perf_counter() + plan.limit_seconds
        self._requests = deque(requests)
        self.took_seconds: list[float] = []
        self.body_bytes = 0
        self.holding = False
        self.connect()

    def connect(self) -> None:
        self.socket = socket.create_connection(self._address, timeout=_TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._interest = _RECEIVING
        self._poll.register(self.socket, self._interest)

    def begin(self) -> bool:
        """Send the next request; False if there is none, or no time left."""
        if not self._requests or time.perf_counter() > self._until:
            return False
        request = self._requests.popleft()
        memory = self._memory if request.body is None else memoryview(request.body)
        self._head, self._body = request.head, memory[: request.length - self._held_bytes]
        self._answer, self._length = b"", request.length
        self._began = time.perf_counter()
        self.send()
        return True

    def send(self) -> None:
        """As much as the socket takes."""
        try:
            while self._head:
                sent = self.socket.sendmsg([self._head, self._body])
                self._body = self._body[max(0, sent - len(self._head)) :]
                self._head = self._head[sent:]
            while self._body:
                self._body = self._body[self.socket.send(self._body) :]
        except BlockingIOError:
            self._wait_for(_SENDING)
            return
        self.holding = self._held_bytes > 0
        self._wait_for(_RECEIVING)

    def _wait_for(self, interest: int) -> None:
        if interest != self._interest:
            self._interest = interest
            self._poll.modify(self.socket, interest)

    def let_go(self) -> None:
        """Send what was held back."""
        self._body = self._memory[: self._held_bytes]
        self._held_bytes = 0
        self.send()

    def receive(self) -> bool:
        """Whether the answer is whole now. Raises Failed."""
        data = self.socket.recv(65536)
        self._answer += data
        if not data or self._answer[9:12] not in _GOOD or self._body:
            raise Failed(f"answered too early or badly: {self._answer[:600]!r}")
        closes = _closes_after(self._answer)
        if closes is None:
            return False
        self.took_seconds.append(time.perf_counter() - self._began)
        self.body_bytes += self._length
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
    longest = max((request.length for requests in plan.connections for request in requests), default=0)
    memory = memoryview(os.urandom(longest) if plan.seed is None else content_of(longest, plan.seed))
    poll = select.epoll()
    connections = [Connection(poll, plan, requests, memory) for requests in plan.connections]
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
        body_bytes=sum(connection.body_bytes for connection in connections),
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
                raise Failed("answered or closed before the end of a body")
            goes_on = True
            if event & ~select.EPOLLOUT:
                goes_on = not connection.receive() or connection.begin()
            else:
                connection.send()
            if not goes_on:
                poll.unregister(connection.socket)  # it may be closed by the server, while others are at work
            elif not connection.holding:
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
