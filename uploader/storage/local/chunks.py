"""The files of an open upload, `data` and `map`, and how a chunk gets into them, or the first bytes of a chunk: a tail.

Owns the order in which the effects of a chunk reach the disk, and the lock of its record. Runs in threads and never waits
for a lock: a writer without the lock returns, and its caller tries again.
"""

import errno
import logging
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from itertools import takewhile

import msgspec

# zlib's CRC-32 by special instructions of the processor, in a fraction of the time.
from isal.isal_zlib import crc32

from uploader.domain.upload import MAX_CHUNK_COUNT, UNBOUNDED_CHUNK_COUNT, Tail, Upload, chunk_count, chunk_length
from uploader.errors import BytesConflict, Unverified
from uploader.runtime.crashpoints import crash_point
from uploader.storage import disk
from uploader.storage.base import Body, Busy, Defect, Found, Gone, HeldChunk, PresentChunks
from uploader.storage.disk import Directory, is_locked, try_lock, unlock_all
from uploader.storage.local import directories
from uploader.storage.local.directories import OpenFiles, upload_directory

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20

# The formats of the two small files of an upload, `map` and `digest`. Nothing in this section touches a disk. Users of the
# formats decide about locks on the gate, the records and the digest file, and about the trust in a digest record.
#
# The chunk map (`map`) says which chunks are on disk, with the checksum of each: `header | tail | gate and other lock bytes,
# padded | one record a chunk`. A record is 8 bytes at a multiple of 8: it never straddles a sector, and is written whole or
# not at all. All of the header but the boot id is known from the row of the upload. So a damaged header shows, and can be
# written anew.
#
# The tail describes the bytes that appends have brought of the first missing chunk: the number of the chunk, the length and
# the checksum of these bytes, and a checksum of the tail record. The tail is in force only while its chunk is the first
# missing chunk: the record of the chunk makes the tail void.

MAP_MAGIC = b"UPMAP\x00\x00\x01"
_MAP_HEADER = struct.Struct("<8s36s4xQQQ")
BOOT_ID_OFFSET = 8
BOOT_ID_LENGTH = 36
_BOOT_ID = re.compile(r"[0-9a-f-]{36}")
TAIL_OFFSET = 72
_TAIL = struct.Struct("<QQI")
_TAIL_CHECKSUM = struct.Struct("<I")
TAIL_LENGTH = _TAIL.size + _TAIL_CHECKSUM.size
NO_TAIL = bytes(TAIL_LENGTH)
# Bytes that are locked and never written.
GATE_OFFSET = 120
GATE_LENGTH = 1
# Of the appender, and of the next request that waits to append.
APPEND_OFFSET = 121
CLAIM_OFFSET = 122
MAP_RECORDS_OFFSET = 128
MAP_RECORD_LENGTH = 8
_MAP_RECORD = struct.Struct("<B3xI")
_PRESENT = 0xC1
_PRESENT_ALONE = bytes(flag == _PRESENT for flag in range(256))
# The disk refused the record of this chunk, after somebody may have hashed the bytes.
_TAINTED = 0x3A


@dataclass(frozen=True, slots=True)
class MapShape:
    """The dimensions of an upload's map, from its row."""

    size: int
    chunk_size: int
    chunk_count: int

    @property
    def map_length(self) -> int:
        return map_record_offset(self.chunk_count)

    @property
    def unbounded(self) -> "MapShape":
        """The shape while the length of the upload is not known."""
        return MapShape(UNBOUNDED_CHUNK_COUNT * self.chunk_size, self.chunk_size, UNBOUNDED_CHUNK_COUNT)


@dataclass(frozen=True, slots=True)
class TailRecord(Tail):
    """A tail, with the checksum (CRC-32) of its bytes."""

    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkMap(PresentChunks):
    """A map as it was read, with the checksum (CRC-32) of each stored chunk."""

    # The tail in force.
    tail: TailRecord | None
    # The boot in which chunks were stored without a sync: a later boot may have lost them. Empty: all chunks were synced.
    boot_id: str
    records: bytes

    @property
    def checksums(self) -> list[int | None]:
        return [checksum if flag == _PRESENT else None for flag, checksum in _MAP_RECORD.iter_unpack(self.records)]


def map_header(boot_id: str, shape: MapShape, tail: bytes = NO_TAIL) -> bytes:
    """Return everything before the records."""
    header = _MAP_HEADER.pack(MAP_MAGIC, pack_boot_id(boot_id), shape.size, shape.chunk_size, shape.chunk_count)
    return (header + tail).ljust(MAP_RECORDS_OFFSET, b"\0")


def new_map(boot_id: str, shape: MapShape) -> bytes:
    return map_header(boot_id, shape) + bytes(MAP_RECORD_LENGTH * shape.chunk_count)


def shape_in(content: bytes, offset: int) -> MapShape | None:
    if not content.startswith(MAP_MAGIC, offset) or len(content) < offset + MAP_RECORDS_OFFSET:
        return None
    *_, size, chunk_size, count = _MAP_HEADER.unpack_from(content, offset)
    return MapShape(size, chunk_size, count)


def checksums_in(records: bytes) -> list[int]:
    """Return the checksums in these records. All of their chunks have to be present."""
    return [checksum for _, checksum in _MAP_RECORD.iter_unpack(records)]


def boot_id_of(header: bytes, shape: MapShape) -> str | None:
    """Return the boot id in a header; None if the header is not the one of an upload of this shape."""
    boot_id = parse_boot_id(header[BOOT_ID_OFFSET : BOOT_ID_OFFSET + BOOT_ID_LENGTH])
    tail = header[TAIL_OFFSET : TAIL_OFFSET + TAIL_LENGTH]
    is_one = header == map_header(boot_id, shape, tail) and (not boot_id or _BOOT_ID.fullmatch(boot_id) is not None)
    return boot_id if is_one and (tail == NO_TAIL or tail_of(header, shape)) else None


def tail_record(tail: TailRecord) -> bytes:
    content = _TAIL.pack(tail.number, tail.length, tail.checksum)
    return content + _TAIL_CHECKSUM.pack(crc32(content))


def tail_of(header: bytes, shape: MapShape) -> TailRecord | None:
    """Return the tail in a header, if an upload of this shape can have this tail. Only the records tell whether the tail is
    in force."""
    if header.startswith(NO_TAIL, TAIL_OFFSET):
        return None
    tail = _parse_tail(header)
    if tail is None or tail.number >= shape.chunk_count:
        return None
    return tail if 0 < tail.length < chunk_length(tail.number, shape.size, shape.chunk_size) else None


def _parse_tail(header: bytes) -> TailRecord | None:
    content = header[TAIL_OFFSET : TAIL_OFFSET + _TAIL.size]
    if header[TAIL_OFFSET + _TAIL.size : TAIL_OFFSET + TAIL_LENGTH] != _TAIL_CHECKSUM.pack(crc32(content)):
        return None
    return TailRecord(*_TAIL.unpack(content)) if len(content) == _TAIL.size else None


def parse_map(content: bytes, shape: MapShape, data_bytes: int | None, written_at: float = 0.0) -> ChunkMap:
    """Parse the map beside a data file of `data_bytes`; None: there is no data file. In a damaged map all records of present
    chunks count, but the result has a defect."""
    header, length = content[:MAP_RECORDS_OFFSET], shape.map_length
    boot_id = boot_id_of(header, shape)
    before = boot_id_of(header, shape.unbounded) if boot_id is None else None
    records = content[MAP_RECORDS_OFFSET:length].ljust(MAP_RECORD_LENGTH * shape.chunk_count, b"\0")
    present = bytearray(records[::MAP_RECORD_LENGTH].translate(_PRESENT_ALONE))
    tail = tail_of(content, shape if before is None else shape.unbounded)
    if tail is not None and tail.number != present.find(0):
        tail = None
    settled, defect = boot_id is not None or before is None, None
    if not settled:
        if tail is not None and is_last_chunk(tail, shape):
            present[tail.number], tail = 1, None
    elif boot_id is None:
        defect = Defect("map", "its header", "another")
    elif len(content) != shape.map_length:
        defect = Defect("map", shape.map_length, len(content))
    else:
        defect = _defect_of_data(present, tail, shape, data_bytes)
    return ChunkMap(
        present,
        shape.size,
        shape.chunk_size,
        written_at,
        settled,
        defect,
        tail=tail,
        boot_id=boot_id or before or "",
        records=records,
    )


def is_last_chunk(tail: Tail, shape: MapShape) -> bool:
    """Return whether a tail, written while the length was unknown, is the complete last chunk now."""
    last = shape.chunk_count - 1
    return tail.number == last and tail.length == chunk_length(last, shape.size, shape.chunk_size)


def _defect_of_data(present: bytearray, tail: Tail | None, shape: MapShape, data_bytes: int | None) -> Defect | None:
    """Return the defect of a data file; None if there is none. A power cut may leave the file short, but no shorter than the
    synced bytes."""
    if data_bytes is None or data_bytes > shape.size:
        return Defect("data", shape.size, data_bytes)
    end_of_chunks = min((present.rfind(1) + 1) * shape.chunk_size, shape.size)
    end = max(end_of_chunks, tail.number * shape.chunk_size + tail.length if tail else 0)
    return Defect("data", end, data_bytes) if data_bytes < end else None


def pack_boot_id(boot_id: str) -> bytes:
    return boot_id.encode().ljust(BOOT_ID_LENGTH, b"\0")


def parse_boot_id(content: bytes) -> str:
    return content.rstrip(b"\0").decode(errors="replace")


def map_record_offset(chunk_number: int) -> int:
    return MAP_RECORDS_OFFSET + MAP_RECORD_LENGTH * chunk_number


def map_record(checksum: int) -> bytes:
    """Return the record of a stored chunk; `checksum` is the CRC-32 of its bytes."""
    return _MAP_RECORD.pack(_PRESENT, checksum)


def is_present(record: bytes) -> bool:
    return record[:1] == bytes([_PRESENT])


# The record of a chunk that is not stored. Saved digests, if there are any, may be digests of other bytes.
TAINTED_RECORD = _MAP_RECORD.pack(_TAINTED, 0)


def is_tainted(record: bytes) -> bool:
    return record[:1] == bytes([_TAINTED])


def holds_chunks(content: bytes) -> bool:
    """Return whether a map has the record of a stored chunk, or a tail. The header may be damaged."""
    return _PRESENT in content[MAP_RECORDS_OFFSET::MAP_RECORD_LENGTH] or _parse_tail(content) is not None


def are_present(records: bytes, count: int) -> bool:
    """Return whether these are the records of `count` stored chunks."""
    return records[::MAP_RECORD_LENGTH] == bytes([_PRESENT]) * count


def leading_checksums(records: bytes) -> list[int]:
    """Return the checksums in these records, up to the first missing chunk."""
    whole = records[: len(records) // MAP_RECORD_LENGTH * MAP_RECORD_LENGTH]
    present = takewhile(lambda record: record[0] == _PRESENT, _MAP_RECORD.iter_unpack(whole))
    return [checksum for _, checksum in present]


# The digest file (`digest`) holds the position of the digests, and in the end the digests: one record of fixed length with a
# checksum, overwritten each time. A partly written record is ignored.

# No longer than a sector: an overwritten record is seldom torn.
DIGEST_RECORD_LENGTH = 512


class SavedProgress(msgspec.Struct, frozen=True, tag="frontier"):
    """The digests have come to `position`. The length of `state` tells the algorithms in it; nobody can go on from an empty
    state."""

    generation: int
    boot_id: str
    position: int
    state: bytes
    # The checksum of the first bytes of the block at `position`; None: some blocks before it have no checksum.
    partial: int | None = None


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The digests of the whole content."""

    generation: int
    # None: not computed, because the upload did not need it.
    md5: str | None
    sha256: str


class DataLost(msgspec.Struct, frozen=True, tag="lost"):
    """The disk could not make the data durable, so no digests of it are to be trusted."""


DigestRecord = SavedProgress | Finished | DataLost
_decoder: msgspec.json.Decoder[DigestRecord] = msgspec.json.Decoder(DigestRecord)


def digest_record(record: DigestRecord) -> bytes:
    content = msgspec.json.encode(record)
    return (_checksum(content) + content).ljust(DIGEST_RECORD_LENGTH)


def parse_digest_record(saved: bytes) -> DigestRecord | None:
    """Parse a digest record; None if this is no record, or a damaged one."""
    content = saved[len(_checksum(b"")) :].rstrip()
    if not saved.startswith(_checksum(content)):
        return None
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def _checksum(content: bytes) -> bytes:
    return b"%08x " % crc32(content)


# The files

_MAX_MAP_BYTES = MAP_RECORDS_OFFSET + MAP_RECORD_LENGTH * MAX_CHUNK_COUNT


@dataclass(slots=True, eq=False)
class HeldRecord(HeldChunk):
    """A chunk on disk, or a tail. The descriptor of the map holds the lock of its record."""

    files: OpenFiles
    keep: Callable[[OpenFiles], None]

    def release(self) -> None:
        let_go(self.files, self.keep)


def let_go(files: OpenFiles, keep: Callable[[OpenFiles], None]) -> None:
    """Release every lock, and give the files to `keep`."""
    try:
        unlock_all(files.map)
    except OSError:
        files.close()  # this unlocks, too
    else:
        keep(files)


@dataclass(frozen=True)
class ChunkFiles:
    """Makes, fills and reads the files of uploads."""

    root: disk.Directory
    _: KW_ONLY
    # True: an acknowledged chunk survives a power cut. False: it survives the end of the process.
    durable: bool
    boot_id: str
    # Gets the open files of each released chunk.
    keep: Callable[[OpenFiles], None]
    # Raises Busy while somebody computes the digests.
    forget_digests: Callable[[Upload], None]

    @property
    def _map_boot_id(self) -> str:
        return "" if self.durable else self.boot_id

    def create(self, upload: Upload, add: Callable[[disk.Directory], None] | None = None) -> float:
        """Create the files of an upload without chunks, durably, and the files that `add` makes beside them. Return the time
        at which the map was written."""
        with directories.new_upload_directory(self.root, upload) as directory:
            # The first synced chunk makes the size of `data` durable. Until then nothing depends on the size.
            directory.create_empty("data", upload.size)
            crash_point("open.after_data_file")
            directory.create_empty("digest")
            crash_point("open.after_digest_file")
            directory.create("map", new_map(self._map_boot_id, shape_of(upload)))
            crash_point("open.after_map_file")
            if add is not None:
                add(directory)
            return directory.status("map").st_mtime

    def begin_anew(self, upload: Upload) -> None:
        """Create the files of an upload again, durably, after its map or all files were lost. The complete map gets its name
        last. If several processes do this at once, one of them succeeds, and chunks that came since stay. Old data may lie
        beside the map: no record refers to it."""
        with directories.made_upload_directory(self.root, upload) as directory:
            for name in directories.FILES:
                with suppress(FileNotFoundError):
                    directory.make_way(name)
            for name, size_bytes in (("data", upload.size), ("digest", 0)):
                with suppress(FileExistsError):
                    directory.create_empty(name, size_bytes)
            with disk.opened(directory.open_unnamed()) as descriptor:
                disk.write(descriptor, memoryview(new_map(self._map_boot_id, shape_of(upload))), 0)
                disk.sync_data(descriptor)
                with suppress(FileExistsError):
                    directory.link_open(descriptor, "map")

    # Chunks

    def try_hold(
        self, upload: Upload, number: int, body: Body | None, files: OpenFiles | None = None, start: int = 0
    ) -> HeldRecord | None:
        """Put a chunk on disk unless it is there, or the bytes of the chunk from `start` on, and keep the record locked.
        Return None if somebody else has a lock that this takes.

        `files`: open files, which belong to this call; it returns them or closes them. Raises Gone, Unverified,
        BytesConflict.
        """
        files = files or OpenFiles(self.root, upload)
        held = None
        try:
            if _try_lock_record(files.map, number):
                files.check()
                with suppress(Busy):
                    written = self._write_missing(files, upload, number, body, start)
                    held = HeldRecord(written, files, self.keep)
        finally:
            if held is None:
                files.close()
        return held

    def _write_missing(self, files: OpenFiles, upload: Upload, number: int, body: Body | None, start: int) -> bool:
        """Write the chunk unless it is there. Return whether it was missing. Raises Unverified, Gone, Busy,
        BytesConflict."""
        record = map_record_offset(number)
        header = disk.read(files.map, MAP_RECORDS_OFFSET, 0)
        boot_id = boot_id_of(header, shape_of(upload))
        if boot_id not in ("", self.boot_id):
            raise Unverified()
        known = disk.read(files.map, MAP_RECORD_LENGTH, record)
        if is_present(known):
            return False
        if body is None:
            raise Gone(upload.id)
        if is_tainted(known):
            self.forget_digests(upload)
        head = self._head(files, upload, number, body, start, header)
        is_whole = start + body.length == chunk_length(number, upload.extent, upload.chunk_size)
        if not (is_whole or self._are_before(files.map, number)):
            raise Gone(upload.id)  # a chunk was withdrawn
        if not (self.durable or boot_id):
            # Durably: from here on chunks of this upload are stored without a sync.
            disk.write(files.map, memoryview(pack_boot_id(self.boot_id)), BOOT_ID_OFFSET)
            disk.sync_data(files.map)
        # Acknowledged bytes are never written again.
        pieces = body.pieces() if head.length == start else _after(body.pieces(), head.length)
        checksum = self._write_data(files.data, number * upload.chunk_size + head.length, pieces, head.checksum)
        if is_whole:
            self._write_record(files.map, map_record(checksum), record)
        else:
            grown = TailRecord(number, start + body.length, checksum)
            self._write_tail(files.map, tail_record(grown), tail_field(header))
        return True

    def _head(self, files: OpenFiles, upload: Upload, number: int, body: Body, start: int, header: bytes) -> TailRecord:
        """Return the stored beginning of the chunk, perhaps an empty one. Raises Gone if it does not end where the writer
        starts, and BytesConflict if a whole chunk begins with other bytes."""
        tail = tail_of(header, shape_of(upload))
        head = tail if tail is not None and tail.number == number else TailRecord(number, 0, 0)
        if head.length == start:
            return head
        if start or body.length != chunk_length(number, upload.extent, upload.chunk_size):
            raise Gone(upload.id)  # the tail was withdrawn
        # Compare bytes, not checksums: the sender of both may choose bytes with the same checksum.
        if not disk.holds(files.data, body.pieces(), number * upload.chunk_size, head.length):
            raise BytesConflict()
        return head

    def _are_before(self, map_descriptor: int, number: int) -> bool:
        records = disk.read(map_descriptor, MAP_RECORD_LENGTH * number, MAP_RECORDS_OFFSET)
        return are_present(records, number)

    def _write_data(self, descriptor: int, offset: int, pieces: Iterable[memoryview], checksum: int) -> int:
        """Write the pieces. Return the checksum of the bytes that `checksum` is of, followed by these pieces."""
        for piece in pieces:
            disk.write(descriptor, piece, offset)
            offset += len(piece)
            checksum = crc32(piece, checksum)
        crash_point("chunk.after_data_write")
        # An error here fails this chunk, and the sync is never repeated: the kernel may have dropped the pages
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
            # The page cache may still show the record that the disk refused. The next writer of the chunk must not believe
            # it, and another process may already have saved digests of these bytes.
            disk.write(map_descriptor, memoryview(TAINTED_RECORD), offset)
            raise

    def _write_tail(self, map_descriptor: int, content: bytes, before: bytes) -> None:
        try:
            disk.write(map_descriptor, memoryview(content), TAIL_OFFSET)
            crash_point("tail.after_map_record")
            self._sync_data(map_descriptor)
            crash_point("tail.after_map_sync")
        except OSError:
            # The page cache may still show the tail that the disk refused. Nobody may acknowledge this tail.
            disk.write(map_descriptor, memoryview(before), TAIL_OFFSET)
            raise

    def _sync_data(self, descriptor: int) -> None:
        if self.durable:
            disk.sync_data(descriptor)

    # The map

    def open_map(self, upload: Upload) -> int:
        """Return a descriptor of the map, to hold locks by. Raises Gone."""
        with upload_directory(self.root, upload) as directory:
            return directory.open_to_write("map")

    def open(self, upload: Upload) -> OpenFiles:
        """Open the files, to hold locks by the map. Raises Gone, Unverified."""
        return OpenFiles(self.root, upload)

    def read_map(self, upload: Upload, verified: bool = True) -> ChunkMap:
        """Read the map. Raises Gone; and Unverified if the map has to be `verified` first."""
        shape = shape_of(upload)
        with upload_directory(self.root, upload) as directory:
            with disk.opened(directory.open_to_read("map")) as descriptor:
                content, written_at = disk.read(descriptor, shape.map_length + 1, 0), disk.status(descriptor).st_mtime
            data_bytes = None
            with suppress(FileNotFoundError):
                data_bytes = directory.size("data")
        chunk_map = parse_map(content, shape, data_bytes, written_at)
        if verified:
            self._check_verified(chunk_map)
        return chunk_map

    def _check_verified(self, chunk_map: ChunkMap) -> None:
        if chunk_map.defect or not chunk_map.settled or chunk_map.boot_id not in ("", self.boot_id):
            raise Unverified()

    def begin_append(self, upload: Upload, files: OpenFiles) -> ChunkMap | None:
        """Make the map durable, then read it as `read_settled` does: the appender before may have been killed between a
        record and its sync. The bytes of the chunk are durable, because they are synced before the record. Return None also
        for an unverified map. Raises Gone."""
        self._sync_data(files.map)
        with suppress(Unverified):
            return self.read_settled(upload, files)
        return None

    def read_settled(self, upload: Upload, files: OpenFiles) -> ChunkMap | None:
        """Read the map. Return None while somebody writes a chunk before the first gap: the record of this chunk can be
        read, but may not be durable yet. Look again at the records after the writers have released them, because the disk
        may have refused one. Raises Gone, Unverified."""
        files.check()
        shape = shape_of(upload)
        content = disk.read(files.map, shape.map_length + 1, 0)
        data_bytes = disk.status(files.data).st_size
        chunk_map = parse_map(content, shape, data_bytes, disk.status(files.map).st_mtime)
        self._check_verified(chunk_map)
        leading = chunk_map.leading_chunks
        if leading and is_locked(files.map, MAP_RECORDS_OFFSET, MAP_RECORD_LENGTH * leading):
            return None
        return chunk_map if self._are_before(files.map, leading) else None

    def last_write(self, upload: Upload) -> float:
        """Raises Gone."""
        with upload_directory(self.root, upload) as directory:
            return directory.status("map").st_mtime


def tail_field(header: bytes) -> bytes:
    return header[TAIL_OFFSET : TAIL_OFFSET + TAIL_LENGTH]


def _after(pieces: Iterable[memoryview], skipped: int) -> Iterator[memoryview]:
    """Yield the content after the first `skipped` bytes."""
    for piece in pieces:
        if skipped < len(piece):
            yield piece[skipped:]
        skipped = max(skipped - len(piece), 0)


def checksum_of(descriptor: int, start: int, end: int) -> int:
    """Return the CRC-32 of a range of a file; -1 if the file is cut short."""
    checksum = 0
    while start < end:
        piece = disk.read(descriptor, min(_READ_BYTES, end - start), start)
        if not piece:
            return -1
        checksum, start = crc32(piece, checksum), start + len(piece)
    return checksum


def shape_of(upload: Upload) -> MapShape:
    return MapShape(upload.extent, upload.chunk_size, chunk_count(upload.extent, upload.chunk_size))


def _try_lock_record(map_descriptor: int, number: int) -> bool:
    """Look at the gate without locking it, then try to lock the record. So a closer gets the gate at once, even among many
    writers. A writer that looked just before the closer came may still lock its record, but only once."""
    if is_locked(map_descriptor, GATE_OFFSET, GATE_LENGTH):
        return False
    return try_lock(map_descriptor, map_record_offset(number), MAP_RECORD_LENGTH)


def names_a_chunk(root: Directory, found: Found) -> bool:
    try:
        with root.enter(found.place) as directory:
            opened = directory.open_to_read("map")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # missing, or a symlink
            return False
        raise
    with disk.opened(opened) as descriptor:
        return holds_chunks(disk.read(descriptor, _MAX_MAP_BYTES, 0))
