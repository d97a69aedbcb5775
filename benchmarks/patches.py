"""Whole files by tus, each in one large PATCH, beside other tus servers: `python -m benchmarks.patches`.

This server as it is shipped: what it answers is durable, hashed and accounted for, and a file. Afterwards the SHA-256 of all
files is compared, also of those of the others.
"""

import argparse
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import interpreter, report
from benchmarks.ingest import installing, peers
from benchmarks.ingest.contender import TusContender
from benchmarks.ingest.load import Plan, Request, content_of, head
from benchmarks.ingest.ours import Mode, ours
from benchmarks.ingest.places import Places, memory_directory
from benchmarks.ingest.rounds import Entry, Result, interleaved, rates_to
from benchmarks.ingest.scale import MIB, Load
from benchmarks.report import Row, at_least
from benchmarks.storage.client import Connection

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
SECTION = "patches"

FULL = Load(connections=4, chunks=1, chunk_bytes=256 * MIB, rounds=5, limit_seconds=300.0, budget_seconds=900.0)
QUICK = Load(connections=4, chunks=1, chunk_bytes=64 * MIB, rounds=1, limit_seconds=300.0)
TINY = Load(connections=2, chunks=1, chunk_bytes=MIB, rounds=1)

_OURS, _ON_DISK = "this server, as shipped", ", on the disk"
# Which syncs at the end of a file alone, and so is most like those that sync nothing.
_OURS_PROCESS = "this server, `process`"
_PEERS: dict[str, Callable[[Path], AbstractContextManager[TusContender]]] = {
    "@tus/server": peers.tus_node,
    "tuspyserver": peers.tuspyserver,
}
_TIMES = 1.5
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


def entries(*, with_peers: bool = True, on_disk: bool = True) -> dict[str, Entry]:
    """All contenders, by name."""
    found: dict[str, Entry] = {}
    for place, is_disk in (("", False), (_ON_DISK, True))[: 1 + on_disk]:
        found[_OURS + place] = Entry(_whole_ours, on_disk=is_disk)
        found[f"{_OURS}, 2 workers{place}"] = Entry(partial(_whole_ours, workers=2), on_disk=is_disk)
        if is_disk:
            found[_OURS_PROCESS + place] = Entry(partial(_whole_ours, durability="process"), on_disk=True)
        if with_peers:
            found |= {name + place: Entry(partial(_whole_peer, start), is_disk) for name, start in _PEERS.items()}
    return found


def measure(places: Places, load: Load, taking_part: Mapping[str, Entry]) -> list[Row]:
    results = interleaved(places, load, taking_part)
    return [result.large_row(name) for name, result in results.items()] + _compared(results)


def _compared(results: Mapping[str, Result]) -> list[Row]:
    rows = []
    for name, place in ((_OURS, ""), (_OURS, _ON_DISK), (_OURS_PROCESS, _ON_DISK)):
        for peer in _PEERS:
            if measured := rates_to(results, name + place, peer + place):
                rows.append(at_least(f"{name}{place}, to {peer}{place}", _TIMES, measured, "times"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.patches", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small files, one round; the page stays as it is")
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; needs 2 GiB there")
    arguments = parser.parse_args()
    interpreter.choose()
    machine = report.machine(())
    began = time.monotonic()
    with ExitStack() as stack:
        disk, memory = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-", dir=parent)))
            for parent in (arguments.directory, memory_directory() or arguments.directory)
        )
        rows = measure(Places(memory, disk), QUICK if arguments.quick else FULL, entries())
    section = f"{', '.join([machine, *installing.versions()])}.\n\n{report.table(rows)}"
    print(section, f"{time.monotonic() - began:.0f} s", sep="\n\n")
    if not arguments.quick:
        report.write(PAGE, SECTION, section)


if __name__ == "__main__":
    main()
