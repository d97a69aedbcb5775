"""Reads the instructions of a chunk as they come, in pieces of any size (`domain/delta.py` says what they are).

Pure: pieces in, parts of the chunk out, each to be copied from the base or here as it is. Whatever an instruction asks for
is compared with the base and the chunk before anybody does it.
"""

from collections.abc import Iterator

from uploader.domain.delta import COPY, COPY_KIND, LITERAL, LITERAL_KIND, MAX_INSTRUCTIONS, Copy
from uploader.errors import ChunkLengthMismatch, InvalidDelta

_LAYOUTS = {COPY_KIND: COPY, LITERAL_KIND: LITERAL}


class InstructionReader:
    """The instructions of one chunk."""

    def __init__(self, base_bytes: int, chunk_bytes: int, part_bytes: int) -> None:
        """Parts are no longer than `part_bytes`."""
        self._base_bytes = base_bytes
        self._chunk_bytes = chunk_bytes
        self._part_bytes = part_bytes
        self._head = bytearray()  # of an instruction that is not whole
        self._literal = 0  # bytes of it that are still to come
        self._instructions = 0
        self._made = 0

    def feed(self, piece: memoryview) -> Iterator[Copy | memoryview]:
        """The parts that the piece holds, in order, as views of the piece where they are literal. To be read to its end
        before the next piece. Raises InvalidDelta, ChunkLengthMismatch; then nothing more may be fed."""
        at, end = 0, len(piece)
        while at < end:
            if self._literal:
                count = min(self._literal, end - at, self._part_bytes)
                self._literal -= count
                yield piece[at : at + count]
                at += count
                continue
            layout = _LAYOUTS.get(self._head[0] if self._head else piece[at])
            if layout is None:
                raise InvalidDelta("An instruction begins with neither 00 nor 01.")
            count = min(layout.size - len(self._head), end - at)
            self._head += piece[at : at + count]
            at += count
            if len(self._head) < layout.size:
                return
            kind, *figures = layout.unpack(self._head)
            self._head.clear()
            if kind == LITERAL_KIND:
                self._literal = self._begin(figures[0])
            else:
                yield from self._copies(*figures)

    def end(self) -> None:
        """There is no more. Raises InvalidDelta, ChunkLengthMismatch if that is too early."""
        if self._head or self._literal:
            raise InvalidDelta("The body breaks off within an instruction.")
        if self._made != self._chunk_bytes:
            raise ChunkLengthMismatch(expected=self._chunk_bytes, received=self._made)

    def _begin(self, length: int) -> int:
        """One more instruction, that makes so much of the chunk."""
        self._instructions += 1
        if self._instructions > MAX_INSTRUCTIONS:
            raise InvalidDelta(f"There are more than {MAX_INSTRUCTIONS} instructions.")
        self._made += length
        if self._made > self._chunk_bytes:
            raise ChunkLengthMismatch(expected=self._chunk_bytes, received=self._made)
        return length

    def _copies(self, offset: int, length: int) -> Iterator[Copy]:
        end = offset + length
        if end > self._base_bytes:
            raise InvalidDelta(
                f"An instruction copies from beyond the end of the base, which has {self._base_bytes} bytes."
            )
        self._begin(length)
        for start in range(offset, end, self._part_bytes):
            yield Copy(start, min(self._part_bytes, end - start))
