"""Blobs, `blobs/ab/cd/<sha256>`: placed by a link, opened, measured. Also whole files, and the trash.

Refuses to know whose a blob is: the caller holds the lock of its row.

The trash has bytes that lost their place, as `trash/blobs/ab/<sha256>.<token>`, with the checksums of their blocks beside
them, and `trash/uploads/<upload_id>.<token>`. A file gets a name in the trash before it loses the old name, so no crash
loses a file. The age of an entry is its ctime, which a link and a rename renew.

A whole file is written under the name of its digest before it has a row, and looked at once more under the lock of the row.
A name without a row counts for nothing: other bytes may take its place, and housekeeping removes the remains of a crash. So
a name may exist before the bytes are durable, and one sync makes the files of many requests durable.
"""

import asyncio
import errno
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from hashlib import sha256 as new_sha256
from itertools import islice
from stat import S_ISDIR
from typing import TypeVar

from uploader.domain.upload import Upload
from uploader.errors import StorageAway, StorageFull
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.tasks import Pool
from uploader.storage import disk
from uploader.storage.base import Arrival, Body, Found, Gone, Stretch
from uploader.storage.disk import Directory, Root
from uploader.storage.hashes import BlockChecksums, are_blocks_listed, identify, list_of
from uploader.storage.local import directories
from uploader.storage.local.blocks import BlobFile, BlockList, LocalBlob, VerifiedBlob
from uploader.storage.local.directories import checksums_name, signature_name
from uploader.storage.store import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")
_READ_BYTES = 1 << 20
# How often to try when a directory is removed just as it is used.
_WITHIN_ATTEMPTS = 100
# The beginning of a stored signature, with the version of its format.
_SIGNATURE = b"uploader signature 1\n"
_LIST_BATCH = 250
# Larger contents are hashed with other long work, and do not wait for others.
_SMALL_BYTES = 256 << 10
# For this many contents, one sync of the whole filesystem takes less time than one sync per file and directory.
_MANY = 4
# Contents to store together, at most.
_GROUP = 256


class LocalBlobs(Store):
    """Everything under `blobs` and `trash`."""

    def __init__(self, root: Root, *, keeps_trash: bool, verifies: bool) -> None:
        super().__init__()
        self._root = root
        # True if bytes are compared before anybody gets them.
        self._verifies = verifies
        self.keeps_trash = keeps_trash
        # Bytes on the disk, from the last walk, and the changes by this process since.
        self._trash_bytes = 0
        # The end of the trust in this figure, by the monotonic clock.
        self._trash_fresh_until = float("-inf")
        # Whole files that came while others are being stored.
        self._arrivals: list[tuple[Sequence[Arrival], asyncio.Future[None]]] = []
        self._storing: asyncio.Task[None] | None = None

    # Reading

    async def open_blob(self, sha256: str, size: int) -> LocalBlob:
        """Open a blob in one hop, because every download begins like this."""
        return await self.threads.reading.run(self._open_blob, blob_path(sha256), size, sha256)

    async def open_found(self, found: Found) -> LocalBlob:
        return await self.threads.long.run(self._open_blob, found.place, found.size, found.name)

    def _open_blob(self, place: str, size: int, sha256: str) -> LocalBlob:
        """Open a blob; its bytes will be compared unless the store does not verify."""
        parent, _, name = place.rpartition("/")
        with _entered(self._root, parent) as directory:
            file = self._open_in(directory, name, size, sha256)
        return VerifiedBlob(self.threads.reading, file) if self._verifies else LocalBlob(self.threads.reading, file)

    def _open_in(self, directory: Directory, name: str, size: int, sha256: str) -> BlobFile:
        """Open the list of checksums, then the blob: nobody unlinks the list before the blob. Raises Gone,
        FileNotFoundError."""
        compared_with = sha256 if self._verifies else None
        listed = None if compared_with is None else BlockList.open(directory, name, compared_with, size)
        try:
            descriptor = directory.open_to_read(name)
        except BaseException:
            if listed is not None:
                disk.close(listed.descriptor)
            raise
        file = BlobFile(descriptor, size, compared_with, listed)
        if disk.status(descriptor).st_size != size:
            raise Gone(name)
        return file

    async def read_contents(self, contents: Sequence[tuple[str, int]]) -> list[bytes | None]:
        """Read all of them in one hop, because many small files are read like this."""
        return await self.threads.reading.run(self._read_contents, contents)

    def _read_contents(self, contents: Sequence[tuple[str, int]]) -> list[bytes | None]:
        try:
            with self._root.enter("blobs") as blobs:
                return [self._read_content(blobs, sha256, size) for sha256, size in contents]
        except FileNotFoundError:
            return [None] * len(contents)

    def _read_content(self, blobs: Directory, sha256: str, size: int) -> bytes | None:
        """Return a content of this size and SHA-256; None if it is missing or differs."""
        try:
            with (
                blobs.enter(fan_out(sha256)) as directory,
                disk.opened(directory.open_to_read(sha256)) as descriptor,
            ):
                content = disk.read(descriptor, size + 1, 0)
        except OSError:
            return None
        is_own = len(content) == size and (not self._verifies or new_sha256(content).hexdigest() == sha256)
        return content if is_own else None

    def _descriptor_of(self, place: str) -> int:
        """Open a blob to read. Raises Gone."""
        parent, _, name = place.rpartition("/")
        with _entered(self._root, parent) as directory:
            return directory.open_to_read(name)

    async def find_blob(self, sha256: str) -> Found | None:
        return await self.threads.disk.run(self._find_blob, sha256)

    def _find_blob(self, sha256: str) -> Found | None:
        found = directories.look(self._root, blob_path(sha256))
        if found is None:
            try:
                with self._root.enter("blobs"):
                    pass
            except FileNotFoundError as error:  # not this blob is missing, but the directory of all blobs
                raise StorageAway(inside="there is no directory blobs in UPLOADER_DATA") from error
        return found

    async def blob_sizes(self, sha256s: list[str]) -> list[int | None]:
        return await self.threads.disk.run(lambda: [self._blob_size(sha256) for sha256 in sha256s])

    def _blob_size(self, sha256: str) -> int | None:
        """Return the size of a blob; None also if the disk can't tell."""
        try:
            with self._root.enter(f"blobs/{fan_out(sha256)}") as directory:
                return directory.size(sha256)
        except OSError as error:
            if error.errno == errno.ENOENT or error.errno in disk.DAMAGED:
                return None
            raise

    def pieces(self, found: Found, *, cold: bool = False) -> Generator[memoryview]:
        descriptor = self._descriptor_of(found.place)
        buffer, done = disk.room_for(min(_READ_BYTES, found.size + 1)), 0
        with disk.opened(descriptor):
            if cold:
                disk.drop_cache(descriptor)
            while count := disk.read_into(descriptor, buffer, done):
                yield buffer[:count]
                done += count
                if cold:  # leave the page cache to downloads
                    disk.drop_cache(descriptor)

    # The checksums of blocks, `blobs/ab/cd/<sha256>.checksums`

    def blocks_of(self, found: Found) -> BlockChecksums | None:
        return BlockChecksums() if are_blocks_listed(found.size) else None

    def keep_checksums(self, found: Found, checksums: bytes) -> None:
        """Keep checksums beside the blob, unless they are there. A blob in the trash may come back: its list waits for
        it."""
        try:
            with self._root.make_unsynced(f"blobs/{fan_out(found.name)}") as directory:
                if not _is_kept(directory, found.name, found.size, checksums):
                    keep_list(directory, found.name, found.size, checksums)
        except OSError:
            logger.warning("checksums have no place beside their blob", extra={"sha256": found.name}, exc_info=True)

    # Signatures, `blobs/ab/cd/<sha256>.signature`

    def read_beside(self, found: Found) -> bytes | None:
        try:
            with self._root.enter(f"blobs/{fan_out(found.name)}") as directory:
                content = directory.read_whole(signature_name(found.name))
        except FileNotFoundError:
            return None
        return content.removeprefix(_SIGNATURE) if content.startswith(_SIGNATURE) else None

    def keep_beside(self, found: Found, content: bytes) -> None:
        draft = _unique(found.name)
        with (
            suppress(FileNotFoundError),  # the blob has gone meanwhile, and its directory
            self._root.enter(f"blobs/{fan_out(found.name)}") as directory,
            disk.opened(directory.create_to_write(draft)) as descriptor,
        ):
            try:
                disk.write(descriptor, memoryview(_SIGNATURE + content), 0)
                crash_point("signature.after_draft")
                directory.rename(draft, signature_name(found.name))
            except BaseException:
                directory.unlink(draft)
                raise

    # Placing, in threads

    def _link_blob(self, source: Directory, name: str, sha256: str, draft: str, *, synced: bool = True) -> None:
        """Link a file that is durable by now as a blob. Each step may be repeated after a crash at any other. Not `synced`:
        the caller syncs the filesystem."""

        def link(target: Directory) -> None:
            try:
                source.link(name, target, sha256)
                crash_point("blob.after_link")
            except FileExistsError:
                if not os.path.samestat(source.status(name), target.status(sha256)):
                    # Bytes that were just verified replace any bytes in their place.
                    self._make_way(target, sha256)
                    target.unlink(draft)
                    source.link(name, target, draft)
                    crash_point("blob.after_own_link")
                    target.rename(draft, sha256)
                    crash_point("blob.after_rename")
            if are_blocks_listed(target.size(sha256)):
                _place_list(source, target, sha256)
            if synced:
                target.sync()

        path = f"blobs/{fan_out(sha256)}"
        _within(
            partial(directories.made, self._root, path) if synced else partial(self._root.make_unsynced, path), link
        )
        crash_point("blob.after_directory_sync")

    def _make_way(self, target: Directory, sha256: str) -> None:
        """Keep a file in the trash that is about to be replaced. Anything but a file is removed."""
        if target.make_way(sha256):
            self._keep_file(target, sha256, sha256)

    # The trash

    async def put_away(self, found: Found) -> bool:
        return await self.giving_back(self.threads.long, self._put_away, found)

    def _put_away(self, found: Found) -> bool:
        if not self.keeps_trash or found.is_draft:
            return directories.remove(self._root, found)
        if not directories.is_still(self._root, found):
            return False
        parent, _, name = found.place.rpartition("/")
        try:
            with self._root.enter(parent) as directory:
                if S_ISDIR(directory.status(name).st_mode):
                    with directories.made(self._root, "trash/uploads") as trash:
                        directory.rename(name, _unique(name), trash)
                        trash.sync()
                    crash_point("trash.after_rename")
                    self._trash_bytes += found.disk_bytes
                else:
                    if directory.make_way(name):
                        self._keep_file(directory, name, found.name)
                    directories.unlink_blob(directory, name)  # a power cut may undo it and leave both names
        except FileNotFoundError:
            return False  # somebody else was faster
        return True

    def _keep_file(self, directory: Directory, name: str, sha256: str) -> None:
        """Give a file a second name in the trash, durably, before it loses its own."""
        if not self.keeps_trash:
            return
        with directories.made(self._root, f"trash/blobs/{sha256[:2]}") as trash:
            unique = _unique(sha256)
            directory.link(name, trash, unique)
            with suppress(OSError):  # the copy is valid without its checksums
                directory.link(checksums_name(sha256), trash, checksums_name(unique))
            trash.sync()
        self._trash_bytes += directory.status(name).st_blocks * directories.BLOCK_BYTES
        crash_point("trash.after_link")

    async def list_trash(self, name: str | None = None) -> AsyncIterator[list[Found]]:
        if name is not None:
            yield await self.threads.long.run(lambda: list(directories.trashed(self._root, name)))
            return
        async for batch in self._walk(directories.trashed(self._root)):
            yield batch

    def _walk(self, found: Iterator[Found]) -> AsyncIterator[list[Found]]:
        return self.in_batches(self.threads.long, iter(lambda: list(islice(found, _LIST_BATCH)), []))

    async def good_copies(self, contents: Sequence[tuple[str, int]]) -> dict[str, Found]:
        sizes = {sha256: size for sha256, size in contents if size <= _SMALL_BYTES}
        return await self.threads.long_hashing.run(self._good_copies, sizes)

    def _good_copies(self, sizes: Mapping[str, int]) -> dict[str, Found]:
        good: dict[str, Found] = {}
        for copy in directories.copies_of(self._root, sizes):
            if copy.name not in good and copy.size == sizes[copy.name]:
                with suppress(OSError, Gone):  # to read it alone tells why
                    digests = self._hash(copy, None, with_md5=False)
                    if digests is not None and digests.sha256 == copy.name:
                        good[copy.name] = copy
        return good

    async def restore_blob(self, found: Found) -> None:
        await self.threads.long.run(self._restore_blob, found)

    async def restore_blobs(self, found: Sequence[Found]) -> None:
        await self.threads.long.run(self._restore_blobs, found)

    def _restore_blobs(self, found: Sequence[Found]) -> None:
        if len(found) < _MANY or self.doubt is not None:
            for each in found:
                self._restore_blob(each)
            return
        with self._root.enter("blobs") as blobs:  # before anything is linked, as in `_write_arrivals`
            for each in found:
                self._restore_blob(each, synced=False)
            blobs.sync_all()
        for each in found:
            self._forget_copy(each)

    def _restore_blob(self, found: Found, *, synced: bool = True) -> None:
        """Link bytes from the trash as the blob that they were, then take their name in the trash away. Not `synced`: the
        caller syncs the filesystem, and then takes the name away."""
        parent, _, name = found.place.rpartition("/")
        try:
            with self._root.enter(parent) as source:
                self._link_blob(source, name, found.name, name, synced=synced)
        except FileNotFoundError as error:
            raise Gone(found.name) from error
        if synced:
            self._forget_copy(found)

    def _forget_copy(self, found: Found) -> None:
        parent, _, name = found.place.rpartition("/")
        with suppress(FileNotFoundError), self._root.enter(parent) as directory:
            directories.unlink_blob(directory, name)

    async def restore_upload(self, found: Found, upload: Upload) -> bool:
        return await self.threads.long.run(self._restore_upload, found, upload)

    def _restore_upload(self, found: Found, upload: Upload) -> bool:
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

    # Housekeeping

    async def list_blobs(self, after: str = "") -> AsyncIterator[Stretch]:
        async for batch in self._walk(directories.blob_files(self._root, after)):
            yield Stretch(batch, max(found.name for found in batch))
        yield Stretch([], None)

    async def remove_emptied(self, opened_before: datetime) -> None:
        """Remove empty directories of blobs. A blob placed at this moment makes its directory anew."""
        parts = directories.blob_directories(self._root)
        async for batch in self.in_batches(self.threads.long, iter(lambda: list(islice(parts, _LIST_BATCH)), [])):
            await self.threads.long.run(directories.remove_empty, self._root, batch)

    async def giving_back(self, pool: Pool, work: Callable[..., T], *of: object) -> T:
        """Run `work`, which frees space. If it needs a little space for that, give the ballast up. Raises as `work` does."""
        try:
            return await pool.run(work, *of)
        except StorageFull:
            if self.ballast is None or not await pool.run(self.ballast.free):
                raise
            return await pool.run(work, *of)

    async def remove(self, found: Found) -> bool:
        done = await self.giving_back(self.threads.long, directories.remove, self._root, found)
        self._trash_bytes -= done * found.in_trash * found.disk_bytes
        return done

    # Whole files. Small ones are stored together if they come while others are being stored.

    async def store_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        if self.ballast is not None:
            disk.check_room(self.ballast.reserve)
        large = [arrival for arrival in arrivals if arrival.body.length > _SMALL_BYTES]
        for arrival in large:
            await self.threads.digesting.run(_identify, arrival)
        if large:
            await self.threads.long.run(self._write_arrivals, arrivals)
            return
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals.append((arrivals, stored))
        if self._storing is None or self._storing.done():
            self._storing = asyncio.create_task(self._store_waiting(), name="store arrivals")
        await stored

    async def _store_waiting(self) -> None:
        while self._arrivals:
            group: list[tuple[Sequence[Arrival], asyncio.Future[None]]] = []
            while self._arrivals and sum(len(arrivals) for arrivals, _ in group) < _GROUP:
                group.append(self._arrivals.pop(0))
            together = [arrival for arrivals, _ in group for arrival in arrivals]
            is_short = sum(arrival.body.length for arrival in together) <= _SMALL_BYTES
            error: BaseException | None = None
            try:
                await (self.threads.disk if is_short else self.threads.long).run(self._write_arrivals, together)
            except BaseException as failure:  # any error: nobody may wait for ever
                error = failure
            for _, stored in group:
                if not stored.done():
                    stored.set_result(None) if error is None else stored.set_exception(error)

    # In a thread

    def place_arrivals(self, arrivals: Sequence[Arrival]) -> Mapping[str, str]:
        """Return no locations: the place of a blob follows from its SHA-256."""
        placed: dict[str, object] = {}
        for arrival in arrivals:
            sha256 = arrival.sha256_of_bytes
            if sha256 not in placed:
                try:
                    placed[sha256] = self._still_placed(arrival) or self._write_anew(arrival)
                except OSError as error:
                    raise disk.refusal(error) from error
            arrival.place = placed[sha256]
        return {}

    def _still_placed(self, arrival: Arrival) -> object:
        """Return the place of a stored arrival, if nobody has changed it since."""
        place = arrival.place
        if not isinstance(place, os.stat_result):
            return None
        return place if self._root.has(blob_path(arrival.sha256_of_bytes), place, unchanged=True) else None

    def _write_anew(self, arrival: Arrival) -> os.stat_result:
        """Write the arrival as its blob, durably, in place of other bytes. Return the status of the file."""
        sha256 = arrival.sha256_of_bytes
        draft = _unique(sha256)

        def write(target: Directory) -> os.stat_result:
            with disk.opened(target.create_to_write(draft)) as descriptor:
                write_all(descriptor, arrival.body.pieces())
                disk.sync_data(descriptor)
            crash_point("blob.after_draft")
            with suppress(FileNotFoundError):
                self._make_way(target, sha256)
            target.rename(draft, sha256)
            _keep_checksums(target, arrival)
            target.sync()
            return target.status(sha256)

        return _within(partial(directories.made, self._root, f"blobs/{fan_out(sha256)}"), write)

    def _write_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        """Write the arrivals. If they are few, or if the filesystem can't sync all at once, sync each by itself."""
        whole = len(arrivals) >= _MANY and self.doubt is None
        written: dict[str, object] = {}
        # Opened before anything is written: this descriptor is told of later writes that fail.
        with self._root.enter("blobs") as blobs:
            for arrival in arrivals:
                try:
                    if _identify(arrival):
                        sha256 = arrival.sha256_of_bytes
                        if sha256 not in written:
                            make = partial(blobs.make_unsynced if whole else blobs.make, fan_out(sha256))
                            write = partial(_write_arrival, arrival=arrival, synced=not whole)
                            written[sha256] = _within(make, write)
                        arrival.place = written[sha256]
                except OSError as error:
                    arrival.error = disk.refusal(error)  # of this content alone
            crash_point("arrival.after_write")
            if whole:
                blobs.sync_all()
                crash_point("arrival.after_sync")


def _within(make: Callable[[], Directory], work: Callable[[Directory], T]) -> T:
    """Run `work` in a directory that `make` opens or makes. If the directory is removed at this moment, as an empty one, try
    again."""
    for attempt in range(1, _WITHIN_ATTEMPTS + 1):
        is_removed = True
        try:
            with make() as directory:
                try:
                    return work(directory)
                finally:
                    is_removed = directory.is_removed
        except FileNotFoundError:
            if not is_removed or attempt == _WITHIN_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _identify(arrival: Arrival) -> bool:
    return identify(arrival, with_blocks=are_blocks_listed(arrival.body.length))


def _keep_checksums(directory: Directory, arrival: Arrival) -> None:
    if arrival.checksums:
        keep_list(directory, arrival.sha256_of_bytes, arrival.body.length, arrival.checksums)


def _write_arrival(directory: Directory, *, arrival: Arrival, synced: bool) -> os.stat_result | None:
    written = _write_blob(directory, arrival.sha256_of_bytes, arrival.body, synced=synced)
    _keep_checksums(directory, arrival)
    if synced:
        directory.sync()
    return written


def _write_blob(directory: Directory, sha256: str, body: Body, *, synced: bool) -> os.stat_result | None:
    """Write a body to the file with the name of its digest, new or not. Return None if an existing file has other bytes,
    can't be read, or goes at this moment."""
    is_new = True
    try:
        opened = directory.create_to_write(sha256)
    except FileExistsError:
        is_new = False
        try:
            opened = directory.open_to_write(sha256)
        except FileNotFoundError:
            return None
    with disk.opened(opened) as descriptor:
        if not is_new and not _holds(descriptor, body):
            return None
        try:
            # Write the same bytes again: the page cache may hold bytes of a failed sync, and no later sync reports them.
            write_all(descriptor, body.pieces())
        except BaseException:
            if is_new:
                # Leave nothing of an incomplete file but its name, which may already be somebody else's.
                disk.resize(descriptor, 0)
            raise
        if synced:
            disk.sync_data(descriptor)
        return disk.status(descriptor)


def _holds(descriptor: int, body: Body) -> bool:
    if disk.status(descriptor).st_size != body.length:
        return False
    try:
        return disk.holds(descriptor, body.pieces(), 0, body.length)
    except OSError as error:
        if error.errno in disk.DAMAGED:
            return False
        raise


def keep_list(directory: Directory, sha256: str, size: int, checksums: bytes) -> None:
    """Write the list beside a blob. If this fails, no list stays there, because an old one may be wrong."""
    made, name = list_of(sha256, size, checksums), f"{sha256}{directories.CHECKSUMS}"
    draft = _unique(sha256)
    try:
        try:
            with disk.opened(directory.create_to_write(draft)) as descriptor:
                disk.write(descriptor, memoryview(made), 0)
            crash_point("checksums.after_draft")
            directory.rename(draft, name)
        except OSError:
            logger.warning("the checksums of blocks can't be kept: the scrub will make them", exc_info=True)
            directory.unlink(draft)
            directory.unlink(name)
    except OSError:
        logger.debug("what is left of a list of checksums stays", exc_info=True)


def _is_kept(directory: Directory, sha256: str, size: int, checksums: bytes) -> bool:
    """Return whether a blob has exactly this list."""
    try:
        return directory.read_whole(f"{sha256}{directories.CHECKSUMS}") == list_of(sha256, size, checksums)
    except OSError:
        return False


def _place_list(source: Directory, target: Directory, sha256: str) -> None:
    """Move the list of an upload to its blob. It may be there already, or missing."""
    with suppress(OSError):
        source.rename("checksums", f"{sha256}{directories.CHECKSUMS}", target)
        crash_point("blob.after_checksums")


def write_all(descriptor: int, pieces: Iterable[memoryview]) -> None:
    offset = 0
    for piece in pieces:
        disk.write(descriptor, piece, offset)
        offset += len(piece)


@contextmanager
def _entered(root: Directory, path: str) -> Iterator[Directory]:
    """Yield a directory. Raises Gone if anything is missing in it."""
    try:
        with root.enter(path) as directory:
            yield directory
    except FileNotFoundError as error:
        raise Gone(path) from error


def blob_path(sha256: str) -> str:
    return f"blobs/{fan_out(sha256)}/{sha256}"


def fan_out(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256[2:4]}"


def _unique(name: str) -> str:
    return f"{name}.{secrets.token_hex(16)}"
