"""Servers that put a file together when its last chunk has come: one written for this, and tuspyserver."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks import interpreter
from benchmarks.report import Row, compared
from benchmarks.storage.client import Bytes, Connection, in_parallel
from benchmarks.storage.scale import Scale, spelled
from tests.support.process import answers
from tests.support.servers import free_port

_TUS = "tuspyserver==4.4.3"
_PARTS = 4
_START_SECONDS = 60.0

_TUS_APPLICATION = """
import sys
from fastapi import FastAPI
from tuspyserver import create_tus_router

app = FastAPI()
app.include_router(create_tus_router(prefix="files", files_dir=sys.argv[1], max_size=1 << 40))
app.get("/readyz")(lambda: "ready")

import uvicorn
uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
"""


def concatenating(directory: Path, scale: Scale) -> list[Row]:
    """A file for each chunk; at the end they are copied into one, and that is read again for its digests."""
    rows = []
    with _running([sys.executable, "-m", "benchmarks.storage.concatenator"], directory) as port:
        for size, times in scale.concatenated:
            seconds = [_finish_concatenator(port, Bytes(scale.chunk_size), size) for _ in range(times)]
            rows.append(compared(f"last byte to the end, {spelled(size)}: concatenate and read again", seconds, "s"))
    return rows


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
    try:
        python = interpreter.install(directory / "venv", _TUS, "uvicorn")
    except (subprocess.CalledProcessError, OSError):
        return [Row("tus concatenation", "–", f"left out: {_TUS} could not be installed")]
    application = directory / "application.py"
    application.write_text(_TUS_APPLICATION)
    rows = []
    with _running([str(python), str(application)], directory / "files") as port:
        for size, times in scale.concatenated:
            seconds = [_finish_tus(port, scale.chunk_size, size) for _ in range(times)]
            figure = f"concatenation of {_PARTS} partial uploads, {spelled(size)}: tuspyserver"
            rows.append(compared(figure, seconds, "s", "without digests, without fsync"))
    return rows


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
