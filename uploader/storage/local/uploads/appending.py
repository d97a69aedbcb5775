"""The right to append to an upload: one holder at a time, in whatever process, and the newest wins.

The holder has one byte of the map locked, and whoever wants the right locks another one and waits: the holder sees that,
ends what it is about, and lets go. So no message is sent for it, and a crash lets go of both.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from uploader.domain.upload import Upload
from uploader.errors import UploadBusy
from uploader.storage import disk
from uploader.storage.base import Gone
from uploader.storage.local import formats
from uploader.storage.local.chunkfiles import ChunkFiles
from uploader.storage.local.uploads.waiting import is_unlinked, wait_for_lock
from uploader.tasks import Pool, uninterrupted
from uploader.wait_budget import wait_budget

# For all that others have, less what the request has waited before, so that whoever gives up has its answer within 10 s. A
# holder looks several times meanwhile, and has little left to do then.
PATIENCE_SECONDS = 8.0
# So much a map has all the same.
_LEAST_SECONDS = 1.0
_PAUSE_SECONDS = 0.002

ReadMap = Callable[[Upload], Awaitable[formats.ChunkMap]]


class LocalAppender:
    """Whoever holds the right."""

    def __init__(self, upload: Upload, descriptor: int, read_map: ReadMap, deadline: float) -> None:
        self._upload = upload
        self._descriptor = descriptor
        self._read_map = read_map
        self._deadline = deadline

    @property
    def is_claimed(self) -> bool:
        return disk.is_locked(self._descriptor, formats.CLAIM_OFFSET, 1)

    async def read_map(self) -> formats.ChunkMap:
        """A chunk whose writer still holds its record may not be durable, though its record can be read: it is waited for,
        and looked at again, for the disk may have refused it. Raises UploadBusy where that takes too long: a closer holds
        all records, perhaps to read all chunks."""
        deadline = max(self._deadline, time.monotonic() + _LEAST_SECONDS)
        while time.monotonic() < deadline:
            chunk_map = await self._read_map(self._upload)
            leading = chunk_map.leading_chunks
            length = formats.MAP_RECORD_LENGTH * leading
            if not leading:
                return chunk_map
            is_written = disk.is_locked(self._descriptor, formats.MAP_RECORDS_OFFSET, length)
            if not is_written and (await self._read_map(self._upload)).leading_chunks >= leading:
                return chunk_map
            await asyncio.sleep(_PAUSE_SECONDS)
        raise UploadBusy()


@asynccontextmanager
async def appending(upload: Upload, files: ChunkFiles, pool: Pool, read_map: ReadMap) -> AsyncIterator[LocalAppender]:
    """Have the right to append. Raises Gone, UploadBusy."""
    deadline = time.monotonic() + wait_budget().left("who appends", PATIENCE_SECONDS)
    opening = pool.run(files.open_map, upload)
    try:
        descriptor = await uninterrupted(opening)
        for offset in (formats.CLAIM_OFFSET, formats.APPEND_OFFSET):
            await wait_for_lock(descriptor, offset, 1, deadline - time.monotonic(), UploadBusy)
        disk.unlock(descriptor, formats.CLAIM_OFFSET, 1)
        if is_unlinked(descriptor):
            raise Gone(upload.id)
        # Whoever had the right before may have been killed between a record and its sync.
        await uninterrupted(pool.run(files.sync_map, descriptor))
        yield LocalAppender(upload, descriptor, read_map, deadline)
    finally:
        if opening.exception() is None:
            disk.close(opening.result())
