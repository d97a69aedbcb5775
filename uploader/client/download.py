"""The download of a file: resumed where an earlier run stopped, compared with its SHA-256, and only then renamed. Also
the places of downloads below a directory.

The server is not trusted: no name from the server leads out of the chosen directory.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from uploader.client import errors, plan
from uploader.client.api import Api
from uploader.client.model import File, How
from uploader.client.system import leads_elsewhere, open_alone, open_directory, set_modified
from uploader.client.transfer import Meter

_READ_BYTES = 1 << 20
_BLOCK_BYTES = 256 << 10
# The digest becomes part of the name of the partial file.
_SHA256 = re.compile("[0-9a-f]{64}")


def placed(root: Path, path: str) -> Path:
    """Return the path below `root`, and make its directories. Raises LeadsOutside, OSError."""
    folder, _, last = path.rpartition("/")
    return made_below(root, folder) / last


def made_below(root: Path, folder: str) -> Path:
    """Make a directory below `root`, or `root` itself, and return it. Raises LeadsOutside, OSError.

    Symbolic links on the way are not followed, because they may lead anywhere. The root was chosen by the caller.
    """
    root.mkdir(parents=True, exist_ok=True)
    directory = root
    for name in folder.split("/") if folder else ():
        directory /= name
        if leads_elsewhere(directory):
            raise errors.LeadsOutside(f"{directory} is a symbolic link: what comes into {folder} would be elsewhere")
        directory.mkdir(exist_ok=True)
    return directory


def partial_name(file: File) -> str:
    """Return the name of the partial file beside the target, by the file's content. Raises BadAnswer."""
    if not _SHA256.fullmatch(file.sha256):
        raise errors.BadAnswer(f"{file.name}: the server names a SHA-256 that is none")
    return f".uploader-{file.sha256[:32]}.part"


class Sink:
    """The target of a download: takes bytes in order, and hashes them. Other programs may read it meanwhile."""

    def __init__(self, opened: BinaryIO) -> None:
        self._opened = opened
        self._sha256 = hashlib.sha256()
        self.length = 0

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def append(self, block: bytes) -> None:
        left = memoryview(block)
        while left:
            left = left[self._opened.write(left) :]  # a raw file may take fewer bytes
        self._count(block)

    def _count(self, block: bytes) -> None:
        self._sha256.update(block)
        self.length += len(block)

    def clear(self) -> None:
        """Begin anew. Raises Unwritable, unless nothing was written."""
        if self.length:
            raise errors.Unwritable("the server begins anew, and what was written can't be taken back")


class Partial(Sink):
    """An open partial file, locked against other downloads of the same content into the same directory."""

    def __init__(self, opened: BinaryIO, path: Path) -> None:
        super().__init__(opened)
        self._path = path

    def take_over(self, size: int) -> None:
        """Hash the bytes of an earlier run. Drop them if they are more than `size` bytes."""
        if os.fstat(self._opened.fileno()).st_size > size:
            self.clear()
        self._opened.seek(0)
        while block := self._opened.read(_READ_BYTES):
            self._count(block)

    def append(self, block: bytes) -> None:
        super().append(block)
        self._opened.flush()  # if this run is killed, the next run has these bytes

    def clear(self) -> None:
        self._opened.seek(0)
        self._opened.truncate()
        self._sha256 = hashlib.sha256()
        self.length = 0

    def become(self, target: Path, modified_at: datetime | None) -> None:
        """Rename the whole file to the target, durably if the system can do so."""
        set_time(self._opened.fileno(), modified_at)
        os.fsync(self._opened.fileno())
        self._path.replace(target)
        if (directory := open_directory(target.parent)) is not None:
            try:
                os.fsync(directory)
            finally:
                os.close(directory)


@contextmanager
def partial_of(file: File, target: Path) -> Iterator[Partial]:
    """Yield the partial file for `target`. The name tells the content: the file holds the beginning of that content.

    Raises TargetBusy, OSError.
    """
    path = target.with_name(partial_name(file))
    try:
        descriptor = open_alone(path)
    except BlockingIOError as error:
        raise errors.TargetBusy(f"another download of {file.name} into {target.parent} is running") from error
    with open(descriptor, "r+b") as opened:  # noqa: PTH123 (a descriptor, not a path)
        if not _is_at(opened, path):
            raise errors.TargetBusy(f"another download of {file.name} into {target.parent} has just ended")
        try:
            yield Partial(opened, path)
        finally:
            if os.fstat(opened.fileno()).st_size == 0 and _is_at(opened, path):
                path.unlink()  # nothing to resume from


def _is_at(opened: BinaryIO, path: Path) -> bool:
    """Return whether the path still leads to the opened file: another run may have renamed the file before the lock."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(opened.fileno()), path.stat())
    return False


def set_time(file: Path | int, modified_at: datetime | None) -> None:
    """Set the time of modification that the server knows, if any, and if the disk can hold it."""
    if modified_at is not None:
        nanoseconds = plan.modified_ns_of(modified_at)
        with suppress(OSError, OverflowError):
            set_modified(file, nanoseconds)


def sha256_of(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def is_there(file: File, target: Path, *, overwrite: bool) -> bool:
    """Return whether the target has this content already; then set its time. Raises TargetExists."""
    if not (target.exists() or target.is_symlink()):
        return False
    same_size = target.is_file() and target.stat().st_size == file.size
    if same_size and sha256_of(target) == file.sha256:
        set_time(target, file.modified_at)
        return True
    if overwrite:
        return False
    raise errors.TargetExists(f"{target} is there already, with other content")


def unwritable(error: OSError, path: str | os.PathLike[str]) -> errors.Unwritable:
    return errors.Unwritable(f"{error.filename or path}: {error.strerror or error}")


@dataclass(frozen=True, slots=True)
class Downloading:
    api: Api
    file: File
    meter: Meter
    gate: asyncio.Event  # closed while the transfer is paused

    async def run(self, target: Path, *, overwrite: bool) -> How:
        """Download to a path. Return `fetched` or `present`. Raises ClientError; received bytes stay for the next run."""
        try:
            if await asyncio.to_thread(is_there, self.file, target, overwrite=overwrite):
                return "present"
            with partial_of(self.file, target) as partial:
                await asyncio.to_thread(partial.take_over, self.file.size)
                # After a power cut, blocks may lack their bytes: then download once more, from the start.
                for _ in range(2 if partial.length else 1):
                    await self._fetch(partial)
                    if partial.sha256 == self.file.sha256:
                        await asyncio.to_thread(partial.become, target, self.file.modified_at)
                        return "fetched"
                    await asyncio.to_thread(partial.clear)
                raise self._differs()
        except OSError as error:
            raise unwritable(error, target) from error

    async def write(self, opened: BinaryIO) -> None:
        """Write arriving bytes into an open file. Raises ClientError; wrong bytes are noticed at the end only."""
        stream = Sink(opened)
        try:
            await self._fetch(stream)
        except OSError as error:
            raise errors.Unwritable(f"{self.file.name} can't be written: {error.strerror or error}") from error
        if stream.sha256 != self.file.sha256:
            raise self._differs()

    def _differs(self) -> errors.ContentDiffers:
        return errors.ContentDiffers(f"{self.file.name}: the bytes received have another SHA-256")

    async def _fetch(self, sink: Sink) -> None:
        self.meter.begin_anew()
        self.meter.received(sink.length)
        self.meter.enter("downloading")
        retrying, failed_at = self.api.retrying(), sink.length
        while sink.length < self.file.size:
            try:
                await self._read_on(sink)
                if sink.length < self.file.size:
                    raise errors.Unreachable("the answer ended early")
            except errors.ClientError as error:
                if sink.length > failed_at:  # bytes arrived meanwhile: patience begins anew
                    retrying, failed_at = self.api.retrying(), sink.length
                await retrying.pause(error)

    async def _read_on(self, sink: Sink) -> None:
        """Append bytes until the answer ends or breaks off."""
        headers = {}
        if sink.length:
            headers = {"Range": f"bytes={sink.length}-", "If-Range": f'"{self.file.sha256}"'}
        async with self.api.content_once(self.file.id, headers) as response:
            if response.status_code != 206:
                await asyncio.to_thread(sink.clear)  # the answer begins with the first byte
            elif not response.headers.get("content-range", "").startswith(f"bytes {sink.length}-"):
                raise errors.BadAnswer("the server sent another range than it was asked for")
            async for block in self.api.blocks(response, _BLOCK_BYTES):
                if sink.length + len(block) > self.file.size:
                    raise errors.BadAnswer("the server sent more bytes than the file has")
                await self.gate.wait()
                await asyncio.to_thread(sink.append, block)
                self.meter.moving(len(block))
                self.meter.landed(len(block))
                self.meter.received(sink.length)
