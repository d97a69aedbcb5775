"""Archives, as a client writes them."""

import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)


@dataclass(frozen=True)
class Entry:
    """A member to write: a regular file, unless `type` says otherwise."""

    name: str
    data: bytes = b""
    mtime: float = 0
    type: bytes = tarfile.REGTYPE
    linkname: str = ""
    pax: dict[str, str] = field(default_factory=dict)


def archive(*entries: Entry, kind: int = tarfile.PAX_FORMAT, pax: dict[str, str] | None = None) -> bytes:
    """A whole archive; `pax` is said of all its members."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=kind, pax_headers=pax) as tar:
        for entry in entries:
            tar.addfile(_info(entry), io.BytesIO(entry.data))
    return written.getvalue()


def _info(entry: Entry) -> tarfile.TarInfo:
    info = tarfile.TarInfo(entry.name)
    info.size, info.mtime, info.type, info.linkname = len(entry.data), entry.mtime, entry.type, entry.linkname
    info.pax_headers = dict(entry.pax)
    return info


def header(
    name: bytes,
    size: int | bytes = 0,
    *,
    kind: bytes = b"0",
    mtime: bytes = b"00000000000",
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
) -> bytes:
    """One block, with a checksum that is right."""
    length = b"%011o\0" % size if isinstance(size, int) else size
    block = bytearray(name.ljust(100, b"\0") + b"0000644\0" + 2 * b"0000000\0" + length.ljust(12, b"\0"))
    block += mtime.ljust(12, b"\0") + 8 * b" " + kind + bytes(100) + magic.ljust(8, b"\0") + bytes(80)
    block += prefix.ljust(155, b"\0") + bytes(12)
    return sealed(block)


def sealed(block: bytearray) -> bytes:
    """With its checksum."""
    block[148:156] = 8 * b" "
    block[148:156] = b"%06o\0 " % sum(block)
    assert len(block) == BLOCK_BYTES
    return bytes(block)


def padded(data: bytes) -> bytes:
    """Up to the end of its last block."""
    return data + bytes(-len(data) % BLOCK_BYTES)


def record(key: bytes, value: bytes) -> bytes:
    """One of an extended header."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + len(str(len(rest)))
    return str(length + (len(str(length)) > len(str(len(rest))))).encode() + rest


def extended(*records: bytes, kind: bytes = b"x") -> bytes:
    """An extended header of these records."""
    content = b"".join(records)
    return header(b"pax", len(content), kind=kind) + padded(content)


def in_pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """Cut at these places."""
    places = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    return [data[start:end] for start, end in pairwise(places)]
