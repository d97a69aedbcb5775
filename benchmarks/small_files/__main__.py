"""Measures many small files, and writes the table of `docs/capacity.md`: `python -m benchmarks.small_files`."""

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import interpreter, report
from benchmarks.ingest import installing
from benchmarks.ingest.load import LoadFailed
from benchmarks.ingest.places import Places, memory_directory
from benchmarks.ingest.rounds import reason
from benchmarks.report import Row
from benchmarks.small_files.bounds import bounds
from benchmarks.small_files.costs import costs
from benchmarks.small_files.owned import owned
from benchmarks.small_files.scale import FULL, QUICK, Scale
from benchmarks.small_files.unchanged import unchanged

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"
SECTION = "small files"

Benchmark = Callable[[Places, Scale], list[Row]]
BENCHMARKS: dict[str, Benchmark] = {
    "costs": costs,
    "owned": owned,
    "unchanged": unchanged,
    "bounds": bounds,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_files", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few files, few rounds; the page stays as it is")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, metavar="NAME", help="; ".join(BENCHMARKS))
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; needs 2 GiB there")
    arguments = parser.parse_args()
    interpreter.choose()
    section = measure(QUICK if arguments.quick else FULL, arguments.only or list(BENCHMARKS), arguments.directory)
    print(section)
    if not arguments.quick and not arguments.only:
        report.write(PAGE, SECTION, section)


def measure(scale: Scale, names: list[str], directory: Path | None) -> str:
    """The section of the page: the machine, and a table of all figures."""
    machine, rows = report.machine(()), list[Row]()
    with ExitStack() as stack:
        disk, memory = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-", dir=parent)))
            for parent in (directory, memory_directory() or directory)
        )
        for name in names:
            begin = time.monotonic()
            try:
                measured = BENCHMARKS[name](Places(memory, disk).of(name), scale)
            except (LoadFailed, RuntimeError, OSError) as error:
                measured = [Row(name, "–", f"failed: {reason(error)}")]  # the other parts are worth their time
            rows += measured
            print(f"{name}: {time.monotonic() - begin:.0f} s", *measured, sep="\n  ", flush=True)
    peers = installing.python_versions() if scale.peers else []
    return f"{', '.join([machine, *peers])}.\n\n{report.table(rows)}"


if __name__ == "__main__":
    main()
