"""`/me/archive`: files as one zip or tar, made while it is sent. Nothing is compressed: most of what people keep is."""

import io
import tarfile
import zipfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Protocol

from starlette.responses import StreamingResponse

from uploader.domain.names import common_folder
from uploader.domain.upload import File
from uploader.http.native.download import disposition
from uploader.storage.base import OpenBlob
from uploader.tasks import in_thread, uninterrupted

_PIECE_BYTES = 256 << 10
_MODE = 0o644
_REGULAR_FILE = 0o100000
# What the format has room for (APPNOTE.TXT, 4.4.6).
_FIRST_YEAR, _LAST_YEAR = 1980, 2107
_MEDIA_TYPES = {"zip": "application/zip", "tar": "application/x-tar"}


class Opener(Protocol):
    async def open(self, file: File) -> OpenBlob:
        """Return the content of a file, to read; the caller closes it."""

    def noting(self, file: File) -> AbstractAsyncContextManager[None]:
        """Note, within, what becomes of it while it is read."""


def archive(files: AsyncIterator[File], names: Sequence[str], kind: str, opener: Opener) -> StreamingResponse:
    """`names` are those asked for, and the prefixes. A file that can't be read, or was altered, ends the archive before its
    end, which every reader notices."""
    above = common_folder(names)
    title = PurePosixPath(names[0] if len(names) == 1 else above).name or "files"
    make = _zip if kind == "zip" else _tar
    pieces = make(_named(files, above), opener)
    headers = {
        "Content-Disposition": disposition(f"{title}.{kind}"),
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox",
        "Cache-Control": "private, no-store",
    }
    return StreamingResponse(pieces, headers=headers, media_type=_MEDIA_TYPES[kind])


async def _named(files: AsyncIterator[File], above: str) -> AsyncIterator[tuple[str, File]]:
    """Name each file without what all have in common. Of equal names the later are numbered."""
    numbers: dict[str, int] = {}  # the last one that each name was given
    async for file in files:
        name = own = file.name.removeprefix(above)
        path = PurePosixPath(own)
        while name in numbers:
            numbers[own] += 1
            name = str(path.with_name(f"{path.stem} ({numbers[own]}){path.suffix}"))
        numbers[name] = 1
        yield name, file


async def _contents(file: File, opener: Opener) -> AsyncIterator[bytes]:
    blob = await opener.open(file)
    try:
        done = 0
        while done < file.size:
            async with opener.noting(file):
                piece = await blob.read(min(_PIECE_BYTES, file.size - done), done)
            if not piece:
                raise EOFError("a blob is shorter than its row says")
            done += len(piece)
            yield piece
    finally:
        await uninterrupted(blob.close())


def _moment_of(file: File) -> datetime:
    return (file.modified_at or file.created_at).astimezone(UTC)


async def _tar(files: AsyncIterator[tuple[str, File]], opener: Opener) -> AsyncIterator[bytes]:
    async for name, file in files:
        header = tarfile.TarInfo(name)
        header.size, header.mode, header.mtime = file.size, _MODE, int(_moment_of(file).timestamp())
        yield header.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        async for piece in _contents(file, opener):
            yield piece
        yield bytes(-file.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


class _Sink(io.RawIOBase):
    """Bytes that were written and not yet sent. It can't seek, so sizes and checksums follow the bytes of each file."""

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


async def _zip(files: AsyncIterator[tuple[str, File]], opener: Opener) -> AsyncIterator[bytes]:
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as written:
        async for name, file in files:
            moment = _moment_of(file)
            year = min(max(moment.year, _FIRST_YEAR), _LAST_YEAR)
            member = zipfile.ZipInfo(name, (year, *moment.timetuple()[1:6]))
            member.external_attr = (_REGULAR_FILE | _MODE) << 16
            member.file_size = file.size  # so that a large one is written in the form for large ones
            with written.open(member, "w") as opened:
                async for piece in _contents(file, opener):
                    await in_thread(opened.write, piece)  # for the checksum
                    yield sink.take()
            yield sink.take()
    yield sink.take()
