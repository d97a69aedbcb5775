"""Chunks that are made from a base, by instructions that are carried out while they arrive.

What is made gathers as every body does, in memory within the budget or in the spool. Beside that no more is held than one
piece of what was sent, and as much of the base; while that is compared, some MiB of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from starlette.requests import Request

from uploader.domain.delta import Copy
from uploader.domain.digest import ClaimedDigests
from uploader.errors import BaseUnusable, BodyTimeout
from uploader.http.bodies.instructions import InstructionReader
from uploader.http.bodies.intake import Intake, source_of
from uploader.http.bodies.received import ReceivedBody
from uploader.http.bodies.source import BodySource, Piece
from uploader.service.chunk import Comparing
from uploader.service.delta import DeltaBase
from uploader.storage.base import Body
from uploader.tasks import uninterrupted

_PIECE_BYTES = 256 << 10
# In one turn: what so many cost the event loop, or a thread, is about a millisecond.
_TURN_PARTS = 512


class MadeChunk:
    """The body of one request, to be received and carried out."""

    # Of the instructions; what they make is known when they have come.
    declared_bytes = None

    def __init__(
        self, intake: Intake, request: Request, claims: ClaimedDigests, open_base: Callable[[int], Awaitable[DeltaBase]]
    ) -> None:
        """`claims` are of the body as it is sent; `open_base` is told the length of the chunk."""
        self._intake = intake
        self._request = request
        self._claims = claims
        self._open_base = open_base

    async def receive(self, user_id: str, expected_bytes: int) -> Body:
        """As `ChunkSource.receive`. The base is opened before the body is asked for."""
        comparing = Comparing(self._claims)
        base = await self._open_base(expected_bytes)
        try:
            body = self._intake.gathering(user_id, expected_bytes)
            carrying = _Carrying(self._intake, source_of(self._request), comparing, base, body, expected_bytes)
            try:
                await carrying.run()
            except BaseException:
                body.close()
                raise
            return body
        except BaseUnusable:
            await base.examine()
            raise
        finally:
            await uninterrupted(base.content.close())


class _Carrying:
    """The instructions of one chunk while they are carried out."""

    def __init__(
        self,
        intake: Intake,
        source: BodySource,
        comparing: Comparing,
        base: DeltaBase,
        body: ReceivedBody,
        expected_bytes: int,
    ) -> None:
        self._source = source
        self._comparing = comparing
        self._base = base
        self._body = body
        self._reader = InstructionReader(base.size, expected_bytes, _PIECE_BYTES)
        self._piece = Piece(_PIECE_BYTES)
        self._loop = asyncio.get_running_loop()
        self._pace = intake.pace()
        self._received = 0
        self._read_at = self._loop.time()

    async def run(self) -> None:
        """Raises InvalidDelta, ChunkLengthMismatch, DigestMismatch, BaseUnusable, BodyTimeout, StorageFull,
        ClientDisconnect."""
        while not self._source.ended:
            piece = await self._read()
            await self._comparing.add((piece,))
            for turn in _turns(self._reader.feed(piece)):
                await self._add(turn)
        self._reader.end()
        self._comparing.check()
        await self._body.end()

    async def _read(self) -> memoryview:
        """The next piece. What it took to carry out the one before is not the client's."""
        self._pace.excuse(self._read_at, self._loop.time())
        await self._source.pour(self._piece, self._pace.late_at(self._source.progressed_at, self._received))
        self._received += self._piece.length
        self._read_at = self._loop.time()
        late = self._read_at >= self._pace.late_at(self._source.progressed_at, self._received)
        if late and not self._source.ended:
            raise BodyTimeout()
        return self._piece.take()

    async def _add(self, turn: list[Copy | memoryview]) -> None:
        ranges = [(part.offset, part.length) for part in turn if isinstance(part, Copy)]
        await asyncio.sleep(0)  # others have their turn in any case: not all that is copied is waited for
        copied = iter(await self._base.read(ranges))
        for part in turn:
            content = memoryview(next(copied)) if isinstance(part, Copy) else part
            await self._body.append(content, slow=self._loop.time() >= self._pace.slow_at)


def _turns(parts: Iterator[Copy | memoryview]) -> Iterator[list[Copy | memoryview]]:
    """As many parts at a time as one turn may cost."""
    turn: list[Copy | memoryview] = []
    length = 0
    for part in parts:
        turn.append(part)
        length += part.length if isinstance(part, Copy) else len(part)
        if len(turn) == _TURN_PARTS or length >= _PIECE_BYTES:
            yield turn
            turn, length = [], 0
    if turn:
        yield turn
