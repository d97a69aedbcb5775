"""Measures the kernels of MD5 in lanes by themselves: `python -m benchmarks.lanes`.

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
from uploader.lanes.kernel import LIBRARY, Kernel, kernels, new_context

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


if __name__ == "__main__":
    main()
