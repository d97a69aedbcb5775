"""Signatures of blobs: computed when one is asked for, and kept beside the blob, with a checksum, wherever that lies.

Nothing is lost with one: it is believed only if its checksum is right and its first line is what it would be now; else it is
made anew. It is small enough to be in memory. Nobody makes it durable.
"""

import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from struct import Struct

from isal.isal_zlib import crc32

from uploader.domain import delta
from uploader.storage.base import BlobBytes, Found, Gone, Piece
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


class Signatures:
    """Each is computed once at a time in this process."""

    def __init__(self, blobs: BlobBytes, reading: Pool, signing: Pool, check_stopping: Callable[[], None]) -> None:
        self._blobs = blobs
        self._reading = reading
        self._signing = signing
        self._check_stopping = check_stopping
        self._making = OnePerKey[bytes]()

    async def read(self, sha256: str, size: int) -> bytes:
        """As `Store.read_signature`."""
        found = await self._blobs.find_blob(sha256)
        if found is None or found.size != size:
            raise Gone(sha256)
        kept = await self._reading.run(self._kept, found)
        return kept or await self._making.run(found.place, lambda: self._signing.run(self._make, found))

    # In threads

    def _kept(self, found: Found) -> bytes | None:
        """The one that is kept; None if there is none that is whole, and what is wanted now."""
        stored = self._blobs.read_beside(found) or b""
        content, checksum = stored[: -_CHECKSUM.size], stored[-_CHECKSUM.size :]
        is_wanted = content.startswith(delta.head_of(found.size, found.name))
        return content if is_wanted and _CHECKSUM.pack(crc32(content)) == checksum else None

    def _make(self, found: Found) -> bytes:
        """Raises Gone if the bytes are others than they should be."""
        if kept := self._kept(found):
            return kept  # made by others since it was looked for
        content = bytearray(delta.head_of(found.size, found.name))
        with closing(self._blobs.pieces(found)) as pieces:
            reading = _Reading(pieces, self._check_stopping)
            for length, hashed in delta.pieces_of(reading, delta.cuts_for(found.size)):
                content += delta.RECORD.pack(length, hashed)
        if reading.position != found.size or reading.sha256.hexdigest() != found.name:
            raise Gone(found.name)
        self._blobs.keep_beside(found, bytes(content) + _CHECKSUM.pack(crc32(content)))
        return bytes(content)


class _Reading:
    """The bytes of a blob in order, of which the SHA-256 is computed on the way."""

    def __init__(self, pieces: Generator[Piece], check_stopping: Callable[[], None]) -> None:
        self._pieces = pieces
        self._check_stopping = check_stopping
        self._waiting = memoryview(b"")
        self.sha256 = hashlib.sha256()
        self.position = 0

    def readinto(self, buffer: memoryview, /) -> int:
        if not self._waiting:
            self._check_stopping()
            self._waiting = memoryview(next(self._pieces, b""))
        count = min(len(buffer), len(self._waiting))
        buffer[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        self.sha256.update(buffer[:count])
        self.position += count
        return count
