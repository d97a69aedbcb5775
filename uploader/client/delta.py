"""Finds the parts of a source that the server has, by the signature of a file on the server, and writes chunks as
instructions.

The source is cut once, as the signature prescribes, and only as far as chunks are requested.
"""

import asyncio
import time
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate

import msgspec

from uploader.client.model import File
from uploader.client.plan import Part
from uploader.client.source import Source
from uploader.domain.delta import (
    ALGORITHM,
    HASH,
    MAX_INSTRUCTIONS,
    RECORD,
    Copy,
    Cuts,
    cuts_for,
    literal_head,
    load_cutter,
    pieces_of,
)
from uploader.runtime.tasks import uninterrupted

_READ_BYTES = 1 << 20


class _Head(msgspec.Struct):
    """The first line of a signature; members without use here are left out."""

    algorithm: str
    min: int
    avg: int
    max: int
    hash: str
    size: int


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Bytes of the source, and their offset in the base, if the base has them."""

    offset: int
    length: int
    base_offset: int | None

    def is_followed_by(self, other: "_Stretch") -> bool:
        if self.base_offset is None or other.base_offset is None:
            return self.base_offset is other.base_offset
        return self.base_offset + self.length == other.base_offset


def cutting_seconds(source: Source, length: int) -> float:
    """Measure how long it takes to cut the first `length` bytes of a source. Raises FileChanged, Unreadable."""
    load_cutter()
    began_at = time.perf_counter()  # a matter of milliseconds, which `time.monotonic` on Windows does not resolve
    for _ in pieces_of(_Reading(source, length), cuts_for(source.size)):
        pass
    return time.perf_counter() - began_at


class Known:
    def __init__(self, source: Source, base: File, signature: bytes) -> None:
        """Raises ValueError for a malformed signature, or one of an unknown kind."""
        head, cuts, records = _read(signature)
        if head.size != base.size or sum(length for length, _ in records) != base.size:
            raise ValueError("the signature is of something else")
        self.base_id = base.id
        starts = accumulate((length for length, _ in records), initial=0)
        self._offsets = dict(zip(records, starts, strict=False))
        self._pieces = pieces_of(_Reading(source, source.size), cuts)
        self._source = source
        self._stretches: list[_Stretch] = []
        self._end = 0
        self._cutting = asyncio.Lock()

    async def parts_of(self, offset: int, length: int) -> list[Part] | None:
        """Return the body that makes these bytes from the base; None if most are new. Raises FileChanged, Unreadable."""
        async with self._cutting:
            if self._end < offset + length:
                await uninterrupted(asyncio.to_thread(self._cut, offset + length))
        stretches = self._within(offset, offset + length)
        new_bytes = sum(each.length for each in stretches if each.base_offset is None)
        if 2 * new_bytes > length or len(stretches) > MAX_INSTRUCTIONS:
            return None
        return [_part(each) for each in stretches]

    def _cut(self, end: int) -> None:
        for record in self._pieces:
            self._stretches.append(_Stretch(self._end, record[0], self._offsets.get(record)))
            self._end += record[0]
            if self._end >= end:
                return
        self._source.check()

    def _within(self, start: int, end: int) -> list[_Stretch]:
        """Return the stretches between two offsets, as few as possible."""
        found: list[_Stretch] = []
        first = bisect_right(self._stretches, start, key=lambda stretch: stretch.offset) - 1
        for stretch in self._stretches[first:]:
            if stretch.offset >= end:
                break
            skipped = max(0, start - stretch.offset)
            length = min(end, stretch.offset + stretch.length) - stretch.offset - skipped
            base_offset = None if stretch.base_offset is None else stretch.base_offset + skipped
            each = _Stretch(stretch.offset + skipped, length, base_offset)
            if found and found[-1].is_followed_by(each):
                found[-1] = replace(found[-1], length=found[-1].length + length)
            else:
                found.append(each)
        return found


class _Reading:
    def __init__(self, source: Source, end: int) -> None:
        self._source = source
        self._position = 0
        self._end = end

    def readinto(self, buffer: memoryview, /) -> int:
        count = min(len(buffer), _READ_BYTES, self._end - self._position)
        buffer[:count] = self._source.read(self._position, count)
        self._position += count
        return count


def _read(signature: bytes) -> tuple[_Head, Cuts, list[tuple[int, bytes]]]:
    """Raises ValueError."""
    line, _, content = signature.partition(b"\n")
    try:
        head = msgspec.json.decode(line, type=_Head)
    except msgspec.MsgspecError as error:
        raise ValueError("the signature begins with something else") from error
    if (head.algorithm, head.hash) != (ALGORITHM, HASH) or len(content) % RECORD.size:
        raise ValueError("the signature is of a kind that is not known here")
    return head, Cuts(head.min, head.avg, head.max), list(RECORD.iter_unpack(content))


def _part(stretch: _Stretch) -> Part:
    if stretch.base_offset is None:
        return Part(literal_head(stretch.length), stretch.offset, stretch.length)
    return Part(Copy(stretch.base_offset, stretch.length).encode(), stretch.offset, 0)
