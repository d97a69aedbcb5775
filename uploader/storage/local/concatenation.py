"""The bytes of a whole: its directory has a second name for the data file of each part, and a copy of the part's map.

So parts can end as every upload does, and the whole does not depend on them. Each chunk of the whole is read from those
files. At the same time the bytes of each part are compared with the checksums of its own chunks, because later only the
checksums of the whole are used.
"""

import errno
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from operator import attrgetter

from isal.isal_zlib import crc32

from uploader.domain.upload import Upload, chunk_length
from uploader.errors import StorageFailed
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.tasks import uninterrupted
from uploader.storage import disk
from uploader.storage.base import Busy, BytesBody, PartDamaged, ReadPart
from uploader.storage.disk import Directory, Root
from uploader.storage.local import chunks, directories
from uploader.storage.local.chunks import ChunkFiles
from uploader.storage.store import Store

# The maps of the parts, one after the other.
_MAPS = "parts"


@dataclass(frozen=True, slots=True)
class _PartFile:
    """The data file of a part, its offset in the whole, and the checksums of its chunks."""

    name: str
    start: int
    shape: chunks.MapShape
    checksums: list[int]


class LocalConcatenations(Store):
    """Makes the directories of wholes, and reads the parts in them."""

    _root: Root
    _chunks: ChunkFiles

    def _create_concatenation(self, whole: Upload, parts: Sequence[Upload]) -> float:
        directories.discard(self._root, whole)  # left by an attempt that did not commit

        def add(directory: Directory) -> None:
            maps = bytearray()
            for position, part in enumerate(parts):
                with directories.upload_directory(self._root, part) as own:
                    own.link("data", directory, _name(position))
                    maps += own.read_whole("map")
                crash_point("join.after_link")
            directory.create(_MAPS, bytes(maps))
            crash_point("join.after_maps")

        return self._chunks.create(whole, add)

    @asynccontextmanager
    async def filling(self, whole: Upload) -> AsyncIterator[ReadPart]:
        """Hold the right to fill: a lock on the byte of the map that appenders lock, too. A crash releases it."""
        opening = self.threads.disk.run(self._chunks.open_map, whole)
        try:
            descriptor = await uninterrupted(opening)
            if not disk.try_lock(descriptor, chunks.APPEND_OFFSET, 1):
                raise Busy(whole.id)
            files = await self.threads.disk.run(self._read_maps, whole)

            async def read(number: int) -> BytesBody:
                return await self.threads.long.run(self._read_chunk, whole, files, number)

            yield read
        finally:
            if opening.exception() is None:
                disk.close(opening.result())

    def _read_maps(self, whole: Upload) -> list[_PartFile]:
        with directories.upload_directory(self._root, whole) as directory:
            maps = directory.read_whole(_MAPS)
        files: list[_PartFile] = []
        start = offset = 0
        while offset < len(maps):
            shape = chunks.shape_in(maps, offset)
            if shape is None or len(maps) < offset + shape.map_length:
                raise StorageFailed(inside=f"the maps of the parts of upload {whole.id} are damaged")
            records = maps[offset + chunks.MAP_RECORDS_OFFSET : offset + shape.map_length]
            files.append(_PartFile(_name(len(files)), start, shape, chunks.checksums_in(records)))
            start, offset = start + shape.size, offset + shape.map_length
        return files

    def _read_chunk(self, whole: Upload, files: Sequence[_PartFile], number: int) -> BytesBody:
        self.check_stopping()
        start = number * whole.chunk_size
        content = memoryview(bytearray(chunk_length(number, whole.size, whole.chunk_size)))
        end = start + len(content)
        with directories.upload_directory(self._root, whole) as directory:
            for file in files[bisect_right(files, start, key=attrgetter("start")) - 1 :]:
                if file.start >= end:
                    break
                begin = max(start, file.start)
                piece = content[begin - start : min(end, file.start + file.shape.size) - start]
                if len(piece):
                    _read_part(directory, file, begin - file.start, piece)
        return BytesBody(content)


def _read_part(directory: Directory, file: _PartFile, offset: int, piece: memoryview) -> None:
    """Fill `piece` with the bytes of a part from `offset` on, and compare each chunk of the part that ends in it."""
    with disk.opened(directory.open_to_read(file.name)) as descriptor:
        try:
            _fill(descriptor, piece, offset)
            number, end = offset // file.shape.chunk_size, offset + len(piece)
            while (ends_at := min((number + 1) * file.shape.chunk_size, file.shape.size)) <= end:
                begins_at = number * file.shape.chunk_size
                # The checksum of the chunk's bytes before this piece.
                head = chunks.checksum_of(descriptor, begins_at, offset)
                if head < 0:
                    raise OSError(errno.EIO, "the data of a part is cut short")
                if crc32(piece[max(begins_at - offset, 0) : ends_at - offset], head) != file.checksums[number]:
                    raise PartDamaged(f"chunk {number} of {file.name} does not have its checksum")
                number += 1
                if ends_at == file.shape.size:
                    break
        except OSError as error:
            if error.errno in disk.DAMAGED:
                raise PartDamaged(f"{file.name} can't be read") from error
            raise


def _name(position: int) -> str:
    return f"part-{position:04}"


def _fill(descriptor: int, piece: memoryview, offset: int) -> None:
    while len(piece):
        count = disk.read_into(descriptor, piece, offset)
        if not count:
            raise OSError(errno.EIO, "the data of a part is cut short")
        piece, offset = piece[count:], offset + count
