"""The files of an open upload, `data` and `map`, and how a chunk gets into them, or the first bytes of one: a tail.

Owns the order in which the effects of a chunk reach the disk, and the lock of its record. Runs in threads, and never waits
for a lock: a writer that does not get it is told so, and its caller tries again.
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

# The CRC-32 of zlib, by instructions for it: in a fraction of the time.
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

# The formats of the two small files of an upload: its map and its digests. Pure: nothing here touches a disk. The locks on
# the gate, the records and the digest file, and how far a digest record is to be believed, belong to those who use them.
#
# The chunk map (`map`) says which chunks are on disk, with the checksum of each: `header | tail | gate and other lock
# bytes, padded | one record a chunk`. A record is 8 bytes at a multiple of 8, so it never straddles a sector and is
# written whole or not at all. All that a header says is known from the row of its upload, but for the boot id: so one
# that is damaged shows, and can be written anew.
#
# The tail says how much appends have brought of the first chunk that is not there: its number, that length, the
# checksum of those bytes, and one of the record itself. It is in force only while its chunk is the first that is not
# there: the record of the chunk makes it void.

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
# Of who appends, and of who waits to.
APPEND_OFFSET = 121
CLAIM_OFFSET = 122
MAP_RECORDS_OFFSET = 128
MAP_RECORD_LENGTH = 8
_MAP_RECORD = struct.Struct("<B3xI")
_PRESENT = 0xC1
_PRESENT_ALONE = bytes(flag == _PRESENT for flag in range(256))
# The disk refused the record of this chunk, when somebody may have hashed its bytes already.
_TAINTED = 0x3A


@dataclass(frozen=True, slots=True)
class MapShape:
    """The shape of an upload's map, by its row."""

    size: int
    chunk_size: int
    chunk_count: int

    @property
    def map_length(self) -> int:
        return map_record_offset(self.chunk_count)

    @property
    def unbounded(self) -> "MapShape":
        """The shape of an upload whose length is not known."""
        return MapShape(UNBOUNDED_CHUNK_COUNT * self.chunk_size, self.chunk_size, UNBOUNDED_CHUNK_COUNT)


@dataclass(frozen=True, slots=True)
class TailRecord(Tail):
    """A tail, with the checksum (CRC-32) of its bytes."""

    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkMap(PresentChunks):
    """A map as it was read, with the checksum (CRC-32) of each chunk that is there."""

    # The one that is in force.
    tail: TailRecord | None
    # Of the machine when chunks were stored without a sync, so that they may not have outlived it. Empty: there are none.
    boot_id: str
    records: bytes

    @property
    def checksums(self) -> list[int | None]:
        return [checksum if flag == _PRESENT else None for flag, checksum in _MAP_RECORD.iter_unpack(self.records)]


def map_header(boot_id: str, shape: MapShape, tail: bytes = NO_TAIL) -> bytes:
    """Everything before the records."""
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
    """Return the checksums in the records of chunks that are all there."""
    return [checksum for _, checksum in _MAP_RECORD.iter_unpack(records)]


def boot_id_of(header: bytes, shape: MapShape) -> str | None:
    """Return the boot id in a header; None if it is not the header of such an upload, in whatever boot."""
    boot_id = parse_boot_id(header[BOOT_ID_OFFSET : BOOT_ID_OFFSET + BOOT_ID_LENGTH])
    tail = header[TAIL_OFFSET : TAIL_OFFSET + TAIL_LENGTH]
    is_one = header == map_header(boot_id, shape, tail) and (not boot_id or _BOOT_ID.fullmatch(boot_id) is not None)
    return boot_id if is_one and (tail == NO_TAIL or tail_of(header, shape)) else None


def tail_record(tail: TailRecord) -> bytes:
    content = _TAIL.pack(tail.number, tail.length, tail.checksum)
    return content + _TAIL_CHECKSUM.pack(crc32(content))


def tail_of(header: bytes, shape: MapShape) -> TailRecord | None:
    """Return the tail that a header tells of, if it can be one of such an upload; whether it is in force, the records
    say."""
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
    """Parse the map beside a data file of so many bytes; None: there is none. Of a damaged map all records that are
    there count, but it says that it is damaged."""
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
    """Return whether a tail of an upload whose length was not known is all of its last chunk, now that it is."""
    last = shape.chunk_count - 1
    return tail.number == last and tail.length == chunk_length(last, shape.size, shape.chunk_size)


def _defect_of_data(present: bytearray, tail: Tail | None, shape: MapShape, data_bytes: int | None) -> Defect | None:
    """Tell what is wrong with a data file. A power cut may leave a data file short, but no shorter than what was
    synced."""
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
    """Return the record of a chunk that is there; `checksum` is the CRC-32 of its bytes."""
    return _MAP_RECORD.pack(_PRESENT, checksum)


def is_present(record: bytes) -> bool:
    return record[:1] == bytes([_PRESENT])


# The record of a chunk that is not there, and whose digests, if somebody has any, are of other bytes.
TAINTED_RECORD = _MAP_RECORD.pack(_TAINTED, 0)


def is_tainted(record: bytes) -> bool:
    return record[:1] == bytes([_TAINTED])


def holds_chunks(content: bytes) -> bool:
    """Return whether a map, whose header may be damaged, has the record of a chunk that is there, or of a tail."""
    return _PRESENT in content[MAP_RECORDS_OFFSET::MAP_RECORD_LENGTH] or _parse_tail(content) is not None


def are_present(records: bytes, count: int) -> bool:
    """Return whether these are the records of `count` chunks that are all there."""
    return records[::MAP_RECORD_LENGTH] == bytes([_PRESENT]) * count


def leading_checksums(records: bytes) -> list[int]:
    """Return the checksums in these records, up to the first of a chunk that is not there."""
    whole = records[: len(records) // MAP_RECORD_LENGTH * MAP_RECORD_LENGTH]
    present = takewhile(lambda record: record[0] == _PRESENT, _MAP_RECORD.iter_unpack(whole))
    return [checksum for _, checksum in present]


# The digest file (`digest`) says how far the digests have come, and in the end the digests: one record of fixed length with
# a checksum, written over and over. A record that was written in part counts for nothing.

# No longer than a sector, so that writing one in place is seldom torn.
DIGEST_RECORD_LENGTH = 512


class SavedProgress(msgspec.Struct, frozen=True, tag="frontier"):
    """The digests have come to `position`; `state` is empty if nobody can go on from it, and its length says of which they
    are."""

    generation: int
    boot_id: str
    position: int
    state: bytes
    # Of the block at `position`, as far as it goes; None: not all blocks before it have their checksums.
    partial: int | None = None


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The digests of the whole content."""

    generation: int
    # None: it was not computed, as the upload did not need it.
    md5: str | None
    sha256: str


class DataLost(msgspec.Struct, frozen=True, tag="lost"):
    """The disk could not make the data durable, so that there are no digests to believe in."""


DigestRecord = SavedProgress | Finished | DataLost
_decoder: msgspec.json.Decoder[DigestRecord] = msgspec.json.Decoder(DigestRecord)


def digest_record(record: DigestRecord) -> bytes:
    content = msgspec.json.encode(record)
    return (_checksum(content) + content).ljust(DIGEST_RECORD_LENGTH)


def parse_digest_record(saved: bytes) -> DigestRecord | None:
    """Parse a digest record; None if this is none, or not a whole one."""
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
    """A chunk on disk, or a tail; the descriptor of the map holds the lock of its record."""

    files: OpenFiles
    keep: Callable[[OpenFiles], None]

    def release(self) -> None:
        let_go(self.files, self.keep)


def let_go(files: OpenFiles, keep: Callable[[OpenFiles], None]) -> None:
    """Give up every lock; `keep` has the files from here on."""
    try:
        unlock_all(files.map)
    except OSError:
        files.close()  # which unlocks, too
    else:
        keep(files)


@dataclass(frozen=True)
class ChunkFiles:
    """Makes, fills and reads the files of uploads."""

    root: disk.Directory
    _: KW_ONLY
    # An acknowledged chunk survives a power cut, not only the end of the process.
    durable: bool
    boot_id: str
    # Is given the open files of each chunk that its holder has released.
    keep: Callable[[OpenFiles], None]
    # Raises Busy while somebody computes them.
    forget_digests: Callable[[Upload], None]

    @property
    def _map_boot_id(self) -> str:
        return "" if self.durable else self.boot_id

    def create(self, upload: Upload, add: Callable[[disk.Directory], None] | None = None) -> float:
        """Create the files of an upload without chunks, durably, and what `add` makes beside them; returns when its map
        was written."""
        with directories.new_upload_directory(self.root, upload) as directory:
            # The first chunk that is synced makes the size of `data` durable. Until then nothing rests on it.
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
        """Create anew the files of an upload that lost its map, or all of them, durably. The map takes its name when
        the rest is there and it is whole: of several who do this at once, one does it, and what came since stays. Old
        data may lie beside it: no record is of them."""
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
        """Put a chunk on disk unless it is there, or of one the bytes from `start` on, and keep its record locked; None if
        somebody has a lock that it takes.

        If `files` are given they are open already, and belong to this call: unless it returns them, it closes them.
        Raises Gone, Unverified, BytesConflict.
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
        """Write the chunk unless it is there; return whether it was missing. Raises Unverified, Gone, Busy,
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
        # What was acknowledged is never written again.
        pieces = body.pieces() if head.length == start else _after(body.pieces(), head.length)
        checksum = self._write_data(files.data, number * upload.chunk_size + head.length, pieces, head.checksum)
        if is_whole:
            self._write_record(files.map, map_record(checksum), record)
        else:
            grown = TailRecord(number, start + body.length, checksum)
            self._write_tail(files.map, tail_record(grown), tail_field(header))
        return True

    def _head(self, files: OpenFiles, upload: Upload, number: int, body: Body, start: int, header: bytes) -> TailRecord:
        """Read the stored beginning of the chunk, perhaps nothing. Raises Gone if it is not what the writer takes it
        for, and BytesConflict."""
        tail = tail_of(header, shape_of(upload))
        head = tail if tail is not None and tail.number == number else TailRecord(number, 0, 0)
        if head.length == start:
            return head
        if start or body.length != chunk_length(number, upload.extent, upload.chunk_size):
            raise Gone(upload.id)  # the tail was withdrawn
        # Byte by byte: the sender of both may choose them so that their checksums are the same.
        if not disk.holds(files.data, body.pieces(), number * upload.chunk_size, head.length):
            raise BytesConflict()
        return head

    def _are_before(self, map_descriptor: int, number: int) -> bool:
        records = disk.read(map_descriptor, MAP_RECORD_LENGTH * number, MAP_RECORDS_OFFSET)
        return are_present(records, number)

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
            # and another one meanwhile may have saved digests of these bytes.
            disk.write(map_descriptor, memoryview(TAINTED_RECORD), offset)
            raise

    def _write_tail(self, map_descriptor: int, content: bytes, before: bytes) -> None:
        try:
            disk.write(map_descriptor, memoryview(content), TAIL_OFFSET)
            crash_point("tail.after_map_record")
            self._sync_data(map_descriptor)
            crash_point("tail.after_map_sync")
        except OSError:
            # The page cache may still show the record that the disk refused: it must not be acknowledged.
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
        """Open the map, to hold locks by. Raises Gone, Unverified."""
        return OpenFiles(self.root, upload)

    def read_map(self, upload: Upload, verified: bool = True) -> ChunkMap:
        """Raises Gone; and Unverified, unless it may be one that is not `verified`."""
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
        """Read as `read_settled`, but make what is read durable: the appender before may have been killed between a
        record and its sync. Its bytes are: they go before their record. None also where it is Unverified. Raises
        Gone."""
        self._sync_data(files.map)
        with suppress(Unverified):
            return self.read_settled(upload, files)
        return None

    def read_settled(self, upload: Upload, files: OpenFiles) -> ChunkMap | None:
        """Read the map; None while somebody writes a chunk that is before the first gap. It may not be durable, though
        its record can be read; and when its writer has let go it is looked at again, for the disk may have refused it.
        Raises Gone, Unverified."""
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
    """Yield the content after so many bytes."""
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
    """Look at the gate without taking it, then try to lock the record. So a closer gets the gate at once, however many
    writers there are; a writer that looked before it came may still take its record, but no writer does so twice."""
    if is_locked(map_descriptor, GATE_OFFSET, GATE_LENGTH):
        return False
    return try_lock(map_descriptor, map_record_offset(number), MAP_RECORD_LENGTH)


def names_a_chunk(root: Directory, found: Found) -> bool:
    try:
        with root.enter(found.place) as directory:
            opened = directory.open_to_read("map")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # there is none, or something that is not ours
            return False
        raise
    with disk.opened(opened) as descriptor:
        return holds_chunks(disk.read(descriptor, _MAX_MAP_BYTES, 0))
