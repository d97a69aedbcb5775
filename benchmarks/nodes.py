"""A file through several nodes before one bucket, of which one is killed: `python -m benchmarks.nodes`.

How long after the last byte it is a file, beside CompleteMultipartUpload alone, as a proxy before the gateway times it; and
how much of it was read from the bucket once more.
"""

import argparse
import hashlib
import json
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from benchmarks import report
from benchmarks.fleet import Fleet
from benchmarks.ingest.places import memory_directory
from benchmarks.report import Row
from benchmarks.s3 import GATEWAYS, PRODUCTS
from benchmarks.storage.client import Connection, Reply, in_parallel
from tests.support.gateways import Gateway
from tests.support.proxies import running_nginx
from uploader.units import parse_size

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
SECTION = "nodes"

_MIB, _GIB = 1 << 20, 1 << 30
_NODES = 3
# The most that a file may take beyond Complete, where its chunks came in order.
_BEYOND_COMPLETE_SECONDS = 0.1
_READ_BYTES = 64 * _MIB
_POLL_SECONDS = 0.005
_JSON = {"Content-Type": "application/json"}
# How a connection ends whose server is killed.
_BROKEN = (OSError, IndexError)
# Bytes pass as they come. The gateway verifies the host that was signed.
_NGINX = """
log_format times '$request_method $upstream_response_time $body_bytes_sent $request_uri';
upstream gateway { server PLACE; keepalive 64; }
server {
    listen PORT;
    access_log requests times;
    client_max_body_size 0;
    location / {
        proxy_pass http://gateway;
        proxy_http_version 1.1;
        proxy_set_header Host $http_host;
        proxy_set_header Connection "";
        proxy_request_buffering off;
        proxy_buffering off;
        proxy_read_timeout 300s;
    }
}
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is sent, and over how many connections to each node."""

    file_bytes: int = 2 * _GIB
    chunk_bytes: int = 8 * _MIB
    connections: int = 2
    rounds: int = 3


TINY = Scale(file_bytes=32 * _MIB + 1000, chunk_bytes=5 * _MIB, rounds=1)


class Large:
    """A content that is made as it is sent: its chunks differ in their first bytes."""

    def __init__(self, scale: Scale) -> None:
        self.size, self.chunk_size = scale.file_bytes, scale.chunk_bytes
        self.chunk_count = -(-self.size // self.chunk_size)
        self._block = os.urandom(self.chunk_size)
        md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
        for number in range(self.chunk_count):
            md5.update(self.chunk(number))
            sha256.update(self.chunk(number))
        self.md5, self.sha256 = md5.hexdigest(), sha256.hexdigest()

    def chunk(self, number: int) -> bytes:
        length = min(self.chunk_size, self.size - number * self.chunk_size)
        return (number.to_bytes(8, "big") + self._block[8:])[:length]


class Watched:
    """The requests that a gateway has answered, as the proxy before it wrote them down."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = 0

    def begin(self) -> None:
        """Forget those of before."""
        self._read = self._log.stat().st_size

    @property
    def complete_seconds(self) -> float:
        """The longest of CompleteMultipartUpload."""
        return max(seconds for method, seconds, _, uri in self._lines() if method == "POST" and "uploadId=" in uri)

    @property
    def read_bytes(self) -> int:
        """What was read of contents."""
        return sum(length for method, _, length, uri in self._lines() if method == "GET" and "/u/" in uri)

    def _lines(self) -> Iterator[tuple[str, float, int, str]]:
        with self._log.open() as file:
            file.seek(self._read)
            for line in file:
                method, seconds, length, uri = line.split()
                yield method, float(seconds) if seconds != "-" else 0.0, int(length), uri


@contextmanager
def watched(gateway: Gateway, directory: Path) -> Iterator[tuple[Gateway, Watched]]:
    """The gateway behind a proxy that writes down what it is asked."""
    configuration = _NGINX.replace("PLACE", gateway.endpoint.partition("://")[2])
    with running_nginx(configuration, directory) as port:
        yield replace(gateway, endpoint=f"http://127.0.0.1:{port}"), Watched(directory / "requests")


class Sending:
    """One content on its way through nodes."""

    def __init__(self, fleet: Fleet, content: Large) -> None:
        self.fleet, self.content = fleet, content
        self._bearer = {"Authorization": f"Bearer {fleet.owner_token}"}
        self._path = f"/files/{content.md5}"
        self._left = deque(range(content.chunk_count))
        self._acknowledged: set[int] = set()
        self._last_byte_at = 0.0
        self._whole_at: float | None = None
        self._lock = threading.Lock()
        self.file: Mapping[str, object] = {}

    def open(self) -> None:
        body = {"name": "file", "size": self.content.size, "chunk_size": self.content.chunk_size}
        with self._connection(0) as connection:
            connection.expect({201}, "POST", self._path, json.dumps(body).encode(), self._bearer | _JSON)

    def through(self, node: int, until: int | None = None) -> None:
        """Send what is left over one connection, in order, until so many chunks are acknowledged; or until the node is
        gone, which leaves what it had to others."""
        with suppress(*_BROKEN), self._connection(node) as connection:
            while len(self._acknowledged) < (until or self.content.chunk_count):
                self._send_next(connection)

    def _send_next(self, connection: Connection) -> None:
        try:
            number = self._left.popleft()
        except IndexError:
            time.sleep(_POLL_SECONDS)  # somebody else may have to leave one
            return
        try:
            reply = self._put(connection, number)
        except BaseException:
            self._left.appendleft(number)
            raise
        with self._lock:
            now = time.perf_counter()
            self._acknowledged.add(number)
            self._last_byte_at = max(self._last_byte_at, now - reply.seconds)
            if reply.status == 201:
                self._whole(reply, now)

    def _put(self, connection: Connection, number: int) -> Reply:
        chunk = self.content.chunk(number)
        path = f"{self._path}/chunks/{number}"
        # Whoever waits until all is read waits for ever for a server that is killed meanwhile.
        is_last = len(self._acknowledged) == self.content.chunk_count - 1
        return connection.expect({200, 201, 202}, "PUT", path, chunk, self._bearer, exact=is_last)

    def _whole(self, reply: Reply, now: float) -> None:
        self._whole_at, self.file = now, reply.json()["file"]

    def through_all(self, connections: int, killed: int | None = None) -> None:
        """Through all nodes in parallel, one of which may be killed when half of the chunks are acknowledged."""

        def kill_in_the_middle() -> None:
            while len(self._acknowledged) < self.content.chunk_count // 2:
                time.sleep(_POLL_SECONDS)
            if killed is not None:
                self.fleet.servers[killed].kill()

        nodes = range(len(self.fleet.servers))
        in_parallel([kill_in_the_middle, *[partial(self.through, node) for node in nodes] * connections])

    def seconds_to_whole(self, node: int) -> float:
        """From the last byte until it was a file."""
        while self._whole_at is None:
            with self._connection(node) as connection:
                reply = connection.expect({200, 201, 202}, "POST", f"{self._path}/merge", b"", self._bearer)
            if reply.status != 202:
                self._whole(reply, time.perf_counter())
            time.sleep(_POLL_SECONDS)
        return self._whole_at - self._last_byte_at

    def digests_are_right(self, node: int) -> bool:
        """Those of the file, and of what is downloaded."""
        sha256 = hashlib.sha256()
        with self._connection(node) as connection:
            for start in range(0, self.content.size, _READ_BYTES):
                wanted = {"Range": f"bytes={start}-{min(start + _READ_BYTES, self.content.size) - 1}"}
                path = f"/me/files/{self.file['id']}/content"
                sha256.update(connection.expect({206}, "GET", path, b"", self._bearer | wanted).body)
        told = (self.file["md5"], self.file["sha256"])
        return told == (self.content.md5, self.content.sha256) and sha256.hexdigest() == self.content.sha256

    def delete(self, node: int) -> None:
        with self._connection(node) as connection:
            connection.expect({204}, "DELETE", f"/me/files/{self.file['id']}", b"", self._bearer)

    def _connection(self, node: int) -> Connection:
        return Connection(self.fleet.servers[node].port)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one file."""

    seconds: float
    complete_seconds: float
    read_bytes: int
    is_right: bool


def in_order(sending: Sending, _scale: Scale) -> None:
    """One client, one node."""
    sending.through(0)


def from_node_to_node(sending: Sending, _scale: Scale) -> None:
    """One client; its node is killed in the middle, and it goes on at another one."""
    sending.through(1, until=sending.content.chunk_count // 2)
    sending.fleet.servers[1].kill()
    sending.through(0)


def through_all(sending: Sending, scale: Scale) -> None:
    """All nodes at once."""
    sending.through_all(scale.connections)


def through_all_but_one(sending: Sending, scale: Scale) -> None:
    """All nodes at once; one is killed in the middle."""
    sending.through_all(scale.connections, killed=1)


WAYS: Mapping[str, Callable[[Sending, Scale], None]] = {
    "in order through one node": in_order,
    "in order, its node killed in the middle, on through another": from_node_to_node,
    f"in parallel through {_NODES} nodes": through_all,
    f"in parallel through {_NODES} nodes, one of them killed in the middle": through_all_but_one,
}
_IN_ORDER = (in_order, from_node_to_node)


def sent(fleet: Fleet, requests: Watched, scale: Scale, way: Callable[[Sending, Scale], None]) -> Outcome:
    """Send another content in one way; all nodes run afterwards."""
    sending = Sending(fleet, Large(scale))
    sending.open()
    requests.begin()
    way(sending, scale)
    seconds = sending.seconds_to_whole(0)
    outcome = Outcome(seconds, requests.complete_seconds, requests.read_bytes, sending.digests_are_right(0))
    sending.delete(0)
    for number, server in enumerate(fleet.servers):
        if server.process.poll() is not None:
            fleet.start_again(number)
    return outcome


def measure(scale: Scale, kind: str = "juicefs") -> list[Row]:
    """Each way, round by round."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nodes-", dir=memory_directory())))
        private = stack.enter_context(GATEWAYS[kind](directory / "gateway"))
        gateway, requests = stack.enter_context(watched(private.gateway, directory / "nginx"))
        settings = {"DEFAULT_TOTAL_SPACE": "1TiB", "TRASH_RETENTION": "10s", "MERGE_WAIT": "60s", "CLAIM_LEASE": "5s"}
        fleet = stack.enter_context(Fleet(directory / "fleet", gateway, "nodes", _NODES, settings))
        outcomes: dict[str, list[Outcome]] = {way: [] for way in WAYS}
        for _ in range(scale.rounds):
            for name, way in WAYS.items():
                outcomes[name].append(sent(fleet, requests, scale, way))
        drifts = fleet.drifts()
    rows = [row for name in WAYS for row in _rows(name, outcomes[name])]
    count = len(drifts)
    return [*rows, Row("drifts that `reconcile` finds after all", "0", f"{count}", count == 0)]


def _rows(name: str, outcomes: Sequence[Outcome]) -> list[Row]:
    beyond = [outcome.seconds - outcome.complete_seconds for outcome in outcomes]
    figure = f"{name}: from the last byte to 201, beyond Complete"
    right = sum(outcome.is_right for outcome in outcomes)
    return [
        report.compared(f"{name}: Complete alone", [outcome.complete_seconds for outcome in outcomes], "s"),
        report.at_most(figure, _BEYOND_COMPLETE_SECONDS, beyond, "s")
        if WAYS[name] in _IN_ORDER
        else report.compared(figure, beyond, "s"),
        report.compared(f"{name}: read once more", [outcome.read_bytes / _MIB for outcome in outcomes], "MiB"),
        Row(f"{name}: digests are right", f"{len(outcomes)}", f"{right}", right == len(outcomes)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round; the page stays as it is")
    parser.add_argument("--size", type=parse_size, metavar="SIZE", help="of the file (default: 2GiB); only prints")
    parser.add_argument("--gateway", choices=GATEWAYS, default="juicefs", help="(default: juicefs)")
    given = parser.parse_args()
    scale = Scale(rounds=1) if given.quick or given.size else Scale()
    versions = [f"{name} {version(name)}" for name in ("boto3", "uvloop")]
    machine = report.machine([*versions, PRODUCTS[given.gateway]])
    rows = measure(replace(scale, file_bytes=given.size) if given.size else scale, given.gateway)
    section = f"{machine}.\n\n{report.table(rows)}"
    print(section)
    if not given.quick and not given.size:
        report.write(PAGE, SECTION, section)


if __name__ == "__main__":
    main()
