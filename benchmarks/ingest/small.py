"""Small chunks: how many requests a second, each of them accounted, on cores of their own and beside busy neighbours."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from benchmarks.ingest import peers
from benchmarks.ingest.load import sending
from benchmarks.ingest.ours import Mode, Ours, ours
from benchmarks.ingest.per_chunk import per_chunk
from benchmarks.ingest.places import Places
from benchmarks.ingest.rounds import Entry, Round, interleaved, measure
from benchmarks.ingest.scale import Load, spelled
from benchmarks.tables import BOTH_DIGESTS, NOTHING, OURS, RESUMES, Cell, Column, Line, Table

_OWN = {OURS: "auto", f"{OURS}, `UPLOADER_CPU_AFFINITY=off`": "off"}
_STARTS = {
    "one UPDATE in MariaDB for each chunk": (Entry(per_chunk), f"{NOTHING}, a quota"),
    "nginx dav": (Entry(partial(peers.nginx, tuned=True)), NOTHING),
    "tuspyserver": (Entry(peers.tuspyserver), RESUMES),
    "@tus/server": (Entry(peers.tus_node), RESUMES),
}
_MOST_CPU_MICROS = 400.0
_RATE, _COST = "requests/s", "CPU µs"
_BUSY_RATE, _BUSY_COST = "beside busy neighbours, requests/s", "beside them, CPU µs"
_LET_GO = "let go of its core after, s"
_LOOK_SECONDS = 0.05
# Of the rounds of a load.
_PATIENCE = 10.0
_MOST_CHUNKS = 9_000  # of an upload


def small(places: Places, load: Load, *, with_peers: bool = True) -> Table:
    """As shipped, in memory; then this server alone beside a program on each core that never pauses."""
    entries = {name: Entry(partial(ours, mode=Mode(), CPU_AFFINITY=value)) for name, value in _OWN.items()}
    does = dict.fromkeys(_OWN, f"{BOTH_DIGESTS}, a quota")
    if with_peers:
        entries |= {name: entry for name, (entry, _) in _STARTS.items()}
        does |= {name: done for name, (_, done) in _STARTS.items()}
    results = interleaved(places.of("quiet"), load, entries)
    lines = {}
    for name, result in results.items():
        micros = [one.cpu_per_request * 1e6 for one in result.rounds]
        cells = {
            _RATE: Cell([one.requests for one in result.rounds]),
            _COST: Cell(micros, at_most=_MOST_CPU_MICROS if name == OURS else None),
        }
        lines[name] = Line(name, does[name], cells) if micros else Line(name, does[name], problem=result.problem or "")
    for name, found in _beside_neighbours(places.of("busy"), load).items():
        lines[name].cells.update(found)
    columns = [Column(_RATE, more_is_better=True), Column(_COST)]
    columns += [Column(_BUSY_RATE, more_is_better=True), Column(_BUSY_COST), Column(_LET_GO)]
    heading = f"Chunks of {spelled(load.chunk_bytes)} over {load.connections} connections"
    return Table(heading, columns, list(lines.values()))


def _beside_neighbours(places: Places, load: Load) -> dict[str, dict[str, Cell]]:
    """In turn, once the one that has a core has let go of it."""
    rounds: dict[str, list[Round]] = {name: [] for name in _OWN}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(ours(places.memory / value, Mode(), CPU_AFFINITY=value))
            for name, value in _OWN.items()
        }
        stack.enter_context(_neighbours())
        let_go = _seconds_to_let_go(servers[OURS], load)
        for _ in range(load.rounds):
            for name, server in servers.items():
                rounds[name].append(measure(places, load, server))
                server.clear()
    cells = {
        name: {
            _BUSY_RATE: Cell([one.requests for one in each]),
            _BUSY_COST: Cell([one.cpu_per_request * 1e6 for one in each]),
        }
        for name, each in rounds.items()
    }
    if let_go is not None:
        cells[OURS][_LET_GO] = Cell([let_go])
    return cells


@contextmanager
def _neighbours() -> Iterator[None]:
    """A program on each core that never pauses."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _seconds_to_let_go(server: Ours, load: Load) -> float | None:
    """Until its event loop may run on any core, while chunks are sent; None if it never has one, or keeps it."""
    (process,) = server.pids
    if len(os.sched_getaffinity(process)) > 1:
        return None
    plan = server.plan(replace(load, chunks=min(_MOST_CHUNKS, 20 * load.chunks)))
    limit = _PATIENCE * load.limit_seconds
    with sending(replace(plan, limit_seconds=limit)):
        began = time.monotonic()
        while (passed := time.monotonic() - began) < limit and len(os.sched_getaffinity(process)) == 1:
            time.sleep(_LOOK_SECONDS)
    server.clear()
    return passed if len(os.sched_getaffinity(process)) > 1 else None
