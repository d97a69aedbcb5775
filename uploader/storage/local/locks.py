"""The locks of an upload, the right to append to it, and changes of its files while every chunk is locked: withdrawing
chunks that went bad on the disk, and settling a length that was told late.

No thread waits for a lock, and a crash releases all locks. One request appends at a time, in whichever process, and the
newest request wins: the holder has one byte of the map locked, and the next request locks another byte and waits. The holder
sees this lock, ends the work, and releases the byte; no message is sent.

Until the length is settled, the map has records for one chunk more than the largest upload, and its header says this. If the
last bytes that came are a tail, settling makes them a chunk. A crash at any step leaves the old header, and the next process
begins again.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from uploader.domain.upload import Upload, chunk_count, chunk_length
from uploader.errors import Unavailable, Unverified, UploadBusy
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.tasks import Pool, uninterrupted
from uploader.runtime.wait_budget import wait_budget
from uploader.storage import disk
from uploader.storage.base import Gone, Lost
from uploader.storage.disk import try_lock
from uploader.storage.local import chunks as formats
from uploader.storage.local.chunks import ChunkFiles, let_go, shape_of, tail_field
from uploader.storage.local.digests import DigestFiles
from uploader.storage.local.directories import KeptFiles, OpenFiles, upload_directory
from uploader.storage.store import Store

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_SECONDS = 30.0
# Whoever has a lock for longer may be waiting for a silent store.
LONG_SECONDS = 1.0
# The wait for all locks together, less the time for which the request has waited before: a request that gives up is answered
# within 10 s. A holder looks for claims several times meanwhile, and has little left to do then.
PATIENCE_SECONDS = 8.0
# The least time to wait for the map, even after that.
_LEAST_SECONDS = 1.0
_PAUSE_SECONDS = 0.002
_TURN_BYTES = 64 << 20


async def wait_for_lock(
    descriptor: int, start: int, length: int, timeout_seconds: float, refusal: type[Unavailable] = Unavailable
) -> None:
    """Lock a range. Raises `refusal` if others keep it locked for `timeout_seconds`."""
    began, pause = time.monotonic(), 0.0005
    while not try_lock(descriptor, start, length):
        if time.monotonic() > began + timeout_seconds:
            raise refusal("This upload is busy; try again.")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.01)
    wait_budget().note(began, LONG_SECONDS)


@dataclass(eq=False)
class LocalAppender:
    """A holder of the right to append. The open files are not shared with the chunks being stored."""

    _upload: Upload
    _chunks: ChunkFiles
    _kept: KeptFiles
    _pool: Pool
    # The map that was read when the right was taken, for the first `read_map`.
    _first: formats.ChunkMap | None = None
    _files: OpenFiles = field(init=False)

    def __post_init__(self) -> None:
        # One deadline for all locks.
        self._deadline = time.monotonic() + wait_budget().left("who appends", PATIENCE_SECONDS)

    async def begin(self) -> None:
        """Get the right. Raises Gone, UploadBusy."""
        files = self._kept.take(self._upload.id)
        if files is not None:
            with suppress(Gone):  # or only the kept files were replaced
                await self._lock(files)
                return
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
        let_go(self._files, self._kept.keep)

    @property
    def is_claimed(self) -> bool:
        return disk.is_locked(self._files.map, formats.CLAIM_OFFSET, 1)

    async def read_map(self) -> formats.ChunkMap:
        """Read the map. Raises UploadBusy if a chunk stays locked for too long: a closer may be reading all bytes."""
        chunk_map, self._first = self._first, None
        deadline = max(self._deadline, time.monotonic() + _LEAST_SECONDS)
        while chunk_map is None:
            if time.monotonic() > deadline:
                raise UploadBusy()
            chunk_map = await uninterrupted(self._pool.run(self._chunks.read_settled, self._upload, self._files))
            if chunk_map is None:
                await asyncio.sleep(_PAUSE_SECONDS)
        return chunk_map


def _settle(root: disk.Directory, upload: Upload) -> None:
    """Give the files the form of an upload of this length. Repeatable. Raises Gone."""
    with upload_directory(root, upload) as directory, disk.opened(directory.open_to_write("map")) as descriptor:
        header = disk.read(descriptor, formats.MAP_RECORDS_OFFSET, 0)
        boot_id = formats.boot_id_of(header, shape_of(upload).unbounded) or ""
        with disk.opened(directory.open_to_write("data")) as data:
            disk.resize(data, upload.size)  # bytes beyond it, from a killed writer, were never acknowledged
            if not boot_id:  # each chunk was synced, so there is little to write
                disk.sync_data(data)
        crash_point("length.after_data")
        _settle_map(descriptor, upload, header, boot_id)


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


def _mend_data(directory: disk.Directory, size_bytes: int | None) -> None:
    """Give a data file its size, if known, and make all bytes durable: the map is about to say that they are."""
    with suppress(FileNotFoundError):
        directory.make_way("data")
    with suppress(FileExistsError):
        directory.create_empty("data", size_bytes or 0)
    directory.sync()
    with disk.opened(directory.open_to_write("data")) as descriptor:
        if size_bytes is not None:
            disk.resize(descriptor, size_bytes)
        disk.sync_data(descriptor)


def _take_back(root: disk.Directory, upload: Upload, numbers: list[int], *, verified: bool) -> None:
    """Take chunks off the map, durably, and the tail with them. `verified`: all other chunks are whole, so map and data get
    the form that they should have. Raises Gone."""
    shape = shape_of(upload)
    with upload_directory(root, upload) as directory, disk.opened(directory.open_to_write("map")) as descriptor:
        tail = _take_back_tail(descriptor, numbers, shape)
        for number in numbers:
            disk.write(descriptor, memoryview(bytes(formats.MAP_RECORD_LENGTH)), formats.map_record_offset(number))
            crash_point("withdraw.after_map_record")
        if verified:
            disk.resize(descriptor, shape.map_length)
        disk.sync_data(descriptor)
        if verified:
            _mend_data(directory, upload.size if upload.length_known else None)
            # The last step: until then the map belongs to an upload that has to be checked.
            disk.write(descriptor, memoryview(formats.map_header("", shape, tail)), 0)
            disk.sync_data(descriptor)


def _take_back_tail(map_descriptor: int, numbers: list[int], shape: formats.MapShape) -> bytes:
    """Return the tail that the map keeps: none if a withdrawn chunk is its chunk or an earlier one, because the tail would
    count again after the earlier chunk is filled. A tail that goes is cleared first: once the record of its chunk is gone,
    an old tail would be in force again."""
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


class LockedUploads(Store):
    """Locks all chunks of an upload, and changes its files under these locks."""

    _root: disk.Root
    _chunks: ChunkFiles
    _kept: KeptFiles
    _digests: DigestFiles

    @asynccontextmanager
    async def appending(self, upload: Upload) -> AsyncIterator[LocalAppender]:
        appender = LocalAppender(upload, self._chunks, self._kept, self.threads.disk)
        await appender.begin()
        try:
            yield appender
        finally:
            appender.end()

    @asynccontextmanager
    async def locked(self, upload: Upload) -> AsyncIterator[None]:
        with disk.opened(await self.threads.disk.run(self._chunks.open_map, upload)) as descriptor:
            # While the closer has the gate, no writer can start. So the closer waits only for the writers under way.
            await wait_for_lock(descriptor, formats.GATE_OFFSET, formats.GATE_LENGTH, LOCK_TIMEOUT_SECONDS)
            # All records, to the end of the file.
            await wait_for_lock(descriptor, formats.MAP_RECORDS_OFFSET, 0, LOCK_TIMEOUT_SECONDS)
            try:
                if disk.is_unlinked(descriptor):
                    raise Gone(upload.id)
            except OSError as error:
                raise disk.refusal(error) from error
            yield

    @asynccontextmanager
    async def _digests_locked(self, upload: Upload) -> AsyncIterator[int]:
        """Lock the digests: a worker that is hashing now would save digests of the chunks as they were."""
        with disk.opened(await self.threads.disk.run(self._digests.open, upload)) as descriptor:
            await wait_for_lock(descriptor, 0, 0, LOCK_TIMEOUT_SECONDS)
            yield descriptor

    async def settle_length(self, upload: Upload) -> bool:
        if not upload.length_known or not await self.threads.disk.run(self._is_unsettled, upload):
            return False
        async with self._digests_locked(upload):
            await self.threads.disk.run(_settle, self._root, upload)
        return True

    def _is_unsettled(self, upload: Upload) -> bool:
        with (
            upload_directory(self._root, upload) as directory,
            disk.opened(directory.open_to_read("map")) as descriptor,
        ):
            header = disk.read(descriptor, formats.MAP_RECORDS_OFFSET, 0)
            return formats.boot_id_of(header, shape_of(upload).unbounded) is not None

    async def withdraw(
        self, upload: Upload, numbers: list[int], *, generation: int, verified: bool = False, lost: Lost | None = None
    ) -> None:
        def take_back(digest: int) -> None:
            # The digests go first: they are digests of these chunks, too.
            self._digests.forget_locked(digest, generation)
            crash_point("withdraw.after_digest")
            _take_back(self._root, upload, numbers, verified=verified)

        async with self._digests_locked(upload) as digest:
            await self.threads.disk.run(take_back, digest)

    async def find_bad_chunks(self, upload: Upload) -> list[int]:
        """Find bad chunks in portions, each in one hop to a thread: other uploads get the thread in between."""
        bad: list[int] = []
        at_once = max(_TURN_BYTES // upload.chunk_size, 1)
        count = chunk_count(upload.extent, upload.chunk_size)
        for first in range(0, count, at_once):
            numbers = range(first, min(first + at_once, count))
            bad += await self.threads.long_hashing.run(self._find_bad_chunks, upload, numbers)
        return bad

    def _find_bad_chunks(self, upload: Upload, numbers: range) -> list[int]:
        chunk_map = self._chunks.read_map(upload, verified=False)
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
        with disk.opened(data):
            disk.drop_cache(data)
            found = {number: self._checksum(data, upload, number, lengths.get(number)) for number in stored}
        unreadable = [number for number in stored if found[number] is None]
        if unreadable:
            logger.error("stored chunks can't be read", extra={"upload_id": upload.id, "chunks": unreadable})
        return [number for number in stored if found[number] != checksums[number]]

    def _checksum(self, data: int, upload: Upload, number: int, length: int | None) -> int | None:
        """Return the checksum of a chunk, or of its first `length` bytes; None if the disk does not give them back. Raises
        errors that say nothing about these bytes."""
        self.check_stopping()
        start = number * upload.chunk_size
        end = start + (length or chunk_length(number, upload.extent, upload.chunk_size))
        try:
            return formats.checksum_of(data, start, end)
        except OSError as error:
            if error.errno not in disk.DAMAGED:
                raise
            return None
