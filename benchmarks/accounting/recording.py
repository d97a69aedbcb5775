"""What a recorded chunk costs Redis, under the product's delay queue and others, and how many a second there can be."""

import asyncio
import json
import statistics
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.accounting.filled import Cost, Filled, filled
from benchmarks.accounting.scale import Scale
from benchmarks.accounting.stores import first_on_a_core, valkey
from benchmarks.report import Row, amount, at_least, at_most, compared

_QUEUES = {None: "minute buckets", "single_zset": "a single ZSet", "hashed_zsets": "16 ZSets by hash"}
_CLAIMED = 300
_SHARDS = 16


async def cost(directory: Path, scale: Scale) -> list[Row]:
    """The CPU of `record_chunk` and the memory of an upload; the delay queues in turn, so that all meet the same noise."""
    with ExitStack() as stack:

        def fill(name: str, count: int, **more: Any) -> Filled:
            return stack.enter_context(filled(directory / name, count, **more))

        few = fill("few", scale.few_pending)
        many = {label: fill(label, scale.pending, queue=queue) for queue, label in _QUEUES.items()}
        servers = {"few": few, **many}
        if scale.sharded_pending:
            servers["sharded"] = fill("sharded", scale.sharded_pending, shards=_SHARDS)
        for server in servers.values():
            server.record(scale.records)  # warm
        costs: dict[str, list[Cost]] = {name: [] for name in servers}
        handled: dict[str, list[tuple[float, float]]] = {label: [] for label in many}
        for _ in range(scale.rounds):
            for name, server in servers.items():
                costs[name].append(server.record(scale.records))
            for label, server in many.items():
                handled[label].append(server.claim_and_ack(min(_CLAIMED, scale.few_pending)))
        return _cost_rows(scale, servers, costs, handled)


def _cost_rows(
    scale: Scale,
    servers: dict[str, Filled],
    costs: dict[str, list[Cost]],
    handled: dict[str, list[tuple[float, float]]],
) -> list[Row]:
    ours = servers["minute buckets"]
    scripts = {name: [cost.script_us for cost in every] for name, every in costs.items()}
    few, many, count = scripts["few"], scripts["minute buckets"], amount(scale.pending)
    whole = statistics.median(cost.process_us for cost in costs["minute buckets"])
    with_the_rest = f"{amount(whole)} µs with all else that the server does for it"
    rows = [
        at_most(f"record_chunk, server CPU, {count} pending", 25, many, "µs", with_the_rest),
        at_most(
            f"the same against {amount(scale.few_pending)} pending",
            1.6,
            [large / small for large, small in zip(many, few, strict=True)],
            "times",
            f"{amount(statistics.median(few))} µs there",
        ),
    ]
    if "sharded" in scripts:
        figure = f"record_chunk, server CPU, {amount(scale.sharded_pending)} pending in {_SHARDS} shards"
        rows.append(compared(figure, scripts["sharded"], "µs"))
    rows.append(
        at_most(
            "Redis memory of an open upload with a flush pending, its bitmap left out",
            400,
            [ours.bytes_an_upload - ours.bitmap_bytes],
            "bytes",
        )
    )
    for label, both in handled.items():
        claims, acks = zip(*both, strict=True)
        more = f"claim {amount(statistics.median(claims))} µs and ack {amount(statistics.median(acks))} µs a task; "
        more += f"{amount(servers[label].bytes_an_upload)} bytes an upload with its bitmap"
        rows.append(compared(f"queue as {label}, {count} pending: record_chunk", scripts[label], "µs", more))
    return rows


async def closed_loop(directory: Path, scale: Scale) -> list[Row]:
    """Records a second of fifty connections that each wait for the answer; the AOF is on, as in the product."""
    with valkey(directory / "loop", append_only=True) as server:
        results = [await (await start_load(server.port, scale.load_seconds))() for _ in range(scale.rounds)]
    busy = max(result["client_cpu_share"] for result in results)
    more = f"p99 {amount(statistics.median(result['p99_ms'] for result in results))} ms; "
    more += f"the load generator used {busy:.0%} of a core at most"
    return [
        at_least("closed loop, 50 connections, one Valkey", 25_000, [r["rate"] for r in results], "records/s", more)
    ]


async def start_load(port: int, seconds: float, pace: int = 0, *, first: bool = False) -> Any:
    """Start a load in a process of its own; returns a function that waits for its end and tells what came of it.

    One that is `first` never waits for a core, so that it tells what the server takes and not what it waits for itself.
    """
    arguments = [str(port), str(seconds), str(pace)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.accounting.load", *arguments, stdout=asyncio.subprocess.PIPE
    )

    async def result() -> dict[str, float]:
        with first_on_a_core(process.pid) if first else nullcontext():
            said, _ = await process.communicate()
        assert process.returncode == 0, "the load generator failed"
        return json.loads(said)  # type: ignore[no-any-return]

    return result
