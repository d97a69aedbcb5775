"""The files of an open upload, `data` and `map`, and how a chunk gets into them.

Owns the order in which the effects of a chunk reach the disk, and the lock of its record. Runs in threads, and never waits
for a lock: a writer that does not get it is told so, and its caller tries again.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

# The CRC-32 of zlib, by instructions for it: in a fraction of the time.
from isal.isal_zlib import crc32

from uploader.crashpoints import crash_point
from uploader.domain.chunks import chunk_count, chunk_length
from uploader.domain.upload import Upload
from uploader.errors import Unverified
from uploader.storage import disk
from uploader.storage.base import Body, Busy, Gone
from uploader.storage.disk import is_locked, try_lock, unlock_all
from uploader.storage.local import formats
from uploader.storage.local.temp import OpenFiles, new_upload_directory, upload_directory

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_TURN_BYTES = 64 << 20


class HeldRecord:
    """A chunk on disk; the descriptor of the map holds the lock of its record."""

    def __init__(self, files: OpenFiles, *, written: bool, keep: Callable[[OpenFiles], None]) -> None:
        self._files = files
        self._keep = keep
        self.written = written

    def release(self) -> None:
        try:
            unlock_all(self._files.map)
        except OSError:
            self._files.close()  # which unlocks, too
        else:
            self._keep(self._files)


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
        check_stopping: Callable[[], None],
    ) -> None:
        """`durable`: an acknowledged chunk survives a power cut, not only the end of the process. `keep` is given the open
        files of each chunk that its holder has released. `forget_digests` of an upload raises Busy while somebody computes
        them."""
        self._root = root
        self._keep = keep
        self._forget_digests = forget_digests
        self._durable = durable
        self._boot_id = boot_id
        self._check_stopping = check_stopping

    def create(self, upload: Upload) -> float:
        """The files of an upload without chunks, durably; returns when its map was written."""
        with new_upload_directory(self._root, upload) as directory:
            # The first chunk that is synced makes the size of `data` durable. Until then nothing rests on it.
            directory.create_empty("data", upload.size)
            crash_point("open.after_data_file")
            directory.create_empty("digest")
            crash_point("open.after_digest_file")
            boot_id = "" if self._durable else self._boot_id
            directory.create("map", formats.new_map(boot_id, _shape(upload)))
            crash_point("open.after_map_file")
            return directory.status("map").st_mtime

    # Chunks

    def try_hold(
        self, upload: Upload, number: int, body: Body | None, files: OpenFiles | None = None
    ) -> HeldRecord | None:
        """Put a chunk on disk unless it is there, and keep its record locked; None if somebody has a lock that it takes.

        If `files` are given they are open already, and belong to this call: unless it returns them, it closes them.
        Raises Gone, Unverified.
        """
        files = files or OpenFiles(self._root, upload)
        held = None
        try:
            if _try_lock_record(files.map, number):
                files.check()
                with suppress(Busy):
                    written = self._write_missing(files, upload, number, body)
                    held = HeldRecord(files, written=written, keep=self._keep)
        finally:
            if held is None:
                files.close()
        return held

    def _write_missing(self, files: OpenFiles, upload: Upload, number: int, body: Body | None) -> bool:
        """Whether the chunk had to be written. Raises Unverified, Gone, Busy."""
        record = formats.map_record_offset(number)
        header = disk.read(files.map, formats.MAP_RECORDS_OFFSET, 0)
        boot_id = formats.boot_id_of(header, _shape(upload))
        if boot_id not in ("", self._boot_id):
            raise Unverified()
        known = disk.read(files.map, formats.MAP_RECORD_LENGTH, record)
        if formats.is_present(known):
            return False
        if body is None:
            raise Gone(upload.id)
        if formats.is_tainted(known):
            self._forget_digests(upload)
        if not (self._durable or boot_id):
            self._write_boot_id(files.map, self._boot_id)
        checksum = self._write_data(files.data, number * upload.chunk_size, body)
        self._write_record(files.map, formats.map_record(checksum), record)
        return True

    def _write_boot_id(self, map_descriptor: int, boot_id: str) -> None:
        """Say in the map, durably, in which boot chunks of this upload are stored without a sync; empty: none is."""
        disk.write(map_descriptor, memoryview(formats.pack_boot_id(boot_id)), formats.BOOT_ID_OFFSET)
        disk.sync_data(map_descriptor)

    def _write_data(self, descriptor: int, offset: int, body: Body) -> int:
        checksum = 0
        for piece in body.pieces():
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

    def _sync_data(self, descriptor: int) -> None:
        if self._durable:
            disk.sync_data(descriptor)

    # The map

    def open_map(self, upload: Upload) -> int:
        """A descriptor of the map, to hold locks by. Raises Gone."""
        with upload_directory(self._root, upload) as directory:
            return directory.open_to_write("map")

    def read_map(self, upload: Upload, verified: bool = True) -> formats.ChunkMap:
        """Raises Gone; and Unverified, unless it may be one that is not `verified`."""
        shape = _shape(upload)
        with upload_directory(self._root, upload) as directory:
            descriptor = directory.open_to_read("map")
            try:
                content = disk.read(descriptor, shape.map_length + 1, 0)
            finally:
                disk.close(descriptor)
            data_bytes = None
            with suppress(FileNotFoundError):
                data_bytes = directory.status("data").st_size
        chunk_map = formats.parse_map(content, shape, data_bytes)
        if verified and (chunk_map.defect or chunk_map.boot_id not in ("", self._boot_id)):
            raise Unverified()
        return chunk_map

    def last_write(self, upload: Upload) -> float:
        """Raises Gone."""
        with upload_directory(self._root, upload) as directory:
            return directory.status("map").st_mtime

    # Chunks that went bad

    def turns(self, upload: Upload) -> Iterator[range]:
        """All chunks in portions, each read at one go by a thread, so that other uploads have the thread in between."""
        at_once = max(_TURN_BYTES // upload.chunk_size, 1)
        count = chunk_count(upload.size, upload.chunk_size)
        return (range(first, min(first + at_once, count)) for first in range(0, count, at_once))

    def find_bad(self, upload: Upload, numbers: range) -> list[int]:
        """The chunks on the map whose bytes, as the disk has them, no longer have the checksum of their record, or can't be
        read. Raises Gone, Stopping."""
        checksums = self.read_map(upload, verified=False).checksums
        stored = [number for number in numbers if checksums[number] is not None]
        with upload_directory(self._root, upload) as directory:
            try:
                data = directory.open_to_read("data")
            except FileNotFoundError:
                return stored
        try:
            disk.drop_cache(data)
            found = {number: self._checksum(data, upload, number) for number in stored}
        finally:
            disk.close(data)
        unreadable = [number for number in stored if found[number] is None]
        if unreadable:
            logger.error("stored chunks can't be read", extra={"upload_id": upload.id, "chunks": unreadable})
        return [number for number in stored if found[number] != checksums[number]]

    def _checksum(self, data: int, upload: Upload, number: int) -> int | None:
        """None if the disk does not give the chunk back."""
        self._check_stopping()
        try:
            return _read_checksum(data, upload, number)
        except OSError:
            return None

    def withdraw(self, upload: Upload, numbers: list[int], *, verified: bool) -> None:
        """Take chunks off the map, durably; the caller holds all locks. `verified`: all others are whole, so the files get
        the form that they should have. Raises Gone."""
        shape = _shape(upload)
        with upload_directory(self._root, upload) as directory:
            descriptor = directory.open_to_write("map")
            try:
                for number in numbers:
                    disk.write(
                        descriptor, memoryview(bytes(formats.MAP_RECORD_LENGTH)), formats.map_record_offset(number)
                    )
                    crash_point("withdraw.after_map_record")
                if verified:
                    disk.resize(descriptor, shape.map_length)
                disk.sync_data(descriptor)
                if verified:
                    _mend_data(directory, upload.size)
                    # The last step: until then the map is that of an upload that has to be checked.
                    disk.write(descriptor, memoryview(formats.map_header("", shape)), 0)
                    disk.sync_data(descriptor)
            finally:
                disk.close(descriptor)


def _read_checksum(data: int, upload: Upload, number: int) -> int:
    checksum, offset = 0, number * upload.chunk_size
    end = offset + chunk_length(number, upload.size, upload.chunk_size)
    while offset < end:
        piece = disk.read(data, min(_READ_BYTES, end - offset), offset)
        if not piece:
            break  # `data` is cut short, so the checksum will differ
        checksum = crc32(piece, checksum)
        offset += len(piece)
    return checksum


def _mend_data(directory: disk.Directory, size_bytes: int) -> None:
    """Give a data file its size, and make durable what is in it: afterwards the map says that all of it is."""
    with suppress(FileExistsError):
        directory.create_empty("data", size_bytes)
    directory.sync()
    descriptor = directory.open_to_write("data")
    try:
        disk.resize(descriptor, size_bytes)
        disk.sync_data(descriptor)
    finally:
        disk.close(descriptor)


def _shape(upload: Upload) -> formats.MapShape:
    return formats.MapShape(upload.size, upload.chunk_size, chunk_count(upload.size, upload.chunk_size))


def _try_lock_record(map_descriptor: int, number: int) -> bool:
    """Look at the gate without taking it, then try to lock the record. So a closer gets the gate at once, however many
    writers there are; a writer that looked before it came may still take its record, but no writer does so twice."""
    if is_locked(map_descriptor, formats.GATE_OFFSET, formats.GATE_LENGTH):
        return False
    return try_lock(map_descriptor, formats.map_record_offset(number), formats.MAP_RECORD_LENGTH)
