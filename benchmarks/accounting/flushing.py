"""The flush end to end: claimed from a real Valkey, written into a real MariaDB or MySQL, acknowledged, by one worker."""

import asyncio
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.accounting.filled import Shape, in_an_hour
from benchmarks.accounting.recording import start_load
from benchmarks.accounting.scale import Scale
from benchmarks.accounting.stores import DELAYS, first_on_a_core, number_of
from benchmarks.accounting.worker import TimedQueue, Worker, worker
from benchmarks.report import Row, amount, at_least, at_most, compared, percentile
from tests.support.servers import PrivateMySQL
from tests.support.waiting import eventually
from uploader.accounting.queue import Claim
from uploader.jobs.runner import Runner
from uploader.jobs.uploads import Flusher

# Of another client than the worker: what others feel of it.
_OTHERS_A_SECOND = 2000
_GENTLE = 20
_FLUSHED_WITHIN_SECONDS = 600
_SHAPE = Shape(chunk_count=1000, chunk_bytes=5_000_000)


async def throughput(directory: Path, scale: Scale) -> list[Row]:
    """Uploads flushed a second by one worker with much to do, and what others feel of that meanwhile."""
    async with worker(directory / "mariadb", scale.flushed, _SHAPE) as it:
        rows = [await _rate(it, scale, "MariaDB"), *await _disturbance(it, scale)]
    if not PrivateMySQL.is_installed():
        return rows
    async with worker(directory / "mysql", scale.flushed, _SHAPE, database="mysql") as it:
        return [rows[0], await _rate(it, scale, "MySQL"), *rows[1:]]


async def _rate(it: Worker, scale: Scale, product: str) -> Row:
    rates, shares = [], []
    for number in range(scale.rounds + 1):
        it.record_all()
        begin, before = time.perf_counter(), it.used_seconds()
        await it.flush_all()
        wall = time.perf_counter() - begin
        if number > 0:  # the first one warms up
            rates.append(scale.flushed / wall)
            shares.append(
                [1e6 * (now - then) / scale.flushed for now, then in zip(it.used_seconds(), before, strict=True)]
            )
        await it.check(it.recorded * scale.flushed)
    parts = [statistics.median(column) for column in zip(*shares, strict=True)]
    used = [f"{name} {part:.0f} µs" for name, part in zip(("worker", "Valkey", product), parts, strict=True)]
    said = f"CPU of an upload: {', '.join(used)}; sums exact"
    return at_least(f"flush end to end into {product}, one worker", 22_000, rates, "uploads/s", said)


async def _disturbance(it: Worker, scale: Scale) -> list[Row]:
    """What others feel while the worker flushes; in turn with all sharing the cores and with Valkey and the others first.

    Redis measures a script by the clock, so on two cores a script that is put aside in the middle seems long.
    """
    shared, first = _Felt(), _Felt()
    await it.redis.config_set("slowlog-log-slower-than", 500)  # few, because logging costs, too
    await it.redis.config_set("slowlog-max-len", 10_000)
    for _ in range(scale.rounds):
        await _flush_under_load(it, scale, shared)
        with first_on_a_core(it.uploads.process_id):
            await _flush_under_load(it, scale, first, first=True)
    await it.check(it.recorded * scale.flushed)
    rate = f"of {amount(statistics.median(first.rates))} records/s by others"
    return [
        at_most("longest script while flushing, Valkey first on a core", 3, first.longest_ms, "ms"),
        at_most("p99.9 of record_chunk while flushing, Valkey first on a core", 5, first.late_ms, "ms", rate),
        compared("longest script while flushing, Valkey waiting for a core like all others", shared.longest_ms, "ms"),
        compared("p99.9 of record_chunk, Valkey waiting for a core like all others", shared.late_ms, "ms"),
    ]


@dataclass
class _Felt:
    """What came of each round."""

    longest_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


async def _flush_under_load(it: Worker, scale: Scale, felt: _Felt, *, first: bool = False) -> None:
    await asyncio.to_thread(it.record_all)
    await it.redis.slowlog_reset()
    finished = await start_load(it.uploads.server_port, scale.load_seconds, _OTHERS_A_SECOND, first=first)
    load = asyncio.create_task(finished())
    while not load.done():
        await it.flush_all()
        await asyncio.to_thread(it.record_all, _GENTLE)  # no burst that only a benchmark makes
    await it.flush_all()
    result = load.result()
    entries = await it.redis.slowlog_get(10_000)
    scripts = [entry["duration"] for entry in entries if entry["command"].startswith(b"EVALSHA")]
    felt.longest_ms.append(max(scripts, default=500) / 1000)
    felt.late_ms.append(result["p999_ms"])
    felt.rates.append(result["rate"])


async def lateness(directory: Path, scale: Scale) -> list[Row]:
    """How late flushes are that fall due one after the other; at the start a worker dies with what it claimed."""
    late: list[float] = []
    due_ms = in_an_hour()
    shape = replace(_SHAPE, due_ms=due_ms, due_over_ms=scale.due_over_seconds * 1000)
    delays = replace(DELAYS, claim_lease_seconds=scale.lease_seconds)
    async with worker(directory, scale.due, shape, delays=delays) as it:
        began = time.monotonic()

        def now_ms() -> int:
            return due_ms + round((time.monotonic() - began) * 1000)

        acknowledge = it.pending.ack_flush

        async def timed(shard: int, flushed: list[Claim]) -> int:
            removed = await acknowledge(shard, flushed)
            late.extend((now_ms() - shape.due_of(number_of(claim.upload_id))) / 1000 for claim in flushed)
            return removed

        it.pending.ack_flush = timed  # type: ignore[method-assign]
        queue = TimedQueue(it.redis, delays, now_ms)
        await asyncio.sleep(0.02)  # until enough are due
        lost = await queue.claim()
        runner = Runner(Flusher(queue, it.flushing).as_jobs())
        runner.start()

        async def nothing_waits() -> bool:
            return await queue.next_due() is None

        await eventually(nothing_waits, _FLUSHED_WITHIN_SECONDS)
        await runner.stop()
        await it.check(scale.due)
    assert len(late) == scale.due
    pending, rate = amount(scale.due), amount(scale.due / scale.due_over_seconds)
    died = f"a worker died with {len(lost)} claims, the lease is {delays.claim_lease_seconds:g} s"
    return [
        at_most(f"lateness of a flush (p99), {pending} pending, {rate} due a second", 1, [percentile(late, 0.99)], "s"),
        at_most(
            "age of unaccounted bytes beyond max_delay, at most", delays.claim_lease_seconds + 1, [max(late)], "s", died
        ),
    ]
