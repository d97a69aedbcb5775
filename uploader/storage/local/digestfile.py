"""The format of the `digest` file: how far the digests of an upload have come, and in the end the digests.

One record of fixed length with a checksum, written over and over: what was written in part counts for nothing. Owns the
layout; who may write it, and what of it is to be believed, is its users' to say.
"""

from zlib import crc32

import msgspec

# No longer than a sector, so that writing one in place is seldom torn.
RECORD_LENGTH = 512


class Frontier(msgspec.Struct, frozen=True, tag="frontier"):
    """The digests have come to `position`; `state` is empty where it can't be gone on from."""

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
    """The data could not be made durable, so that there are no digests to believe in."""


Record = Frontier | Finished | DataLost
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def pack(record: Record) -> bytes:
    """The bytes of the file: a checksum, and JSON."""
    content = msgspec.json.encode(record)
    return (_checksum(content) + content).ljust(RECORD_LENGTH)


def parse(saved: bytes) -> Record | None:
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
