"""The use case of one chunk: admitted, stored, answered. Disk, then Redis; no SQL for an upload this process has met."""

import time
from collections import OrderedDict
from dataclasses import replace

from uploader.accounting.pending import Outcome, Pending
from uploader.crashpoints import crash_point
from uploader.database.transactions import NotOpen
from uploader.domain.chunks import chunk_count, chunk_length
from uploader.domain.upload import Upload
from uploader.errors import (
    ChunkLengthMismatch,
    ChunkNumberOutOfRange,
    InvalidRequest,
    Unavailable,
    Unverified,
    UploaderError,
)
from uploader.observability import BYTES_RECEIVED, CHUNK_SECONDS, CHUNKS
from uploader.service.uploads.closers import Closers
from uploader.service.uploads.results import Acknowledged, Answer, Complete, Stored, Target
from uploader.service.uploads.status import ATTEMPTS, Uploads
from uploader.storage.base import Body, Gone, Storage
from uploader.tasks import uninterrupted

# How many open uploads a process remembers the unchanging facts of.
_REMEMBERED_UPLOADS = 10_000
# What `record_chunk` says of a chunk that counts; every other word sends the caller back to the database.
_COUNTED = frozenset({Outcome.RECORDED, Outcome.DUPLICATE, Outcome.MERGING})


class Chunks:
    """Takes chunks."""

    def __init__(self, storage: Storage, pending: Pending, closers: Closers, uploads: Uploads) -> None:
        self._storage = storage
        self._pending = pending
        self._closers = closers
        self._uploads = uploads
        self._remembered: OrderedDict[Target, Upload] = OrderedDict()

    async def admit(self, target: Target, number: int, length_bytes: int | None) -> Upload | Answer:
        """The upload that is to take a chunk, before its body is read; or the answer, if the body is not needed.

        Usually from memory: the size, chunk size and place of an upload do not change. `length_bytes` is None where it is
        not known yet. Raises UploadNotFound, UploadGone, ChunkNumberOutOfRange, ChunkLengthMismatch.
        """
        upload = self._remembered.get(target)
        if upload is not None and _refusal(upload, number, length_bytes) is None:
            self._remembered.move_to_end(target)
            return upload
        found = await self._find_and_remember(target)
        if isinstance(found, Complete):
            return found
        refusal = _refusal(found, number, length_bytes)
        return found if refusal is None else await self.refuse(target, found, number, refusal)

    async def _find_and_remember(self, target: Target) -> Upload | Complete:
        self._remembered.pop(target, None)
        found = await self._uploads.find(target)
        if isinstance(found, Upload):
            self._remember(target, found)
        return found

    def expect(self, upload: Upload) -> None:
        """Chunks of this open upload will come, under either of its names."""
        self._remember(Target(upload.user_id, upload_id=upload.id), upload)
        if upload.md5 is not None:
            self._remember(Target(upload.user_id, upload.md5), upload)

    def _remember(self, target: Target, upload: Upload) -> None:
        self._remembered[target] = upload
        if len(self._remembered) > _REMEMBERED_UPLOADS:
            self._remembered.popitem(last=False)

    async def store(self, target: Target, upload: Upload, number: int, body: Body) -> Stored | Complete:
        """Put a chunk that was received whole, with the right length, on disk and into the accounts.

        `answer` gives what to say; the body is not needed for that any more. Raises StorageFull, Unavailable, and as
        `admit`.
        """
        started = time.perf_counter()
        for _ in range(2):
            try:
                stored = await uninterrupted(self._hold_and_record(upload, number, body))
            except (Gone, NotOpen):
                stored = None
            if stored is not None and stored.figures.outcome in _COUNTED:
                CHUNK_SECONDS.observe(time.perf_counter() - started)
                return stored
            # What this process remembers is out of date: the upload was closed, perhaps opened anew.
            found = await self._find_and_remember(target)
            if isinstance(found, Complete):
                return found
            upload = found
            refusal = _refusal(upload, number, body.length)
            if refusal is not None:
                raise refusal
        raise Unavailable("This upload is changing too fast, or its bytes can't be found; try again.")

    async def _hold_and_record(self, upload: Upload, number: int, body: Body | None) -> Stored:
        """Disk, then Redis, under the lock of the chunk's record. A chunk on the map is recorded all the same, because a
        crash may have come between the two."""
        length = chunk_length(number, upload.size, upload.chunk_size)
        written = False
        for _ in range(ATTEMPTS):
            try:
                held = await self._storage.hold_chunk(upload, number, body)
            except Unverified:
                await self._closers.hydrate(upload)
                continue
            written = written or held.written
            try:
                figures = await self._pending.record_chunk(upload.id, number, length)
                crash_point("chunk.after_record")
            finally:
                held.release()
            if figures.outcome is not Outcome.REHYDRATE:
                return Stored(upload=upload, number=number, figures=figures, written=written, length_bytes=length)
            # Hydrating adds the chunk: it is on the map. It is recorded again to learn where the upload stands.
            await self._closers.hydrate(upload)
        raise Unavailable("The accounting store keeps restarting; try again.")

    async def answer(self, stored: Stored) -> Answer:
        """What to say of a chunk that counts; the last one merges. Raises as the merge does."""
        figures = stored.figures
        new = stored.written or figures.outcome is Outcome.RECORDED
        CHUNKS.labels("recorded" if new else figures.outcome.value).inc()
        if new:
            BYTES_RECEIVED.inc(stored.length_bytes)
        if not figures.settled:
            await self._storage.keep_pace(stored.upload, stored.number)
            return Acknowledged(
                received_bytes=figures.received,
                received_chunks=figures.chunks,
                chunk_count=figures.chunk_count,
                duplicate=not new,
            )
        answer = await self._uploads.merge_now(stored.upload)
        return replace(answer, created=new) if isinstance(answer, Complete) else answer

    async def refuse(self, target: Target, upload: Upload, number: int, error: UploaderError) -> Answer:
        """What a chunk with a bad number or body is answered: the state of the upload and a duplicate go before `error`."""
        found = await self._find_and_remember(target)
        if isinstance(found, Complete):
            return found
        if found.id != upload.id:
            raise Unavailable("The upload was opened anew meanwhile; send the chunk again.")
        if number < chunk_count(found.size, found.chunk_size):
            try:
                if (await self._closers.read_map(found)).present[number]:
                    stored = await uninterrupted(self._hold_and_record(found, number, None))
                    if stored.figures.outcome in _COUNTED:
                        return await self.answer(stored)
            except (Gone, NotOpen) as gone:
                raise Unavailable("The upload is changing; send the chunk again.") from gone
        CHUNKS.labels(error.code).inc()
        raise error


def _refusal(upload: Upload, number: int, length_bytes: int | None) -> InvalidRequest | None:
    """What is wrong with the number or the length of a chunk, where it is known."""
    count = chunk_count(upload.size, upload.chunk_size)
    if number >= count:
        return ChunkNumberOutOfRange(f"This upload has {count} chunks, from 0 to {count - 1}.")
    expected = chunk_length(number, upload.size, upload.chunk_size)
    if length_bytes not in (None, expected):
        return ChunkLengthMismatch(expected=expected, received=length_bytes)
    return None
