"""Many small files: how many are opened, sent and merged a second, and how near the database alone that comes."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ingest import installing, peers, processes, sql
from benchmarks.ingest.ours import Mode, ours
from benchmarks.ingest.places import Places
from benchmarks.ingest.scale import Files, Scale
from benchmarks.report import Row, amount, at_least, compared

_TIMES_TUSPY = 5.0
_BLOCK = bytes(4096)
_TUSPY = """
import io, json, os, sys, threading, time
from tusclient.client import TusClient

url, count, at_once, limit_seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
began, cpu_began, sent, lock = time.perf_counter(), time.process_time(), 0, threading.Lock()

def work():
    global sent
    client = TusClient(url)
    while time.perf_counter() < began + limit_seconds:
        with lock:
            if sent >= count:
                return
            sent += 1
        client.uploader(file_stream=io.BytesIO(os.urandom(4096)), chunk_size=1 << 20).upload()

threads = [threading.Thread(target=work) for _ in range(at_once)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
print(json.dumps({"files": sent, "seconds": seconds, "cpu_seconds": cpu_seconds}))
"""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a client did, and what that cost the server."""

    files: int
    seconds: float
    cpu_seconds: float
    server_cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.files / self.seconds

    def costs(self) -> str:
        server, client = (seconds * 1e6 / self.files for seconds in (self.server_cpu_seconds, self.cpu_seconds))
        return f"a file costs the server {amount(server)} µs of CPU, the client {amount(client)} µs"


def files(places: Places, scale: Scale, _only: Collection[str] = ()) -> list[Row]:
    """On the disk and in memory: on the disk each waits for syncs, in memory none does."""
    rows = _rows("in memory", places.memory / "files", scale)
    return [*_rows("on the disk", places.disk / "files", scale), *rows] if scale.on_disk else rows


def _rows(where: str, directory: Path, scale: Scale) -> list[Row]:
    what = f"files of 4 KiB, {where}"
    mine, theirs, commits, looked_up, syncs = [], [], [], [], []
    left_out = "" if scale.peers else "left out"
    for number in range(scale.files.rounds):
        own = directory / str(number)
        mine.append(_ours(own / "ours", scale.files))
        commits.append(asyncio.run(sql.commits(own, scale.files)))
        looked_up.append(asyncio.run(sql.files(own, scale.files)))
        syncs.append(_syncs(own, scale.files))
        if not left_out:
            try:
                theirs.append(_tuspy(own / "tuspy", scale.files))
            except installing.NotAvailable as error:
                left_out = str(error)
    rates = [one.rate for one in mine]
    shares = [rate / most for rate, most in zip(rates, looked_up, strict=True)]
    rows = [compared(f"{what}: this server and its client", rates, "files/s", mine[-1].costs())]
    if theirs:
        rows.append(
            compared(f"{what}: tuspyserver and tuspy", [one.rate for one in theirs], "files/s", theirs[-1].costs())
        )
        times = [one / other.rate for one, other in zip(rates, theirs, strict=False)]
        rows.append(at_least(f"{what}: this server to tuspyserver", _TIMES_TUSPY, times, "times"))
    else:
        rows.append(Row(f"{what}: tuspyserver and tuspy", "–", f"not available: {left_out}"))
    return [
        *rows,
        compared(f"{what}: commits of SQLite alone", commits, "commits/s", "a file needs 2"),
        compared(f"{what}: syncs of 4 KiB alone, {scale.files.at_once} at once", syncs, "syncs/s"),
        compared(f"{what}: all that SQLite has to do for them, alone", looked_up, "files/s", sql.OF_A_FILE),
        compared(f"{what}: share of the rate at which SQLite alone could do its part", shares, "times"),
    ]


def _ours(directory: Path, load: Files) -> Sent:
    with ours(directory, Mode(), users=1) as server:
        url = f"http://127.0.0.1:{server.port}"
        arguments = [url, server.tokens[0], str(load.count), str(load.at_once), str(load.limit_seconds)]
        before = processes.cpu_seconds(server.pids)
        said = _run([sys.executable, "-m", "benchmarks.ingest.sender", *arguments])
        return _sent(said, processes.cpu_seconds(server.pids) - before)


def _tuspy(directory: Path, load: Files) -> Sent:
    with peers.tuspyserver(directory) as server:
        url = f"http://127.0.0.1:{server.port}/files"
        arguments = [url, str(load.count), str(load.at_once), str(load.limit_seconds)]
        before = processes.cpu_seconds(server.pids)
        said = _run([str(installing.python()), "-c", _TUSPY, *arguments])
        return _sent(said, processes.cpu_seconds(server.pids) - before)


def _sent(said: dict[str, float], server_cpu_seconds: float) -> Sent:
    return Sent(int(said["files"]), said["seconds"], said["cpu_seconds"], server_cpu_seconds)


def _run(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    said: dict[str, float] = json.loads(done.stdout)
    return said


def _syncs(directory: Path, load: Files) -> float:
    """Blocks written and synced a second, each thread in a file of its own."""
    began, done = time.perf_counter(), []

    def work() -> None:
        with tempfile.TemporaryFile(dir=directory) as file:
            count = 0
            while time.perf_counter() < began + load.bound_seconds:
                os.pwrite(file.fileno(), _BLOCK, count % 256 * len(_BLOCK))
                os.fdatasync(file.fileno())
                count += 1
        done.append(count)

    threads = [threading.Thread(target=work) for _ in range(load.at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - began)
