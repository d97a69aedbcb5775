"""Finished bytes, `blobs/ab/cd/<sha256>`: placed by a link, opened, measured and hashed. Runs in threads.

Refuses to know who has a blob: the caller holds the lock of its row.
"""

import errno
import hashlib
import os
import secrets
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload
from uploader.storage import disk
from uploader.storage.base import Gone
from uploader.storage.contents import Digests, Found, Pace
from uploader.storage.disk import Directory
from uploader.storage.local.temp import upload_directory
from uploader.storage.local.trash import TrashFiles
from uploader.tasks import Pool

_READ_BYTES = 1 << 20


class LocalBlob:
    """The descriptor of a blob. It is closed with its last user, so an opening that is cancelled leaves none."""

    def __init__(self, pool: Pool, descriptor: int) -> None:
        self._pool = pool
        self._descriptor = descriptor
        self._close = weakref.finalize(self, disk.close, descriptor)

    async def read(self, length_bytes: int, offset: int) -> bytes:
        return await self._pool.run(disk.read, self._descriptor, length_bytes, offset)

    async def read_all(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return await self._pool.run(read_ranges, self._descriptor, ranges)

    def fileno(self) -> int:
        return self._descriptor

    async def close(self) -> None:
        await self._pool.run(self._close)


class Blobs:
    """Everything under `blobs`."""

    def __init__(self, root: Directory, trash: TrashFiles, *, check_stopping: Callable[[], None]) -> None:
        self._root = root
        self._trash = trash
        self._check_stopping = check_stopping

    def place(self, upload: Upload, sha256: str) -> None:
        """Link the data of an upload, which is durable by now, as a blob. Each step may be repeated after a crash at any
        other. Raises Gone."""
        with upload_directory(self._root, upload) as source:
            self._place(source, "data", sha256, f"{sha256}.{upload.id}")

    def restore(self, found: Found) -> None:
        """Link bytes from the trash as the blob that they were, then take their name in the trash away. Raises Gone."""
        parent, _, name = found.place.rpartition("/")
        try:
            with self._root.enter(parent) as source:
                self._place(source, name, found.name, name)
                source.unlink(name)
        except FileNotFoundError as error:
            raise Gone(found.name) from error

    def write(self, pieces: Iterable[memoryview], sha256: str) -> os.stat_result:
        """Make bytes the blob, durably, whatever is there. Returns what it is now."""
        draft = f"{sha256}.{secrets.token_hex(16)}"
        with self._make(sha256) as target:
            descriptor = target.create_to_write(draft)
            try:
                write_all(descriptor, pieces)
                disk.sync_data(descriptor)
            finally:
                disk.close(descriptor)
            crash_point("blob.after_draft")
            with suppress(FileNotFoundError):
                self._make_way(target, sha256)
            target.rename(draft, sha256)
            target.sync()
            return target.status(sha256)

    def _place(self, source: Directory, name: str, sha256: str, draft: str) -> None:
        with self._make(sha256) as target:
            try:
                source.link(name, target, sha256)
                crash_point("blob.after_link")
            except FileExistsError:
                if not _is_same_file(source, name, target, sha256):
                    # Bytes that were just verified win over bytes that are there, whatever they are.
                    self._make_way(target, sha256)
                    _replace(source, name, target, sha256, draft)
            target.sync()
        crash_point("blob.after_directory_sync")

    def _make_way(self, target: Directory, sha256: str) -> None:
        """Keep the bytes that are there. What is no file has none, and goes."""
        if target.make_way(sha256):
            self._trash.keep(target, sha256, sha256)

    def open(self, sha256: str, size: int | None = None) -> int:
        """A descriptor to read a blob. Raises Gone if it is not there, or has another size than was given."""
        descriptor = self._open(blob_path(sha256))
        try:
            if size not in (None, disk.status(descriptor).st_size):
                raise Gone(sha256)
        except BaseException:
            disk.close(descriptor)
            raise
        return descriptor

    def open_found(self, found: Found) -> int:
        """A descriptor to read what was found, in the trash or not. Raises Gone."""
        return self._open(found.place)

    def _open(self, path: str) -> int:
        parent, _, name = path.rpartition("/")
        try:
            with self._root.enter(parent) as directory:
                return directory.open_to_read(name)
        except FileNotFoundError as error:
            raise Gone(name) from error

    def read(self, sha256: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        """The bytes of some ranges, each an offset and a length. Raises Gone if they are not all there."""
        descriptor = self.open(sha256)
        try:
            return read_ranges(descriptor, ranges)
        finally:
            disk.close(descriptor)

    def size(self, sha256: str) -> int | None:
        """In bytes; None if there is no such blob, or nobody can tell."""
        try:
            with self._directory(sha256) as directory:
                return directory.size(sha256)
        except OSError as error:
            if error.errno == errno.ENOENT or error.errno in disk.DAMAGED:
                return None
            raise

    def hash(self, found: Found, pace: Pace | None, with_md5: bool) -> Digests | None:
        """The digests of what the disk has, not the page cache; None if there is nothing. Raises Stopping."""
        try:
            descriptor = self._open(found.place)
        except Gone:
            return None
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False) if with_md5 else None
        buffer, done = memoryview(bytearray(_READ_BYTES)), 0
        try:
            # What is read here does not push out what is being served, either.
            disk.drop_cache(descriptor)
            while count := disk.read_into(descriptor, buffer, done):
                sha256.update(buffer[:count])
                if md5 is not None:
                    md5.update(buffer[:count])
                done += count
                if pace is not None:
                    pace(count)
                disk.drop_cache(descriptor)
                self._check_stopping()
        finally:
            disk.close(descriptor)
        return Digests(md5=None if md5 is None else md5.hexdigest(), sha256=sha256.hexdigest())

    def _directory(self, sha256: str) -> Directory:
        return self._root.enter(f"blobs/{fan_out(sha256)}")

    def _make(self, sha256: str) -> Directory:
        with self._root.enter("blobs") as top:
            return top.make(fan_out(sha256))


def read_ranges(descriptor: int, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes of some ranges, each an offset and a length. Raises Gone if they are not all there."""
    contents = [disk.read(descriptor, length, offset) for offset, length in ranges]
    if any(len(content) != length for content, (_, length) in zip(contents, ranges, strict=True)):
        raise Gone
    return contents


def write_all(descriptor: int, pieces: Iterable[memoryview]) -> None:
    offset = 0
    for piece in pieces:
        disk.write(descriptor, piece, offset)
        offset += len(piece)


def blob_path(sha256: str) -> str:
    return f"blobs/{fan_out(sha256)}/{sha256}"


def fan_out(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256[2:4]}"


def _is_same_file(source: Directory, name: str, target: Directory, other_name: str) -> bool:
    one, other = source.status(name), target.status(other_name)
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _replace(source: Directory, name: str, target: Directory, sha256: str, draft: str) -> None:
    target.unlink(draft)
    source.link(name, target, draft)
    crash_point("blob.after_own_link")
    target.rename(draft, sha256)
    crash_point("blob.after_rename")
