"""A large file that changed a little, beside rsync and a whole upload: `python -m benchmarks.delta`.

Each change is made to the same random bytes and sent through a relay that counts both directions: by `uploader put`, which
chooses by the line, by `uploader put --delta` and `--no-delta`, and by `rsync --no-whole-file` to a daemon, if there is an
rsync. Then both ends are compared.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.ingest import processes
from benchmarks.ingest.ours import Mode, ours
from tests.support.process import UPLOADER, environment
from tests.support.relay import Relay
from tests.support.servers import free_port

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
SECTION = "delta"

GIB, MIB = 1 << 30, 1 << 20
DELTA = " --delta"
_EDITS, _EDIT_BYTES = 100, 4 << 10


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

        yield [way(f"`uploader put{option}`", *option.split()) for option in (DELTA, " --no-delta", "")]


@contextmanager
def rsync_way(directory: Path, program: str) -> Iterator[Way]:
    there = directory / "rsync"
    there.mkdir()
    port = free_port()
    configuration = directory / "rsyncd.conf"
    module = f"path = {there}\nread only = no\nuid = {os.getuid()}\ngid = {os.getgid()}\n"
    configuration.write_text(f"use chroot = no\n[files]\n{module}")
    command = [program, "--daemon", "--no-detach", "--address=127.0.0.1", f"--port={port}", f"--config={configuration}"]
    daemon = subprocess.Popen(command)
    try:
        with relaying(port) as relay:
            url = f"rsync://127.0.0.1:{relay.server_address[1]}/files/image"

            def prepare(old: Path) -> None:
                shutil.copy(old, there / "image")

            def send(new: Path) -> None:
                subprocess.run([program, "--no-whole-file", "--ignore-times", new, url], check=True)

            yield Way(
                "`rsync --no-whole-file`",
                prepare,
                send,
                lambda: _sha256_of(there / "image"),
                lambda: _cpu_with_children(daemon.pid),
                relay,
            )
    finally:
        daemon.terminate()
        daemon.wait()


def _cpu_with_children(pid: int) -> float:
    """A daemon leaves each connection to a child, whose time is known once that has ended."""
    while len(processes.tree([pid])) > 1:
        time.sleep(0.01)
    return processes.cpu_seconds([pid])


# The changes


def _copy(source: Path, target: Path, start: int = 0, length: int | None = None) -> None:
    with source.open("rb") as reading, target.open("ab") as writing:
        reading.seek(start)
        left = source.stat().st_size - start if length is None else length
        while left and (block := reading.read(min(left, MIB))):
            writing.write(block)
            left -= len(block)


def inserted(old: Path, new: Path) -> None:
    new.write_bytes(b"x")
    _copy(old, new)


def edited(old: Path, new: Path) -> None:
    _copy(old, new)
    places = random.Random(1)
    with new.open("r+b") as file:
        for _ in range(_EDITS):
            file.seek(places.randrange(old.stat().st_size - _EDIT_BYTES))
            file.write(os.urandom(_EDIT_BYTES))


def appended(old: Path, new: Path) -> None:
    _copy(old, new)
    with new.open("ab") as file:
        for _ in range(old.stat().st_size // 10 // MIB):
            file.write(os.urandom(MIB))


def truncated(old: Path, new: Path) -> None:
    _copy(old, new, 0, old.stat().st_size * 9 // 10)


# By what the issue calls them, with what may go over the wire, as a share of the old file.
CHANGES = {
    "a byte in front": (inserted, 0.01),
    f"{_EDITS} edits of 4 KiB": (edited, 0.02),
    "a tenth appended": (appended, 0.11),
    "a tenth cut off": (truncated, 0.01),
}


def measure(directory: Path, size: int, rsync: str | None) -> list[str]:
    """The rows of the table."""
    old, new = directory / "old", directory / "new"
    with old.open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))
    rows = []
    for change, (make, share) in CHANGES.items():
        new.unlink(missing_ok=True)
        make(old, new)
        for cost, name in _costs(directory, old, new, rsync):
            part = cost.wire_bytes / size
            verdict = "–" if name != f"`uploader put{DELTA}`" else "met" if part <= share else "missed"
            figures = f"{cost.wire_bytes / MIB:.1f} MiB ({part:.2%}) | {cost.seconds:.1f} s"
            row = f"| {change} | {name} | {figures} | {cost.client_cpu:.1f} s | {cost.server_cpu:.1f} s | {verdict} |"
            print(row, flush=True)
            rows.append(row)
    return rows


def _costs(directory: Path, old: Path, new: Path, rsync: str | None) -> Iterator[tuple[Cost, str]]:
    """Each in a place of its own, which goes afterwards."""
    with tempfile.TemporaryDirectory(dir=directory) as place, our_ways(Path(place)) as ways:
        for way in ways:
            yield way.measure(old, new), way.name
    if rsync is not None:
        with tempfile.TemporaryDirectory(dir=directory) as place, rsync_way(Path(place), rsync) as way:
            yield way.measure(old, new), way.name


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delta", description=__doc__)
    parser.add_argument("--size", type=int, default=1024, metavar="MIB", help="of the file; the page is for 1024 alone")
    parser.add_argument("--directory", type=Path, help="needs six times the size")
    parser.add_argument("--rsync", default=shutil.which("rsync"), help="the program, if it is not in the path")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=arguments.directory) as directory:
        rows = measure(Path(directory), arguments.size * MIB, arguments.rsync)
    head = [
        "| change | by | on the wire, both ways | time | CPU of the client | CPU of the server | within the share |"
    ]
    table = "\n".join([*head, "|---|---|---|---|---|---|---|", *rows])
    section = f"{report.machine(())}; a file of {arguments.size} MiB.\n\n{table}"
    print(section)
    if arguments.size * MIB == GIB:
        report.write(PAGE, SECTION, section)


if __name__ == "__main__":
    main()
