"""Servers that put a file together when its last chunk has come: one written for this, and tuspyserver."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from benchmarks.ingest import peers
from benchmarks.ingest.installing import NotAvailable
from benchmarks.report import Row, compared
from benchmarks.storage.client import Bytes, Connection, in_parallel
from benchmarks.storage.scale import Scale, spelled
from tests.support.process import answers
from tests.support.servers import free_port

# Of a chunk size and a size, the seconds from the last byte to the end.
Finish = Callable[[int, int], float]
_PARTS = 4
_START_SECONDS = 60.0


def concatenating(directory: Path, scale: Scale) -> list[Row]:
    """A file for each chunk; at the end they are copied into one, and that is read again for its digests."""
    rows = []
    with concatenator(directory) as finish:
        for size, times in scale.concatenated:
            seconds = [finish(scale.chunk_size, size) for _ in range(times)]
            rows.append(compared(f"last byte to the end, {spelled(size)}: concatenate and read again", seconds, "s"))
    return rows


@contextmanager
def concatenator(directory: Path) -> Iterator[Finish]:
    with _running([sys.executable, "-m", "benchmarks.storage.concatenator"], directory) as port:
        yield lambda chunk_size, size: _finish_concatenator(port, Bytes(chunk_size), size)


def _finish_concatenator(port: int, content: Bytes, size: int) -> float:
    count = -(-size // content.chunk_size)
    with Connection(port) as connection:
        for number in range(count):
            chunk = content.chunk(min(content.chunk_size, size - number * content.chunk_size))
            reply = connection.expect({200}, "PUT", f"/{count}/{number}", chunk, exact=number == count - 1)
        connection.expect({200}, "DELETE", "/")
    return reply.seconds


def tus(directory: Path, scale: Scale) -> list[Row]:
    """tus: as many partial uploads as connections, then the request that concatenates them. It computes no digest."""
    rows = []
    figure = f"concatenation of {_PARTS} partial uploads: tuspyserver"
    try:
        with tuspyserver(directory) as finish:
            for size, times in scale.concatenated:
                seconds = [finish(scale.chunk_size, size) for _ in range(times)]
                rows.append(compared(f"{figure}, {spelled(size)}", seconds, "s", "without digests"))
    except NotAvailable as error:
        return [Row(figure, "–", f"not available: {error}")]
    return rows


@contextmanager
def tuspyserver(directory: Path) -> Iterator[Finish]:
    """Raises NotAvailable."""
    with peers.tuspyserver(directory) as server:
        yield partial(_finish_tus, server.port)


def _finish_tus(port: int, chunk_size: int, size: int) -> float:
    part = size // _PARTS
    with Connection(port) as connection:
        places = [
            _create_tus(connection, {"Upload-Length": str(part), "Upload-Concat": "partial"}) for _ in range(_PARTS)
        ]
        in_parallel([lambda place=place: _fill_tus(port, place, chunk_size, part) for place in places])  # type: ignore[misc]
    with Connection(port) as connection:  # the other was left alone for too long
        begin = time.perf_counter()
        whole = _create_tus(connection, {"Upload-Concat": f"final;{' '.join(places)}"})
        seconds = time.perf_counter() - begin
        connection.expect({204}, "DELETE", whole, b"", {"Tus-Resumable": "1.0.0"})
    return seconds


def _create_tus(connection: Connection, headers: dict[str, str]) -> str:
    reply = connection.expect({201}, "POST", "/files", b"", headers | {"Tus-Resumable": "1.0.0"})
    return "/" + reply.headers["location"].split("/", 3)[3]


def _fill_tus(port: int, place: str, chunk_size: int, size: int) -> None:
    content = Bytes(chunk_size)
    with Connection(port) as connection:
        for offset in range(0, size, chunk_size):
            headers = {"Tus-Resumable": "1.0.0", "Upload-Offset": str(offset)}
            headers["Content-Type"] = "application/offset+octet-stream"
            connection.expect({204}, "PATCH", place, content.chunk(min(chunk_size, size - offset)), headers)


@contextmanager
def _running(command: list[str], directory: Path) -> Iterator[int]:
    """A server that keeps its files in a directory, ready; it ends with this."""
    directory.mkdir(exist_ok=True)
    port = free_port()
    process = subprocess.Popen([*command, str(directory), str(port)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command} did not start")
            time.sleep(0.05)
        yield port
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
