"""Large chunks: how many bytes a second, and what a GiB costs the processor."""

import statistics
from collections.abc import Collection, Mapping
from functools import partial

from benchmarks.ingest import peers
from benchmarks.ingest.ours import Mode, ours
from benchmarks.ingest.places import Places
from benchmarks.ingest.rounds import Entry, Result, interleaved, rates_to
from benchmarks.ingest.scale import GIB, Scale
from benchmarks.report import Row, at_least, at_most, compared
from benchmarks.storage.hashing import bare_seconds

_BARE, _NAIVE = "bare receiving", "Starlette and aiofiles, the naive way"
_TUNED, _AS_SHIPPED = "nginx dav, tuned", "nginx dav, as shipped"
_TUSPYSERVER, _TUS_NODE = "tuspyserver", "@tus/server"
_ON_DISK = ", on the disk"
_UNDIGESTED = Mode(durability="process", digests=False)
_MODES = (_UNDIGESTED, Mode(digests=False), Mode(durability="process"), Mode(), Mode(workers=2))
_ON_DISK_MODES = (Mode(digests=False), Mode(), Mode(workers=2))
_TARGETS = (
    (_TUNED, 1.0),
    (_AS_SHIPPED, 1.5),
    (_TUSPYSERVER, 2.5),
    (_TUS_NODE, 2.5),
)
_MOST_CPU = 1.15


def _ours(mode: Mode) -> str:
    return f"this server, {mode}"


def entries(scale: Scale) -> dict[str, Entry]:
    """All contenders, by name."""
    whole = partial(peers.bare, buffer_bytes=scale.large.chunk_bytes)
    found = {
        _BARE: Entry(peers.bare),
        f"{_BARE}, each body whole": Entry(whole),
        f"{_BARE}, each body whole and hashed": Entry(partial(whole, hashed=True)),
        _NAIVE: Entry(peers.naive),
    }
    if scale.peers:
        found |= {
            _TUNED: Entry(partial(peers.nginx, tuned=True)),
            _AS_SHIPPED: Entry(partial(peers.nginx, tuned=False)),
            _TUSPYSERVER: Entry(peers.tuspyserver),
            _TUS_NODE: Entry(peers.tus_node),
            "copyparty": Entry(peers.copyparty),
        }
    found |= {_ours(mode): Entry(partial(ours, mode=mode)) for mode in _MODES}
    if not scale.on_disk:
        return found
    found[_BARE + _ON_DISK] = Entry(peers.bare, on_disk=True)
    if scale.peers:
        found |= {
            _TUSPYSERVER + _ON_DISK: Entry(peers.tuspyserver, on_disk=True),
            _TUS_NODE + _ON_DISK: Entry(peers.tus_node, on_disk=True),
        }
    return found | {_ours(mode) + _ON_DISK: Entry(partial(ours, mode=mode), on_disk=True) for mode in _ON_DISK_MODES}


def large(places: Places, scale: Scale, only: Collection[str] = ()) -> list[Row]:
    """`only`: contenders whose name contains one of these."""
    taking_part = {
        name: entry for name, entry in entries(scale).items() if not only or any(part in name for part in only)
    }
    hashing = [bare_seconds(scale.hashed_bytes) * GIB / scale.hashed_bytes for _ in range(scale.large.rounds)]
    results = interleaved(places, scale.large, taking_part)
    rows = [result.large_row(name) for name, result in results.items()]
    return [
        compared("CPU of both digests, bare hashlib", hashing, "s/GiB"),
        *rows,
        *_throughput(results),
        *_costs(results, hashing),
    ]


def _throughput(results: Mapping[str, Result]) -> list[Row]:
    pairs = [(_ours(_UNDIGESTED), peer, target) for peer, target in _TARGETS]
    two = _ours(Mode(workers=2))
    for place in ("", _ON_DISK):
        pairs += [(two + place, peer + place, 1.0) for peer in (_TUSPYSERVER, _TUS_NODE)]
    rows = []
    for one, other, target in pairs:
        if measured := rates_to(results, one, other):
            rows.append(at_least(f"{one}, to {other}", target, measured, "times"))
    return rows


def _costs(results: Mapping[str, Result], hashing: list[float]) -> list[Row]:
    """CPU for each GiB as shipped, against what hashing and receiving cost by themselves."""
    rows = []
    for place in ("", _ON_DISK):
        mine, bare = (results.get(name + place) for name in (_ours(Mode()), _BARE))
        if mine is None or bare is None or not mine.rounds or not bare.rounds:
            continue
        bound = statistics.median(hashing) + statistics.median(one.cpu_per_gib for one in bare.rounds)
        measured = [one.cpu_per_gib / bound for one in mine.rounds]
        rows.append(at_most(f"CPU as shipped{place}, to hashing and bare receiving", _MOST_CPU, measured, "times"))
    return rows
