"""What a small file costs the server, by each way in which it gets there."""

import statistics
from collections.abc import Mapping
from pathlib import Path

from benchmarks.ingest import processes
from benchmarks.ingest.load import LoadFailed, Plan, send
from benchmarks.ingest.ours import Mode, Ours, ours
from benchmarks.ingest.places import Places
from benchmarks.ingest.rounds import reason
from benchmarks.report import Row, amount, at_most
from benchmarks.small_files.pairs import of
from benchmarks.small_files.scale import Scale
from benchmarks.small_files.ways import Way, batch, one_request, opened_and_sent

# The most CPU, in ms.
_TARGETS = {"a batch": 0.8, "one request": 1.6, "opened and sent": 5.0}
_WAYS: Mapping[str, Way] = {"a batch": batch, "one request": one_request, "opened and sent": opened_and_sent}


def costs(places: Places, scale: Scale) -> list[Row]:
    """CPU of the server, its Valkey included, as shipped."""
    rows = _rows("in memory", places.memory / "memory", scale)
    return [*_rows("on the disk", places.disk / "disk", scale), *rows] if scale.both_places else rows


def _rows(where: str, directory: Path, scale: Scale) -> list[Row]:
    cpu_ms: dict[str, list[float]] = {name: [] for name in _WAYS}
    rates: dict[str, list[float]] = {name: [] for name in _WAYS}
    problems: dict[str, str] = {}
    with ours(directory, Mode(), users=1) as server:
        for _ in range(scale.cost_rounds):
            for name, way in _WAYS.items():
                try:
                    cpu, seconds = _measure(server, way, scale)
                except (LoadFailed, RuntimeError, OSError) as error:
                    problems[name] = reason(error)
                    continue
                cpu_ms[name].append(cpu / scale.sent * 1000)
                rates[name].append(scale.sent / seconds)
    rows = []
    for name, target in _TARGETS.items():
        figure = f"CPU of a file of 4 KiB, {where}: {name}"
        if name in problems:
            rows.append(Row(figure, f"≤ {target} ms", f"not available: {problems[name]}", met=False))
            continue
        more = f"{amount(statistics.median(rates[name]))} files/s"
        rows.append(at_most(figure, target, cpu_ms[name], "ms", more))
    return rows


def _measure(server: Ours, way: Way, scale: Scale) -> tuple[float, float]:
    """CPU until nothing is left to do, and seconds until the last answer. Raises LoadFailed, RuntimeError."""
    plan = Plan(server.port, way(scale.sent, scale.batch_members, server.bearer(0)))
    stored = of(server).stored
    processes.wait_until_quiet(server.pids)
    files_before, before = stored(), processes.cpu_seconds(server.pids)
    outcome = send(plan)
    processes.wait_until_quiet(server.pids)
    cpu = processes.cpu_seconds(server.pids) - before
    if (files := stored() - files_before) != scale.sent:
        raise RuntimeError(f"{files} of {scale.sent} files were stored")
    return cpu, outcome.seconds
