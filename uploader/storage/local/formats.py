"""The formats of the two small files of an upload: its map and its digests. Pure: nothing here touches a disk.

The chunk map (`map`) says which chunks are on disk, with the checksum of each:
`header | tail | gate and other lock bytes, padded | one record a chunk`. A record is 8 bytes at a multiple of 8, so it never
straddles a sector and is written whole or not at all. All that a header says is known from the row of its upload, but for
the boot id: so one that is damaged shows, and can be written anew.

The tail says how much appends have brought of the first chunk that is not there: its number, that length, the checksum of
those bytes, and one of the record itself. It is in force only while its chunk is the first that is not there: the record of
the chunk makes it void.

The digest file (`digest`) says how far the digests have come, and in the end the digests: one record of fixed length with a
checksum, written over and over. A record that was written in part counts for nothing.

Owns both layouts. The locks on the gate, the records and the digest file, and how far a digest record is to be believed,
belong to the modules that use them.
"""

import re
import struct
from dataclasses import dataclass
from itertools import takewhile
from zlib import crc32

import msgspec

from uploader.domain.upload import UNBOUNDED_CHUNK_COUNT, Tail, chunk_length
from uploader.storage.base import Defect, PresentChunks

# The chunk map

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
    """What the row of an upload says of its map."""

    size: int
    chunk_size: int
    chunk_count: int

    @property
    def map_length(self) -> int:
        return map_record_offset(self.chunk_count)

    @property
    def unbounded(self) -> "MapShape":
        """That of an upload whose length is not known."""
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
    """The bytes of a map without chunks."""
    return map_header(boot_id, shape) + bytes(MAP_RECORD_LENGTH * shape.chunk_count)


def shape_in(content: bytes, offset: int) -> MapShape | None:
    """What the header at `offset` says; None if it is none."""
    if not content.startswith(MAP_MAGIC, offset) or len(content) < offset + MAP_RECORDS_OFFSET:
        return None
    *_, size, chunk_size, count = _MAP_HEADER.unpack_from(content, offset)
    return MapShape(size, chunk_size, count)


def checksums_in(records: bytes) -> list[int]:
    """The checksums in the records of chunks that are all there."""
    return [checksum for _, checksum in _MAP_RECORD.iter_unpack(records)]


def boot_id_of(header: bytes, shape: MapShape) -> str | None:
    """The boot id in a header; None if it is not the header of such an upload, in whatever boot."""
    boot_id = parse_boot_id(header[BOOT_ID_OFFSET : BOOT_ID_OFFSET + BOOT_ID_LENGTH])
    tail = header[TAIL_OFFSET : TAIL_OFFSET + TAIL_LENGTH]
    is_one = header == map_header(boot_id, shape, tail) and (not boot_id or _BOOT_ID.fullmatch(boot_id) is not None)
    return boot_id if is_one and (tail == NO_TAIL or tail_of(header, shape)) else None


def tail_record(tail: TailRecord) -> bytes:
    content = _TAIL.pack(tail.number, tail.length, tail.checksum)
    return content + _TAIL_CHECKSUM.pack(crc32(content))


def tail_of(header: bytes, shape: MapShape) -> TailRecord | None:
    """The tail that a header tells of, if it can be one of such an upload; whether it is in force, the records say."""
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
    """A map beside a data file of so many bytes; None: there is none. Of a damaged map all records that are there count, but
    it says that it is damaged."""
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
    """Whether a tail of an upload whose length was not known is all of its last chunk, now that it is."""
    last = shape.chunk_count - 1
    return tail.number == last and tail.length == chunk_length(last, shape.size, shape.chunk_size)


def _defect_of_data(present: bytearray, tail: Tail | None, shape: MapShape, data_bytes: int | None) -> Defect | None:
    """A power cut may leave a data file short, but no shorter than what was synced."""
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
    """The record of a chunk that is there; `checksum` is the CRC-32 of its bytes."""
    return _MAP_RECORD.pack(_PRESENT, checksum)


def is_present(record: bytes) -> bool:
    return record[:1] == bytes([_PRESENT])


# The record of a chunk that is not there, and whose digests, if somebody has any, are of other bytes.
TAINTED_RECORD = _MAP_RECORD.pack(_TAINTED, 0)


def is_tainted(record: bytes) -> bool:
    return record[:1] == bytes([_TAINTED])


def holds_chunks(content: bytes) -> bool:
    """Whether a map, whose header may be damaged, has the record of a chunk that is there, or of a tail."""
    return _PRESENT in content[MAP_RECORDS_OFFSET::MAP_RECORD_LENGTH] or _parse_tail(content) is not None


def are_present(records: bytes, count: int) -> bool:
    """Whether these are the records of `count` chunks that are all there."""
    return records[::MAP_RECORD_LENGTH] == bytes([_PRESENT]) * count


def leading_checksums(records: bytes) -> list[int]:
    """The checksums in these records, up to the first of a chunk that is not there."""
    whole = records[: len(records) // MAP_RECORD_LENGTH * MAP_RECORD_LENGTH]
    present = takewhile(lambda record: record[0] == _PRESENT, _MAP_RECORD.iter_unpack(whole))
    return [checksum for _, checksum in present]


# The digest file

# No longer than a sector, so that writing one in place is seldom torn.
DIGEST_RECORD_LENGTH = 512


class SavedProgress(msgspec.Struct, frozen=True, tag="frontier"):
    """The digests have come to `position`; `state` is empty if nobody can go on from it, and its length says of which they
    are."""

    generation: int
    boot_id: str
    position: int
    state: bytes


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
    """The bytes of the file: a checksum, and JSON."""
    content = msgspec.json.encode(record)
    return (_checksum(content) + content).ljust(DIGEST_RECORD_LENGTH)


def parse_digest_record(saved: bytes) -> DigestRecord | None:
    """None if this is no record, or not a whole one."""
    content = saved[len(_checksum(b"")) :].rstrip()
    if not saved.startswith(_checksum(content)):
        return None
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def _checksum(content: bytes) -> bytes:
    return b"%08x " % crc32(content)
