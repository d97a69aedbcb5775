"""The store on a local filesystem.

    temp/YYYY/MM/<upload_id>/{data,map,digest}    blobs/ab/cd/<sha256>

Puts the parts together behind the seam of `storage/base.py`: gives them threads, waits for locks, and translates what the
disk says. Refuses to know users, quotas or Redis: its caller talks to those while it holds a chunk or a closer.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path

from uploader.domain.upload import Upload, chunk_length
from uploader.errors import ConfigurationError, StorageFailed, StorageFull, Unavailable
from uploader.storage import disk, fitness
from uploader.storage.base import Body, Gone, Space, Stopping
from uploader.storage.contents import Digests, Found, OpenSignature, Pace
from uploader.storage.local import formats, temp, walking
from uploader.storage.local.arrivals import LocalArrivals
from uploader.storage.local.blobs import Blobs, LocalBlob, blob_path
from uploader.storage.local.chunkfiles import ChunkFiles, HeldRecord
from uploader.storage.local.derived.signatures import LocalSignatures
from uploader.storage.local.digests import DigestFiles
from uploader.storage.local.frontier import Frontiers
from uploader.storage.local.marks import LocalMarks
from uploader.storage.local.temp import KeptFiles, OpenFiles, close_files
from uploader.storage.local.trash import LocalTrash, TrashFiles
from uploader.storage.local.uploads.appending import LocalAppender, appending
from uploader.storage.local.uploads.badchunks import BadChunks
from uploader.storage.local.uploads.closing import LOCK_TIMEOUT_SECONDS, LockedFiles, closing
from uploader.storage.local.uploads.waiting import note_wait
from uploader.storage.local.uploads.wholes import LocalWholes
from uploader.storage.threads import Threads
from uploader.tasks import Batches, Pool, run_in

_LIST_BATCH = 250
# Chunks of no more are written to memory in less time than it takes to change threads.
_QUICK_BYTES = 256 << 10


class LocalCloser:
    """All locks of one upload, held by one descriptor of its map."""

    def __init__(self, store: "LocalStore", upload: Upload) -> None:
        self._store = store
        self._upload = upload

    async def read_map(self, *, verified: bool = True) -> formats.ChunkMap:
        return await self._store.read_map(self._upload, verified=verified)

    async def place_blob(self, sha256: str) -> None:
        await self._store.disk.run(self._store.place_blob, self._upload, sha256)

    async def find_bad_chunks(self) -> list[int]:
        return await self._store.find_bad_chunks(self._upload)

    async def find_lost(self) -> list[int] | None:
        """None: its map is there, or nobody would hold its locks."""
        return None

    async def withdraw(self, numbers: list[int], *, generation: int, verified: bool = False) -> None:
        await self._store.locked.withdraw(self._upload, numbers, generation=generation, verified=verified)

    async def settle_length(self, upload: Upload) -> bool:
        self._upload = upload
        return await self._store.locked.settle_length(upload)

    async def unlink(self) -> bool:
        return await self._store.discard(self._upload)


class LocalStore:
    """All capabilities of `storage/base.py`."""

    keeps_files = True

    def __init__(self, root: Path, *, durable: bool, keeps_trash: bool = True) -> None:
        """`durable`: an acknowledged chunk survives a power cut, not only the end of the process."""
        self._path = root.absolute()
        self._root = disk.Root(self._path)
        self._doubt: str | None = None
        self._stopping = threading.Event()
        self._durable = durable
        self._threads = Threads()
        self.disk = self._threads.disk
        self.marks = LocalMarks(self._root, self.disk)
        self._quick = Batches(self.disk.executor, translate=disk.refusal)
        boot_id = disk.boot_id()
        self._kept = KeptFiles(self._close_files)
        self._closing: set[asyncio.Future[None]] = set()
        self._digests = DigestFiles(self._root, boot_id=boot_id)
        self._chunks = ChunkFiles(
            self._root,
            durable=durable,
            boot_id=boot_id,
            keep=self._kept.keep,
            forget_digests=self._digests.forget,
        )
        self.wholes = LocalWholes(self._root, self._chunks, self._threads, self._check_stopping)
        self._bad_chunks = BadChunks(self._root, self._chunks.read_map, self._check_stopping)
        self.locked = LockedFiles(self._root, self._digests, self._bad_chunks, self.disk)
        self._frontiers = Frontiers(self._digests, self._threads, self._check_stopping)
        trash = TrashFiles(self._root, keeps=keeps_trash)
        self.blobs = Blobs(self._root, trash, check_stopping=self._check_stopping)
        self._signatures = LocalSignatures(self._root, self.blobs, self._threads, self._check_stopping)
        self.arrivals = LocalArrivals(self._root, self.blobs, self._threads)
        self.trash = LocalTrash(
            self._root, trash, self.blobs.restore, self._open_found, self._threads.long, self._batches
        )

    # Its life

    async def prepare(self) -> None:
        await self.disk.run(self._prepare)

    def _prepare(self) -> None:
        try:
            self._root.open()
            with (
                self._root.make("temp") as uploads,
                self._root.make("blobs") as blobs,
                self._root.make("trash") as trash,
            ):
                fitness.check_unnamed(uploads)
                fitness.check_names({"temp": uploads, "blobs": blobs, "trash": trash})
        except OSError as error:
            raise ConfigurationError(f"UPLOADER_DATA: {self._path} cannot be written: {error.strerror}") from error
        self._doubt = fitness.doubt_about(self._path)
        self.arrivals.syncs_whole = self._doubt is None

    @property
    def doubt(self) -> str | None:
        return self._doubt

    async def check(self) -> None:
        with suppress(StorageFull):
            await self.disk.run(self._check)

    def _check(self) -> None:
        with self._root.enter("temp") as directory:
            descriptor = directory.open_unnamed()
        try:
            disk.write(descriptor, memoryview(b"."), 0)
            disk.sync_data(descriptor)
        finally:
            disk.close(descriptor)

    def stop(self) -> None:
        self._stopping.set()

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise Stopping

    async def drain(self) -> None:
        await self._frontiers.drain()
        self._close_files(self._kept.take_all())
        if self._closing:
            await asyncio.wait(self._closing)

    def _close_files(self, gone: list[OpenFiles]) -> None:
        closing = run_in(self._threads.long.executor, close_files, gone)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def close(self) -> None:
        close_files(self._kept.take_all())
        self._threads.shutdown()

    # Open uploads

    def place_of(self, upload_id: str, opened_at: datetime) -> str:
        return f"temp/{temp.month_path(opened_at)}/{upload_id}"

    async def create(self, upload: Upload) -> float:
        return await self.disk.run(self._chunks.create, upload)

    async def check_lost(self, upload: Upload) -> None:
        if (await self.marks.read()).installation is None:
            raise StorageFailed(inside="the mark of the installation is not there, so nothing is believed to be lost")

    async def begin_anew(self, upload: Upload) -> None:
        await self.check_lost(upload)
        await self.disk.run(self._chunks.begin_anew, upload)

    async def discard(self, upload: Upload) -> bool:
        return await self._disk_for(upload.size).run(self._discard, upload, self._kept.take_all(upload.id))

    def _discard(self, upload: Upload, kept: list[OpenFiles]) -> bool:
        close_files(kept)
        return temp.discard(self._root, upload)

    async def hold_chunk(self, upload: Upload, number: int, body: Body | None, *, start: int = 0) -> HeldRecord:
        """One thread hop, and another one for each time the chunk is busy."""
        held = await self._offer_and_hold(upload, number, body, start)
        began, pause = time.monotonic(), 0.001
        while held is None:
            if time.monotonic() > began + LOCK_TIMEOUT_SECONDS:
                raise Unavailable("This chunk is busy; try again.")
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
            held = await self._try_hold(upload, number, body, start)
            self._frontiers.follow(upload)
        note_wait(began)
        return held

    async def _offer_and_hold(self, upload: Upload, number: int, body: Body | None, start: int) -> HeldRecord | None:
        """Offer the body to the frontier task, which hashes it while it is written, if it is next. That task waits for the
        disk, but not for a busy chunk: so the offer is settled after the first attempt."""
        length = chunk_length(number, upload.extent, upload.chunk_size)
        is_whole, end = body is not None and body.length == length, start + (body.length if body else 0)
        offer = self._frontiers.offer(upload, number, body) if body is not None and is_whole else None
        held = None
        try:
            held = await self._try_hold(upload, number, body, start)
        finally:
            if offer is not None:
                offer.settle(written=held is not None and held.written)
        if held is not None and held.written and not is_whole and end == length:
            self._frontiers.follow(upload)  # its head was there, so it is read back
        return held

    async def _try_hold(self, upload: Upload, number: int, body: Body | None, start: int) -> HeldRecord | None:
        """A write that may wait for the disk has a thread of its own; one that only goes to memory shares a hop."""
        pool = self._disk_for(body.length if body else 0)
        files = self._kept.take(upload.id)
        if files is not None:
            quick = not self._durable and body is not None and pool is self.disk
            hop = self._quick.run if quick else pool.run
            try:
                return await hop(self._chunks.try_hold, upload, number, body, files, start)
            except Gone:  # or the files that were open were replaced
                self._close_files(self._kept.take_all(upload.id))
        return await pool.run(self._chunks.try_hold, upload, number, body, None, start)

    def _disk_for(self, length: int) -> Pool:
        """The threads that write or free so many bytes."""
        return self.disk if length <= _QUICK_BYTES else self._threads.long

    async def keep_pace(self, upload: Upload, number: int) -> None:
        await self._frontiers.keep_pace(upload, number)

    async def read_map(self, upload: Upload, *, verified: bool = True) -> formats.ChunkMap:
        return await self.disk.run(self._chunks.read_map, upload, verified)

    async def last_write(self, upload: Upload) -> float:
        return await self.disk.run(self._chunks.last_write, upload)

    async def find_bad_chunks(self, upload: Upload) -> list[int]:
        bad: list[int] = []
        for numbers in self._bad_chunks.turns(upload):
            bad += await self._threads.long_hashing.run(self._bad_chunks.find, upload, numbers)
        return bad

    def follow(self, upload: Upload) -> None:
        self._frontiers.follow(upload)

    async def digest(self, upload: Upload) -> Digests:
        return await self._frontiers.digest(upload)

    async def digested_bytes(self, upload: Upload) -> int:
        return await self.disk.run(self._digests.position, upload)

    async def hash(self, compute: Callable[[], bytes]) -> bytes:
        return await self._threads.long_hashing.run(compute)

    def appending(self, upload: Upload) -> AbstractAsyncContextManager[LocalAppender]:
        return appending(upload, self._chunks, self._kept, self.disk)

    @asynccontextmanager
    async def closing(self, upload: Upload) -> AsyncIterator[LocalCloser]:
        async with closing(upload, self._chunks, self.disk):
            yield LocalCloser(self, upload)

    async def forget_digests(self, upload: Upload) -> None:
        await self.disk.run(lambda: self._digests.forget(upload, checked=True))

    # Blobs

    def place_blob(self, upload: Upload, sha256: str) -> None:
        self._digests.check(upload, sha256)
        if not self._chunks.read_map(upload, verified=False).complete:
            raise Gone(upload.id)  # its files were lost meanwhile, and others made
        self.blobs.place(upload, sha256)

    async def open_blob(self, sha256: str, size: int) -> LocalBlob:
        return await self._threads.reading.run(self._open_blob, sha256, size)

    def _open_blob(self, sha256: str, size: int) -> LocalBlob:
        return LocalBlob(self._threads.reading, self.blobs.open(sha256, size))

    def _open_found(self, found: Found) -> LocalBlob:
        return LocalBlob(self._threads.reading, self.blobs.open_found(found))

    async def open_signature(self, sha256: str, size: int) -> OpenSignature:
        return await self._signatures.open(sha256, size)

    async def read_blob(self, sha256: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        return await self._threads.reading.run(self.blobs.read, sha256, ranges)

    async def blob_sizes(self, sha256s: list[str]) -> list[int | None]:
        return await self.disk.run(lambda: [self.blobs.size(sha256) for sha256 in sha256s])

    async def hash_blob(self, found: Found, pace: Pace | None, *, with_md5: bool) -> Digests | None:
        pool = self._threads.long_hashing if pace is None else self._threads.scrubbing
        return await pool.run(self.blobs.hash, found, pace, with_md5)

    async def find_blob(self, sha256: str) -> Found | None:
        return await self.disk.run(walking.look, self._root, blob_path(sha256))

    # Housekeeping

    async def list_uploads(self, opened_before: datetime) -> AsyncIterator[list[Found]]:
        """By months: all that were opened in those before the month of `opened_before`."""
        for month in await self._months(opened_before):
            async for batch in self._batches(walking.upload_directories(self._root, month)):
                yield batch

    async def _months(self, before: datetime) -> list[str]:
        months = await self.disk.run(walking.months, self._root)
        return [month for month in months if month < temp.month_path(before)]

    def list_blobs(self) -> AsyncIterator[list[Found]]:
        return self._batches(walking.blob_files(self._root))

    async def _batches(self, walk: Iterator[Found]) -> AsyncIterator[list[Found]]:
        while batch := await self._threads.long.run(self._next_batch, walk):
            yield batch

    def _next_batch(self, walk: Iterator[Found]) -> list[Found]:
        self._check_stopping()
        return list(islice(walk, _LIST_BATCH))

    async def remaining(self, uploads: list[Upload]) -> list[Upload]:
        return await self.disk.run(lambda: [upload for upload in uploads if temp.is_there(self._root, upload)])

    async def holds_chunks(self, found: Found) -> bool:
        return await self.disk.run(walking.holds_chunks, self._root, found)

    async def remove(self, found: Found) -> bool:
        return await self._threads.long.run(walking.remove, self._root, found)

    async def remove_emptied(self, opened_before: datetime) -> None:
        for month in await self._months(opened_before):
            await self.disk.run(walking.remove_month, self._root, month)

    async def space(self) -> Space:
        figures = await self.disk.run(self._root.figures)
        trash = await self.trash.size_bytes()
        free = figures.f_bavail * figures.f_frsize + trash
        return Space(total=figures.f_blocks * figures.f_frsize, free=free, trash=trash)
