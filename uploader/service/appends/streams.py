"""One stream, cut at the borders of chunks: while a part of it is stored, the next one arrives."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from uploader.domain.chunks import chunk_length
from uploader.domain.upload import Upload
from uploader.errors import FileTooLarge, LengthExceeded
from uploader.service.appends.sources import AppendSource, Part
from uploader.storage.base import Appender, Body
from uploader.tasks import uninterrupted

# Puts a part of a chunk, which begins in it at so many bytes, where it belongs.
StorePart = Callable[[Upload, int, int, Body], Awaitable[None]]
# Reserves so many bytes for an upload whose length is not known.
Reserve = Callable[[Upload, int], Awaitable[Upload]]


class AppendedStream:
    """One stream: while a part of it is stored, the next one arrives."""

    def __init__(
        self,
        upload: Upload,
        offset: int,
        source: AppendSource,
        appender: Appender,
        *,
        limit_bytes: int,
        reserve: Reserve,
        store: StorePart,
    ) -> None:
        """`limit_bytes`: how long the upload may become."""
        self._reserve = reserve
        self._put = store
        self._upload = upload
        self._position = offset
        self._limit_bytes = limit_bytes
        self._source = source
        self._appender = appender
        self._storing: asyncio.Task[None] | None = None

    async def take(self) -> tuple[Upload, int]:
        """Store all of it that comes; returns the upload as it is then, and where the bytes of this stream end in it. Raises
        what ended it before its end, and as the storing of its parts."""
        try:
            if self._position == self._limit_bytes:
                await self._refuse_any()
            more = True
            while more and self._position < self._limit_bytes:
                more = await self._take_part()
        finally:
            await self._end_of_storing()
        return self._upload, self._position

    async def _take_part(self) -> bool:
        """Whether there may be more."""
        number, start = divmod(self._position, self._upload.chunk_size)
        part = await self._receive(chunk_length(number, self._limit_bytes, self._upload.chunk_size) - start)
        try:
            if self._position + part.body.length == self._limit_bytes and not part.ended and part.error is None:
                part = replace(part, error=await self._look_beyond())
            await self._end_of_storing()
            self._source.stored(self._position)
        except asyncio.CancelledError as ending:
            part = replace(part, error=ending)
        except BaseException:
            part.body.close()
            raise
        self._position += part.body.length
        self._storing = asyncio.create_task(self._store(number, start, part.body))
        if part.error is not None:
            await self._end_of_storing()
            raise part.error
        return not part.ended

    async def _receive(self, limit: int) -> Part:
        return await self._source.receive_part(self._upload.user_id, limit, lambda: not self._appender.is_claimed)

    async def _refuse_any(self) -> None:
        """Where nothing more can be stored. Raises FileTooLarge, and what ended the stream before its end."""
        error = None if self._source.declared_bytes == 0 else await self._look_beyond()
        if error is not None:
            raise error

    async def _look_beyond(self) -> BaseException | None:
        """What ended the stream before its end, though all that may be stored has come: asked before the last bytes are
        stored, which make a file. Raises FileTooLarge."""
        further = await self._receive(1)
        further.body.close()
        if further.body.length:
            raise length_exceeded(self._upload, self._limit_bytes)
        return None if further.ended else further.error

    async def _store(self, number: int, start: int, body: Body) -> None:
        try:
            if body.length:
                end = number * self._upload.chunk_size + start + body.length
                self._upload = await self._reserve(self._upload, end)
                await self._put(self._upload, number, start, body)
        finally:
            body.close()

    async def _end_of_storing(self) -> None:
        storing, self._storing = self._storing, None
        if storing is None:
            return
        try:
            await uninterrupted(storing)
        except asyncio.CancelledError:
            storing.result()  # after a part that is not stored no other one is
            raise


def length_exceeded(upload: Upload, limit_bytes: int) -> FileTooLarge:
    """What it is if more than that comes."""
    return LengthExceeded(limit=limit_bytes) if upload.length_known else FileTooLarge(limit=limit_bytes)
