"""An upload whose every chunk is locked, and the changes of its files that are made then."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload
from uploader.storage import disk
from uploader.storage.base import Gone
from uploader.storage.local import formats
from uploader.storage.local.chunkfiles import ChunkFiles
from uploader.storage.local.digests import DigestFiles
from uploader.storage.local.uploads import lengths
from uploader.storage.local.uploads.badchunks import BadChunks
from uploader.storage.local.uploads.waiting import is_unlinked, wait_for_lock
from uploader.tasks import Pool

LOCK_TIMEOUT_SECONDS = 30.0


@asynccontextmanager
async def closing(upload: Upload, files: ChunkFiles, pool: Pool) -> AsyncIterator[None]:
    """Lock all chunks of an upload. Raises Gone, Unavailable."""
    descriptor = await pool.run(files.open_map, upload)
    try:
        # While the closer has the gate no writer can start, so it waits for those under way and for no others.
        await wait_for_lock(descriptor, formats.GATE_OFFSET, formats.GATE_LENGTH, LOCK_TIMEOUT_SECONDS)
        # To the end of the file.
        await wait_for_lock(descriptor, formats.MAP_RECORDS_OFFSET, 0, LOCK_TIMEOUT_SECONDS)
        if is_unlinked(descriptor):
            raise Gone(upload.id)
        yield
    finally:
        disk.close(descriptor)


class LockedFiles:
    """Changes the files of uploads whose locks its caller holds, all of them."""

    def __init__(self, root: disk.Directory, digests: DigestFiles, bad_chunks: BadChunks, pool: Pool) -> None:
        self._root = root
        self._digests = digests
        self._bad_chunks = bad_chunks
        self._pool = pool

    async def withdraw(self, upload: Upload, numbers: list[int], *, generation: int, verified: bool) -> None:
        """As `WithdrawingCloser.withdraw`."""
        async with self._digests_locked(upload) as digest:
            await self._pool.run(self._withdraw, upload, numbers, generation, digest, verified)

    def _withdraw(self, upload: Upload, numbers: list[int], generation: int, digest: int, verified: bool) -> None:
        """The digests go first: they were of these chunks, too."""
        self._digests.forget_locked(digest, generation)
        crash_point("withdraw.after_digest")
        self._bad_chunks.withdraw(upload, numbers, verified=verified)

    async def settle_length(self, upload: Upload) -> bool:
        """As `Closer.settle_length`."""
        if not await self._pool.run(lengths.needs_settling, self._root, upload):
            return False
        async with self._digests_locked(upload):
            await self._pool.run(lengths.settle, self._root, upload)
        return True

    @asynccontextmanager
    async def _digests_locked(self, upload: Upload) -> AsyncIterator[int]:
        """A worker that is hashing now would save a digest of what was."""
        descriptor = await self._pool.run(self._digests.open, upload)
        try:
            await wait_for_lock(descriptor, 0, 0, LOCK_TIMEOUT_SECONDS)
            yield descriptor
        finally:
            disk.close(descriptor)
