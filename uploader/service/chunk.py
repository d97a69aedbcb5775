"""The use case of one chunk, from the first header of the request to the answer. Runs no SQL for an upload that this
process knows.

The order is: find the upload; receive the whole body and compare its digests; store it on disk; record it in Redis;
answer. The last chunk merges. A chunk that was acknowledged before is a duplicate, even if the new request has errors.
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
        """Raises DigestMismatch for malformed digests."""
        try:
            self._wanted = claims.parse()
        except ValueError as error:
            raise errors.DigestMismatch(f"The digest sent with the chunk {error}.") from error
        self._hashes = {name: hashlib.new(_PYTHON_NAMES[name], usedforsecurity=False) for name in self._wanted}

    async def add(self, pieces: Iterable[memoryview]) -> None:
        """Hash the next bytes. A cancelled call still runs to its end, because the caller reuses the memory afterwards."""
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
    """Compare a body with the digests of the request. Raises DigestMismatch."""
    if not claims.content_digest and not claims.content_md5:
        return
    comparing = Comparing(claims)
    # This also reads a spooled body in the thread.
    await comparing.add(body.pieces())
    comparing.check()


# How many open uploads a process remembers.
_REMEMBERED_UPLOADS = 10_000
# Outcomes of a chunk or a tail that counts. After any other outcome the caller asks the database.
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
        """Receive the whole body. Raises ChunkLengthMismatch, BodyTimeout, StorageFull; for a chunk made from a base
        also InvalidDelta, DigestMismatch, FileNotFound, BaseUnusable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A chunk that counts. `written`: by this call; otherwise the received bytes were not compared with the stored ones."""

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
    """Limits the bodies that each user sends at the same time. Refuses bodies while a store does not answer."""

    def __init__(
        self, limit: int, stores: Sequence[Callable[[], Awaitable[None]]], counter: Callable[[str], Awaitable[None]]
    ) -> None:
        """`stores`, `counter`: raise Unavailable if a store of bodies, or that of an upload's figures, does not answer."""
        self._limit = limit
        self._check_stores = stores
        self._check_counter = counter
        self._counts: dict[Caller, int] = {}

    @asynccontextmanager
    async def counted(self, caller: Caller, upload_id: str | None = None) -> AsyncIterator[None]:
        """Count a body until this ends. `upload_id`: None for a whole file. Raises TooManyRequests, Unavailable."""
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
        """Take a chunk. Raises UploadNotFound, UploadGone, ChunkNumberOutOfRange, BytesConflict, TooManyRequests,
        DigestMismatch, BodyTimeout, StorageFull, Unavailable, as the source does, and as the merge does."""
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
            # The merge may take a while. By now the body is closed, and no longer counts among the user's concurrent
            # bodies.
            return await self.answer(stored)
        except AlreadyComplete as already:
            return already.complete

    def expect(self, upload: Upload) -> None:
        """Remember an open upload by id and by MD5, because chunks will come. An upload of unknown length is not
        remembered, because its length will change."""
        if not upload.length_known:
            return
        self._remember(Target(upload.caller, upload_id=upload.id), upload)
        if upload.md5 is not None:
            self._remember(Target(upload.caller, upload.md5), upload)

    # Finding the upload

    async def admit(self, target: Target, number: int, length_bytes: int | None) -> Upload:
        """Find the upload that is to take a chunk, usually in memory: its size, chunk size and place do not change.
        Raises AlreadyComplete, UploadNotFound, UploadGone, LengthUnknown, ChunkNumberOutOfRange, ChunkLengthMismatch."""
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
        """Find the open upload, or the file that it became. Raises UploadNotFound, UploadGone, Forbidden."""
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
        """Forget an upload that was closed, and perhaps opened anew."""
        self._remembered.pop(target, None)

    def _remember(self, target: Target, upload: Upload) -> None:
        self._remembered[target] = upload
        if len(self._remembered) > _REMEMBERED_UPLOADS:
            self._remembered.popitem(last=False)

    # Storing

    async def store(self, target: Target, upload: Upload, number: int, body: Body) -> Stored:
        """Store a chunk on disk and record it. Raises StorageFull, Unavailable, and as `admit`."""
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
            # This process remembers outdated facts: the upload was closed, and perhaps opened anew.
            upload = await self._find(target, number, body.length)
        raise errors.Unavailable("This upload is changing too fast, or its bytes can't be found; try again.")

    async def hold_and_record(self, upload: Upload, number: int, body: Body | None, *, start: int = 0) -> Stored:
        """Store a chunk on disk, then record it in Redis, while its record is locked. `start`: where the tail of the
        chunk ends. A chunk that is on the map is recorded again, because a crash may have come between the two steps.
        Must not be cancelled. Raises Gone, NotOpen, BytesConflict, StorageFull, Unavailable."""
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
            # After a crash Redis may not know the length yet, and then has another number of chunks.
            is_known = result.outcome not in COUNTED or result.chunk_count == count
            if result.outcome is not Outcome.REHYDRATE and is_known:
                if result.settled:  # the client may disconnect at any moment
                    self.uploads.begin_merge(upload)
                return Stored(upload=upload, number=number, result=result, written=written, length_bytes=length - start)
            # Hydrating counts the chunk, which is on the map. Recording it once more returns the figures of the upload.
            await self.closers.hydrate(upload)
        raise errors.Unavailable("The accounting store keeps restarting; try again.")

    # Answering

    async def answer(self, stored: Stored) -> Result:
        """Answer a chunk that counts. The last chunk merges. Raises Unavailable, and as the merge does."""
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
        """Return whether the bytes of a chunk are new. If so, wait until the digests have caught up. Raises Unavailable."""
        self.check_database()
        result = stored.result
        new = stored.written
        CHUNKS.labels("recorded" if new else result.outcome.value).inc()
        if new:
            BYTES_RECEIVED.inc(stored.length_bytes)
            if not result.settled:  # no wait for a duplicate: its client gave up on the first answer
                await self.storage.keep_pace(stored.upload, stored.number)
        return new

    def check_database(self) -> None:
        """Raises Unavailable."""
        if self.database.is_lost:
            raise errors.Unavailable("The database is lost; nothing is acknowledged.")

    async def _refuse(self, target: Target, meant: Upload | None, number: int, error: errors.UploaderError) -> Result:
        """Answer a bad number or body: with the outcome of its upload, or as a duplicate, or else with `error`."""
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
    """Receive a body of the right length, and compare its digests. Raises ChunkLengthMismatch, DigestMismatch."""
    body = await source.receive(upload.caller, chunk_length(number, upload.size, upload.chunk_size))
    try:
        await check_digests(body, claims)
    except BaseException:
        body.close()
        raise
    return body
