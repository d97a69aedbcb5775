"""Chunks that come as instructions: what of them to copy from a base, a finished file, and what comes literally.

All numbers are big-endian. Pure; both the server and the client know it by this alone.
"""

from dataclasses import dataclass
from struct import Struct

# The byte 0, then offset and length in bytes of what is copied; the byte 1, the length in bytes of what follows.
COPY, LITERAL = Struct(">BQI"), Struct(">BI")
COPY_KIND, LITERAL_KIND = 0, 1
# Of one chunk.
MAX_INSTRUCTIONS = 65_536


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes that the base has."""

    offset: int
    length: int

    def encode(self) -> bytes:
        """The instruction."""
        return COPY.pack(COPY_KIND, self.offset, self.length)


def literal_head(length_bytes: int) -> bytes:
    """What goes before so many bytes that come literally."""
    return LITERAL.pack(LITERAL_KIND, length_bytes)
