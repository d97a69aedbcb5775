"""Compares the bytes of a content with its digests, notes the outcome in its row, and heals the content from the trash.

A content is damaged if its bytes differ or are missing. A content that can't be read may be sound: reading is tried
again. Reading and hashing take long, so no row is locked meanwhile. The outcome counts only if the same bytes are still
in place, checked under the lock of the row.
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

# When to try an unreadable content again: the wait doubles each time, up to the second value.
_REREAD_SECONDS, _LAST_REREAD_SECONDS = 30.0, 86_400.0
# For a missing content: looking costs nothing, and the content may return at any time.
_LAST_LOOK_SECONDS = 600.0


# A content is due after this part of the time in which it should be read back; the rest is for the reading.
DUE = 0.75


def waits_since(settings: Settings, opened_at: datetime, now: datetime) -> datetime:
    """Return since when the content of an upload waits to be read back. Its bytes may have rotted while the upload was
    open. So the content of a long upload is due at once, but not late."""
    return max(opened_at, now - timedelta(seconds=DUE * settings.scrub_first_seconds))


class BlobProblem(StrEnum):
    ALTERED = "altered"  # its bytes have another SHA-256
    MISSING = "missing"  # it has a row with refs, and no bytes
    UNREADABLE = "unreadable"  # the store reports an error, which proves no damage


@dataclass(frozen=True, slots=True)
class Damage:
    """A blob in bad condition, and the files with this content."""

    sha256: str
    size: int
    problem: BlobProblem
    files: list[File]
    # True if a copy from the trash has replaced the blob.
    healed: bool


@dataclass(eq=False, repr=False)
class Healing:
    database: Database
    storage: Store
    clock: Clock

    def __post_init__(self) -> None:
        self._examining = OnePerKey[Damage | None]()

    async def is_whole(self, sha256: str, size: int) -> bool:
        """Return whether the store has this content, by its size, after healing. Raises Unavailable, Stopping."""
        if await self._size(sha256) == size:
            return True
        await self.examine(sha256)
        return await self._size(sha256) == size

    async def _size(self, sha256: str) -> int | None:
        (size,) = await self.storage.blob_sizes([sha256])
        return size

    async def examine(self, sha256: str, pace: Pace | None = None) -> Damage | None:
        """Read a content back from the disk. Heal a bad content, or mark it as damaged. Return None for a good content,
        or one without files. An unreadable content is healed, or tried again soon. Raises StorageAway, Unavailable,
        Stopping."""
        blob = await self._in_use(sha256)
        if blob is None:
            return None
        pace = None if pace is None else _with_own_errors(pace)
        try:
            found, seen = await self._look_at(blob, pace)
        except StorageAway:  # all other contents and copies are away, too
            await self._note_unreadable(blob)
            raise
        if isinstance(seen, Digests):
            await self._note(blob, found, seen)
            return None
        healed = await self._heal(blob, found, pace)
        if not healed and seen is BlobProblem.UNREADABLE:
            await self._note_unreadable(blob)
        elif not healed and not await self._note(blob, found, None):
            return None  # other bytes took its place, or no file has it any more
        files = await self.database.read(queries.files_by_sha256, sha256)
        return Damage(sha256, blob.size, seen, files, healed) if files else None

    def examine_once(self, sha256: str) -> "asyncio.Future[Damage | None]":
        """Examine as `examine`, once for all concurrent callers: it takes as long as hashing, in threads of merges."""
        return self._examining.start(sha256, lambda: self.examine(sha256))

    async def note_unreadable(self, sha256: str) -> None:
        """Note an unreadable content, for an examination soon. Raises Unavailable."""
        blob = await self._in_use(sha256)
        if blob is not None and blob.reread_at is None:
            await self._note_unreadable(blob)

    async def _in_use(self, sha256: str) -> queries.Blob | None:
        blob = await self.database.read(queries.blob_by_sha256, sha256)
        return None if blob is None or blob.refs == 0 else blob

    async def _look_at(self, blob: queries.Blob, pace: Pace | None) -> tuple[Found | None, BlobProblem | Digests]:
        """Return a blob's bytes, and the problem or the digests; the MD5 only if the row lacks it. Raises StorageAway."""
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
        """Note an unreadable content, whichever bytes are there: a look might fail, and the next one will tell."""
        now = self.clock.now()
        if blob.reread_at is None:
            logger.error("a content can't be read", extra={"sha256": blob.sha256})
        elif blob.reread_at > now:
            return  # many may ask meanwhile, and must not postpone the next attempt
        await self.database.transact(transactions.files.note_unreadable, blob.sha256, now, _reread_at(blob, now))

    async def _note(self, blob: queries.Blob, found: Found | None, good: Digests | None) -> bool:
        """Note the condition of a blob's bytes in its row, if the same bytes are still in place. `good`: their digests;
        None if they are damaged. A missing content may return with its directory, and is looked for again."""
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
            return False  # the copy was purged at this moment

    async def _with_these_bytes(
        self, sha256: str, found: Found | None, work: Callable[[Connection], Awaitable[None]]
    ) -> bool:
        """Run `work` under the lock of a blob's row, if the blob is in use and still has the bytes that were found."""
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
    """Return when to try a content again that was tried now: after twice the last wait."""
    wait_seconds = _REREAD_SECONDS
    if blob.reread_at is not None and blob.scrubbed_at is not None:
        waited_seconds = (blob.reread_at - blob.scrubbed_at).total_seconds()
        wait_seconds = min(max(2 * waited_seconds, _REREAD_SECONDS), last_seconds)
    return now + timedelta(seconds=wait_seconds)


def _with_own_errors(pace: Pace) -> Pace:
    """Separate errors of the pace from errors of the disk, even if they look alike."""

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
