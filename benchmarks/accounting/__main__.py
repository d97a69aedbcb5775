"""Measures the accounting, and writes the table of `docs/capacity.md`: `python -m benchmarks.accounting`."""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from benchmarks import interpreter, report
from benchmarks.accounting import calling, flushing, rebuild, recording, writes
from benchmarks.accounting.scale import FULL, QUICK, Scale
from benchmarks.accounting.stores import versions
from benchmarks.report import Row

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"
SECTION = "accounting"
_SHARDED_PENDING = 10_000_000

Benchmark = Callable[[Path, Scale], Awaitable[list[Row]]]
BENCHMARKS: dict[str, Benchmark] = {
    "cost": recording.cost,
    "loop": recording.closed_loop,
    "calling": calling.calling,
    "flush": flushing.throughput,
    "writes": writes.writes,
    "lateness": flushing.lateness,
    "rebuild": rebuild.rebuild,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accounting", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of everything, in two minutes; the page stays as it is"
    )
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, metavar="NAME", help="; ".join(BENCHMARKS))
    parser.add_argument(
        "--shards", action="store_true", help="10 million pending in 16 shards, too; takes 10 GiB of memory"
    )
    arguments = parser.parse_args()
    interpreter.choose()
    scale = QUICK if arguments.quick else FULL
    if arguments.shards:
        scale = replace(scale, sharded_pending=_SHARDED_PENDING)
    section = asyncio.run(measure(scale, arguments.only or list(BENCHMARKS)))
    print(section)
    if not arguments.quick and not arguments.only:
        report.write(PAGE, SECTION, section)


async def measure(scale: Scale, names: list[str]) -> str:
    """The section of the page: the machine, and a table of all figures."""
    machine = report.machine(versions())
    rows: list[Row] = []
    for name in names:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
            measured = await BENCHMARKS[name](Path(directory), scale)
        print(f"{name}: {time.monotonic() - begin:.0f} s", *measured, sep="\n  ", flush=True)
        rows += measured
    return f"{machine}.\n\n{report.table(rows)}"


if __name__ == "__main__":
    main()
