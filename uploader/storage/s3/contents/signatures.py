"""Signatures of contents: computed when one is asked for, and kept as an object beside the content, with a checksum.

Nothing is lost with such an object: one that is not as it should be is made anew. It is small enough to be in memory.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from struct import Struct

from isal.isal_zlib import crc32

from uploader.crashpoints import crash_point
from uploader.domain import delta
from uploader.storage.base import Gone
from uploader.storage.contents import OpenSignature
from uploader.storage.s3 import keys
from uploader.storage.s3.bucket import Bucket
from uploader.storage.s3.contents.blobs import S3Blobs
from uploader.storage.s3.contents.reading import pieces_of
from uploader.storage.s3.streams import BytesBody
from uploader.tasks import OnePerKey, Pool

_CHECKSUM = Struct(">I")


class BytesBlob:
    """Bytes in memory, open to be read."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def read(self, length_bytes: int, offset: int) -> bytes:
        return self._content[offset : offset + length_bytes]

    async def read_all(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self._content[offset : offset + length] for offset, length in ranges]

    async def close(self) -> None:
        """They go with their last user."""


class S3Signatures:
    """Each is computed once at a time in this process."""

    def __init__(
        self, bucket: Bucket, blobs: S3Blobs, pool: Pool, signing: Pool, check_stopping: Callable[[], None]
    ) -> None:
        self._bucket = bucket
        self._blobs = blobs
        self._pool = pool
        self._signing = signing
        self._check_stopping = check_stopping
        self._making = OnePerKey[bytes]()

    async def open(self, sha256: str, size: int) -> OpenSignature:
        """As `BlobBytes.open_signature`."""
        blob = await self._blobs.open(sha256, size)
        await blob.close()
        content = await self._pool.run(self._kept, blob.key, delta.head_of(size, sha256))
        if content is None:
            content = await self._making.run(blob.key, lambda: self._signing.run(self._make, blob.key, sha256, size))
        return OpenSignature(BytesBlob(content), 0, len(content))

    def _kept(self, key: str, head: bytes) -> bytes | None:
        """In a thread. None if there is none that is whole, and what is wanted now."""
        name = keys.of_signature(key)
        stat = self._bucket.head(name)
        if stat is None or stat.size < len(head) + _CHECKSUM.size:
            return None
        try:
            stored = self._bucket.get(name, 0, stat.size)
        except Gone:
            return None
        content, checksum = stored[: -_CHECKSUM.size], stored[-_CHECKSUM.size :]
        return content if content.startswith(head) and _CHECKSUM.pack(crc32(content)) == checksum else None

    def _make(self, key: str, sha256: str, size: int) -> bytes:
        """In a thread. Raises Gone if the bytes are others than they should be."""
        reading = _ObjectReading(pieces_of(self._bucket, key, 0, size, self._check_stopping) if size else iter(()))
        content = bytearray(delta.head_of(size, sha256))
        for length, hashed in delta.pieces_of(reading, delta.cuts_for(size)):
            content += delta.RECORD.pack(length, hashed)
        if reading.position != size or reading.sha256.hexdigest() != sha256:
            raise Gone(sha256)
        self._bucket.put(keys.of_signature(key), BytesBody(bytes(content) + _CHECKSUM.pack(crc32(content))))
        crash_point("signature.after_put")
        return bytes(content)


class _ObjectReading:
    """The bytes of a content in order, of which the SHA-256 is computed on the way."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._waiting = memoryview(b"")
        self.sha256 = hashlib.sha256()
        self.position = 0

    def readinto(self, buffer: memoryview, /) -> int:
        if not self._waiting:
            self._waiting = memoryview(next(self._pieces, b""))
        count = min(len(buffer), len(self._waiting))
        buffer[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        self.sha256.update(buffer[:count])
        self.position += count
        return count
