"""The blobs that a dump has files of, by their SHA-256, with their sizes in bytes: what has to be there beside it."""

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path

LISTING = "blobs.gz"


def write_listing(directory: Path, blobs: Iterable[tuple[str, int]]) -> None:
    """They come in order."""
    with gzip.open(directory / LISTING, "wt", compresslevel=1) as file:
        file.writelines(f"{sha256} {size}\n" for sha256, size in blobs)


def read_listing(directory: Path) -> Iterator[tuple[str, int]]:
    """In order."""
    with gzip.open(directory / LISTING, "rt") as file:
        for line in file:
            sha256, _, size = line.partition(" ")
            yield sha256, int(size)
