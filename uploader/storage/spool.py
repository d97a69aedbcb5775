"""The spool: unlinked files of this node for bodies that are not kept in memory, wherever a store has its bytes."""

import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from uploader.cores import run_anywhere
from uploader.errors import ConfigurationError
from uploader.storage import disk, fitness
from uploader.tasks import Pool

_THREADS = 4
_PIECE_BYTES = 1 << 20


class SpooledBytes:
    """A file without a name: its descriptor is closed with its last user, and then nothing is left of it."""

    def __init__(self, pool: Pool, descriptor: int) -> None:
        self._pool = pool
        self._descriptor = descriptor
        self._length = 0
        self.close = weakref.finalize(self, disk.close, descriptor)

    async def append(self, content: memoryview) -> None:
        """Raises StorageFull."""
        await self._pool.run(disk.write, self._descriptor, content, self._length)
        self._length += len(content)

    def pieces(self, start: int, length: int) -> Iterator[memoryview]:
        """So much from there on, in order, read from a thread."""
        end = start + length
        for offset in range(start, end, _PIECE_BYTES):
            yield memoryview(disk.read(self._descriptor, min(_PIECE_BYTES, end - offset), offset))


class Spool:
    """The directory `spool` of a node."""

    def __init__(self, root: Path) -> None:
        self._path = root.absolute()
        self._root = disk.Root(self._path)
        self._pool = Pool(_THREADS, "spool", translate=disk.refusal, initializer=run_anywhere)

    async def prepare(self) -> None:
        """Raises ConfigurationError if it can't be written."""
        await self._pool.run(self._prepare)

    def _prepare(self) -> None:
        try:
            self._root.open()
            with suppress(FileExistsError):
                self._root.make_directory("spool")  # whether it outlives a power cut does not matter
            with self._root.enter("spool") as directory:  # it is one, and no link
                fitness.check_unnamed(directory)
        except OSError as error:
            raise ConfigurationError(f"UPLOADER_DATA: {self._path} cannot be written: {error.strerror}") from error

    async def open(self) -> SpooledBytes:
        """A place for a body. Raises StorageFull."""
        return await self._pool.run(self._open)

    def _open(self) -> SpooledBytes:
        with self._root.enter("spool") as directory:
            return SpooledBytes(self._pool, directory.open_unnamed())

    def close(self) -> None:
        """Give up the threads."""
        self._pool.shutdown()
