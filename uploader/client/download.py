"""Downloads of files: from where an earlier run stopped, compared with their SHA-256, and only then under their names; and
where each goes below a directory here.

Refuses to believe the server: no name that it gives leads out of the directory that was chosen here.
"""

import asyncio
import fcntl
import functools
import hashlib
import os
import re
import stat
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from uploader.client import errors, plan
from uploader.client.api import Api
from uploader.client.files import LocalFile, ManyFiles, Outcome, There, Wanted, ambiguous
from uploader.client.model import File, How
from uploader.client.plan import checked_name, checked_path, folders_of
from uploader.client.transfer import Meter

_READ_BYTES = 1 << 20
_BLOCK_BYTES = 256 << 10
# It becomes part of the name of the partial file.
_SHA256 = re.compile("[0-9a-f]{64}")

Refused = tuple[Wanted, errors.ClientError]


def sorted_out(wanted: Iterable[Wanted]) -> tuple[list[Wanted], list[Refused]]:
    """Return those that can go where they are to go, each once; and the others, one for each path, and why.

    Refused are names that are no relative paths, paths that several files are to become, and files where others need a
    folder: nothing decides in silence which of them it is.
    """
    by_path: dict[str, dict[str, Wanted]] = defaultdict(dict)
    refused: list[Refused] = []
    for each in wanted:
        try:
            checked_name(each.file.name)
            checked = replace(each, path=checked_path(each.path))
        except errors.InvalidName as error:
            refused.append((each, error))
        else:
            by_path[checked.path][each.file.id] = checked
    folders = {folder for path in by_path for folder in folders_of(path)}
    kept = []
    for path, several in by_path.items():
        first = next(iter(several.values()))
        if len(several) > 1:
            refused.append((first, ambiguous(path, [each.file for each in several.values()])))
        elif path in folders:
            refused.append(
                (first, errors.AmbiguousName(f"{path!r} is a file and a folder; get {first.file.id} by its id"))
            )
        else:
            kept.append(first)
    return kept, refused


def placed(root: Path, path: str) -> Path:
    """Return the path below the root, whose directories are there now. Raises LeadsOutside, OSError.

    A symbolic link on the way may lead anywhere, so none is followed; the root itself was chosen by the caller.
    """
    root.mkdir(parents=True, exist_ok=True)
    directory = root
    *folders, last = path.split("/")
    for folder in folders:
        directory /= folder
        if directory.is_symlink():
            raise errors.LeadsOutside(f"{directory} is a symbolic link: {path} would lead elsewhere")
        directory.mkdir(exist_ok=True)
    return directory / last


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
        """Give the whole file its own name, also after a power cut."""
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
    """Yield the partial file for `target`, named by the content: what is in it is this content, or the beginning of it.

    Raises TargetBusy, OSError.
    """
    path = target.with_name(f".uploader-{file.sha256[:32]}.part")
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o666), "r+b") as opened:  # noqa: PTH123 (a descriptor, not a path)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise errors.TargetBusy(f"another download of {file.name} into {target.parent} is running") from error
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
            os.utime(file, ns=(nanoseconds, nanoseconds), follow_symlinks=isinstance(file, int))


def sha256_of(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class Downloading:
    api: Api
    file: File
    meter: Meter
    gate: asyncio.Event  # closed while the transfer is paused

    async def run(self, target: Path, *, overwrite: bool) -> How:
        """Fetch to a path; return whether it was fetched, or present. Raises ClientError. What has arrived stays for
        the next run."""
        if not _SHA256.fullmatch(self.file.sha256):
            raise errors.BadAnswer(f"{self.file.name}: the server names a SHA-256 that is none")
        try:
            if await asyncio.to_thread(self._is_there, target, overwrite=overwrite):
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
            raise errors.Unwritable(f"{error.filename or target}: {error.strerror or error}") from error

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

    def _is_there(self, target: Path, *, overwrite: bool) -> bool:
        """Tell whether it is there; then its time is the file's. Raises TargetExists."""
        if not (target.exists() or target.is_symlink()):
            return False
        same_size = target.is_file() and target.stat().st_size == self.file.size
        if same_size and sha256_of(target) == self.file.sha256:
            set_time(target, self.file.modified_at)
            return True
        if overwrite:
            return False
        raise errors.TargetExists(f"{target} is there already, with other content")

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


@dataclass
class ManyDownloads(ManyFiles):
    overwrite: bool
    # A file that is here is compared by its digest, not by its time of modification.
    checksum: bool

    async def run(self, wanted: Sequence[Wanted], root: Path) -> list[Outcome]:
        """Download them. Return the outcomes; files that were not begun have none."""
        self.meter.enter("downloading")
        chosen, refused = sorted_out(wanted)
        for each, error in refused:
            local = LocalFile(each.path, each.file.name, each.file.size, 0)
            self.watcher.begun(local)
            self.end(Outcome(local, error=error))
        wanted_of = {LocalFile(root / each.path, each.file.name, each.file.size, 0): each for each in chosen}
        await self.bring(deque(wanted_of), lambda local: self._fetch(wanted_of[local], root, local))
        self.meter.enter("complete")
        return self.outcomes

    async def _fetch(self, wanted: Wanted, root: Path, local: LocalFile) -> Outcome:
        file = wanted.file
        try:
            target = await asyncio.to_thread(placed, root, wanted.path)
        except OSError as error:
            raise errors.Unwritable(f"{error.filename or local.path}: {error.strerror}") from error
        if not self.checksum and await asyncio.to_thread(_is_unchanged, wanted, target):
            return Outcome(local, file, "present")
        # Of one content in one directory there is one partial file.
        async with self.shared.alone(f"{target.parent}/{file.sha256}"):
            meter = Meter(file.name, file.size, functools.partial(self.watcher.moved, local))
            how = await Downloading(self.api, file, meter, self.gate).run(target, overwrite=self.overwrite)
            meter.enter("complete")
        return Outcome(local, file, how)


def _is_unchanged(wanted: Wanted, target: Path) -> bool:
    try:
        status = target.lstat()
    except OSError:
        return False
    here = LocalFile(target, wanted.file.name, status.st_size, status.st_mtime_ns)
    return stat.S_ISREG(status.st_mode) and There([wanted.file], "keep").unchanged(here) is not None
