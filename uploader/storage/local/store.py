"""The store on a local filesystem.

    temp/YYYY/MM/<upload_id>/{data,map,digest}    blobs/ab/cd/<sha256>

Puts the modules of this package together behind `storage/base.py`: gives them threads, waits for locks, and translates
errors of the disk. Refuses to know users, quotas or Redis: the caller talks to them while it holds a chunk or a closer.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from uploader.domain.upload import Upload, chunk_length
from uploader.errors import ConfigurationError, StorageFailed, StorageFull, Unavailable
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.tasks import Batches, Pool, run_in
from uploader.runtime.wait_budget import wait_budget
from uploader.storage import disk
from uploader.storage import store as stores
from uploader.storage.base import Body, Found, Gone, Space
from uploader.storage.disk import Root
from uploader.storage.hashes import Bodies
from uploader.storage.local import chunks, directories
from uploader.storage.local.blobs import LocalBlobs
from uploader.storage.local.chunks import ChunkFiles, HeldRecord, names_a_chunk
from uploader.storage.local.concatenation import LocalConcatenations
from uploader.storage.local.digests import DigestFiles, Follower, LocalDigests
from uploader.storage.local.directories import KeptFiles, OpenFiles, close_files
from uploader.storage.local.locks import LOCK_TIMEOUT_SECONDS, LONG_SECONDS, LockedUploads
from uploader.storage.local.turns import Company

# The mark of a data directory: the file `installation`, and `installation.new` while a first start makes the mark. The file
# also has the version of everything on the disk: of maps, of digests, and of the layout. In threads.
#
# Several processes may start at once, and each may die at any line. So each file is written whole under a name of its own
# and then linked. The first link succeeds, and later processes find the file. Only `replace` renames a file over an existing
# one.


# The version of everything on the disk.
FORMAT = 2
MARK, PROPOSAL = "installation", "installation.new"

_DRAFT = re.compile(r"installation\.[0-9a-f]{32}")


class LocalMarks(stores.MarkFiles):
    """The files that name the installation of a store."""

    store = stores.StoreName("data directory", "UPLOADER_DATA", "is it mounted?")

    def __init__(self, root: Root) -> None:
        self._root = root

    def read(self, known: str | None = None) -> stores.Marks:
        try:
            self._root.open()
        except OSError as error:
            raise disk.unfit(self._root.path, error) from error
        proposed, found = self._read(PROPOSAL, known), self._read(MARK, known)
        proposals = frozenset([proposed.installation] if proposed else ())
        if found is None:
            return stores.Marks(None, proposals)
        is_outdated = found.version < FORMAT or not found.is_checked
        return stores.Marks(found.installation, proposals, is_outdated, found.is_damaged)

    def propose(self, installation: str, marks: stores.Marks) -> None:
        """Write the proposal. Sync even if another process has written one: its proposal may not be durable yet."""
        self._write(PROPOSAL, installation)
        crash_point("installation.after_proposal")

    def write(self, installation: str, *, replace: bool) -> None:
        """Write the mark with the present version: an older program must not start, because it takes tails for damage."""
        if replace:
            self.read(installation)
            self._root.rename(self._write_draft(installation), MARK)
            self._root.sync()
        else:
            self._write(MARK, installation)
            crash_point("installation.after_mark")

    def forget_proposals(self, *, is_durable: bool = True) -> None:
        """Remove the proposal, and the drafts of processes that died. If a power cut brings them back, nobody reads them."""
        if not is_durable:
            self._root.sync()
        for name in self._root.files():
            if name == PROPOSAL or _DRAFT.fullmatch(name):
                self._root.unlink(name)

    def _write(self, name: str, installation: str) -> None:
        draft = self._write_draft(installation)
        # A missing draft means the same as an existing file: another process ended the first start, and removed all drafts.
        with suppress(FileExistsError, FileNotFoundError):
            self._root.link(draft, self._root, name)
        self._root.unlink(draft)
        self._root.sync()

    def _write_draft(self, installation: str) -> str:
        draft = f"{MARK}.{uuid4().hex}"
        self._root.create(draft, stores.mark_of(FORMAT, installation))
        return draft

    def _read(self, name: str, known: str | None) -> stores.Mark | None:
        try:
            opened = self._root.open_to_read(name)
        except FileNotFoundError:
            return None
        with disk.opened(opened) as descriptor:
            found = stores.parse_mark(disk.read(descriptor, stores.MAX_MARK_BYTES, 0), FORMAT, known)
        if found is not None and found.version > FORMAT:
            raise ConfigurationError(
                f"UPLOADER_DATA: it was written in format {found.version}, newer than this version's {FORMAT}: install a "
                "newer version"
            )
        if found is None or not stores.INSTALLATION_ID.fullmatch(found.installation):
            raise ConfigurationError(
                f"UPLOADER_DATA: the file {name} in it is damaged: restore it from a backup, or remove it and run "
                "`uploader adopt`"
            )
        return found


# The size of the trash is trusted for at least this long, and for this many times the duration of the walk that found it.
# When free space is short, the trash is walked anyway.
_FRESH_SECONDS = 60.0
_FRESH_WALKS = 50
# Writing chunks of no more bytes to memory takes less time than a change of threads.
_QUICK_BYTES = 256 << 10


class LocalStore(LockedUploads, LocalConcatenations, LocalDigests, LocalBlobs):
    """The store in a data directory."""

    keeps_files = True

    def __init__(self, root: Path, *, durable: bool, keeps_trash: bool = True, verifies: bool = True) -> None:
        """`durable`: an acknowledged chunk survives a power cut, not only the end of the process. `verifies`: blobs are
        compared with their checksums while they are read."""
        self._path = root.absolute()
        super().__init__(Root(self._path), keeps_trash=keeps_trash, verifies=verifies)
        self._durable = durable
        self._disk = self.threads.disk
        self.marks = stores.InstallationMark(LocalMarks(self._root), self._disk)
        self._quick = Batches(self._disk.executor, translate=disk.refusal)
        boot_id = disk.boot_id()
        self._kept = KeptFiles(self._close_files)
        self._closing: set[asyncio.Future[None]] = set()
        self._digests = DigestFiles(self._root, boot_id)
        self._chunks = ChunkFiles(
            self._root, durable=durable, boot_id=boot_id, keep=self._kept.keep, forget_digests=self._digests.forget
        )
        self._followers: dict[str, Follower] = {}
        self._company = Company(self.threads.hashing)
        self._bodies = Bodies()

    # Its life

    async def prepare(self) -> None:
        await self._disk.run(self._prepare)

    def _prepare(self) -> None:
        disk.begin_anew()
        try:
            self._root.open()
            with (
                self._root.make("temp") as uploads,
                self._root.make("blobs") as blobs,
                self._root.make("trash") as trash,
            ):
                disk.check_unnamed(uploads)
                disk.check_names({"temp": uploads, "blobs": blobs, "trash": trash})
        except OSError as error:
            raise disk.unfit(self._path, error) from error
        self.doubt = disk.doubt_about(self._path)

    async def check(self) -> None:
        try:
            await self._disk.run(self._check)
            self.is_full = False
        except StorageFull:
            self.is_full = True

    def _check(self) -> None:
        with self._root.enter("temp") as directory, disk.opened(directory.open_unnamed()) as descriptor:
            disk.write(descriptor, memoryview(b"."), 0)
            disk.sync_data(descriptor)

    async def drain(self) -> None:
        await super().drain()
        self._close_files(self._kept.take_all())
        if self._closing:
            await asyncio.wait(self._closing)

    def _close_files(self, gone: list[OpenFiles]) -> None:
        closing = run_in(self.threads.long.executor, close_files, gone)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def close(self) -> None:
        close_files(self._kept.take_all())
        super().close()

    # Open uploads

    def place_of(self, upload_id: str, opened_at: datetime) -> str:
        return f"temp/{directories.month_path(opened_at)}/{upload_id}"

    async def create(self, upload: Upload, parts: Sequence[Upload] | None = None) -> float:
        if parts is not None:
            return await self._disk.run(self._create_concatenation, upload, parts)
        return await self._disk.run(self._chunks.create, upload)

    async def check_lost(self, upload: Upload) -> None:
        if (await self.marks.read()).installation is None:
            raise StorageFailed(inside="the mark of the installation is not there, so nothing is believed to be lost")

    async def begin_anew(self, upload: Upload) -> None:
        await self.check_lost(upload)
        await self._disk.run(self._chunks.begin_anew, upload)

    async def discard(self, upload: Upload, placed_at: str | None = None) -> bool:
        return await self.giving_back(
            self._disk_for(upload.size), self._discard, upload, self._kept.take_all(upload.id)
        )

    def _discard(self, upload: Upload, kept: list[OpenFiles]) -> bool:
        close_files(kept)
        return directories.discard(self._root, upload)

    async def hold_chunk(self, upload: Upload, number: int, body: Body | None, *, start: int = 0) -> HeldRecord:
        """Hold a chunk. This takes one hop to a thread, and another hop each time that the chunk is busy."""
        if body is not None and self.ballast is not None:
            disk.check_room(self.ballast.reserve)
        held = await self._offer_and_hold(upload, number, body, start)
        began, pause = time.monotonic(), 0.001
        while held is None:
            if time.monotonic() > began + LOCK_TIMEOUT_SECONDS:
                raise Unavailable("This chunk is busy; try again.")
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
            held = await self._try_hold(upload, number, body, start)
            self._follow(upload)
        wait_budget().note(began, LONG_SECONDS)
        return held

    async def _offer_and_hold(self, upload: Upload, number: int, body: Body | None, start: int) -> HeldRecord | None:
        """Offer the body to the follower, which hashes it during the write if this chunk is next. The follower waits for the
        write, but must not wait for a busy chunk. So the offer is settled after the first attempt."""
        length = chunk_length(number, upload.extent, upload.chunk_size)
        is_whole, end = body is not None and body.length == length, start + (body.length if body else 0)
        offer = self._offer(upload, number, body) if body is not None and is_whole else None
        held = None
        try:
            held = await self._try_hold(upload, number, body, start)
        finally:
            if offer is not None:
                self._settle_offer(offer, written=held is not None and held.written)
        if held is not None and held.written and not is_whole and end == length:
            self._follow(upload)  # the tail is on disk already, so the whole chunk is read back
        return held

    async def _try_hold(self, upload: Upload, number: int, body: Body | None, start: int) -> HeldRecord | None:
        """Try once to hold a chunk. A write that may wait for the disk has a thread of its own; a write to memory shares its
        hop with others."""
        pool = self._disk_for(body.length if body else 0)
        files = self._kept.take(upload.id)
        if files is not None:
            quick = not self._durable and body is not None and pool is self._disk
            hop = self._quick.run if quick else pool.run
            try:
                return await hop(self._chunks.try_hold, upload, number, body, files, start)
            except Gone:  # or only the kept files were replaced
                self._close_files(self._kept.take_all(upload.id))
        return await pool.run(self._chunks.try_hold, upload, number, body, None, start)

    def _disk_for(self, length: int) -> Pool:
        """Return the threads for writing or freeing `length` bytes."""
        return self._disk if length <= _QUICK_BYTES else self.threads.long

    async def read_map(self, upload: Upload, *, verified: bool = True) -> chunks.ChunkMap:
        return await self._disk.run(self._chunks.read_map, upload, verified)

    async def last_write(self, upload: Upload) -> float:
        return await self._disk.run(self._chunks.last_write, upload)

    async def place_blob(self, upload: Upload, sha256: str) -> None:
        await self._disk.run(self._place_blob, upload, sha256)

    def _place_blob(self, upload: Upload, sha256: str) -> None:
        self._digests.check(upload, sha256)
        if not self._chunks.read_map(upload, verified=False).complete:
            raise Gone(upload.id)  # its files were lost meanwhile, and made again
        with directories.upload_directory(self._root, upload) as source:
            self._link_blob(source, "data", sha256, f"{sha256}.{upload.id}")

    # Housekeeping

    async def list_uploads(self, opened_before: datetime) -> AsyncIterator[list[Found]]:
        """List the uploads of all months before the month of `opened_before`."""
        for month in await self._months(opened_before):
            async for batch in self._walk(directories.upload_directories(self._root, month)):
                yield batch

    async def _months(self, before: datetime) -> list[str]:
        months = await self._disk.run(directories.months, self._root)
        return [month for month in months if month < directories.month_path(before)]

    async def remaining(self, uploads: list[Upload]) -> list[Upload]:
        return await self._disk.run(lambda: [upload for upload in uploads if directories.is_there(self._root, upload)])

    async def holds_chunks(self, found: Found) -> bool:
        return await self._disk.run(names_a_chunk, self._root, found)

    async def remove_emptied(self, opened_before: datetime) -> None:
        for month in await self._months(opened_before):
            await self.giving_back(self._disk, directories.remove_month, self._root, month)
        await super().remove_emptied(opened_before)

    async def space(self) -> Space:
        """Return the space. The trash is walked only now and then, because a walk takes long."""
        figures, began = await self.threads.disk.run(self._root.figures), time.monotonic()
        if began >= self._trash_fresh_until:
            self._trash_fresh_until = began + _FRESH_SECONDS  # meanwhile others take the old figure
            self._trash_bytes = sum([found.disk_bytes async for batch in self.list_trash() for found in batch])
            now = time.monotonic()
            self._trash_fresh_until = now + max(_FRESH_SECONDS, _FRESH_WALKS * (now - began))
        trash = max(0, self._trash_bytes)
        free = figures.f_bavail * figures.f_frsize + trash
        return Space(total=figures.f_blocks * figures.f_frsize, free=free, trash=trash)
