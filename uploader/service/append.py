"""The use case of appends: a stream of any length, stored at the end of an upload, in place of numbered chunks.

The stream is cut at the borders of chunks. Whole chunks are stored like any chunk. The remaining bytes become the tail,
however the stream ends. Only one request appends at a time; a newer request, in any process, takes over. The offset is
always read from the map. If another request has stored a byte of the stream, the stream fails with the present offset:
the received bytes are never compared with the stored ones.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Protocol

from uploader import errors
from uploader.accounting.pending import Outcome, Pending
from uploader.database import queries, transactions
from uploader.database.engine import Database
from uploader.database.transactions.rows import NotOpen
from uploader.database.transactions.uploads import LengthTold
from uploader.domain.links import Caller
from uploader.domain.upload import MAX_CHUNK_COUNT, Tail, Upload, chunk_length
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.observability import BYTES_RECEIVED, QUOTA_REFUSALS
from uploader.runtime.tasks import uninterrupted
from uploader.service.chunk import COUNTED, ConcurrentBodies, Receiving, Stored
from uploader.service.close import Closers
from uploader.service.open import Admission
from uploader.service.results import Appended, Complete, StillMerging, Target
from uploader.service.status import ATTEMPTS, PAUSE_SECONDS, Uploads
from uploader.storage.base import Appender, Body, Gone, PresentChunks
from uploader.storage.store import Store

# The first step. Each step is as long as what is reserved plus this, up to the longest step: 10 GiB take 14 steps.
FIRST_STEP_BYTES = 64 << 20
LONGEST_STEP_BYTES = 1 << 30


@dataclass(eq=False, repr=False)
class DeferredLength:
    """Reserves space for uploads of deferred length, step by step. Gives the excess back when the length is told."""

    database: Database
    closers: Closers
    admission: Admission
    clock: Clock
    _: KW_ONLY
    max_file_size_bytes: int

    def limit_bytes(self, upload: Upload) -> int:
        if upload.length_known:
            return upload.size
        return min(self.max_file_size_bytes, MAX_CHUNK_COUNT * upload.chunk_size)

    async def refuse_early(self, upload: Upload, end: int) -> None:
        """Refuse a stream that can't fit, before reading. Raises QuotaExceeded."""
        usage = await self.database.read(queries.usage, upload.user_id, brief=True)
        if usage is not None and not usage.fits(end - upload.size):
            QUOTA_REFUSALS.inc()
            raise errors.QuotaExceeded(**usage.figures(end - upload.size))

    async def grow(self, upload: Upload, end: int) -> Upload:
        """Return the upload with at least `end` bytes reserved. Raises LengthTold, NotOpen, QuotaExceeded, StorageFull."""
        if end <= upload.size:
            return upload
        if upload.length_known:
            raise LengthTold(upload.id)
        return await uninterrupted(self._grow(upload, end))

    async def _grow(self, upload: Upload, end: int) -> Upload:
        step = await self._admitted(min(upload.size + FIRST_STEP_BYTES, LONGEST_STEP_BYTES), end - upload.size)
        limit, now = self.limit_bytes(upload), self.clock.now()
        try:
            grown = await self.database.transact(transactions.uploads.grow, upload.id, end, step, limit, now)
        except errors.QuotaExceeded:
            QUOTA_REFUSALS.inc()
            raise
        crash_point("grow.after_commit")
        self.admission.promise(grown.size - upload.size)
        return grown

    async def _admitted(self, step: int, wanted: int) -> int:
        """Return a step that the disk has space for: `step`, or at least `wanted`. Raises StorageFull."""
        if step > wanted:
            try:
                await self.admission.check(step)
            except errors.StorageFull:
                step = wanted
        if step <= wanted:
            await self.admission.check(wanted)
        return step

    async def tell(self, upload: Upload, length: int) -> Upload:
        """Raises FileTooLarge, SizeMismatch, QuotaExceeded, StorageFull, Gone, NotOpen, Unavailable."""
        limit = self.limit_bytes(upload)
        if length > limit:
            raise errors.FileTooLarge(limit=limit)
        if length > upload.size:
            await self.admission.check(length - upload.size)

        async def commit(stored: int) -> Upload:
            now = self.clock.now()
            return await self.database.transact(transactions.uploads.tell_length, upload.id, length, stored, now)

        try:
            told = await self.closers.tell_length(upload, commit)
        except errors.QuotaExceeded:
            QUOTA_REFUSALS.inc()
            raise
        self.admission.promise(told.size - upload.size)
        return told


@dataclass(frozen=True, slots=True)
class Said:
    stream_bytes: int | None
    length: int | None
    ends: bool

    def length_from(self, offset: int) -> int | None:
        """Return the length of the upload, if the request tells it beforehand. `offset`: where the stream begins."""
        if self.length is None and self.ends and self.stream_bytes is not None:
            return offset + self.stream_bytes
        return self.length


@dataclass(frozen=True, slots=True)
class Part:
    """A received part of a stream. The caller closes its body."""

    body: Body
    # True for the last part.
    ended: bool
    # The error that ended the stream early: a time-out, a newer request, a client that went away.
    error: BaseException | None = None


def a_newer_one() -> errors.UploadBusy:
    return errors.UploadBusy("A newer request appends to this upload.")


class AppendSource(Protocol):
    @property
    def declared_bytes(self) -> int | None:
        """The length of the stream, if the client has told it."""

    def receive_part(self, caller: Caller, limit_bytes: int, goes_on: Callable[[], bool]) -> Awaitable[Part]:
        """Receive at most `limit_bytes`; fewer only at the end of the stream. Raises StorageFull."""

    def stored(self, offset: int) -> None:
        """Called while the stream goes on: the bytes before this offset of the upload are acknowledged."""


# Computes the checksum of a body.
Hashing = Callable[[Callable[[], bytes]], Awaitable[bytes]]


class WholeAppend(AppendSource, Protocol):
    """A stream that was received whole. The caller closes it."""

    def close(self) -> None: ...


class CheckedSource(Protocol):
    """A stream with a checksum: all of its bytes count, or none."""

    @property
    def declared_bytes(self) -> int | None: ...

    async def receive_whole(self, caller: Caller, limit_bytes: int, hashing: Hashing) -> WholeAppend:
        """Receive the stream and its checksum. Raises DigestMismatch, FileTooLarge, BodyTimeout, StorageFull."""


@dataclass(eq=False, repr=False)
class AppendedStream:
    """One stream, cut at the borders of chunks. While one part is stored, the next part arrives."""

    upload: Upload
    offset: int
    source: AppendSource
    appender: Appender
    appends: "Appends"
    _storing: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.limit_bytes = self.appends.deferred_length.limit_bytes(self.upload)

    async def take(self) -> tuple[Upload, int]:
        """Store every byte that arrives. Return the upload after that, and the offset where the stream ends. Raises the
        error that ended the stream early, and as the storing of its parts does."""
        try:
            if self.offset == self.limit_bytes and self.source.declared_bytes != 0:
                error = await self._look_beyond()
                if error is not None:
                    raise error
            more = True
            while more and self.offset < self.limit_bytes:
                more = await self._take_part()
        finally:
            await self._end_of_storing()
        return self.upload, self.offset

    async def _take_part(self) -> bool:
        number, start = divmod(self.offset, self.upload.chunk_size)
        part = await self._receive(chunk_length(number, self.limit_bytes, self.upload.chunk_size) - start)
        try:
            if self.offset + part.body.length == self.limit_bytes and not part.ended and part.error is None:
                part = replace(part, error=await self._look_beyond())
            await self._end_of_storing()
            self.source.stored(self.offset)
        except asyncio.CancelledError as ending:
            part = replace(part, error=ending)
        except BaseException:
            part.body.close()
            raise
        self.offset += part.body.length
        self._storing = asyncio.create_task(self._store(number, start, part.body))
        if part.error is not None:
            await self._end_of_storing()
            raise part.error
        return not part.ended

    def _receive(self, limit: int) -> Awaitable[Part]:
        return self.source.receive_part(self.upload.caller, limit, lambda: not self.appender.is_claimed)

    async def _look_beyond(self) -> BaseException | None:
        """Find out how the stream ended, before its bytes complete the file. Raises FileTooLarge if the stream goes on."""
        further = await self._receive(1)
        further.body.close()
        if further.body.length:
            raise length_exceeded(self.upload, self.limit_bytes)
        return None if further.ended else further.error

    async def _store(self, number: int, start: int, body: Body) -> None:
        try:
            if body.length:
                end = number * self.upload.chunk_size + start + body.length
                self.upload = await self.appends.deferred_length.grow(self.upload, end)
                await self.appends.store(self.upload, number, start, body)
        finally:
            body.close()

    async def _end_of_storing(self) -> None:
        storing, self._storing = self._storing, None
        if storing is None:
            return
        try:
            await uninterrupted(storing)
        except asyncio.CancelledError:
            storing.result()  # raises a failure to store: no later part may be stored
            raise


def length_exceeded(upload: Upload, limit_bytes: int) -> errors.FileTooLarge:
    return errors.LengthExceeded(limit=limit_bytes) if upload.length_known else errors.FileTooLarge(limit=limit_bytes)


_MADE_OF_PARTS = "This upload consists of its parts: it takes no bytes."

Appending = Coroutine[Any, Any, Appended | StillMerging | Complete]


@dataclass(eq=False, repr=False)
class Appends:
    # `max_whole_bytes`: the longest stream for `append_whole`. Such a stream may take its space on disk twice, for a
    # moment.
    storage: Store
    pending: Pending
    closers: Closers
    uploads: Uploads
    receiving: Receiving
    deferred_length: DeferredLength
    _: KW_ONLY
    concurrency: ConcurrentBodies
    admission: Admission
    max_whole_bytes: int
    part_completed: Callable[[Upload], Awaitable[None]]
    _streams: set[asyncio.Future[None]] = field(default_factory=set, init=False)

    async def find(self, target: Target, offset: int) -> Upload | Complete:
        """Find the upload to append to, or the file that it became. An incomplete upload may come from memory: the
        append notices outdated memory. Raises UploadNotFound, UploadGone, Forbidden."""
        found = await self.receiving.find(target)
        if isinstance(found, Upload) and offset >= found.size:
            return await self.uploads.find(target)
        return found

    # Asking

    async def status(self, target: Target) -> Appended | Complete:
        """End the running append. Return where the upload ends. Raises UploadNotFound, UploadGone, UploadBusy,
        Unavailable."""
        for _ in range(ATTEMPTS):
            match await self.uploads.find(target):
                case Complete() as complete:
                    return complete
                case Upload(is_whole=True):
                    raise errors.Forbidden(_MADE_OF_PARTS)
                case Upload() as upload:
                    with suppress(NotOpen):
                        try:
                            async with self._appending(upload) as (_, stored):
                                status = await self.uploads.status_of(upload)
                                return Appended(
                                    offset=stored.leading_bytes, upload=upload, expires_at=status.expires_at
                                )
                        except Gone:
                            await self._mend(upload)
            await asyncio.sleep(PAUSE_SECONDS)  # the upload was closed between the two looks
        raise errors.Unavailable("The bytes of this upload can't be found.")

    async def _mend(self, upload: Upload) -> None:
        with suppress(Gone, NotOpen):
            await self.closers.mend(upload)

    async def cancel(self, target: Target) -> None:
        """Cancel an open upload, after ending its running append. Raises UploadNotFound, UploadGone, UploadBusy."""
        match await self.uploads.find(target):
            case Complete():
                raise errors.UploadNotFound()
            case Upload() as upload:
                try:
                    async with nullcontext() if upload.is_whole else self.storage.appending(upload):
                        await self.uploads.cancel(target)
                except Gone:
                    await self.uploads.cancel(target)

    @asynccontextmanager
    async def _appending(self, upload: Upload) -> AsyncIterator[tuple[Appender, PresentChunks]]:
        """Yield the right to append, and the stored chunks. Raises Gone, NotOpen, UploadBusy, Unavailable."""
        async with self.storage.appending(upload) as appender:
            try:
                stored = await appender.read_map()
            except errors.Unverified:
                await self.closers.hydrate(upload)
                stored = await appender.read_map()
            yield appender, stored

    # Appending

    def append(
        self, target: Target, offset: int, source: AppendSource, *, length: int | None = None, ends: bool = False
    ) -> Appending:
        """Append a stream to an upload that ends at `offset`. However the stream ends, its received bytes are stored
        before the error is raised. `length`: the length of the upload, if the client tells it now. `ends`: the upload
        ends with this stream. Raises OffsetMismatch, SizeMismatch, FileTooLarge, QuotaExceeded, UploadNotFound,
        UploadGone, UploadBusy, TooManyRequests, BodyTimeout, StorageFull, Unavailable, and as the merge does."""
        said = Said(source.declared_bytes, length, ends)
        return self._append(target, offset, said, nullcontext(source))

    def append_whole(
        self, target: Target, offset: int, source: CheckedSource, *, length: int | None = None, ends: bool = False
    ) -> Appending:
        """Append as `append`, but check the stream first: all of its bytes count, or none. Raises DigestMismatch, too."""
        said = Said(source.declared_bytes, length, ends)
        return self._append(target, offset, said, self._received(target, offset, source))

    async def _append(
        self, target: Target, offset: int, said: Said, taking: AbstractAsyncContextManager[AppendSource]
    ) -> Appended | StillMerging | Complete:
        found = await self.receiving.find(target)
        if isinstance(found, Upload):
            try:
                found = await self._heed(found, offset, said)
            except (Gone, NotOpen):
                found = await self._complete(target)
        upload_id = found.id if isinstance(found, Upload) else None
        async with self.concurrency.counted(target.caller, upload_id), taking as source:
            if isinstance(found, Upload):
                taken = await self._take_or_complete(found, target, offset, said, source)
            else:
                taken = found
            if isinstance(taken, Complete):
                return await _append_nothing(taken, target.caller, offset, said, source)
        # The merge may take a while. By now the stream no longer counts among the user's concurrent bodies.
        return await self._answer(taken)

    async def _take_or_complete(
        self, upload: Upload, target: Target, offset: int, said: Said, source: AppendSource
    ) -> Appended | Complete:
        """Store the stream and return where the upload ends. Return the file instead, if the upload was completed
        before the stream began. Raises OffsetMismatch if another request has stored bytes of this stream."""
        begun = False
        try:
            async with self._appending(upload) as (appender, stored):
                _check_offset(stored, offset)
                begun = True
                upload, end = await self._take(upload, offset, source, appender)
                end, written_at = await _end_of(upload, end, appender)
                upload = await self._end(upload, end) if said.ends else upload
                return Appended(offset=end, upload=upload, expires_at=self.uploads.expires_at(written_at))
        except (Gone, NotOpen) as error:
            self.receiving.forget(target)
            if isinstance(error, Gone):
                await self._mend(upload)
            complete = await self._complete(target)
            if begun:
                raise errors.OffsetMismatch(offset=complete.file.size) from error
            return complete

    async def _complete(self, target: Target) -> Complete:
        """Return the file of a closed upload. Raises OffsetMismatch if the upload is open; UploadNotFound, UploadGone."""
        match await self.status(target):
            case Appended(offset=end):
                raise errors.OffsetMismatch(offset=end)
            case complete:
                return complete

    async def _answer(self, appended: Appended) -> Appended | StillMerging | Complete:
        upload = appended.upload
        if not upload.length_known or appended.offset < upload.size:
            return appended
        if upload.is_part:
            await self.part_completed(upload)
            return appended
        match await self.uploads.merge_now(upload):
            case Complete(created=False, file=file):  # a whole file completed the upload, not these bytes
                raise errors.OffsetMismatch(offset=file.size)
            case told:
                return told

    async def _heed(self, upload: Upload, offset: int, said: Said) -> Upload:
        """Check the lengths that the request tells before the stream, and store a length that is new. Raises
        OffsetMismatch, SizeMismatch, FileTooLarge, QuotaExceeded, StorageFull, Gone, NotOpen."""
        length, end = said.length_from(offset), offset + (said.stream_bytes or 0)
        try:
            self._check_lengths(upload, said, offset)
        except (errors.SizeMismatch, errors.FileTooLarge):
            target = Target(upload.caller, upload_id=upload.id)
            await self._room(target, offset)  # raise OffsetMismatch first, if the offset is wrong
            raise
        if upload.length_known:
            return upload
        if length is None:
            await self.deferred_length.refuse_early(upload, end)
            return upload
        async with self._appending(upload) as (_, stored):
            _check_offset(stored, offset)
            return await self.deferred_length.tell(upload, length)

    def _check_lengths(self, upload: Upload, said: Said, offset: int) -> None:
        """Raises SizeMismatch, FileTooLarge."""
        length, end = said.length_from(offset), offset + (said.stream_bytes or 0)
        limit = self.deferred_length.limit_bytes(upload)
        if said.stream_bytes and end > limit:
            raise length_exceeded(upload, limit)
        if upload.length_known and length not in (None, upload.size):
            raise errors.SizeMismatch("The upload has another length.", size=upload.size)
        if said.stream_bytes and length is not None and end > length:
            raise errors.LengthExceeded(limit=length)

    async def _end(self, upload: Upload, end: int) -> Upload:
        """Return the upload, which ends at `end`. Raises SizeMismatch, Gone, NotOpen."""
        if not upload.length_known:
            return await self.deferred_length.tell(upload, end)
        if end != upload.size:
            raise errors.SizeMismatch("The upload ends before its length.", size=upload.size)
        return upload

    @asynccontextmanager
    async def _received(self, target: Target, offset: int, source: CheckedSource) -> AsyncIterator[AppendSource]:
        """Receive the stream. Refuse a stream of excessive length before reading."""
        (room, excess), declared = await self._room(target, offset), source.declared_bytes
        limit = min(room, self.max_whole_bytes)
        await self.admission.check(limit if declared is None else min(declared, limit))
        try:
            received = await source.receive_whole(target.caller, limit, self.storage.threads.long_hashing.run)
        except errors.FileTooLarge as error:
            raise (excess if error.fields["limit"] == room else error) from error
        try:
            yield received
        finally:
            received.close()

    async def _room(self, target: Target, offset: int) -> tuple[int, errors.FileTooLarge]:
        """Return how many bytes may follow `offset`, and the error for more. Raises as `status`, and OffsetMismatch."""
        match await self.status(target):
            case Complete(file=file):
                end = limit = file.size
                excess: errors.FileTooLarge = errors.LengthExceeded(limit=limit)
            case Appended(offset=end, upload=upload):
                limit = self.deferred_length.limit_bytes(upload)
                excess = length_exceeded(upload, limit)
        if end != offset:
            raise errors.OffsetMismatch(offset=end)
        return limit - end, excess

    async def _take(self, upload: Upload, offset: int, source: AppendSource, appender: Appender) -> tuple[Upload, int]:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._streams.add(ended)
        try:
            return await AppendedStream(upload, offset, source, appender, self).take()
        finally:
            self._streams.discard(ended)
            ended.set_result(None)

    async def close(self) -> None:
        """Wait until every stream has ended. The stop of the server has cancelled their requests."""
        if self._streams:
            await asyncio.wait(self._streams, timeout=10)

    async def store(self, upload: Upload, number: int, start: int, body: Body) -> None:
        """Store and account for a part of a chunk. Must not be cancelled. Raises Gone (also if another request has
        stored this chunk), NotOpen, StorageFull, Unavailable."""
        if start + body.length == chunk_length(number, upload.extent, upload.chunk_size):
            await self._acknowledge(await self.receiving.hold_and_record(upload, number, body, start=start))
        else:
            await self._store_tail(upload, number, start, body)

    async def _acknowledge(self, stored: Stored) -> None:
        if stored.result.outcome not in COUNTED:
            raise NotOpen(stored.upload.id)
        await self.receiving.acknowledge(stored)
        if not stored.written:
            raise Gone(stored.upload.id)

    async def _store_tail(self, upload: Upload, number: int, start: int, body: Body) -> None:
        held = await self.storage.hold_chunk(upload, number, body, start=start)
        try:
            # Otherwise another request has stored the whole chunk.
            if held.written:
                tail = Tail(number, start + body.length)
                result = await self.pending.record_tail(upload.id, tail)
                crash_point("tail.after_record")
        finally:
            held.release()
        if not held.written:
            await self._acknowledge(await self.receiving.hold_and_record(upload, number, None))
        elif result.outcome is Outcome.REHYDRATE:
            await self.closers.hydrate(upload)  # this counts the tail, which is on the map
        elif result.outcome not in COUNTED:
            raise NotOpen(upload.id)
        self.receiving.check_database()
        BYTES_RECEIVED.inc(body.length)


async def _end_of(upload: Upload, end: int, appender: Appender) -> tuple[int, float | None]:
    """Return where the upload ends now, as chunks may lie beyond the stream, and when the last byte came. Raises Gone."""
    if upload.length_known and end == upload.size:
        return end, None
    try:
        stored = await appender.read_map()
        return stored.leading_bytes, stored.written_at
    except Gone:
        if upload.is_part or not upload.length_known:
            raise
        return (
            upload.size,
            None,
        )  # the stream completed the upload, which is merged by now: `merge_now` finds the outcome


async def _append_nothing(
    complete: Complete, caller: Caller, offset: int, said: Said, source: AppendSource
) -> Complete:
    """Answer an append to a file. Raises OffsetMismatch, SizeMismatch, FileTooLarge, and what ended the stream early."""
    size = complete.file.size
    if offset != size:
        raise errors.OffsetMismatch(offset=size)
    if said.stream_bytes is None:
        part = await source.receive_part(caller, 1, lambda: True)
        part.body.close()
        if part.body.length:
            raise errors.LengthExceeded(limit=size)
        if part.error is not None:
            raise part.error
    elif said.stream_bytes:
        raise errors.LengthExceeded(limit=size)
    if said.length not in (None, size):
        raise errors.SizeMismatch("The upload has another length.", size=size)
    return complete


def _check_offset(stored: PresentChunks, offset: int) -> None:
    """Raises OffsetMismatch."""
    if stored.leading_bytes != offset:
        raise errors.OffsetMismatch(offset=stored.leading_bytes)
