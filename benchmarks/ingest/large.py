"""Large chunks over few connections and many: how many bytes a second, and what a GiB costs the processor."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.ingest import peers
from benchmarks.ingest.ours import Mode, ours
from benchmarks.ingest.places import Places
from benchmarks.ingest.rounds import Entry, Result, interleaved_loads
from benchmarks.ingest.scale import Load, spelled
from benchmarks.tables import BOTH_DIGESTS, NOTHING, OURS, RESUMES, Cell, Column, Line, Table

_UNDIGESTED, _NGINX, _TUSPYSERVER = f"{OURS}, digests off", "nginx dav", "tuspyserver"
# Contenders, with what they do with the bytes beside storing them.
_OWN = {
    OURS: (Entry(partial(ours, mode=Mode())), BOTH_DIGESTS),
    f"{OURS}, without lanes": (Entry(partial(ours, mode=Mode(lanes=False))), BOTH_DIGESTS),
    _UNDIGESTED: (Entry(partial(ours, mode=Mode(digests=False))), "no digest, synced, resumes"),
}
_PEERS = {
    _NGINX: (Entry(partial(peers.nginx, tuned=True)), NOTHING),
    "copyparty": (Entry(peers.copyparty), NOTHING),
    _TUSPYSERVER: (Entry(peers.tuspyserver), RESUMES),
    "@tus/server": (Entry(peers.tus_node), RESUMES),
}
# By connections: CPU seconds for a GiB, and MB/s until the digests are done.
_MOST_CPU = {OURS: {4: 3.0, 16: 2.7}, _UNDIGESTED: {4: 0.85, 16: 0.95}}
_LEAST_DIGESTED = {OURS: {16: 480.0}}
# How many times the rate of a peer.
_LEAST_TIMES = {OURS: (_TUSPYSERVER, 1.0), _UNDIGESTED: (_NGINX, 0.9)}


def large(places: Places, load: Load, connections: Sequence[int], *, with_peers: bool = True) -> Table:
    """As many bytes as `load` has, over each of these numbers of connections; in memory."""
    hashing = partial(peers.bare, buffer_bytes=load.chunk_bytes, hashed=True)
    contenders = {**_OWN, "receives and hashes, no more": (Entry(hashing), "MD5, SHA-256, no sync")}
    contenders |= _PEERS if with_peers else {}
    lines = {name: Line(name, does) for name, (_, does) in contenders.items()}
    loads = [
        replace(load, connections=count, chunks=max(1, load.connections * load.chunks // count))
        for count in connections
    ]
    results = interleaved_loads(places, loads, {name: entry for name, (entry, _) in contenders.items()})
    for count, each in zip(connections, results, strict=True):
        for name, result in each.items():
            if result.rounds:
                lines[name].cells.update(_cells(count, name, each))
            else:
                lines[name] = replace(lines[name], problem=result.problem or "")
    beyond = f"kernel s/GiB, {connections[-1]} beyond {connections[0]}"
    for name in (OURS, _UNDIGESTED):
        few, many = results[0][name].rounds, results[-1][name].rounds
        pairs = zip(few, many, strict=False)
        if more := [of_many.kernel_per_gib - of_few.kernel_per_gib for of_few, of_many in pairs]:
            lines[name].cells[beyond] = Cell(more)
    columns = [Column(_rate(count), more_is_better=True) for count in connections]
    columns += [Column(_digested(count), more_is_better=True) for count in connections]
    columns += [*(Column(_cost(count)) for count in connections), Column(beyond)]
    return Table(f"Chunks of {spelled(load.chunk_bytes)}", columns, list(lines.values()))


def _rate(connections: int) -> str:
    return f"MB/s, {connections} connections"


def _digested(connections: int) -> str:
    return f"MB/s until digested, {connections}"


def _cost(connections: int) -> str:
    return f"CPU s/GiB, {connections}"


def _cells(connections: int, name: str, results: Mapping[str, Result]) -> dict[str, Cell]:
    rounds = results[name].rounds
    peer, times = _LEAST_TIMES.get(name, ("", 0.0))
    others = [one.rate for one in results[peer].rounds] if peer in results else []
    cells = {
        _rate(connections): Cell(
            [one.rate for one in rounds], at_least=times * statistics.median(others) if others else None
        ),
        _cost(connections): Cell([one.cpu_per_gib for one in rounds], at_most=_MOST_CPU.get(name, {}).get(connections)),
    }
    if name.startswith(OURS) and name != _UNDIGESTED:
        cells[_digested(connections)] = Cell(
            [one.rate_until_quiet for one in rounds], at_least=_LEAST_DIGESTED.get(name, {}).get(connections)
        )
    return cells
