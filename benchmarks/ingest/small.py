"""Small chunks: how many requests a second, each of them accounted."""

from collections.abc import Collection
from functools import partial

from benchmarks.ingest import peers
from benchmarks.ingest.ours import Mode, ours
from benchmarks.ingest.per_chunk import per_chunk
from benchmarks.ingest.places import Places
from benchmarks.ingest.rounds import Entry, interleaved, rates_to
from benchmarks.ingest.scale import Scale, spelled
from benchmarks.report import Row, at_least, at_most

_NGINX, _PER_CHUNK = "nginx dav, tuned", "one UPDATE in MariaDB for each chunk"
_TUSPYSERVER, _TUS_NODE = "tuspyserver", "@tus/server"
_UNDIGESTED, _AS_SHIPPED, _HOLLOW = Mode(durability="process", digests=False), Mode(), Mode(stores=False)
_TARGETS = {
    _UNDIGESTED: {_NGINX: 0.7, _PER_CHUNK: 4.0, _TUSPYSERVER: 5.0, _TUS_NODE: 5.0},
    _AS_SHIPPED: {_NGINX: 0.7, _PER_CHUNK: 4.0, _TUSPYSERVER: 1.8, _TUS_NODE: 5.0},
}
_MOST_CPU_MICROS = 650.0


def small(places: Places, scale: Scale, only: Collection[str] = ()) -> list[Row]:
    """`only`: contenders whose name contains one of these."""
    what = f"{spelled(scale.small.chunk_bytes)} chunks"
    entries = {
        "Starlette that stores nothing": Entry(partial(peers.naive, verb="drop")),
        "Starlette and aiofiles, the naive way": Entry(peers.naive),
        _PER_CHUNK: Entry(per_chunk),
    }
    if scale.peers:
        entries |= {
            _NGINX: Entry(partial(peers.nginx, tuned=True)),
            _TUSPYSERVER: Entry(peers.tuspyserver),
            _TUS_NODE: Entry(peers.tus_node),
        }
    entries |= {_ours(mode): Entry(partial(ours, mode=mode)) for mode in (_HOLLOW, _UNDIGESTED, _AS_SHIPPED)}
    if scale.on_disk:
        entries[f"{_ours(_AS_SHIPPED)}, on the disk"] = Entry(partial(ours, mode=_AS_SHIPPED), on_disk=True)
    taking_part = {name: entry for name, entry in entries.items() if not only or any(part in name for part in only)}
    results = interleaved(places, scale.small, taking_part)
    rows = [result.small_row(f"{what}: {name}") for name, result in results.items()]
    for mode, targets in _TARGETS.items():
        for other, target in targets.items():
            if measured := rates_to(results, _ours(mode), other):
                rows.append(at_least(f"{what}: {_ours(mode)}, to {other}", target, measured, "times"))
    if (shipped := results.get(_ours(_AS_SHIPPED))) and shipped.rounds:
        micros = [one.cpu_per_request * 1e6 for one in shipped.rounds]
        rows.append(at_most(f"{what}: {_ours(_AS_SHIPPED)}, CPU of a chunk", _MOST_CPU_MICROS, micros, "µs"))
    return rows


def _ours(mode: Mode) -> str:
    return f"this server{'' if mode is _HOLLOW else ','} {mode}"
