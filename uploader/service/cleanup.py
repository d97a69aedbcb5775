"""Removes the remains of crashes from the disk and ends idle uploads of past months; on request, ends every open
upload.

Bytes without a row go to the trash. But many blobs without a row suggest a wrong database (decision 0015): these blobs
stay until an administrator releases them. Works beside servers, workers and other cleanups: it decides by rows, looks
again before each removal, and spares recent changes.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import KW_ONLY, astuple, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec

from uploader.database import meta, queries, transactions
from uploader.database.engine import Database, Duplicate
from uploader.database.transactions.rows import NotOpen
from uploader.domain.audit_log import Action
from uploader.domain.upload import Reason, State, Upload
from uploader.errors import StorageFailed, StorageFull, Unavailable, Unverified, UploaderError
from uploader.runtime.clock import Clock
from uploader.runtime.observability import level_of
from uploader.runtime.tasks import uninterrupted
from uploader.service.audit_log import AuditLog
from uploader.service.close import Closers
from uploader.service.ids import greatest, new_id
from uploader.storage.base import Found, Gone, Housekeeping, Stretch
from uploader.storage.store import Store

logger = logging.getLogger(__name__)

_EXPIRY_BATCH = 100
# Later than the opening of any upload.
_ANY_TIME = datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(eq=False, repr=False)
class Expiry:
    """Expires idle uploads. The database lists the candidates; the store decides under the locks of each upload."""

    database: Database
    closers: Closers
    _: KW_ONLY
    expiry_seconds: float

    async def idle(self, updated_before: datetime, *, after_id: str) -> list[Upload]:
        """Return the next uploads that may be idle, by id. Raises Unavailable."""
        return await self.database.read(queries.all_open_uploads, after_id, _EXPIRY_BATCH, updated_before)

    async def expire(self, uploads: list[Upload]) -> None:
        """Expire the idle ones of these uploads. A busy upload does not hold up the others."""
        for upload in uploads:
            try:
                await self.closers.expire(upload, self.expiry_seconds)
            except Unavailable as error:
                logger.warning(
                    "an upload is not expired for now", extra={"upload_id": upload.id, "reason": error.reason}
                )


# Openings and merges write bytes before rows: younger entries may still get a row.
_SETTLED_SECONDS = 3600.0
_FACT = "kept strays"


def is_settled(found: Found, now: datetime) -> bool:
    """Return whether an entry is too old to get a row."""
    return found.changed_at < now.timestamp() - _SETTLED_SECONDS


@dataclass(frozen=True, slots=True)
class Unnamed:
    """The bytes of a content or of an upload without a row."""

    found: Found
    is_blob: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """A part of the list of all blobs. Blobs without a row are `unsettled` if they changed lately, else `strays`."""

    listed: Stretch
    unsettled: list[Found]
    strays: list[Found]


async def stray_blobs(
    database: Database, storage: Housekeeping, now: datetime, after: str = ""
) -> AsyncIterator[Batch]:
    """Yield all blobs of the store in batches. A blob without a row comes from a crash, or belongs to another database,
    such as the one before a restore. `after`: where an earlier walk has ended. Raises Stopping, Unavailable."""
    async for listed in storage.list_blobs(after):
        known = await database.read(queries.known_blobs, [found.name for found in listed])
        batch = Batch(listed, [], [])
        for found in listed:
            if found.name not in known:
                (batch.strays if is_settled(found, now) else batch.unsettled).append(found)
        yield batch


async def remember_kept_strays(database: Database, count: int) -> None:
    """Tell all processes how many blobs without a row the last cleanup left in place. Raises Unavailable."""
    if count != await kept_strays(database):
        await database.transact(meta.replace_fact, _FACT, str(count))


async def kept_strays(database: Database) -> int:
    """Raises Unavailable."""
    return int(await database.read(meta.fact, _FACT) or 0)


_BATCH = 250
# Closed uploads remembered for each user.
_REMEMBERED = 1000
_PURGED_UNTIL = "users with many closed uploads"
# More blobs without a row than this number and this part of all blobs are not the remains of crashes.
_MAX_STRAYS, _MAX_STRAY_PART = 100, 0.01
# How many strays are kept in memory until all are counted; further ones wait for the next cleanup.
_MAX_STRAYS_AT_ONCE = 10_000
# An upload's bytes go when it ends. If bytes remain a minute later, the process has died.
_ENDED_SECONDS = 60.0
_TIDIED_UNTIL = "closed uploads were tidied"
_LAST_CLEANUP = "cleaned up"


class LastCleanup(msgspec.Struct, frozen=True):
    """The last cleanup by a job. `at`: the end. `left`: True if some entries stayed, too young or busy."""

    at: datetime
    left: bool


@dataclass(slots=True)
class Cleaned:
    expired_uploads: int = 0
    quota_bytes: int = 0
    directories: int = 0
    blobs: int = 0
    disk_bytes: int = 0
    # Blobs without a row that stay, because they are too many for the remains of crashes.
    stray_blobs: int = 0
    stray_bytes: int = 0
    # Entries that changed too recently: they may still get a row.
    unsettled: int = 0
    unsettled_bytes: int = field(default=0, compare=False)
    # Entries that could not be handled now; the log has the reasons.
    left: int = 0


@dataclass(slots=True)
class Reset:
    uploads: int = 0
    quota_bytes: int = 0
    left: int = 0


@dataclass(eq=False, repr=False)
class Cleanup:
    database: Database
    storage: Store
    closers: Closers
    audit_log: AuditLog
    clock: Clock

    async def clean(
        self,
        *,
        opened_before: datetime | None = None,
        idle_seconds: float | None = None,
        all_strays: bool = False,
        dry_run: bool = False,
    ) -> Cleaned:
        """Clean up uploads opened before a moment (UTC; by default the start of this month), and blobs. Expire open uploads
        of that time after `idle_seconds` without a chunk, if given. `all_strays`: remove any number of blobs without a row;
        an administrator is sure that no other database needs them. `dry_run`: only report. Raises Unavailable, Stopping."""
        rules = {"all_strays": all_strays, "dry_run": dry_run}
        run = _Run(self.database, self.storage, self.closers, self.clock, idle_seconds=idle_seconds, **rules)
        month = self.clock.now().astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        run.held = None if all_strays else await self.database.read(meta.held_contents)
        await run.clean_uploads(opened_before or month)
        await run.clean_blobs()
        if not dry_run:
            await self.storage.remove_emptied(opened_before or month)
            await remember_kept_strays(self.database, run.cleaned.stray_blobs)
            if all_strays:
                await self.database.transact(meta.release_contents)
            # The act tells of bytes without a row. Each expired upload has an act of its own.
            if run.cleaned.blobs or run.cleaned.directories:
                told = {name: getattr(run.cleaned, name) for name in ("blobs", "directories", "disk_bytes")}
                facts = {"all_strays": all_strays, **told}
                await self.audit_log.note(Action.DISK_CLEANED, subject="disk", details=facts)
        return run.cleaned

    async def last(self) -> LastCleanup | None:
        """Return the last cleanup; None if no job has cleaned up yet. Raises Unavailable."""
        return await self.database.read(meta.kept, _LAST_CLEANUP, LastCleanup)

    async def remember(self, last: LastCleanup) -> None:
        """Tell all jobs of the installation about a cleanup. Raises Unavailable."""
        await self.database.transact(meta.keep, _LAST_CLEANUP, last)

    async def ask_again(self) -> None:
        """Let the next job clean up, because there is something to remove. Raises Unavailable."""
        last = await self.last()
        if last is not None and not last.left and not await kept_strays(self.database):
            await self.remember(LastCleanup(last.at, left=True))

    async def find_left(self, limit: int) -> bool:
        """Hand over to `Closers.tidy_left` the remains of uploads closed since the last call, whose process died before
        it was done. Return whether there may be more. Raises Unavailable."""
        since, until = await self.database.read(meta.moment, _TIDIED_UNTIL), self.clock.now()
        until -= timedelta(seconds=_ENDED_SECONDS)
        closed = await self.database.read(queries.uploads_closed_between, min(since, until), until, limit)
        if not closed:
            return False
        self.closers.leave([upload.id for upload in await self.storage.remaining(closed)])
        closed_at = max(upload.closed_at for upload in closed if upload.closed_at is not None)
        await self.database.transact(meta.replace_fact, _TIDIED_UNTIL, closed_at.isoformat())
        return len(closed) == limit

    async def unnamed(self) -> AsyncIterator[Unnamed]:
        """Yield the bytes of contents and uploads without a row, however young. Raises Unavailable, Stopping."""
        async for stretch in self.storage.list_blobs():
            known = await self.database.read(queries.known_blobs, [each.name for each in stretch.found])
            for found in stretch.found:
                if found.name not in known and not found.is_draft:
                    yield Unnamed(found, is_blob=True)
        async for batch in self.storage.list_uploads(_ANY_TIME):
            rows = await self.database.read(queries.uploads_by_id, [each.name for each in batch])
            for found in batch:
                if found.name not in rows and await self.storage.holds_chunks(found):
                    yield Unnamed(found, is_blob=False)

    async def purge_closed(self, closed_before: datetime, limit: int) -> int:
        """Forget uploads that were closed long ago. Return how many. Raises Unavailable."""
        return await self._purge(await self.database.read(queries.closed_uploads, closed_before, limit))

    async def purge_crowded(self, limit: int) -> bool:
        """Forget closed uploads beyond the newest 1000 of a user, for users who closed uploads since the last call.
        Return whether more users may follow. Raises Unavailable."""
        since, now = await self.database.read(meta.moment, _PURGED_UNTIL), self.clock.now()
        ends = await self.database.read(queries.ends_of_uploads, min(since, now), now, limit)
        if not ends:
            return False
        callers = sorted({caller for _, caller in ends}, key=astuple)
        ask = partial(self.database.read, queries.closed_before_newest, callers, _REMEMBERED, limit)
        while (closed := await ask()) and await self._purge(closed):
            pass
        await self.database.transact(meta.replace_fact, _PURGED_UNTIL, ends[-1][0].isoformat())
        return len(ends) == limit

    async def _purge(self, closed: list[Upload]) -> int:
        """Remove closed uploads. If bytes remain, remove them now, and the row at the next call."""
        left = {upload.id for upload in await self.storage.remaining(closed)}
        for upload_id in left:
            try:
                await self.closers.tidy(upload_id)
            except Unavailable as error:  # a busy upload must not hold up the others
                logger.log(
                    level_of(error), "a closed upload is kept", extra={"upload_id": upload_id, "reason": error.reason}
                )
        gone = [upload.id for upload in closed if upload.id not in left]
        if not gone:
            return 0
        return await self.database.transact(transactions.uploads.purge_uploads, gone)

    async def reset_unfinished(self, *, only_lost: bool = False) -> Reset:
        """Cancel all open uploads, or only uploads whose chunks are lost. Raises Unavailable."""
        reset = Reset()
        async for upload in self._opened_before_now():
            if not only_lost or await self._is_lost(upload):
                try:
                    await self.closers.close(upload, Reason.CANCELLED)
                    reset.uploads += 1
                    reset.quota_bytes += upload.size
                except NotOpen:
                    continue
                except Unavailable as error:
                    facts = {"upload_id": upload.id, "reason": error.reason}
                    logger.log(level_of(error), "an upload is not cancelled", extra=facts)
                    reset.left += 1
        return reset

    async def count_lost(self) -> int:
        """Count open uploads that lost their chunks, as after a restore. Raises Unavailable."""
        return sum([await self._is_lost(upload) async for upload in self._opened_before_now()])

    async def _is_lost(self, upload: Upload) -> bool:
        try:
            await self.storage.read_map(upload)
        except Gone:
            return True
        except (StorageFailed, Unverified):
            return False
        return False

    async def _opened_before_now(self) -> AsyncIterator[Upload]:
        """Yield uploads opened before this call, none since: a busy server would keep this going for ever."""
        after, newest = "", new_id()
        while batch := await self.database.read(queries.all_open_uploads, after, _BATCH):
            for upload in batch:
                if upload.id > newest:
                    return
                yield upload
            after = greatest(after, [upload.id for upload in batch])


@dataclass(eq=False, repr=False)
class _Run:
    database: Database
    storage: Store
    closers: Closers
    clock: Clock
    _: KW_ONLY
    idle_seconds: float | None
    all_strays: bool
    dry_run: bool

    def __post_init__(self) -> None:
        self._now = self.clock.now()
        self.cleaned = Cleaned()
        # Contents that stay after a restore, though they are settled and few.
        self.held: meta.Held | None = None

    # Uploads

    async def clean_uploads(self, opened_before: datetime) -> None:
        async for batch in self.storage.list_uploads(opened_before):
            rows = await self.database.read(queries.uploads_by_id, [found.name for found in batch])
            for found in batch:
                try:
                    await self._clean_directory(found, rows.get(found.name))
                except (Unavailable, StorageFull) as error:
                    self._leave(found, error)

    async def _clean_directory(self, found: Found, row: Upload | None) -> None:
        if row is not None and row.state is State.OPEN:
            if self.idle_seconds is not None and await self._expired(row, self.idle_seconds):
                self.cleaned.expired_uploads += 1
                self.cleaned.quota_bytes += row.size
                self.cleaned.disk_bytes += found.disk_bytes
        elif not is_settled(found, self._now):
            self._leave_young([found])
        elif self.dry_run or await self._remove_directory(found):
            self.cleaned.directories += 1
            self.cleaned.disk_bytes += found.disk_bytes

    async def _expired(self, upload: Upload, idle_seconds: float) -> bool:
        idle_since = self._now - timedelta(seconds=idle_seconds)
        if upload.updated_at >= idle_since:
            return False
        if not self.dry_run:
            return await self.closers.expire(upload, idle_seconds)
        try:
            merges = (await self.storage.read_map(upload)).complete and not upload.is_part
            return not merges and await self.storage.last_write(upload) <= idle_since.timestamp()
        except Gone:
            return True

    async def _remove_directory(self, found: Found) -> bool:
        """Remove the directory of no open upload. Read the row again, durably: it may have come or gone meanwhile."""
        row = await self.database.read_durably(queries.upload_by_id, found.name)
        if row is not None and row.state is State.OPEN:
            return False
        if await self.closers.tidy(found.name):
            return True
        if row is None and await self.storage.holds_chunks(found):
            return not self._holds(found) and await self.storage.put_away(found)
        return await self.storage.remove(found)

    def _holds(self, found: Found) -> bool:
        return self.held is not None and self.held.holds(found.changed_at)

    # Blobs

    async def clean_blobs(self) -> None:
        """Put blobs without a row into the trash, unless they are too many. Remove the drafts of interrupted merges."""
        waiting: list[Found] = []
        total = strays = disk_bytes = 0
        async for batch in stray_blobs(self.database, self.storage, self._now):
            total += len(batch.listed.found)
            self._leave_young(batch.unsettled)
            for found in batch.strays:
                if self.all_strays or found.is_draft:
                    await self._clean_blob(found)
                    continue
                if self._holds(found):
                    self.cleaned.stray_blobs += 1
                    self.cleaned.stray_bytes += found.disk_bytes
                    continue
                strays, disk_bytes = strays + 1, disk_bytes + found.disk_bytes
                if len(waiting) < _MAX_STRAYS_AT_ONCE:
                    waiting.append(found)
        if strays > max(_MAX_STRAYS, _MAX_STRAY_PART * total):
            self.cleaned.stray_blobs += strays
            self.cleaned.stray_bytes += disk_bytes
            return
        for found in waiting:
            await self._clean_blob(found)
        if strays > len(waiting):
            logger.warning("blobs without a row are left for the next cleanup", extra={"blobs": strays - len(waiting)})
            self.cleaned.left += strays - len(waiting)

    def _leave_young(self, found: Sequence[Found]) -> None:
        self.cleaned.unsettled += len(found)
        self.cleaned.unsettled_bytes += sum(each.disk_bytes for each in found)

    async def _clean_blob(self, found: Found) -> None:
        try:
            if self.dry_run or await uninterrupted(self._put_blob_away(found)):
                self.cleaned.blobs += 1
                self.cleaned.disk_bytes += found.disk_bytes
        except (Unavailable, StorageFull) as error:
            self._leave(found, error)

    async def _put_blob_away(self, found: Found) -> bool:
        if found.is_draft:
            # No row ever names a draft, and a merge interrupted for an hour begins anew.
            return await self.storage.remove(found)

        @self.database.outside
        async def put_away(blob: queries.Blob | None) -> bool:
            return blob is None and await self.storage.put_away(found)

        try:
            return await self.database.transact(
                transactions.files.with_blob_locked, found.name, put_away, self._now, alone=True
            )
        except Duplicate:
            return False  # the blob has a row by now

    def _leave(self, found: Found, error: UploaderError) -> None:
        """Leave out a busy entry, which must not hold up the others."""
        logger.log(level_of(error), "not cleaned up for now", extra={"path": found.place, "reason": error.reason})
        self.cleaned.left += 1
