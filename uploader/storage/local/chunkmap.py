"""The format of the chunk map: which chunks of an upload are on disk, and the checksum of each.

`header | gate byte, padded | one record a chunk`. A record is 8 bytes at a multiple of 8, so it never straddles a sector
and is written whole or not at all. Owns the layout; the locks on the gate and the records are its users'.
"""

import struct
from dataclasses import dataclass

MAGIC = b"UPMAP\x00\x00\x01"
_HEADER = struct.Struct("<8s36s4xQQQ")
BOOT_ID_OFFSET = 8
BOOT_ID_LENGTH = 36
GATE_OFFSET = 120
GATE_LENGTH = 1
RECORDS_OFFSET = 128
RECORD_LENGTH = 8
_RECORD = struct.Struct("<B3xI")
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
        return [checksum if flag == _PRESENT else None for flag, checksum in _RECORD.iter_unpack(self.records)]


def new_map(boot_id: str, size: int, chunk_size: int, chunk_count: int) -> bytes:
    """The bytes of a map without chunks."""
    header = _HEADER.pack(MAGIC, pack_boot_id(boot_id), size, chunk_size, chunk_count)
    return header.ljust(RECORDS_OFFSET, b"\0") + bytes(RECORD_LENGTH * chunk_count)


def parse_map(content: bytes) -> ChunkMap:
    """Raises ValueError if `content` is no map."""
    if len(content) < RECORDS_OFFSET:
        raise ValueError("the chunk map is cut short")
    magic, boot_id, size, chunk_size, chunk_count = _HEADER.unpack_from(content)
    if magic != MAGIC or len(content) != RECORDS_OFFSET + RECORD_LENGTH * chunk_count:
        raise ValueError("not a chunk map")
    records = content[RECORDS_OFFSET:]
    present = bytearray(flag == _PRESENT for flag in records[::RECORD_LENGTH])
    return ChunkMap(parse_boot_id(boot_id), size, chunk_size, present, records)


def pack_boot_id(boot_id: str) -> bytes:
    return boot_id.encode().ljust(BOOT_ID_LENGTH, b"\0")


def parse_boot_id(content: bytes) -> str:
    return content.rstrip(b"\0").decode(errors="replace")


def record_offset(chunk_number: int) -> int:
    return RECORDS_OFFSET + RECORD_LENGTH * chunk_number


def pack_record(checksum: int) -> bytes:
    """The record of a chunk that is there; `checksum` is the CRC-32 of its bytes."""
    return _RECORD.pack(_PRESENT, checksum)


def is_present(record: bytes) -> bool:
    return record[:1] == bytes([_PRESENT])


def holds_chunks(content: bytes) -> bool:
    """Whether any record of a map, whose header may be damaged, is that of a chunk that is there."""
    return _PRESENT in content[RECORDS_OFFSET::RECORD_LENGTH]


def are_present(records: bytes, count: int) -> bool:
    """Whether these are the records of `count` chunks that are all there."""
    return records[::RECORD_LENGTH] == bytes([_PRESENT]) * count


def count_present(records: bytes) -> int:
    """How many of these records, from the first on, are of chunks that are there."""
    flags = records[::RECORD_LENGTH]
    return len(flags) - len(flags.lstrip(bytes([_PRESENT])))
