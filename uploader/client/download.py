"""The download of a file: from where an earlier run stopped, compared with its SHA-256, and only then under its name; and
where it goes below a directory here.

Refuses to believe the server: no name that it gives leads out of the directory that was chosen here.
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
# It becomes part of the name of the partial file.
_SHA256 = re.compile("[0-9a-f]{64}")


def placed(root: Path, path: str) -> Path:
    """Return the path below the root, whose directories are there now. Raises LeadsOutside, OSError."""
    folder, _, last = path.rpartition("/")
    return made_below(root, folder) / last


def made_below(root: Path, folder: str) -> Path:
    """Return a directory below the root, or the root itself, which is there now. Raises LeadsOutside, OSError.

    A symbolic link on the way may lead anywhere, so none is followed; the root itself was chosen by the caller.
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
    """Return the name under which a file is written beside its target, by its content. Raises BadAnswer."""
    if not _SHA256.fullmatch(file.sha256):
        raise errors.BadAnswer(f"{file.name}: the server names a SHA-256 that is none")
    return f".uploader-{file.sha256[:32]}.part"


class Sink:
    """The target of a download: takes its bytes in order and hashes them. Another may read them while they come."""

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
            left = left[self._opened.write(left) :]  # a raw file takes what it can
        self._count(block)

    def _count(self, block: bytes) -> None:
        self._sha256.update(block)
        self.length += len(block)

    def clear(self) -> None:
        """Begin anew. Raises Unwritable where that can't be."""
        if self.length:
            raise errors.Unwritable("the server begins anew, and what was written can't be taken back")


class Partial(Sink):
    """An open partial file, locked against other downloads of the same content into the same directory."""

    def __init__(self, opened: BinaryIO, path: Path) -> None:
        super().__init__(opened)
        self._path = path

    def take_over(self, size: int) -> None:
        """Count what an earlier run left; drop it if it can't be the beginning of `size` bytes."""
        if os.fstat(self._opened.fileno()).st_size > size:
            self.clear()
        self._opened.seek(0)
        while block := self._opened.read(_READ_BYTES):
            self._count(block)

    def append(self, block: bytes) -> None:
        super().append(block)
        self._opened.flush()  # what a run that is killed has received is there for the next one

    def clear(self) -> None:
        self._opened.seek(0)
        self._opened.truncate()
        self._sha256 = hashlib.sha256()
        self.length = 0

    def become(self, target: Path, modified_at: datetime | None) -> None:
        """Give the whole file its own name, also after a power cut, where the system can promise that."""
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
    """Yield the partial file for `target`, named by the content: what is in it is this content, or the beginning of it.

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
                path.unlink()  # the beginning of nothing


def _is_at(opened: BinaryIO, path: Path) -> bool:
    """Return whether the path still leads to what was opened: another run may have renamed it before it was locked."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(opened.fileno()), path.stat())
    return False


def set_time(file: Path | int, modified_at: datetime | None) -> None:
    """Set the time of modification to that of the file where it came from, if it was told, and if the disk has such
    times."""
    if modified_at is not None:
        nanoseconds = plan.modified_ns_of(modified_at)
        with suppress(OSError, OverflowError):
            set_modified(file, nanoseconds)


def sha256_of(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def is_there(file: File, target: Path, *, overwrite: bool) -> bool:
    """Tell whether a file is at its target; then its time is the file's. Raises TargetExists."""
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
        """Fetch to a path; return whether it was fetched, or present. Raises ClientError. What has arrived stays for
        the next run."""
        try:
            if await asyncio.to_thread(is_there, self.file, target, overwrite=overwrite):
                return "present"
            with partial_of(self.file, target) as partial:
                await asyncio.to_thread(partial.take_over, self.file.size)
                # A power cut may leave blocks that were never written: then once more, from the start.
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
        """Into what was opened elsewhere, as it comes. Raises ClientError; only at the end if the bytes were wrong."""
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
                if sink.length > failed_at:  # it moved since: patience begins anew
                    retrying, failed_at = self.api.retrying(), sink.length
                await retrying.pause(error)

    async def _read_on(self, sink: Sink) -> None:
        """Append what comes until the answer ends or breaks off."""
        headers = {}
        if sink.length:
            headers = {"Range": f"bytes={sink.length}-", "If-Range": f'"{self.file.sha256}"'}
        async with self.api.content_once(self.file.id, headers) as response:
            if response.status_code != 206:
                await asyncio.to_thread(sink.clear)  # all of it comes
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
