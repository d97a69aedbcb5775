"""The ballast: a file that reserves disk space and is truncated when the database, Redis or the trash find no space.

With it, users can free space on a full disk: a cancel or a delete has to be committed before its bytes can go. Uploads never
get the reserved space: while the ballast is used, the store takes no bytes (`disk.check_room`). Many processes share one
file. Any of them may truncate it, any number of times; the others see that by its size. A directory of empty files beside
the ballast reserves inodes in the same way: a filesystem may run out of inodes while bytes are free, and no server starts
without a few new files. All methods block.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from uploader.storage import disk
from uploader.storage.disk import Reserve, Root

logger = logging.getLogger(__name__)

# The name of the file, or the end of it beside a SQLite.
NAME = "ballast"
# The end of the name of the directory with the reserved inodes.
INODES_SUFFIX = ".inodes"
# SQLite's log takes 4 MiB before it begins anew; the rest is for Redis and for other writers.
BALLAST_BYTES = 16 << 20
# A disk with less free space is full: a commit may take this much.
_LEAST_BYTES = 1 << 20
_PIECE_BYTES = 128 << 10
# A start makes about 30 files: SQLite's log, Valkey's files and socket, locks, metrics. The trash makes a directory for each
# two digits of a SHA-256.
_INODES = 128
# A filesystem with fewer free inodes is full.
_LEAST_INODES = 32


class Ballast:
    @classmethod
    def beside(cls, data: Path, sqlite: Path | None) -> Self:
        """Return the ballast of an installation: in its data directory, or beside a SQLite elsewhere, which needs it
        most."""
        return cls(
            data / NAME if sqlite is None or sqlite.parent == data else sqlite.with_name(f"{sqlite.name}.{NAME}")
        )

    def __init__(self, path: Path, *, size_bytes: int = BALLAST_BYTES) -> None:
        self.path = path
        self._size_bytes = size_bytes
        self._root = Root(path.parent)
        # None while there is no file. Another thread may use the old reserve while `look` replaces it.
        self.reserve: Reserve | None = None
        self.has_inodes = False

    @property
    def is_used(self) -> bool:
        """Return whether the ballast was given up and not filled again."""
        reserve = self.reserve
        return reserve is not None and reserve.is_used

    def look(self) -> bool:
        """Look for the file, which other processes may have made or removed. Return whether it exists. Raises OSError."""
        reserve = self.reserve
        if reserve is None or disk.is_unlinked(reserve.descriptor):
            self._root.open()
            try:
                self.reserve = reserve = Reserve(self._root.open_to_write(self.path.name), self._size_bytes)
            except FileNotFoundError:
                self.reserve = reserve = None
        self.has_inodes = self.path.with_name(self._inodes).is_dir()
        return reserve is not None

    def free(self) -> bool:
        """Give the ballast up. Return whether this or another process gave the ballast up; the caller then repeats the write
        that found no space."""
        with suppress(OSError):
            if not self.look():
                return False
            reserve = self.reserve
            assert reserve is not None
            if disk.status(reserve.descriptor).st_size:
                disk.resize(reserve.descriptor, 0)
                disk.sync_data(reserve.descriptor)  # some filesystems free the blocks only now
                logger.error(
                    "the disk is full: the ballast is given up, and no bytes are taken until it is there again"
                )
            self._free_inodes()
            return True
        return False

    def make_room(self, is_full: bool = False) -> bool:
        """Give the ballast up, as `free` does, if the disk is full. `is_full`: the caller knows that."""
        with suppress(OSError):
            return self.look() and (is_full or self.is_full()) and self.free()
        return False

    def is_full(self) -> bool:
        """Return whether the disk lacks the space for a commit, or the inodes for a start."""
        with suppress(OSError):
            self._root.open()
            if self._lacks_inodes(_LEAST_INODES):
                return True
        try:
            with disk.opened(self._root.open_unnamed()) as descriptor:
                disk.write(descriptor, memoryview(os.urandom(_LEAST_BYTES)), 0)
        except OSError as error:
            return error.errno in disk.FULL
        return False

    # Making it

    def lacking_bytes(self) -> int:
        """Return how many more bytes must be free to make it: twice its size, to leave as much to others. Raises OSError."""
        self._root.open()
        figures = self._root.figures()
        return max(0, 2 * self._size_bytes - figures.f_bavail * figures.f_frsize)

    def _lacks_inodes(self, least: int) -> bool:
        figures = self._root.figures()
        return figures.f_files > 0 and figures.f_favail < least  # some filesystems count no inodes

    def fill(self) -> bool:
        """Make the ballast, or fill it again, if there is space. Return whether it is there. Only one of several processes
        does it. Raises OSError."""
        is_there = self.look() and not self.is_used
        if is_there and self.has_inodes:
            return True
        # As with bytes, as many inodes have to stay free.
        if self._lacks_inodes(2 * _INODES) or (not is_there and self.lacking_bytes()):
            return False
        self._reserve_inodes()
        if is_there:
            return True
        reserve = self.reserve
        if reserve is not None:
            if not disk.try_lock(reserve.descriptor, 0, 0):
                return False
            try:
                return self._fill(reserve.descriptor)
            finally:
                disk.unlock_all(reserve.descriptor)
        with disk.opened(self._root.open_unnamed()) as descriptor:
            filled = self._fill(descriptor)
            if filled:
                with suppress(FileExistsError):  # another process was faster
                    self._root.link_open(descriptor, self.path.name)
        self._root.sync()
        return self.look() and filled

    @property
    def _inodes(self) -> str:
        return f"{self.path.name}{INODES_SUFFIX}"

    def _reserve_inodes(self) -> None:
        """Make the empty files. After a crash some may be missing; the rest is enough until the ballast is used."""
        with self._root.make(self._inodes) as directory:
            for number in range(_INODES):
                with suppress(FileExistsError):  # another process was faster
                    directory.create_empty(str(number))
            directory.sync()
        self.has_inodes = True

    def _free_inodes(self) -> None:
        with suppress(OSError):  # another process was faster, or reserves them again at this moment
            with self._root.enter(self._inodes) as directory:
                for name in directory.files():
                    directory.unlink(name)
            self._root.remove_directory(self._inodes)

    def _fill(self, descriptor: int) -> bool:
        """Write bytes that do not compress, and no holes, because the file has to occupy its size on the disk."""
        whole = False
        try:
            for offset in range(0, self._size_bytes, _PIECE_BYTES):
                disk.write(descriptor, memoryview(os.urandom(_PIECE_BYTES)), offset)
            disk.sync_data(descriptor)
            # If another process truncated the file meanwhile, this reads zeros or nothing.
            whole = all(any(disk.read(descriptor, 16, at)) for at in range(0, self._size_bytes, _PIECE_BYTES))
        finally:
            if not whole:
                disk.resize(descriptor, 0)
        return whole
