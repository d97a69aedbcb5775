"""Compares the bytes of a content with its digests, notes the outcome in its row, and heals it from the trash.

A content is damaged if it was read and differs, or is missing. One that can't be read may be sound: it is tried again.
Reading and hashing take long, so no row is locked meanwhile. The outcome counts only if, under the lock of the row, the same
bytes are still in their place.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from uploader.database import queries, transactions
from uploader.database.audit_log import note
from uploader.database.engine import Connection, Database
from uploader.domain.audit_log import Action
from uploader.domain.upload import File
from uploader.errors import StorageAway, StorageFailed
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.observability import DAMAGED_CONTENTS, HEALED_CONTENTS
from uploader.runtime.tasks import OnePerKey, uninterrupted
from uploader.service.audit_log import act
from uploader.settings import Settings
from uploader.storage.base import Digests, Found, Gone, Pace
from uploader.storage.store import Store

logger = logging.getLogger(__name__)

# When what could not be read is tried again: twice as much later each time, up to the last.
_REREAD_SECONDS, _LAST_REREAD_SECONDS = 30.0, 86_400.0
# To find that something is missing costs nothing, and it may be back at any time.
_LAST_LOOK_SECONDS = 600.0


# Of the time within which a content is to be read back: what is due then has the rest of it to be read in.
DUE = 0.75


def waits_since(settings: Settings, opened_at: datetime, now: datetime) -> datetime:
    """Return since when the content of an upload waits to be read back. Its bytes may have rotted after they were hashed,
    all the time that it was open; so one that was open for long is due at once, but not late."""
    return max(opened_at, now - timedelta(seconds=DUE * settings.scrub_first_seconds))


class BlobProblem(StrEnum):
    ALTERED = "altered"  # its bytes have another SHA-256
    MISSING = "missing"  # it has a row with refs, and no bytes
    UNREADABLE = "unreadable"  # the store reports an error, which says nothing of them


@dataclass(frozen=True, slots=True)
class Damage:
    """A blob that is not what it should be, and the files that have it as their content."""

    sha256: str
    size: int
    problem: BlobProblem
    files: list[File]
    # Whether a copy from the trash has taken its place.
    healed: bool


@dataclass(eq=False, repr=False)
class Healing:
    database: Database
    storage: Store
    clock: Clock

    def __post_init__(self) -> None:
        self._examining = OnePerKey[Damage | None]()

    async def is_whole(self, sha256: str, size: int) -> bool:
        """Tell whether a content is there, by its size; else it is marked, or healed. Raises Unavailable, Stopping."""
        if await self._size(sha256) == size:
            return True
        await self.examine(sha256)
        return await self._size(sha256) == size

    async def _size(self, sha256: str) -> int | None:
        (size,) = await self.storage.blob_sizes([sha256])
        return size

    async def examine(self, sha256: str, pace: Pace | None = None) -> Damage | None:
        """Read a content back from the disk; heal it, or mark it, if it is not what it should be. None if it is, or if
        nobody has it. One that can't be read is healed, or tried again soon. Raises StorageAway, after it has noted
        that; Unavailable, Stopping."""
        blob = await self._in_use(sha256)
        if blob is None:
            return None
        pace = None if pace is None else _with_own_errors(pace)
        try:
            found, seen = await self._look_at(blob, pace)
        except StorageAway:  # so are all others, and all copies
            await self._note_unreadable(blob)
            raise
        if isinstance(seen, Digests):
            await self._note(blob, found, seen)
            return None
        healed = await self._heal(blob, found, pace)
        if not healed and seen is BlobProblem.UNREADABLE:
            await self._note_unreadable(blob)
        elif not healed and not await self._note(blob, found, None):
            return None  # other bytes took their place meanwhile, or nobody has it any more
        files = await self.database.read(queries.files_by_sha256, sha256)
        return Damage(sha256, blob.size, seen, files, healed) if files else None

    def examine_once(self, sha256: str) -> "asyncio.Future[Damage | None]":
        """As `examine`, once for all who ask meanwhile: it takes as long as hashing it, in threads that merges use."""
        return self._examining.start(sha256, lambda: self.examine(sha256))

    async def note_unreadable(self, sha256: str) -> None:
        """Note that somebody could not read a content: it is looked at soon. Raises Unavailable."""
        blob = await self._in_use(sha256)
        if blob is not None and blob.reread_at is None:
            await self._note_unreadable(blob)

    async def _in_use(self, sha256: str) -> queries.Blob | None:
        blob = await self.database.read(queries.blob_by_sha256, sha256)
        return None if blob is None or blob.refs == 0 else blob

    async def _look_at(self, blob: queries.Blob, pace: Pace | None) -> tuple[Found | None, BlobProblem | Digests]:
        """Return the bytes, and what is wrong, or their digests, with the MD5 where it is not known. Raises
        StorageAway."""
        found: Found | None = None
        try:
            found = await self.storage.find_blob(blob.sha256)
            if found is None:
                return None, BlobProblem.MISSING
            # None: the disk does not tell.
            if await self._size(blob.sha256) not in (None, blob.size):
                return found, BlobProblem.ALTERED
            actual = await self.storage.hash_blob(found, pace, with_md5=blob.md5 is None)
        except StorageAway:
            raise
        except StorageFailed:
            return found, BlobProblem.UNREADABLE
        if actual is None:
            return found, BlobProblem.MISSING
        return found, actual if actual.sha256 == blob.sha256 else BlobProblem.ALTERED

    async def _note_unreadable(self, blob: queries.Blob) -> None:
        """Note it without a look at the bytes, which might fail: if others have taken their place, the next one
        tells."""
        now = self.clock.now()
        if blob.reread_at is None:
            logger.error("a content can't be read", extra={"sha256": blob.sha256})
        elif blob.reread_at > now:
            return  # many may ask meanwhile, and none of them puts that off
        await self.database.transact(transactions.files.note_unreadable, blob.sha256, now, _reread_at(blob, now))

    async def _note(self, blob: queries.Blob, found: Found | None, good: Digests | None) -> bool:
        """Say in the row how these bytes are, if they are still those of the blob. `good`: None if they are damaged. What is
        missing may come back with the directory that it is in, and is looked for again."""
        now, damaged = self.clock.now(), good is None
        reread_at = _reread_at(blob, now, _LAST_LOOK_SECONDS) if found is None else None

        async def note(connection: Connection) -> None:
            md5 = good.md5 if good else None
            await transactions.files.note_scrub(
                connection, blob.sha256, damaged=damaged, now=now, reread_at=reread_at, md5=md5
            )

        noted = await self._with_these_bytes(blob.sha256, found, note)
        if noted and damaged != blob.damaged:
            _tell(blob.sha256, damaged=damaged)
        return noted

    async def _heal(self, blob: queries.Blob, found: Found | None, pace: Pace | None) -> bool:
        for copy in await self.storage.copies(blob.sha256):
            try:
                good = await self.storage.hash_blob(copy, pace, with_md5=blob.md5 is None)
            except StorageAway:
                raise
            except StorageFailed:
                continue
            if good is not None and good.sha256 == blob.sha256 and await self._restore(good, found, copy):
                _tell(blob.sha256, damaged=False)
                return True
        return False

    async def _restore(self, good: Digests, found: Found | None, copy: Found) -> bool:
        restore = self.database.outside(self.storage.restore_blob)
        now = self.clock.now()
        told = act(Action.CONTENT_HEALED, now, subject=good.sha256)

        async def place(connection: Connection) -> None:
            location = await restore(copy)
            crash_point("heal.after_restore")
            if location is not None:
                await transactions.files.relocate(connection, {good.sha256: location}, now)
            await transactions.files.note_scrub(
                connection, good.sha256, damaged=False, now=now, restored=True, md5=good.md5
            )
            await note(connection, told)

        try:
            return await self._with_these_bytes(good.sha256, found, place)
        except Gone:
            return False  # it was purged at this moment

    async def _with_these_bytes(
        self, sha256: str, found: Found | None, work: Callable[[Connection], Awaitable[None]]
    ) -> bool:
        """Do something under the lock of a blob's row, if it is in use and its bytes are those that were found."""
        look = self.database.outside(self.storage.find_blob)

        async def transaction(connection: Connection) -> bool:
            blob = await queries.blob_by_sha256(connection, sha256, lock=True)
            if blob is None or blob.refs == 0:
                return False
            now = await look(sha256)
            if (now and now.inode) != (found and found.inode):
                return False
            await work(connection)
            return True

        return await uninterrupted(self.database.transact(transaction, alone=True))


def _reread_at(blob: queries.Blob, now: datetime, last_seconds: float = _LAST_REREAD_SECONDS) -> datetime:
    """Return when a content is tried again that was tried now: after twice as long as the last time."""
    wait_seconds = _REREAD_SECONDS
    if blob.reread_at is not None and blob.scrubbed_at is not None:
        waited_seconds = (blob.reread_at - blob.scrubbed_at).total_seconds()
        wait_seconds = min(max(2 * waited_seconds, _REREAD_SECONDS), last_seconds)
    return now + timedelta(seconds=wait_seconds)


def _with_own_errors(pace: Pace) -> Pace:
    """Errors of the pace are no errors of the disk, also where they look like one."""

    def keep_pace(read_bytes: int) -> None:
        try:
            pace(read_bytes)
        except OSError as error:
            raise RuntimeError("the pace of reading failed") from error

    return keep_pace


def _tell(sha256: str, *, damaged: bool) -> None:
    if damaged:
        logger.error("a content is damaged", extra={"sha256": sha256})
        DAMAGED_CONTENTS.inc()
    else:
        logger.warning("a damaged content is healed", extra={"sha256": sha256})
        HEALED_CONTENTS.inc()
