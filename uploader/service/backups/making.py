"""Makes a backup while everything runs: first the database, as it is at one moment, then the blobs that it names, unless
they are in a bucket, which keeps them.

No blob changes, and none goes at once: one whose last file went since the dump lies in the trash. So every file of the dump
has its content, as long as the trash keeps it.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from uploader import __version__
from uploader.clock import Clock
from uploader.crashpoints import crash_point
from uploader.database import contents, queries
from uploader.database.dumps.dumping import Dumped, write_dump
from uploader.database.dumps.listing import LISTING, read_listing
from uploader.database.engine import Connection, Database
from uploader.errors import StorageFailed
from uploader.service.backups.copying import Copied, Copying, Tell, left_there
from uploader.service.installation import Installation
from uploader.service.trail.keeping import Action, Trail
from uploader.storage.backups import BackupDirectory, BackupRefused
from uploader.storage.base import Gone
from uploader.storage.contents import FileBlob, OpenBlob
from uploader.storage.store import Store


@dataclass(frozen=True, slots=True)
class BackedUp:
    """What one backup did."""

    stamp: str
    dumped: Dumped
    copied: Copied
    # Where the contents stay, if they are not copied.
    bucket: str | None
    removed_backups: int
    removed_blobs: int


class Backups:
    """Several at once into one directory are refused."""

    def __init__(
        self, database: Database, storage: Store, installation: Installation, trail: Trail, data: Path, clock: Clock
    ) -> None:
        self._database = database
        self._storage = storage
        self._installation = installation
        self._trail = trail
        self._data = data
        self._clock = clock

    async def back_up(self, path: Path, tell: Tell, *, rereads: bool = False, keeps: int | None = None) -> BackedUp:
        """Make a backup in a directory of such, beside earlier ones, whose blobs it shares. `rereads`: blobs that are there
        are read again. `keeps`: how many backups stay, unless this one lacks anything; all if not given.

        Raises BackupRefused, Unavailable, OSError.
        """
        owner = self._installation.id
        if owner is None:
            raise BackupRefused(await self._database.read(_why_there_is_no_id))
        if _is_within(path, self._data) or _is_within(self._data, path):
            raise BackupRefused(f"{path} and the data directory {self._data} are not apart")
        directory = await asyncio.to_thread(BackupDirectory.claim, path, owner)
        try:
            return await self._back_up(directory, tell, rereads, keeps)
        finally:
            directory.close()

    async def _back_up(self, directory: BackupDirectory, tell: Tell, rereads: bool, keeps: int | None) -> BackedUp:
        stamp, begun = await asyncio.to_thread(directory.begin, self._clock.now())
        dumped = await write_dump(self._database, begun, partial(tell, "database"))
        crash_point("backup.after_dump")
        bucket = None if self._storage.keeps_files else self._storage.marks.store.name
        if bucket is None:
            copied = await Copying(directory.blobs, self._sources, tell, rereads=rereads).run(begun)
        else:
            copied = await left_there(begun)
        crash_point("backup.after_blobs")
        facts = {
            "version": __version__,
            "installation": self._installation.id,
            "bucket": bucket,
            "database": dumped.kind,
            "revision": dumped.revision,
            "blobs": copied.blobs,
            "bytes": copied.bytes,
            "lacking": copied.lacking,
        }
        # Before it is whole: a copy of everything that nobody was told of would be none.
        details = {"directory": str(directory), "blobs": copied.blobs, "lacking": len(copied.lacking)}
        await self._trail.note(Action.BACKUP_MADE, subject=stamp, details=details)
        crash_point("backup.after_note")
        await asyncio.to_thread(directory.complete, stamp, facts)
        removed = (0, 0)
        if keeps is not None and not copied.lacking and dumped.doubt is None:
            removed = await asyncio.to_thread(_remove_old, directory, keeps)
        return BackedUp(stamp, dumped, copied, bucket, *removed)

    async def _sources(self, sha256: str, size: int) -> AsyncIterator[int]:
        """The blob, and what the trash has of it; twice, because it may come back from there meanwhile."""
        for _ in range(2):
            with suppress(Gone, StorageFailed):
                async with _opened(self._storage.open_blob(sha256, size)) as descriptor:
                    yield descriptor
            for found in await self._storage.trash.copies(sha256):
                with suppress(Gone, StorageFailed):
                    async with _opened(self._storage.trash.open(found)) as descriptor:
                        yield descriptor


async def _why_there_is_no_id(connection: Connection) -> str:
    if await contents.blobs_in_use(connection, after="", limit=1) or await queries.count_all_open_uploads(connection):
        return (
            "there is no id of the installation, as 0.1.0 gave none: start a server or a worker of this version once, then "
            "back up"
        )
    return "there is nothing to back up: no server was started on this data directory yet"


@asynccontextmanager
async def _opened(opening: Awaitable[OpenBlob]) -> AsyncIterator[int]:
    blob = await opening
    try:
        assert isinstance(blob, FileBlob)
        yield blob.fileno()
    finally:
        await blob.close()


def _remove_old(directory: BackupDirectory, keeps: int) -> tuple[int, int]:
    """How many backups were removed, and how many blobs that no other one names."""
    stamps = directory.stamps()
    old, kept = stamps[:-keeps], stamps[-keeps:]
    try:
        for stamp in kept:
            directory.manifest(stamp, only=LISTING)
    except BackupRefused as error:
        raise BackupRefused(f"backup {stamps[-1]} was made, but no older one is removed: {error}") from error
    for stamp in old:
        directory.remove(stamp)
    crash_point("backup.after_removal")
    needed = heapq.merge(*(read_listing(directory.path / stamp) for stamp in kept))
    return len(old), directory.blobs.keep_only(sha256 for sha256, _ in needed)


def _is_within(path: Path, directory: Path) -> bool:
    return path.resolve().is_relative_to(directory.resolve())
