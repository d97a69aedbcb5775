"""The flush end to end: claimed from a real Valkey, written into a real MariaDB, acknowledged, by one worker."""

import asyncio
import statistics
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.accounting.filled import Shape, in_an_hour
from benchmarks.accounting.recording import start_load
from benchmarks.accounting.scale import Scale
from benchmarks.accounting.stores import DELAYS, number_of
from benchmarks.accounting.worker import TimedQueue, Worker, worker
from benchmarks.report import Row, amount, at_least, at_most, percentile
from tests.support.waiting import eventually
from uploader.accounting.pending import Claim
from uploader.jobs.flusher import Flusher
from uploader.jobs.runner import Runner

# Of another client than the worker: what others feel of it.
_OTHERS_A_SECOND = 2000
_GENTLE = 20
_FLUSHED_WITHIN_SECONDS = 600
_SHAPE = Shape(chunk_count=1000, chunk_bytes=5_000_000)


async def throughput(directory: Path, scale: Scale) -> list[Row]:
    """Uploads flushed a second by one worker with much to do, and what others feel of that meanwhile."""
    async with worker(directory, scale.flushed, _SHAPE) as it:
        return [await _rate(it, scale), *await _disturbance(it, scale)]


async def _rate(it: Worker, scale: Scale) -> Row:
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
    said = "CPU of an upload: worker {:.0f} µs, Valkey {:.0f} µs, MariaDB {:.0f} µs; sums exact".format(*parts)
    return at_least("flush end to end into MariaDB, one worker", 30_000, rates, "uploads/s", said)


async def _disturbance(it: Worker, scale: Scale) -> list[Row]:
    longest, late, rates = [], [], []
    await it.redis.config_set("slowlog-log-slower-than", 100)
    await it.redis.config_set("slowlog-max-len", 100_000)
    for _ in range(scale.rounds):
        await asyncio.to_thread(it.record_all)
        finished = await start_load(it.uploads.server_port, scale.load_seconds, _OTHERS_A_SECOND)
        await it.redis.slowlog_reset()
        load = asyncio.create_task(finished())
        while not load.done():
            await it.flush_all()
            await asyncio.to_thread(it.record_all, _GENTLE)  # no burst that only a benchmark makes
        await it.flush_all()
        result = load.result()
        entries = await it.redis.slowlog_get(100_000)
        scripts = [entry["duration"] for entry in entries if entry["command"].startswith(b"EVALSHA")]
        longest.append(max(scripts, default=100) / 1000)
        late.append(result["p999_ms"])
        rates.append(result["rate"])
    await it.check(it.recorded * scale.flushed)
    more = f"of {amount(statistics.median(rates))} records/s by others"
    return [
        at_most("longest script while flushing", 3, longest, "ms"),
        at_most("p99.9 of record_chunk while flushing", 5, late, "ms", more),
    ]


async def lateness(directory: Path, scale: Scale) -> list[Row]:
    """How late flushes are that fall due one after the other; at the start a worker dies with what it claimed."""
    late: list[float] = []
    due_ms = in_an_hour()
    shape = replace(_SHAPE, due_ms=due_ms, due_over_ms=scale.due_over_seconds * 1000)
    delays = replace(DELAYS, lease_seconds=scale.lease_seconds)
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
    died = f"a worker died with {len(lost)} claims, the lease is {delays.lease_seconds:g} s"
    return [
        at_most(f"lateness of a flush (p99), {pending} pending, {rate} due a second", 1, [percentile(late, 0.99)], "s"),
        at_most("age of unaccounted bytes beyond max_delay, at most", delays.lease_seconds + 1, [max(late)], "s", died),
    ]
