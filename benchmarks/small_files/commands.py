"""A folder of small files, up and down, by the command of each server's own client."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import SubprocessError

from benchmarks.ingest.installing import NotAvailable
from benchmarks.ingest.rounds import reason
from benchmarks.small_files import folders, pairs
from benchmarks.small_files.pairs import Pair, Sent, put, run
from benchmarks.tables import BOTH_DIGESTS, NOTHING, RESUMES, Cell, Column, Line, Table

_RATE, _SERVER, _CLIENT = "files/s", "server, CPU µs a file", "client, CPU µs a file"
_COLUMNS = [Column(_RATE, more_is_better=True), Column(_SERVER), Column(_CLIENT)]
Start = Callable[[Path], AbstractContextManager[Pair]]


@dataclass(frozen=True, slots=True)
class Contender:
    """How it is started in a directory, what it does beside, and the bounds of its columns, if any."""

    start: Start
    does: str
    rate: float | None = None
    server: float | None = None
    client: float | None = None

    def line(self, name: str, rounds: list[Sent], problem: str) -> Line:
        if problem or not rounds:
            return Line(name, self.does, problem=problem)
        cells = {
            _RATE: Cell([one.rate for one in rounds], at_least=self.rate),
            _SERVER: Cell([one.server_cpu_seconds * 1e6 / one.files for one in rounds], at_most=self.server),
            _CLIENT: Cell([one.cpu_seconds * 1e6 / one.files for one in rounds], at_most=self.client),
        }
        return Line(name, self.does, cells)


@dataclass
class Turns:
    """The contenders that run, in turn; why others do not, or not any more."""

    contenders: Mapping[str, Contender]
    running: dict[str, Pair] = field(default_factory=dict)
    sent: dict[str, list[Sent]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def start(self, stack: ExitStack, directory: Path) -> None:
        for number, (name, contender) in enumerate(self.contenders.items()):
            try:
                self.running[name] = stack.enter_context(contender.start(directory / str(number)))
            except (NotAvailable, RuntimeError, OSError, AssertionError, SubprocessError) as error:
                self.problems[name] = reason(error)

    def take(self, work: Callable[[Pair], Sent]) -> None:
        for name, pair in list(self.running.items()):
            try:
                self.sent.setdefault(name, []).append(work(pair))
            except (RuntimeError, OSError, SubprocessError) as error:
                self.problems[name] = reason(error)
                del self.running[name]

    def table(self, heading: str) -> Table:
        lines = [
            contender.line(name, self.sent.get(name, []), self.problems.get(name, ""))
            for name, contender in self.contenders.items()
        ]
        return Table(heading, _COLUMNS, lines)


def putting(directory: Path, files: int, rounds: int, *, with_peers: bool = True) -> Table:
    """In each round a folder of new content."""
    contenders = {"`uploader put`": Contender(pairs.uploader, BOTH_DIGESTS, rate=1000.0)}
    if with_peers:
        contenders["u2c to copyparty"] = Contender(pairs.copyparty, "SHA-512, no sync, resumes")
        contenders["tuspy to tuspyserver"] = Contender(pairs.tus, RESUMES)
    turns = Turns(contenders)
    with ExitStack() as stack:
        turns.start(stack, directory)
        for number in range(rounds):
            folder = folders.make(directory / "folder", files)
            turns.take(partial(put, folder=folder, into=f"round-{number}"))
            shutil.rmtree(folder)
    return turns.table("A folder of small files, up")


def getting(directory: Path, files: int, rounds: int, *, with_peers: bool = True) -> Table:
    """The same folder in each round, into a new directory."""
    folder = folders.make(directory / "folder", files)
    ours = Contender(partial(pairs.uploader_get, folder), "SHA-256, synced, resumes", 3000.0, 150.0, 200.0)
    contenders = {"`uploader get`": ours}
    if with_peers:
        contenders["rsync"] = Contender(partial(pairs.rsync_get, folder), "checksum, no sync, resumes")
        contenders["rclone copy"] = Contender(partial(pairs.rclone_get, folder), NOTHING)
        contenders["copyparty's tar"] = Contender(partial(pairs.tar_get, folder), NOTHING)
    turns = Turns(contenders)
    target = directory / "target"

    def take(pair: Pair) -> Sent:
        target.mkdir()
        try:
            got = run(pair, target, "", files)
            if (there := folders.count(target)) != files:
                raise RuntimeError(f"{there} of {files} files came")
            return got
        finally:
            shutil.rmtree(target)

    with ExitStack() as stack:
        turns.start(stack, directory)
        for _ in range(rounds):
            turns.take(take)
    return turns.table("A folder of small files, down")
