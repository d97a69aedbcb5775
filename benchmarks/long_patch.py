"""One PATCH by tus with all that is left of a large file, through `kill -9` of the server and broken connections at random
moments: what has to be sent again, what memory the server takes, and whether the file is right. `python -m
benchmarks.long_patch`.
"""

import argparse
import hashlib
import os
import random
import signal
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import interpreter, report
from benchmarks.ingest import processes
from benchmarks.report import Row
from benchmarks.storage.client import Connection
from tests.support.process import UPLOADER, Server, ended, owner_token
from uploader.settings import Settings
from uploader.units import parse_size

PAGE = Path(__file__).parents[1] / "docs" / "capacity.md"
SECTION = "long patch"

MIB = 1 << 20
_TUS = {"Tus-Resumable": "1.0.0"}
_TIMEOUT_SECONDS = 120.0
# Of a moment that is chosen by the bytes that were sent, so that it is any of what the server does with them.
_MOST_DELAY_SECONDS = 0.1
_STILL_SECONDS = 0.05
_NO_LINGER = struct.pack("ii", 1, 0)


class Stream:
    """Bytes of any length that are nowhere: no two of its blocks are alike."""

    _BLOCK_BYTES = 64 << 10

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self._piece = bytearray(random.Random(seed).randbytes(MIB))

    def pieces(self, start: int = 0) -> Iterator[memoryview]:
        """From there on, in pieces of 1 MiB at the most, each until the next one is asked for."""
        for at in range(start - start % MIB, self.size, MIB):
            for block in range(0, MIB, self._BLOCK_BYTES):
                struct.pack_into("<Q", self._piece, block, at + block)
            yield memoryview(self._piece)[max(start - at, 0) : self.size - at]

    def sha256(self) -> str:
        computing = hashlib.sha256()
        for piece in self.pieces():
            computing.update(piece)
        return computing.hexdigest()


@dataclass
class Seen:
    """What was seen, in bytes."""

    # After each kill: what the server had read, and has to be sent again; and that with what was in flight.
    again_after_kills: list[int] = field(default_factory=list)
    again_of_client: list[int] = field(default_factory=list)
    # After each broken connection: what has to be sent again, and what was in flight.
    again_after_breaks: list[int] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    peak_memory: int = 0
    seconds: float = 0.0


class Interrupted:
    """An upload by one PATCH after the other, each with all that is left, which something ends."""

    def __init__(self, directory: Path, stream: Stream, chance: random.Random) -> None:
        self.seen = Seen()
        self._data = directory / "data"
        self._log = directory / "log"
        self._stream = stream
        self._chance = chance
        self._sent = 0
        self._offset = 0
        self._server: Server | None = None
        self._path = ""

    def run(self, kills: int, breaks: int) -> str:
        """The SHA-256 of the file as it is downloaded in the end."""
        with self._a_server():
            self._open()
            moments = sorted(self._chance.randrange(self._stream.size) for _ in range(kills + breaks))
            kinds = self._chance.sample([True, False], counts=[kills, breaks], k=kills + breaks)
            began = time.monotonic()
            for moment, is_kill in zip(moments, kinds, strict=True):
                (self._kill_at if is_kill else self._break_at)(moment)
            self._finish()
            self.seen.seconds = time.monotonic() - began
            self._look_at_memory()
            return self._download()

    # The server

    @contextmanager
    def _a_server(self) -> Iterator[None]:
        self._start()
        try:
            yield
            self._running.stop()  # with its Valkey, so that the directory can go
        finally:
            with ended(self._running):
                pass

    @property
    def _running(self) -> Server:
        assert self._server is not None
        return self._server

    def _start(self) -> None:
        """A new interpreter, as those who run it start it: its memory is looked at."""
        self._server = Server(self._log, {"DATA": str(self._data)}, program=[UPLOADER])

    def _look_at_memory(self) -> None:
        held = processes.resident_bytes([self._running.process.pid], peak=True, alone=True)
        self.seen.peak_memory = max(self.seen.peak_memory, held)

    # Requests

    def _bearer(self) -> dict[str, str]:
        return {**_TUS, "Authorization": f"Bearer {owner_token(self._data)}"}

    def _open(self) -> None:
        with Connection(self._running.port) as connection:
            self._make_room(connection)
            opening = {**self._bearer(), "Upload-Length": str(self._stream.size)}
            reply = connection.expect({201}, "POST", "/resumable", b"", opening)
            self._path = "/" + reply.headers["location"].split("/", 3)[3]

    def _make_room(self, connection: Connection) -> None:
        body = f'{{"total_space": {2 * self._stream.size}}}'.encode()
        connection.expect({200}, "PUT", "/admin/users/owner", body, self._bearer())

    def _ask_offset(self) -> int:
        """Whoever appends ends first. What was promised stays."""
        with Connection(self._running.port) as connection:
            reply = connection.expect({200}, "HEAD", self._path, b"", self._bearer())
        offset = int(reply.headers["upload-offset"])
        if offset < self._offset:
            raise RuntimeError(f"{self._offset - offset} bytes were promised, and are lost")
        self._offset = offset
        return offset

    def _begin(self) -> socket.socket:
        self._sent = self._offset
        connection = socket.create_connection(("127.0.0.1", self._running.port), timeout=_TIMEOUT_SECONDS)
        said = {**self._bearer(), "Upload-Offset": str(self._offset), "Content-Type": "application/offset+octet-stream"}
        said |= {"Host": "127.0.0.1", "Content-Length": str(self._stream.size - self._offset)}
        head = [f"PATCH {self._path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items()), "", ""]
        connection.sendall("\r\n".join(head).encode())
        return connection

    def _send(self, connection: socket.socket, end: int) -> None:
        """Up to an offset, or until the connection breaks."""
        for piece in self._stream.pieces(self._offset):
            left = piece[: max(end - self._sent, 0)]
            if not left:
                return
            while left:
                count = connection.send(left)
                self._sent, left = self._sent + count, left[count:]

    # What happens

    def _kill_at(self, moment: int) -> None:
        """While the server reads, hashes, writes or syncs what comes."""
        delay_seconds = self._chance.uniform(0, _MOST_DELAY_SECONDS)
        with self._begin() as connection:
            killing = threading.Thread(target=self._kill, args=(connection, moment, delay_seconds))
            killing.start()
            with suppress(ConnectionError):
                self._send(connection, self._stream.size)
            killing.join()
        self._start()
        had, sent = self._at_kill
        offset = self._ask_offset()
        self.seen.again_after_kills.append(max(had - offset, 0))
        self.seen.again_of_client.append(max(sent - offset, 0))

    def _kill(self, connection: socket.socket, moment: int, delay_seconds: float) -> None:
        """It stops before, so that what it has read can be told: what was sent and lies in no buffer of the kernel."""
        while self._sent < min(moment, self._stream.size - MIB):
            time.sleep(0.001)
        time.sleep(delay_seconds)
        pid = self._running.process.pid
        os.killpg(pid, signal.SIGSTOP)
        sent = self._sent
        self._wait_until_stuck()
        self._at_kill = self._sent - _queued_bytes(connection), sent
        self._look_at_memory()
        os.killpg(pid, signal.SIGKILL)
        self._running.process.wait()

    def _wait_until_stuck(self) -> None:
        before = -1
        while before != self._sent:
            before = self._sent
            time.sleep(_STILL_SECONDS)

    def _break_at(self, moment: int) -> None:
        """Half of the connections are reset, which throws away what is in flight; the others are closed."""
        with self._begin() as connection:
            self._send(connection, max(moment, self._offset + 1))
            in_flight = _queued_bytes(connection)
            if self._chance.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.seen.in_flight.append(in_flight)
        self.seen.again_after_breaks.append(self._sent - self._ask_offset())

    def _finish(self) -> None:
        with self._begin() as connection:
            self._send(connection, self._stream.size)
            answer = connection.recv(4096)
        if not answer.startswith(b"HTTP/1.1 204 "):
            raise RuntimeError(f"the end was answered {answer!r}")

    def _download(self) -> str:
        with Connection(self._running.port) as connection:
            (file,) = connection.expect({200}, "GET", "/me/files", b"", self._bearer()).json()["files"]
        computing = hashlib.sha256()
        request = f"GET /me/files/{file['id']}/content HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        request += f"Authorization: {self._bearer()['Authorization']}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self._running.port), timeout=_TIMEOUT_SECONDS) as connection:
            connection.sendall(request.encode())
            with connection.makefile("rb") as answer:
                while answer.readline().strip():
                    pass
                while piece := answer.read(MIB):
                    computing.update(piece)
        return computing.hexdigest()


def _queued_bytes(connection: socket.socket) -> int:
    """What is in the buffers of the kernel on both sides of a connection (`tx_queue:rx_queue` in proc_net(5))."""
    here, there = (f":{address[1]:04X}" for address in (connection.getsockname(), connection.getpeername()))
    total = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        sending, receiving = (int(queue, 16) for queue in queues.split(":"))
        if local.endswith(here) and remote.endswith(there):
            total += sending
        elif local.endswith(there) and remote.endswith(here):
            total += receiving
    return total


def measure(directory: Path, size: int, kills: int, breaks: int, seed: int) -> list[Row]:
    """Raises RuntimeError for a promise that was broken, or another content."""
    stream = Stream(size, seed)
    upload = Interrupted(directory, stream, random.Random(seed))
    if upload.run(kills, breaks) != stream.sha256():
        raise RuntimeError("the file is not what was sent")
    return rows(upload.seen, size)


def rows(seen: Seen, size: int) -> list[Row]:
    """The figures, each the worst of all."""
    two_chunks = 2 * Settings().chunk_size_bytes / MIB
    kills, breaks = len(seen.again_after_kills), len(seen.again_after_breaks)
    beyond = [max(again - flying, 0) for again, flying in zip(seen.again_after_breaks, seen.in_flight, strict=True)]
    of_client, after_breaks = _spread(seen.again_of_client), _spread(seen.again_after_breaks)
    return [
        _most(
            f"sent again after one of {kills} times `kill -9`, of what the server had read, at most",
            two_chunks,
            seen.again_after_kills,
            f"{_spread(seen.again_after_kills)}; with what was in flight {of_client}",
        ),
        _most(
            f"sent again after one of {breaks} broken connections, beyond what was in flight, at most",
            0,
            beyond,
            f"with that {after_breaks}",
        ),
        _most(
            "memory of the server, at most", Settings().body_budget_bytes / MIB, [seen.peak_memory], "the body budget"
        ),
        report.compared(
            f"the whole of {report.amount(size / MIB)} MiB, with {kills} starts",
            [seen.seconds],
            "s",
            "SHA-256 verified",
        ),
    ]


def _most(figure: str, target: float, measured: list[int], more: str) -> Row:
    return report.at_most(figure, target, [max(measured) / MIB], "MiB", more)


def _spread(values: list[int]) -> str:
    lowest, median, highest = min(values), statistics.median(values), max(values)
    return f"{report.amount(median / MIB)} MiB ({report.amount(lowest / MIB)} to {report.amount(highest / MIB)})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_patch", description=__doc__)
    parser.add_argument("--size", type=parse_size, default=10 << 30, help="of the file (default: 10GiB)")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--breaks", type=int, default=20, help="connections that break")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: 1)")
    parser.add_argument("--quick", action="store_true", help="the page stays as it is")
    parser.add_argument("--directory", type=Path, help="on the disk to be measured")
    arguments = parser.parse_args()
    interpreter.choose()
    machine = report.machine(())
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=arguments.directory) as directory:
        measured = measure(Path(directory), arguments.size, arguments.kills, arguments.breaks, arguments.seed)
    section = f"{machine}\n\n{report.table(measured)}"
    print(section)
    if not arguments.quick:
        report.write(PAGE, SECTION, section)


if __name__ == "__main__":
    main()
