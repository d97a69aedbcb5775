"""Signatures, and chunks that copy bytes from a base. A content is cut into pieces where its own bytes say so, and the
signature has the length and the hash of each piece. An insertion moves no other cut.

A client learns from a signature which bytes the server has already, and the server checks copied bytes by it. The
result is compared with its digests in the end. A chunk then comes as instructions: bytes to copy from a base, a
finished file, and literal bytes. All numbers are big-endian.

Pure. Server and client use this module, and other programs can do the same: `ALGORITHM` is FastCDC as its authors
published it in 2020 (normalised chunking of level 1, without a seed), with the sizes from the head of the signature.
"""

import hashlib
import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from struct import Struct
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyfastcdc import FastCDC

ALGORITHM = "fastcdc-2020"
# SHA-256 cut off after 128 bits (RFC 6920).
HASH = "sha-256-128"
HASH_BYTES = 16
# A piece: length in bytes, hash.
RECORD = Struct(f">I{HASH_BYTES}s")
_LENGTH = Struct(f">I{HASH_BYTES}x")
_SMALLEST_AVERAGE_BYTES, _LARGEST_AVERAGE_BYTES = 64 << 10, 1 << 20
# The aim for the number of pieces. A content above 40 GiB has more, one for each MiB.
_PIECES = 40_000


class Readable(Protocol):
    def readinto(self, buffer: memoryview, /) -> int:
        """Read the next bytes into the buffer. Return their number, 0 at the end."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """The smallest, average and largest length of a piece, in bytes."""

    min: int
    avg: int
    max: int


def cuts_for(size_bytes: int) -> Cuts:
    """Return the cuts for a content of this size. Larger contents have larger pieces."""
    average = _SMALLEST_AVERAGE_BYTES
    while average < _LARGEST_AVERAGE_BYTES and size_bytes > average * _PIECES:
        average *= 2
    return Cuts(min=average // 4, avg=average, max=average * 4)


def head_of(size_bytes: int, sha256: str) -> bytes:
    """Return the head of a content's signature: its first line."""
    cuts = cuts_for(size_bytes)
    facts = {"algorithm": ALGORITHM, "min": cuts.min, "avg": cuts.avg, "max": cuts.max, "hash": HASH}
    return json.dumps(facts | {"size": size_bytes, "sha256": sha256}).encode() + b"\n"


def load_cutter() -> "type[FastCDC]":
    from pyfastcdc import FastCDC  # here, because most processes never cut anything

    return FastCDC


def pieces_of(content: Readable, cuts: Cuts) -> Iterator[tuple[int, bytes]]:
    """Yield the length and the hash of each piece, in order. Blocks: call it in a thread. Raises ValueError for invalid
    cuts."""
    cutter = load_cutter()(cuts.avg, min_size=cuts.min, max_size=cuts.max)
    for piece in cutter.cut_stream(content):
        yield piece.length, hash_of(piece.data)


def hash_of(piece: bytes | memoryview) -> bytes:
    return hashlib.sha256(piece).digest()[:HASH_BYTES]


class Pieces:
    def __init__(self, signature: bytes) -> None:
        _, _, self._records = signature.partition(b"\n")
        lengths = chain.from_iterable(_LENGTH.iter_unpack(self._records))
        self._starts = array("Q", accumulate(lengths, initial=0))

    def split(self, offset: int, length: int) -> list[tuple[int, int, int]]:
        """Split a range of the content at the cuts. Return the piece number, the offset and the length of each part."""
        number, end = bisect_right(self._starts, offset) - 1, offset + length
        parts = []
        while offset < end:
            until = min(end, self._starts[number + 1])
            parts.append((number, offset, until - offset))
            number, offset = number + 1, until
        return parts

    def extent(self, first: int, last: int | None = None) -> tuple[int, int]:
        """Return the offset and the length, in bytes, of a piece or of the pieces `first` to `last`."""
        end = self._starts[(first if last is None else last) + 1]
        return self._starts[first], end - self._starts[first]

    @staticmethod
    def runs_of(numbers: list[int]) -> list[tuple[int, int]]:
        """Return the first and the last number of each run of consecutive numbers, from sorted numbers."""
        runs: list[tuple[int, int]] = []
        for number in numbers:
            if runs and number == runs[-1][1] + 1:
                runs[-1] = runs[-1][0], number
            else:
                runs.append((number, number))
        return runs

    def cut(self, first: int, last: int, content: memoryview) -> Iterator[memoryview]:
        """Yield the pieces `first` to `last` from their joined bytes."""
        start = self._starts[first]
        for number in range(first, last + 1):
            yield content[self._starts[number] - start : self._starts[number + 1] - start]

    def fit(self, numbers: list[int], contents: list[memoryview]) -> bool:
        """Return whether each content has the hash of the piece with the number beside it."""
        return all(self._fits(*each) for each in zip(numbers, contents, strict=True))

    def _fits(self, number: int, content: memoryview) -> bool:
        _, hashed = RECORD.unpack_from(self._records, number * RECORD.size)
        return bool(hashed == hash_of(content))


# To copy: the byte 0, offset and length in bytes. Literal bytes: the byte 1, length in bytes; then the bytes.
COPY, LITERAL = Struct(">BQI"), Struct(">BI")
COPY_KIND, LITERAL_KIND = 0, 1
# Instructions in one chunk.
MAX_INSTRUCTIONS = 65_536


@dataclass(frozen=True, slots=True)
class Copy:
    offset: int
    length: int

    def encode(self) -> bytes:
        return COPY.pack(COPY_KIND, self.offset, self.length)


def literal_head(length_bytes: int) -> bytes:
    """Return the header of an instruction with `length_bytes` literal bytes."""
    return LITERAL.pack(LITERAL_KIND, length_bytes)
