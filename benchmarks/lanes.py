"""Measures the kernels of hashing in lanes by themselves: `python -m benchmarks.lanes`.

What they are worth in a server that receives, `python -m benchmarks.all --only chunks` shows.
"""

import argparse
import hashlib
import os
import time
from collections.abc import Callable
from functools import partial

from benchmarks import interpreter, report
from benchmarks.ingest.scale import GIB, MIB
from benchmarks.report import Row, compared
from uploader.lanes.kernel import LAYOUTS, LIBRARY, Kernel, kernels

_CONTENTS = [memoryview(bytearray(os.urandom(MIB))) for _ in range(16)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lanes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    interpreter.choose()
    print(f"{report.machine([])}.\n\n{report.table(measure(arguments.rounds))}")


def measure(rounds: int) -> list[Row]:
    costs: dict[str, list[float]] = {}
    for _ in range(rounds):
        for algorithm in LAYOUTS:
            spent = _seconds(partial(_by_hashlib, algorithm), len(_CONTENTS))
            costs.setdefault(f"{algorithm} by hashlib", []).append(spent)
        for kernel in kernels(LIBRARY):
            for count in (1, 2, 4, 8, 16):
                if count <= kernel.lanes:
                    spent = _seconds(partial(_by_kernel, kernel, count), count)
                    costs.setdefault(f"{kernel.algorithm} by {kernel.kind}, {count} contents", []).append(spent)
    return [compared(name, each, "CPU s/GiB") for name, each in costs.items()]


def _seconds(work: Callable[[], None], contents: int) -> float:
    begin = time.thread_time()
    work()
    return (time.thread_time() - begin) * GIB / (contents * MIB)


def _by_hashlib(algorithm: str) -> None:
    for content in _CONTENTS:
        hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()


def _by_kernel(kernel: Kernel, count: int) -> None:
    kernel.update([(LAYOUTS[kernel.algorithm].new_context(), [content]) for content in _CONTENTS[:count]])


if __name__ == "__main__":
    main()
