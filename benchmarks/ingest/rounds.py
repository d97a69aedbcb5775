"""Contenders measured in turn, so that all meet the same noise; the row of one that can't take part says why."""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a contender."""

    outcome: Outcome
    cpu_seconds: float
    # Of it, in the kernel.
    kernel_seconds: float
    # From the last answer until it had nothing left to do.
    lag_seconds: float

    @property
    def rate(self) -> float:
        """MB/s until the last answer."""
        return self.outcome.body_bytes / 1e6 / self.outcome.seconds

    @property
    def rate_until_quiet(self) -> float:
        """MB/s until nothing was left to do."""
        return self.outcome.body_bytes / 1e6 / (self.outcome.seconds + self.lag_seconds)

    @property
    def requests(self) -> float:
        """Requests a second."""
        return len(self.outcome.took_seconds) / self.outcome.seconds

    @property
    def cpu_per_gib(self) -> float:
        return self.cpu_seconds * GIB / self.outcome.body_bytes

    @property
    def kernel_per_gib(self) -> float:
        return self.kernel_seconds * GIB / self.outcome.body_bytes

    @property
    def cpu_per_request(self) -> float:
        return self.cpu_seconds / len(self.outcome.took_seconds)


@dataclass(slots=True)
class Result:
    """What became of one contender in all rounds, or why it could not go on."""

    rounds: list[Round] = field(default_factory=list)
    problem: str | None = None

    def small_row(self, name: str) -> Row:
        """Requests, and what they cost."""
        if not self.rounds:
            return Row(name, "–", f"not available: {self.problem}")
        micros = [one.cpu_per_request * 1e6 for one in self.rounds]
        p99 = percentile([seconds for one in self.rounds for seconds in one.outcome.took_seconds], 0.99) * 1000
        costs = f"{_spread(micros)} CPU µs each; p99 {amount(p99)} ms; load generator {self._generator()}"
        return compared(name, [one.requests for one in self.rounds], "requests/s", costs)

    def _generator(self) -> str:
        share = max(one.outcome.cpu_seconds / one.outcome.seconds for one in self.rounds)
        return f"{share:.0%} of a core"


def _spread(values: Sequence[float]) -> str:
    return f"{amount(statistics.median(values))} ({amount(min(values))} to {amount(max(values))})"


def interleaved(places: Places, load: Load, entries: Mapping[str, Entry]) -> dict[str, Result]:
    """Every contender that can be had, in turn, `load.rounds` times."""
    return interleaved_loads(places, [load], entries)[0]


def interleaved_loads(
    places: Places, loads: Sequence[Load], entries: Mapping[str, Entry]
) -> Sequence[dict[str, Result]]:
    """Every contender that can be had, in turn, with all loads one after the other; as often as the first load says."""
    results = [{name: Result() for name in entries} for _ in loads]
    with ExitStack() as stack:
        running: dict[str, Contender] = {}
        for number, (name, entry) in enumerate(entries.items()):
            directory = (places.disk if entry.on_disk else places.memory) / str(number)
            try:
                running[name] = stack.enter_context(entry.start(directory))
            except (NotAvailable, RuntimeError, OSError, AssertionError) as error:
                for each in results:
                    each[name].problem = reason(error)
        until = time.monotonic() + sum(load.budget_seconds for load in loads)
        for number in range(loads[0].rounds):
            if number and time.monotonic() > until:
                break
            for name, contender in list(running.items()):
                pairs = zip(loads, results, strict=True)
                is_on_disk = entries[name].on_disk
                if not all(_measure(places, load, contender, each[name], on_disk=is_on_disk) for load, each in pairs):
                    del running[name]
    return results


def _measure(places: Places, load: Load, contender: Contender, result: Result, *, on_disk: bool) -> bool:
    """One round; whether there can be another one."""
    try:
        result.rounds.append(measure(places, load, contender, on_disk=on_disk))
        contender.clear()
    except (LoadFailed, RuntimeError, OSError) as error:
        result.problem = reason(error)
        return False
    return True


def measure(places: Places, load: Load, contender: Contender, *, on_disk: bool = False) -> Round:
    """One round, in warm memory, of a server that has nothing else to do. Raises LoadFailed."""
    plan = contender.plan(load)
    if on_disk:
        os.sync()
    processes.wait_until_quiet(contender.pids)
    # Last: some machines give memory that is free back to their host within seconds. For what is stored, and for bodies.
    places.warm(2 * load.total_bytes)
    before, kernel_before = _used(contender)
    outcome = send(replace(plan, limit_seconds=load.limit_seconds))
    lag = processes.wait_until_quiet(contender.pids)
    after, kernel_after = _used(contender)
    return Round(outcome, after - before, kernel_after - kernel_before, lag)


def _used(contender: Contender) -> tuple[float, float]:
    """Return its CPU, and what of it was in the kernel."""
    return processes.cpu_seconds(contender.pids), processes.kernel_seconds(contender.pids)


def reason(error: BaseException) -> str:
    """What went wrong, in one line that fits into a table."""
    return " ".join(f"{type(error).__name__}: {error}".replace("|", "/").split())[:300]
