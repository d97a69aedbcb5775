"""The locks of an upload, and the right to append to it: nobody waits in a thread, and a crash lets go of all.

One appends at a time, in whatever process, and the newest wins: the holder has one byte of the map locked, and whoever wants
the right locks another one and waits. The holder sees that, ends what it is about, and lets go; no message is sent for it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

# The CRC-32 of zlib, by instructions for it: in a fraction of the time.
from isal.isal_zlib import crc32

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload, chunk_count, chunk_length
from uploader.errors import Unavailable, Unverified, UploadBusy
from uploader.storage import disk
from uploader.storage.base import Gone
from uploader.storage.disk import try_lock
from uploader.storage.local import chunks as formats
from uploader.storage.local.chunks import ChunkFiles, let_go, shape_of, tail_field
from uploader.storage.local.digests import DigestFiles
from uploader.storage.local.directories import KeptFiles, OpenFiles, upload_directory
from uploader.tasks import Pool, uninterrupted
from uploader.wait_budget import wait_budget

# Who has a lock for longer may wait for a store that is silent.
LONG_SECONDS = 1.0
# For all that others have, less what the request has waited before, so that whoever gives up has its answer within 10 s. A
# holder looks several times meanwhile, and has little left to do then.
PATIENCE_SECONDS = 8.0
# So much a map has all the same.
_LEAST_SECONDS = 1.0
_PAUSE_SECONDS = 0.002


async def wait_for_lock(
    descriptor: int, start: int, length: int, timeout_seconds: float, refusal: type[Unavailable] = Unavailable
) -> None:
    """Raises `refusal` if others keep it for that long."""
    began, pause = time.monotonic(), 0.0005
    while not try_lock(descriptor, start, length):
        if time.monotonic() > began + timeout_seconds:
            raise refusal("This upload is busy; try again.")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.01)
    wait_budget().note(began, LONG_SECONDS)


def is_unlinked(descriptor: int) -> bool:
    try:
        return disk.is_unlinked(descriptor)
    except OSError as error:
        raise disk.refusal(error) from error


class LocalAppender:
    """Whoever holds the right, by files of its own: those of the chunks that it stores are others."""

    def __init__(self, upload: Upload, chunks: ChunkFiles, kept: KeptFiles, pool: Pool) -> None:
        self._upload = upload
        self._chunks = chunks
        self._kept = kept
        self._pool = pool
        # For all that others have, together.
        self._deadline = time.monotonic() + wait_budget().left("who appends", PATIENCE_SECONDS)
        self._files: OpenFiles
        # What was read with the right, for whoever asks first.
        self._first: formats.ChunkMap | None = None

    async def begin(self) -> None:
        """Get the right. Raises Gone, UploadBusy."""
        files = self._kept.take(self._upload.id)
        if files is not None:
            try:
                await self._lock(files)
            except Gone:  # or the files that were open were replaced
                files = None
        if files is None:
            await self._lock(await self._open())

    async def _open(self) -> OpenFiles:
        opening = self._pool.run(self._chunks.open, self._upload)
        try:
            return await uninterrupted(opening)
        except Unverified as error:
            raise Gone(self._upload.id) from error  # there is no data beside the map
        except asyncio.CancelledError:
            if opening.exception() is None:
                self._kept.drop(opening.result())
            raise

    async def _lock(self, files: OpenFiles) -> None:
        try:
            for offset in (formats.CLAIM_OFFSET, formats.APPEND_OFFSET):
                await wait_for_lock(files.map, offset, 1, self._deadline - time.monotonic(), UploadBusy)
            disk.unlock(files.map, formats.CLAIM_OFFSET, 1)
            self._first = await uninterrupted(self._pool.run(self._chunks.begin_append, self._upload, files))
        except BaseException:
            let_go(files, self._kept.drop)
            raise
        self._files = files

    def end(self) -> None:
        """Let go of it."""
        let_go(self._files, self._kept.keep)

    @property
    def is_claimed(self) -> bool:
        return disk.is_locked(self._files.map, formats.CLAIM_OFFSET, 1)

    async def read_map(self) -> formats.ChunkMap:
        """Raises UploadBusy where a chunk is written for too long: a closer holds all records, perhaps to read all of it."""
        chunk_map, self._first = self._first, None
        deadline = max(self._deadline, time.monotonic() + _LEAST_SECONDS)
        while chunk_map is None:
            if time.monotonic() > deadline:
                raise UploadBusy()
            chunk_map = await uninterrupted(self._pool.run(self._chunks.read_settled, self._upload, self._files))
            if chunk_map is None:
                await asyncio.sleep(_PAUSE_SECONDS)
        return chunk_map


@asynccontextmanager
async def appending(upload: Upload, chunks: ChunkFiles, kept: KeptFiles, pool: Pool) -> AsyncIterator[LocalAppender]:
    """Have the right to append. Raises Gone, UploadBusy."""
    appender = LocalAppender(upload, chunks, kept, pool)
    await appender.begin()
    try:
        yield appender
    finally:
        appender.end()


# An upload whose every chunk is locked, and the changes of its files that are made then: chunks that went bad on the
# disk are withdrawn, and a length that was told late is settled. What it changes runs in threads.
#
# Until a length is settled the map has records for one chunk more than there may ever be, and its header says so. Where
# the last bytes that came are a tail, they are a chunk now. A crash at any step leaves a header of before, and whoever
# comes next begins again.


LOCK_TIMEOUT_SECONDS = 30.0
logger = logging.getLogger(__name__)
_READ_BYTES = 1 << 20
_TURN_BYTES = 64 << 20


def needs_settling(root: disk.Directory, upload: Upload) -> bool:
    """Whether a map is still that of an upload whose length is not known, but it is. Raises Gone."""
    if not upload.length_known:
        return False
    with upload_directory(root, upload) as directory, disk.opened(directory.open_to_read("map")) as descriptor:
        header = disk.read(descriptor, formats.MAP_RECORDS_OFFSET, 0)
        return formats.boot_id_of(header, shape_of(upload).unbounded) is not None


def settle(root: disk.Directory, upload: Upload) -> None:
    """Give the files the form of an upload of this length. The caller holds all locks, and that of the digests, which are of
    whole chunks: until now the last one was none. Repeatable. Raises Gone."""
    with upload_directory(root, upload) as directory, disk.opened(directory.open_to_write("map")) as descriptor:
        header = disk.read(descriptor, formats.MAP_RECORDS_OFFSET, 0)
        boot_id = formats.boot_id_of(header, shape_of(upload).unbounded) or ""
        _settle_data(directory, upload.size, durable=not boot_id)
        _settle_map(descriptor, upload, header, boot_id)


def _settle_data(directory: disk.Directory, size_bytes: int, *, durable: bool) -> None:
    """`durable`: all that is in it is, so that there is little to write."""
    with disk.opened(directory.open_to_write("data")) as data:
        disk.resize(data, size_bytes)  # what a killed writer left beyond was never acknowledged
        if durable:
            disk.sync_data(data)
    crash_point("length.after_data")


def _settle_map(descriptor: int, upload: Upload, header: bytes, boot_id: str) -> None:
    shape = shape_of(upload)
    disk.resize(descriptor, shape.map_length)
    tail = formats.tail_of(header, shape.unbounded)
    if tail is not None and formats.is_last_chunk(tail, shape):
        record = formats.map_record(tail.checksum)
        disk.write(descriptor, memoryview(record), formats.map_record_offset(tail.number))
    disk.sync_data(descriptor)
    crash_point("length.after_map_record")
    kept = tail_field(header) if formats.tail_of(header, shape) else formats.NO_TAIL
    # The last step, in one write.
    disk.write(descriptor, memoryview(formats.map_header(boot_id, shape, kept)), 0)
    disk.sync_data(descriptor)
    crash_point("length.after_map")


class _ReadMap(Protocol):
    def __call__(self, upload: Upload, verified: bool = True) -> formats.ChunkMap: ...


class BadChunks:
    """Reads what was stored again, and takes back what is not as it was."""

    def __init__(self, root: disk.Directory, read_map: _ReadMap, check_stopping: Callable[[], None]) -> None:
        self._root = root
        self._read_map = read_map
        self._check_stopping = check_stopping

    def turns(self, upload: Upload) -> Iterator[range]:
        """All chunks in portions, each read at one go by a thread, so that other uploads have the thread in between."""
        at_once = max(_TURN_BYTES // upload.chunk_size, 1)
        count = chunk_count(upload.extent, upload.chunk_size)
        return (range(first, min(first + at_once, count)) for first in range(0, count, at_once))

    def find(self, upload: Upload, numbers: range) -> list[int]:
        """The chunks on the map whose bytes, as the disk has them, no longer have the checksum of their record, or can't be
        read; that of the tail, too. Raises Gone, Stopping."""
        chunk_map = self._read_map(upload, verified=False)
        checksums, tail = chunk_map.checksums, chunk_map.tail
        if tail is not None:
            checksums[tail.number] = tail.checksum
        lengths = {} if tail is None else {tail.number: tail.length}
        stored = [number for number in numbers if checksums[number] is not None]
        with upload_directory(self._root, upload) as directory:
            try:
                data = directory.open_to_read("data")
            except FileNotFoundError:
                return stored
        try:
            disk.drop_cache(data)
            found = {number: self._checksum(data, upload, number, lengths.get(number)) for number in stored}
        finally:
            disk.close(data)
        unreadable = [number for number in stored if found[number] is None]
        if unreadable:
            logger.error("stored chunks can't be read", extra={"upload_id": upload.id, "chunks": unreadable})
        return [number for number in stored if found[number] != checksums[number]]

    def _checksum(self, data: int, upload: Upload, number: int, length: int | None) -> int | None:
        """Of a chunk, or of so many bytes of it. None if the disk does not give them back; an error that says nothing of
        these bytes is raised."""
        self._check_stopping()
        try:
            return _read_checksum(data, upload, number, length)
        except OSError as error:
            if error.errno not in disk.DAMAGED:
                raise
            return None

    def withdraw(self, upload: Upload, numbers: list[int], *, verified: bool) -> None:
        """Take chunks off the map, durably, and the tail with them; the caller holds all locks. `verified`: all others are
        whole, so the files get the form that they should have. Raises Gone."""
        shape = shape_of(upload)
        with (
            upload_directory(self._root, upload) as directory,
            disk.opened(directory.open_to_write("map")) as descriptor,
        ):
            tail = self._withdraw_tail(descriptor, numbers, shape)
            for number in numbers:
                disk.write(descriptor, memoryview(bytes(formats.MAP_RECORD_LENGTH)), formats.map_record_offset(number))
                crash_point("withdraw.after_map_record")
            if verified:
                disk.resize(descriptor, shape.map_length)
            disk.sync_data(descriptor)
            if verified:
                _mend_data(directory, upload.size if upload.length_known else None)
                # The last step: until then the map is that of an upload that has to be checked.
                disk.write(descriptor, memoryview(formats.map_header("", shape, tail)), 0)
                disk.sync_data(descriptor)

    def _withdraw_tail(self, map_descriptor: int, numbers: list[int], shape: formats.MapShape) -> bytes:
        """What the map has of a tail from now on: none of a chunk that goes, nor of one after it, where it would count again
        once that is filled. It goes first: of a chunk that is not there it would be in force."""
        header = disk.read(map_descriptor, formats.MAP_RECORDS_OFFSET, 0)
        tail = formats.tail_of(header, shape)
        if tail is None:
            return formats.NO_TAIL
        if all(number > tail.number for number in numbers):
            return tail_field(header)
        disk.write(map_descriptor, memoryview(formats.NO_TAIL), formats.TAIL_OFFSET)
        disk.sync_data(map_descriptor)
        crash_point("withdraw.after_tail")
        return formats.NO_TAIL


def _read_checksum(data: int, upload: Upload, number: int, length: int | None) -> int:
    checksum, offset = 0, number * upload.chunk_size
    end = offset + (length or chunk_length(number, upload.extent, upload.chunk_size))
    while offset < end:
        piece = disk.read(data, min(_READ_BYTES, end - offset), offset)
        if not piece:
            return -1  # `data` is cut short
        checksum = crc32(piece, checksum)
        offset += len(piece)
    return checksum


def _mend_data(directory: disk.Directory, size_bytes: int | None) -> None:
    """Give a data file its size, if that is known, and make durable what is in it: afterwards the map says that all of it
    is."""
    with suppress(FileNotFoundError):
        directory.make_way("data")
    with suppress(FileExistsError):
        directory.create_empty("data", size_bytes or 0)
    directory.sync()
    with disk.opened(directory.open_to_write("data")) as descriptor:
        if size_bytes is not None:
            disk.resize(descriptor, size_bytes)
        disk.sync_data(descriptor)


@asynccontextmanager
async def closing(upload: Upload, files: ChunkFiles, pool: Pool) -> AsyncIterator[None]:
    """Lock all chunks of an upload. Raises Gone, Unavailable."""
    with disk.opened(await pool.run(files.open_map, upload)) as descriptor:
        # While the closer has the gate no writer can start, so it waits for those under way and for no others.
        await wait_for_lock(descriptor, formats.GATE_OFFSET, formats.GATE_LENGTH, LOCK_TIMEOUT_SECONDS)
        # To the end of the file.
        await wait_for_lock(descriptor, formats.MAP_RECORDS_OFFSET, 0, LOCK_TIMEOUT_SECONDS)
        if is_unlinked(descriptor):
            raise Gone(upload.id)
        yield


class LockedFiles:
    """Changes the files of uploads whose locks its caller holds, all of them."""

    def __init__(self, root: disk.Directory, digests: DigestFiles, bad_chunks: BadChunks, pool: Pool) -> None:
        self._root = root
        self._digests = digests
        self._bad_chunks = bad_chunks
        self._pool = pool

    async def withdraw(self, upload: Upload, numbers: list[int], *, generation: int, verified: bool) -> None:
        """As `UploadBytes.withdraw`."""
        async with self._digests_locked(upload) as digest:
            await self._pool.run(self._withdraw, upload, numbers, generation, digest, verified)

    def _withdraw(self, upload: Upload, numbers: list[int], generation: int, digest: int, verified: bool) -> None:
        """The digests go first: they were of these chunks, too."""
        self._digests.forget_locked(digest, generation)
        crash_point("withdraw.after_digest")
        self._bad_chunks.withdraw(upload, numbers, verified=verified)

    async def settle_length(self, upload: Upload) -> bool:
        """As `UploadBytes.settle_length`."""
        if not await self._pool.run(needs_settling, self._root, upload):
            return False
        async with self._digests_locked(upload):
            await self._pool.run(settle, self._root, upload)
        return True

    @asynccontextmanager
    async def _digests_locked(self, upload: Upload) -> AsyncIterator[int]:
        """A worker that is hashing now would save a digest of what was."""
        with disk.opened(await self._pool.run(self._digests.open, upload)) as descriptor:
            await wait_for_lock(descriptor, 0, 0, LOCK_TIMEOUT_SECONDS)
            yield descriptor
