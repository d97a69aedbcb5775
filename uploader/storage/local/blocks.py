"""Reads an open blob by the checksums of its blocks, `<sha256>.checksums` beside it, before anybody has a byte of them.

They were made of the very bytes that the SHA-256 was computed of. So they follow from that, whoever makes them. A blob that
is read at one go needs none: it is compared with its name. A list that is lost, torn or of another format is none: the bytes
are given as they are, until the scrub has read the whole blob and made the list anew. So nothing rests on it, and nobody
makes it durable.

Whoever meets a block that is not its own raises BytesAltered: if it is the block or its checksum, the whole blob says.
Runs in threads.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256 as new_sha256

from isal.isal_zlib import crc32

from uploader.runtime.tasks import Pool
from uploader.storage import disk
from uploader.storage.base import BytesAltered, Gone
from uploader.storage.disk import Directory
from uploader.storage.hashes import (
    BLOCK_BYTES,
    BLOCK_CHECKSUM,
    LIST_HEADER_LENGTH,
    LIST_PAGE_CHECKSUMS,
    VIEW_BYTES,
    are_blocks_listed,
    checksum_of_page,
    list_header,
    list_offset,
)
from uploader.storage.local.directories import checksums_name

_memory = threading.local()


@dataclass(eq=False)
class BlockList:
    """The list of an open blob. Of its pages the last one that was asked for is in memory."""

    descriptor: int
    _header: bytes
    _block_count: int
    _page_number: int = -1
    # None: it is not whole.
    _page: bytes | None = None

    @classmethod
    def open(cls, directory: Directory, name: str, sha256: str, size: int) -> "BlockList | None":
        """Open the list of the blob that is here under a name; None if there is none in this format, for whatever reason:
        the blob is whole without."""
        if not are_blocks_listed(size):
            return None
        try:
            descriptor = directory.open_to_read(checksums_name(name))
        except OSError:
            return None
        header = list_header(sha256, size)
        with suppress(OSError):
            if disk.read(descriptor, LIST_HEADER_LENGTH, 0) == header:
                return cls(descriptor, header, -(-size // BLOCK_BYTES))
        disk.close(descriptor)
        return None

    def checksum(self, block: int) -> int | None:
        """Return the checksum of a block; None if nobody knows it."""
        page, number = divmod(block, LIST_PAGE_CHECKSUMS)
        if page != self._page_number:
            self._page_number, self._page = page, self._read(page)
        if self._page is None:
            return None
        found: int = BLOCK_CHECKSUM.unpack_from(self._page, number * BLOCK_CHECKSUM.size)[0]
        return found

    def _read(self, page: int) -> bytes | None:
        length = min(LIST_PAGE_CHECKSUMS, self._block_count - page * LIST_PAGE_CHECKSUMS) * BLOCK_CHECKSUM.size
        try:
            content = disk.read(self.descriptor, length + BLOCK_CHECKSUM.size, list_offset(page * LIST_PAGE_CHECKSUMS))
        except OSError:
            return None
        checksums = content[:length]
        return checksums if content[length:] == checksum_of_page(self._header, page, checksums) else None


@dataclass(eq=False)
class BlobFile:
    """An open blob. It is closed with its last user, so an opening that is cancelled leaves none."""

    descriptor: int
    size: int
    # What its bytes are compared with: None as they are.
    _sha256: str | None
    _list: BlockList | None
    close: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        descriptors = [self.descriptor, *([self._list.descriptor] if self._list else [])]
        self.close = weakref.finalize(self, _close, descriptors)

    def view(self, offset: int, most_bytes: int) -> memoryview:
        """Return bytes from there on, up to so many, in this thread's memory until it asks for others; none at the end.
        Raises BytesAltered."""
        end = min(offset + most_bytes, self.size)
        if offset >= end:
            return memoryview(b"")
        begin, stop = offset, min(offset + VIEW_BYTES, end)
        if self._sha256 is not None and not are_blocks_listed(self.size):
            begin, stop = 0, self.size
            content = self._fill(begin, stop)
            are_own = new_sha256(content).hexdigest() == self._sha256
        elif self._list is not None:
            begin = offset - offset % BLOCK_BYTES
            stop = min(begin + VIEW_BYTES, end + -end % BLOCK_BYTES, self.size)
            content = self._fill(begin, stop)
            are_own = len(content) == stop - begin and self._are_listed(content, begin // BLOCK_BYTES, self._list)
        else:
            content, are_own = self._fill(begin, stop), True
        if not are_own:
            raise BytesAltered(self._sha256)
        return content[offset - begin : end - begin]

    def _fill(self, begin: int, stop: int) -> memoryview:
        if not hasattr(_memory, "buffer"):
            _memory.buffer = disk.room_for(VIEW_BYTES)
        buffer: memoryview = _memory.buffer
        filled = 0
        while filled < stop - begin and (
            count := disk.read_into(self.descriptor, buffer[filled : stop - begin], begin + filled)
        ):
            filled += count
        return buffer[:filled]

    @staticmethod
    def _are_listed(content: memoryview, first: int, listed: BlockList) -> bool:
        """Return whether blocks are what their checksums say, as far as these are known."""
        for block, start in enumerate(range(0, len(content), BLOCK_BYTES), first):
            if listed.checksum(block) not in (None, crc32(content[start : start + BLOCK_BYTES])):
                return False
        return True

    def read(self, length_bytes: int, offset: int) -> bytes:
        return bytes(self.view(offset, length_bytes))

    def read_all(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of some ranges, each an offset and a length. Raises Gone if they are not all there."""
        return [self._read_range(offset, length) for offset, length in ranges]

    def _read_range(self, offset: int, length: int) -> bytes:
        first = self.view(offset, length)
        if len(first) == length:
            return bytes(first)
        content = bytearray(first)
        while len(content) < length:
            piece = self.view(offset + len(content), length - len(content))
            if not piece:
                raise Gone(self._sha256)
            content += piece
        return bytes(content)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        disk.close(descriptor)


class LocalBlob:
    """A blob of a disk, open to be read."""

    def __init__(self, pool: Pool, file: BlobFile) -> None:
        self._pool = pool
        self._file = file

    async def read(self, length_bytes: int, offset: int) -> bytes:
        return await self._pool.run(self._file.read, length_bytes, offset)

    async def read_all(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return await self._pool.run(self._file.read_all, ranges)

    def fileno(self) -> int:
        return self._file.descriptor

    async def close(self) -> None:
        await self._pool.run(self._file.close)


class VerifiedBlob(LocalBlob):
    """One whose bytes are compared before anybody has them."""

    def view(self, offset: int, most_bytes: int) -> memoryview:
        try:
            return self._file.view(offset, most_bytes)
        except OSError as error:
            raise disk.refusal(error) from error
