"""Measures receiving, and writes the table of `docs/performance.md`: `python -m benchmarks.ingest`."""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from benchmarks import interpreter, report
from benchmarks.ingest import growth, installing, large, latency, memory, small
from benchmarks.ingest.load import LoadFailed
from benchmarks.ingest.places import Places, memory_directory
from benchmarks.ingest.rounds import reason
from benchmarks.ingest.scale import FULL, QUICK, Scale
from benchmarks.report import Row

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
SECTION = "ingest"

Benchmark = Callable[[Places, Scale, Collection[str]], list[Row]]
BENCHMARKS: dict[str, Benchmark] = {
    "large": large.large,
    "small": small.small,
    "memory": memory.memory,
    "latency": latency.latency,
    "connections": growth.connections,
    "open": growth.open_uploads,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds; the page stays as it is")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, metavar="NAME", help="; ".join(BENCHMARKS))
    parser.add_argument("--servers", nargs="+", default=(), metavar="TEXT", help="only those whose name contains one")
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; needs 10 GiB there")
    arguments = parser.parse_args()
    interpreter.choose()
    # Servers and the load generator inherit it: a thousand connections are more than most systems allow by default.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    scale = QUICK if arguments.quick else FULL
    section = measure(scale, arguments.only or list(BENCHMARKS), arguments.servers, arguments.directory)
    print(section)
    if not arguments.quick and not arguments.only and not arguments.servers:
        report.write(PAGE, SECTION, section)


def measure(scale: Scale, names: list[str], servers: Collection[str], directory: Path | None) -> str:
    """The section of the page: the machine, and a table of all figures."""
    machine = report.machine([f"{name} {version(name)}" for name in ("uvicorn", "starlette", "uvloop")])
    rows: list[Row] = []
    with ExitStack() as stack:
        disk, memory = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-", dir=parent)))
            for parent in (directory, memory_directory() or directory)
        )
        places = Places(memory, disk)
        for name in names:
            begin = time.monotonic()
            try:
                measured = BENCHMARKS[name](places.of(name), scale, servers)
            except (LoadFailed, RuntimeError, OSError) as error:
                measured = [Row(name, "–", f"failed: {reason(error)}")]  # the other parts are worth their time
            rows += measured
            print(f"{name}: {time.monotonic() - begin:.0f} s", *measured, sep="\n  ", flush=True)
    peers = installing.versions() if scale.peers else []
    return f"{', '.join([machine, *peers])}.\n\n{report.table(rows)}"


if __name__ == "__main__":
    main()
