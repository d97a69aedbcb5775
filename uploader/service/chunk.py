"""The use case of one chunk, from its first header to its answer. No SQL for an upload that this process has met.

Owns the order: the upload is found; the body is received whole and compared with its digests, stored on disk, recorded in
Redis, and answered; the last chunk merges. A chunk that was acknowledged before is a duplicate, whatever a call has wrong.
"""

import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Protocol

from uploader import errors
from uploader.accounting.pending import Outcome, Pending, RecordResult
from uploader.database.engine import Database
from uploader.database.transactions.rows import NotOpen
from uploader.domain.digest import ClaimedDigests
from uploader.domain.links import Caller
from uploader.domain.upload import Upload, chunk_count, chunk_length
from uploader.runtime import breaker
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.observability import BYTES_RECEIVED, CHUNK_SECONDS, CHUNKS
from uploader.runtime.tasks import in_thread, uninterrupted
from uploader.service.close import Closers
from uploader.service.results import Acknowledged, Complete, Result, Target
from uploader.service.status import ATTEMPTS, Uploads
from uploader.storage.base import Body, Gone, UploadBytes

_PYTHON_NAMES = {"md5": "md5", "sha-256": "sha256"}


class Comparing:
    def __init__(self, claims: ClaimedDigests) -> None:
        """Raises DigestMismatch for digests that are none."""
        try:
            self._wanted = claims.parse()
        except ValueError as error:
            raise errors.DigestMismatch(f"The digest sent with the chunk {error}.") from error
        self._hashes = {name: hashlib.new(_PYTHON_NAMES[name], usedforsecurity=False) for name in self._wanted}

    async def add(self, pieces: Iterable[memoryview]) -> None:
        """Take the next bytes, to their end in any case: their memory may be used again afterwards."""
        if self._hashes:
            await uninterrupted(in_thread(self._update, pieces))

    def _update(self, pieces: Iterable[memoryview]) -> None:
        for piece in pieces:
            for computing in self._hashes.values():
                computing.update(piece)

    def check(self) -> None:
        """Raises DigestMismatch."""
        for algorithm, digest in self._wanted.items():
            if not hmac.compare_digest(self._hashes[algorithm].digest(), digest):
                raise errors.DigestMismatch()


async def check_digests(body: Body, claims: ClaimedDigests) -> None:
    """Compare a body with the digests that were sent with it. Raises DigestMismatch."""
    if not claims.content_digest and not claims.content_md5:
        return
    comparing = Comparing(claims)
    # A spooled body is read there, too.
    await comparing.add(body.pieces())
    comparing.check()


# How many open uploads a process remembers the unchanging facts of.
_REMEMBERED_UPLOADS = 10_000
# What Redis says of a chunk, or a tail, that counts; every other outcome sends the caller back to the database.
COUNTED = frozenset({Outcome.RECORDED, Outcome.DUPLICATE, Outcome.MERGING})
_BAD_BODIES = (
    *(errors.ChunkLengthMismatch, errors.DigestMismatch),
    *(errors.InvalidDelta, errors.FileNotFound, errors.BaseUnusable),
)


class ChunkSource(Protocol):
    @property
    def declared_bytes(self) -> int | None:
        """The length that the client has told; None if it has not."""

    async def receive(self, caller: Caller, expected_bytes: int) -> Body:
        """Receive it whole. Raises ChunkLengthMismatch, BodyTimeout, StorageFull; and of a chunk that is made from a base,
        InvalidDelta, DigestMismatch, FileNotFound, BaseUnusable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A chunk that is on disk and counts; `written` says whether this call put it there: else nobody has compared the bytes
    that came with those that are there."""

    upload: Upload
    number: int
    result: RecordResult
    written: bool
    length_bytes: int


class AlreadyComplete(Exception):
    def __init__(self, complete: Complete) -> None:
        super().__init__()
        self.complete = complete


class ConcurrentBodies:
    """Lets the bodies of files in, as long as the stores take them, and counts those that each user is sending now."""

    def __init__(
        self, limit: int, stores: Sequence[Callable[[], Awaitable[None]]], counter: Callable[[str], Awaitable[None]]
    ) -> None:
        """`stores`, `counter`: raise Unavailable if a store that has to keep a body, or the one that counts it in an upload,
        is known not to answer."""
        self._limit = limit
        self._check_stores = stores
        self._check_counter = counter
        self._counts: dict[Caller, int] = {}

    @asynccontextmanager
    async def counted(self, caller: Caller, upload_id: str | None = None) -> AsyncIterator[None]:
        """`upload_id`: the upload in which the bytes will count; a whole file has none. Raises TooManyRequests,
        Unavailable."""
        if breaker.OPEN:
            for check in self._check_stores:
                await check()
            if upload_id is not None:
                await self._check_counter(upload_id)
        count = self._counts.get(caller, 0)
        if count >= self._limit:
            raise errors.TooManyRequests(limit=self._limit)
        self._counts[caller] = count + 1
        try:
            yield
        finally:
            self._counts[caller] -= 1
            if not self._counts[caller]:
                del self._counts[caller]


@dataclass(eq=False, repr=False)
class Receiving:
    database: Database
    storage: UploadBytes
    pending: Pending
    closers: Closers
    uploads: Uploads
    _: KW_ONLY
    concurrency: ConcurrentBodies
    _remembered: OrderedDict[Target, Upload] = field(default_factory=OrderedDict, init=False)

    async def receive(self, target: Target, number: int, source: ChunkSource, claims: ClaimedDigests) -> Result:
        """Take chunk `number` of the upload that is meant. Raises UploadNotFound, UploadGone, ChunkNumberOutOfRange,
        BytesConflict, TooManyRequests, DigestMismatch, BodyTimeout, StorageFull, Unavailable, as the source does, and
        as the merge does."""
        try:
            try:
                upload = await self.admit(target, number, source.declared_bytes)
            except errors.InvalidRequest as error:
                return await self._refuse(target, self._remembered.get(target), number, error)
            async with self.concurrency.counted(target.caller, upload.id):
                try:
                    body = await _receive_checked(source, upload, number, claims)
                except _BAD_BODIES as error:
                    return await self._refuse(target, upload, number, error)
                try:
                    stored = await self.store(target, upload, number, body)
                finally:
                    body.close()
            # The merge may take a while: neither the body nor the user's place is held meanwhile.
            return await self.answer(stored)
        except AlreadyComplete as already:
            return already.complete

    def expect(self, upload: Upload) -> None:
        """Chunks of this open upload will come, under either of its names; if its length is known, which never changes."""
        if not upload.length_known:
            return
        self._remember(Target(upload.caller, upload_id=upload.id), upload)
        if upload.md5 is not None:
            self._remember(Target(upload.caller, upload.md5), upload)

    # Finding the upload

    async def admit(self, target: Target, number: int, length_bytes: int | None) -> Upload:
        """Find the upload that is to take a chunk, usually in memory: its size, chunk size and place do not change.
        Raises AlreadyComplete, UploadNotFound, UploadGone, LengthUnknown, ChunkNumberOutOfRange,
        ChunkLengthMismatch."""
        upload = self._remembered.get(target)
        if upload is not None and _fault_of(upload, number, length_bytes) is None:
            self._remembered.move_to_end(target)
            return upload
        return await self._find(target, number, length_bytes)

    async def _find(self, target: Target, number: int, length_bytes: int | None) -> Upload:
        upload = await self._find_and_remember(target)
        fault = _fault_of(upload, number, length_bytes)
        if fault is not None:
            raise fault
        return upload

    async def _find_and_remember(self, target: Target) -> Upload:
        self.forget(target)
        match await self.find(target):
            case Complete() as complete:
                raise AlreadyComplete(complete)
            case Upload(length_known=False):
                raise errors.LengthUnknown()
            case upload:
                return upload

    async def find(self, target: Target) -> Upload | Complete:
        """Find the open upload that takes bytes, or the file it is. Raises UploadNotFound, UploadGone, Forbidden."""
        if self.remembers(target):
            self._remembered.move_to_end(target)
            return self._remembered[target]
        found = await self.uploads.find(target)
        if isinstance(found, Upload):
            if found.is_whole:
                raise errors.Forbidden("This upload consists of its parts: it takes no bytes.")
            if found.length_known:
                self._remember(target, found)
        return found

    def remembers(self, target: Target) -> bool:
        return target in self._remembered

    def forget(self, target: Target) -> None:
        """Forget an upload: it was closed, perhaps opened anew."""
        self._remembered.pop(target, None)

    def _remember(self, target: Target, upload: Upload) -> None:
        self._remembered[target] = upload
        if len(self._remembered) > _REMEMBERED_UPLOADS:
            self._remembered.popitem(last=False)

    # Storing

    async def store(self, target: Target, upload: Upload, number: int, body: Body) -> Stored:
        """Put a chunk on disk and into the accounts. Raises StorageFull, Unavailable, and as `admit`."""
        started = time.perf_counter()
        for _ in range(2):
            try:
                stored = await uninterrupted(self.hold_and_record(upload, number, body))
            except Gone:
                stored = None
                with suppress(Gone, NotOpen):
                    await self.closers.mend(upload)
            except NotOpen:
                stored = None
            if stored is not None and stored.result.outcome in COUNTED:
                CHUNK_SECONDS.observe(time.perf_counter() - started)
                return stored
            # What this process remembers is out of date: the upload was closed, perhaps opened anew.
            upload = await self._find(target, number, body.length)
        raise errors.Unavailable("This upload is changing too fast, or its bytes can't be found; try again.")

    async def hold_and_record(self, upload: Upload, number: int, body: Body | None, *, start: int = 0) -> Stored:
        """Disk, then Redis, under the lock of the chunk's record; of a chunk that has a tail, from `start` on. A chunk on
        the map is recorded all the same, because a crash may have come between the two. Not to be cancelled. Raises Gone,
        NotOpen, BytesConflict, StorageFull, Unavailable."""
        length = chunk_length(number, upload.extent, upload.chunk_size)
        count = chunk_count(upload.extent, upload.chunk_size)
        written = False
        for _ in range(ATTEMPTS):
            try:
                held = await self.storage.hold_chunk(upload, number, body, start=start)
            except errors.Unverified:
                await self.closers.hydrate(upload)
                continue
            written = written or held.written
            try:
                result = await self.pending.record_chunk(upload.id, number, length)
                crash_point("chunk.after_record")
            finally:
                held.release()
            # A crash may have kept Redis from hearing of the length; then it knows of another number of chunks.
            is_known = result.outcome not in COUNTED or result.chunk_count == count
            if result.outcome is not Outcome.REHYDRATE and is_known:
                if result.settled:  # its sender may go away at any moment
                    self.uploads.begin_merge(upload)
                return Stored(upload=upload, number=number, result=result, written=written, length_bytes=length - start)
            # Hydrating adds the chunk: it is on the map. It is recorded again to learn where the upload stands.
            await self.closers.hydrate(upload)
        raise errors.Unavailable("The accounting store keeps restarting; try again.")

    # Answering

    async def answer(self, stored: Stored) -> Result:
        """Answer a chunk that counts; the last one merges. Raises Unavailable, and as the merge does."""
        new, result = await self.acknowledge(stored), stored.result
        if not result.settled:
            return Acknowledged(
                received_bytes=result.received,
                received_chunks=result.chunks,
                chunk_count=result.chunk_count,
                duplicate=not new,
            )
        match await self.uploads.merge_now(stored.upload):
            case Complete() as complete:
                return replace(complete, created=new and complete.created)
            case still_merging:
                return still_merging

    async def acknowledge(self, stored: Stored) -> bool:
        """Return whether a chunk that counts is new: of these bytes. Then its sender waits for the digests. Raises
        Unavailable."""
        self.check_database()
        result = stored.result
        new = stored.written
        CHUNKS.labels("recorded" if new else result.outcome.value).inc()
        if new:
            BYTES_RECEIVED.inc(stored.length_bytes)
            if not result.settled:  # a duplicate is sent by who has lost patience with the first answer
                await self.storage.keep_pace(stored.upload, stored.number)
        return new

    def check_database(self) -> None:
        """Raises Unavailable."""
        if self.database.is_lost:
            raise errors.Unavailable("The database is lost; nothing is acknowledged.")

    async def _refuse(self, target: Target, meant: Upload | None, number: int, error: errors.UploaderError) -> Result:
        """Answer a chunk with a bad number or body: by the state of its upload, or as a duplicate, else by `error`."""
        upload = await self._find_and_remember(target)
        if meant is not None and upload.id != meant.id:
            raise errors.Unavailable("The upload was opened anew meanwhile; send the chunk again.")
        if number < chunk_count(upload.size, upload.chunk_size):
            try:
                if (await self.closers.read_map(upload)).present[number]:
                    stored = await uninterrupted(self.hold_and_record(upload, number, None))
                    if stored.result.outcome in COUNTED:
                        return await self.answer(stored)
            except (Gone, NotOpen) as gone:
                raise errors.Unavailable("The upload is changing; send the chunk again.") from gone
        CHUNKS.labels(error.code).inc()
        raise error


def _fault_of(upload: Upload, number: int, length_bytes: int | None) -> errors.InvalidRequest | None:
    count = chunk_count(upload.size, upload.chunk_size)
    if number >= count:
        return errors.ChunkNumberOutOfRange(f"This upload has {count} chunks, from 0 to {count - 1}.")
    expected = chunk_length(number, upload.size, upload.chunk_size)
    if length_bytes not in (None, expected):
        return errors.ChunkLengthMismatch(expected=expected, received=length_bytes)
    return None


async def _receive_checked(source: ChunkSource, upload: Upload, number: int, claims: ClaimedDigests) -> Body:
    """Receive a body of the right length, with the digests that were sent with it. Raises ChunkLengthMismatch,
    DigestMismatch."""
    body = await source.receive(upload.caller, chunk_length(number, upload.size, upload.chunk_size))
    try:
        await check_digests(body, claims)
    except BaseException:
        body.close()
        raise
    return body
