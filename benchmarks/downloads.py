"""A large file taken by curl, whole over one connection, and in four ranges at once: from this server, which compares each
block with its checksum before it sends it, from this server without that, and from nginx.

All is in the cache of a disk: what the disk itself takes is the same for all.
"""

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.ingest import peers
from benchmarks.ingest.installing import NotAvailable
from benchmarks.ingest.load import content_of
from benchmarks.ingest.ours import Mode, ours
from benchmarks.ingest.places import Places
from benchmarks.ingest.processes import cpu_seconds, wait_until_quiet
from benchmarks.ingest.rounds import reason
from benchmarks.ingest.scale import GIB, MIB
from benchmarks.storage.client import Connection
from benchmarks.tables import OURS, Cell, Column, Line, Table

_RANGES = 4
_CHUNK_BYTES = 8 * MIB
_WHOLE, _IN_RANGES = "whole", f"{_RANGES} ranges"
_NGINX, _VERIFIED, _PLAIN = "nginx", OURS, f"{OURS}, `UPLOADER_VERIFY_READS=off`"
_DOES = {_NGINX: "compares nothing", _VERIFIED: "compares each block with its checksum", _PLAIN: "compares nothing"}
# CPU seconds for a GiB.
_MOST_CPU: Mapping[str, Mapping[str, float]] = {
    _VERIFIED: {_WHOLE: 0.6, _IN_RANGES: 0.48},
    _PLAIN: {_WHOLE: 0.45, _IN_RANGES: 0.35},
}


@dataclass
class Source:
    """A server that has the file."""

    url: str
    size: int
    pids: Sequence[int]
    headers: Sequence[str] = ()
    rates: dict[str, list[float]] = field(default_factory=dict)
    costs: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, *, counts: bool) -> None:
        length = self.size // _RANGES
        ranges = [["-r", f"{start}-{start + length - 1}"] for start in range(0, self.size, length)]
        for way, options in ((_WHOLE, [[]]), (_IN_RANGES, ranges)):
            wait_until_quiet(self.pids)
            used, began = cpu_seconds(self.pids), time.perf_counter()
            taking = [subprocess.Popen(self._command(each), stderr=subprocess.PIPE) for each in options]
            problems = [each.communicate()[1] for each in taking]
            seconds = time.perf_counter() - began
            if any(each.returncode for each in taking):
                raise RuntimeError(b" ".join(problems).decode(errors="replace"))
            wait_until_quiet(self.pids)
            if counts:
                self.rates.setdefault(way, []).append(self.size / 1e6 / seconds)
                self.costs.setdefault(way, []).append((cpu_seconds(self.pids) - used) * GIB / self.size)

    def _command(self, options: Sequence[str]) -> list[str]:
        headers = [word for header in self.headers for word in ("-H", header)]
        return ["curl", "-sSf", "-o", "/dev/null", *options, *headers, self.url]


@contextmanager
def _from_us(directory: Path, size: int, verify_reads: str) -> Iterator[Source]:
    with ours(directory, Mode(), users=1, VERIFY_READS=verify_reads) as server:
        bearer = server.bearer(0)
        with Connection(server.port) as connection:
            upload_id = server.open(connection, bearer, _CHUNK_BYTES, size // _CHUNK_BYTES)
            for number in range(size // _CHUNK_BYTES):
                content = content_of(_CHUNK_BYTES, number)
                path = f"/uploads/{upload_id}/chunks/{number}"
                reply = connection.expect({200, 201}, "PUT", path, content, bearer)
            place = f"/me/files/{reply.json()['file']['id']}/content"
        header = f"Authorization: {bearer['Authorization']}"
        yield Source(f"http://127.0.0.1:{server.port}{place}", size, server.pids, [header])


@contextmanager
def _from_nginx(directory: Path, size: int) -> Iterator[Source]:
    with peers.nginx(directory, tuned=True) as server:
        with (server.files / "large").open("wb") as file:
            for number in range(size // _CHUNK_BYTES):
                file.write(content_of(_CHUNK_BYTES, number))
        yield Source(f"http://127.0.0.1:{server.port}/large", size, server.pids)


def measure(places: Places, size: int, rounds: int, *, with_peers: bool = True) -> Table:
    """Rounds of all in turn, after one that does not count. `size` is a multiple of 8 MiB."""
    starts: dict[str, Callable[[Path], AbstractContextManager[Source]]] = {
        _VERIFIED: lambda directory: _from_us(directory, size, "on"),
        _PLAIN: lambda directory: _from_us(directory, size, "off"),
    }
    if with_peers:
        starts[_NGINX] = lambda directory: _from_nginx(directory, size)
    problems: dict[str, str] = {}
    with ExitStack() as stack:
        sources: dict[str, Source] = {}
        for number, (name, start) in enumerate(starts.items()):
            try:
                sources[name] = stack.enter_context(start(places.disk / str(number)))
            except (NotAvailable, RuntimeError, OSError) as error:
                problems[name] = reason(error)
        for number in range(rounds + 1):
            for source in sources.values():
                source.measure(counts=number > 0)
    lines = [Line(name, _DOES[name], _cells(name, sources.get(name)), problems.get(name, "")) for name in starts]
    columns = [
        Column(f"{way}, {unit}", is_better)
        for way in (_WHOLE, _IN_RANGES)
        for unit, is_better in (("MB/s", True), ("CPU s/GiB", False))
    ]
    return Table("Downloads", columns, lines)


def _cells(name: str, source: Source | None) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    if source is None:
        return cells
    for way, rates in source.rates.items():
        cells[f"{way}, MB/s"] = Cell(rates)
        cells[f"{way}, CPU s/GiB"] = Cell(source.costs[way], at_most=_MOST_CPU.get(name, {}).get(way))
    return cells
