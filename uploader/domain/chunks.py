"""The arithmetic of chunks: how large they are, how many, where each lies, which are missing.

Chunk *n* lies at offset `n * chunk_size`; every chunk but the last is exactly `chunk_size` bytes long.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_CHUNK_COUNT = 10_000
# Of an upload whose length is not known: one more than it may ever have, so that none of its chunks is the last.
UNBOUNDED_CHUNK_COUNT = MAX_CHUNK_COUNT + 1
CHUNK_SIZE_STEP_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """The server's bounds for chunk sizes, in bytes."""

    default: int
    minimum: int
    maximum: int

    def choose(self, asked: int | None, size: int) -> int:
        """The chunk size of a new upload of `size` bytes: clamped, a multiple of 64 KiB, at most 10,000 chunks."""
        wanted = self.default if asked is None else asked
        wanted = max(wanted, -(-size // MAX_CHUNK_COUNT))
        rounded = _round_up(max(wanted, self.minimum), CHUNK_SIZE_STEP_BYTES)
        # A maximum that is no multiple of the step is rounded down: it is a limit of the operator's.
        return min(rounded, max(self.maximum // CHUNK_SIZE_STEP_BYTES, 1) * CHUNK_SIZE_STEP_BYTES)

    def max_file_size(self) -> int:
        """The largest file that fits into 10,000 chunks of the largest size, in bytes."""
        return max(self.maximum // CHUNK_SIZE_STEP_BYTES, 1) * CHUNK_SIZE_STEP_BYTES * MAX_CHUNK_COUNT


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def chunk_count(size: int, chunk_size: int) -> int:
    """How many chunks a file of `size` bytes has; none if it is empty."""
    return -(-size // chunk_size)


def chunk_length(number: int, size: int, chunk_size: int) -> int:
    """The length of chunk `number` in bytes: `chunk_size`, or the rest for the last one."""
    return min(chunk_size, size - number * chunk_size)


@dataclass(frozen=True, slots=True)
class Tail:
    """The first bytes of the first chunk that is not whole, `length` of them, as appends have brought them."""

    number: int
    length: int


def received_bytes(present: Sequence[bool] | bytearray, size: int, chunk_size: int, tail: Tail | None = None) -> int:
    """The bytes of the chunks that are present, and of a tail."""
    if not present:
        return 0
    last = bool(present[-1])
    whole = (sum(map(bool, present)) - last) * chunk_size + last * chunk_length(len(present) - 1, size, chunk_size)
    return whole + (tail.length if tail else 0)


def missing_ranges(present: Sequence[bool] | bytearray) -> list[tuple[int, int]]:
    """The inclusive ranges of chunk numbers that are not present, in order."""
    return as_ranges(number for number, there in enumerate(present) if not there)


def as_ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The inclusive ranges that rising chunk numbers make up."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def to_bitmap(present: Sequence[bool] | bytearray) -> bytes:
    """The chunks as a Redis bitmap: bit 0 is the highest bit of the first byte (https://redis.io/docs SETBIT)."""
    bitmap = bytearray(-(-len(present) // 8))
    for number, there in enumerate(present):
        if there:
            bitmap[number >> 3] |= 0x80 >> (number & 7)
    return bytes(bitmap)


def from_bitmap(bitmap: bytes, count: int) -> bytearray:
    """The first `count` chunks of a Redis bitmap, 1 or 0 each; what it is too short for is 0."""
    padded = bitmap.ljust(-(-count // 8), b"\0")
    return bytearray((padded[number >> 3] >> (7 - (number & 7))) & 1 for number in range(count))
