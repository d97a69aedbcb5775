"""Takes the files out of an archive while it comes: each is a body of its own, in memory within the budget or in the spool.

Of the archive itself no more is held than one piece.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Generic, TypeVar

from starlette.requests import ClientDisconnect

from uploader.errors import BodyTimeout, InvalidArchive, UploaderError
from uploader.http.bodies.archive import ArchiveReader, Member
from uploader.http.bodies.intake import Intake
from uploader.http.bodies.pace import GRACE_SECONDS
from uploader.http.bodies.received import ReceivedBody
from uploader.http.bodies.source import BodySource, Piece
from uploader.storage.base import Body

T = TypeVar("T")

_PIECE_BYTES = 256 << 10
# Of one piece, before all others have their turn: what so many cost is about a millisecond.
_TURN_MEMBERS = 32


class Unpacking(Generic[T]):
    """The files of one archive."""

    def __init__(self, intake: Intake, source: BodySource, user_id: str, admit: Callable[[Member], T]) -> None:
        """`admit` is asked for each member, in order: it says what the file is to be, or raises why there will be none, and
        then its bytes are skipped."""
        self._intake = intake
        self._source = source
        self._user_id = user_id
        self._admit = admit
        self._loop = asyncio.get_running_loop()
        self._pace = intake.pace()
        self._piece = Piece(_PIECE_BYTES)
        self._received = 0
        self._read_at = self._loop.time()
        self._looked_at = 0
        # The file that comes now, how long it is, and what there is of it.
        self._file: T | None = None
        self._size = 0
        self._body: ReceivedBody | None = None
        self._slow_at = 0.0
        # Why there is no more, where the archive did not end.
        self.failure: UploaderError | ClientDisconnect | None = None

    async def entries(self) -> AsyncGenerator[tuple[T, Body] | UploaderError, None]:
        """Each file with its bytes, which its taker closes, or why it is refused. What was given stands, whatever `failure`
        says in the end. To be closed (`aclosing`), if not read to its end."""
        reader = ArchiveReader()
        try:
            while not self._source.ended:
                await asyncio.sleep(0)  # headers may take milliseconds, and not all pieces are waited for
                for found in reader.feed(await self._read()):
                    entry = await self._begin(found) if isinstance(found, Member) else await self._add(found)
                    if entry is not None:
                        yield entry
            reader.end()
        except (InvalidArchive, BodyTimeout, ClientDisconnect) as error:
            self.failure = error
        finally:
            self._drop()

    async def _read(self) -> memoryview:
        """The next piece. Raises BodyTimeout, ClientDisconnect, once there is no more of it."""
        if self.failure is not None:
            raise self.failure
        self._pace.excuse(self._read_at, self._loop.time())
        try:
            await self._source.pour(self._piece, self._pace.late_at(self._source.progressed_at, self._received))
        except ClientDisconnect as error:
            self.failure = error
        self._received += self._piece.length
        self._read_at = self._loop.time()
        late = self._read_at >= self._pace.late_at(self._source.progressed_at, self._received)
        if late and not self._source.ended:
            self.failure = self.failure or BodyTimeout("The archive came too slowly; what is in `results` stands.")
        return self._piece.take()

    async def _begin(self, member: Member) -> tuple[T, Body] | UploaderError | None:
        self._looked_at += 1
        if self._looked_at % _TURN_MEMBERS == 0:
            await asyncio.sleep(0)
        self._file, self._size = None, member.size
        try:
            self._file = self._admit(member)
        except UploaderError as error:
            return error.with_traceback(None)  # which would keep all that was at hand here, until it is answered
        return None if member.size else await self._add(memoryview(b""))

    async def _add(self, content: memoryview) -> tuple[T, Body] | UploaderError | None:
        """Bytes of the file that comes now; the file, if these are its last."""
        if self._file is None:
            return None
        if self._body is None and len(content) == self._size:
            whole = self._intake.whole(self._user_id, content)
            if whole is not None:
                return self._file, whole
        try:
            body = await self._gather(content)
        except UploaderError as error:
            self._file = None
            self._drop()
            return error
        if body.length < self._size:
            return None
        self._body = None
        return self._file, body

    async def _gather(self, content: memoryview) -> ReceivedBody:
        """What there is of a file that comes in several pieces, or for which there was no memory. Raises StorageFull."""
        if self._body is None:
            self._body = self._intake.gathering(self._user_id, self._size)
            self._slow_at = self._loop.time() + GRACE_SECONDS
        body = self._body
        await body.append(content, slow=self._loop.time() >= self._slow_at)
        if body.length == self._size:
            await body.end()
        return body

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None
