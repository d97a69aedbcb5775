"""What the server holds in memory: with bodies of many users on their way, and with connections that do nothing."""

from dataclasses import replace

from benchmarks.ingest import processes
from benchmarks.ingest.load import Plan, Request, head, holding
from benchmarks.ingest.ours import Mode, ours
from benchmarks.ingest.places import Places
from benchmarks.ingest.scale import MIB, Scale, spelled
from benchmarks.report import Row, amount, at_most
from uploader.settings import Settings

_BEYOND_BUDGET_MIB = 100
_IDLE_MIB = 150.0
_USERS = 16


def memory(places: Places, scale: Scale) -> list[Row]:
    """Of a server as shipped: of its process where the body budget is the measure, with its Valkey where all is."""
    return [_with_bodies(places, scale), _with_idle_connections(places, scale)]


def _with_bodies(places: Places, scale: Scale) -> Row:
    load, held = scale.held, []
    with ours(places.memory / "bodies", Mode(), users=_USERS) as server:
        for _ in range(load.rounds):
            with holding(replace(server.plan(load), held_bytes=1)):
                processes.wait_until_quiet(server.pids)
                held.append(processes.resident_bytes(server.pids) / MIB)
            server.clear()
        peak = processes.resident_bytes(server.pids, peak=True, alone=True) / MIB
        with_valkey = processes.resident_bytes(server.pids, peak=True) / MIB
    budget = Settings().body_budget_bytes / MIB
    figure = f"memory at {load.connections} chunks of {spelled(load.chunk_bytes)} of {_USERS} users at once, at most"
    more = (
        f"{amount(with_valkey)} MiB with its Valkey, {amount(max(held))} MiB of that when all had come but for their last "
        f"bytes; body budget {amount(budget)} MiB"
    )
    return at_most(figure, budget + _BEYOND_BUDGET_MIB, [peak], "MiB", more)


def _with_idle_connections(places: Places, scale: Scale) -> Row:
    with ours(places.memory / "idle", Mode(), users=1) as server:
        before = processes.resident_bytes(server.pids) / MIB
        ask = [Request(head("GET", "/livez", 0), 0)]
        with holding(Plan(server.port, [ask] * scale.idle_connections, stays=True)):
            after = processes.resident_bytes(server.pids) / MIB
    figure = f"memory at {scale.idle_connections:,} idle connections"
    return at_most(figure, _IDLE_MIB, [after], "MiB", f"{amount(before)} MiB without them")
