"""How a server starts, and how it sleeps: `python -m benchmarks.idle`

Started is `uploader serve` as shipped, with its embedded Valkey: for the first time, once more, and with many files of four
bytes. It is ready when `/readyz` answers 200. Then nobody asks for anything, and counted are the waits that its threads and
those of Valkey ended by themselves, and their CPU.
"""

import argparse
import hashlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks import report
from benchmarks.ingest.places import memory_directory
from benchmarks.report import Row
from tests.support.process import UPLOADER, Server
from tests.support.wakeups import Slept, descendants, slept

PAGE = Path(__file__).parents[1] / "docs" / "running.md"
SECTION = "idle"

_READY_SECONDS, _READY_FULL_SECONDS = 0.8, 1.2
_WAKEUPS, _CPU_MILLIS = 10.0, 2.0
_THEN = "2026-01-01 00:00:00.000000"


@contextmanager
def started(directory: Path) -> Iterator[tuple[Server, float]]:
    """A server, and the seconds until it was ready."""
    began = time.monotonic()
    server = Server(directory / "log", {"DATA": str(directory / "data"), "FREE_SPACE_FLOOR": "0"}, program=(UPLOADER,))
    ready_seconds = time.monotonic() - began
    try:
        yield server, ready_seconds
    finally:
        server.stop()


def starts(directory: Path, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        with started(directory) as (_, seconds):
            taken.append(seconds)
    return taken


def fill(data: Path, count: int) -> None:
    """Add so many files, as the owner's, to an installation without any."""
    blobs, files = [], []
    for number in range(count):
        content = number.to_bytes(4, "big")
        sha256, md5 = hashlib.sha256(content).hexdigest(), hashlib.md5(content, usedforsecurity=False).hexdigest()
        place = data / "blobs" / sha256[:2] / sha256[2:4]
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(place / sha256, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, content)
        os.close(descriptor)
        blobs.append((sha256.encode(), md5.encode(), len(content), 1, _THEN))
        name = f"folder {number // 100}/file {number}"
        files.append(
            (b"%032x" % number, b"owner", md5.encode(), sha256.encode(), name.encode(), len(content), 0, _THEN)
        )
    with closing(sqlite3.connect(data / "uploader.db")) as database, database:
        database.executemany("INSERT INTO blob (sha256, md5, size, refs, created_at) VALUES (?, ?, ?, ?, ?)", blobs)
        columns = "id, user_id, md5, sha256, name, size, instant, created_at"
        database.executemany(f"INSERT INTO file ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", files)
        database.execute("UPDATE user_info SET files = ?, use_space_finished = ?", (count, 4 * count))


def sleeps(directory: Path, quiet_seconds: float, seconds: float) -> list[Row]:
    with started(directory) as (server, _):
        time.sleep(quiet_seconds)
        parts = {"server": [server.process.pid], "Valkey": descendants(server.process.pid)}
        before = {part: [slept(each) for each in pids] for part, pids in parts.items()}
        time.sleep(seconds)
        found: dict[str, Slept] = {}
        for part, pids in parts.items():
            each = [slept(pid) - first for pid, first in zip(pids, before[part], strict=True)]
            found[part] = Slept(sum(one.wakeups for one in each), sum(one.cpu_seconds for one in each))
    wakeups = {part: one.wakeups / seconds for part, one in found.items()}
    millis = {part: 1000 * one.cpu_seconds / seconds for part, one in found.items()}
    return [
        report.at_most("idle: wake-ups", _WAKEUPS, [sum(wakeups.values())], "a second", _shares(wakeups)),
        report.at_most("idle: CPU", _CPU_MILLIS, [sum(millis.values())], "ms a second", _shares(millis)),
    ]


def _shares(of: dict[str, float]) -> str:
    return ", ".join(f"{part} {figure:.1f}" for part, figure in of.items())


def measure(directory: Path, *, rounds: int, files: int, quiet_seconds: float, seconds: float) -> list[Row]:
    first = [taken for number in range(rounds) for taken in starts(_made(directory / f"first {number}"), 1)]
    full = _made(directory / "full")
    again = starts(full, rounds + 1)[1:]
    idle = sleeps(full, quiet_seconds, seconds)
    fill(full / "data", files)
    return [
        report.compared("ready after the first start", first, "s"),
        report.at_most("ready after a start, empty", _READY_SECONDS, again, "s"),
        report.at_most(f"ready after a start, {files:,} files", _READY_FULL_SECONDS, starts(full, rounds), "s"),
        *idle,
    ]


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few files, a short while; the page stays as it is")
    given = parser.parse_args()
    rounds, files, quiet_seconds, seconds = (2, 2_000, 15, 20) if given.quick else (5, 150_000, 90, 120)
    with tempfile.TemporaryDirectory(prefix="idle-", dir=memory_directory()) as directory:
        rows = measure(Path(directory), rounds=rounds, files=files, quiet_seconds=quiet_seconds, seconds=seconds)
    section = f"{report.machine([])}. Files in memory.\n\n{report.table(rows)}"
    print(section)
    if not given.quick:
        report.write(PAGE, SECTION, section)


if __name__ == "__main__":
    main()
