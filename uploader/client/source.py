"""The source of an upload: a path, bytes, or a file object. Its digests and proofs. Notices changes meanwhile."""

import asyncio
import base64
import hashlib
import io
import os
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from uploader.client.errors import FileChanged, Unreadable
from uploader.client.model import Challenge, Digests
from uploader.client.plan import sample_ranges
from uploader.client.system import open_to_read, read_at

Uploadable = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO

# Read by one call in a thread: long enough to outweigh the call, short enough that a cancelled hash ends soon.
_BLOCK_BYTES = 8 << 20


class Source(ABC):
    """Bytes of a known size, readable at any offset by several threads at once."""

    name: str | None
    size: int
    modified_ns: int | None = None

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly these bytes. Raises FileChanged if they are gone, Unreadable."""
        pieces = []
        while length:
            piece = self._read_some(offset, length)
            pieces.append(piece)
            offset, length = offset + len(piece), length - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @abstractmethod
    def _read_some(self, offset: int, length: int) -> bytes:
        """Read at least one, and at most `length`, of these bytes. Raises as `read`."""

    @abstractmethod
    def check(self) -> None:
        """Raises FileChanged if the bytes may have changed since the start."""

    @abstractmethod
    def close(self) -> None:
        """Close what this source opened."""


def open_source(uploadable: Uploadable) -> Source:
    """Open the source of an upload. Raises Unreadable; TypeError for an unknown type."""
    if isinstance(uploadable, str | os.PathLike):
        return _PathSource(Path(uploadable))
    if isinstance(uploadable, bytes | bytearray | memoryview):
        return _ObjectSource(io.BytesIO(uploadable))  # copies changeable memory; `bytes` are not copied
    if hasattr(uploadable, "read") and hasattr(uploadable, "seek"):
        return _ObjectSource(uploadable)
    raise TypeError(f"{type(uploadable).__name__} is neither a path nor bytes nor a binary file object")


class _PathSource(Source):
    def __init__(self, path: Path) -> None:
        self.name = path.name or path.resolve().name
        self._path = path
        try:
            self._descriptor = open_to_read(path)
        except OSError as error:
            raise Unreadable(f"{path}: {error.strerror}") from error
        self._seen = os.fstat(self._descriptor)
        self.size = self._seen.st_size
        self.modified_ns = self._seen.st_mtime_ns
        if not stat.S_ISREG(self._seen.st_mode):
            self.close()
            raise Unreadable(f"{path} is not a regular file")
        if not self.size and self._has_bytes():
            self.close()
            raise Unreadable(f"{path} has bytes and no size, as in /proc: put standard input (-) in its place")

    def _has_bytes(self) -> bool:
        try:
            return bool(read_at(self._descriptor, 1, 0))
        except OSError:
            return False

    def _read_some(self, offset: int, length: int) -> bytes:
        try:
            piece = read_at(self._descriptor, length, offset)
        except OSError as error:
            raise Unreadable(f"{self._path}: {error.strerror}") from error
        if not piece:
            raise self._changed()
        return piece

    def check(self) -> None:
        now = os.fstat(self._descriptor)
        if (now.st_size, now.st_mtime_ns) != (self._seen.st_size, self._seen.st_mtime_ns):
            raise self._changed()

    def _changed(self) -> FileChanged:
        return FileChanged(f"{self._path} changed while it was uploaded; put it again")

    def close(self) -> None:
        os.close(self._descriptor)


class _ObjectSource(Source):
    """A file object, from the present position to the end. The object stays open, at an undefined position."""

    def __init__(self, opened: BinaryIO) -> None:
        name = getattr(opened, "name", None)
        self.name = Path(name).name if isinstance(name, str) else None
        self._opened = opened
        self._lock = threading.Lock()
        try:
            self._start = opened.tell()
            self.size = opened.seek(0, os.SEEK_END) - self._start
        except OSError as error:
            raise Unreadable("the file object can't seek: its size has to be known before it is sent") from error

    def _read_some(self, offset: int, length: int) -> bytes:
        with self._lock:
            self._opened.seek(self._start + offset)
            piece = self._opened.read(length)
        if not isinstance(piece, bytes):
            raise TypeError("the file object is not binary: open it with 'rb'")
        if not piece:
            raise FileChanged("the file object became shorter while it was uploaded")
        return piece

    def check(self) -> None:
        with self._lock:
            if self._opened.seek(0, os.SEEK_END) - self._start != self.size:
                raise FileChanged("the file object changed its size while it was uploaded")

    def close(self) -> None:
        """Leave the file open: its caller closes it."""


async def digests_of(source: Source, on_hashed: Callable[[int], None]) -> Digests:
    """Hash a source; call `on_hashed` with the length of each block. Raises FileChanged, Unreadable."""
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()

    def hash_block(offset: int) -> int:
        block = source.read(offset, min(_BLOCK_BYTES, source.size - offset))
        md5.update(block)
        sha256.update(block)
        return len(block)

    offset = 0
    while offset < source.size:
        hashed = await asyncio.to_thread(hash_block, offset)
        offset += hashed
        on_hashed(hashed)
    source.check()
    return Digests(md5.hexdigest(), sha256.hexdigest())


async def sample_of(source: Source) -> bytes:
    """Return the digest of a source's sample. Takes milliseconds, for any size."""

    def read() -> bytes:
        sampled = hashlib.sha256()
        for offset, length in sample_ranges(source.size):
            sampled.update(source.read(offset, length))
        return sampled.digest()

    return await asyncio.to_thread(read)


async def proof_of(source: Source, digests: Digests, challenge: Challenge) -> str:
    """Return the answer to a challenge, in hex. Raises FileChanged, Unreadable."""
    from uploader.domain import digest

    asked = digest.Challenge(
        id=challenge.id,
        nonce=base64.b64decode(challenge.nonce),
        user_id=challenge.user_id,
        md5=digests.md5,
        sha256=digests.sha256,
        size=source.size,
        ranges=challenge.ranges,
        expires_at=challenge.expires_at,
    )

    def compute() -> str:
        return digest.proof_of(asked, (source.read(offset, length) for offset, length in asked.ranges)).hex()

    return await asyncio.to_thread(compute)
