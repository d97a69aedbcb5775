"""`/me/archive`: sends files as one zip or tar, built during the transfer. Nothing is compressed, because most large files
already are.

Small files are read and sent in groups. A file that is known to be gone or damaged before its member begins is reported in
the archive. If damage shows in the middle of a member, the archive breaks off, which every reader notices.
"""

import io
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import PurePosixPath
from typing import Protocol

from starlette.responses import StreamingResponse
from starlette.types import Send

from uploader.domain.archive import END, FILE_ID, PROBLEM, SHA256, head_of_member, padding
from uploader.domain.names import common_folder
from uploader.domain.upload import File
from uploader.errors import FileNotFound, StorageAway, UploaderError
from uploader.http.native.download import Contents, disposition
from uploader.runtime.meter import Kind, charge
from uploader.runtime.tasks import in_thread, uninterrupted
from uploader.storage.base import OpenBlob

# Bytes per read of a large file, and the total size of a group of small files.
_PIECE_BYTES = 256 << 10
_GROUP_FILES = 64
# CPU time to charge for a member, without its row and its bytes.
_MEMBER_SECONDS = 3e-5
_MODE = 0o644
_REGULAR_FILE = 0o100000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The first and last date of a zip member (APPNOTE.TXT, 4.4.6).
_FIRST_DATE, _LAST_DATE = (1980, 1, 1, 0, 0, 0), (2107, 12, 31, 23, 59, 59)
_MEDIA_TYPES = {"zip": "application/zip", "tar": "application/x-tar"}
MEDIA_TYPES = tuple(_MEDIA_TYPES.values())
# The member of a zip with the list of unreadable files.
_PROBLEMS = "uploader-problems.txt"


class ManyContents(Contents, Protocol):
    """Opens the contents of files, and reads several small contents at once."""

    async def read_contents(self, files: Sequence[File]) -> list[bytes | UploaderError]:
        """Read several contents completely; together they must fit into memory. An unreadable content becomes its error."""


@dataclass(slots=True)
class _Member:
    """A file with its name in the archive, and its first bytes or the error."""

    file: File
    name: str = ""
    content: bytes = b""
    # The rest of a large file.
    blob: OpenBlob | None = None
    problem: UploaderError | None = None

    @property
    def moment(self) -> datetime:
        return (self.file.modified_at or self.file.created_at).astimezone(UTC)


def archive(
    files: AsyncIterator[File], names: Sequence[str], kind: str, contents: ManyContents, *, tells_ids: bool
) -> StreamingResponse:
    """Build the archive. `names` are the requested names and prefixes; they give the title and the common folder.
    `tells_ids` adds the file's id and SHA-256 to each member of a tar. GNU tar warns about unknown records, so set
    `tells_ids` only for requests by ids."""
    above = common_folder(names)
    title = PurePosixPath(names[0] if len(names) == 1 else above).name or "files"
    make = _zip if kind == "zip" else partial(_tar, tells_ids=tells_ids)
    headers = {
        "Content-Disposition": disposition(f"{title}.{kind}"),
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox",
        "Cache-Control": "private, no-store",
    }
    return _Archive(make(files, _Names(above), contents), headers=headers, media_type=_MEDIA_TYPES[kind])


class _Archive(StreamingResponse):
    """Closes the file being read, even if sending fails."""

    body_iterator: AsyncGenerator[bytes]

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.body_iterator):
            await super().stream_response(send)


class _Names:
    """The names of the members, without their common folder. Names of a user's files are unique, so a name or a file that
    comes twice was replaced or renamed during the transfer; the first one stays."""

    def __init__(self, above: str) -> None:
        self._above = above
        self._file_ids: set[str] = set()
        # By name: True if the file lies in the common folder, None if the name got a number.
        self._given: dict[str, bool | None] = {}

    def are_given(self, file: File) -> bool:
        is_below = file.name.startswith(self._above)
        return file.id in self._file_ids or self._given.get(file.name.removeprefix(self._above)) is is_below

    def give(self, members: Sequence[_Member]) -> list[_Member]:
        """Return the members with their names, without those already in the archive."""
        named = []
        for member in members:
            if self.are_given(member.file):
                continue
            own = member.file.name.removeprefix(self._above)
            member.name = self.free(own)
            self._given[member.name] = member.file.name.startswith(self._above) if member.name == own else None
            self._file_ids.add(member.file.id)
            named.append(member)
        return named

    def free(self, name: str) -> str:
        """Return an unused name. Only a file that has left the common folder may need a number."""
        given, number = name, 2
        while given in self._given:
            path = PurePosixPath(name)
            given, number = str(path.with_name(f"{path.stem} ({number}){path.suffix}")), number + 1
        return given


async def _groups(files: AsyncIterator[File], names: _Names, contents: ManyContents) -> AsyncIterator[list[_Member]]:
    """Yield the members in order: large files alone with their first bytes, small files in groups with all their bytes.
    Skips files that were deleted meanwhile."""
    small: list[_Member] = []
    length = 0
    async for file in files:
        is_large = file.size > _PIECE_BYTES
        if small and (is_large or len(small) == _GROUP_FILES or length + file.size > _PIECE_BYTES):
            yield names.give(await _read_together(small, contents))
            small, length = [], 0
        member = _Member(file)
        if not is_large:
            small.append(member)
            length += file.size
        elif not names.are_given(file) and await _begin(member, contents):
            yield names.give([member])
    if small:
        yield names.give(await _read_together(small, contents))


async def _read_together(members: Sequence[_Member], contents: ManyContents) -> list[_Member]:
    charge(Kind.REQUESTS, len(members) * _MEMBER_SECONDS)
    found = await contents.read_contents([member.file for member in members])
    for member, content in zip(members, found, strict=True):
        if isinstance(content, UploaderError):
            member.problem = content
        else:
            member.content = content
    return [member for member in members if not isinstance(member.problem, FileNotFound)]


async def _begin(member: _Member, contents: ManyContents) -> bool:
    """Open a large file and read its first bytes. Return False if it was deleted. Raises StorageAway."""
    charge(Kind.REQUESTS, _MEMBER_SECONDS)
    file = member.file
    try:
        member.blob, member.content = await contents.read_first(file, await contents.open(file), _PIECE_BYTES, 0)
    except FileNotFound:
        return False
    except StorageAway:
        raise
    except UploaderError as error:
        member.problem = error.with_traceback(None)
    return True


async def _pieces(member: _Member, contents: ManyContents) -> AsyncGenerator[bytes]:
    """Yield the bytes of a member, then close it. Raises EOFError and storage errors if bytes are missing."""
    try:
        piece, done = member.content, 0
        while True:
            done += len(piece)
            if piece:
                yield piece
            if done == member.file.size or member.blob is None:
                return
            async with contents.noting(member.file):
                piece = await member.blob.read(min(_PIECE_BYTES, member.file.size - done), done)
            if not piece:
                raise EOFError("a blob is shorter than its row says")
    finally:
        if member.blob is not None:
            await uninterrupted(member.blob.close())


async def _tar(
    files: AsyncIterator[File], names: _Names, contents: ManyContents, *, tells_ids: bool
) -> AsyncGenerator[bytes]:
    async for group in _groups(files, names, contents):
        if len(group) == 1 and group[0].blob is not None:
            head = _tar_head(group[0], tells_ids)
            async with aclosing(_pieces(group[0], contents)) as pieces:
                async for piece in pieces:
                    yield head + piece
                    head = b""
            yield padding(group[0].file.size)
        elif group:
            yield b"".join(
                part
                for member in group
                for part in (_tar_head(member, tells_ids), member.content, padding(len(member.content)))
            )
    yield END


def _tar_head(member: _Member, tells_ids: bool) -> bytes:
    told = {FILE_ID: member.file.id, SHA256: member.file.sha256} if tells_ids else {}
    if member.problem is not None:
        told[PROBLEM] = member.problem.code
    size = 0 if member.problem is not None else member.file.size
    modified_ns = (member.moment - _EPOCH) // timedelta(microseconds=1) * 1000
    return head_of_member(member.name, size, modified_ns, told)


class _Sink(io.RawIOBase):
    """Collects written bytes until they are sent. Not seekable, so zipfile writes sizes and checksums after each file."""

    def __init__(self) -> None:
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, piece: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        self._written += piece
        return len(piece)

    def take(self) -> bytes:
        taken, self._written = bytes(self._written), bytearray()
        return taken


async def _zip(files: AsyncIterator[File], names: _Names, contents: ManyContents) -> AsyncGenerator[bytes]:
    sink, problems = _Sink(), list[str]()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as written:
        async for group in _groups(files, names, contents):
            problems += [f"{member.name}: {member.problem}\n" for member in group if member.problem is not None]
            if len(group) == 1 and group[0].blob is not None:
                with written.open(_zip_info(group[0]), "w") as opened:
                    async with aclosing(_pieces(group[0], contents)) as pieces:
                        async for piece in pieces:
                            await in_thread(opened.write, piece)  # computes the CRC-32
                            yield sink.take()
            else:
                await in_thread(_write_all, written, group)
            yield sink.take()
        if problems:
            written.writestr(names.free(_PROBLEMS), "".join(problems))
    yield sink.take()


def _write_all(written: zipfile.ZipFile, group: Sequence[_Member]) -> None:
    for member in group:
        if member.problem is None:
            written.writestr(_zip_info(member), member.content)


def _zip_info(member: _Member) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(member.name, min(max(member.moment.timetuple()[:6], _FIRST_DATE), _LAST_DATE))
    info.external_attr = (_REGULAR_FILE | _MODE) << 16
    info.file_size = member.file.size  # selects the zip64 format for a large file
    return info
