"""Whole files by tus, each in one large PATCH, beside other tus servers.

This server as it is shipped: what it answers is durable, hashed and accounted for, and a file. Afterwards the SHA-256 of all
files is compared, also of those of the others.
"""

import hashlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.ingest import peers
from benchmarks.ingest.contender import TusContender
from benchmarks.ingest.load import Plan, Request, content_of, head
from benchmarks.ingest.ours import Mode, ours
from benchmarks.ingest.places import Places
from benchmarks.ingest.rounds import Entry, Start, interleaved
from benchmarks.ingest.scale import Load
from benchmarks.storage.client import Connection
from benchmarks.tables import OURS, RESUMES, Cell, Column, Line, Table

_IN_MEMORY, _ON_DISK = "in memory", "on the disk"
_WE_DO = "SHA-256, synced, resumes"
# Of tuspyserver's rate; CPU seconds for a GiB.
_TIMES, _MOST_CPU = 1.5, 1.9
_SEED = 1
# So that files differ, though all begin alike.
_STEP_BYTES = 64 << 10
_TUS = {"Tus-Resumable": "1.0.0"}
_PATCHING = {**_TUS, "Content-Type": "application/offset+octet-stream", "Upload-Offset": "0"}


@dataclass(frozen=True, slots=True)
class Whole:
    """A running tus server that is sent whole files."""

    port: int
    pids: Sequence[int]
    # Where uploads are made, and who makes them, by the number of the connection.
    path: str
    caller: Callable[[int], Mapping[str, str]]
    # Of the files that it has.
    sha256s: Callable[[], set[str]]
    remove: Callable[[], None]
    sent: set[str]

    def plan(self, load: Load) -> Plan:
        content = memoryview(content_of(load.chunk_bytes, _SEED))
        lengths = [load.chunk_bytes - number * _STEP_BYTES for number in range(load.connections)]
        self.sent.clear()
        self.sent.update(hashlib.sha256(content[:length]).hexdigest() for length in lengths)
        return Plan(self.port, [[self._patch(*each)] for each in enumerate(lengths)], seed=_SEED)

    def _patch(self, number: int, length: int) -> Request:
        caller = self.caller(number)
        with Connection(self.port) as connection:
            opening = {**_TUS, **caller, "Upload-Length": str(length)}
            reply = connection.expect({201}, "POST", self.path, b"", opening)
        path = "/" + reply.headers["location"].split("/", 3)[3]
        return Request(head("PATCH", path, length, {**_PATCHING, **caller}), length)

    def clear(self) -> None:
        """Raises RuntimeError if what it has is not what was sent."""
        if not self.sent <= self.sha256s():
            raise RuntimeError("a file is not what was sent")
        self.remove()


@contextmanager
def _whole_peer(start: Callable[[Path], AbstractContextManager[TusContender]], directory: Path) -> Iterator[Whole]:
    with start(directory) as server:

        def sha256s() -> set[str]:
            return {_sha256_of(path) for path in server.files.rglob("*") if path.is_file()}

        yield Whole(server.port, server.pids, "/files", lambda _: {}, sha256s, server.clear, set())


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _whole_ours(directory: Path, *, workers: int = 1, durability: str = "power") -> Iterator[Whole]:
    """As shipped, but that what a round leaves is removed at once."""
    with ours(directory, Mode(workers=workers, durability=durability), users=1, TRASH_RETENTION="0s") as server:

        def files(connection: Connection) -> list[dict[str, str]]:
            found: list[dict[str, str]] = connection.expect({200}, "GET", "/me/files", b"", server.bearer(0)).json()[
                "files"
            ]
            return found

        def sha256s() -> set[str]:
            with Connection(server.port) as connection:
                return {file["sha256"] for file in files(connection)}

        def remove() -> None:
            with Connection(server.port) as connection:
                for file in files(connection):
                    connection.expect({204}, "DELETE", f"/me/files/{file['id']}", b"", server.bearer(0))

        yield Whole(server.port, server.pids, "/resumable", server.bearer, sha256s, remove, set())


_STARTS: Mapping[str, tuple[Start, str]] = {
    OURS: (_whole_ours, _WE_DO),
    f"{OURS}, 2 workers": (partial(_whole_ours, workers=2), _WE_DO),
    "tuspyserver": (partial(_whole_peer, peers.tuspyserver), RESUMES),
    "@tus/server": (partial(_whole_peer, peers.tus_node), RESUMES),
}


def measure(places: Places, load: Load, *, with_peers: bool = True) -> Table:
    """In memory, and on the disk, where a sync costs something."""
    entries = {
        (name, where): Entry(start, on_disk=where == _ON_DISK)
        for where in (_IN_MEMORY, _ON_DISK)
        for name, (start, _) in _STARTS.items()
        if with_peers or name.startswith(OURS)
    }
    results = interleaved(places, load, {", ".join(key): entry for key, entry in entries.items()})
    lines = {name: Line(name, _STARTS[name][1]) for name, _ in entries}
    for name, where in entries:
        result = results[f"{name}, {where}"]
        if not result.rounds:
            lines[name] = replace(lines[name], problem=result.problem or "")
            continue
        peer = results.get(f"tuspyserver, {where}")
        least = _TIMES * statistics.median(one.rate for one in peer.rounds) if peer and peer.rounds else None
        most = _MOST_CPU if where == _IN_MEMORY else None
        is_judged = name == OURS
        lines[name].cells[f"{where}, MB/s"] = Cell(
            [one.rate for one in result.rounds], at_least=least if is_judged else None
        )
        lines[name].cells[f"{where}, CPU s/GiB"] = Cell(
            [one.cpu_per_gib for one in result.rounds], at_most=most if is_judged else None
        )
    columns = [
        Column(f"{where}, {unit}", is_better)
        for where in (_IN_MEMORY, _ON_DISK)
        for unit, is_better in (("MB/s", True), ("CPU s/GiB", False))
    ]
    return Table("One file in one PATCH", columns, list(lines.values()))
