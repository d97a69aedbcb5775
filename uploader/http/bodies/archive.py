"""Reads a tar archive as it comes: ustar, pax, and what GNU tar has of its own (tar(5); POSIX, pax); and takes the files out
of it, each a body of its own.

The reader is pure: pieces of any size in, members and their bytes out. It keeps a block, or a header of at most 64 KiB, and
no more than 4 KiB of a value in it. It believes no more: what a member says of its size is only how far away the next header
is.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Generic, TypeVar

from starlette.requests import ClientDisconnect

from uploader.domain.names import MAX_NAME_BYTES
from uploader.errors import BodyTimeout, InvalidArchive, UploaderError
from uploader.http.bodies.body import ReceivedBody
from uploader.http.bodies.intake import GRACE_SECONDS, BodySource, Intake, PieceReader
from uploader.meter import Kind, charge
from uploader.storage.base import Body

T = TypeVar("T")

MAX_MEMBERS = 10_000
# With directories, and what is said ahead of a member.
MAX_HEADERS = 50_000
MAX_EXTENSION_BYTES = 64 << 10
# Of one header: more than the map of a sparse file has in so many bytes, and what they cost is a few milliseconds.
MAX_RECORDS = 4096
# What is kept of a path or another value: PATH_MAX of Linux, and more than any name that is taken has, in whatever form.
MAX_VALUE_BYTES = 4 << 10
# After the two blocks of zeros there are more, until the archive is as long as its writer's blocking factor wants it.
MAX_PADDING_BYTES = 1 << 20
_BLOCK_BYTES = 512
_ZEROS = bytes(_BLOCK_BYTES)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_REGULAR = frozenset({b"0", b"\0", b"7"})
_EXTENSIONS = frozenset({b"g", b"x", b"X", b"L", b"K"})
_DIRECTORY, _OLD_SPARSE = b"5", b"S"
# No bytes of these follow, whatever their size says.
_EMPTY_KINDS = {
    _DIRECTORY: "is a directory",
    b"1": "is a hard link",
    b"2": "is a symbolic link",
    b"3": "is a device",
    b"4": "is a device",
    b"6": "is a named pipe",
}
# Where old sparse files say that another block with the map of their bytes follows: in the header, and in such a block.
_HAS_MAP_BLOCK, _HAS_NEXT_MAP_BLOCK = 482, 504
_SPARSE = b"GNU.sparse."
# The records that mean something here, each with the one that it stands for.
_KEPT = {key: key for key in (b"path", b"size", b"mtime", b"uploader.md5", b"uploader.sha256")} | {
    b"GNU.sparse.name": b"path"
}
# What is never true of all members that follow.
_OF_ONE_MEMBER = frozenset({b"path", b"linkpath", b"size"})
_OCTAL = re.compile(rb"[0-7]*")
_DIGITS = re.compile(rb"[0-9]{1,20}")
_DECIMAL = re.compile(rb"(-?)([0-9]{1,20})(?:\.([0-9]*))?")
# Of what a record says of its length, which is that of a header at the most.
_LENGTH_DIGITS = 20
_NEWLINE = ord("\n")

_TOO_SLOW = "The archive came too slowly; what is in `results` stands."
# Of one piece, before all others have their turn: what so many cost is about a millisecond.
_TURN_MEMBERS = 32
# Of a member, beside what threads do for it.
_MEMBER_SECONDS = 1e-4


@dataclass(slots=True)
class Member:
    """`path` is as it stands there, up to MAX_VALUE_BYTES; `size` bytes follow unless `refused` says what it is."""

    path: bytes
    size: int
    # None: it is no moment that we have a word for.
    modified_at: datetime | None
    # As they are claimed there, up to MAX_VALUE_BYTES.
    md5: str | None
    sha256: str | None
    refused: str | None


class ArchiveReader:
    def __init__(self) -> None:
        self._held = bytearray()  # of a block that is not whole
        self._wanted = _BLOCK_BYTES  # how long the next block is
        self._take: Callable[[bytes], Member | None] = self._take_header
        self._content = 0  # bytes of the member that are still to come
        self._skipped = 0  # bytes after it that are nobody's
        self._members = self._headers = 0
        self._padding = 0
        self._ended = False
        # What is said ahead of a member: of all that follow, and of the next one.
        self._defaults: dict[bytes, bytes] = {}
        self._extended: dict[bytes, bytes] = {}
        self._long_name: bytes | None = None

    def feed(self, piece: memoryview) -> Iterator[Member | memoryview]:
        """Yield members, each followed by its bytes in views of the piece. To be read to its end before the next piece.
        Raises InvalidArchive; then nothing more may be fed."""
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
        """Raises InvalidArchive if there is no end yet."""
        if not self._ended:
            raise InvalidArchive("The archive is cut off: it has to end with two blocks of zeros.")

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
                raise InvalidArchive("The archive ends after a header whose member is missing.")
            self._expect(self._take_last_block)
            return None
        _check_sum(block)
        self._headers += 1
        if self._headers > MAX_HEADERS:
            raise InvalidArchive(f"The archive has more than {MAX_HEADERS} headers.")
        kind, size = block[156:157], _number(block[124:136])
        if size < 0:
            raise InvalidArchive("The size of a member is none.")
        if kind in _EXTENSIONS:
            if size > MAX_EXTENSION_BYTES:
                raise InvalidArchive(f"A header is longer than {MAX_EXTENSION_BYTES} bytes.")
            self._expect(partial(self._take_extension, kind, size), size + -size % _BLOCK_BYTES)
            return None
        return self._begin_member(block, kind, size)

    def _take_last_block(self, block: bytes) -> None:
        if block != _ZEROS:
            raise InvalidArchive("The archive has a single block of zeros, not two.")
        self._ended = True

    def _check_padding(self, rest: memoryview) -> None:
        self._padding += len(rest)
        if self._padding > MAX_PADDING_BYTES or bytes(rest).strip(b"\0"):
            raise InvalidArchive("Bytes follow the end of the archive.")

    def _begin_member(self, block: bytes, kind: bytes, size: int) -> Member | None:
        told, long_name = self._defaults | self._extended, self._long_name
        self._extended, self._long_name = {}, None
        path = told.get(b"path") or long_name or _path_of(block)
        if kind == b"\0" and path.endswith(b"/"):  # as directories were written before there was a word for them
            kind = _DIRECTORY
        size = 0 if kind in _EMPTY_KINDS else _size_of(told, size)
        length = size + -size % _BLOCK_BYTES
        if kind == _DIRECTORY:
            return None
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise InvalidArchive(f"The archive has more than {MAX_MEMBERS} members.")
        refused = _refusal_of(kind, path, told)
        if refused is None:
            self._content, self._skipped = size, length - size
        elif kind == _OLD_SPARSE and block[_HAS_MAP_BLOCK]:
            self._expect(partial(self._take_sparse_map, length))
        else:
            self._skipped = length
        digests = _claim(told, b"uploader.md5"), _claim(told, b"uploader.sha256")
        return Member(path, size, _modified_at(block, told), *digests, refused)

    def _take_sparse_map(self, skipped: int, block: bytes) -> None:
        if not block[_HAS_NEXT_MAP_BLOCK]:
            self._skipped = skipped
            self._expect(self._take_header)

    # What is said ahead of a member

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


def _check_sum(block: bytes) -> None:
    if sum(block) - sum(block[148:156]) + 8 * ord(" ") != _number(block[148:156]):
        raise InvalidArchive("This is not a tar archive, or a header of it is damaged.")


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    """Octal digits, or binary where they do not suffice (GNU, star)."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    digits = _text(field).strip(b" ")
    if not _OCTAL.fullmatch(digits):
        raise InvalidArchive("A header of the archive has a malformed number.")
    return int(digits or b"0", 8)


def _path_of(block: bytes) -> bytes:
    name, prefix = _text(block[:100]), block[345:500]
    # Others than POSIX have other things in that place.
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
        raise InvalidArchive("The size of a member is none.")
    return int(text)


def _records(content: bytes, *, of_all: bool = False) -> dict[bytes, bytes]:
    """Return those that mean something here; an empty value takes back what was said before (POSIX, pax). `of_all`: they
    are said of all members that follow."""
    found: dict[bytes, bytes] = {}
    at, count, most = 0, 0, len(content)
    while at < most:
        space = content.find(b" ", at, at + _LENGTH_DIGITS + 1)
        length = content[at:space]
        end = at + int(length) if space > 0 and length.isdigit() else at
        equals = content.find(b"=", space, end)
        if equals < 0 or end > most or content[end - 1] != _NEWLINE:
            raise InvalidArchive("An extended header of the archive is malformed.")
        key, at, count = content[space + 1 : equals], end, count + 1
        if count > MAX_RECORDS:
            raise InvalidArchive(f"An extended header has more than {MAX_RECORDS} records.")
        if key in _OF_ONE_MEMBER or key.startswith(_SPARSE):
            if of_all:
                raise InvalidArchive("A global header has a path, size or link, which belong to one member.")
            if key.startswith(_SPARSE):
                found[_SPARSE] = b""
        if key in _KEPT:
            start = equals + 1
            found[_KEPT[key]] = content[start : min(end - 1, start + MAX_VALUE_BYTES)]
    return found


class Unpacking(Generic[T]):
    def __init__(self, intake: Intake, source: BodySource, user_id: str, admit: Callable[[Member], T]) -> None:
        """`admit` says what each file is to be, in order, or raises why there will be none: then its bytes are skipped."""
        self._intake = intake
        self._source = PieceReader(source, intake.pace(), _TOO_SLOW)
        self._user_id = user_id
        self._admit = admit
        self._loop = asyncio.get_running_loop()
        self._looked_at = 0
        # The file that comes now, how long it is, and what there is of it.
        self._file: T | None = None
        self._size = 0
        self._body: ReceivedBody | None = None
        self._slow_at = 0.0
        self._failure: UploaderError | ClientDisconnect | None = None

    @property
    def failure(self) -> UploaderError | ClientDisconnect | None:
        return self._failure or self._source.failure

    async def entries(self) -> AsyncGenerator[tuple[T, Body] | UploaderError, None]:
        """Yield each file with its bytes, which its taker closes, or why it is refused. What was given stands, whatever
        `failure` says. To be closed (`aclosing`), if not read to its end."""
        reader = ArchiveReader()
        try:
            while not self._source.ended:
                await asyncio.sleep(0)  # headers may take milliseconds, and not all pieces are waited for
                if self._source.failure is not None:
                    raise self._source.failure
                for found in reader.feed(await self._source.read()):
                    entry = await self._begin(found) if isinstance(found, Member) else await self._add(found)
                    if entry is not None:
                        yield entry
            reader.end()
        except (InvalidArchive, BodyTimeout, ClientDisconnect) as error:
            self._failure = error
        finally:
            self._drop()

    async def _begin(self, member: Member) -> tuple[T, Body] | UploaderError | None:
        self._looked_at += 1
        charge(Kind.REQUESTS, _MEMBER_SECONDS)
        if self._looked_at % _TURN_MEMBERS == 0:
            await asyncio.sleep(0)
        self._file, self._size = None, member.size
        try:
            self._file = self._admit(member)
        except UploaderError as error:
            return error.with_traceback(None)  # which would keep all that was at hand here, until it is answered
        return None if member.size else await self._add(memoryview(b""))

    async def _add(self, content: memoryview) -> tuple[T, Body] | UploaderError | None:
        """Return the file, if these are its last bytes."""
        if self._file is None:
            return None
        if self._body is None and len(content) == self._size:
            whole = self._intake.whole(self._user_id, content)
            if whole is not None:
                return self._file, whole
        try:
            body = await self._gather(content)
        except UploaderError as error:
            self._file = None
            self._drop()
            return error
        if body.length < self._size:
            return None
        self._body = None
        return self._file, body

    async def _gather(self, content: memoryview) -> ReceivedBody:
        """Raises StorageFull."""
        if self._body is None:
            self._body = self._intake.gathering(self._user_id, self._size)
            self._slow_at = self._loop.time() + GRACE_SECONDS
        body = self._body
        await body.append(content, slow=self._loop.time() >= self._slow_at)
        if body.length == self._size:
            await body.end()
        return body

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None
