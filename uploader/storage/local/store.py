"""Uploads and blobs in directories of a local filesystem.

    temp/YYYY/MM/<upload_id>/{data,map,digest}    blobs/ab/cd/<sha256>    spool/ (bodies, unlinked)

Puts the parts together behind the seam of `base.py`: gives them threads, waits for locks, and turns what the disk says into
what the service understands. Refuses to know users, quotas or Redis: the caller holds a chunk or a closer while it talks to
those.
"""

import asyncio
import errno
import logging
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload
from uploader.errors import ConfigurationError, StorageFailed, StorageFull, Unavailable
from uploader.storage import disk
from uploader.storage.base import Body, Digests, Found, Gone, Space, Stopping
from uploader.storage.disk import try_lock
from uploader.storage.local import digests, formats, temp, walking
from uploader.storage.local.blobs import Blobs, blob_path
from uploader.storage.local.chunkfiles import ChunkFiles, HeldRecord
from uploader.storage.local.digests import DigestFiles
from uploader.storage.local.frontier import Frontiers
from uploader.storage.local.openfiles import KeptFiles, OpenFiles, close_files
from uploader.tasks import Batches, give_way, run_in

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOCK_TIMEOUT_SECONDS = 30.0
_WALK_BATCH = 250
# Chunks of no more are written to memory in less time than it takes to change threads.
_QUICK_BYTES = 256 << 10
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class LocalCloser:
    """All locks of one upload, held by one descriptor of its map."""

    def __init__(self, storage: "LocalStorage", upload: Upload) -> None:
        self._storage = storage
        self._upload = upload

    async def read_map(self, *, verified: bool = True) -> formats.ChunkMap:
        return await self._storage.read_map(self._upload, verified=verified)

    async def place_blob(self, sha256: str, *, keep_existing: bool) -> None:
        await self._storage.in_thread(self._storage.blobs.place, self._upload, sha256, keep_existing)

    async def find_bad_chunks(self) -> list[int]:
        return await self._storage.find_bad_chunks(self._upload)

    async def withdraw(self, numbers: list[int], *, verified: bool = False) -> None:
        await self._storage.withdraw(self._upload, numbers, verified=verified)

    async def unlink(self) -> bool:
        return await self._storage.discard(self._upload)


class LocalBlob:
    """The descriptor of a blob; it goes with its last user, so an opening that is cancelled leaves none."""

    def __init__(self, storage: "LocalStorage", descriptor: int) -> None:
        self._storage = storage
        self._descriptor = descriptor
        self._close = weakref.finalize(self, disk.close, descriptor)

    async def read(self, length_bytes: int, offset: int) -> bytes:
        return await self._storage.reading(disk.read, self._descriptor, length_bytes, offset)

    def fileno(self) -> int:
        return self._descriptor

    async def close(self) -> None:
        await self._storage.reading(self._close)


class LocalSpool:
    """The descriptor of a file without a name; it goes with its last user."""

    def __init__(self, storage: "LocalStorage", descriptor: int) -> None:
        self._storage = storage
        self._descriptor = descriptor
        self._length = 0
        self.close = weakref.finalize(self, disk.close, descriptor)

    async def append(self, content: memoryview) -> None:
        await self._storage.in_thread(disk.write, self._descriptor, content, self._length)
        self._length += len(content)

    def read(self, length_bytes: int, offset: int) -> bytes:
        return disk.read(self._descriptor, length_bytes, offset)


class LocalStorage:
    """The seam of `base.py` on a local filesystem."""

    def __init__(self, root: Path, *, durable: bool) -> None:
        """`durable`: an acknowledged chunk survives a power cut, not only the end of the process."""
        self._path = root.absolute()
        self._root = disk.Root(self._path)
        self._stopping = threading.Event()
        boot_id = _boot_id()
        self._kept = KeptFiles(self._close_files)
        self._closing: set[asyncio.Future[None]] = set()
        self._chunks = ChunkFiles(
            self._root,
            durable=durable,
            boot_id=boot_id,
            keep=self._kept.keep,
            check_stopping=self._check_stopping,
        )
        self._digests = DigestFiles(self._root, boot_id=boot_id)
        self._frontiers = Frontiers(self._digests, self.hashing, self._check_stopping)
        self.blobs = Blobs(self._root, check_stopping=self._check_stopping)
        self._durable = durable
        self._disk = ThreadPoolExecutor(16, thread_name_prefix="disk")
        self._quick = Batches(self._disk)
        # Of their own, so that downloads do not wait for writes to be synced, nor either for long work.
        self._reading = ThreadPoolExecutor(8, thread_name_prefix="reading")
        self._hashing = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="hashing", initializer=give_way)

    # Setting up

    async def prepare(self) -> None:
        await self.in_thread(self._prepare)

    def _prepare(self) -> None:
        try:
            self._root.open()
            with self._root.make("temp") as uploads, self._root.make("blobs") as blobs, self._root.make("spool"):
                on_one_filesystem = uploads.device == blobs.device
        except OSError as error:
            raise ConfigurationError(f"UPLOADER_DATA: {self._path} cannot be written: {error.strerror}") from error
        if not on_one_filesystem:
            raise ConfigurationError(f"UPLOADER_DATA: temp and blobs under {self._path} are not on one filesystem")

    def stop(self) -> None:
        self._stopping.set()

    async def drain(self) -> None:
        await self._frontiers.drain()
        self._close_files(self._kept.take_all())
        if self._closing:
            await asyncio.wait(self._closing)

    def _close_files(self, gone: list[OpenFiles]) -> None:
        closing = run_in(self._disk, close_files, gone)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def close(self) -> None:
        close_files(self._kept.take_all())
        for pool in (self._disk, self._reading, self._hashing):
            pool.shutdown(wait=False)

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise Stopping

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Run `work` in a thread of the disk pool. Raises StorageFull and StorageFailed for what the disk refuses."""
        return await self._in_pool(self._disk, work, *arguments)

    async def reading(self, work: Callable[..., T], *arguments: object) -> T:
        """As `in_thread`, for downloads."""
        return await self._in_pool(self._reading, work, *arguments)

    async def hashing(self, work: Callable[..., T], *arguments: object) -> T:
        """As `in_thread`, for what takes the processor."""
        return await self._in_pool(self._hashing, work, *arguments)

    async def _in_pool(self, pool: ThreadPoolExecutor, work: Callable[..., T], *arguments: object) -> T:
        with _understood():
            return await run_in(pool, work, *arguments)

    # Open uploads

    async def create(self, upload: Upload) -> float:
        return await self.in_thread(self._chunks.create, upload)

    async def discard(self, upload: Upload) -> bool:
        return await self.in_thread(self._discard, upload, self._kept.take_all(upload.id))

    def _discard(self, upload: Upload, kept: list[OpenFiles]) -> bool:
        close_files(kept)
        return temp.discard(self._root, upload)

    async def remaining(self, uploads: list[Upload]) -> list[Upload]:
        return await self.in_thread(lambda: [upload for upload in uploads if temp.is_there(self._root, upload)])

    async def hold_chunk(self, upload: Upload, number: int, body: Body | None) -> HeldRecord:
        """One thread hop, and another one for each time the chunk is busy."""
        held = await self._offer_and_hold(upload, number, body)
        deadline, pause = time.monotonic() + _LOCK_TIMEOUT_SECONDS, 0.001
        while held is None:
            if time.monotonic() > deadline:
                raise Unavailable("This chunk is busy; try again.")
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
            held = await self._try_hold(upload, number, body)
            self._frontiers.follow(upload)
        return held

    async def _offer_and_hold(self, upload: Upload, number: int, body: Body | None) -> HeldRecord | None:
        """The body is hashed while it is written, if it is next. That waits for the disk, but not for busy chunks."""
        offer = None if body is None else self._frontiers.offer(upload, number, body)
        held = None
        try:
            held = await self._try_hold(upload, number, body)
        finally:
            if offer is not None:
                offer.settle(written=held is not None and held.written)
        return held

    async def _try_hold(self, upload: Upload, number: int, body: Body | None) -> HeldRecord | None:
        """What may wait for the disk has a thread of its own; what only goes to memory shares one hop with others."""
        files = self._kept.take(upload.id)
        if files is not None:
            quick = not self._durable and body is not None and body.length <= _QUICK_BYTES
            hop = self._quick.run if quick else partial(run_in, self._disk)
            try:
                with _understood():
                    return await hop(self._chunks.try_hold, upload, number, body, files)
            except Gone:  # or what was open was replaced
                self._close_files(self._kept.take_all(upload.id))
        return await self.in_thread(self._chunks.try_hold, upload, number, body)

    async def keep_pace(self, upload: Upload, number: int) -> None:
        await self._frontiers.keep_pace(upload, number)

    async def read_map(self, upload: Upload, *, verified: bool = True) -> formats.ChunkMap:
        return await self.in_thread(self._chunks.read_map, upload, verified)

    async def last_write(self, upload: Upload) -> float:
        return await self.in_thread(self._chunks.last_write, upload)

    async def find_bad_chunks(self, upload: Upload) -> list[int]:
        bad: list[int] = []
        for numbers in self._chunks.turns(upload):
            bad += await self.hashing(self._chunks.find_bad, upload, numbers)
        return bad

    async def digest(self, upload: Upload) -> Digests:
        return await self._frontiers.digest(upload)

    async def digested_bytes(self, upload: Upload) -> int:
        return await self.in_thread(self._digests.position, upload)

    @asynccontextmanager
    async def closing(self, upload: Upload) -> AsyncIterator[LocalCloser]:
        descriptor = await self.in_thread(self._chunks.open_map, upload)
        try:
            # With the gate held no writer can start, so the wait for those under way ends.
            await _wait_for_lock(descriptor, formats.GATE_OFFSET, formats.GATE_LENGTH)
            await _wait_for_lock(descriptor, formats.MAP_RECORDS_OFFSET, 0)  # 0: to the end of the file
            with _understood():
                if disk.is_unlinked(descriptor):
                    raise Gone(upload.id)
            yield LocalCloser(self, upload)
        finally:
            disk.close(descriptor)

    async def withdraw(self, upload: Upload, numbers: list[int], *, verified: bool) -> None:
        """The caller holds all locks of the map."""
        descriptor = await self.in_thread(self._digests.open, upload)
        try:
            # Whoever is hashing these chunks now would save it after this.
            await _wait_for_lock(descriptor, 0, 0)
            await self.in_thread(self._withdraw, upload, numbers, descriptor, verified)
        finally:
            disk.close(descriptor)

    def _withdraw(self, upload: Upload, numbers: list[int], digest: int, verified: bool) -> None:
        """The digests go first: they were of these chunks, too."""
        digests.forget(digest)
        crash_point("withdraw.after_digest")
        self._chunks.withdraw(upload, numbers, verified=verified)

    # Blobs

    async def open_blob(self, sha256: str) -> LocalBlob:
        return await self.reading(self._open_blob, sha256)

    def _open_blob(self, sha256: str) -> LocalBlob:
        return LocalBlob(self, self.blobs.open(sha256))

    async def read_blob(self, sha256: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        return await self.reading(self.blobs.read, sha256, ranges)

    async def blob_sizes(self, sha256s: list[str]) -> list[int | None]:
        return await self.in_thread(lambda: [self.blobs.size(sha256) for sha256 in sha256s])

    async def hash_blob(self, sha256: str, pace: Callable[[int], None]) -> str | None:
        return await self._in_pool(self._hashing, self.blobs.hash, sha256, pace)

    async def find_blob(self, sha256: str) -> Found | None:
        return await self.in_thread(walking.look, self._root, blob_path(sha256))

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
        self._check_stopping()
        return list(islice(walk, _WALK_BATCH))

    async def holds_chunks(self, found: Found) -> bool:
        return await self.in_thread(walking.holds_chunks, self._root, found)

    async def remove(self, found: Found) -> bool:
        return await self.in_thread(walking.remove, self._root, found)

    async def remove_month(self, month: str) -> None:
        await self.in_thread(walking.remove_month, self._root, month)

    # Room

    async def space(self) -> Space:
        figures = await self.in_thread(self._root.figures)
        return Space(total=figures.f_blocks * figures.f_frsize, free=figures.f_bavail * figures.f_frsize)

    async def check(self) -> None:
        with suppress(StorageFull):
            await self.in_thread(self._check)

    def _check(self) -> None:
        with self._root.enter("spool") as directory:
            descriptor = directory.open_unnamed()
        try:
            disk.write(descriptor, memoryview(b"."), 0)
            disk.sync_data(descriptor)
        finally:
            disk.close(descriptor)

    async def open_spool(self) -> LocalSpool:
        return await self.in_thread(self._open_spool)

    def _open_spool(self) -> LocalSpool:
        with self._root.enter("spool") as directory:
            return LocalSpool(self, directory.open_unnamed())


@contextmanager
def _understood() -> Iterator[None]:
    """What the disk refuses, as StorageFull or StorageFailed."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise StorageFull() from error
        logger.exception("the disk reports an error")
        raise StorageFailed() from error


async def _wait_for_lock(descriptor: int, start: int, length: int) -> None:
    deadline, pause = time.monotonic() + _LOCK_TIMEOUT_SECONDS, 0.0005
    while not try_lock(descriptor, start, length):
        if time.monotonic() > deadline:
            raise Unavailable("This upload is busy; try again.")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.01)


def _boot_id() -> str:
    """Changes with every boot of the machine (`proc_sys_kernel(5)`, random/boot_id)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
