"""The chunks of open uploads on S3: a chunk is a part of a multipart upload, or the only object of its upload. A tail is an
object of its own.

A chunk goes to S3 first, and then gets its row. Only the row acknowledges the chunk. If a slow process uploads other bytes
later, the part has another ETag than the row, and the upload is never completed with these bytes.

The right to append is a row, too, with the latest request. The bytes of an earlier request are accepted or refused by the
rows of the chunks and of the tail. An appender looks now and then at the row, and ends when it has lost the right.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from weakref import WeakValueDictionary

from uploader.domain.ledger import Entry, PartNoted, SavedDigest, StoredPart, TailObject
from uploader.domain.upload import Tail, Upload, chunk_count, chunk_length
from uploader.errors import BytesConflict, StorageFailed, Unavailable, Unverified
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.observability import level_of
from uploader.runtime.tasks import Pool, ended
from uploader.storage import disk
from uploader.storage.base import Body, Gone, HeldChunk, PresentChunks
from uploader.storage.s3 import bucket
from uploader.storage.s3.bucket import Bucket, NoSuchMultipart
from uploader.storage.s3.digests import S3Digests
from uploader.storage.s3.ledger import Ledger

logger = logging.getLogger(__name__)

# Requests to S3 at one time; each waits in a thread.
_REQUESTS = 64
# How often to try again when a tail changes meanwhile.
_ATTEMPTS = 3
# In the place of an ETag, after the upload was completed: nobody compares this one any more.
_COMPLETED = "completed"
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Joined:
    """The bytes of a tail, followed by the bytes of a body."""

    _head: bytes
    _body: Body

    @property
    def length(self) -> int:
        return len(self._head) + self._body.length

    def pieces(self) -> Iterator[memoryview]:
        if self._head:
            yield memoryview(self._head)
        yield from self._body.pieces()

    def keep(self) -> None:
        self._body.keep()

    def close(self) -> None:
        self._body.close()


class S3Parts(S3Digests):
    """Open uploads and their chunks."""

    def __init__(self, bucket: Bucket, ledger: Ledger, clock: Clock) -> None:
        self._requests = Pool(_REQUESTS, "s3", translate=disk.refusal)
        super().__init__(ledger, self._requests)
        self._bucket = bucket
        self._clock = clock
        # Locks of the chunks that this process stores now. They only save work: rows keep other processes out.
        self._busy: WeakValueDictionary[tuple[str, int], asyncio.Lock] = WeakValueDictionary()

    def place_of(self, upload_id: str, opened_at: datetime) -> str:
        return f"{bucket.UPLOADS}{upload_id}"

    async def _create(self, upload: Upload) -> float:
        """Repeatable: housekeeping removes what another attempt has left."""
        now = self._clock.now()
        is_single = upload.length_known and chunk_count(upload.size, upload.chunk_size) <= 1
        await self._ledger.open(upload.id, None if is_single else await self._begin_multipart(upload), now)
        crash_point("object.after_open")
        return now.timestamp()

    async def _begin_multipart(self, upload: Upload) -> str:
        """Begin a multipart upload. Return its word in the ledger."""
        key = bucket.key_of_upload(upload.id)
        multipart_id = await self._requests.run(self._bucket.create_multipart, key)
        crash_point("object.after_multipart")
        return Multipart(key, multipart_id).word()

    async def hold_chunk(self, upload: Upload, number: int, body: Body | None, *, start: int = 0) -> HeldChunk:
        lock = self._busy.get((upload.id, number))
        if lock is None:
            lock = self._busy[upload.id, number] = asyncio.Lock()
        async with lock:
            for _ in range(_ATTEMPTS):
                entry = await self._look(upload, number)
                if number in entry.parts:
                    return HeldChunk(written=False)
                if body is None:
                    raise Gone(upload.id)
                tail = entry.tail if entry.tail is not None and entry.tail.number == number else None
                if start and (tail is None or tail.length != start):
                    raise Gone(upload.id)
                joined = await self._joined(upload, number, body, start, tail)
                if await self._store_chunk(upload, entry, number, joined, tail):
                    return HeldChunk(written=True)
            raise Gone(upload.id)

    async def _look(self, upload: Upload, number: int) -> Entry:
        entry = await self._ledger.look(upload.id, number, self._told_bytes(upload.id))
        if entry is None or (entry.frozen and number not in entry.parts):
            raise Gone(upload.id)
        return entry

    async def _joined(self, upload: Upload, number: int, body: Body, start: int, tail: TailObject | None) -> Body:
        """Return the bytes of the chunk from its beginning on. Raises Gone, and BytesConflict if a whole chunk does not
        begin with the tail."""
        if tail is None:
            return body
        if not start and body.length < chunk_length(number, upload.extent, upload.chunk_size):
            raise Gone(upload.id)
        head = await self._requests.run(self._bucket.get, tail.key, 0, tail.length)
        if start:
            return Joined(head, body)
        if await self._requests.run(_begin_of, body, tail.length) != head:
            raise BytesConflict()
        return body

    async def _store_chunk(
        self, upload: Upload, entry: Entry, number: int, body: Body, tail: TailObject | None
    ) -> bool:
        """Store a chunk. Return whether it counts; False if another request was faster."""
        if body.length < chunk_length(number, upload.extent, upload.chunk_size):
            if entry.tail is not None and entry.tail.number < number:
                raise Gone(upload.id)  # the tail is at the first gap
            return await self._replace_tail(upload, entry, number, body, tail)
        offer, written = self._offer(upload, entry, number, body), False
        try:
            part = await self._upload_part(upload, entry, number, body)
            crash_point("object.after_part")
            written = await self._note_part(upload, entry, part, self._state_with(offer))
        finally:
            self._settle_offer(offer, written=written)
        if written:
            await self._drop_tail(tail)
        return written

    async def _upload_part(self, upload: Upload, entry: Entry, number: int, body: Body) -> StoredPart:
        """Send the bytes of a chunk to S3. Raises Gone."""
        if entry.multipart_id is None:
            key = bucket.key_of_upload(upload.id)
            return StoredPart(number, await self._requests.run(self._bucket.put, key, body), key)
        multipart = multipart_of(entry.multipart_id)
        try:
            etag = await self._requests.run(self._bucket.upload_part, multipart.key, multipart.id, number, body)
        except NoSuchMultipart:
            # The multipart upload was removed, or a slow process has completed it. Then this chunk may be in the object.
            if not await self._requests.run(self._is_in, multipart.key, number * upload.chunk_size, body):
                raise Gone(upload.id) from None
            etag = _COMPLETED
        return StoredPart(number, etag, None)

    def _is_in(self, key: str, offset: int, body: Body) -> bool:
        stat = self._bucket.head(key)
        if stat is None or stat.size < offset + body.length:
            return False
        return self._bucket.get(key, offset, body.length) == b"".join(body.pieces())

    async def _note_part(
        self, upload: Upload, entry: Entry, part: StoredPart, digest: SavedDigest | None = None
    ) -> bool:
        """Commit the row of a chunk, with the position of the digests. Return whether the chunk counts. Raises Gone."""
        noted = await self._ledger.add_part(upload.id, entry.fence, part, self._clock.now(), digest)
        crash_point("object.after_row")
        if noted is PartNoted.ADDED:
            return True
        if part.key is not None:
            await self._delete(part.key)
        if noted is PartNoted.REFUSED:
            raise Gone(upload.id)
        return False

    async def _replace_tail(
        self, upload: Upload, entry: Entry, number: int, body: Body, before: TailObject | None
    ) -> bool:
        after = TailObject(bucket.key_of_upload(upload.id), number, body.length)
        await self._requests.run(self._bucket.put, after.key, body)
        crash_point("object.after_tail")
        if not await self._ledger.move_tail(upload.id, entry.fence, before or entry.tail, after, self._clock.now()):
            await self._delete(after.key)
            raise Gone(upload.id)
        await self._drop_tail(before or entry.tail)
        return True

    async def _drop_tail(self, tail: TailObject | None) -> None:
        if tail is not None:
            await self._delete(tail.key)

    async def _delete(self, key: str) -> None:
        """Delete an object without a row. If this fails, housekeeping finds the object."""
        try:
            await self._requests.run(self._bucket.delete, [key])
        except StorageFailed as error:
            logger.log(
                level_of(error), "an object without a row stays for now", extra={"key": key, "reason": error.reason}
            )

    # What rows say

    async def _entry(self, upload: Upload) -> Entry:
        entry = await self._ledger.entry(upload.id)
        if entry is None:
            raise Gone(upload.id)
        return entry

    async def read_map(self, upload: Upload, *, verified: bool = True) -> PresentChunks:
        part_map = map_of(upload, await self._entry(upload))
        if verified and not part_map.settled:
            raise Unverified()
        return part_map

    async def last_write(self, upload: Upload) -> float:
        return (await self._entry(upload)).written_at.timestamp()

    @asynccontextmanager
    async def locked(self, upload: Upload) -> AsyncIterator[None]:
        """Lock nothing: a chunk that is written down meanwhile is in the map of the next reader, or its row is refused."""
        if await self._ledger.glance(upload.id, 0) is None:
            raise Gone(upload.id)
        yield

    @asynccontextmanager
    async def appending(self, upload: Upload) -> AsyncIterator["S3Appender"]:
        token = secrets.token_hex(16)
        if not await self._ledger.claim(upload.id, token):
            raise Gone(upload.id)
        appender = S3Appender(self, self._ledger, upload, token)
        watching = asyncio.create_task(appender.watch(), name=f"appender {upload.id}")
        try:
            yield appender
        finally:
            await ended(watching)


def _begin_of(body: Body, length: int) -> bytes:
    begin = bytearray()
    for piece in body.pieces():
        begin += piece[: length - len(begin)]
        if len(begin) == length:
            break
    return bytes(begin)


def map_of(upload: Upload, entry: Entry) -> PresentChunks:
    """Return the map. The tail counts if its chunk is the first missing chunk."""
    size, chunk_size, written_at = upload.extent, upload.chunk_size, entry.written_at.timestamp()
    count = chunk_count(size, chunk_size)
    present = bytearray(count)
    for number in entry.parts:
        if number < count:
            present[number] = 1
    tail = entry.tail
    if tail is None or tail.number >= count or present.find(0) != tail.number:
        return PresentChunks(present, None, size, chunk_size, written_at)
    if tail.length < chunk_length(tail.number, size, chunk_size):
        return PresentChunks(present, Tail(tail.number, tail.length), size, chunk_size, written_at)
    # The length was told after the last byte had come.
    present[tail.number] = 1
    return PresentChunks(present, None, size, chunk_size, written_at, settled=False)


@dataclass(frozen=True, slots=True)
class Multipart:
    """A multipart upload that S3 has, or had."""

    key: str
    id: str

    def word(self) -> str:
        return f"{self.key}:{self.id}"


def multipart_of(word: str) -> Multipart:
    """Parse the word of a multipart upload in the ledger. Raises StorageFailed if it is malformed."""
    key, colon, upload_id = word.partition(":")
    if not colon or not upload_id:
        raise StorageFailed(inside="a row of the ledger names no multipart upload")
    return Multipart(key, upload_id)


@dataclass
class S3Appender:
    """The right of one request to append."""

    _store: S3Parts
    _ledger: Ledger
    _upload: Upload
    _token: str
    is_claimed: bool = False

    async def read_map(self) -> PresentChunks:
        return await self._store.read_map(self._upload)

    async def watch(self) -> None:
        """Wait until another request has the right."""
        while not self.is_claimed:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                self.is_claimed = await self._ledger.appender(self._upload.id) != self._token
            except Unavailable:
                continue  # storing the next bytes will raise it, too
