"""What it costs the server to compare the bytes of a download with their checksums: the same files with and without
`UPLOADER_VERIFY_READS`, in turns: `python -m benchmarks.downloads`.

Everything is in memory: what a disk takes is the same for both. A client in C, curl, takes whole files.
"""

import argparse
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path

from benchmarks import interpreter, report
from benchmarks.ingest.places import memory_directory
from benchmarks.ingest.processes import cpu_seconds, wait_until_quiet
from benchmarks.report import Row
from benchmarks.storage.client import Bytes, Connection
from tests.support.process import UPLOADER, Server, ended, owner_token

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
SECTION = "downloads"

_GIB, _MIB, _KIB = 1 << 30, 1 << 20, 1 << 10
_CHUNK_BYTES = 8 * _MIB
# Of a GiB, on top of what the same download takes without.
_MOST_SECONDS = 0.2
_RANGES = 500
_SMALL_FILES, _SMALL_BYTES = 200, 256 * _KIB


class Way:
    """A server as it is shipped, that compares or does not."""

    def __init__(self, server: Server, data: Path, size: int) -> None:
        self._server, self._size = server, size
        self._bearer = {"Authorization": f"Bearer {owner_token(data)}"}
        self._chance = random.Random(37)
        self.seconds: dict[str, list[float]] = {}
        self.rates: list[float] = []
        with Connection(server.port) as connection:
            self._large = self._store(connection, "large", Bytes(_CHUNK_BYTES), size)
            small = Bytes(_SMALL_BYTES)
            self._small = [self._store(connection, f"{number}", small, _SMALL_BYTES) for number in range(_SMALL_FILES)]

    def _store(self, connection: Connection, name: str, content: Bytes, size: int) -> str:
        """Return where the content of a new file is."""
        opening = f'{{"name": "{name}", "size": {size}, "chunk_size": {content.chunk_size}}}'.encode()
        place = f"/uploads/{connection.expect({201}, 'POST', '/uploads', opening, self._bearer).json()['upload']['id']}"
        for number in range(size // content.chunk_size):
            chunk = content.chunk(content.chunk_size)
            reply = connection.expect({200, 201}, "PUT", f"{place}/chunks/{number}", chunk, self._bearer)
        return f"/me/files/{reply.json()['file']['id']}/content"

    def measure(self, times: int) -> None:
        began = time.monotonic()
        self._measure("whole", times * self._size, lambda: self._curl(*[self._large] * times))
        self.rates.append(times * self._size / (time.monotonic() - began) / _MIB)
        for length in (_MIB, 64 * _KIB):
            self._measure(f"ranges of {length // _KIB:,} KiB", _RANGES * length, partial(self._ranges, length))
        self._measure("files of 256 KiB", _SMALL_FILES * _SMALL_BYTES, lambda: self._curl(*self._small))

    def _measure(self, name: str, sent: int, work: Callable[[], None]) -> None:
        pids = [self._server.process.pid]
        wait_until_quiet(pids)
        used = cpu_seconds(pids)
        work()
        wait_until_quiet(pids)
        self.seconds.setdefault(name, []).append((cpu_seconds(pids) - used) * _GIB / sent)

    def _curl(self, *paths: str) -> None:
        urls = [word for path in paths for word in ("-o", "/dev/null", f"{self._server.url}{path}")]
        token = self._bearer["Authorization"]
        subprocess.run(["curl", "-sSf", "-H", f"Authorization: {token}", *urls], check=True)

    def _ranges(self, length: int) -> None:
        """Anywhere in the file."""
        with Connection(self._server.port) as connection:
            for _ in range(_RANGES):
                start = self._chance.randrange(self._size - length)
                wanted = {**self._bearer, "Range": f"bytes={start}-{start + length - 1}"}
                connection.expect({206}, "GET", self._large, b"", wanted)


def measure(rounds: int, times: int, size: int) -> Sequence[Row]:
    """Rounds of both, the one after the other, after one that is not counted."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="downloads-", dir=memory_directory())))
        ways = {}
        for name in ("off", "on"):
            settings = {"DATA": str(directory / name), "FREE_SPACE_FLOOR": "0", "VERIFY_READS": name, "JOBS": "false"}
            server = Server(directory / f"{name}.log", settings, program=[UPLOADER])
            stack.enter_context(ended(server))
            ways[name] = Way(server, directory / name, size)
        for number in range(rounds + 1):
            for way in ways.values() if number % 2 else reversed(ways.values()):
                way.measure(times)
                if not number:
                    way.seconds.clear()
                    way.rates.clear()
        return list(_rows(ways["off"], ways["on"]))


def _rows(off: Way, on: Way) -> Iterator[Row]:
    for name, with_them in on.seconds.items():
        without = off.seconds[name]
        more = [one - other for one, other in zip(with_them, without, strict=True)]
        medians = (report.amount(statistics.median(each)) for each in (without, with_them))
        told = "{} without, {} with".format(*medians)
        if name == "whole":
            yield report.at_most(name, _MOST_SECONDS, more, "CPU s/GiB", told)
        else:
            yield report.compared(name, more, "CPU s/GiB", told)
    told = f"{report.amount(statistics.median(off.rates))} without"
    yield report.compared("one connection", on.rates, "MiB/s", told)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.downloads", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round; the page stays as it is")
    quick = parser.parse_args().quick
    if not quick:
        interpreter.choose()
    machine = report.machine([f"{name} {version(name)}" for name in ("isal",)])
    rows = measure(1, 4, 64 * _MIB) if quick else measure(7, 8, 512 * _MIB)
    section = f"{machine}.\n\n{report.table(rows)}"
    print(section)
    if not quick:
        report.write(PAGE, SECTION, section)


if __name__ == "__main__":
    main()
