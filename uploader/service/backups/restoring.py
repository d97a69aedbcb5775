"""Makes an installation of a backup, on an empty machine or beside the blobs that are left of it.

In an order that may be broken off anywhere and begun again: whose the data directory is, the blobs, and the database last,
all at once. Without it no server starts.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from uploader.accounting.marks import RedisMark
from uploader.accounting.pending import Pending
from uploader.crashpoints import crash_point
from uploader.database import migrate
from uploader.database.dumps.dumping import check_empty, kind_of, load_dump
from uploader.database.engine import Database
from uploader.errors import ConfigurationError, StorageFailed
from uploader.service.backups.copying import Copied, Copying, Tell, found_there
from uploader.storage import disk
from uploader.storage.backups import BackupDirectory, BackupRefused, BlobTree
from uploader.storage.disk import Root
from uploader.storage.store import Store

# What a new filesystem has.
_NOTHING = frozenset({"lost+found"})


@dataclass(frozen=True, slots=True)
class Plan:
    """A backup that can be restored here."""

    directory: BackupDirectory
    stamp: str
    installation: str
    revision: str

    @property
    def dump(self) -> Path:
        return self.directory.path / self.stamp


class Restoring:
    """Nothing else uses the stores meanwhile."""

    def __init__(self, database: Database, storage: Store, pending: Pending, redis: RedisMark, data: Path) -> None:
        self._database = database
        self._storage = storage
        self._pending = pending
        self._redis = redis
        self._data = data

    async def look(self, path: Path, stamp: str | None = None) -> Plan:
        """Whether the newest backup of a directory, or that of a stamp, is whole and can be restored; changes nothing but
        that the data directory is made.

        Raises BackupRefused, ConfigurationError, Unavailable, OSError.
        """
        directory = await asyncio.to_thread(BackupDirectory, path)
        owner, stamps = directory.installation(), directory.stamps()
        if not stamps:
            raise BackupRefused(f"{path} has no backup that is whole")
        if stamp is not None and stamp not in stamps:
            raise BackupRefused(f"{path} has no backup {stamp}, but {', '.join(stamps)}")
        facts = await asyncio.to_thread(directory.manifest, stamp or stamps[-1])
        if facts["installation"] != owner:
            raise BackupRefused(f"{path} is of installation {owner}, the backup of {facts['installation']}")
        if facts["database"] != kind_of(self._database):
            raise BackupRefused(
                "the backup is of a SQLite: unset UPLOADER_DATABASE_URL"
                if facts["database"] == "sqlite"
                else "the backup is of a MySQL or MariaDB: set UPLOADER_DATABASE_URL to one"
            )
        if facts["revision"] > migrate.head_revision():
            raise BackupRefused(f"the backup was made by version {facts['version']}: install that or a newer one")
        self._check_contents(facts.get("bucket"))  # before 0.3.0 there was none
        await self._check_store(owner)
        await check_empty(self._database, facts["revision"])
        return Plan(directory, stamp or stamps[-1], owner, facts["revision"])

    def _check_contents(self, bucket: str | None) -> None:
        store = self._storage.marks.store
        if bucket is not None and self._storage.keeps_files:
            raise BackupRefused(f"the contents of the backup are in the {bucket}: set UPLOADER_STORAGE")
        if bucket is None and not self._storage.keeps_files:
            raise BackupRefused(f"the backup has its contents with it, which go to a disk: unset {store.setting}")

    async def _check_store(self, owner: str) -> None:
        """Contents of the same installation may be there, with or without rows: none is replaced, none is removed."""
        marks, store = await self._storage.marks.read(), self._storage.marks.store
        if marks.installation == owner:
            return
        if marks.installation is not None:
            raise ConfigurationError(
                f"the {store.name} belongs to installation {marks.installation}, the backup to {owner}: "
                f"correct {store.setting}"
            )
        if not self._storage.keeps_files:
            raise ConfigurationError(
                f"the {store.name} belongs to no installation, and the contents of the backup are in a bucket that belongs "
                f"to {owner}: correct {store.setting}"
            )
        if there := sorted(set(await asyncio.to_thread(_names, self._data)) - _NOTHING):
            raise ConfigurationError(
                f"UPLOADER_DATA: {self._data} is not empty, it has {there[0]}: a restore needs a new one"
            )

    async def restore(self, plan: Plan, tell: Tell) -> Copied:
        """Raises BackupRefused, ConfigurationError, Unavailable, OSError."""
        in_redis = await self._redis.read()
        if in_redis not in (None, plan.installation):
            raise ConfigurationError(
                f"Redis belongs to installation {in_redis}, the backup to {plan.installation}: correct UPLOADER_REDIS_URL"
            )
        await self._storage.marks.settle(plan.installation)
        await self._pending.reset()  # it may know more chunks than the disk has now
        crash_point("restore.after_mark")
        if not self._storage.keeps_files:
            await load_dump(self._database, plan.dump, plan.revision)
            return await self._look_for_contents(plan, tell)
        copied = await self._copy(plan, tell)
        crash_point("restore.after_blobs")
        await load_dump(self._database, plan.dump, plan.revision)
        return copied

    async def _look_for_contents(self, plan: Plan, tell: Tell) -> Copied:
        """It takes a while, and the database is there: whoever is interrupted here need not begin again, and could not."""
        try:
            return await found_there(plan.dump, self._storage.blob_sizes, tell)
        except StorageFailed as error:
            raise BackupRefused(
                f"the database is restored; whether the {self._storage.marks.store.name} has its contents could not be "
                f"asked ({error.reason}): `uploader scrub` names what is missing"
            ) from error

    async def _copy(self, plan: Plan, tell: Tell) -> Copied:
        root = Root(self._data.absolute())
        await asyncio.to_thread(root.open)

        async def sources(sha256: str, _size: int) -> AsyncIterator[int]:
            with suppress(FileNotFoundError):
                descriptor = await asyncio.to_thread(plan.directory.blobs.open, sha256)
                try:
                    yield descriptor
                finally:
                    disk.close(descriptor)

        return await Copying(BlobTree(root), sources, tell).run(plan.dump)


def _names(path: Path) -> list[str]:
    return [each.name for each in path.iterdir()]
