"""Reads an open blob, and compares its blocks with their checksums before anybody gets the bytes. The checksums lie beside
the blob, in `<sha256>.checksums`.

They were computed from the same bytes as the SHA-256, so every process computes the same list. A blob of one read needs no
list: it is compared with its name. A list that is lost, torn or of another format is ignored. Then the bytes are returned as
they are, until the scrub has read the whole blob and made the list anew. No data depends on a list, and it is never synced.

A block with another checksum raises BytesAltered. Only the whole blob tells whether the block or the checksum is wrong. Runs
in threads.
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
    """The open list of a blob. The last page that was asked for is in memory."""

    descriptor: int
    _header: bytes
    _block_count: int
    _page_number: int = -1
    # None: the page is damaged.
    _page: bytes | None = None

    @classmethod
    def open(cls, directory: Directory, name: str, sha256: str, size: int) -> "BlockList | None":
        """Open the list of the blob that lies here as `name`. Return None if there is no list in this format, for any
        reason: a blob is valid without a list."""
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
        """Return the checksum of a block; None if it is not known."""
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
    """An open blob. The files are closed with their last user, so a cancelled opening leaves none open."""

    descriptor: int
    size: int
    # The SHA-256 to compare the bytes with; None: return them as they are.
    _sha256: str | None
    _list: BlockList | None
    close: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        descriptors = [self.descriptor, *([self._list.descriptor] if self._list else [])]
        self.close = weakref.finalize(self, _close, descriptors)

    def view(self, offset: int, most_bytes: int) -> memoryview:
        """Return up to `most_bytes` from `offset` on, in memory of this thread that its next `view` overwrites; none at the
        end. Raises BytesAltered."""
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
        """Return whether these blocks have their checksums, as far as the checksums are known."""
        for block, start in enumerate(range(0, len(content), BLOCK_BYTES), first):
            if listed.checksum(block) not in (None, crc32(content[start : start + BLOCK_BYTES])):
                return False
        return True

    def read(self, length_bytes: int, offset: int) -> bytes:
        return bytes(self.view(offset, length_bytes))

    def read_all(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of some ranges, each an offset and a length. Raises Gone if any of them is missing."""
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
    """An open blob on a disk."""

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
    """An open blob. Its bytes are compared before anybody gets them."""

    def view(self, offset: int, most_bytes: int) -> memoryview:
        try:
            return self._file.view(offset, most_bytes)
        except OSError as error:
            raise disk.refusal(error) from error
