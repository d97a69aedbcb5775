"""Contenders measured in turn, so that all meet the same noise; the row of one that can't take part says why."""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.ingest import processes
from benchmarks.ingest.contender import Contender
from benchmarks.ingest.installing import NotAvailable
from benchmarks.ingest.load import LoadFailed, Outcome, send
from benchmarks.ingest.places import Places
from benchmarks.ingest.scale import GIB, Load
from benchmarks.report import Row, amount, compared, percentile

Start = Callable[[Path], AbstractContextManager[Contender]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender before it is started: where it keeps its bytes, and how it is started in a directory."""

    start: Start
    on_disk: bool = False


@dataclass(slots=True)
class Result:
    """What became of one contender in all rounds."""

    requests: int
    total_bytes: int
    seconds: list[float] = field(default_factory=list)
    # From the last answer until it had nothing left to do.
    lag_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    generator_shares: list[float] = field(default_factory=list)
    took_seconds: list[float] = field(default_factory=list)
    problem: str | None = None

    @property
    def rates(self) -> list[float]:
        """MB/s until the last answer."""
        return [self.total_bytes / 1e6 / seconds for seconds in self.seconds]

    @property
    def cpu_per_gib(self) -> list[float]:
        return [seconds * GIB / self.total_bytes for seconds in self.cpu_seconds]

    @property
    def requests_per_second(self) -> list[float]:
        return [self.requests / seconds for seconds in self.seconds]

    def add(self, outcome: Outcome, cpu_seconds: float, lag_seconds: float) -> None:
        self.seconds.append(outcome.seconds)
        self.lag_seconds.append(lag_seconds)
        self.cpu_seconds.append(cpu_seconds)
        self.generator_shares.append(outcome.cpu_seconds / outcome.seconds)
        self.took_seconds += outcome.took_seconds

    def large_row(self, name: str) -> Row:
        """Throughput, and what it cost."""
        if not self.seconds:
            return Row(name, "–", f"not available: {self.problem}")
        costs = f"{_spread(self.cpu_per_gib)} CPU s/GiB; load generator {self._generator()}"
        lag = statistics.median(self.lag_seconds)
        if lag > 0.3:
            done = [
                self.total_bytes / 1e6 / (one + two) for one, two in zip(self.seconds, self.lag_seconds, strict=True)
            ]
            costs += f"; {amount(statistics.median(done))} MB/s until the digests were done, too"
        return compared(name, self.rates, "MB/s", costs)

    def small_row(self, name: str) -> Row:
        """Requests, and what they cost."""
        if not self.seconds:
            return Row(name, "–", f"not available: {self.problem}")
        micros = [seconds * 1e6 / self.requests for seconds in self.cpu_seconds]
        p99 = percentile(self.took_seconds, 0.99) * 1000
        costs = f"{_spread(micros)} CPU µs each; p99 {amount(p99)} ms; load generator {self._generator()}"
        return compared(name, self.requests_per_second, "requests/s", costs)

    def _generator(self) -> str:
        return f"{max(self.generator_shares):.0%} of a core"


def _spread(values: Sequence[float]) -> str:
    return f"{amount(statistics.median(values))} ({amount(min(values))} to {amount(max(values))})"


def interleaved(places: Places, load: Load, entries: Mapping[str, Entry]) -> dict[str, Result]:
    """Every contender that can be had, in turn, `load.rounds` times."""
    results = {name: Result(load.connections * load.chunks, load.total_bytes) for name in entries}
    with ExitStack() as stack:
        running: dict[str, Contender] = {}
        for number, (name, entry) in enumerate(entries.items()):
            directory = (places.disk if entry.on_disk else places.memory) / str(number)
            try:
                running[name] = stack.enter_context(entry.start(directory))
            except (NotAvailable, RuntimeError, OSError, AssertionError) as error:
                results[name].problem = str(error).strip().partition("\n")[0]
        for _ in range(load.rounds):
            for name, contender in list(running.items()):
                if not _measure(places, load, contender, results[name], on_disk=entries[name].on_disk):
                    del running[name]
    return results


def _measure(places: Places, load: Load, contender: Contender, result: Result, *, on_disk: bool) -> bool:
    """One round; whether there can be another one."""
    try:
        plan = contender.plan(load)
        places.warm(load.total_bytes)
        if on_disk:
            os.sync()
        processes.wait_until_quiet(contender.pids)
        before = processes.cpu_seconds(contender.pids)
        outcome = send(plan)
        lag = processes.wait_until_quiet(contender.pids)
        result.add(outcome, processes.cpu_seconds(contender.pids) - before, lag)
        contender.clear()
    except (LoadFailed, RuntimeError, OSError) as error:
        result.problem = str(error).strip().partition("\n")[0][:900]
        return False
    return True
