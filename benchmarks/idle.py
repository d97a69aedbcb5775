"""How a server starts, and how it sleeps.

Started is `uploader serve` as shipped, with its embedded Valkey: for the first time, once more, and with many files of four
bytes. It is ready when `/readyz` answers 200. Then nobody asks for anything, and counted are the waits that its threads and
those of Valkey ended by themselves, and their CPU.
"""

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.tables import OURS, Cell, Column, Line, Table
from tests.support.process import UPLOADER, Server
from tests.support.wakeups import Slept, descendants, slept

_READY, _WAKE_UPS, _CPU = "ready after, s", "wake-ups a second", "CPU, ms a second"
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


def sleeps(directory: Path, quiet_seconds: float, seconds: float) -> Slept:
    """What it and its Valkey do in so many seconds, after some in which it came to rest."""
    with started(directory) as (server, _):
        time.sleep(quiet_seconds)
        pids = [server.process.pid, *descendants(server.process.pid)]
        before = [slept(pid) for pid in pids]
        time.sleep(seconds)
        found = [slept(pid) - first for pid, first in zip(pids, before, strict=True)]
        return Slept(sum(one.wakeups for one in found), sum(one.cpu_seconds for one in found))


def measure(directory: Path, *, rounds: int, files: int, quiet_seconds: float, seconds: float) -> Table:
    first = [taken for number in range(rounds) for taken in starts(_made(directory / f"first {number}"), 1)]
    full = _made(directory / "full")
    again = starts(full, rounds + 1)[1:]
    idle = sleeps(full, quiet_seconds, seconds)
    fill(full / "data", files)
    cells = {
        "first start": {_READY: Cell(first)},
        "start, empty": {_READY: Cell(again, at_most=0.8)},
        f"start, {files:,} files": {_READY: Cell(starts(full, rounds), at_most=1.2)},
        "idle": {
            _WAKE_UPS: Cell([idle.wakeups / seconds], at_most=10.0),
            _CPU: Cell([1000 * idle.cpu_seconds / seconds], at_most=2.0),
        },
    }
    columns = [Column(_READY), Column(_WAKE_UPS), Column(_CPU)]
    return Table(
        "A start, and an idle server", columns, [Line(f"{OURS}, {name}", "–", found) for name, found in cells.items()]
    )


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
