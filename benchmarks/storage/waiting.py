"""How long a client waits at 100 %, beside servers that concatenate."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from benchmarks.ingest.installing import NotAvailable
from benchmarks.ingest.rounds import reason
from benchmarks.storage.client import Bytes
from benchmarks.storage.concatenating import Finish, concatenator, tuspyserver
from benchmarks.storage.scale import spelled
from benchmarks.storage.uploading import delete, serving, upload
from benchmarks.tables import BOTH_DIGESTS, OURS, Cell, Column, Line, Table

_SECONDS = "from the last byte, s"


def waiting(directory: Path, chunk_size: int, size: int, rounds: int, *, with_peers: bool = True) -> Table:
    """On the disk, one connection, chunks in order; of tus, four partial uploads."""
    starts: dict[str, tuple[Callable[[Path], AbstractContextManager[Finish]], str]] = {
        OURS: (_ours, BOTH_DIGESTS),
        "concatenates, and reads again": (concatenator, "MD5, SHA-256, synced"),
    }
    if with_peers:
        starts["tuspyserver, concatenation"] = (tuspyserver, "no digest, synced, resumes")
    lines = []
    with ExitStack() as stack:
        running: dict[str, Finish] = {}
        problems: dict[str, str] = {}
        for number, (name, (start, _)) in enumerate(starts.items()):
            try:
                running[name] = stack.enter_context(start(directory / str(number)))
            except (NotAvailable, RuntimeError, OSError) as error:
                problems[name] = reason(error)
        seconds: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(rounds):
            for name, finish in running.items():
                seconds[name].append(finish(chunk_size, size))
    for name, (_, does) in starts.items():
        cells = {_SECONDS: Cell(seconds[name])} if name in seconds else {}
        lines.append(Line(name, does, cells, problems.get(name, "")))
    return Table(f"The end of an upload of {spelled(size)}", [Column(_SECONDS)], lines)


@contextmanager
def _ours(directory: Path) -> Iterator[Finish]:
    with serving(directory) as server:

        def finish(chunk_size: int, size: int) -> float:
            uploaded = upload(server.port, Bytes(chunk_size), size)
            delete(server.port, uploaded.file_id)
            return uploaded.finished_seconds

        yield finish
