"""The partial file of a download: what has arrived, its digest, and the step that makes it the target. Blocking."""

import fcntl
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from uploader.client.errors import TargetBusy, Unwritable
from uploader.client.model import File
from uploader.client.transfers import plan

_BLOCK_BYTES = 1 << 20


class Sink(ABC):
    """Where the bytes of a download go, in order, and what they have come to."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self.length = 0

    @abstractmethod
    def append(self, block: bytes) -> None: ...

    @abstractmethod
    def clear(self) -> None:
        """Begin anew. Raises Unwritable where that can't be."""

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def _count(self, block: bytes) -> None:
        self._sha256.update(block)
        self.length += len(block)


class Stream(Sink):
    """What another reads while it comes, such as standard output."""

    def __init__(self, opened: BinaryIO) -> None:
        super().__init__()
        self._opened = opened

    def append(self, block: bytes) -> None:
        left = memoryview(block)
        while left:
            left = left[self._opened.write(left) :]  # a raw file takes what it can
        self._count(block)

    def clear(self) -> None:
        if self.length:
            raise Unwritable("the server begins anew, and what was written can't be taken back")


class Partial(Sink):
    """An open partial file, locked against other downloads of the same content into the same directory."""

    def __init__(self, opened: BinaryIO, path: Path) -> None:
        super().__init__()
        self._opened = opened
        self._path = path

    def take_over(self, size: int) -> None:
        """Count what an earlier run left; drop it if it can't be the beginning of `size` bytes."""
        if os.fstat(self._opened.fileno()).st_size > size:
            self.clear()
        self._opened.seek(0)
        while block := self._opened.read(_BLOCK_BYTES):
            self._count(block)

    def append(self, block: bytes) -> None:
        self._opened.write(block)
        self._opened.flush()  # what a run that is killed has received is there for the next one
        self._count(block)

    def clear(self) -> None:
        self._opened.seek(0)
        self._opened.truncate()
        self._sha256 = hashlib.sha256()
        self.length = 0

    def become(self, target: Path, modified_at: datetime | None) -> None:
        """The whole file under its own name, also after a power cut."""
        set_time(self._opened.fileno(), modified_at)
        os.fsync(self._opened.fileno())
        self._path.replace(target)
        directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextmanager
def partial_of(file: File, target: Path) -> Iterator[Partial]:
    """The partial file for `target`, named by the content: what is in it is this content, or the beginning of it.

    Raises TargetBusy, OSError.
    """
    path = target.with_name(f".uploader-{file.sha256[:32]}.part")
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o666), "r+b") as opened:  # noqa: PTH123 (a descriptor, not a path)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TargetBusy(f"another download of {file.name} into {target.parent} is running") from error
        if not _is_at(opened, path):
            raise TargetBusy(f"another download of {file.name} into {target.parent} has just ended")
        try:
            yield Partial(opened, path)
        finally:
            if os.fstat(opened.fileno()).st_size == 0 and _is_at(opened, path):
                path.unlink()  # the beginning of nothing


def _is_at(opened: BinaryIO, path: Path) -> bool:
    """Whether the path still leads to what was opened: another run may have renamed it before it was locked."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(opened.fileno()), path.stat())
    return False


def set_time(file: Path | int, modified_at: datetime | None) -> None:
    """The time of modification is that of the file where it came from, if it was told, and if the disk has such times."""
    if modified_at is not None:
        nanoseconds = plan.modified_ns_of(modified_at)
        with suppress(OSError, OverflowError):
            os.utime(file, ns=(nanoseconds, nanoseconds), follow_symlinks=isinstance(file, int))


def sha256_of(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
