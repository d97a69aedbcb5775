"""A server that takes part: started in a directory, told to make ready for a load, cleared after it."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from benchmarks.ingest.load import Plan, Request, head
from benchmarks.ingest.scale import Load
from benchmarks.storage.client import Connection

_START_SECONDS = 30.0


class Contender(Protocol):
    """A running server."""

    @property
    def pids(self) -> Sequence[int]:
        """The processes it started; what those started belongs to it, too."""

    def plan(self, load: Load) -> Plan:
        """Make ready to receive; nothing of this is measured."""

    def clear(self) -> None:
        """Remove what it has received."""


@contextmanager
def running(
    command: Sequence[str | Path], directory: Path, port: int, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """A program that listens on a port; its process id. What it says goes into a file of the directory."""
    with (directory / "output").open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _accepts(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start: {(directory / 'output').read_text()}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class PutContender:
    """A server that stores the body of a PUT as a file."""

    def __init__(self, port: int, pids: Sequence[int], files: Path) -> None:
        self.port, self.pids, self.files = port, pids, files

    def plan(self, load: Load) -> Plan:
        return Plan(
            self.port,
            [
                [
                    Request(head("PUT", f"/{connection}-{number}", load.chunk_bytes), load.chunk_bytes)
                    for number in range(load.chunks)
                ]
                for connection in range(load.connections)
            ],
        )

    def clear(self) -> None:
        empty(self.files)


class TusContender:
    """A tus server: an upload for each connection, one PATCH for each chunk. None of them is finished."""

    def __init__(self, port: int, pids: Sequence[int], files: Path) -> None:
        self.port, self.pids, self.files = port, pids, files

    def plan(self, load: Load) -> Plan:
        return Plan(self.port, [self._patches(load) for _ in range(load.connections)])

    def _patches(self, load: Load) -> list[Request]:
        opening = {"Tus-Resumable": "1.0.0", "Upload-Length": str(load.chunks * load.chunk_bytes + 1)}
        with Connection(self.port) as connection:
            reply = connection.expect({201}, "POST", "/files", b"", opening)
        path = "/" + reply.headers["location"].split("/", 3)[3]
        patching = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
        return [
            Request(
                head("PATCH", path, load.chunk_bytes, patching | {"Upload-Offset": str(number * load.chunk_bytes)}),
                load.chunk_bytes,
            )
            for number in range(load.chunks)
        ]

    def clear(self) -> None:
        empty(self.files)


def empty(directory: Path) -> None:
    """Remove what is in a directory."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
