"""Finished bytes, `blobs/ab/cd/<sha256>`: placed by a link, opened, measured and hashed. Runs in threads.

Refuses to know who has a blob: the caller holds the lock of its row.
"""

import asyncio
import errno
import os
import secrets
import weakref
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from stat import S_ISDIR

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload
from uploader.storage import disk
from uploader.storage.base import Arrival, Body, Found, Gone
from uploader.storage.disk import Directory, Root
from uploader.storage.hashes import identify
from uploader.storage.local import directories
from uploader.storage.local.directories import signature_name, upload_directory
from uploader.storage.store import Threads
from uploader.tasks import Pool

# The trash: bytes that lost their place, `trash/blobs/ab/<sha256>.<token>` and `trash/uploads/<upload_id>.<token>`.
#
# A file gets its name here before it loses its own, so that no crash loses it. What lies here is as old as its ctime,
# which a link and a rename renew.


class Trash:
    """Everything under `trash`."""

    def __init__(self, root: Directory, *, keeps: bool) -> None:
        """`keeps`: whether anything is kept at all."""
        self._root = root
        self.keeps = keeps
        # On the disk, by a walk of a moment ago and what this process did since.
        self.held_bytes = 0
        # Until when that is fresh, by the monotonic clock.
        self.fresh_until = float("-inf")

    # In threads

    def keep(self, directory: Directory, name: str, sha256: str) -> None:
        """Give a file that is about to lose its name another one here, durably."""
        if not self.keeps:
            return
        with self._make(f"blobs/{sha256[:2]}") as trash:
            directory.link(name, trash, _unique(sha256))
            trash.sync()
        self.held_bytes += directory.status(name).st_blocks * directories.BLOCK_BYTES
        crash_point("trash.after_link")

    def put_away(self, found: Found) -> bool:
        """Move what was found here, unless it changed since; whether this call did it."""
        if not self.keeps or found.is_draft:
            return directories.remove(self._root, found)
        if not directories.is_still(self._root, found):
            return False
        parent, _, name = found.place.rpartition("/")
        try:
            with self._root.enter(parent) as directory:
                if S_ISDIR(directory.status(name).st_mode):
                    self._move_directory(directory, name)
                    self.held_bytes += found.disk_bytes
                else:
                    if directory.make_way(name):
                        self.keep(directory, name, found.name)
                    directories.unlink_blob(directory, name)  # a power cut may undo it: then it has both names
        except FileNotFoundError:
            return False  # somebody else was faster
        return True

    def _move_directory(self, parent: Directory, name: str) -> None:
        with self._make("uploads") as trash:
            parent.rename(name, _unique(name), trash)
            trash.sync()
        crash_point("trash.after_rename")

    def _make(self, path: str) -> Directory:
        with self._root.enter("trash") as top:
            return top.make(path)

    def restore_upload(self, found: Found, upload: Upload) -> bool:
        """Move the directory of an upload back, unless it has one; whether this call did it."""
        parent, _, name = upload.place.rpartition("/")
        trash, _, unique = found.place.rpartition("/")
        try:
            with self._root.enter(trash) as source, self._root.make(parent) as target:
                source.rename(unique, name, target)
                target.sync()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True


def _unique(name: str) -> str:
    return f"{name}.{secrets.token_hex(16)}"


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
            with disk.opened(target.create_to_write(draft)) as descriptor:
                write_all(descriptor, pieces)
                disk.sync_data(descriptor)
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
                content = directory.read_whole(signature_name(sha256))
        except FileNotFoundError:
            return None
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


# Contents that come whole: written under the name of their digest before there is a row, and looked at once more under
# the lock of that row.
#
# A name without a row counts for nothing: whoever has other bytes for it puts them in its place, and what is left of a
# crash is housekeeping's. So a name may be there before its bytes are durable, and all that was written at one time is
# made durable by one call.


# A content of more is hashed where long work is done, and waits for no other one.
_SMALL_BYTES = 256 << 10
# From so many contents on one sync of the whole filesystem takes less than one for each file and directory.
_MANY = 4
# What is stored together at most.
_GROUP = 256


class LocalArrivals:
    """The contents that arrive in this process. Small ones that come while others are being stored are stored together."""

    def __init__(self, root: Root, blobs: Blobs, threads: Threads) -> None:
        self._root = root
        self._blobs = blobs
        self._threads = threads
        # Whether a sync of the whole filesystem does here what it should.
        self.syncs_whole = False
        self._waiting: list[tuple[Sequence[Arrival], asyncio.Future[None]]] = []
        self._storing: asyncio.Task[None] | None = None

    async def store(self, arrivals: Sequence[Arrival]) -> None:
        large = [arrival for arrival in arrivals if arrival.body.length > _SMALL_BYTES]
        for arrival in large:
            await self._threads.long_hashing.run(identify, arrival)
        if large:
            await self._threads.long.run(self._store, arrivals)
            return
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((arrivals, stored))
        if self._storing is None or self._storing.done():
            self._storing = asyncio.create_task(self._store_waiting(), name="store arrivals")
        await stored

    async def _store_waiting(self) -> None:
        while self._waiting:
            group: list[tuple[Sequence[Arrival], asyncio.Future[None]]] = []
            while self._waiting and sum(len(arrivals) for arrivals, _ in group) < _GROUP:
                group.append(self._waiting.pop(0))
            error: BaseException | None = None
            try:
                await self._store_group([arrival for arrivals, _ in group for arrival in arrivals])
            except BaseException as failure:  # whatever ends this: nobody is to wait for ever
                error = failure
            for _, stored in group:
                if not stored.done():
                    stored.set_result(None) if error is None else stored.set_exception(error)

    async def _store_group(self, arrivals: Sequence[Arrival]) -> None:
        is_short = sum(arrival.body.length for arrival in arrivals) <= _SMALL_BYTES
        await (self._threads.disk if is_short else self._threads.long).run(self._store, arrivals)

    # In a thread

    def place_blobs(self, arrivals: Sequence[Arrival]) -> Mapping[str, str]:
        try:
            self._place(arrivals)
        except OSError as error:
            raise disk.refusal(error) from error
        return {}  # the SHA-256 says where each is

    def _store(self, arrivals: Sequence[Arrival]) -> None:
        whole = len(arrivals) >= _MANY and self.syncs_whole
        written: dict[str, object] = {}
        # Opened before anything is written: what is written from here on, this descriptor is told of if it fails.
        with self._root.enter("blobs") as blobs:
            for arrival in arrivals:
                try:
                    if identify(arrival):
                        self._write_once(blobs, arrival, written, synced=not whole)
                except OSError as error:
                    arrival.error = disk.refusal(error)  # of this content alone
            crash_point("arrival.after_write")
            if whole:
                blobs.sync_all()
                crash_point("arrival.after_sync")

    def _write_once(self, blobs: Directory, arrival: Arrival, written: dict[str, object], *, synced: bool) -> None:
        """`written`: where contents are that this call has written before."""
        sha256 = arrival.sha256_of_bytes
        if sha256 not in written:
            make = blobs.make if synced else blobs.make_unsynced
            with make(fan_out(sha256)) as directory:
                written[sha256] = _write_blob(directory, sha256, arrival.body, synced=synced)
                if synced:
                    directory.sync()
        arrival.place = written[sha256]

    def _place(self, arrivals: Sequence[Arrival]) -> None:
        placed: dict[str, object] = {}
        for arrival in arrivals:
            sha256, place = arrival.sha256_of_bytes, arrival.place
            if sha256 not in placed:
                if not isinstance(place, os.stat_result) or not self._root.has(
                    blob_path(sha256), place, unchanged=True
                ):
                    place = self._blobs.write(arrival.body.pieces(), sha256)
                placed[sha256] = place
            arrival.place = placed[sha256]


def _write_blob(directory: Directory, sha256: str, body: Body, *, synced: bool) -> os.stat_result | None:
    """What has the bytes of a body under the name of their digest: a new file, or one that is there already. None if that
    holds something else, can't be read, or goes at this moment."""
    is_new = True
    try:
        descriptor = directory.create_to_write(sha256)
    except FileExistsError:
        is_new = False
        try:
            descriptor = directory.open_to_write(sha256)
        except FileNotFoundError:
            return None
    try:
        if not is_new and not _holds(descriptor, body):
            return None
        # The same bytes once more: what the page cache has may be of a sync that failed, and no later one tells of it.
        _fill(descriptor, body, cut_off=is_new)
        if synced:
            disk.sync_data(descriptor)
        return disk.status(descriptor)
    finally:
        disk.close(descriptor)


def _fill(descriptor: int, body: Body, *, cut_off: bool) -> None:
    """`cut_off`: leave nothing of what can't be written whole. Not its name: that may be somebody else's by now."""
    try:
        write_all(descriptor, body.pieces())
    except BaseException:
        if cut_off:
            disk.resize(descriptor, 0)
        raise


def _holds(descriptor: int, body: Body) -> bool:
    if disk.status(descriptor).st_size != body.length:
        return False
    offset = 0
    for piece in body.pieces():
        try:
            found = disk.read(descriptor, len(piece), offset)
        except OSError as error:
            if error.errno in disk.DAMAGED:
                return False
            raise
        if found != piece:
            return False
        offset += len(piece)
    return True
