"""Takes small files out of an archive as it arrives: each in order, of the expected size, and compared with its
SHA-256. The files are written beside their targets, and renamed together once all their bytes are durable.

The server is not trusted: the names are the client's, and more bytes than requested are an error.
"""

import ctypes
import hashlib
import os
import sys
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from uploader.client.download import partial_name, set_time, unwritable
from uploader.client.errors import BadAnswer, Unreachable
from uploader.client.files import LocalFile, Outcome
from uploader.client.model import File
from uploader.client.system import open_alone, open_directory
from uploader.domain.archive import MAX_PADDING_BYTES, ArchiveReader, MalformedArchive, Member

# How many files are open at once, and made durable together.
_TOGETHER = 64
# From this many files on, syncing the filesystem is faster than syncing each file.
_MANY = 4
# A limit for the header and the padding of a member, with the longest name.
_HEAD_BYTES = 8 << 10
_syncfs = None if sys.platform == "win32" else getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


class Place(Struct, frozen=True):
    """A file of the server, and its target."""

    local: LocalFile
    file: File
    directory: str
    name: str

    @property
    def target(self) -> str:
        return f"{self.directory}/{self.name}"


Whole = tuple[Place, bytes]


class Unpacking:
    """The files of one archive. `save` blocks, and excludes other calls; the rest is too fast for a thread."""

    def __init__(self, places: Sequence[Place]) -> None:
        # In the order of the request; the first one may be arriving.
        self.waiting = deque(places)
        # Files that the archive does not bring. A request of its own brings each file, or the reason.
        self.left_over: list[Place] = []
        # True once the server has answered.
        self.has_begun = False
        self._reader = ArchiveReader()
        self._bytes_left = sum(place.file.size + _HEAD_BYTES for place in places) + MAX_PADDING_BYTES
        self._content = bytearray()
        self._whole: list[Whole] = []

    @property
    def is_full(self) -> bool:
        """Return whether there are enough files for a `save`."""
        return len(self._whole) >= _TOGETHER

    def take(self, block: bytes) -> None:
        """Take received bytes. Raises BadAnswer; files that were complete before are left for `save`."""
        self._bytes_left -= len(block)
        if self._bytes_left < 0:
            raise BadAnswer("the server sent more than it was asked for")
        try:
            for found in self._reader.feed(memoryview(block)):
                if isinstance(found, Member):
                    self._begin(found)
                else:
                    self._add(found)
        except MalformedArchive as error:
            raise BadAnswer(f"what the server sent is no archive: {error}") from error

    def check_end(self) -> None:
        """Raises Unreachable if the archive has not ended."""
        try:
            self._reader.end()
        except MalformedArchive as error:
            raise Unreachable("the answer ended early") from error

    def save(self) -> list[Outcome]:
        """Give the complete files their names, durably."""
        outcomes: list[Outcome] = []
        while self._whole:
            together, self._whole = _without_twins(self._whole)
            saving = _Saving()
            try:
                outcomes += saving.run(together)
            finally:
                saving.close()
            self.left_over += saving.left_over
        return outcomes

    def _begin(self, member: Member) -> None:
        if member.file_id is None:
            raise BadAnswer("the server does not say which file is which")
        while self.waiting and self.waiting[0].file.id != member.file_id:
            self.left_over.append(self.waiting.popleft())
        if not self.waiting:
            raise BadAnswer("the server sent a file that it was not asked for")
        size = self.waiting[0].file.size
        if member.problem is not None and member.size == 0:
            self.left_over.append(self.waiting.popleft())
        elif member.problem is not None or member.refused is not None or member.size != size:
            raise BadAnswer(f"{self.waiting[0].file.name}: the server sent other than {size} bytes")
        elif not size:
            self._end(b"")

    def _add(self, content: memoryview) -> None:
        size = self.waiting[0].file.size
        if len(content) == size:
            self._end(bytes(content))
            return
        self._content += content
        if len(self._content) == size:
            self._end(bytes(self._content))
            self._content.clear()

    def _end(self, content: bytes) -> None:
        place = self.waiting.popleft()
        if hashlib.sha256(content).hexdigest() == place.file.sha256:
            self._whole.append((place, content))
        else:
            self.left_over.append(place)


def _without_twins(whole: Sequence[Whole]) -> tuple[list[Whole], list[Whole]]:
    """Return files to save together, and the others. Each content has only one partial file in a directory."""
    together: dict[tuple[str, str], Whole] = {}
    others: list[Whole] = []
    for each in whole:
        key = each[0].directory, each[0].file.sha256
        if len(together) < _TOGETHER and key not in together:
            together[key] = each
        else:
            others.append(each)
    return list(together.values()), others


class _Saving:
    """Writes files beside their targets, locked like other downloads, and renames them once they are durable. A file
    with an existing partial file is left to a download of its own."""

    def __init__(self) -> None:
        self.left_over: list[Place] = []
        self._outcomes: list[Outcome] = []
        self._directories: dict[str, int | None] = {}
        # The partial files, by path.
        self._written: dict[str, tuple[Place, int]] = {}

    def run(self, files: Iterable[Whole]) -> list[Outcome]:
        try:
            for place, content in files:
                self._write(place, content)
            _sync([descriptor for _, descriptor in self._written.values()], self._open_directories())
            renamed = [place for path, (place, _) in list(self._written.items()) if self._rename(path, place)]
            _sync(self._open_directories(), self._open_directories())
        except OSError as error:  # an error of a disk leaves all files in doubt
            lost = [place for place, _ in self._written.values()]
            return self._outcomes + [Outcome(place.local, error=unwritable(error, place.target)) for place in lost]
        return self._outcomes + [Outcome(place.local, place.file, "fetched") for place in renamed]

    def close(self) -> None:
        for descriptor in (*self._open_directories(), *(descriptor for _, descriptor in self._written.values())):
            os.close(descriptor)

    def _open_directories(self) -> list[int]:
        return [descriptor for descriptor in self._directories.values() if descriptor is not None]

    def _write(self, place: Place, content: bytes) -> None:
        path, parent = f"{place.directory}/{partial_name(place.file)}", place.directory
        try:
            # Opened before writing: this descriptor reports errors of later writes.
            if parent not in self._directories:
                self._directories[parent] = open_directory(parent)
            descriptor = open_alone(path, new=True)
        except (FileExistsError, BlockingIOError):
            self.left_over.append(place)
            return
        except OSError as error:
            self._fail(place, error)
            return
        self._written[path] = place, descriptor
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            set_time(descriptor, place.file.modified_at)
        except OSError as error:
            self._remove(path)
            self._fail(place, error)

    def _rename(self, path: str, place: Place) -> bool:
        try:
            os.replace(path, place.target)  # noqa: PTH105 (this is for thousands a second)
        except OSError as error:
            self._remove(path)
            self._fail(place, error)
            return False
        return True

    def _remove(self, path: str) -> None:
        with suppress(OSError):
            Path(path).unlink()
        self._forget(path)

    def _forget(self, path: str) -> None:
        os.close(self._written.pop(path)[1])

    def _fail(self, place: Place, error: OSError) -> None:
        self._outcomes.append(Outcome(place.local, error=unwritable(error, place.target)))


def _sync(descriptors: Collection[int], directories: Collection[int]) -> None:
    """Make files or directories durable; many by syncfs(2) of the filesystems of `directories`. Raises OSError."""
    if _syncfs is None or len(descriptors) < _MANY:
        for descriptor in descriptors:
            os.fsync(descriptor)
        return
    for descriptor in {os.fstat(each).st_dev: each for each in reversed(list(directories))}.values():
        if _syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
