"""What more of everything costs: connections, and open uploads."""

import asyncio
import random
import statistics
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.ingest import crowd, processes
from benchmarks.ingest.load import Plan, Request, head, send
from benchmarks.ingest.ours import Mode, Ours, ours
from benchmarks.ingest.places import Places
from benchmarks.ingest.rounds import Round, measure
from benchmarks.ingest.scale import Load, Scale
from benchmarks.report import Row, amount, compared

_MODES = (Mode(durability="process", digests=False), Mode())
_USERS = 32


def connections(places: Places, scale: Scale) -> list[Row]:
    """The same servers with more and more connections, spread over their users."""
    rows = []
    for number, mode in enumerate(_MODES):
        name = f"this server, {mode}"
        with ours(places.memory / str(number), mode, users=_USERS) as server:
            rounds: dict[int, list[Round]] = {count: [] for count in scale.connections}
            for _ in range(scale.many.rounds):
                for count, measured in rounds.items():
                    measured.append(measure(places, _spread(scale.many, count), server))
                    server.clear()
        for count, measured in rounds.items():
            cpu = statistics.median(one.cpu_per_gib for one in measured)
            rates = [one.rate for one in measured]
            figure = f"{name}: {count} connection{'s' * (count > 1)}"
            rows.append(compared(figure, rates, "MB/s", f"{amount(cpu)} CPU s/GiB"))
    return rows


def _spread(load: Load, connections: int) -> Load:
    """As many chunks as `load` has, or one for each connection."""
    chunks = max(1, load.connections * load.chunks // connections)
    return replace(load, connections=connections, chunks=chunks)


def open_uploads(places: Places, scale: Scale) -> list[Row]:
    """One connection to servers as shipped with more and more open uploads: chunks of the same few, and of all in turn."""
    few = min(scale.open_uploads)
    cases = [(count, drawn) for count in scale.open_uploads for drawn in sorted({few, count})]
    measured: dict[tuple[int, int], _Measured] = {case: _Measured() for case in cases}
    directory = places.memory / "crowds"
    with ExitStack() as stack:
        crowds = {}
        for count in scale.open_uploads:
            server = stack.enter_context(ours(directory / str(count), Mode(), users=_USERS))
            crowds[count] = _Crowd(server, directory / str(count) / "data", count)
            send(crowds[count].draw(few, few * 4))  # each is met for the first time
        for _ in range(scale.drawn_rounds):
            for count, drawn in cases:
                measured[count, drawn].add(crowds[count], drawn, scale.drawn_chunks)
    subprocess.run(["rm", "-rf", directory], check=True)  # in seconds what would take Python many
    return [_row(count, drawn, measured, few) for count, drawn in cases]


def _row(count: int, drawn: int, measured: "Mapping[tuple[int, int], _Measured]", few: int) -> Row:
    among = "" if drawn == count else f", of {drawn} of them"
    case, fewest = measured[count, drawn], measured[few, few]
    row = compared(f"a chunk of 64 KiB, {count:,} uploads open{among}", case.took_ms, "ms", case.costs())
    if drawn != few or count == few:
        return row
    # Within noise: the ranges of both overlap.
    within_noise = min(case.took_ms) <= max(fewest.took_ms)
    times = statistics.median(case.took_ms) / statistics.median(fewest.took_ms)
    return replace(row, target="flat within noise", met=within_noise, missed_by=f"{times:.2f} times that of {few}")


class _Measured:
    """The median of each round."""

    def __init__(self) -> None:
        self.took_ms: list[float] = []
        self._cpu_micros: list[float] = []

    def add(self, crowd: "_Crowd", drawn: int, chunks: int) -> None:
        pids = crowd.server.pids
        before = processes.cpu_seconds(pids)
        outcome = send(crowd.draw(drawn, chunks))
        self._cpu_micros.append((processes.cpu_seconds(pids) - before) / chunks * 1e6)
        self.took_ms.append(statistics.median(outcome.took_seconds) * 1000)

    def costs(self) -> str:
        return f"{amount(statistics.median(self._cpu_micros))} CPU µs"


class _Crowd:
    """A server with many open uploads."""

    def __init__(self, server: Ours, data: Path, count: int) -> None:
        self.server = server
        users = [f"user-{number}" for number in range(_USERS)]
        self._ids = asyncio.run(crowd.open_uploads(data, users, count))
        self._sent: set[tuple[int, int]] = set()

    def draw(self, drawn: int, chunks: int) -> Plan:
        """Chunks that were not sent before, of the first `drawn` uploads; none gets its last one."""
        requests: list[Request] = []
        while len(requests) < chunks:
            number = random.randrange(drawn)
            chunk = random.randrange(crowd.CHUNKS - 1)
            if (number, chunk) in self._sent:
                continue
            self._sent.add((number, chunk))
            path = f"/uploads/{self._ids[number]}/chunks/{chunk}"
            start = head("PUT", path, crowd.CHUNK_BYTES, self.server.bearer(number))
            requests.append(Request(start, crowd.CHUNK_BYTES))
        return Plan(self.server.port, [requests])
