"""Tar archives: a reader for ustar, pax and GNU tar's extensions (tar(5); POSIX, pax), and a writer of member headers.

The reader is pure: pieces of any size in, members and their bytes out. Memory: one block or one header of at most 64
KiB, and at most 4 KiB of a value. It uses the size of a member only to find the next header, and reserves no memory by
it.

The writer makes pax headers (POSIX.1-2017), one member at a time. A pax header before each member allows nanoseconds,
and names and sizes of any length. `tarfile` takes ten times as long, which counts at thousands of files a second.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from zlib import adler32

from uploader.domain.names import MAX_NAME_BYTES

MAX_MEMBERS = 10_000
# Members, directories and extended headers together.
MAX_HEADERS = 50_000
MAX_EXTENSION_BYTES = 64 << 10
# Records in one header. The map of a sparse file has fewer in MAX_EXTENSION_BYTES, and parsing 4,096 takes a few
# milliseconds.
MAX_RECORDS = 4096
# Bytes that the reader keeps of a path or another value: PATH_MAX of Linux, and more than any valid name has, in any
# Unicode form.
MAX_VALUE_BYTES = 4 << 10
# Zeros after the two blocks that end an archive: a writer pads the archive to its blocking factor.
MAX_PADDING_BYTES = 1 << 20
_BLOCK_BYTES = 512
# The end of an archive: two blocks of zeros.
END = bytes(2 * _BLOCK_BYTES)
# Our own records: both digests, the id of a file on the server, and the problem code of a member without bytes.
MD5, SHA256, FILE_ID, PROBLEM = b"uploader.md5", b"uploader.sha256", b"uploader.id", b"uploader.problem"
_ZEROS = bytes(_BLOCK_BYTES)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_REGULAR = frozenset({b"0", b"\0", b"7"})
_EXTENSIONS = frozenset({b"g", b"x", b"X", b"L", b"K"})
_DIRECTORY, _OLD_SPARSE = b"5", b"S"
# Members of these kinds have no bytes, even if their header has a size.
_EMPTY_KINDS = {
    _DIRECTORY: "is a directory",
    b"1": "is a hard link",
    b"2": "is a symbolic link",
    b"3": "is a device",
    b"4": "is a device",
    b"6": "is a named pipe",
}
# Old sparse files: the byte that says that a block with more of the map follows, in the header and in a map block.
_HAS_MAP_BLOCK, _HAS_NEXT_MAP_BLOCK = 482, 504
_SPARSE = b"GNU.sparse."
# The records that the reader uses, under their own names or as another record.
_KEPT = {key: key for key in (b"path", b"size", b"mtime", MD5, SHA256, FILE_ID, PROBLEM)} | {
    b"GNU.sparse.name": b"path"
}
# Records that a global header may not have: they can't be true of all members that follow.
_OF_ONE_MEMBER = frozenset({b"path", b"linkpath", b"size"})
_OCTAL = b"01234567"
_DIGITS = re.compile(rb"[0-9]{1,20}")
_DECIMAL = re.compile(rb"(-?)([0-9]{1,20})(?:\.([0-9]*))?")
# Digits in the length of a record, at most.
_LENGTH_DIGITS = 20
_NEWLINE = ord("\n")

_NANOSECONDS = 1_000_000_000
_NAME_BYTES = 100
_LAST_OCTAL = 8**11 - 1
# The constant fields of a header. Before the size: mode, user id, group id. After the kind: no link name, magic and
# version, no user and group names, no device numbers, no prefix.
_BEFORE_SIZE = b"0000644\x000000000\x000000000\x00"
_BEHIND_KIND = bytes(100) + b"ustar\x0000" + bytes(32 + 32 + 8 + 8 + 155 + 12)
_CONSTANT_SUM = sum(_BEFORE_SIZE) + sum(_BEHIND_KIND) + 8 * ord(" ")


class MalformedArchive(Exception):
    """The bytes are not a tar archive, the archive is cut off, or it exceeds a limit."""


@dataclass(slots=True)
class Member:
    """A member of an archive. `path` is cut off at MAX_VALUE_BYTES. `size` bytes follow, unless `refused` gives the
    reason why this member is not taken."""

    path: bytes
    size: int
    # None: the archive has no valid time.
    modified_at: datetime | None
    # As the archive claims them, cut off at MAX_VALUE_BYTES.
    md5: str | None
    sha256: str | None
    refused: str | None
    # Archives from the server have these: the id of the file, and the problem code if the file has no bytes.
    file_id: str | None = None
    problem: str | None = None


class ArchiveReader:
    def __init__(self) -> None:
        self._held = bytearray()  # the beginning of an incomplete block
        self._wanted = _BLOCK_BYTES  # length of the next block
        self._take: Callable[[bytes], Member | None] = self._take_header
        self._content = 0  # bytes of the current member still to come
        self._skipped = 0  # bytes to skip after the member
        self._members = self._headers = 0
        self._padding = 0
        self._ended = False
        # Records of global headers, for all members that follow, and of extended headers, for the next member.
        self._defaults: dict[bytes, bytes] = {}
        self._extended: dict[bytes, bytes] = {}
        self._long_name: bytes | None = None

    def feed(self, piece: memoryview) -> Iterator[Member | memoryview]:
        """Yield members, each followed by its bytes as views of the piece. Read to the end before feeding the next
        piece. Raises MalformedArchive; feed nothing after that."""
        at, end = 0, len(piece)
        while at < end:
            if self._content:
                count = min(self._content, end - at)
                self._content -= count
                yield piece[at : at + count]
            elif self._skipped:
                count = min(self._skipped, end - at)
                self._skipped -= count
            elif self._ended:
                count = end - at
                self._check_padding(piece[at:])
            else:
                count = min(self._wanted - len(self._held), end - at)
                member = self._add(piece[at : at + count])
                if member is not None:
                    yield member
            at += count

    def end(self) -> None:
        """Check that the archive is complete. Raises MalformedArchive."""
        if not self._ended:
            raise MalformedArchive("The archive is cut off: it has to end with two blocks of zeros.")

    def _add(self, part: memoryview) -> Member | None:
        if len(part) == self._wanted:
            return self._take(bytes(part))
        self._held += part
        if len(self._held) < self._wanted:
            return None
        block, self._held = bytes(self._held), bytearray()
        return self._take(block)

    def _expect(self, take: Callable[[bytes], Member | None], length_bytes: int = _BLOCK_BYTES) -> None:
        self._take, self._wanted = take, length_bytes

    # Headers

    def _take_header(self, block: bytes) -> Member | None:
        if block == _ZEROS:
            if self._extended or self._long_name is not None:
                raise MalformedArchive("The archive ends after a header whose member is missing.")
            self._expect(self._take_last_block)
            return None
        _check_sum(block)
        self._headers += 1
        if self._headers > MAX_HEADERS:
            raise MalformedArchive(f"The archive has more than {MAX_HEADERS} headers.")
        kind, size = block[156:157], _number(block[124:136])
        if size < 0:
            raise MalformedArchive("The size of a member is none.")
        if kind in _EXTENSIONS:
            if size > MAX_EXTENSION_BYTES:
                raise MalformedArchive(f"A header is longer than {MAX_EXTENSION_BYTES} bytes.")
            self._expect(partial(self._take_extension, kind, size), size + -size % _BLOCK_BYTES)
            return None
        return self._begin_member(block, kind, size)

    def _take_last_block(self, block: bytes) -> None:
        if block != _ZEROS:
            raise MalformedArchive("The archive has a single block of zeros, not two.")
        self._ended = True

    def _check_padding(self, rest: memoryview) -> None:
        self._padding += len(rest)
        if self._padding > MAX_PADDING_BYTES or bytes(rest).strip(b"\0"):
            raise MalformedArchive("Bytes follow the end of the archive.")

    def _begin_member(self, block: bytes, kind: bytes, size: int) -> Member | None:
        told = self._defaults | self._extended if self._defaults else self._extended
        long_name = self._long_name
        self._extended, self._long_name = {}, None
        path = told.get(b"path") or long_name or _path_of(block)
        if kind == b"\0" and path.endswith(b"/"):  # old tar marks directories by a slash alone
            kind = _DIRECTORY
        size = 0 if kind in _EMPTY_KINDS else _size_of(told, size)
        length = size + -size % _BLOCK_BYTES
        if kind == _DIRECTORY:
            return None
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise MalformedArchive(f"The archive has more than {MAX_MEMBERS} members.")
        refused = _refusal_of(kind, path, told)
        if refused is None:
            self._content, self._skipped = size, length - size
        elif kind == _OLD_SPARSE and block[_HAS_MAP_BLOCK]:
            self._expect(partial(self._take_sparse_map, length))
        else:
            self._skipped = length
        md5, sha256 = _claim(told, MD5), _claim(told, SHA256)
        file_id, problem = _claim(told, FILE_ID), _claim(told, PROBLEM)
        return Member(path, size, _modified_at(block, told), md5, sha256, refused, file_id, problem)

    def _take_sparse_map(self, skipped: int, block: bytes) -> None:
        if not block[_HAS_NEXT_MAP_BLOCK]:
            self._skipped = skipped
            self._expect(self._take_header)

    # Extended headers

    def _take_extension(self, kind: bytes, size: int, block: bytes) -> None:
        content = block[:size]
        match kind:
            case b"g":
                self._defaults |= _records(content, of_all=True)
            case b"x" | b"X":
                self._extended = _records(content)
            case b"L":
                self._long_name = _text(content)[:MAX_VALUE_BYTES]
        self._expect(self._take_header)


def _sum(part: bytes) -> int:
    """Return the sum of up to 256 bytes. The lower half of their Adler-32 is the sum plus one (RFC 1950: modulo 65,521,
    more than 256 bytes can reach). `sum` takes ten times as long."""
    return (adler32(part) & 0xFFFF) - 1


def _check_sum(block: bytes) -> None:
    # The checksum field itself counts as spaces.
    half = block[:148] + b"        " + block[156:256]
    if _sum(half) + _sum(block[256:]) != _number(block[148:156]):
        raise MalformedArchive("This is not a tar archive, or a header of it is damaged.")


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    """Parse octal digits, or the binary form for larger numbers (GNU, star)."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    digits = _text(field).strip(b" ")
    if digits.strip(_OCTAL):
        raise MalformedArchive("A header of the archive has a malformed number.")
    return int(digits or b"0", 8)


def _path_of(block: bytes) -> bytes:
    name, prefix = _text(block[:100]), block[345:500]
    # Formats other than POSIX use these bytes differently.
    return _text(prefix) + b"/" + name if block[257:263] == b"ustar\0" and prefix[0] else name


def _refusal_of(kind: bytes, path: bytes, told: dict[bytes, bytes]) -> str | None:
    if kind == _OLD_SPARSE or _SPARSE in told:
        return "is a sparse file"
    if kind not in _REGULAR:
        return _EMPTY_KINDS.get(kind, "is no regular file")
    return None if len(path) < MAX_VALUE_BYTES else f"is longer than {MAX_NAME_BYTES} bytes"


def _modified_at(block: bytes, told: dict[bytes, bytes]) -> datetime | None:
    mtime = told.get(b"mtime")
    try:
        if not mtime:
            return _EPOCH + timedelta(seconds=_number(block[136:148]))
        match = _DECIMAL.fullmatch(mtime)
        if match is None:
            return None
        sign = -1 if match[1] else 1
        return _EPOCH + sign * timedelta(seconds=int(match[2]), microseconds=int((match[3] or b"").ljust(6, b"0")[:6]))
    except OverflowError:
        return None


def _claim(told: dict[bytes, bytes], key: bytes) -> str | None:
    value = told.get(key)
    return value.decode(errors="replace") if value else None


def _size_of(told: dict[bytes, bytes], in_header: int) -> int:
    text = told.get(b"size")
    if not text:
        return in_header
    if not _DIGITS.fullmatch(text):
        raise MalformedArchive("The size of a member is none.")
    return int(text)


def _records(content: bytes, *, of_all: bool = False) -> dict[bytes, bytes]:
    """Return the records that the reader uses. An empty value cancels an earlier one (POSIX, pax). `of_all`: the
    records come from a global header."""
    found: dict[bytes, bytes] = {}
    at, count, most = 0, 0, len(content)
    while at < most:
        space = content.find(b" ", at, at + _LENGTH_DIGITS + 1)
        length = content[at:space]
        end = at + int(length) if space > 0 and length.isdigit() else at
        equals = content.find(b"=", space, end)
        if equals < 0 or end > most or content[end - 1] != _NEWLINE:
            raise MalformedArchive("An extended header of the archive is malformed.")
        key, at, count = content[space + 1 : equals], end, count + 1
        if count > MAX_RECORDS:
            raise MalformedArchive(f"An extended header has more than {MAX_RECORDS} records.")
        if of_all and (key in _OF_ONE_MEMBER or key.startswith(_SPARSE)):
            raise MalformedArchive("A global header has a path, size or link, which belong to one member.")
        if key.startswith(_SPARSE):
            found[_SPARSE] = b""
        if key in _KEPT:
            start = equals + 1
            found[_KEPT[key]] = content[start : min(end - 1, start + MAX_VALUE_BYTES)]
    return found


# Writing


def head_of_member(name: str, size: int, modified_ns: int, told: Mapping[bytes, str]) -> bytes:
    """Return the headers of a member, to write before its bytes; write `padding` after them. `told`: additional
    records."""
    path = name.encode()
    records = b"" if len(path) <= _NAME_BYTES and path.isascii() else _record(b"path", path)
    if size > _LAST_OCTAL:
        records += _record(b"size", b"%d" % size)
    records += _record(b"mtime", _decimal(modified_ns))
    for key, value in told.items():
        records += _record(key, value.encode())
    seconds = min(max(modified_ns // _NANOSECONDS, 0), _LAST_OCTAL)
    header = _header(path[:_NAME_BYTES], size if size <= _LAST_OCTAL else 0, seconds, b"0")
    return _header_of_records(len(records)) + records + padding(len(records)) + header


def padding(length: int) -> bytes:
    return bytes(-length % _BLOCK_BYTES)


@lru_cache(maxsize=64)
def _header_of_records(length: int) -> bytes:
    """Cached, because most members have records of one of few lengths."""
    return _header(b"pax", length, 0, b"x")


def _header(name: bytes, size: int, seconds: int, kind: bytes) -> bytes:
    varying = b"%011o\x00%011o\x00" % (size, seconds)
    checksum = _CONSTANT_SUM + _sum(name + varying + kind)
    return b"".join(
        (name.ljust(_NAME_BYTES, b"\0"), _BEFORE_SIZE, varying, b"%06o\x00 " % checksum, kind, _BEHIND_KIND)
    )


def _record(key: bytes, value: bytes) -> bytes:
    """Return `<length> <key>=<value>` LF. The length includes its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %b=%b\n" % (length, key, value)


def _decimal(nanoseconds: int) -> bytes:
    """Format as seconds with nine decimals, also before 1970."""
    seconds, rest = divmod(abs(nanoseconds), _NANOSECONDS)
    return b"%b%d.%09d" % (b"-" if nanoseconds < 0 else b"", seconds, rest)
