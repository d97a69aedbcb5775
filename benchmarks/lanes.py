"""Measures MD5 in lanes: the kernels by themselves, and receiving with and without: `python -m benchmarks.lanes`."""

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks import interpreter, report
from benchmarks.ingest.ours import Mode, ours
from benchmarks.ingest.places import Places, memory_directory
from benchmarks.ingest.rounds import Entry, interleaved
from benchmarks.ingest.scale import FULL, GIB, MIB, Load
from benchmarks.report import Row, at_least, at_most, compared
from uploader.lanes.kernel import LIBRARY, Kernel, kernels, new_context

_CONTENTS = [memoryview(bytearray(os.urandom(MIB))) for _ in range(16)]
# CPU seconds for a GiB, and MB/s until the digests are done, by connections.
_MOST_CPU = {4: 3.0, 16: 2.7}
_LEAST_RATE = {16: 480.0}
# Of a round: memory that nobody had before is dear, so there is no more of it than has to be.
_BYTES = 3 << 29
_MODES = {"with lanes": Mode(), "without": Mode(lanes=False)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lanes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("kernels", "receiving"))
    arguments = parser.parse_args()
    interpreter.choose()
    print(report.machine([]))
    rows = [] if arguments.only == "receiving" else measure_kernels(arguments.rounds)
    if arguments.only != "kernels":
        for connections in _MOST_CPU:
            chunks = _BYTES // connections // FULL.large.chunk_bytes
            load = replace(FULL.large, connections=connections, chunks=chunks, rounds=arguments.rounds)
            with tempfile.TemporaryDirectory(prefix="benchmark-", dir=memory_directory()) as directory:
                rows += receiving(Places(Path(directory), Path(directory)), load)
    print(report.table(rows))


def measure_kernels(rounds: int) -> list[Row]:
    costs: dict[str, list[float]] = {}
    for _ in range(rounds):
        costs.setdefault("MD5 by hashlib", []).append(_seconds(_by_hashlib, len(_CONTENTS)))
        for kernel in kernels(LIBRARY):
            for count in (1, 2, 4, 8, 16):
                if count <= kernel.lanes:
                    spent = _seconds(partial(_by_kernel, kernel, count), count)
                    costs.setdefault(f"MD5 by {kernel.kind}, {count} contents", []).append(spent)
    return [compared(name, each, "CPU s/GiB") for name, each in costs.items()]


def _seconds(work: Callable[[], None], contents: int) -> float:
    begin = time.thread_time()
    work()
    return (time.thread_time() - begin) * GIB / (contents * MIB)


def _by_hashlib() -> None:
    for content in _CONTENTS:
        hashlib.md5(content, usedforsecurity=False).hexdigest()


def _by_kernel(kernel: Kernel, count: int) -> None:
    kernel.update([(new_context(), [content]) for content in _CONTENTS[:count]])


def receiving(places: Places, load: Load) -> list[Row]:
    """In memory, an upload for each connection."""
    results = interleaved(places, load, {name: Entry(partial(ours, mode=mode)) for name, mode in _MODES.items()})
    rows = []
    for name, result in results.items():
        if not result.rounds:
            rows.append(Row(name, "–", f"not available: {result.problem}"))
            continue
        cpu = [one.cpu_per_gib for one in result.rounds]
        rates = [one.rate_until_quiet for one in result.rounds]
        what = f"{load.connections} connections, {name}"
        digested = f"{what}, until digested"
        more = f"{report.amount(statistics.median(one.rate for one in result.rounds))} until the last answer"
        most, least = _MOST_CPU.get(load.connections), _LEAST_RATE.get(load.connections)
        is_judged = _MODES[name].lanes
        unit = "CPU s/GiB"
        rows.append(at_most(what, most, cpu, unit) if most and is_judged else compared(what, cpu, unit))
        if least and is_judged:
            rows.append(at_least(digested, least, rates, "MB/s", more))
        else:
            rows.append(compared(digested, rates, "MB/s", more))
    return rows


if __name__ == "__main__":
    main()
