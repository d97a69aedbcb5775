"""The flush end to end: claimed from a real Valkey, written into a real MariaDB, acknowledged, by one worker."""

import asyncio
import statistics
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.accounting.filled import Shape
from benchmarks.accounting.recording import start_load
from benchmarks.accounting.scale import Scale
from benchmarks.accounting.stores import DELAYS, number_of
from benchmarks.accounting.worker import Worker, worker
from benchmarks.report import Row, amount, at_least, at_most, percentile
from tests.support.waiting import eventually
from uploader.accounting.delay import MAX_CLAIM
from uploader.accounting.pending import Claim
from uploader.jobs.flusher import Flusher
from uploader.jobs.runner import Runner

# Of another client than the worker: what others feel of it.
_OTHERS_A_SECOND = 2000
_GENTLE = 20
# At most, for an upload that becomes known to Redis.
_FILL_SECONDS = 40e-6
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
    """How late flushes are that fall due all through a minute; at its start a worker dies with what it claimed."""
    late: list[float] = []
    shape = replace(_SHAPE, due_over_ms=scale.due_over_seconds * 1000)
    delays = replace(DELAYS, lease_seconds=scale.lease_seconds)
    due_in_seconds = 1 + scale.due * _FILL_SECONDS
    async with worker(directory, scale.due, shape, delays=delays, due_in_seconds=due_in_seconds) as it:
        acknowledge = it.pending.ack_flush

        async def timed(shard: int, flushed: list[Claim]) -> int:
            removed = await acknowledge(shard, flushed)
            now_ms = time.time() * 1000
            late.extend((now_ms - it.uploads.shape.due_of(number_of(claim.upload_id))) / 1000 for claim in flushed)
            return removed

        it.pending.ack_flush = timed  # type: ignore[method-assign]
        due_ms = it.uploads.shape.due_ms
        assert due_ms is not None
        assert time.time() * 1000 < due_ms, "the uploads were due before all of them were there"
        await asyncio.sleep(due_ms / 1000 - time.time() + 0.02)
        lost = await it.queue.claim(MAX_CLAIM)
        runner = Runner(Flusher(it.queue, it.flushing).as_jobs())
        runner.start()

        async def nothing_waits() -> bool:
            return await it.queue.next_due() is None

        await eventually(nothing_waits, 300)
        await runner.stop()
        await it.check(scale.due)
    assert len(late) == scale.due
    lease = delays.lease_seconds
    pending, rate = amount(scale.due), amount(scale.due / scale.due_over_seconds)
    return [
        at_most(f"lateness of a flush (p99), {pending} pending, {rate} due a second", 1, [percentile(late, 0.99)], "s"),
        at_most(
            "age of unaccounted bytes beyond max_delay, at most",
            lease + 1,
            [max(late)],
            "s",
            f"a worker died with {len(lost)} claims, the lease is {lease:.0f} s",
        ),
    ]
