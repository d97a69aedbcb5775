"""Contents on S3: each lies at the key that its row names, and is read by ranges.

A key is never used again, so what was read before belongs together with what is read after. Where a content is given other
bytes, the key changes, and the old object goes to the trash: a reader that meets none asks for the key once more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from uploader.errors import StorageFailed
from uploader.storage.base import Gone
from uploader.storage.contents import Digests, Found, Pace
from uploader.storage.s3 import keys
from uploader.storage.s3.bucket import Bucket, Stat
from uploader.storage.s3.contents.reading import digests_at, read_ranges
from uploader.storage.s3.ledger import Ledger
from uploader.storage.s3.streams import ObjectReader
from uploader.tasks import Pool, all_or_none, uninterrupted

T = TypeVar("T")
# Says where the content is now; None: nowhere.
Locate = Callable[[], Awaitable[str | None]]


class S3Blob:
    """A content that is open to be read."""

    def __init__(self, bucket: Bucket, pool: Pool, key: str, size: int, locate: Locate) -> None:
        self._bucket = bucket
        self._pool = pool
        self._key = key
        self._size = size
        self._locate = locate
        self._stream: ObjectReader | None = None
        self._position = 0
        self._alone = asyncio.Lock()

    @property
    def key(self) -> str:
        return self._key

    async def read(self, length_bytes: int, offset: int) -> bytes:
        if offset >= self._size or length_bytes <= 0:
            return b""
        async with self._alone:
            # To its end: a thread that still reads would open a stream after `close`.
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
            self._close()  # a reader who takes his time: the server has hung up
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


class S3Blobs:
    """All of them, found by the rows."""

    def __init__(
        self, bucket: Bucket, ledger: Ledger, pool: Pool, hashing: tuple[Pool, Pool], check_stopping: Callable[[], None]
    ) -> None:
        """`hashing`: what hashes, and what hashes at a pace."""
        self._bucket = bucket
        self._ledger = ledger
        self._pool = pool
        self._hashing, self._scrubbing = hashing
        self._check_stopping = check_stopping

    async def locate(self, sha256: str) -> str | None:
        """The key of a content; None if it has none."""
        return (await self._ledger.locations([sha256])).get(sha256)

    async def open(self, sha256: str, size: int) -> S3Blob:
        stat = await self._stat(await self.locate(sha256))
        if stat is None or stat.size != size:
            raise Gone(sha256)
        return S3Blob(self._bucket, self._pool, stat.key, size, lambda: self.locate(sha256))

    def open_found(self, found: Found) -> S3Blob:
        async def nowhere() -> str | None:
            return None

        return S3Blob(self._bucket, self._pool, found.place, found.disk_bytes, nowhere)

    async def read(self, sha256: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        key = await self.locate(sha256)
        if key is None:
            raise Gone(sha256)
        return await self._pool.run(read_ranges, self._bucket, key, ranges)

    async def sizes(self, sha256s: list[str]) -> list[int | None]:
        locations = await self._ledger.locations(sha256s)
        stats = await all_or_none(self._stat(locations.get(sha256)) for sha256 in sha256s)
        return [None if stat is None else stat.size for stat in stats]

    async def _stat(self, key: str | None) -> Stat | None:
        return None if key is None else await self._pool.run(self._bucket.head, key)

    async def find(self, sha256: str) -> Found | None:
        stat = await self._stat(await self.locate(sha256))
        if stat is None:
            return None
        return keys.found(stat.key, name=sha256, changed_at=stat.modified_at.timestamp(), size=stat.size)

    async def hash(self, found: Found, pace: Pace | None, *, with_md5: bool) -> Digests | None:
        pool = self._hashing if pace is None else self._scrubbing
        size = found.disk_bytes

        def compute() -> Digests | None:
            return digests_at(self._bucket, found.place, size, self._check_stopping, pace, with_md5=with_md5)

        return await pool.run(compute)
