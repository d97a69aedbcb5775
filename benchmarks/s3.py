"""A file through this server to S3, beside the SDK that sends it straight to the same gateway: `python -m benchmarks.s3`.

Both send the same bytes in parts of the same size over as many connections, by the same SDK with the same options. This
server computes the digests of the file as well, accounts for it, and has it as a file in the end. Without digests: what
comes last chunk first can't be hashed before all is there, so the chunks alone are timed, all but the first one of the file.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from benchmarks import report
from benchmarks.ingest.places import memory_directory
from benchmarks.ingest.processes import cpu_seconds, wait_until_quiet
from benchmarks.report import Row
from benchmarks.storage.client import Connection, in_parallel
from tests.support.gateways import Gateway, JuiceGateway, RadosGateway
from tests.support.process import Server, ended, owner_token
from uploader.storage.s3.bucket import make_client

PAGE = Path(__file__).parents[1] / "docs" / "s3.md"
SECTION = "s3"

_MIB, _GIB = 1 << 20, 1 << 30
GATEWAYS: Mapping[str, type[JuiceGateway | RadosGateway]] = {"juicefs": JuiceGateway, "ceph": RadosGateway}
PRODUCTS = {
    "juicefs": "JuiceFS' gateway before a directory in memory",
    "ceph": "Ceph's radosgw with a store in memory",
}
_STRAIGHT, _THROUGH, _WITHOUT = "the SDK, straight", "through this server", "through this server without digests"
_SPAWN = multiprocessing.get_context("spawn")
_POLL_SECONDS = 0.02
# What this server has to reach of what the SDK does.
_WITH_DIGESTS, _WITHOUT_DIGESTS = 0.6, 0.8
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is sent, and how often."""

    file_bytes: int = 512 * _MIB
    chunk_bytes: int = 8 * _MIB
    connections: int = 4
    rounds: int = 7


QUICK = Scale(rounds=1)
TINY = Scale(file_bytes=12 * _MIB, chunk_bytes=5 * _MIB, connections=2, rounds=1)


@dataclass(slots=True)
class Measured:
    """Of one way."""

    rates: list[float] = field(default_factory=list)  # MB/s
    cpu_per_gib: list[float] = field(default_factory=list)
    of_gateway: list[float] = field(default_factory=list)

    def rows(self, figure: str, who: str) -> list[Row]:
        more = f"the gateway's own: {report.amount(sorted(self.of_gateway)[len(self.of_gateway) // 2])} s"
        return [
            report.compared(figure, self.rates, "MB/s"),
            report.compared(f"{figure}: processor time of {who} for a GiB", self.cpu_per_gib, "s", more),
        ]


class Straight:
    """The SDK in a process of its own: its multipart upload from memory."""

    def __init__(self, gateway: Gateway, scale: Scale, content: Path) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_send_straight, args=(theirs, gateway, scale, content))
        self._process.start()
        self._pipe.recv()  # it is ready
        self.sent_bytes = scale.file_bytes

    @property
    def pids(self) -> Sequence[int]:
        assert self._process.pid is not None
        return [self._process.pid]

    def send(self) -> float:
        """The seconds until the object was there; what it leaves is removed after that."""
        self._pipe.send("send")
        seconds: float = self._pipe.recv()
        return seconds

    def clear(self) -> None:
        self._pipe.send("clear")
        self._pipe.recv()

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()


def _send_straight(pipe: Pipe, gateway: Gateway, scale: Scale, content: Path) -> None:
    from boto3.s3.transfer import TransferConfig

    client = make_client(gateway.address())
    transfer = TransferConfig(
        multipart_threshold=scale.chunk_bytes,
        multipart_chunksize=scale.chunk_bytes,
        max_concurrency=scale.connections,
    )
    pipe.send("ready")
    while True:
        if pipe.recv() == "clear":
            client.delete_object(Bucket=gateway.bucket, Key="straight")
            pipe.send("cleared")
            continue
        began = time.monotonic()
        client.upload_file(str(content), gateway.bucket, "straight", Config=transfer)
        pipe.send(time.monotonic() - began)


class Through:
    """This server as it is shipped, whose store is the gateway."""

    def __init__(self, server: Server, data: Path, scale: Scale, content: Path) -> None:
        self._server, self._scale, self._content = server, scale, content
        self._bearer = {"Authorization": f"Bearer {owner_token(data)}"}
        self._file_id = ""
        self._chunk_count = -(-scale.file_bytes // scale.chunk_bytes)
        self.sent_bytes = scale.file_bytes

    @property
    def pids(self) -> Sequence[int]:
        return [self._server.process.pid]

    def send(self) -> float:
        """The seconds until the file was there."""
        content, path = self._read()
        began = time.monotonic()
        self._open(path)
        self._put(content, path, range(self._chunk_count))
        self._file_id = self._merged(path)
        return time.monotonic() - began

    def _read(self) -> tuple[memoryview, str]:
        """The content, and the path of its upload."""
        content = self._content.read_bytes()
        return memoryview(content), f"/files/{hashlib.md5(content, usedforsecurity=False).hexdigest()}"

    def _open(self, path: str) -> None:
        body = {"name": "file", "size": self._scale.file_bytes, "chunk_size": self._scale.chunk_bytes}
        with self._connection() as connection:
            connection.expect({201}, "POST", path, json.dumps(body).encode(), self._bearer | _JSON)

    def _put(self, content: memoryview, path: str, order: Iterable[int]) -> None:
        """Over all connections."""
        numbers = iter(order)

        def put() -> None:
            with self._connection() as connection:
                for number in numbers:
                    start = number * self._scale.chunk_bytes
                    piece = content[start : start + self._scale.chunk_bytes]
                    connection.expect({200, 201, 202}, "PUT", f"{path}/chunks/{number}", piece, self._bearer)

        in_parallel([put] * self._scale.connections)

    def _merged(self, path: str) -> str:
        while True:
            with self._connection() as connection:
                reply = connection.expect({200, 201, 202}, "POST", f"{path}/merge", b"", self._bearer)
            if reply.status != 202:
                return str(reply.json()["file"]["id"])
            time.sleep(_POLL_SECONDS)

    def clear(self) -> None:
        with self._connection() as connection:
            connection.expect({204}, "DELETE", f"/me/files/{self._file_id}", b"", self._bearer)

    def _connection(self) -> Connection:
        return Connection(self._server.port)


class WithoutDigests(Through):
    """The chunks alone, last one first, but for the first one of the file: nothing of them can be hashed."""

    def __init__(self, server: Server, data: Path, scale: Scale, content: Path) -> None:
        super().__init__(server, data, scale, content)
        self._path = ""
        self.sent_bytes = scale.file_bytes - scale.chunk_bytes

    def send(self) -> float:
        """The seconds until they were acknowledged."""
        content, self._path = self._read()
        began = time.monotonic()
        self._open(self._path)
        self._put(content, self._path, reversed(range(1, self._chunk_count)))
        return time.monotonic() - began

    def clear(self) -> None:
        with self._connection() as connection:
            connection.expect({204}, "DELETE", self._path, b"", self._bearer)


def measure(scale: Scale, kind: str = "juicefs") -> list[Row]:
    """Rounds of both, the one after the other, after one that is not counted."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="s3-", dir=memory_directory())))
        private = stack.enter_context(GATEWAYS[kind](directory / "gateway"))
        content, data = directory / "content", directory / "data"
        content.write_bytes(os.urandom(scale.file_bytes))
        settings = {"DATA": str(data), "DEFAULT_TOTAL_SPACE": "1TiB", "TRASH_RETENTION": "10s"}
        server = Server(directory / "log", settings | private.gateway.environment("through"))
        stack.enter_context(ended(server))
        straight = Straight(private.gateway, scale, content)
        stack.callback(straight.stop)
        # What was cancelled leaves no content that would be finished at once.
        ways: dict[str, Straight | Through] = {
            _STRAIGHT: straight,
            _WITHOUT: WithoutDigests(server, data, scale, content),
            _THROUGH: Through(server, data, scale, content),
        }
        measured = {way: Measured() for way in ways}
        for number in range(scale.rounds + 1):
            with content.open("r+b") as file:
                file.write(number.to_bytes(8, "big"))  # another content than the last time
            for way, sender in ways.items():
                _measure_one(sender, [private.pid], measured[way] if number else Measured())
    straight_on = measured[_STRAIGHT].rates
    rows = measured[_STRAIGHT].rows(f"{_STRAIGHT}, until it is whole", "the client")
    for way, until, share in (
        (_THROUGH, "until it is whole", _WITH_DIGESTS),
        (_WITHOUT, "until all but one are acknowledged", _WITHOUT_DIGESTS),
    ):
        rows += measured[way].rows(f"{way}, {until}", "this server")
        shares = [mine / theirs for mine, theirs in zip(measured[way].rates, straight_on, strict=True)]
        rows.append(report.at_least(f"{way}: of what the SDK reaches", share, shares, "times"))
    return rows


def _measure_one(sender: Straight | Through, gateway: Sequence[int], measured: Measured) -> None:
    wait_until_quiet([*sender.pids, *gateway])
    used, used_there = cpu_seconds(sender.pids), cpu_seconds(gateway)
    seconds = sender.send()
    wait_until_quiet([*sender.pids, *gateway])
    per_gib = _GIB / sender.sent_bytes
    measured.rates.append(sender.sent_bytes / 1e6 / seconds)
    measured.cpu_per_gib.append((cpu_seconds(sender.pids) - used) * per_gib)
    measured.of_gateway.append((cpu_seconds(gateway) - used_there) * per_gib)
    sender.clear()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.s3", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round; the page stays as it is")
    parser.add_argument("--gateway", choices=GATEWAYS, default="juicefs", help="(default: juicefs)")
    given = parser.parse_args()
    versions = [f"{name} {version(name)}" for name in ("boto3", "uvloop")]
    machine = report.machine([*versions, PRODUCTS[given.gateway]])
    rows = measure(QUICK if given.quick else Scale(), given.gateway)
    section = f"{machine}.\n\n{report.table(rows)}"
    print(section)
    if not given.quick:
        report.write(PAGE, SECTION, section)


if __name__ == "__main__":
    main()
