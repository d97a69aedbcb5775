"""Bytes on their way to an S3-compatible server and back, a piece at a time."""

import io
from collections.abc import Iterator
from typing import Protocol

from uploader.storage.base import Body
from uploader.storage.s3.failures import away, translated


class BodyReader:
    """A body as the file that the SDK wants: read from its start as often as it has to be, and never copied."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._position = 0
        self._pieces: Iterator[memoryview] | None = None
        self._piece = memoryview(b"")

    def read(self, size: int = -1) -> memoryview:
        """The next bytes, as they lie in memory, at most so many, and at most those of one piece; none at the end."""
        if self._pieces is None:
            self._pieces, self._piece = iter(self._body.pieces()), memoryview(b"")
            self._skip(self._position)
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                return memoryview(b"")
            self._piece = piece
        end = len(self._piece) if size < 0 else size
        found, self._piece = self._piece[:end], self._piece[end:]
        self._position += len(found)
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._body.length}[whence]
        self._position = min(max(start + offset, 0), self._body.length)
        self._pieces = None
        return self._position

    def tell(self) -> int:
        return self._position

    def _skip(self, left: int) -> None:
        assert self._pieces is not None
        while left > len(self._piece):
            left -= len(self._piece)
            self._piece = next(self._pieces)
        self._piece = self._piece[left:]


class Streaming(Protocol):
    """The body of an answer, as the SDK has it."""

    def read(self, amt: int | None = None) -> bytes: ...

    def close(self) -> None: ...


class ObjectReader:
    """A range of an object, which comes as it is read. It holds a connection until `close`."""

    def __init__(self, place: str, body: Streaming | None, length: int) -> None:
        """`body`: None if there is nothing to read."""
        self._place = place
        self._body = body
        self._left = length

    def read(self, size: int) -> bytes:
        """The next bytes: as many as asked for, but at the end, where there are none. Raises StorageAway, also where the
        server ends too early."""
        wanted = min(size, self._left)
        if self._body is None or not wanted:
            return b""
        with translated(self._place, "GetObject"):
            content = self._body.read(wanted)
        if len(content) != wanted:
            raise away(self._place, f"GetObject: ended {self._left - len(content)} bytes too early")
        self._left -= wanted
        return content

    def close(self) -> None:
        """Give the connection up; repeatable."""
        if self._body is not None:
            self._body.close()
