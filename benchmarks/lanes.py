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
from benchmarks.ingest.scale import FULL, GIB, MIB
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
            rows += receiving(connections, arguments.rounds)
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


def receiving(connections: int, rounds: int) -> list[Row]:
    """In memory, chunks of 8 MiB, an upload for each connection."""
    load = replace(
        FULL.large, connections=connections, chunks=_BYTES // connections // FULL.large.chunk_bytes, rounds=rounds
    )
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=memory_directory()) as directory:
        entries = {name: Entry(partial(ours, mode=mode)) for name, mode in _MODES.items()}
        results = interleaved(Places(Path(directory), Path(directory)), load, entries)
    rows = []
    for name, result in results.items():
        cpu = [one.cpu_per_gib for one in result.rounds]
        rates = [one.rate_until_quiet for one in result.rounds]
        what = f"{connections} connections, {name}"
        more = f"{report.amount(statistics.median(one.rate for one in result.rounds))} until the last answer"
        judged = _MODES[name].lanes
        rows.append(
            at_most(what, _MOST_CPU[connections], cpu, "CPU s/GiB") if judged else compared(what, cpu, "CPU s/GiB")
        )
        if judged and connections in _LEAST_RATE:
            rows.append(at_least(f"{what}, until digested", _LEAST_RATE[connections], rates, "MB/s", more))
        else:
            rows.append(compared(f"{what}, until digested", rates, "MB/s", more))
    return rows


if __name__ == "__main__":
    main()
