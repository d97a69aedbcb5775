"""Small files as members of a batch: each read whole, once, so that what is sent is what was compared and counted.

A batch is bounded, and in memory while it is sent: so its length is known before, a file that changes meanwhile can't
break it, and sending it again reads nothing again. It is a tar archive (POSIX.1-2017, pax), made one member at a time:
`tarfile` takes ten times as long, which counts at thousands of files a second. Times have nanoseconds and names any length
by a pax header before each member; it also tells the SHA-256, so that the server compares what has arrived.
"""

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import closing

from msgspec import Struct

from uploader.client.errors import ClientError
from uploader.client.files import LocalFile, Outcome, There
from uploader.client.source import open_source

_MOST_MEMBERS = 400
_MOST_BYTES = 8 << 20
# What is known of the line before the first batch; and how long one is to take: until then nobody hears of its files, and
# a connection that breaks costs it.
_FIRST_BYTES = 2 << 20
_LEAST_BYTES = 64 << 10
_AIM_SECONDS = 2.0
_PIECE_BYTES = 256 << 10

_BLOCK_BYTES = 512
_NAME_BYTES = 100
END = bytes(2 * _BLOCK_BYTES)
_LAST_OCTAL_SECOND = 8**11 - 1
_NANOSECONDS = 1_000_000_000

# Mode, user and group; then, behind size, time and checksum, the link that is none, the magic, and names that are none.
_BEFORE_SIZE = b"0000644\x000000000\x000000000\x00"
_BEHIND_KIND = bytes(100) + b"ustar\x0000" + bytes(32 + 32 + 8 + 8 + 155 + 12)
_CONSTANT_SUM = sum(_BEFORE_SIZE) + sum(_BEHIND_KIND) + 8 * ord(" ")


class Member(Struct, frozen=True):
    local: LocalFile
    size: int
    sha256: str
    archived: bytes


class Batch(Struct, frozen=True):
    """Files as they were read: what there is to send, what is over already, and what is too large by now."""

    members: list[Member] = []
    outcomes: list[Outcome] = []
    grown: list[LocalFile] = []


class TooLarge(Exception):
    """The file is not small any more."""


def first_bytes(most_bytes_per_second: float | None) -> int:
    if most_bytes_per_second is None:
        return _FIRST_BYTES
    return min(_FIRST_BYTES, bytes_for(int(most_bytes_per_second), 1.0))


def bytes_for(length: int, seconds: float) -> int:
    """Return how many bytes the next batch may have, after one of `length` bytes took so long."""
    return min(_MOST_BYTES, max(_LEAST_BYTES, int(length * _AIM_SECONDS / max(seconds, 1e-6))))


def next_batch(small: deque[LocalFile], most_bytes: int) -> list[LocalFile]:
    """Take the files of one batch: one at least, if there is any."""
    taken: list[LocalFile] = []
    length = 0
    while small and len(taken) < _MOST_MEMBERS and (not taken or length + small[0].size <= most_bytes):
        length += small[0].size
        taken.append(small.popleft())
    return taken


def read_batch(files: Sequence[LocalFile], most_bytes: int, there: There) -> Batch:
    """Blocking: several milliseconds for a batch."""
    batch = Batch()
    for local in files:
        try:
            member = read_member(local, most_bytes)
        except TooLarge:
            batch.grown.append(local)
        except ClientError as error:
            batch.outcomes.append(Outcome(local, error=error))
        else:
            same = [file for file in there.candidates(local.name, member.size) if file.sha256 == member.sha256]
            if same:
                batch.outcomes.append(Outcome(local, same[0], "present"))
            else:
                batch.members.append(member)
    return batch


def read_member(local: LocalFile, most_bytes: int) -> Member:
    """Blocking. Raises Unreadable, FileChanged, TooLarge."""
    with closing(open_source(local.path)) as source:
        if source.size > most_bytes:
            raise TooLarge
        content = source.read(0, source.size)
        source.check()
    sha256 = hashlib.sha256(content).hexdigest()
    return Member(local, len(content), sha256, archived(local.name, content, source.modified_ns or 0, sha256))


def length_of(members: Sequence[Member]) -> int:
    return sum(len(member.archived) for member in members) + len(END)


async def pieces_of(members: Sequence[Member]) -> AsyncIterator[bytes]:
    """Yield the archive, in pieces that are worth a system call."""
    pieces: list[bytes] = []
    length = 0
    for member in members:
        pieces.append(member.archived)
        length += len(member.archived)
        if length >= _PIECE_BYTES:
            yield b"".join(pieces)
            pieces, length = [], 0
    yield b"".join((*pieces, END))


def archived(name: str, content: bytes, modified_ns: int, sha256: str) -> bytes:
    path = name.encode()
    records = b"".join(
        (
            b"" if len(path) <= _NAME_BYTES and path.isascii() else _record(b"path", path),
            _record(b"mtime", _decimal(modified_ns)),
            _record(b"uploader.sha256", sha256.encode()),
        )
    )
    seconds = min(max(modified_ns // _NANOSECONDS, 0), _LAST_OCTAL_SECOND)
    return b"".join(
        (
            _header(b"pax", len(records), 0, b"x"),
            records,
            _padding(len(records)),
            _header(path[:_NAME_BYTES], len(content), seconds, b"0"),
            content,
            _padding(len(content)),
        )
    )


def _header(name: bytes, size: int, seconds: int, kind: bytes) -> bytes:
    varying = b"%011o\x00%011o\x00" % (size, seconds)
    checksum = _CONSTANT_SUM + sum(name) + sum(varying) + kind[0]
    return b"".join(
        (name.ljust(_NAME_BYTES, b"\0"), _BEFORE_SIZE, varying, b"%06o\x00 " % checksum, kind, _BEHIND_KIND)
    )


def _record(key: bytes, value: bytes) -> bytes:
    """`<length> <key>=<value>` LF, where the length counts its own digits, too."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %b=%b\n" % (length, key, value)


def _decimal(nanoseconds: int) -> bytes:
    """Seconds with nine decimals; also before 1970."""
    seconds, rest = divmod(abs(nanoseconds), _NANOSECONDS)
    return b"%b%d.%09d" % (b"-" if nanoseconds < 0 else b"", seconds, rest)


def _padding(length: int) -> bytes:
    return bytes(-length % _BLOCK_BYTES)
