"""Chunks made from a delta base by instructions (`domain/delta.py`).

Thirteen bytes can ask for 64 MiB of the base. Therefore the first MiB of a body is received and checked before any byte is
copied: a refused short body costs no more than its length. The rest of a longer body is executed while it arrives.

`InstructionReader` is pure: it turns pieces of the body into parts of the chunk. The instructions and the chunk gather like
every body. Beyond that, memory holds one piece of the instructions and 1 MiB of the base; some MiB while the base is
compared.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from starlette.requests import Request

from uploader.domain.delta import COPY, COPY_KIND, LITERAL, LITERAL_KIND, MAX_INSTRUCTIONS, Copy
from uploader.domain.digest import ClaimedDigests
from uploader.domain.links import Caller
from uploader.errors import BaseUnusable, ChunkLengthMismatch, InvalidDelta
from uploader.http.bodies.body import ReceivedBody
from uploader.http.bodies.intake import PIECE_BYTES, Intake, Pace, PieceReader, source_of
from uploader.runtime.meter import Kind, go_on
from uploader.runtime.tasks import in_thread, uninterrupted
from uploader.service.chunk import Comparing
from uploader.service.delta import DeltaBase
from uploader.storage.base import Body

_LAYOUTS = {COPY_KIND: COPY, LITERAL_KIND: LITERAL}

# Parts and bytes to make in one turn of the event loop or a thread; about a millisecond.
_TURN_PARTS = 512
_TURN_BYTES = 1 << 20
# Bytes to check before the chunk is made. A chunk without literal bytes always needs fewer.
CHECKED_BYTES = 1 << 20


class InstructionReader:
    def __init__(self, base_bytes: int, chunk_bytes: int, part_bytes: int) -> None:
        self._base_bytes = base_bytes
        self._chunk_bytes = chunk_bytes
        self._part_bytes = part_bytes
        self._head = bytearray()  # the beginning of an incomplete instruction
        self._literal = 0  # literal bytes still to come
        self._instructions = 0
        self._made = 0

    def feed(self, piece: memoryview) -> Iterator[Copy | memoryview]:
        """Yield the parts of a piece in order; literal parts are views of the piece. Read to the end before the next call.
        Raises InvalidDelta, ChunkLengthMismatch; afterwards the reader is unusable."""
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
        """Raises InvalidDelta or ChunkLengthMismatch if instructions are missing."""
        if self._head or self._literal:
            raise InvalidDelta("The body ends within an instruction.")
        if self._made != self._chunk_bytes:
            raise ChunkLengthMismatch(expected=self._chunk_bytes, received=self._made)

    def _begin(self, length: int) -> int:
        self._instructions += 1
        if self._instructions > MAX_INSTRUCTIONS:
            raise InvalidDelta(f"The body has more than {MAX_INSTRUCTIONS} instructions.")
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


@dataclass(frozen=True, slots=True)
class DeltaChunk:
    # The length of the chunk is known only after all instructions.
    declared_bytes = None

    # `claims` are digests of the body as sent; `open_base` gets the length of the chunk.
    intake: Intake
    request: Request
    claims: ClaimedDigests
    open_base: Callable[[int], Awaitable[DeltaBase]]

    async def receive(self, caller: Caller, expected_bytes: int) -> Body:
        """Receive as `ChunkSource.receive`; open the base before reading the body."""
        comparing = Comparing(self.claims)
        base = await self.open_base(expected_bytes)
        sent = self.intake.gathering(caller, CHECKED_BYTES + PIECE_BYTES)
        body = self.intake.gathering(caller, expected_bytes)
        try:
            await self._carry_out(comparing, base, sent, body, expected_bytes)
        except BaseException as error:
            body.close()
            if isinstance(error, BaseUnusable):
                await base.examine()
            raise
        finally:
            sent.close()
            await uninterrupted(base.content.close())
        return body

    async def _carry_out(
        self, comparing: Comparing, base: DeltaBase, sent: ReceivedBody, body: ReceivedBody, expected_bytes: int
    ) -> None:
        pace, loop = self.intake.pace(), asyncio.get_running_loop()
        source = PieceReader(source_of(self.request), pace)
        while not source.ended and sent.length < CHECKED_BYTES:
            await sent.append(await _read(source, comparing), slow=loop.time() >= pace.slow_at)
        await sent.end()
        await uninterrupted(in_thread(_check, sent, base, expected_bytes, source.ended))
        if source.ended:
            comparing.check()
        reader = InstructionReader(base.size, expected_bytes, PIECE_BYTES)
        pieces = iter(sent.pieces())
        while (piece := await _next(pieces, sent)) is not None:
            await _make(reader.feed(piece), base, body, pace)
        while not source.ended:
            await _make(reader.feed(await _read(source, comparing)), base, body, pace)
        reader.end()
        comparing.check()
        await body.end()


async def _read(source: PieceReader, comparing: Comparing) -> memoryview:
    piece = await source.read()
    if source.failure is not None:
        raise source.failure
    await comparing.add((piece,))
    return piece


async def _next(pieces: Iterator[memoryview], sent: ReceivedBody) -> memoryview | None:
    return next(pieces, None) if sent.in_memory else await uninterrupted(in_thread(next, pieces, None))


def _check(sent: ReceivedBody, base: DeltaBase, chunk_bytes: int, is_whole: bool) -> None:
    """Check instructions without executing them. Raises InvalidDelta, ChunkLengthMismatch."""
    reader = InstructionReader(base.size, chunk_bytes, PIECE_BYTES)
    parts = chain.from_iterable(map(reader.feed, sent.pieces()))
    base.check([(part.offset, part.length) for part in parts if isinstance(part, Copy)])
    if is_whole:
        reader.end()


async def _make(parts: Iterator[Copy | memoryview], base: DeltaBase, body: ReceivedBody, pace: Pace) -> None:
    for turn in _turns(parts):
        await _add(turn, base, body, pace)


async def _add(turn: list[Copy | memoryview], base: DeltaBase, body: ReceivedBody, pace: Pace) -> None:
    ranges = [(part.offset, part.length) for part in turn if isinstance(part, Copy)]
    await asyncio.sleep(0)  # other requests get a turn, because copying does not always wait
    await go_on(Kind.MADE, sum(length for _, length in ranges))
    copied, loop = iter(await base.read(ranges)), asyncio.get_running_loop()
    for part in turn:
        content = memoryview(next(copied)) if isinstance(part, Copy) else part
        await body.append(content, slow=loop.time() >= pace.slow_at)


def _turns(parts: Iterator[Copy | memoryview]) -> Iterator[list[Copy | memoryview]]:
    turn: list[Copy | memoryview] = []
    length = 0
    for part in parts:
        turn.append(part)
        length += part.length if isinstance(part, Copy) else len(part)
        if len(turn) == _TURN_PARTS or length >= _TURN_BYTES:
            yield turn
            turn, length = [], 0
    if turn:
        yield turn
