"""Makes backups while the server runs, restores an installation from a backup, and restores the last copy of a SQLite.

A backup copies the database first, as of one moment. Then the blobs of that database follow; blobs in a bucket stay
there. Blobs never change, and a blob that lost its last file meanwhile lies in the trash. So the backup has the content
of every file, as long as the trash keeps lost blobs.

A restore goes onto an empty machine, or beside the blobs that are left. It may be interrupted anywhere and begun again:
first the installation id, then the blobs, and last the database, in one step. No server starts without the database.

Restoring the last copy of a SQLite loses everything since that copy: names of files, uploads, tokens, quotas. The
contents remain, and the cleanup keeps contents that the copy does not name until an administrator releases them
(`meta.held_contents`).
"""

import asyncio
import heapq
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from uploader import __version__
from uploader.accounting.pending import Pending
from uploader.accounting.redis import RedisMark
from uploader.database import audit_log, copies, damage, meta, migrate, queries
from uploader.database.copies import LISTING, Dumped, RollingCopies, RollingCopy, dump, kind_of, read_listing
from uploader.database.engine import Connection, Database
from uploader.errors import ConfigurationError, StorageFailed
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.tasks import all_or_none
from uploader.service.audit_log import Action, AuditLog, act
from uploader.service.installation import FACT, Installation, difference
from uploader.service.secret import SECRET_FILE, InstallationSecret, write_secret
from uploader.storage import disk
from uploader.storage.backups import BackupDirectory, BackupRefused, BlobDamaged, BlobTree
from uploader.storage.base import FileBlob, Gone, OpenBlob
from uploader.storage.disk import Root
from uploader.storage.store import Store

_BATCH = 200

# Called with the kind of data, the amount that is copied, and the total.
Tell = Callable[[str, int, int], None]
# Yields descriptors of files that may hold a blob, by its SHA-256 and size.
_Sources = Callable[[str, int], AsyncIterator[int]]


@dataclass(slots=True)
class Copied:
    """The blobs of a copy of the database, and how copying them went."""

    blobs: int
    bytes: int
    # Blobs that the target did not have; `linked_blobs` of them are hard links, which take no space.
    new_blobs: int = 0
    new_bytes: int = 0
    linked_blobs: int = 0
    # Blobs that no source has, by SHA-256: `damaged` or `missing`.
    lacking: dict[str, str] = field(default_factory=dict)
    # How many links a restore with another secret ended; None: the secret is the same.
    links_ended: int | None = None


async def _copy_blobs(
    listing: Path, copied: Copied, tree: BlobTree, sources: _Sources, tell: Tell, *, rereads: bool = False
) -> None:
    """Copy the blobs that `tree` lacks, and make them durable. Raises OSError of the target."""
    done_bytes = 0

    def count(size_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += size_bytes
        tell("blobs", done_bytes, copied.bytes)

    async def copy(sha256: str, size: int) -> None:
        copied.lacking[sha256] = "missing"
        async with aclosing(sources(sha256, size)) as found:  # type: ignore[type-var]
            async for source in found:
                try:
                    linked = await asyncio.to_thread(tree.place, sha256, source)
                except BlobDamaged:
                    copied.lacking[sha256] = "damaged"
                    continue
                del copied.lacking[sha256]
                copied.new_blobs += 1
                copied.new_bytes += size
                copied.linked_blobs += linked
                break
        count(size)

    async for batch in _batches(listing):
        absent = await asyncio.to_thread(lambda: [each for each in batch if not tree.has(*each, rereads=rereads)])  # noqa: B023
        count(sum(size for _, size in batch) - sum(size for _, size in absent))
        await all_or_none(copy(*each) for each in absent)
    await asyncio.to_thread(tree.sync)


async def _batches(listing: Path) -> AsyncIterator[list[tuple[str, int]]]:
    blobs = read_listing(listing)
    while batch := await asyncio.to_thread(lambda: list(islice(blobs, _BATCH))):
        yield batch


@dataclass(frozen=True, slots=True)
class BackedUp:
    stamp: str
    dumped: Dumped
    copied: Copied
    # The bucket that keeps the contents; None if they were copied.
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
        """Make a backup in a directory of backups, which share their blobs. `rereads`: read the blobs of earlier
        backups again. `keeps`: how many backups to keep; an incomplete backup removes none. `with_secret`: include the
        secret of the installation. Raises BackupRefused, ConfigurationError, Unavailable, OSError."""
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
        dumped = await dump(self.database, begun, partial(tell, "database"))
        crash_point("backup.after_dump")
        bucket = None if self.storage.keeps_files else self.storage.marks.store.name
        copied = Copied(dumped.blobs, dumped.bytes)
        if bucket is None:
            await _copy_blobs(begun, copied, directory.blobs, self._sources, tell, rereads=rereads)
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
        # Noted before the backup is complete: a copy of all data must not exist without an act in the audit log.
        details = {"directory": str(directory), "blobs": copied.blobs, "lacking": len(copied.lacking)}
        await self.audit_log.note(Action.BACKUP_MADE, subject=stamp, details=details)
        crash_point("backup.after_note")
        await asyncio.to_thread(directory.complete, stamp, facts)
        removed = (0, 0)
        if keeps is not None and not copied.lacking and dumped.doubt is None:
            removed = await asyncio.to_thread(_remove_old, directory, keeps)
        return BackedUp(stamp, dumped, copied, bucket, *removed)

    async def _sources(self, sha256: str, size: int) -> AsyncIterator[int]:
        """Yield the blob, then its copies in the trash; twice, because the blob may return from the trash meanwhile."""
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
    """Remove old backups. Return their number, and the number of blobs removed with them."""
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


# Entries that an empty data directory may have: those of a new filesystem, and a secret put there for the restore.
_NOTHING = frozenset({"lost+found", SECRET_FILE})


@dataclass(frozen=True, slots=True)
class Plan:
    """The backup to restore."""

    directory: BackupDirectory
    stamp: str
    installation: str
    revision: str
    copied: Copied

    @property
    def dump(self) -> Path:
        return self.directory.path / self.stamp


@dataclass(frozen=True, slots=True)
class LastCopy:
    """The newest good copy. `damaged`: newer copies by name, and their damage."""

    copy: RollingCopy
    installation: str
    damaged: dict[str, str]


@dataclass(eq=False, repr=False)
class Restoring:
    """Restores an installation. Nothing else may use the stores meanwhile."""

    database: Database
    storage: Store
    pending: Pending
    redis: RedisMark
    secret: InstallationSecret
    copies: RollingCopies
    data: Path
    clock: Clock

    async def look(self, path: Path, stamp: str | None = None) -> Plan:
        """Plan to restore a backup of a directory: the newest, or that of `stamp`. Changes nothing, but may create the
        data directory. Raises BackupRefused, ConfigurationError, Unavailable, OSError."""
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
                if facts["database"] == copies.SQLITE
                else "the backup is of a MySQL or MariaDB: set UPLOADER_DATABASE_URL to one"
            )
        if facts["revision"] > migrate.head_revision():
            raise BackupRefused(f"the backup was made by version {facts['version']}: install that or a newer one")
        bucket, store = facts.get("bucket"), self.storage.marks.store  # versions before 0.3.0 wrote no `bucket`
        if bucket is not None and self.storage.keeps_files:
            raise BackupRefused(f"the contents of the backup are in the {bucket}: set UPLOADER_STORAGE")
        if bucket is None and not self.storage.keeps_files:
            raise BackupRefused(f"the backup has its contents with it, which go to a disk: unset {store.setting}")
        await self._check_store(owner)
        await copies.check_empty(self.database, facts["revision"])
        return Plan(directory, stamp or stamps[-1], owner, facts["revision"], Copied(facts["blobs"], facts["bytes"]))

    async def _check_store(self, owner: str) -> None:
        """The store may hold contents of the same installation: a restore neither replaces nor removes them."""
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
        await self._check_redis(plan.installation, "backup")
        await self.storage.marks.settle(plan.installation)
        await self.pending.reset()  # Redis may know chunks that the disk lacks now
        crash_point("restore.after_mark")
        if self.storage.keeps_files:
            await self._copy(plan, tell)
            crash_point("restore.after_blobs")
        secret = await self.secret.obtain_anew(plan.dump / SECRET_FILE)
        await copies.load(self.database, plan.dump, plan.revision, secret)
        plan.copied.links_ended = await self.secret.settle(secret)
        if not self.storage.keeps_files:
            await self._look_for_contents(plan, tell)
        return plan.copied

    async def _check_redis(self, installation: str, what: str) -> None:
        if (in_redis := await self.redis.read()) not in (None, installation):
            raise ConfigurationError(
                f"Redis belongs to installation {in_redis}, the {what} to {installation}: correct UPLOADER_REDIS_URL"
            )

    async def _look_for_contents(self, plan: Plan, tell: Tell) -> None:
        """Ask the bucket for the size of each blob. A missing blob, or one of another size, is lacking. The database is
        restored before this long check: after an interruption the restore need not, and can't, begin again."""
        done_bytes = 0
        async for batch in _batches(plan.dump):
            try:
                sizes = await self.storage.blob_sizes([sha256 for sha256, _ in batch])
            except StorageFailed as error:
                raise BackupRefused(
                    f"the database is restored; whether the {self.storage.marks.store.name} has its contents could not be "
                    f"asked ({error.reason}): `uploader scrub` names what is missing"
                ) from error
            for (sha256, size), found in zip(batch, sizes, strict=True):
                if found != size:
                    plan.copied.lacking[sha256] = "missing" if found is None else "damaged"
            done_bytes += sum(size for _, size in batch)
            tell("blobs", done_bytes, plan.copied.bytes)

    async def _copy(self, plan: Plan, tell: Tell) -> None:
        root = Root(self.data.absolute())
        await asyncio.to_thread(root.open)

        async def sources(sha256: str, _size: int) -> AsyncIterator[int]:
            opening = asyncio.to_thread(plan.directory.blobs.open, sha256)
            with suppress(FileNotFoundError), disk.opened(await opening) as descriptor:
                yield descriptor

        await _copy_blobs(plan.dump, plan.copied, BlobTree(root, is_store=True), sources, tell)

    # The last copy of a SQLite

    async def look_for_last(self) -> LastCopy:
        """Find the copy to restore. Changes nothing. Raises BackupRefused, ConfigurationError, Unavailable."""
        path = self.copies.database
        if path is None:
            raise BackupRefused("only a SQLite in a file has copies: restore a backup")
        if await asyncio.to_thread(damage.is_in_use, path):
            raise BackupRefused(f"{path} is in use: stop all servers and workers first")
        last = await asyncio.to_thread(_newest_good, self.copies)
        marks = await self.storage.marks.read(last.installation)
        if marks.installation != last.installation:
            raise ConfigurationError(difference(self.storage.marks.store, marks.installation, last.installation))
        return last

    async def restore_last(self, last: LastCopy) -> Path | None:
        """Replace the database by the copy, in one step. Return the new path of the replaced database. May be repeated
        after a crash. Raises ConfigurationError, Unavailable, OSError."""
        path = self.copies.database
        assert path is not None
        await self._check_redis(last.installation, "copy")
        await self.pending.reset()  # Redis knows more than the copy
        draft = await asyncio.to_thread(copies.draft_of, last.copy.path, path)
        await self._mark(draft, last)
        crash_point("restore.after_draft")
        return await asyncio.to_thread(copies.replace, path, draft, self.clock.now())

    async def _mark(self, draft: Path, last: LastCopy) -> None:
        """Migrate the draft to the schema of this version, and note in it which contents the cleanup has to keep."""
        details = {"copy": last.copy.path.name, "made_at": last.copy.made_at.isoformat()}
        told = act(Action.INSTALLATION_RESTORED, self.clock.now(), subject=last.installation, details=details)
        held = meta.Held(last.copy.made_at, self.clock.now())

        async def mark(connection: Connection) -> None:
            await meta.hold_contents(connection, held)
            await audit_log.note(connection, told)

        database = Database(f"sqlite:///{draft}")
        try:
            secret = await self.secret.obtain_anew()
            await migrate.upgrade(database, secret=secret)
            await self.secret.settle(secret, database)
            await database.transact(mark)
        finally:
            await database.close()


def _newest_good(kept: RollingCopies) -> LastCopy:
    damaged: dict[str, str] = {}
    for copy in kept.listed():
        try:
            told = damage.damage_of(copy.path)
            if not told:
                return LastCopy(copy, copies.fact_in(copy.path, FACT) or "none", damaged)
        except sqlite3.Error as error:
            told = [str(error)]
        damaged[copy.path.name] = told[0]
    found = "".join(f"; {name}: {told}" for name, told in damaged.items())
    raise BackupRefused(f"there is no good copy of {kept.database}{found}: restore a backup (docs/repair.md)")
