"""What both digests cost the processor: the server's way, and bare hashlib."""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import Row, at_most, compared
from benchmarks.storage.scale import GIB, Scale
from uploader.storage.hashes import PrefixHashes

_BUFFER = memoryview(bytearray(os.urandom(8 << 20)))
_TARGET = 1.1


def bare_seconds(size: int) -> float:
    """Processor seconds of hashlib for both digests."""
    return _seconds(size, _bare())


def hashing(_directory: Path, scale: Scale) -> list[Row]:
    """In turn, so that both meet the same noise; the state is saved and gone on from after every chunk."""
    size, rounds = scale.hashed
    bare, ours = [], []
    for _ in range(rounds):
        bare.append(_seconds(size, _bare()) * GIB / size)
        ours.append(_seconds(size, _followed()) * GIB / size)
    ratios = [one / other for one, other in zip(ours, bare, strict=True)]
    return [
        compared("CPU of both digests, bare hashlib", bare, "s/GiB"),
        compared("CPU of both digests, as the server computes them", ours, "s/GiB"),
        at_most("CPU of both digests, against bare hashlib", _TARGET, ratios, "times"),
    ]


def _seconds(size: int, update: Callable[[memoryview], None]) -> float:
    begin, left = time.process_time(), size
    while left:
        piece = _BUFFER[:left]
        update(piece)
        left -= len(piece)
    return time.process_time() - begin


def _bare() -> Callable[[memoryview], None]:
    md5, sha256 = hashlib.md5(), hashlib.sha256()

    def update(piece: memoryview) -> None:
        md5.update(piece)
        sha256.update(piece)

    return update


def _followed() -> Callable[[memoryview], None]:
    position, state = 0, PrefixHashes().state()

    def update(piece: memoryview) -> None:
        nonlocal position, state
        hashes = PrefixHashes.restore(position, state) or PrefixHashes()
        hashes.update(piece)
        position, state = hashes.position, hashes.state()

    return update
