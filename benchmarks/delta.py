"""A large file that changed a little, beside rsync and a whole upload.

Each change is made to the same random bytes and sent through a relay that counts both directions: by `uploader put`, which
chooses by the line, by `uploader put --delta` and `--no-delta`, and by `rsync --no-whole-file` to a daemon. Then both ends
are compared.
"""

import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ingest import installing, peers, processes
from benchmarks.ingest.installing import NotAvailable
from benchmarks.ingest.ours import Mode, ours
from benchmarks.ingest.rounds import reason
from benchmarks.ingest.scale import GIB, MIB
from benchmarks.tables import BOTH_DIGESTS, Cell, Column, Line, Table
from tests.support.process import UPLOADER, environment
from tests.support.relay import Relay

_EDITS_A_GIB, _EDIT_BYTES = 100, 4 << 10
_DELTA, _RSYNC = "`uploader put --delta`", "`rsync --no-whole-file`"
_RSYNC_DOES = "checksum, no sync, resumes"
# Of the client and of the server, in CPU seconds.
_MOST_CPU = (0.5, 0.6)


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took to bring a file up to date. CPU is in seconds."""

    wire_bytes: int
    seconds: float
    client_cpu: float
    server_cpu: float


@dataclass(frozen=True, slots=True)
class Way:
    """One way to bring a file up to date."""

    name: str
    # Make the old file be there, then send the new one; the SHA-256 of what is there in the end.
    prepare: Callable[[Path], None]
    send: Callable[[Path], None]
    sha256: Callable[[], str]
    server_cpu: Callable[[], float]
    relay: Relay

    def measure(self, old: Path, new: Path) -> Cost:
        """Raises RuntimeError if the result is another one."""
        self.prepare(old)
        wire, cpu, server_cpu = self._wire(), _children_cpu(), self.server_cpu()
        began = time.monotonic()
        self.send(new)
        seconds = time.monotonic() - began
        cost = Cost(self._wire() - wire, seconds, _children_cpu() - cpu, self.server_cpu() - server_cpu)
        if self.sha256() != _sha256_of(new):
            raise RuntimeError(f"{self.name}: what is there is not what was sent")
        return cost

    def _wire(self) -> int:
        return self.relay.sent_bytes + self.relay.received_bytes


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# The ways


@contextmanager
def relaying(port: int) -> Iterator[Relay]:
    with Relay(port, None, lambda: None) as relay:
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        yield relay
        relay.shutdown()


@contextmanager
def our_ways(directory: Path) -> Iterator[list[Way]]:
    with ours(directory / "server", Mode(), users=1, TRASH_RETENTION="0s") as server, relaying(server.port) as relay:
        token = server.bearer(0)["Authorization"].removeprefix("Bearer ")

        def run(port: int, *arguments: str | Path) -> list[dict[str, Any]]:
            variables = environment({"URL": f"http://127.0.0.1:{port}", "TOKEN": token})
            command = [UPLOADER, *arguments, "--json"]
            done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
            return [json.loads(line) for line in done.stdout.splitlines()]

        def put(port: int, path: Path, *options: str) -> None:
            run(port, "put", path, "--name", "image", *options)

        def sha256() -> str:
            (listed,) = run(server.port, "ls", "-r")
            return str(listed["file"]["sha256"])

        def way(name: str, *options: str) -> Way:
            return Way(
                name,
                lambda old: put(server.port, old, "--no-delta"),
                lambda new: put(relay.server_address[1], new, *options),
                sha256,
                lambda: processes.cpu_seconds(server.pids),
                relay,
            )

        others = [way("`uploader put --no-delta`", "--no-delta"), way("`uploader put`")]
        yield [way(_DELTA, "--delta"), *others]


@contextmanager
def rsync_way(directory: Path) -> Iterator[Way]:
    there = directory / "rsync"
    there.mkdir()
    with peers.rsync(directory / "daemon", there) as (port, pid), relaying(port) as relay:
        program, url = installing.program("rsync"), f"rsync://127.0.0.1:{relay.server_address[1]}/files/image"

        def prepare(old: Path) -> None:
            shutil.copy(old, there / "image")

        def send(new: Path) -> None:
            subprocess.run([program, "--no-whole-file", "--ignore-times", new, url], check=True)

        yield Way(
            _RSYNC,
            prepare,
            send,
            lambda: _sha256_of(there / "image"),
            lambda: _cpu_with_children(pid),
            relay,
        )


def _cpu_with_children(pid: int) -> float:
    """A daemon leaves each connection to a child, whose time is known once that has ended."""
    while len(processes.tree([pid])) > 1:
        time.sleep(0.01)
    return processes.cpu_seconds([pid])


# The changes


def inserted(old: Path, new: Path) -> None:
    with old.open("rb") as reading, new.open("wb") as writing:
        writing.write(b"x")
        shutil.copyfileobj(reading, writing)


def edited(old: Path, new: Path) -> None:
    shutil.copyfile(old, new)
    places = random.Random(1)
    with new.open("r+b") as file:
        for _ in range(max(1, _EDITS_A_GIB * old.stat().st_size // GIB)):
            file.seek(places.randrange(old.stat().st_size - _EDIT_BYTES))
            file.write(os.urandom(_EDIT_BYTES))


# With what may go over the wire, as a share of the old file.
CHANGES = {"a byte in front": (inserted, 0.01), f"{_EDITS_A_GIB} edits of 4 KiB a GiB": (edited, 0.02)}
_WIRE, _SECONDS, _CLIENT, _SERVER = "on the wire, MiB", "time, s", "client, CPU s", "server, CPU s"


def measure(directory: Path, size: int, rounds: int, *, with_peers: bool = True) -> Table:
    """In each round all ways in turn, each change after the other."""
    old, new = directory / "old", directory / "new"
    with old.open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))
    lines, problem = [], ""
    with ExitStack() as stack:
        ways = stack.enter_context(our_ways(directory))
        if with_peers:
            try:
                ways.append(stack.enter_context(rsync_way(directory)))
            except (NotAvailable, RuntimeError, OSError) as error:
                problem = reason(error)
        for change, (make, share) in CHANGES.items():
            make(old, new)
            costs: dict[str, list[Cost]] = {way.name: [] for way in ways}
            for _ in range(rounds):
                for way in ways:
                    costs[way.name].append(way.measure(old, new))
            lines += [_line(change, way, costs[way.name], share * size / MIB) for way in ways]
    if problem:
        lines.append(Line(_RSYNC, _RSYNC_DOES, problem=problem))
    columns = [Column(_WIRE), Column(_SECONDS), Column(_CLIENT), Column(_SERVER)]
    return Table(f"A file of {size // MIB} MiB that changed a little", columns, lines)


def _line(change: str, way: Way, costs: list[Cost], most_wire: float) -> Line:
    bounds = (most_wire, *_MOST_CPU) if way.name == _DELTA else (None, None, None)
    cells = {
        _WIRE: Cell([one.wire_bytes / MIB for one in costs], at_most=bounds[0]),
        _SECONDS: Cell([one.seconds for one in costs]),
        _CLIENT: Cell([one.client_cpu for one in costs], at_most=bounds[1]),
        _SERVER: Cell([one.server_cpu for one in costs], at_most=bounds[2]),
    }
    return Line(f"{change}: {way.name}", _RSYNC_DOES if way.name == _RSYNC else BOTH_DIGESTS, cells)
