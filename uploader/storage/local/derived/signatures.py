"""Signatures of blobs, `blobs/ab/cd/<sha256>.signature`: computed when one is asked for, and kept beside the blob.

Nothing is lost with such a file. It is believed only if its checksum is right and its first line is what it would be now;
else it is made anew. Nobody makes it durable.
"""

import hashlib
import secrets
from collections.abc import Callable
from struct import Struct

from isal.isal_zlib import crc32

from uploader.crashpoints import crash_point
from uploader.domain import delta
from uploader.storage import disk
from uploader.storage.base import Gone
from uploader.storage.contents import OpenSignature
from uploader.storage.disk import Directory
from uploader.storage.local.blobs import Blobs, LocalBlob, fan_out
from uploader.storage.local.walking import signature_name
from uploader.storage.threads import Threads
from uploader.tasks import OnePerKey

# In front, with the version of the format; at the end follows the CRC-32 of all between.
_MAGIC = b"uploader signature 1\n"
_CHECKSUM = Struct(">I")
_READ_BYTES = 1 << 20
_WRITE_BYTES = 64 << 10


class LocalSignatures:
    """Each is computed once at a time in this process."""

    def __init__(self, root: Directory, blobs: Blobs, threads: Threads, check_stopping: Callable[[], None]) -> None:
        self._root = root
        self._blobs = blobs
        self._threads = threads
        self._check_stopping = check_stopping
        self._making = OnePerKey[None]()

    async def open(self, sha256: str, size: int) -> OpenSignature:
        """As `BlobBytes.open_signature`."""
        kept = await self._threads.reading.run(self._open, sha256, size)
        if kept is None:
            await self._making.run(sha256, lambda: self._threads.signing.run(self._make, sha256, size))
            kept = await self._threads.reading.run(self._open, sha256, size)
        if kept is None:
            raise Gone(sha256)
        return kept

    def _open(self, sha256: str, size: int) -> OpenSignature | None:
        """The one that is kept; None if there is none that is whole."""
        disk.close(self._blobs.open(sha256, size))
        try:
            with self._root.enter(f"blobs/{fan_out(sha256)}") as directory:
                blob = LocalBlob(self._threads.reading, directory.open_to_read(signature_name(sha256)))
        except FileNotFoundError:
            return None
        length = _whole_length(blob.fileno(), delta.head_of(size, sha256))
        return None if length is None else OpenSignature(blob, len(_MAGIC), length)

    def _make(self, sha256: str, size: int) -> None:
        """In a thread. Raises Gone if the bytes are others than they should be."""
        if self._open(sha256, size) is not None:
            return  # made by others since it was looked for
        source = self._blobs.open(sha256, size)
        try:
            with self._root.enter(f"blobs/{fan_out(sha256)}") as directory:
                draft = f"{sha256}.{secrets.token_hex(16)}"
                target = directory.create_to_write(draft)
                try:
                    self._write(target, source, sha256, size)
                    crash_point("signature.after_draft")
                    directory.rename(draft, signature_name(sha256))
                except BaseException:
                    directory.unlink(draft)
                    raise
                finally:
                    disk.close(target)
        finally:
            disk.close(source)

    def _write(self, target: int, source: int, sha256: str, size: int) -> None:
        reading = _Reading(source, self._check_stopping)
        written = _Written(target)
        written.add(delta.head_of(size, sha256))
        for length, hashed in delta.pieces_of(reading, delta.cuts_for(size)):
            written.add(delta.RECORD.pack(length, hashed))
        if reading.position != size or reading.sha256.hexdigest() != sha256:
            raise Gone(sha256)
        written.end()


class _Reading:
    """The bytes of a blob in order, of which the SHA-256 is computed on the way."""

    def __init__(self, descriptor: int, check_stopping: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._check_stopping = check_stopping
        self.sha256 = hashlib.sha256()
        self.position = 0

    def readinto(self, buffer: memoryview, /) -> int:
        self._check_stopping()
        count = disk.read_into(self._descriptor, buffer[:_READ_BYTES], self.position)
        self.sha256.update(buffer[:count])
        self.position += count
        return count


class _Written:
    """A file of a signature that is being written."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting = bytearray()
        self._checksum = 0
        disk.write(descriptor, memoryview(_MAGIC), 0)
        self._position = len(_MAGIC)

    def add(self, content: bytes) -> None:
        self._waiting += content
        if len(self._waiting) >= _WRITE_BYTES:
            self._flush()

    def end(self) -> None:
        self._flush()
        disk.write(self._descriptor, memoryview(_CHECKSUM.pack(self._checksum)), self._position)

    def _flush(self) -> None:
        content = bytes(self._waiting)
        self._waiting.clear()
        disk.write(self._descriptor, memoryview(content), self._position)
        self._position += len(content)
        self._checksum = crc32(content, self._checksum)


def _whole_length(descriptor: int, head: bytes) -> int | None:
    """How long a signature in a file is, in bytes; None if it is damaged, or not what is wanted now."""
    start, end = len(_MAGIC), disk.status(descriptor).st_size - _CHECKSUM.size
    if disk.read(descriptor, start + len(head), 0) != _MAGIC + head or end < start:
        return None
    checksum = 0
    for offset in range(start, end, _READ_BYTES):
        checksum = crc32(disk.read(descriptor, min(_READ_BYTES, end - offset), offset), checksum)
    is_whole = disk.read(descriptor, _CHECKSUM.size, end) == _CHECKSUM.pack(checksum)
    return end - start if is_whole else None
