"""What it costs the processor to write to the disk in pieces of several lengths: `python -m benchmarks.pieces`.

A file of 256 MiB that is there as a hole, written in order by one process and synced after each chunk, as an upload is.
The lengths take turns.
"""

import argparse
import os
import resource
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks import interpreter, report
from benchmarks.ingest.places import Places, memory_directory
from benchmarks.report import Row

PAGE = Path(__file__).parents[1] / "docs" / "capacity.md"
SECTION = "pieces"

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_LENGTHS = (64 * _KIB, 128 * _KIB, 256 * _KIB, 512 * _KIB, _MIB, 4 * _MIB)
_CHUNK_BYTES = 8 * _MIB


def measure(places: Places, size: int, rounds: int) -> list[Row]:
    """A row for each length."""
    content = memoryview(os.urandom(_CHUNK_BYTES))
    measured: Mapping[int, list[float]] = {length: [] for length in _LENGTHS}
    for _ in range(rounds):
        for length, costs in measured.items():
            places.warm(size)
            costs.append(_write(places.disk / "written", content, size, length) * _GIB / size)
    return [
        report.compared(f"CPU of a write in pieces of {length // _KIB:,} KiB", costs, "s/GiB")
        for length, costs in measured.items()
    ]


def _write(path: Path, chunk: memoryview, size: int, length: int) -> float:
    """The processor time of this process for it, in seconds."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.ftruncate(descriptor, size)
        before = _cpu_seconds()
        for start in range(0, size, len(chunk)):
            for at in range(0, len(chunk), length):
                os.pwrite(descriptor, chunk[at : at + length], start + at)
            os.fdatasync(descriptor)
        return _cpu_seconds() - before
    finally:
        os.close(descriptor)
        path.unlink()


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pieces", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small file, one round; the page stays as it is")
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; needs 256 MiB there")
    arguments = parser.parse_args()
    interpreter.choose()
    machine = report.machine(())
    size, rounds = (64 * _MIB, 1) if arguments.quick else (256 * _MIB, 5)
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-", dir=arguments.directory) as disk,
        tempfile.TemporaryDirectory(prefix="benchmark-", dir=memory_directory() or arguments.directory) as memory,
    ):
        rows = measure(Places(Path(memory), Path(disk)), size, rounds)
    section = f"{machine}\n\n{report.table(rows)}"
    print(section)
    if not arguments.quick:
        report.write(PAGE, SECTION, section)


if __name__ == "__main__":
    main()
