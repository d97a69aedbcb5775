"""Folders of small files, no two of the same content."""

import os
from pathlib import Path

from benchmarks.small_files.scale import SIZE_BYTES

_IN_A_FOLDER = 100


def make(directory: Path, count: int) -> Path:
    """A folder of so many files, a hundred in each of its folders."""
    for number in range(count):
        path = directory / str(number // _IN_A_FOLDER) / f"{number}.bin"
        if not number % _IN_A_FOLDER:
            path.parent.mkdir(parents=True)
        path.write_bytes(os.urandom(SIZE_BYTES))
    return directory


def count(directory: Path) -> int:
    """The files of this size below a directory, whatever they are called."""
    return sum(1 for path in directory.rglob("*") if path.is_file() and path.stat().st_size == SIZE_BYTES)
