"""What no small file can do without, by itself: two digests, a sync, three statements and a share of a commit."""

import asyncio
import hashlib
import os
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.ingest.places import Places
from benchmarks.report import Row, amount, compared
from benchmarks.small_files.scale import SIZE_BYTES, Scale
from uploader.bootstrap import prepare_database
from uploader.service.ids import new_id
from uploader.settings import Settings

_AT_ONCE = 16
_COMMITTED_TOGETHER = (1, 8, 500)
_CONTENT = bytes(SIZE_BYTES)
_USER = b"user"
_BLOB = "INSERT INTO blob (sha256, md5, size, refs, created_at) VALUES (?, ?, ?, 1, ?)"
_FILE = "INSERT INTO file (id, user_id, md5, sha256, name, size, instant, created_at) VALUES (?, ?, ?, ?, ?, ?, 0, ?)"
_ADD = "UPDATE user_info SET use_space_finished = use_space_finished + ?, files = files + 1 WHERE user_id = ?"
_NOW = "2030-01-31 23:59:59.000000"


def bounds(places: Places, scale: Scale) -> list[Row]:
    """On the disk, in turn."""
    directory, seconds = places.disk, scale.bound_seconds
    (directory / "files").mkdir()
    asyncio.run(prepare_database(Settings(data=directory)))
    repeated: dict[str, Callable[[], _Bound]] = {
        "both digests": lambda: _repeat(_digest, seconds),
        f"written and synced, {_AT_ONCE} at once": lambda: _synced(directory / "files", seconds),
    }
    for together in _COMMITTED_TOGETHER:
        figure = f"its three statements in plain SQLite, {together} file{'s' * (together > 1)} to a commit"
        repeated[figure] = partial(_sqlite, directory / "uploader.db", together, seconds)
    measured: dict[str, list[_Bound]] = {figure: [] for figure in repeated}
    for _ in range(scale.bound_rounds):
        for figure, once in repeated.items():
            measured[figure].append(once())
    return [_row(figure, found) for figure, found in measured.items()]


@dataclass(frozen=True, slots=True)
class _Bound:
    """Files a second, and the CPU of each."""

    rate: float
    cpu_micros: float


def _row(figure: str, measured: Sequence[_Bound]) -> Row:
    micros = statistics.median(one.cpu_micros for one in measured)
    rates = [one.rate for one in measured]
    return compared(f"a file of 4 KiB alone: {figure}", rates, "files/s", f"{amount(micros)} µs of CPU each")


def _digest() -> None:
    hashlib.md5(_CONTENT).digest()
    hashlib.sha256(_CONTENT).digest()


def _synced(directory: Path, seconds: float) -> _Bound:
    """Each thread makes files of its own, and syncs each before the next."""
    done = []
    until = time.perf_counter() + seconds

    def work() -> None:
        count = 0
        while time.perf_counter() < until:
            descriptor = os.open(directory / new_id(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(descriptor, _CONTENT)
            os.fdatasync(descriptor)
            os.close(descriptor)
            count += 1
        done.append(count)

    began, cpu_began = time.perf_counter(), time.process_time()
    threads = [threading.Thread(target=work) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count = sum(done)
    return _Bound(count / (time.perf_counter() - began), (time.process_time() - cpu_began) / count * 1e6)


def _sqlite(path: Path, together: int, seconds: float) -> _Bound:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("INSERT OR IGNORE INTO user_info (user_id, total_space) VALUES (?, ?)", (_USER, 1 << 50))
        commit = _repeat(lambda: _commit(connection, [new_id().encode() for _ in range(together)]), seconds)
    return _Bound(commit.rate * together, commit.cpu_micros / together)


def _commit(connection: sqlite3.Connection, ids: Sequence[bytes]) -> None:
    contents = [(hashlib.sha256(one).hexdigest().encode(), hashlib.md5(one).hexdigest().encode()) for one in ids]
    files = [
        (one, _USER, md5, sha256, b"f/" + one, SIZE_BYTES, _NOW)
        for one, (sha256, md5) in zip(ids, contents, strict=True)
    ]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(_BLOB, [(sha256, md5, SIZE_BYTES, _NOW) for sha256, md5 in contents])
    connection.executemany(_FILE, files)
    connection.execute(_ADD, (SIZE_BYTES * len(ids), _USER))
    connection.execute("COMMIT")


def _repeat(once: Callable[[], object], seconds: float) -> _Bound:
    began, cpu_began, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() < began + seconds:
        once()
        done += 1
    return _Bound(done / (time.perf_counter() - began), (time.process_time() - cpu_began) / done * 1e6)
