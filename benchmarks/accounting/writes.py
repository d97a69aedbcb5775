"""What uploads in progress cost the database: absolute figures flushed now and then, against a write for each chunk."""

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from prometheus_client import REGISTRY

from benchmarks.accounting.filled import Shape
from benchmarks.accounting.scale import Scale
from benchmarks.accounting.stores import DELAYS, status, upload_id
from benchmarks.accounting.worker import TimedQueue, Worker, worker
from benchmarks.report import Row, amount, at_most, compared
from uploader.database import transactions
from uploader.database.transactions.uploads import Received
from uploader.settings import Settings

_CHUNK_BYTES = 5_000_000
# A file sends a chunk every second, at its own moment of it; between two of these the flusher rests.
_MOMENTS = 5
_WRITERS = 10
_PATIENT = replace(DELAYS, max_delay_seconds=100, max_pending_bytes=1 << 30)


async def writes(directory: Path, scale: Scale) -> list[Row]:
    """The rows and transactions of files that send a chunk a second each, for the defaults and for more patient settings."""
    rows = []
    for name, delays in (("with the defaults", DELAYS), ("max_delay 100 s, max_pending 1 GiB", _PATIENT)):
        rows += await _flushed(directory / name.split()[1], scale, name, delays)
    return [*rows, await _written_through(directory / "through", scale)]


async def _flushed(directory: Path, scale: Scale, name: str, delays: Settings) -> list[Row]:
    shape = Shape(chunk_count=scale.chunks_a_file, chunk_bytes=_CHUNK_BYTES)
    chunks = scale.files * scale.chunks_a_file
    async with worker(directory, scale.files, shape, delays=delays) as it:
        before = await _counted(it)
        await _send(it, scale)
        flushed, updated, commits = (now - then for now, then in zip(await _counted(it), before, strict=True))
    figure = f"for {amount(chunks)} chunks, {name}"
    return [
        at_most(
            f"rows flushed {figure}", 10_000 * chunks / 1e6, [flushed], "rows", f"{amount(updated - flushed)} of users"
        ),
        at_most(f"transactions {figure}", 100, [commits], "transactions"),
    ]


async def _counted(it: Worker) -> list[float]:
    """Uploads flushed, rows updated in all, and transactions committed."""
    flushed = REGISTRY.get_sample_value("uploader_flushed_uploads_total") or 0
    return [flushed, await status(it.database, "Handler_update"), await status(it.database, "Com_commit")]


async def _send(it: Worker, scale: Scale) -> None:
    delays = it.delays
    lease_ms = round(delays.claim_lease_seconds * 1000)
    times = [
        round(delays.quiet_interval_seconds * 1000),
        round(delays.max_delay_seconds * 1000),
        delays.max_pending_bytes,
        lease_ms,
    ]
    now_ms = start_ms = round(time.time() * 1000)
    queue = TimedQueue(it.redis, delays, lambda: now_ms)
    for step in range(scale.chunks_a_file * _MOMENTS):
        now_ms = start_ms + step * 1000 // _MOMENTS
        numbers = range(step % _MOMENTS, scale.files, _MOMENTS)
        it.uploads.send([it.uploads.recording(number, now_ms, times) for number in numbers])
        await it.flush_all(queue)


async def _written_through(directory: Path, scale: Scale) -> Row:
    shape = Shape(chunk_count=scale.chunks_a_file, chunk_bytes=_CHUNK_BYTES)
    async with worker(directory, scale.files, shape) as it:

        async def write(writer: int) -> int:
            changed = 0
            for number in range(scale.written_through // _WRITERS):
                chunk, file = divmod(number * _WRITERS + writer, scale.files)
                batch = [Received(upload_id(file), 0, (chunk + 1) * _CHUNK_BYTES)]
                flushed = await it.database.transact(
                    partial(transactions.uploads.flush, batch=batch, now=datetime.now(UTC))
                )
                changed += flushed.changed
            return changed

        begin = time.perf_counter()
        changed = sum(await asyncio.gather(*(write(writer) for writer in range(_WRITERS))))
        wall = time.perf_counter() - begin
    more = f"each in a transaction of its own with the row of the user; {amount(changed / wall)} a second"
    return compared(f"write-through: rows for {amount(scale.written_through)} chunks", [changed], "rows", more)
