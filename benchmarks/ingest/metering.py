"""The price of charging requests to users: the share of the meter's calls in the CPU of a small chunk, and a server with the
meter beside one without."""

import asyncio
import time
from functools import partial

from benchmarks.ingest.ours import Mode, ours
from benchmarks.ingest.places import Places
from benchmarks.ingest.rounds import Entry, interleaved
from benchmarks.ingest.scale import Scale, spelled
from benchmarks.report import Row, amount, at_most
from uploader.runtime.meter import BYTE_SECONDS, Kind, Meter, charge, cost_of_request

_METERED, _UNMETERED = Mode(), Mode(charges=False)
_MOST_PERCENT = 1.0
_CALLS = 5_000
_ROUTE, _ANSWER_BYTES = "PUT /uploads/{id}/chunks/{n}", 300
# In which a chunk is stored, and its digests go on.
_THREADS = 2


def metering(places: Places, scale: Scale) -> list[Row]:
    """Of a server as shipped, in memory. The calls alone are measured, because they are far less than what two servers
    differ by."""
    entries = {str(mode): Entry(partial(ours, mode=mode)) for mode in (_METERED, _UNMETERED)}
    results = interleaved(places, scale.small, entries)
    what = f"{spelled(scale.small.chunk_bytes)} chunks"
    rows = [result.small_row(f"{what}: this server, {name}") for name, result in results.items()]
    # A few chunks may take less than a tick of the clock.
    if rounds := [one for one in results[str(_METERED)].rounds if one.cpu_per_request]:
        calls = [_seconds_of_calls(scale.small.chunk_bytes) for _ in rounds]
        shares = [call / one.cpu_per_request * 100 for call, one in zip(calls, rounds, strict=True)]
        more = f"{amount(min(calls) * 1e6)} µs at the least"
        rows.append(at_most(f"{what}: calls of the meter, of the CPU of a chunk", _MOST_PERCENT, shares, "%", more))
    return rows


def _seconds_of_calls(chunk_bytes: int) -> float:
    """Return the CPU of all calls for a chunk that comes at once, as `http/app.py` and `runtime/tasks.py` make them."""
    meter = Meter()

    async def charge_chunks() -> float:
        meter.open("user", _ROUTE)  # as the user of many requests is known already
        began = time.process_time()
        for _ in range(_CALLS):
            cost = meter.open("user", _ROUTE)
            cost_of_request.set(cost)
            await cost.begin(pauses=True)
            charge(Kind.RECEIVED, chunk_bytes * BYTE_SECONDS)
            for _ in range(_THREADS):
                cost_of_request.get()
                cost.add(Kind.THREADS, time.thread_time() - time.thread_time())
            cost.answered(_ANSWER_BYTES)
            cost.pause()
            cost.add(Kind.SENT, _ANSWER_BYTES * BYTE_SECONDS)
            cost.end()
        return (time.process_time() - began) / _CALLS

    return asyncio.run(charge_chunks())
