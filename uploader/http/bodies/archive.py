"""Unpacks a tar archive while it arrives; each file becomes a body."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Generic, TypeVar

from starlette.requests import ClientDisconnect

from uploader.domain.archive import ArchiveReader, MalformedArchive, Member
from uploader.domain.links import Caller
from uploader.errors import BodyTimeout, InvalidArchive, UploaderError
from uploader.http.bodies.body import ReceivedBody
from uploader.http.bodies.intake import GRACE_SECONDS, BodySource, Intake, PieceReader
from uploader.runtime.meter import Kind, charge
from uploader.storage.base import Body

T = TypeVar("T")

_TOO_SLOW = "The archive came too slowly; what is in `results` stands."
# Members to handle before other requests get a turn; this many take about a millisecond.
_TURN_MEMBERS = 32
# CPU time to charge for a member, without the work in threads.
_MEMBER_SECONDS = 1e-4


class Unpacking(Generic[T]):
    def __init__(self, intake: Intake, source: BodySource, caller: Caller, admit: Callable[[Member], T]) -> None:
        """`admit` returns the caller's object for a file. Called once per file, in order; if it raises, the bytes of the
        file are skipped."""
        self._intake = intake
        self._source = PieceReader(source, intake.pace(), _TOO_SLOW)
        self._caller = caller
        self._admit = admit
        self._loop = asyncio.get_running_loop()
        self._looked_at = 0
        # The current file, its size, and the bytes received so far.
        self._file: T | None = None
        self._size = 0
        self._body: ReceivedBody | None = None
        self._slow_at = 0.0
        self._failure: UploaderError | ClientDisconnect | None = None

    @property
    def failure(self) -> UploaderError | ClientDisconnect | None:
        return self._failure or self._source.failure

    async def entries(self) -> AsyncGenerator[tuple[T, Body] | UploaderError, None]:
        """Yield each file with its body, or an error for a refused file. The caller must close the body. Files already
        yielded stay valid if `failure` is set later. Use `aclosing` unless you read to the end."""
        reader = ArchiveReader()
        try:
            while not self._source.ended:
                await asyncio.sleep(0)  # headers may take milliseconds, and reading does not always wait
                if self._source.failure is not None:
                    raise self._source.failure
                for found in reader.feed(await self._source.read()):
                    entry = await self._begin(found) if isinstance(found, Member) else await self._add(found)
                    if entry is not None:
                        yield entry
            reader.end()
        except MalformedArchive as error:
            self._failure = InvalidArchive(str(error))
        except (BodyTimeout, ClientDisconnect) as error:
            self._failure = error
        finally:
            self._drop()

    async def _begin(self, member: Member) -> tuple[T, Body] | UploaderError | None:
        self._looked_at += 1
        charge(Kind.REQUESTS, _MEMBER_SECONDS)
        if self._looked_at % _TURN_MEMBERS == 0:
            await asyncio.sleep(0)
        self._file, self._size = None, member.size
        try:
            self._file = self._admit(member)
        except UploaderError as error:
            return error.with_traceback(None)  # the traceback would keep local variables alive
        return None if member.size else await self._add(memoryview(b""))

    async def _add(self, content: memoryview) -> tuple[T, Body] | UploaderError | None:
        """Add bytes to the current file. Return the file and its body when all bytes are there."""
        if self._file is None:
            return None
        if self._body is None and len(content) == self._size:
            whole = self._intake.whole(self._caller, content)
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
        """Raises StorageFull."""
        if self._body is None:
            self._body = self._intake.gathering(self._caller, self._size)
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
