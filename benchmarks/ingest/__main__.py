"""Measures what receiving costs, and writes tables of `docs/capacity.md`: `python -m benchmarks.ingest`."""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from benchmarks import interpreter, report
from benchmarks.ingest import growth, latency, memory, metering
from benchmarks.ingest.load import LoadFailed
from benchmarks.ingest.places import Places, memory_directory
from benchmarks.ingest.rounds import reason
from benchmarks.ingest.scale import FULL, QUICK, Scale
from benchmarks.report import Row

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"

Benchmark = Callable[[Places, Scale], list[Row]]
BENCHMARKS: dict[str, Benchmark] = {
    "metering": metering.metering,
    "memory": memory.memory,
    "latency": latency.latency,
    "connections": growth.connections,
    "open": growth.open_uploads,
}
# Of each table, the benchmarks whose rows it has.
TABLES = {"metering": ["metering"], "load": ["memory", "latency", "connections", "open"]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds; the page stays as it is")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, metavar="NAME", help="; ".join(BENCHMARKS))
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; needs 10 GiB there")
    arguments = parser.parse_args()
    interpreter.choose()
    # Servers and the load generator inherit it: a thousand connections are more than most systems allow by default.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    scale = QUICK if arguments.quick else FULL
    machine, rows = measure(scale, arguments.only or list(BENCHMARKS), arguments.directory)
    for name, parts in TABLES.items():
        measured = [row for part in parts for row in rows.get(part, ())]
        section = f"{machine}\n\n{report.table(measured)}"
        if measured:
            print(section)
        if not arguments.quick and not arguments.only:
            report.write(PAGE, name, section)


def measure(scale: Scale, names: list[str], directory: Path | None) -> tuple[str, dict[str, list[Row]]]:
    """Return the line about the machine, and the figures of each benchmark."""
    machine = report.machine([f"{name} {version(name)}" for name in ("uvicorn", "starlette", "uvloop")])
    rows: dict[str, list[Row]] = {}
    with ExitStack() as stack:
        disk, memory = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-", dir=parent)))
            for parent in (directory, memory_directory() or directory)
        )
        places = Places(memory, disk)
        for name in names:
            begin = time.monotonic()
            try:
                measured = BENCHMARKS[name](places.of(name), scale)
            except (LoadFailed, RuntimeError, OSError) as error:
                measured = [Row(name, "–", f"failed: {reason(error)}")]  # the other parts are worth their time
            rows[name] = measured
            print(f"{name}: {time.monotonic() - begin:.0f} s", *measured, sep="\n  ", flush=True)
    return f"{machine}.", rows


if __name__ == "__main__":
    main()
