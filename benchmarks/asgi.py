"""What the server costs as a part of an application, under the servers that speak ASGI: `python -m benchmarks.asgi`.

Plain ASGI hands bodies over in messages, past no parser, and has no files from the page cache. A client in C, curl, costs
little beside the server; its processor time is not counted.
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import httpx2

from benchmarks import report
from benchmarks.ingest.places import memory_directory
from benchmarks.ingest.processes import cpu_seconds, wait_until_quiet
from benchmarks.report import Row
from tests.support.embedding import TOKEN, Running
from tests.support.process import Server, ended, owner_token

PAGE = Path(__file__).parents[1] / "docs" / "embedding.md"
SECTION = "asgi"

_WAYS = {"uvicorn": "uvicorn", "hypercorn": "hypercorn", "granian": "granian", "fast": "uvicorn with `HttpConnection`"}
_CHUNK_BYTES, _SMALL_BYTES, _GIB = 8 << 20, 64 << 10, 1 << 30


class Way:
    """A server, and where its uploads are."""

    def __init__(self, process: Server | Running, url: str, token: str) -> None:
        root = process if isinstance(process, Server) else process.process
        self._pid, self._url = root.process.pid, url
        self._headers = {"Authorization": f"Bearer {token}"}
        self.large: list[float] = []
        self.small: list[float] = []

    def measure(self, directory: Path, chunks: int) -> None:
        large = self._send(directory / "large", _CHUNK_BYTES, chunks)
        self.large.append(large * _GIB / (chunks * _CHUNK_BYTES))
        self.small.append(self._send(directory / "small", _SMALL_BYTES, 16 * chunks) * 1e6 / (16 * chunks))

    def _send(self, chunk: Path, size: int, chunks: int) -> float:
        """One upload over one connection, of which the last chunk stays missing; the seconds of processor that it took."""
        opening = {"name": "a", "size": (chunks + 1) * size, "chunk_size": size}
        answer = httpx2.post(f"{self._url}/uploads", json=opening, headers=self._headers, timeout=60)
        place = f"{self._url}/uploads/{answer.raise_for_status().json()['upload']['id']}"
        pids = self._pids()
        wait_until_quiet(pids)
        used = cpu_seconds(pids)
        puts = [word for number in range(chunks) for word in ("-T", str(chunk), f"{place}/chunks/{number}")]
        told = ["-sSf", "-o", "/dev/null", "-H", "Expect:", "-H", f"Authorization: {self._headers['Authorization']}"]
        subprocess.run(["curl", *told, *puts], check=True, capture_output=True)
        wait_until_quiet(pids)
        took = cpu_seconds(pids) - used
        httpx2.delete(place, headers=self._headers, timeout=60).raise_for_status()
        return took

    def _pids(self) -> list[int]:
        """It, and what it started; the Valkey among that does as much for each."""
        found, left = list[int](), [self._pid]
        while left:
            pid = left.pop()
            found.append(pid)
            for task in Path(f"/proc/{pid}/task").iterdir():
                left += map(int, (task / "children").read_text().split())
        return found

    def rows(self, way: str) -> list[Row]:
        return [
            report.compared(f"processor time of a GiB of chunks of 8 MiB, {way}", self.large, "s"),
            report.compared(f"processor time of a chunk of 64 KiB, {way}", self.small, "µs"),
        ]


def measure(rounds: int, chunks: int) -> Sequence[Row]:
    """Rounds of all, the one after the other, after one that is not counted."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asgi-", dir=memory_directory())))
        for name, size in (("large", _CHUNK_BYTES), ("small", _SMALL_BYTES)):
            (directory / name).write_bytes(bytes(range(256)) * (size // 256))
        settings = {"DATA": str(directory / "serve"), "DEFAULT_TOTAL_SPACE": "1TiB", "FREE_SPACE_FLOOR": "0"}
        server = Server(directory / "log", settings)
        stack.enter_context(ended(server))
        ways = {"`uploader serve`": Way(server, server.url, owner_token(directory / "serve"))}
        for name, way in _WAYS.items():
            (directory / name).mkdir()
            app = Running(directory / name, name)
            stack.enter_context(ended(app.process))
            ways[way] = Way(app, f"{app.wait().url}/uploads", TOKEN)
        time.sleep(2)  # what a start does after it serves
        for number in range(rounds + 1):
            for each in ways.values():
                each.measure(directory, chunks)
                if not number:
                    each.large.clear()
                    each.small.clear()
        return [row for way, each in ways.items() for row in each.rows(way)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.asgi", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round; the page stays as it is")
    quick = parser.parse_args().quick
    machine = report.machine([f"{name} {version(name)}" for name in ("uvicorn", "uvloop", "hypercorn", "granian")])
    rows = measure(1, 4) if quick else measure(5, 32)
    section = f"{machine}.\n\n{report.table(rows)}"
    print(section)
    if not quick:
        report.write(PAGE, SECTION, section)


if __name__ == "__main__":
    main()
