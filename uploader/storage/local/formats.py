"""The formats of the two small files of an upload: its map and its digests. Pure: nothing here touches a disk.

The chunk map (`map`) says which chunks are on disk, with the checksum of each:
`header | gate byte, padded | one record a chunk`. A record is 8 bytes at a multiple of 8, so it never straddles a sector
and is written whole or not at all.

The digest file (`digest`) says how far the digests have come, and in the end the digests: one record of fixed length with a
checksum, written over and over. A record that was written in part counts for nothing.

Owns both layouts. The locks on the gate, the records and the digest file, and how far a digest record is to be believed,
belong to the modules that use them.
"""

import struct
from dataclasses import dataclass
from zlib import crc32

import msgspec

# The chunk map

MAP_MAGIC = b"UPMAP\x00\x00\x01"
_MAP_HEADER = struct.Struct("<8s36s4xQQQ")
BOOT_ID_OFFSET = 8
BOOT_ID_LENGTH = 36
GATE_OFFSET = 120
GATE_LENGTH = 1
MAP_RECORDS_OFFSET = 128
MAP_RECORD_LENGTH = 8
_MAP_RECORD = struct.Struct("<B3xI")
_PRESENT = 0xC1


@dataclass(frozen=True, slots=True)
class ChunkMap:
    """A map as it was read: its facts, for each chunk 1 or 0, and the checksum (CRC-32) of each that is there."""

    # Of the machine when chunks were stored without a sync, so that they may not have outlived it. Empty: there are none.
    boot_id: str
    size: int
    chunk_size: int
    present: bytearray
    records: bytes

    @property
    def complete(self) -> bool:
        return all(self.present)

    @property
    def checksums(self) -> list[int | None]:
        return [checksum if flag == _PRESENT else None for flag, checksum in _MAP_RECORD.iter_unpack(self.records)]


def new_map(boot_id: str, size: int, chunk_size: int, chunk_count: int) -> bytes:
    """The bytes of a map without chunks."""
    header = _MAP_HEADER.pack(MAP_MAGIC, pack_boot_id(boot_id), size, chunk_size, chunk_count)
    return header.ljust(MAP_RECORDS_OFFSET, b"\0") + bytes(MAP_RECORD_LENGTH * chunk_count)


def parse_map(content: bytes) -> ChunkMap:
    """Raises ValueError if `content` is no map."""
    if len(content) < MAP_RECORDS_OFFSET:
        raise ValueError("the chunk map is cut short")
    magic, boot_id, size, chunk_size, chunk_count = _MAP_HEADER.unpack_from(content)
    if magic != MAP_MAGIC or len(content) != MAP_RECORDS_OFFSET + MAP_RECORD_LENGTH * chunk_count:
        raise ValueError("not a chunk map")
    records = content[MAP_RECORDS_OFFSET:]
    present = bytearray(flag == _PRESENT for flag in records[::MAP_RECORD_LENGTH])
    return ChunkMap(parse_boot_id(boot_id), size, chunk_size, present, records)


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


def holds_chunks(content: bytes) -> bool:
    """Whether any record of a map, whose header may be damaged, is that of a chunk that is there."""
    return _PRESENT in content[MAP_RECORDS_OFFSET::MAP_RECORD_LENGTH]


def are_present(records: bytes, count: int) -> bool:
    """Whether these are the records of `count` chunks that are all there."""
    return records[::MAP_RECORD_LENGTH] == bytes([_PRESENT]) * count


def count_present(records: bytes) -> int:
    """How many of these records, from the first on, are of chunks that are there."""
    flags = records[::MAP_RECORD_LENGTH]
    return len(flags) - len(flags.lstrip(bytes([_PRESENT])))


# The digest file

# No longer than a sector, so that writing one in place is seldom torn.
DIGEST_RECORD_LENGTH = 512


class Frontier(msgspec.Struct, frozen=True, tag="frontier"):
    """The digests have come to `position`; `state` is empty if nobody can go on from it."""

    generation: int
    boot_id: str
    position: int
    state: bytes


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """Both digests of the whole content."""

    generation: int
    md5: str
    sha256: str


class DataLost(msgspec.Struct, frozen=True, tag="lost"):
    """The disk could not make the data durable, so that there are no digests to believe in."""


DigestRecord = Frontier | Finished | DataLost
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
