"""Makes a backup while everything runs, and an installation of a backup.

First comes the database, as it is at one moment, then the blobs that it names, unless they are in a bucket, which keeps
them. No blob changes, and none goes at once: one whose last file went since the dump lies in the trash. So every file
of the dump has its content, as long as the trash keeps it.

It is restored on an empty machine or beside the blobs that are left, in an order that may be broken off anywhere and
begun again: whose the data directory is, the blobs, and the database last, all at once. Without it no server starts.
"""

import asyncio
import heapq
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, closing, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from uploader import __version__
from uploader.accounting.pending import Pending
from uploader.accounting.redis import RedisMark
from uploader.clock import Clock
from uploader.crashpoints import crash_point
from uploader.database import migrate, queries
from uploader.database.dump import LISTING, Dumped, check_empty, kind_of, load_dump, read_listing, write_dump
from uploader.database.engine import Connection, Database
from uploader.errors import ConfigurationError, StorageFailed
from uploader.service.audit_log import Action, AuditLog
from uploader.service.installation import Installation
from uploader.service.secret import SECRET_FILE, InstallationSecret, write_secret
from uploader.storage import disk
from uploader.storage.backups import BackupDirectory, BackupRefused, BlobDamaged, BlobTree, check
from uploader.storage.base import FileBlob, Gone, OpenBlob
from uploader.storage.disk import Root
from uploader.storage.store import Store
from uploader.tasks import all_or_none

_BATCH = 200

# Hears what is being copied, how much of it is done, and of how much.
Tell = Callable[[str, int, int], None]
# Descriptors of files that may be a blob, by its SHA-256 and size.
Sources = Callable[[str, int], AsyncIterator[int]]


@dataclass(slots=True)
class Copied:
    blobs: int = 0
    bytes: int = 0
    # Of these, what was not there before; of which those that take no room of their own.
    new_blobs: int = 0
    new_bytes: int = 0
    linked_blobs: int = 0
    # What no source has, by its SHA-256: `damaged` or `missing`.
    lacking: dict[str, str] = field(default_factory=dict)
    # By a restore with another secret; None: with the same.
    links_ended: int | None = None


@dataclass(eq=False, repr=False)
class Copying:
    """Copies the blobs that a dump names, as far as they are not there: into a directory of backups, or out of one."""

    # `rereads`: what is there is believed only once it was read, not by its size.
    tree: BlobTree
    sources: Sources
    tell: Tell
    _: KW_ONLY
    rereads: bool = False
    _done_bytes: int = field(default=0, init=False)
    _copied: Copied = field(default_factory=Copied, init=False)

    async def run(self, dump: Path) -> Copied:
        """Copy what is lacking; the blobs are durable then. Raises OSError of the target."""
        copied = self._copied
        copied.blobs, copied.bytes = await asyncio.to_thread(_totals, dump)
        async for batch in _batches(dump):
            absent = await asyncio.to_thread(self._absent, batch)
            self._count(sum(size for _, size in batch) - sum(size for _, size in absent))
            await all_or_none(self._copy(sha256, size) for sha256, size in absent)
        await asyncio.to_thread(self.tree.sync)
        return copied

    def _absent(self, batch: list[tuple[str, int]]) -> list[tuple[str, int]]:
        return [(sha256, size) for sha256, size in batch if not self._is_there(sha256, size)]

    def _is_there(self, sha256: str, size: int) -> bool:
        if self.tree.size(sha256) != size:
            return False
        if not self.rereads:
            return True
        try:
            with disk.opened(self.tree.open(sha256)) as descriptor:
                check(sha256, descriptor)
        except BlobDamaged:
            return False
        return True

    async def _copy(self, sha256: str, size: int) -> None:
        why = "missing"
        async with aclosing(self.sources(sha256, size)) as sources:  # type: ignore[type-var]
            async for source in sources:
                try:
                    linked = await asyncio.to_thread(self.tree.place, sha256, source)
                except BlobDamaged:
                    why = "damaged"
                    continue
                self._copied.new_blobs += 1
                self._copied.new_bytes += size
                self._copied.linked_blobs += linked
                break
            else:
                self._copied.lacking[sha256] = why
        self._count(size)

    def _count(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self.tell("blobs", self._done_bytes, self._copied.bytes)


async def left_there(dump: Path) -> Copied:
    """None of the blobs is copied."""
    return Copied(*await asyncio.to_thread(_totals, dump))


async def found_there(dump: Path, sizes: Callable[[list[str]], Awaitable[list[int | None]]], tell: Tell) -> Copied:
    """Ask `sizes` for the blobs where they are: what is not there, or of another size, is lacking."""
    copied, done_bytes = await left_there(dump), 0
    async for batch in _batches(dump):
        found = await sizes([sha256 for sha256, _ in batch])
        for (sha256, size), found_size in zip(batch, found, strict=True):
            if found_size != size:
                copied.lacking[sha256] = "missing" if found_size is None else "damaged"
        done_bytes += sum(size for _, size in batch)
        tell("blobs", done_bytes, copied.bytes)
    return copied


async def _batches(dump: Path) -> AsyncIterator[list[tuple[str, int]]]:
    listing = read_listing(dump)
    while batch := await asyncio.to_thread(lambda: list(islice(listing, _BATCH))):
        yield batch


def _totals(dump: Path) -> tuple[int, int]:
    blobs = total_bytes = 0
    for _, size in read_listing(dump):
        blobs, total_bytes = blobs + 1, total_bytes + size
    return blobs, total_bytes


@dataclass(frozen=True, slots=True)
class BackedUp:
    stamp: str
    dumped: Dumped
    copied: Copied
    # Where the contents stay, if they are not copied.
    bucket: str | None
    removed_backups: int
    removed_blobs: int


@dataclass(eq=False, repr=False)
class Backups:
    database: Database
    storage: Store
    installation: Installation
    secret: InstallationSecret
    audit_log: AuditLog
    data: Path
    clock: Clock

    async def back_up(
        self, path: Path, tell: Tell, *, rereads: bool = False, keeps: int | None = None, with_secret: bool = False
    ) -> BackedUp:
        """Make a backup in a directory of such, beside earlier ones, whose blobs it shares. `rereads`: blobs that are
        there are read again. `keeps`: how many backups stay, unless this one lacks anything. `with_secret`: with the secret
        of the installation. Raises BackupRefused, ConfigurationError, Unavailable, OSError."""
        owner = self.installation.id
        if owner is None:
            raise BackupRefused(await self.database.read(_why_there_is_no_id))
        if _is_within(path, self.data) or _is_within(self.data, path):
            raise BackupRefused(f"{path} and the data directory {self.data} are not apart")
        with closing(await asyncio.to_thread(BackupDirectory.claim, path, owner)) as directory:
            secret = (await self.secret.obtain()).text if with_secret else None
            return await self._back_up(directory, tell, rereads, keeps, secret)

    async def _back_up(
        self, directory: BackupDirectory, tell: Tell, rereads: bool, keeps: int | None, secret: str | None
    ) -> BackedUp:
        stamp, begun = await asyncio.to_thread(directory.begin, self.clock.now())
        if secret is not None:
            await asyncio.to_thread(write_secret, begun / SECRET_FILE, f"{secret}\n")
        dumped = await write_dump(self.database, begun, partial(tell, "database"))
        crash_point("backup.after_dump")
        bucket = None if self.storage.keeps_files else self.storage.marks.store.name
        if bucket is None:
            copied = await Copying(directory.blobs, self._sources, tell, rereads=rereads).run(begun)
        else:
            copied = await left_there(begun)
        crash_point("backup.after_blobs")
        facts = {
            "version": __version__,
            "installation": self.installation.id,
            "bucket": bucket,
            "database": dumped.kind,
            "revision": dumped.revision,
            "blobs": copied.blobs,
            "bytes": copied.bytes,
            "lacking": copied.lacking,
        }
        # Before it is whole: a copy of everything that nobody was told of would be none.
        details = {"directory": str(directory), "blobs": copied.blobs, "lacking": len(copied.lacking)}
        await self.audit_log.note(Action.BACKUP_MADE, subject=stamp, details=details)
        crash_point("backup.after_note")
        await asyncio.to_thread(directory.complete, stamp, facts)
        removed = (0, 0)
        if keeps is not None and not copied.lacking and dumped.doubt is None:
            removed = await asyncio.to_thread(_remove_old, directory, keeps)
        return BackedUp(stamp, dumped, copied, bucket, *removed)

    async def _sources(self, sha256: str, size: int) -> AsyncIterator[int]:
        """Yield the blob and its copies in the trash; twice, because it may come back from there meanwhile."""
        for _ in range(2):
            with suppress(Gone, StorageFailed):
                async with _opened(self.storage.open_blob(sha256, size)) as descriptor:
                    yield descriptor
            for found in await self.storage.copies(sha256):
                with suppress(Gone, StorageFailed):
                    async with _opened(self.storage.open_found(found)) as descriptor:
                        yield descriptor


async def _why_there_is_no_id(connection: Connection) -> str:
    if await queries.blobs_in_use(connection, after="", limit=1) or await queries.count_all_open_uploads(connection):
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
    """Remove old backups; return how many, and how many blobs that no other one names."""
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


# What a new filesystem has, and what somebody has put there for the restore.
_NOTHING = frozenset({"lost+found", SECRET_FILE})


@dataclass(frozen=True, slots=True)
class Plan:
    directory: BackupDirectory
    stamp: str
    installation: str
    revision: str

    @property
    def dump(self) -> Path:
        return self.directory.path / self.stamp


@dataclass(eq=False, repr=False)
class Restoring:
    """Nothing else uses the stores meanwhile."""

    database: Database
    storage: Store
    pending: Pending
    redis: RedisMark
    secret: InstallationSecret
    data: Path

    async def look(self, path: Path, stamp: str | None = None) -> Plan:
        """Plan to restore the newest backup of a directory, or that of a stamp; changes nothing but that the data
        directory is made. Raises BackupRefused, ConfigurationError, Unavailable, OSError."""
        directory = await asyncio.to_thread(BackupDirectory, path)
        owner, stamps = directory.installation(), directory.stamps()
        if not stamps:
            raise BackupRefused(f"{path} has no backup that is whole")
        if stamp is not None and stamp not in stamps:
            raise BackupRefused(f"{path} has no backup {stamp}, but {', '.join(stamps)}")
        facts = await asyncio.to_thread(directory.manifest, stamp or stamps[-1])
        if facts["installation"] != owner:
            raise BackupRefused(f"{path} is of installation {owner}, the backup of {facts['installation']}")
        if facts["database"] != kind_of(self.database):
            raise BackupRefused(
                "the backup is of a SQLite: unset UPLOADER_DATABASE_URL"
                if facts["database"] == "sqlite"
                else "the backup is of a MySQL or MariaDB: set UPLOADER_DATABASE_URL to one"
            )
        if facts["revision"] > migrate.head_revision():
            raise BackupRefused(f"the backup was made by version {facts['version']}: install that or a newer one")
        bucket, store = facts.get("bucket"), self.storage.marks.store  # before 0.3.0 there was none
        if bucket is not None and self.storage.keeps_files:
            raise BackupRefused(f"the contents of the backup are in the {bucket}: set UPLOADER_STORAGE")
        if bucket is None and not self.storage.keeps_files:
            raise BackupRefused(f"the backup has its contents with it, which go to a disk: unset {store.setting}")
        await self._check_store(owner)
        await check_empty(self.database, facts["revision"])
        return Plan(directory, stamp or stamps[-1], owner, facts["revision"])

    async def _check_store(self, owner: str) -> None:
        """Contents of the same installation may be there, with or without rows: none is replaced, none is removed."""
        marks, store = await self.storage.marks.read(owner), self.storage.marks.store
        if marks.installation == owner:
            return
        if marks.installation is not None:
            raise ConfigurationError(
                f"the {store.name} belongs to installation {marks.installation}, the backup to {owner}: "
                f"correct {store.setting}"
            )
        if not self.storage.keeps_files:
            raise ConfigurationError(
                f"the {store.name} belongs to no installation, and the contents of the backup are in a bucket that belongs "
                f"to {owner}: correct {store.setting}"
            )
        if there := sorted(set(await asyncio.to_thread(os.listdir, self.data)) - _NOTHING):
            raise ConfigurationError(
                f"UPLOADER_DATA: {self.data} is not empty, it has {there[0]}: a restore needs a new one"
            )

    async def restore(self, plan: Plan, tell: Tell) -> Copied:
        """Raises BackupRefused, ConfigurationError, Unavailable, OSError."""
        in_redis = await self.redis.read()
        if in_redis not in (None, plan.installation):
            raise ConfigurationError(
                f"Redis belongs to installation {in_redis}, the backup to {plan.installation}: correct UPLOADER_REDIS_URL"
            )
        await self.storage.marks.settle(plan.installation)
        await self.pending.reset()  # it may know more chunks than the disk has now
        crash_point("restore.after_mark")
        if not self.storage.keeps_files:
            ended = await self._load(plan)
            copied = await self._look_for_contents(plan, tell)
        else:
            copied = await self._copy(plan, tell)
            crash_point("restore.after_blobs")
            ended = await self._load(plan)
        copied.links_ended = ended
        return copied

    async def _load(self, plan: Plan) -> int | None:
        """Return how many links have ended, if the secret is another one than that of the backup."""
        secret = await self.secret.obtain_anew(plan.dump / SECRET_FILE)
        await load_dump(self.database, plan.dump, plan.revision, secret)
        return await self.secret.settle(secret)

    async def _look_for_contents(self, plan: Plan, tell: Tell) -> Copied:
        """It takes a while, and the database is there: an interrupted restore need not begin again, and could not."""
        try:
            return await found_there(plan.dump, self.storage.blob_sizes, tell)
        except StorageFailed as error:
            raise BackupRefused(
                f"the database is restored; whether the {self.storage.marks.store.name} has its contents could not be "
                f"asked ({error.reason}): `uploader scrub` names what is missing"
            ) from error

    async def _copy(self, plan: Plan, tell: Tell) -> Copied:
        root = Root(self.data.absolute())
        await asyncio.to_thread(root.open)

        async def sources(sha256: str, _size: int) -> AsyncIterator[int]:
            opening = asyncio.to_thread(plan.directory.blobs.open, sha256)
            with suppress(FileNotFoundError), disk.opened(await opening) as descriptor:
                yield descriptor

        return await Copying(BlobTree(root, is_store=True), sources, tell).run(plan.dump)
