"""What storing costs the disk: bytes written for each that comes, and what it takes that they survive a power cut."""

import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.report import Row, amount, at_least, at_most, percentile
from benchmarks.storage.client import Bytes
from benchmarks.storage.scale import MIB, Scale, spelled
from benchmarks.storage.uploading import delete, serving, upload

_MOST_BEYOND_PERCENT = 1.0
_LEAST_SHARE = 0.85


def written(directory: Path, scale: Scale) -> list[Row]:
    """`write_bytes` of the server and its Valkey (proc_pid_io(5)): what they caused to be written to the disk."""
    size, times = scale.written
    measured = []
    with serving(directory) as server:
        for _ in range(times):
            before = _written_bytes(server.process.pid)
            upload(server.port, Bytes(scale.chunk_size), size)
            time.sleep(scale.settling_seconds)
            measured.append(((_written_bytes(server.process.pid) - before) / size - 1) * 100)
    figure = f"disk bytes written beyond those uploaded, {spelled(size)}"
    return [at_most(figure, _MOST_BEYOND_PERCENT, measured, "%")]


def _written_bytes(pid: int) -> int:
    facts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return int(facts["write_bytes"]) + sum(
        _written_bytes(int(child)) for thread in children for child in thread.read_text().split()
    )


def durability(directory: Path, scale: Scale) -> list[Row]:
    """One connection, chunk after chunk; the two servers in turn."""
    size, rounds = scale.throughput
    names = ("power", "process")
    rates: dict[str, list[float]] = {name: [] for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    content = Bytes(scale.chunk_size)
    with ExitStack() as stack:
        directory.mkdir()
        servers = {name: stack.enter_context(serving(directory / name, name)) for name in names}
        for _ in range(rounds):
            for name, server in servers.items():
                uploaded = upload(server.port, content, size)
                delete(server.port, uploaded.file_id)
                rates[name].append(size / MIB / uploaded.sent_seconds)
                seconds[name] += uploaded.chunk_seconds
    shares = [power / process for power, process in zip(rates["power"], rates["process"], strict=True)]
    rows = [
        Row(
            f"one connection, `{name}`",
            "–",
            f"{amount(percentile(rates[name], 0.5))} MiB/s (p1 {amount(percentile(rates[name], 0.01))}); "
            f"a chunk from its last byte p50 {amount(percentile(seconds[name], 0.5) * 1000)} ms, "
            f"p99 {amount(percentile(seconds[name], 0.99) * 1000)} ms",
        )
        for name in names
    ]
    return [*rows, at_least("throughput of `power`, share of `process`", _LEAST_SHARE, shares, "times")]
