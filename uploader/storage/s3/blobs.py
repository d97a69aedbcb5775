"""Blobs on S3: each lies at the key in its row and is read by ranges, also in the trash.

No key is used twice, so bytes that were read earlier and later belong together. When a blob gets other bytes, its key
changes, and the old object goes to the trash. A reader that finds no object asks for the key once more. A whole file is an
object under a key of its own before it has a row.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeVar

from uploader.domain.ledger import PutAway
from uploader.errors import StorageFailed, StorageFull
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.tasks import Pool, all_or_none, uninterrupted
from uploader.storage.base import Arrival, BytesBody, Found, Gone
from uploader.storage.hashes import PrefixHashes, identify
from uploader.storage.s3 import bucket
from uploader.storage.s3.bucket import Bucket, ObjectReader, Stat
from uploader.storage.s3.ledger import Ledger
from uploader.storage.store import Store

T = TypeVar("T")
_READ_BYTES = 1 << 20
# Ranges no farther apart are read by one request, of at most this many bytes: a request costs more than a few bytes.
_GAP_BYTES, _SPAN_BYTES = 256 << 10, 8 << 20
# The ETag of a part, unless a customer's key encrypts it.
_MD5 = re.compile(r"[0-9a-f]{32}")
_LIST_BATCH = 250


@dataclass(eq=False)
class S3Blob:
    """An open blob on S3."""

    _bucket: Bucket
    _pool: Pool
    _key: str
    _size: int
    # Returns the present key of the blob; None if it has none.
    _locate: Callable[[], Awaitable[str | None]]
    _stream: ObjectReader | None = None
    _position: int = 0
    _alone: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def read(self, length_bytes: int, offset: int) -> bytes:
        if offset >= self._size or length_bytes <= 0:
            return b""
        async with self._alone:
            # Wait for the end of the read: its thread could open a stream after `close`.
            try:
                return await uninterrupted(self._again(lambda: self._read(length_bytes, offset)))
            except Gone:
                raise StorageFailed(inside=f"object {self._key} was removed while it was read") from None

    async def _again(self, read: Callable[[], T]) -> T:
        try:
            return await self._pool.run(read)
        except Gone:
            key = await self._locate()
            if key is None or key == self._key:
                raise
            self._key = key
            return await self._pool.run(read)

    def _read(self, length_bytes: int, offset: int) -> bytes:
        goes_on = self._stream is not None and self._position == offset
        try:
            return self._read_on(length_bytes, offset)
        except StorageFailed:
            if not goes_on:
                raise
            self._close()  # the server has hung up on a slow reader
            return self._read_on(length_bytes, offset)

    def _read_on(self, length_bytes: int, offset: int) -> bytes:
        if self._stream is None or self._position != offset:
            self._close()
            self._stream = self._bucket.stream(self._key, offset, self._size - offset)
            self._position = offset
        piece = self._stream.read(length_bytes)
        self._position += len(piece)
        return piece

    async def read_all(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return await self._again(lambda: read_ranges(self._bucket, self._key, ranges))

    async def presign(self, seconds: int, disposition: str, media_type: str) -> str:
        return await self._pool.run(self._bucket.presign_get, self._key, seconds, disposition, media_type)

    async def close(self) -> None:
        async with self._alone:
            await self._pool.run(self._close)

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


class S3Blobs(Store):
    """Finds blobs by their rows, reads them, and keeps the trash."""

    _bucket: Bucket
    _ledger: Ledger
    _requests: Pool
    _clock: Clock

    # Contents that come whole

    async def store_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        async def digest(arrival: Arrival) -> None:
            await self.threads.digesting.run(identify, arrival)

        await all_or_none(map(digest, arrivals))
        first: dict[str, Arrival] = {}
        for arrival in arrivals:
            if arrival.error is None:
                first.setdefault(arrival.sha256_of_bytes, arrival)
        await all_or_none(map(self._put, first.values()))
        for arrival in arrivals:
            if arrival.error is None:
                stored = first[arrival.sha256_of_bytes]
                arrival.place, arrival.error = stored.place, stored.error
        crash_point("arrival.after_put")

    async def _put(self, arrival: Arrival) -> None:
        key = bucket.key_of_whole()
        try:
            await self._requests.run(self._bucket.put, key, arrival.body)
        except StorageFull as error:
            arrival.error = error  # of this content alone
            return
        arrival.place = key

    def place_arrivals(self, arrivals: Sequence[Arrival]) -> Mapping[str, str]:
        """Return where the arrivals lie already; the caller's transaction records that. Equal contents have one object."""
        return {arrival.sha256_of_bytes: str(arrival.place) for arrival in arrivals}

    # Reading

    async def _locate(self, sha256: str) -> str | None:
        return (await self._ledger.locations([sha256])).get(sha256)

    async def open_found(self, found: Found) -> S3Blob:
        """Open a blob or a copy in the trash. If the object of a blob was moved meanwhile, its key is looked up again."""

        async def locate() -> str | None:
            return None if found.in_trash else await self._locate(found.name)

        return S3Blob(self._bucket, self._requests, found.place, found.size, locate)

    async def blob_sizes(self, sha256s: list[str]) -> list[int | None]:
        locations = await self._ledger.locations(sha256s)
        stats = await all_or_none(self._stat(locations.get(sha256)) for sha256 in sha256s)
        return [None if stat is None else stat.size for stat in stats]

    async def _stat(self, key: str | None) -> Stat | None:
        return None if key is None else await self._requests.run(self._bucket.head, key)

    async def find_blob(self, sha256: str) -> Found | None:
        stat = await self._stat(await self._locate(sha256))
        if stat is None:
            return None
        return bucket.found_at_key(stat.key, name=sha256, changed_at=stat.modified_at.timestamp(), size=stat.size)

    # In threads

    def pieces(self, found: Found, *, cold: bool = False) -> Generator[bytes]:
        if found.size:
            yield from pieces_of(self._bucket, found.place, 0, found.size, self.check_stopping)

    def read_beside(self, found: Found) -> bytes | None:
        name = bucket.key_of_signature(found.place)
        stat = self._bucket.head(name)
        try:
            return None if stat is None else self._bucket.get(name, 0, stat.size)
        except Gone:
            return None

    def keep_beside(self, found: Found, content: bytes) -> None:
        self._bucket.put(bucket.key_of_signature(found.place), BytesBody(content))
        crash_point("signature.after_put")

    # The trash

    async def put_away(self, found: Found) -> bool:
        return await self._ledger.put_away(PutAway(found.place, found.name, found.disk_bytes, self._clock.now()))

    async def list_trash(self, name: str | None = None) -> AsyncIterator[list[Found]]:
        """List copies of blobs. Uploads are never put away: their remains are aborted."""
        if name is not None:
            yield [_found(put) for put in await self._ledger.copies(name)]
            return
        after = ""
        while batch := await self._ledger.all_put_away(after=after, limit=_LIST_BATCH):
            yield [_found(put) for put in batch]
            after = max(put.key for put in batch)

    async def restore_blob(self, found: Found) -> str | None:
        """Return the key of the object, which stays there. Raises Gone if an interrupted purge has left only the row."""
        if await self._requests.run(self._bucket.head, found.place) is None:
            raise Gone(found.name)
        return found.place

    async def _remove_from_trash(self, found: Found) -> bool:
        if await self._ledger.contents_at([found.place]):
            await self._ledger.take_out(found.place)  # it was restored
            return False
        await self._requests.run(self._bucket.delete, [found.place, bucket.key_of_signature(found.place)])
        crash_point("trash.after_delete")
        return await self._ledger.take_out(found.place)


def pieces_of(bucket: Bucket, key: str, start: int, end: int, check_stopping: Callable[[], None]) -> Iterator[bytes]:
    """Yield the bytes from `start` to `end`. Raises Gone, StorageFailed (also if bytes are missing), Stopping."""
    position = start
    with closing(bucket.stream(key, start, end - start)) as stream:
        while position < end:
            check_stopping()
            piece = stream.read(min(_READ_BYTES, end - position))
            if not piece:
                raise StorageFailed(inside=f"object {key} is cut short")
            position += len(piece)
            yield piece


def read_ranges(bucket: Bucket, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the bytes of ranges, each an offset and a length. Raises Gone, StorageFailed."""
    found = [b""] * len(ranges)
    for numbers in _spans(ranges):
        start, end = ranges[numbers[0]][0], max(sum(ranges[number]) for number in numbers)
        content = bucket.get(key, start, end - start)
        for number in numbers:
            offset, length = ranges[number]
            found[number] = content[offset - start : offset - start + length]
    return found


def _spans(ranges: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield the numbers of the ranges to read together, in the order of their offsets, without empty ranges."""
    span: list[int] = []
    start = end = 0
    for number in sorted(
        (number for number, (_, length) in enumerate(ranges) if length), key=lambda each: ranges[each]
    ):
        offset, length = ranges[number]
        if span and (offset > end + _GAP_BYTES or offset + length > start + _SPAN_BYTES):
            yield span
            span = []
        if not span:
            start = end = offset
        span.append(number)
        end = max(end, offset + length)
    if span:
        yield span


def hash_from(bucket: Bucket, key: str, hashes: PrefixHashes, until: int, check_stopping: Callable[[], None]) -> None:
    """Advance the hashes of a prefix to `until`, by the bytes of an object. Raises Gone, StorageFailed, Stopping."""
    for piece in pieces_of(bucket, key, hashes.position, until, check_stopping):
        hashes.update(memoryview(piece))


def consists_of(bucket: Bucket, key: str, parts: Sequence[tuple[int, str]], check_stopping: Callable[[], None]) -> bool:
    """Return whether an object consists of these parts in order. Lengths are compared, and ETags that are MD5s. Raises
    StorageFailed, Stopping."""
    position = 0
    stat = bucket.head(key)
    if stat is None or stat.size != sum(length for length, _ in parts):
        return False
    for length, etag in parts:
        md5 = hashlib.md5(usedforsecurity=False)
        for piece in pieces_of(bucket, key, position, position + length, check_stopping):
            md5.update(piece)
        if _MD5.fullmatch(etag) and md5.hexdigest() != etag:
            return False
        position += length
    return True


def _found(put: PutAway) -> Found:
    came_at = put.created_at.timestamp()
    return bucket.found_at_key(put.key, name=put.name, changed_at=came_at, size=put.size, in_trash=True)
