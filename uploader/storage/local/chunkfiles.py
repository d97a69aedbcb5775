"""The files of an open upload, `data` and `map`, and how a chunk gets into them, or the first bytes of one: a tail.

Owns the order in which the effects of a chunk reach the disk, and the lock of its record. Runs in threads, and never waits
for a lock: a writer that does not get it is told so, and its caller tries again.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

# The CRC-32 of zlib, by instructions for it: in a fraction of the time.
from isal.isal_zlib import crc32

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload, chunk_count, chunk_length
from uploader.errors import BytesConflict, Unverified
from uploader.storage import disk
from uploader.storage.base import Body, Busy, Gone, HeldChunk
from uploader.storage.disk import is_locked, try_lock, unlock_all
from uploader.storage.local import formats
from uploader.storage.local.temp import FILES, OpenFiles, made_upload_directory, new_upload_directory, upload_directory

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20


class HeldRecord(HeldChunk):
    """A chunk on disk, or a tail; the descriptor of the map holds the lock of its record."""

    def __init__(self, files: OpenFiles, *, written: bool, keep: Callable[[OpenFiles], None]) -> None:
        super().__init__(written=written)
        self._files = files
        self._keep = keep

    def release(self) -> None:
        let_go(self._files, self._keep)


def let_go(files: OpenFiles, keep: Callable[[OpenFiles], None]) -> None:
    """Give up every lock; `keep` has the files from here on."""
    try:
        unlock_all(files.map)
    except OSError:
        files.close()  # which unlocks, too
    else:
        keep(files)


class ChunkFiles:
    """Makes, fills and reads the files of uploads."""

    def __init__(
        self,
        root: disk.Directory,
        *,
        durable: bool,
        boot_id: str,
        keep: Callable[[OpenFiles], None],
        forget_digests: Callable[[Upload], None],
    ) -> None:
        """`durable`: an acknowledged chunk survives a power cut, not only the end of the process. `keep` is given the open
        files of each chunk that its holder has released. `forget_digests` of an upload raises Busy while somebody computes
        them."""
        self._root = root
        self._keep = keep
        self._forget_digests = forget_digests
        self._durable = durable
        self._boot_id = boot_id

    def create(self, upload: Upload, add: Callable[[disk.Directory], None] | None = None) -> float:
        """The files of an upload without chunks, durably, and what `add` makes beside them; returns when its map was
        written."""
        with new_upload_directory(self._root, upload) as directory:
            # The first chunk that is synced makes the size of `data` durable. Until then nothing rests on it.
            directory.create_empty("data", upload.size)
            crash_point("open.after_data_file")
            directory.create_empty("digest")
            crash_point("open.after_digest_file")
            boot_id = "" if self._durable else self._boot_id
            directory.create("map", formats.new_map(boot_id, shape_of(upload)))
            crash_point("open.after_map_file")
            if add is not None:
                add(directory)
            return directory.status("map").st_mtime

    def begin_anew(self, upload: Upload) -> None:
        """The files of an upload that lost its map, or all of them, durably. The map takes its name when the rest is there
        and it is whole: of several who do this at once, one does it, and what came since stays. Old data may lie beside it:
        no record is of them."""
        with made_upload_directory(self._root, upload) as directory:
            for name in FILES:
                with suppress(FileNotFoundError):
                    directory.make_way(name)
            for name, size_bytes in (("data", upload.size), ("digest", 0)):
                with suppress(FileExistsError):
                    directory.create_empty(name, size_bytes)
            descriptor = directory.open_unnamed()
            try:
                boot_id = "" if self._durable else self._boot_id
                disk.write(descriptor, memoryview(formats.new_map(boot_id, shape_of(upload))), 0)
                disk.sync_data(descriptor)
                with suppress(FileExistsError):
                    directory.link_open(descriptor, "map")
            finally:
                disk.close(descriptor)

    # Chunks

    def try_hold(
        self, upload: Upload, number: int, body: Body | None, files: OpenFiles | None = None, start: int = 0
    ) -> HeldRecord | None:
        """Put a chunk on disk unless it is there, or of one the bytes from `start` on, and keep its record locked; None if
        somebody has a lock that it takes.

        If `files` are given they are open already, and belong to this call: unless it returns them, it closes them.
        Raises Gone, Unverified, BytesConflict.
        """
        files = files or OpenFiles(self._root, upload)
        held = None
        try:
            if _try_lock_record(files.map, number):
                files.check()
                with suppress(Busy):
                    written = self._write_missing(files, upload, number, body, start)
                    held = HeldRecord(files, written=written, keep=self._keep)
        finally:
            if held is None:
                files.close()
        return held

    def _write_missing(self, files: OpenFiles, upload: Upload, number: int, body: Body | None, start: int) -> bool:
        """Whether the chunk had to be written. Raises Unverified, Gone, Busy, BytesConflict."""
        record = formats.map_record_offset(number)
        header = disk.read(files.map, formats.MAP_RECORDS_OFFSET, 0)
        boot_id = formats.boot_id_of(header, shape_of(upload))
        if boot_id not in ("", self._boot_id):
            raise Unverified()
        known = disk.read(files.map, formats.MAP_RECORD_LENGTH, record)
        if formats.is_present(known):
            return False
        if body is None:
            raise Gone(upload.id)
        if formats.is_tainted(known):
            self._forget_digests(upload)
        head = self._head(files, upload, number, body, start, header)
        is_whole = start + body.length == chunk_length(number, upload.extent, upload.chunk_size)
        if not (is_whole or self._are_before(files.map, number)):
            raise Gone(upload.id)  # a chunk was withdrawn
        if not (self._durable or boot_id):
            self._write_boot_id(files.map, self._boot_id)
        # What was acknowledged is never written again.
        pieces = body.pieces() if head.length == start else _after(body.pieces(), head.length)
        checksum = self._write_data(files.data, number * upload.chunk_size + head.length, pieces, head.checksum)
        if is_whole:
            self._write_record(files.map, formats.map_record(checksum), record)
        else:
            grown = formats.TailRecord(number, start + body.length, checksum)
            self._write_tail(files.map, formats.tail_record(grown), tail_field(header))
        return True

    def _head(
        self, files: OpenFiles, upload: Upload, number: int, body: Body, start: int, header: bytes
    ) -> formats.TailRecord:
        """What is there of the chunk, perhaps nothing. Raises Gone if it is not what the writer takes it for, and
        BytesConflict."""
        tail = formats.tail_of(header, shape_of(upload))
        head = tail if tail is not None and tail.number == number else formats.TailRecord(number, 0, 0)
        if head.length == start:
            return head
        if start or body.length != chunk_length(number, upload.extent, upload.chunk_size):
            raise Gone(upload.id)  # the tail was withdrawn
        _check_head(files.data, upload, head, body)
        return head

    def _are_before(self, map_descriptor: int, number: int) -> bool:
        records = disk.read(map_descriptor, formats.MAP_RECORD_LENGTH * number, formats.MAP_RECORDS_OFFSET)
        return formats.are_present(records, number)

    def _write_boot_id(self, map_descriptor: int, boot_id: str) -> None:
        """Say in the map, durably, in which boot chunks of this upload are stored without a sync; empty: none is."""
        disk.write(map_descriptor, memoryview(formats.pack_boot_id(boot_id)), formats.BOOT_ID_OFFSET)
        disk.sync_data(map_descriptor)

    def _write_data(self, descriptor: int, offset: int, pieces: Iterable[memoryview], checksum: int) -> int:
        """Returns the checksum of what `checksum` is of, and these."""
        for piece in pieces:
            disk.write(descriptor, piece, offset)
            offset += len(piece)
            checksum = crc32(piece, checksum)
        crash_point("chunk.after_data_write")
        # An error here fails this chunk and is never retried: the kernel may have dropped the pages
        # (https://wiki.postgresql.org/wiki/Fsync_Errors), but the map does not claim them.
        self._sync_data(descriptor)
        crash_point("chunk.after_data_sync")
        return checksum

    def _write_record(self, map_descriptor: int, content: bytes, offset: int) -> None:
        try:
            disk.write(map_descriptor, memoryview(content), offset)
            crash_point("chunk.after_map_record")
            self._sync_data(map_descriptor)
            crash_point("chunk.after_map_sync")
        except OSError:
            # The page cache may still show the record that the disk refused. The chunk's next writer must not believe it,
            # and whoever did meanwhile may have saved digests of these bytes.
            disk.write(map_descriptor, memoryview(formats.TAINTED_RECORD), offset)
            raise

    def _write_tail(self, map_descriptor: int, content: bytes, before: bytes) -> None:
        try:
            disk.write(map_descriptor, memoryview(content), formats.TAIL_OFFSET)
            crash_point("tail.after_map_record")
            self._sync_data(map_descriptor)
            crash_point("tail.after_map_sync")
        except OSError:
            # The page cache may still show the record that the disk refused: it must not be acknowledged.
            disk.write(map_descriptor, memoryview(before), formats.TAIL_OFFSET)
            raise

    def _sync_data(self, descriptor: int) -> None:
        if self._durable:
            disk.sync_data(descriptor)

    # The map

    def open_map(self, upload: Upload) -> int:
        """A descriptor of the map, to hold locks by. Raises Gone."""
        with upload_directory(self._root, upload) as directory:
            return directory.open_to_write("map")

    def open(self, upload: Upload) -> OpenFiles:
        """Its files, to hold locks by. Raises Gone, Unverified."""
        return OpenFiles(self._root, upload)

    def read_map(self, upload: Upload, verified: bool = True) -> formats.ChunkMap:
        """Raises Gone; and Unverified, unless it may be one that is not `verified`."""
        shape = shape_of(upload)
        with upload_directory(self._root, upload) as directory:
            descriptor = directory.open_to_read("map")
            try:
                content, written_at = disk.read(descriptor, shape.map_length + 1, 0), disk.status(descriptor).st_mtime
            finally:
                disk.close(descriptor)
            data_bytes = None
            with suppress(FileNotFoundError):
                data_bytes = directory.size("data")
        chunk_map = formats.parse_map(content, shape, data_bytes, written_at)
        if verified:
            self._check_verified(chunk_map)
        return chunk_map

    def _check_verified(self, chunk_map: formats.ChunkMap) -> None:
        if chunk_map.defect or not chunk_map.settled or chunk_map.boot_id not in ("", self._boot_id):
            raise Unverified()

    def begin_append(self, upload: Upload, files: OpenFiles) -> formats.ChunkMap | None:
        """As `read_settled`, and what is read is durable: whoever appended before may have been killed between a record and
        its sync. Its bytes are: they go before their record. None also where it is Unverified. Raises Gone."""
        self._sync_data(files.map)
        with suppress(Unverified):
            return self.read_settled(upload, files)
        return None

    def read_settled(self, upload: Upload, files: OpenFiles) -> formats.ChunkMap | None:
        """The map; None while somebody writes a chunk that is before the first gap. It may not be durable, though its record
        can be read; and when its writer has let go it is looked at again, for the disk may have refused it. Raises Gone,
        Unverified."""
        files.check()
        shape = shape_of(upload)
        content = disk.read(files.map, shape.map_length + 1, 0)
        data_bytes = disk.status(files.data).st_size
        chunk_map = formats.parse_map(content, shape, data_bytes, disk.status(files.map).st_mtime)
        self._check_verified(chunk_map)
        leading = chunk_map.leading_chunks
        if leading and is_locked(files.map, formats.MAP_RECORDS_OFFSET, formats.MAP_RECORD_LENGTH * leading):
            return None
        return chunk_map if self._are_before(files.map, leading) else None

    def last_write(self, upload: Upload) -> float:
        """Raises Gone."""
        with upload_directory(self._root, upload) as directory:
            return directory.status("map").st_mtime


def tail_field(header: bytes) -> bytes:
    return header[formats.TAIL_OFFSET : formats.TAIL_OFFSET + formats.TAIL_LENGTH]


def _after(pieces: Iterable[memoryview], skipped: int) -> Iterator[memoryview]:
    """What comes after so many bytes."""
    for piece in pieces:
        if skipped < len(piece):
            yield piece[skipped:]
        skipped = max(skipped - len(piece), 0)


def _check_head(data: int, upload: Upload, head: formats.TailRecord, body: Body) -> None:
    """Byte by byte: whoever sends both may choose them so that their checksums are the same. Raises BytesConflict."""
    offset = head.number * upload.chunk_size
    left = head.length
    for piece in body.pieces():
        for start in range(0, min(len(piece), left), _READ_BYTES):
            part = piece[start : min(start + _READ_BYTES, left)]
            if disk.read(data, len(part), offset + start) != part:
                raise BytesConflict()
        offset, left = offset + len(piece), left - len(piece)
        if left <= 0:
            return


def shape_of(upload: Upload) -> formats.MapShape:
    return formats.MapShape(upload.extent, upload.chunk_size, chunk_count(upload.extent, upload.chunk_size))


def _try_lock_record(map_descriptor: int, number: int) -> bool:
    """Look at the gate without taking it, then try to lock the record. So a closer gets the gate at once, however many
    writers there are; a writer that looked before it came may still take its record, but no writer does so twice."""
    if is_locked(map_descriptor, formats.GATE_OFFSET, formats.GATE_LENGTH):
        return False
    return try_lock(map_descriptor, formats.map_record_offset(number), formats.MAP_RECORD_LENGTH)
