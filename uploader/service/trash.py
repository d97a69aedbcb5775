"""Restores bytes from the trash that a row names again, and removes old bytes for good, or more when the disk is short.

Under the lock of the content's row, a removal checks whether the bytes are still needed: by a restored dump, by a
damaged blob, or by an open upload.
"""

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import KW_ONLY, asdict, dataclass
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush

from uploader.database import queries, transactions, trash
from uploader.database.engine import Database, Duplicate
from uploader.domain.audit_log import Action
from uploader.domain.upload import State, Upload
from uploader.errors import StorageFailed, StorageFull
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.observability import level_of
from uploader.runtime.tasks import uninterrupted
from uploader.service.audit_log import AuditLog
from uploader.service.heal import Healing
from uploader.storage.base import Found
from uploader.storage.store import Store

logger = logging.getLogger(__name__)

_NAMES_AT_ONCE, _FILES_AT_ONCE = 1000, 200
_EVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Purged:
    entries: int = 0
    disk_bytes: int = 0


@dataclass(eq=False, repr=False)
class TrashKeeping:
    """The trash of the store. Entries are checked under their rows' locks, so several may run at once."""

    database: Database
    storage: Store
    healing: Healing
    audit_log: AuditLog
    clock: Clock
    _: KW_ONLY
    retention_seconds: float

    async def entries(self) -> list[Found]:
        """Return all entries, oldest first."""
        found = [each async for batch in self.storage.list_trash() for each in batch]
        return sorted(found, key=lambda each: each.changed_at)

    # Back

    async def restore_named(self) -> int:
        """Put back bytes that a row names and the store lacks. Return how many. Raises Unavailable, Stopping."""
        restored = 0
        async for batch in self.storage.list_trash():
            for sha256 in await self._lacking([found for found in batch if found.is_blob]):
                restored += await self._patiently(sha256, self.restore_blob(sha256))
            for found in batch:
                if not found.is_blob:
                    restored += await self._patiently(found.name, self.restore_upload(found))
        return restored

    async def _patiently(self, name: str, moving: Awaitable[bool]) -> bool:
        """Skip an entry that the disk refuses, which must not hold up the others."""
        try:
            return await moving
        except (StorageFailed, StorageFull) as error:
            logger.log(
                level_of(error), "something stays in the trash for now", extra={"subject": name, "reason": error.reason}
            )
            return False

    async def _lacking(self, copies: list[Found]) -> set[str]:
        """Return the contents in use that are damaged or missing in the store. Leave out a content whose copy was
        already in the trash when the damage was found: then the copy is as bad."""
        sha256s = sorted({copy.name for copy in copies})
        rows = await self.database.read(queries.blobs_by_sha256, sha256s)
        wanted = [blob for blob in rows.values() if blob.refs]
        sizes = await self.storage.blob_sizes([blob.sha256 for blob in wanted])
        lacking = {
            blob.sha256: blob
            for blob, size in zip(wanted, sizes, strict=True)
            if not blob.is_sound or size != blob.size
        }
        return {copy.name for copy in copies if copy.name in lacking and not _was_tried(copy, lacking[copy.name])}

    async def restore(self, name: str) -> bool:
        """Put a content or an upload back, if a row names it and the store lacks it. Return whether this was done."""
        for found in await self.entries():
            if found.name == name:
                return await (self.restore_blob(name) if found.is_blob else self.restore_upload(found))
        return False

    async def restore_blob(self, sha256: str) -> bool:
        """Heal a content that a row names from a copy in the trash. Return whether this was done."""
        damage = await self.healing.examine(sha256)
        return damage is not None and damage.healed

    async def restore_upload(self, found: Found) -> bool:
        """Put the bytes of an open upload back, if it has none. Return whether this was done."""
        row = await self.database.read(queries.upload_by_id, found.name)
        if row is None or not await self._is_wanted(row):
            return False
        restored = await self.storage.restore_upload(found, row)
        if restored:
            logger.warning("an upload has its bytes back from the trash", extra={"upload_id": row.id})
            await self.audit_log.note(Action.UPLOAD_RESTORED, subject=row.id, user_id=row.user_id)
        return restored

    async def _is_wanted(self, upload: Upload) -> bool:
        return upload.state is State.OPEN and not await self.storage.remaining([upload])

    # For good

    async def purge_old(self) -> Purged:
        return await self._purge(self.clock.now() - timedelta(seconds=self.retention_seconds))

    async def empty(self) -> Purged:
        purged = await self._purge(None)
        if purged.entries:
            await self.audit_log.note(Action.TRASH_EMPTIED, subject="trash", details=asdict(purged))
        return purged

    async def make_room(self, disk_bytes: int) -> Purged:
        """Free at least `disk_bytes`: first entries in no user's trash, then the oldest of the user with most bytes."""
        purged = Purged()
        async with aclosing(self._giving_way()) as giving_way:
            async for found in giving_way:
                if purged.disk_bytes >= disk_bytes:
                    break
                await self._purge_one(found, purged)
        if purged.entries:
            logger.warning(
                "the disk is short: the trash gave way",
                extra={"entries": purged.entries, "disk_bytes": purged.disk_bytes},
            )
        return purged

    async def _giving_way(self) -> AsyncGenerator[Found]:
        """Yield all entries, in the order in which they give way."""
        copies: dict[str, list[Found]] = defaultdict(list)
        for found in await self.entries():
            copies[found.name].append(found)
        named: set[str] = set()
        for first in range(0, len(copies), _NAMES_AT_ONCE):
            some = list(copies)[first : first + _NAMES_AT_ONCE]
            named |= await self.database.read(trash.named_since, some, _EVER)
        for name in [name for name in copies if name not in named]:
            for found in copies.pop(name):
                yield found
        # Users by bytes, most first, and for each user the position up to which files have given way.
        users = [(-held, user_id) for user_id, held in (await self.database.read(trash.bytes_by_user)).items()]
        heapify(users)
        after: dict[str, tuple[datetime, str]] = {}
        while users and copies:
            less, user_id = heappop(users)
            files = await self.database.read(trash.oldest_of, user_id, after.get(user_id), _FILES_AT_ONCE)
            for number, file in enumerate(files):
                if users and less > users[0][0]:
                    files = files[:number]
                    break
                after[user_id] = file.deleted_at, file.id
                less += file.size
                for found in copies.pop(file.sha256, ()):
                    yield found
            if files:
                heappush(users, (less, user_id))

    async def _purge(self, came_before: datetime | None) -> Purged:
        purged = Purged()
        async for batch in self.storage.list_trash():
            for found in batch if came_before is None else await self._unneeded(batch, came_before):
                await self._purge_one(found, purged)
        return purged

    async def _unneeded(self, batch: list[Found], came_before: datetime) -> list[Found]:
        """Return the entries that came before a moment. Keep the last copy of a content that a user deleted later."""
        old = [found for found in batch if found.changed_at <= came_before.timestamp()]
        contents = sorted({found.name for found in old if found.is_blob})
        named = await self.database.read(trash.named_since, contents, came_before) if contents else set()
        return [
            found
            for found in old
            if found.name not in named or (await self.storage.copies(found.name))[:1] not in ([found], [])
        ]

    async def _purge_one(self, found: Found, purged: Purged) -> None:
        purging = uninterrupted(self._purge_blob(found) if found.is_blob else self._purge_upload(found))
        if await self._patiently(found.name, purging):
            purged.entries += 1
            purged.disk_bytes += found.disk_bytes

    async def _purge_blob(self, found: Found) -> bool:
        @self.database.outside
        async def purge(blob: queries.Blob | None) -> bool:
            if blob is not None and blob.refs:
                (size,) = await self.storage.blob_sizes([blob.sha256])
                if not blob.is_sound or size != blob.size:
                    return False
            return await self.storage.remove(found)

        try:
            now = self.clock.now()
            gone = await self.database.transact(transactions.files.with_blob_locked, found.name, purge, now, alone=True)
        except Duplicate:
            return False  # the blob has a row by now: the next look will check it
        crash_point("trash.after_purge")
        return gone

    async def _purge_upload(self, found: Found) -> bool:
        row = await self.database.read_durably(queries.upload_by_id, found.name)
        if row is not None and await self._is_wanted(row):
            return False
        return await self.storage.remove(found)


def _was_tried(copy: Found, blob: queries.Blob) -> bool:
    return not blob.is_sound and blob.scrubbed_at is not None and copy.changed_at <= blob.scrubbed_at.timestamp()
