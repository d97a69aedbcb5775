"""Finished bytes, `blobs/ab/cd/<sha256>`: placed by a link, opened, measured and hashed. Runs in threads.

Refuses to know who has a blob: the caller holds the lock of its row.
"""

import errno
import os
import secrets
import weakref
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload
from uploader.storage import disk
from uploader.storage.base import Found, Gone
from uploader.storage.disk import Directory
from uploader.storage.local.temp import upload_directory
from uploader.storage.local.trash import Trash
from uploader.storage.local.walking import signature_name
from uploader.tasks import Pool

_READ_BYTES = 1 << 20
# In front of a signature, with the version of the format.
_SIGNATURE = b"uploader signature 1\n"


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

    def __init__(self, root: Directory, trash: Trash) -> None:
        self._root = root
        self._trash = trash

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

    def size(self, sha256: str) -> int | None:
        """In bytes; None if there is no such blob, or nobody can tell."""
        try:
            with self._directory(sha256) as directory:
                return directory.size(sha256)
        except OSError as error:
            if error.errno == errno.ENOENT or error.errno in disk.DAMAGED:
                return None
            raise

    def pieces(self, found: Found, *, cold: bool) -> Generator[memoryview]:
        """What was found, piece by piece. Raises Gone."""
        descriptor = self._open(found.place)
        buffer, done = memoryview(bytearray(_READ_BYTES)), 0
        try:
            if cold:
                disk.drop_cache(descriptor)
            while count := disk.read_into(descriptor, buffer, done):
                yield buffer[:count]
                done += count
                if cold:  # what is read here does not push out what is being served
                    disk.drop_cache(descriptor)
        finally:
            disk.close(descriptor)

    # Signatures, `blobs/ab/cd/<sha256>.signature`

    def read_signature(self, sha256: str) -> bytes | None:
        """What the file of a signature has."""
        try:
            with self._directory(sha256) as directory:
                descriptor = directory.open_to_read(signature_name(sha256))
        except FileNotFoundError:
            return None
        try:
            content = disk.read(descriptor, disk.status(descriptor).st_size, 0)
        finally:
            disk.close(descriptor)
        return content.removeprefix(_SIGNATURE) if content.startswith(_SIGNATURE) else None

    def keep_signature(self, sha256: str, content: bytes) -> None:
        """Raises Gone."""
        draft = f"{sha256}.{secrets.token_hex(16)}"
        with self._directory(sha256) as directory:
            descriptor = directory.create_to_write(draft)
            try:
                disk.write(descriptor, memoryview(_SIGNATURE + content), 0)
                crash_point("signature.after_draft")
                directory.rename(draft, signature_name(sha256))
            except BaseException:
                directory.unlink(draft)
                raise
            finally:
                disk.close(descriptor)

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
