"""Small files as members of a batch. Each file is read once, as a whole: the compared bytes are the bytes that are
sent.

A batch is small enough to stay in memory while it is sent. So the length is known beforehand, changing files do no
harm, and a repeated attempt reads nothing again. It is a tar archive with the SHA-256 of each member, which the server
compares.
"""

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import closing

from msgspec import Struct

from uploader.client.errors import ClientError
from uploader.client.files import LocalFile, Outcome, There
from uploader.client.source import open_source
from uploader.domain.archive import END, SHA256, head_of_member, padding

_MOST_MEMBERS = 400
_MOST_BYTES = 8 << 20
# The first batch, before the speed of the line is known, the smallest batch, and the time that a batch should take. A
# longer one reports its files late, and costs more after a broken connection.
_FIRST_BYTES = 2 << 20
_LEAST_BYTES = 64 << 10
_AIM_SECONDS = 2.0
_PIECE_BYTES = 256 << 10


class Member(Struct, frozen=True):
    local: LocalFile
    size: int
    sha256: str
    archived: bytes


class Batch(Struct, frozen=True):
    """Files that were read: members to send, outcomes without sending, and files that have grown too large."""

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
    """Return the size of the next batch, after one of `length` bytes took `seconds`."""
    return min(_MOST_BYTES, max(_LEAST_BYTES, int(length * _AIM_SECONDS / max(seconds, 1e-6))))


def next_batch(small: deque[LocalFile], most_bytes: int) -> list[LocalFile]:
    """Take the files of a batch: at least one file, if there are any."""
    taken: list[LocalFile] = []
    length = 0
    while small and len(taken) < _MOST_MEMBERS and (not taken or length + small[0].size <= most_bytes):
        length += small[0].size
        taken.append(small.popleft())
    return taken


def read_batch(files: Sequence[LocalFile], most_bytes: int, there: There) -> Batch:
    """Read files. Blocking, for several milliseconds a batch."""
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
    """Yield the archive, in pieces large enough to be worth a system call."""
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
    head = head_of_member(name, len(content), modified_ns, {SHA256: sha256})
    return b"".join((head, content, padding(len(content))))
