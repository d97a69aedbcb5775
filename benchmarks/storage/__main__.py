"""Measures the storage, and writes the table of `docs/capacity.md`: `python -m benchmarks.storage`."""

import argparse
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from benchmarks import interpreter, report
from benchmarks.report import Row
from benchmarks.storage import concatenating, finishing, hashing, writing
from benchmarks.storage.scale import FULL, QUICK, Scale

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"
SECTION = "storage"

Benchmark = Callable[[Path, Scale], list[Row]]
BENCHMARKS: dict[str, Benchmark] = {
    "hashing": hashing.hashing,
    "finishing": finishing.finishing,
    "concatenating": concatenating.concatenating,
    "tus": concatenating.tus,
    "written": writing.written,
    "durability": writing.durability,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds; the page stays as it is")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, metavar="NAME", help="; ".join(BENCHMARKS))
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; needs 30 GiB there (4 if quick)")
    arguments = parser.parse_args()
    interpreter.choose()
    section = measure(QUICK if arguments.quick else FULL, arguments.only or list(BENCHMARKS), arguments.directory)
    print(section)
    if not arguments.quick and not arguments.only:
        report.write(PAGE, SECTION, section)


def measure(scale: Scale, names: list[str], directory: Path | None) -> str:
    """The section of the page: the machine, and a table of all figures."""
    versions = [f"{name} {version(name)}" for name in ("uvicorn", "starlette")]
    machine = report.machine(versions)
    rows: list[Row] = []
    for name in names:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="benchmark-", dir=directory) as own:
            measured = BENCHMARKS[name](Path(own) / name, scale)
        rows += measured
        print(f"{name}: {time.monotonic() - begin:.0f} s", *measured, sep="\n  ", flush=True)
    return f"{machine}.\n\n{report.table(rows)}"


if __name__ == "__main__":
    main()
