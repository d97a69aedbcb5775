"""The locks of an upload, and the right to append to it: nobody waits in a thread, and a crash lets go of all.

One appends at a time, in whatever process, and the newest wins: the holder has one byte of the map locked, and whoever wants
the right locks another one and waits. The holder sees that, ends what it is about, and lets go; no message is sent for it.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from uploader.domain.upload import Upload
from uploader.errors import Unavailable, Unverified, UploadBusy
from uploader.storage import disk
from uploader.storage.base import Gone
from uploader.storage.disk import try_lock
from uploader.storage.local import formats
from uploader.storage.local.chunkfiles import ChunkFiles, let_go
from uploader.storage.local.temp import KeptFiles, OpenFiles
from uploader.tasks import Pool, uninterrupted
from uploader.wait_budget import wait_budget

# Who has a lock for longer may wait for a store that is silent.
_LONG_SECONDS = 1.0
# For all that others have, less what the request has waited before, so that whoever gives up has its answer within 10 s. A
# holder looks several times meanwhile, and has little left to do then.
PATIENCE_SECONDS = 8.0
# So much a map has all the same.
_LEAST_SECONDS = 1.0
_PAUSE_SECONDS = 0.002


async def wait_for_lock(
    descriptor: int, start: int, length: int, timeout_seconds: float, refusal: type[Unavailable] = Unavailable
) -> None:
    """Raises `refusal` if others keep it for that long."""
    began, pause = time.monotonic(), 0.0005
    while not try_lock(descriptor, start, length):
        if time.monotonic() > began + timeout_seconds:
            raise refusal("This upload is busy; try again.")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.01)
    note_wait(began)


def note_wait(began: float) -> None:
    """A lock was waited for since then."""
    wait_budget().note(began, _LONG_SECONDS)


def is_unlinked(descriptor: int) -> bool:
    try:
        return disk.is_unlinked(descriptor)
    except OSError as error:
        raise disk.refusal(error) from error


class LocalAppender:
    """Whoever holds the right, by files of its own: those of the chunks that it stores are others."""

    def __init__(self, upload: Upload, chunks: ChunkFiles, kept: KeptFiles, pool: Pool) -> None:
        self._upload = upload
        self._chunks = chunks
        self._kept = kept
        self._pool = pool
        # For all that others have, together.
        self._deadline = time.monotonic() + wait_budget().left("who appends", PATIENCE_SECONDS)
        self._files: OpenFiles
        # What was read with the right, for whoever asks first.
        self._first: formats.ChunkMap | None = None

    async def begin(self) -> None:
        """Get the right. Raises Gone, UploadBusy."""
        files = self._kept.take(self._upload.id)
        if files is not None:
            try:
                await self._lock(files)
            except Gone:  # or the files that were open were replaced
                files = None
        if files is None:
            await self._lock(await self._open())

    async def _open(self) -> OpenFiles:
        opening = self._pool.run(self._chunks.open, self._upload)
        try:
            return await uninterrupted(opening)
        except Unverified as error:
            raise Gone(self._upload.id) from error  # there is no data beside the map
        except asyncio.CancelledError:
            if opening.exception() is None:
                self._kept.drop(opening.result())
            raise

    async def _lock(self, files: OpenFiles) -> None:
        try:
            for offset in (formats.CLAIM_OFFSET, formats.APPEND_OFFSET):
                await wait_for_lock(files.map, offset, 1, self._deadline - time.monotonic(), UploadBusy)
            disk.unlock(files.map, formats.CLAIM_OFFSET, 1)
            self._first = await uninterrupted(self._pool.run(self._chunks.begin_append, self._upload, files))
        except BaseException:
            let_go(files, self._kept.drop)
            raise
        self._files = files

    def end(self) -> None:
        """Let go of it."""
        let_go(self._files, self._kept.keep)

    @property
    def is_claimed(self) -> bool:
        return disk.is_locked(self._files.map, formats.CLAIM_OFFSET, 1)

    async def read_map(self) -> formats.ChunkMap:
        """Raises UploadBusy where a chunk is written for too long: a closer holds all records, perhaps to read all of it."""
        chunk_map, self._first = self._first, None
        deadline = max(self._deadline, time.monotonic() + _LEAST_SECONDS)
        while chunk_map is None:
            if time.monotonic() > deadline:
                raise UploadBusy()
            chunk_map = await uninterrupted(self._pool.run(self._chunks.read_settled, self._upload, self._files))
            if chunk_map is None:
                await asyncio.sleep(_PAUSE_SECONDS)
        return chunk_map


@asynccontextmanager
async def appending(upload: Upload, chunks: ChunkFiles, kept: KeptFiles, pool: Pool) -> AsyncIterator[LocalAppender]:
    """Have the right to append. Raises Gone, UploadBusy."""
    appender = LocalAppender(upload, chunks, kept, pool)
    await appender.begin()
    try:
        yield appender
    finally:
        appender.end()
