"""Chunk maps as they lie on the disk, read without the row of their upload."""

import struct

from uploader.storage.local import chunks


def shape_of(content: bytes) -> chunks.MapShape:
    """What the header of a map says, whether it is true or not. Raises ValueError if there is none."""
    if len(content) < chunks.MAP_RECORDS_OFFSET:
        raise ValueError("the chunk map is cut short")
    return chunks.MapShape(*struct.unpack_from("<QQQ", content, chunks.BOOT_ID_OFFSET + 40))


def parsed_map(content: bytes) -> chunks.ChunkMap:
    """A map that is whole, beside data that is. Raises ValueError."""
    shape = shape_of(content)
    if shape == shape.unbounded:
        content = content.ljust(shape.map_length, b"\0")  # who was about to settle it was killed
    chunk_map = chunks.parse_map(content, shape, shape.size)
    if chunk_map.defect is not None:
        raise ValueError("not a chunk map")
    return chunk_map
