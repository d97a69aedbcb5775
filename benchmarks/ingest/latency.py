"""How long a small request takes while uploads run flat out."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from benchmarks.ingest.load import sending
from benchmarks.ingest.ours import Mode, Ours, ours
from benchmarks.ingest.places import Places
from benchmarks.ingest.scale import Scale, spelled
from benchmarks.report import Row, amount, at_most, compared, percentile
from benchmarks.storage.client import Connection

_MOST_MS = 20.0
_PAUSE_SECONDS = 0.004
# Of the time of a load, so that it runs all the while.
_SHARE = 0.8


def latency(places: Places, scale: Scale) -> list[Row]:
    """Of a server as shipped, on the disk, over a connection that is kept."""
    rows = []
    with ours(places.disk / "latency", Mode()) as server:
        rows.append(compared("GET /livez, p99, no uploads", [_p99_ms(_ask(server, scale.busy[0].limit_seconds))], "ms"))
        for load in scale.busy:
            measured = []
            for _ in range(load.rounds):
                places.warm(load.chunk_bytes * load.connections)
                plan = replace(server.plan(load), limit_seconds=load.limit_seconds)
                with sending(plan) as under_way:
                    time.sleep((1 - _SHARE) * load.limit_seconds / 2)
                    measured.append(_ask(server, _SHARE * load.limit_seconds))
                    outcome = under_way.outcome()
                server.clear()
            figure = f"GET /livez, p99, beside {load.connections} connections with {spelled(load.chunk_bytes)} chunks"
            more = f"median {amount(percentile([ms for one in measured for ms in one], 0.5))} ms; "
            more += f"{amount(outcome.body_bytes / 1e6 / outcome.seconds)} MB/s meanwhile"
            rows.append(at_most(figure, _MOST_MS, [_p99_ms(one) for one in measured], "ms", more))
    return rows


def _ask(server: Ours, seconds: float) -> list[float]:
    """The milliseconds of each answer."""
    took, until = [], time.perf_counter() + seconds
    with Connection(server.port) as connection, _first_on_a_core():
        while time.perf_counter() < until:
            begin = time.perf_counter()
            connection.expect({200}, "GET", "/livez")
            took.append((time.perf_counter() - begin) * 1000)
            time.sleep(_PAUSE_SECONDS)
    return took


def _p99_ms(took: list[float]) -> float:
    return percentile(took, 0.99)


@contextmanager
def _first_on_a_core() -> Iterator[None]:
    """Who asks never waits for a core, as on a machine of its own. Needs root: others wait with the server."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
