"""Uploads and blobs in directories of a local filesystem.

    temp/YYYY/MM/<upload_id>/{data,map,digest}    blobs/ab/cd/<sha256>    spool/ (bodies, unlinked)

Owns the order in which effects reach the disk and the locks around them. Refuses to know users, quotas or Redis: the
caller holds a chunk or a closer while it talks to those.
"""

import asyncio
import errno
import hashlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import msgspec

from uploader.crashpoints import crash_point
from uploader.domain.chunks import chunk_count, chunk_length
from uploader.domain.upload import Upload
from uploader.errors import ConfigurationError, StorageFailed, StorageFull, Unavailable
from uploader.storage import chunkmap, walking
from uploader.storage.base import Body, Busy, Digests, Found, Gone, Space, Stopping
from uploader.storage.locks import try_lock, try_lock_shared, unlock

logger = logging.getLogger(__name__)

T = TypeVar("T")

_READ_BYTES = 1 << 20
_LOCK_TIMEOUT_SECONDS = 30.0
_CREATE_ATTEMPTS = 100
_WALK_BATCH = 250
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# In the place of the digests, where the data could not be made durable.
_LOST = b"lost"
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600


class LocalHeldChunk:
    """A chunk on disk; the descriptor holds the lock of its record."""

    def __init__(self, map_descriptor: int, *, written: bool) -> None:
        self._map = map_descriptor
        self.written = written

    def release(self) -> None:
        os.close(self._map)


class LocalCloser:
    """All locks of one upload, held by one descriptor of its map."""

    def __init__(self, storage: "LocalStorage", upload: Upload) -> None:
        self._storage = storage
        self._upload = upload

    async def read_map(self) -> chunkmap.ChunkMap:
        return await self._storage.read_map(self._upload)

    async def place_blob(self, sha256: str, *, keep_existing: bool) -> None:
        await self._storage.in_thread(self._storage.place_blob, self._upload, sha256, keep_existing)

    async def withdraw(self, numbers: list[int]) -> None:
        await self._storage.in_thread(self._storage.withdraw, self._upload, numbers)

    async def unlink(self) -> bool:
        return await self._storage.discard(self._upload)


class LocalStorage:
    """The seam of `base.py` on a local filesystem."""

    def __init__(self, root: Path, *, durable: bool) -> None:
        """`durable`: an acknowledged chunk survives a power cut, not only the end of the process."""
        self._root = root.absolute()
        self._durable = durable
        self._boot_id = _boot_id()
        self._disk = ThreadPoolExecutor(16, thread_name_prefix="disk")
        self._hashing = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="hashing")
        self._stopping = threading.Event()

    # Setting up

    async def prepare(self) -> None:
        await self.in_thread(self._prepare)

    def _prepare(self) -> None:
        try:
            for name in ("temp", "blobs", "spool"):
                _make_directory(self._root / name)
        except OSError as error:
            raise ConfigurationError(f"UPLOADER_DATA: {self._root} cannot be written: {error.strerror}") from error
        if len({(self._root / name).stat().st_dev for name in ("temp", "blobs")}) != 1:
            raise ConfigurationError(f"UPLOADER_DATA: temp and blobs under {self._root} are not on one filesystem")

    def stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        self._disk.shutdown(wait=False)
        self._hashing.shutdown(wait=False)

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Run `work` in a thread of the disk pool. Raises StorageFull and StorageFailed for what the disk refuses."""
        return await self._in_pool(self._disk, work, *arguments)

    async def _in_pool(self, pool: ThreadPoolExecutor, work: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, partial(work, *arguments))
        except OSError as error:
            if error.errno in _DISK_FULL:
                raise StorageFull() from error
            logger.exception("the disk reports an error", extra={"work": work.__name__})
            raise StorageFailed() from error

    # Opening

    async def create(self, upload: Upload) -> None:
        await self.in_thread(self._create, upload)

    def _create(self, upload: Upload) -> None:
        directory = self._directory(upload)
        _make_upload_directory(directory)
        crash_point("open.after_mkdir")
        try:
            count = chunk_count(upload.size, upload.chunk_size)
            _write_new_file(directory / "data", b"", size=upload.size)
            crash_point("open.after_data_file")
            _write_new_file(directory / "digest", b"")
            crash_point("open.after_digest_file")
            empty = chunkmap.new_map(self._boot_id, upload.size, upload.chunk_size, count)
            _write_new_file(directory / "map", empty)
            crash_point("open.after_map_file")
            _sync(directory)
            crash_point("open.after_directory_sync")
            _sync(directory.parent)
        except OSError:
            self._discard(upload)
            raise

    async def discard(self, upload: Upload) -> bool:
        return await self.in_thread(self._discard, upload)

    def _discard(self, upload: Upload) -> bool:
        directory = self._directory(upload)
        # The map goes first: a writer that waits for its lock sees by it that the upload is gone.
        for name in ("map", "digest", "data"):
            (directory / name).unlink(missing_ok=True)
            crash_point("discard.after_unlink")
        try:
            directory.rmdir()
        except FileNotFoundError:
            return False
        return True

    # Chunks

    async def hold_chunk(self, upload: Upload, number: int, body: Body | None) -> LocalHeldChunk:
        """One thread hop, and another one for each time the chunk is busy."""
        deadline, pause = time.monotonic() + _LOCK_TIMEOUT_SECONDS, 0.001
        while (held := await self.in_thread(self._try_hold_chunk, upload, number, body)) is None:
            if time.monotonic() > deadline:
                raise Unavailable("This chunk is busy; try again.")
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        return held

    def _try_hold_chunk(self, upload: Upload, number: int, body: Body | None) -> LocalHeldChunk | None:
        map_descriptor = self._open_map(upload)
        record = chunkmap.record_offset(number)
        try:
            # Writers share the gate, only a closer takes it alone: they never hold up one another.
            if not try_lock_shared(map_descriptor, chunkmap.GATE_OFFSET, chunkmap.GATE_LENGTH):
                os.close(map_descriptor)
                return None
            locked = try_lock(map_descriptor, record, chunkmap.RECORD_LENGTH)
            unlock(map_descriptor, chunkmap.GATE_OFFSET, chunkmap.GATE_LENGTH)
            if not locked:
                os.close(map_descriptor)
                return None
            _refuse_unlinked(map_descriptor)
            present = chunkmap.is_present(os.pread(map_descriptor, chunkmap.RECORD_LENGTH, record))
            if not present:
                if body is None:
                    raise Gone(upload.id)
                checksum = self._write_data(upload, number, body)
                self._write_record(map_descriptor, chunkmap.pack_record(checksum), record)
        except BaseException:
            os.close(map_descriptor)
            raise
        return LocalHeldChunk(map_descriptor, written=not present)

    def _write_record(self, map_descriptor: int, content: bytes, offset: int) -> None:
        try:
            _write_all(map_descriptor, memoryview(content), offset)
            crash_point("chunk.after_map_record")
            self._sync_data(map_descriptor)
            crash_point("chunk.after_map_sync")
        except OSError:
            # The page cache may show a record that the disk refused; the next writer must not believe it.
            _write_all(map_descriptor, memoryview(bytes(chunkmap.RECORD_LENGTH)), offset)
            raise

    def _write_data(self, upload: Upload, number: int, body: Body) -> int:
        checksum, offset = 0, number * upload.chunk_size
        data = _open(self._directory(upload) / "data", os.O_WRONLY)
        try:
            for piece in body.pieces():
                _write_all(data, piece, offset)
                offset += len(piece)
                checksum = crc32(piece, checksum)
            crash_point("chunk.after_data_write")
            # An error here fails this chunk and is never retried: the kernel may have dropped the pages
            # (https://wiki.postgresql.org/wiki/Fsync_Errors), but the map does not claim them.
            self._sync_data(data)
            crash_point("chunk.after_data_sync")
        finally:
            os.close(data)
        return checksum

    def _sync_data(self, descriptor: int) -> None:
        if self._durable:
            os.fdatasync(descriptor)

    async def read_map(self, upload: Upload) -> chunkmap.ChunkMap:
        return await self.in_thread(self._read_map, upload)

    def _read_map(self, upload: Upload) -> chunkmap.ChunkMap:
        descriptor = self._open_map(upload)
        with os.fdopen(descriptor, "rb") as file:
            return chunkmap.parse_map(file.read())

    async def last_write(self, upload: Upload) -> float:
        return await self.in_thread(self._last_write, upload)

    def _last_write(self, upload: Upload) -> float:
        try:
            return (self._directory(upload) / "map").stat().st_mtime
        except FileNotFoundError as error:
            raise Gone(upload.id) from error

    # Closing

    @asynccontextmanager
    async def closing(self, upload: Upload) -> AsyncIterator[LocalCloser]:
        descriptor = await self.in_thread(self._open_map, upload)
        try:
            # With the gate held no writer can start, so the wait for those under way ends.
            await _wait_for_lock(descriptor, chunkmap.GATE_OFFSET, chunkmap.GATE_LENGTH)
            await _wait_for_lock(descriptor, chunkmap.RECORDS_OFFSET, 0)  # 0: to the end of the file
            _refuse_unlinked(descriptor)
            yield LocalCloser(self, upload)
        finally:
            os.close(descriptor)

    def place_blob(self, upload: Upload, sha256: str, keep_existing: bool) -> None:
        """Link the data, which is durable by now, as the blob. Each step may be repeated after a crash at any other."""
        data, target = self._directory(upload) / "data", self.blob_path(sha256)
        _make_directory(target.parent)
        try:
            target.hardlink_to(data)
            crash_point("blob.after_link")
        except FileExistsError:
            if not (keep_existing or target.samefile(data)):
                # Bytes whose row has no refs are on their way out; ours take their place.
                own = target.with_name(f"{target.name}.{upload.id}")
                own.unlink(missing_ok=True)
                own.hardlink_to(data)
                crash_point("blob.after_own_link")
                own.replace(target)
                crash_point("blob.after_rename")
        _sync(target.parent)
        crash_point("blob.after_directory_sync")

    # Digests

    async def digest(self, upload: Upload, progress: Callable[[int], None]) -> Digests:
        return await self._in_pool(self._hashing, self._digest, upload, progress)

    def _digest(self, upload: Upload, progress: Callable[[int], None]) -> Digests:
        """The digests as saved, or computed and saved. The lock on the file keeps two workers from doing it twice."""
        directory = self._directory(upload)
        try:
            descriptor = _open(directory / "digest", os.O_RDWR)
        except FileNotFoundError as error:
            raise Gone(upload.id) from error
        try:
            if not try_lock(descriptor, 0, 0):
                raise Busy(upload.id)
            saved = os.pread(descriptor, 4096, 0)
            if saved == _LOST:
                raise StorageFailed("The disk lost bytes of this upload: cancel it and send it again.")
            with suppress(msgspec.DecodeError):
                return msgspec.json.decode(saved, type=Digests)
            self._sync_before_hashing(directory / "data", descriptor)
            crash_point("merge.after_data_sync")
            digests = self._hash(directory / "data", upload, progress)
            _write_all(descriptor, memoryview(msgspec.json.encode(digests)), 0)
            crash_point("merge.after_digest_write")
            os.fsync(descriptor)
            crash_point("merge.after_digest_saved")
            return digests
        finally:
            os.close(descriptor)

    def _sync_before_hashing(self, data: Path, digest_descriptor: int) -> None:
        """Make the data durable before its digests are believed.

        Where this is the first sync, an error is remembered: a second one would succeed, with the bytes gone from memory
        and not on the disk (https://wiki.postgresql.org/wiki/Fsync_Errors).
        """
        try:
            _sync(data)
        except OSError:
            if not self._durable:
                _write_all(digest_descriptor, memoryview(_LOST), 0)
                os.fsync(digest_descriptor)
            raise

    def _hash(self, data: Path, upload: Upload, progress: Callable[[int], None]) -> Digests:
        md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
        buffer = memoryview(bytearray(_READ_BYTES))
        done = 0
        with _open_to_read(data, upload.id) as file:
            while count := file.readinto(buffer):
                md5.update(buffer[:count])
                sha256.update(buffer[:count])
                done += count
                progress(done)
                if self._stopping.is_set():
                    raise Stopping
                if os.fstat(file.fileno()).st_nlink == 0:
                    raise Gone(upload.id)
        if done != upload.size:
            raise OSError(errno.EIO, "the data file does not have the size of its upload")
        return Digests(md5.hexdigest(), sha256.hexdigest())

    # Chunks that went bad

    async def find_bad_chunks(self, upload: Upload) -> list[int]:
        return await self._in_pool(self._hashing, self._find_bad_chunks, upload)

    def _find_bad_chunks(self, upload: Upload) -> list[int]:
        checksums = self._read_map(upload).checksums
        bad = []
        with _open_to_read(self._directory(upload) / "data", upload.id) as file:
            for number, expected in enumerate(checksums):
                length = chunk_length(number, upload.size, upload.chunk_size)
                if expected is not None and self._checksum(file, number * upload.chunk_size, length) != expected:
                    bad.append(number)
        return bad

    def _checksum(self, file: FileIO, offset: int, length: int) -> int:
        if self._stopping.is_set():
            raise Stopping
        checksum = 0
        for start in range(offset, offset + length, _READ_BYTES):
            piece = os.pread(file.fileno(), min(_READ_BYTES, offset + length - start), start)
            checksum = crc32(piece, checksum)
        return checksum

    def withdraw(self, upload: Upload, numbers: list[int]) -> None:
        """Take chunks off the map, in a thread, whose locks the caller holds. The digests go first: they were of them."""
        digest = _open(self._directory(upload) / "digest", os.O_WRONLY | os.O_TRUNC)
        try:
            os.fsync(digest)
        finally:
            os.close(digest)
        descriptor = self._open_map(upload)
        try:
            for number in numbers:
                _write_all(descriptor, memoryview(bytes(chunkmap.RECORD_LENGTH)), chunkmap.record_offset(number))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # Blobs

    def blob_path(self, sha256: str) -> Path:
        return self._root / "blobs" / sha256[:2] / sha256[2:4] / sha256

    async def blob_sizes(self, sha256s: list[str]) -> list[int | None]:
        return await self.in_thread(lambda: [_size_of(self.blob_path(sha256)) for sha256 in sha256s])

    async def hash_blob(self, sha256: str, pace: Callable[[int], None]) -> str | None:
        return await self._in_pool(self._hashing, self._hash_blob, sha256, pace)

    def _hash_blob(self, sha256: str, pace: Callable[[int], None]) -> str | None:
        try:
            descriptor = _open(self.blob_path(sha256), os.O_RDONLY)
        except FileNotFoundError:
            return None
        digest, buffer = hashlib.sha256(), memoryview(bytearray(_READ_BYTES))
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            # The disk is asked, not the page cache; and what is read here does not push out what is being served.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
                pace(count)
                os.posix_fadvise(descriptor, 0, file.tell(), os.POSIX_FADV_DONTNEED)
                if self._stopping.is_set():
                    raise Stopping
        return digest.hexdigest()

    async def remove_blob(self, sha256: str) -> None:
        await self.in_thread(lambda: self.blob_path(sha256).unlink(missing_ok=True))

    # Walking

    async def months(self) -> list[str]:
        return await self.in_thread(walking.months, self._root)

    def walk_uploads(self, month: str) -> AsyncIterator[list[Found]]:
        return self._batches(walking.upload_directories(self._root, month))

    def walk_blobs(self) -> AsyncIterator[list[Found]]:
        return self._batches(walking.blob_files(self._root))

    async def _batches(self, walk: Iterator[Found]) -> AsyncIterator[list[Found]]:
        while batch := await self.in_thread(self._next_batch, walk):
            yield batch

    def _next_batch(self, walk: Iterator[Found]) -> list[Found]:
        if self._stopping.is_set():
            raise Stopping
        return list(islice(walk, _WALK_BATCH))

    async def remove(self, found: Found) -> bool:
        return await self.in_thread(self._remove, found)

    def _remove(self, found: Found) -> bool:
        path = self._root / found.path
        if walking.look(self._root, path) != found:
            return False
        try:
            if path.is_dir():
                _remove_directory(path)
            else:
                path.unlink()
        except FileNotFoundError:
            return False  # somebody else was faster
        return True

    async def remove_month(self, month: str) -> None:
        await self.in_thread(self._remove_month, month)

    def _remove_month(self, month: str) -> None:
        path = self._root / "temp" / month
        try:
            path.rmdir()
            path.parent.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    # Room

    async def space(self) -> Space:
        figures = await self.in_thread(os.statvfs, self._root)
        return Space(total=figures.f_blocks * figures.f_frsize, free=figures.f_bavail * figures.f_frsize)

    async def open_spool(self) -> int:
        return await self.in_thread(_open, self._root / "spool", os.O_TMPFILE | os.O_RDWR)

    # Paths

    def _directory(self, upload: Upload) -> Path:
        return self._root / upload.temp_path

    def _open_map(self, upload: Upload) -> int:
        try:
            return _open(self._directory(upload) / "map", os.O_RDWR)
        except FileNotFoundError as error:
            raise Gone(upload.id) from error


def _open(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)


def _open_to_read(path: Path, upload_id: str) -> FileIO:
    try:
        return FileIO(_open(path, os.O_RDONLY), "rb")
    except FileNotFoundError as error:
        raise Gone(upload_id) from error


def _refuse_unlinked(descriptor: int) -> None:
    if os.fstat(descriptor).st_nlink == 0:
        raise Gone


async def _wait_for_lock(descriptor: int, start: int, length: int) -> None:
    deadline, pause = time.monotonic() + _LOCK_TIMEOUT_SECONDS, 0.0005
    while not try_lock(descriptor, start, length):
        if time.monotonic() > deadline:
            raise Unavailable("This upload is busy; try again.")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.01)


def _write_all(descriptor: int, buffer: memoryview, offset: int) -> None:
    while len(buffer):
        written = os.pwrite(descriptor, buffer, offset)
        buffer, offset = buffer[written:], offset + written


def _write_new_file(path: Path, content: bytes, size: int | None = None) -> None:
    descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        _write_all(descriptor, memoryview(content), 0)
        if size is not None:
            os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _make_directory(path: Path) -> None:
    """Make a directory and its parents, each durable in its parent before this returns."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    path.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
    _sync(path.parent)


def _make_upload_directory(path: Path) -> None:
    """The cleanup may remove the directory of a month as long as it is empty, so also between the steps here."""
    for attempt in range(1, _CREATE_ATTEMPTS + 1):
        try:
            _make_directory(path.parent)
            path.mkdir(mode=_DIRECTORY_MODE)
        except (FileNotFoundError, FileExistsError):
            if attempt == _CREATE_ATTEMPTS or path.exists():
                raise
        else:
            return


def _remove_directory(path: Path) -> None:
    """Remove the directory of an upload with all its files."""
    # The map goes first, as for every upload that ends.
    for name in ("map", *os.listdir(path)):  # noqa: PTH208 (names)
        (path / name).unlink(missing_ok=True)
    path.rmdir()


def _sync(path: Path) -> None:
    """Make a file's bytes, or a directory's entries, durable."""
    descriptor = _open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _boot_id() -> str:
    """Changes with every boot of the machine (`proc_sys_kernel(5)`, random/boot_id)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
