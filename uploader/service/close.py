"""Works on an upload as a whole while all its chunks are locked: ends it without a file, tidies up, hydrates Redis,
withdraws chunks.

An ending takes effect in one order: SQL, then Redis, then the disk. After a crash in between, the next job, merge or
cleanup that meets the upload does the rest.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from uploader.accounting.pending import Outcome, Pending, RecordResult
from uploader.database import meta, queries, transactions
from uploader.database.engine import Database
from uploader.database.transactions.rows import NotOpen
from uploader.database.transactions.uploads import LengthTold
from uploader.domain.audit_log import Action, Via
from uploader.domain.upload import (
    REDIS_WORDS,
    STATE_OF_REASON,
    Reason,
    State,
    Upload,
    received_bytes,
)
from uploader.errors import StorageFailed, Unavailable, Unverified, UploaderError
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.observability import LOST_UPLOADS, REBUILDS, level_of
from uploader.runtime.tasks import OnePerKey, uninterrupted
from uploader.runtime.wait_budget import in_passing
from uploader.service.audit_log import act, actor
from uploader.storage.base import Closer, Gone, PresentChunks
from uploader.storage.store import Store

_ACTIONS = {Reason.EXPIRED: Action.UPLOAD_EXPIRED, Reason.CANCELLED: Action.UPLOAD_CANCELLED}


logger = logging.getLogger(__name__)

T = TypeVar("T")

# The era may change between reading it and hydrating. If the era changes more often than this, Redis keeps restarting.
_HYDRATE_ATTEMPTS = 5


@dataclass(eq=False, repr=False)
class Closers:
    """Methods that take all locks of an upload, and run to their end even if their callers are cancelled."""

    database: Database
    storage: Store
    pending: Pending
    clock: Clock
    # Ids of closed uploads whose bytes this process could not remove.
    _left: set[str] = field(default_factory=set, init=False)
    # Ids of complete uploads whose digests can't be computed, although no chunk is bad.
    _unmergeable: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._mending = OnePerKey[None]()

    async def close(self, upload: Upload, reason: Reason) -> None:
        """End an upload without a file. Raises NotOpen, Unavailable."""
        await uninterrupted(self._close(upload, reason))

    async def _close(self, upload: Upload, reason: Reason) -> None:
        try:
            async with self.storage.closing(upload) as closer:
                if STATE_OF_REASON[reason] is State.FAILED:
                    await self._refuse_an_older_generation(upload)
                await self._commit_close(upload, reason, closer)
        except Gone:
            # Without a map there are no locks. Either another worker has closed the upload: then the transaction raises
            # NotOpen. Or the directory was lost: then the upload ends without it.
            await self._commit_close(upload, reason, None)

    async def _refuse_an_older_generation(self, upload: Upload) -> None:
        """Raises NotOpen if chunks were withdrawn after the caller compared the bytes with the claims."""
        row = await self.database.read(queries.upload_by_id, upload.id, brief=True)
        if row is None or row.generation != upload.generation:
            raise NotOpen(upload.id)

    async def _commit_close(self, upload: Upload, reason: Reason, closer: Closer | None) -> None:
        await self.announce(upload)
        now, action, told = self.clock.now(), _ACTIONS.get(reason), None
        # A cancellation by the user, or a failure, is no act.
        if action is not None and not (reason is Reason.CANCELLED and actor().via is Via.REQUEST):
            told = act(action, now, subject=upload.id, user_id=upload.user_id)
        await self.database.transact(transactions.uploads.close_upload, upload.id, reason, now, told)
        crash_point("close.after_commit")
        logger.info("upload closed", extra={"upload_id": upload.id, "user_id": upload.user_id, "reason": reason.value})
        await self.clear(upload, STATE_OF_REASON[reason], closer)

    async def announce(self, upload: Upload) -> None:
        """Lease the upload's task before a commit that closes the upload or renews its generation. If this process dies
        after the commit, the lease ends, and a worker meets the upload."""
        try:
            with in_passing():
                await self.pending.lease(upload.id)
            crash_point("close.after_announce")
        except Unavailable:
            logger.debug("an upload is closed without Redis", extra={"upload_id": upload.id})

    async def close_by(self, upload: Upload | None, commit: Callable[[], Awaitable[T]]) -> T:
        """Run `commit`, a transaction that closes an upload as done because its file came another way. Hold the locks
        of the upload meanwhile, and tidy up afterwards. `upload`: None if there is no open upload. Must not be
        cancelled. Raises Unavailable, and what `commit` raises."""
        if upload is None:
            return await commit()
        try:
            async with self.storage.closing(upload) as closer:
                return await self._commit_done(upload, commit, closer)
        except Gone:
            return await self._commit_done(upload, commit, None)  # as in `_close`

    async def _commit_done(self, upload: Upload, commit: Callable[[], Awaitable[T]], closer: Closer | None) -> T:
        await self.announce(upload)
        result = await commit()
        await self.clear(upload, State.DONE, closer)
        return result

    async def expire(self, upload: Upload, idle_seconds: float) -> bool:
        """Expire an upload, unless the store has taken a chunk within `idle_seconds`; this is checked under the locks.
        A complete upload is hydrated instead, to arm its merge, unless that failed here. Raises Unavailable."""
        return await uninterrupted(self._expire(upload, idle_seconds))

    async def _expire(self, upload: Upload, idle_seconds: float) -> bool:
        oldest = self.clock.now() - timedelta(seconds=idle_seconds)
        try:
            try:
                async with self.storage.closing(upload) as closer:
                    complete = await self._may_be_merged(upload, closer)
                    if not complete:
                        if await self.storage.last_write(upload) > oldest.timestamp():
                            return False
                        await self._commit_close(upload, Reason.EXPIRED, closer)
                if complete:
                    await self._hydrate(upload)
                return not complete
            except Gone:  # the directory was lost: the user still gets back the reserved space
                await self._commit_close(upload, Reason.EXPIRED, None)
                return True
        except NotOpen:
            return False

    async def _may_be_merged(self, upload: Upload, closer: Closer) -> bool:
        try:
            complete = (await self._read_held(upload, closer)).complete
        except StorageFailed:
            await self.storage.check()
            # Only the map of this upload can't be read, so it can't be merged. It may expire when it is idle.
            return False
        return complete and not upload.is_part and upload.id not in self._unmergeable

    def note_unmergeable(self, upload: Upload) -> None:
        """Note that a complete upload has no digests, although no chunk is bad: the upload may expire when idle."""
        self._unmergeable.add(upload.id)

    async def tidy(self, upload_id: str) -> bool:
        """Drop the remains of a closed or unknown upload from Redis and the disk. Return whether bytes were removed. An
        open upload is hydrated instead, because a crash may have interrupted the withdrawal of a chunk."""
        return await uninterrupted(self._tidy(upload_id))

    async def _tidy(self, upload_id: str) -> bool:
        row = await self.database.read(queries.upload_by_id, upload_id, brief=True)
        if row is None:
            # Redis keeps no tombstone: another database may know the upload, and go on with it (decision 0013).
            await self.pending.forget(upload_id, None)
            crash_point("tidy.after_forget")
            return False
        if row.state is State.OPEN:
            with suppress(Gone, NotOpen):
                await self._hydrate(row)
            return False
        try:
            async with self.storage.closing(row) as closer:
                return await self._tidy_held(row, closer)
        except Gone:
            return await self.clear(row, row.state, None)

    async def _tidy_held(self, upload: Upload, closer: Closer) -> bool:
        """Tidy up after an upload that was read as closed, perhaps before the commit was durable. A crash of the
        database may have undone the commit since (decision 0012), so read the row again, durably."""
        row = await self.database.read_durably(queries.upload_by_id, upload.id)
        if row is not None and row.state is State.OPEN:
            with suppress(Gone, NotOpen):
                await self._hydrate_held(row, closer)
            return False
        closed = row or upload
        return await self.clear(closed, closed.state, closer)

    async def clear(self, upload: Upload, state: State, closer: Closer | None) -> bool:
        """Drop a closed upload from Redis, then its bytes from the disk. Return whether bytes were removed. Never
        fails: the flusher or the merger returns to an upload that stays in Redis, and `tidy_left` to bytes on the disk."""
        self._unmergeable.discard(upload.id)
        try:
            with in_passing():
                await self.pending.forget(upload.id, REDIS_WORDS[state])
            crash_point("clear.after_forget")
        except Unavailable as error:
            logger.log(level_of(error), "closed upload stays in Redis for now", extra={"upload_id": upload.id})
        try:
            return await (self.storage.discard(upload) if closer is None else closer.unlink())
        except UploaderError as error:
            logger.log(level_of(error), "bytes of a closed upload stay on disk for now", extra={"upload_id": upload.id})
            self._left.add(upload.id)
            return False

    def leave(self, upload_ids: Sequence[str]) -> None:
        """Leave the remains of closed uploads to `tidy_left`."""
        self._left |= set(upload_ids)

    async def tidy_left(self) -> None:
        """Remove bytes of closed uploads that this process could not remove earlier. Raises Unavailable."""
        left, self._left = self._left, set()
        while left:
            upload_id = left.pop()
            try:
                await self.tidy(upload_id)
            except StorageFailed:
                self._left.add(upload_id)
            except Unavailable:
                self._left |= {upload_id, *left}
                raise

    async def hydrate(self, upload: Upload) -> RecordResult:
        """Rebuild Redis from the map. Without a map, all chunks are missing. Raises Gone, NotOpen, Unavailable."""
        return await uninterrupted(self._hydrate(upload))

    async def _hydrate(self, upload: Upload) -> RecordResult:
        try:
            async with self.storage.closing(upload) as closer:
                return await self._hydrate_held(upload, closer)
        except Gone:
            generation = await self._begin_anew(upload)
        try:
            async with self.storage.closing(upload) as closer:
                await closer.withdraw([], generation=generation)  # the digests belong to the lost bytes
                return await self._hydrate_held(upload, closer)
        except NotOpen:
            await self._tidy(upload.id)  # the upload was closed while its files were made
            raise

    async def mend(self, upload: Upload) -> None:
        """Recover an open upload whose bytes were not found. Lost bytes are missing from now on, and can be sent again.
        If no bytes are lost, only rebuild Redis. Raises Gone, NotOpen, Unavailable."""
        await uninterrupted(self._mending.run(upload.id, lambda: self._mend(upload)))

    async def _mend(self, upload: Upload) -> None:
        with suppress(Gone):
            async with self.storage.closing(upload) as closer:
                lost = await closer.find_lost()
                if lost is not None:
                    await self._withdraw_held(upload, closer, lost, verified=False)
        await self._hydrate(upload)

    async def _begin_anew(self, upload: Upload) -> int:
        """Make new files for an open upload without files. Return the new generation. Every step may be repeated after
        a crash, and run concurrently. Raises Gone, NotOpen, StorageFull, Unavailable."""
        row = await self.database.read_durably(queries.upload_by_id, upload.id)
        if row is None or row.state is not State.OPEN:
            raise NotOpen(upload.id)
        if row.is_whole:
            raise Gone(upload.id)  # the bytes of its parts are gone, too
        await self.storage.check_lost(row)
        await self.announce(row)
        # The generation comes first, as in `_withdraw_held`.
        generation = await self.database.transact(transactions.uploads.withdraw, row.id, 0, self.clock.now())
        for found in await self.storage.copies(row.id):
            if await self.storage.restore_upload(found, row):
                break
        else:
            await self.storage.begin_anew(row)
        self._unmergeable.discard(row.id)
        logger.error("an upload lost its files, and begins anew", extra={"upload_id": row.id, "user_id": row.user_id})
        LOST_UPLOADS.inc()
        with suppress(Unavailable):  # the log has the mishap
            await self.database.transact(meta.note_mishap, meta.Mishap.LOST_UPLOAD, self.clock.now())
        return generation

    async def _hydrate_held(self, upload: Upload, closer: Closer) -> RecordResult:
        chunk_map = await self._read_held(upload, closer)  # may withdraw chunks, and renew the generation
        for _ in range(_HYDRATE_ATTEMPTS):
            era = (await self.pending.read(upload.id)).era
            # Durably: no flusher ever comes for bytes that Redis wrongly counts as flushed.
            row = await self.database.read_durably(queries.upload_by_id, upload.id)
            if row is None or row.state is not State.OPEN:
                raise NotOpen(upload.id)
            figures = await self.pending.hydrate(row, chunk_map.present, chunk_map.tail, era=era)
            if figures.outcome is Outcome.HYDRATED:
                crash_point("hydrate.after_rebuild")
                REBUILDS.inc()
                return figures
            if figures.outcome is not Outcome.ERA_MOVED:
                raise NotOpen(upload.id)
        raise Unavailable("The accounting store keeps restarting; try again.")

    async def tell_length(self, upload: Upload, commit: Callable[[int], Awaitable[Upload]]) -> Upload:
        """Run `commit`, a transaction that stores the length of an upload, with the offset where its bytes end. Then
        tell the map and Redis. If the upload is full, its merge is armed. Raises Gone, NotOpen, Unavailable, and what
        `commit` raises."""
        return await uninterrupted(self._tell_length(upload, commit))

    async def _tell_length(self, upload: Upload, commit: Callable[[int], Awaitable[Upload]]) -> Upload:
        async with self.storage.closing(upload) as closer:
            chunk_map = await self._read_held(upload, closer)
            ends = [(chunk_map.present.rfind(1) + 1) * upload.chunk_size, chunk_map.leading_bytes]
            await self.announce(upload)
            told = await commit(max(ends))
            crash_point("length.after_commit")
            await closer.settle_length(told)
            await self._hydrate_held(told, closer)
            return told

    async def read_map(self, upload: Upload) -> PresentChunks:
        """Read which chunks are stored and intact; none if the files are lost. Compare checksums first, if a file is
        damaged or the machine restarted after chunks came without a sync. Raises Gone, NotOpen, Unavailable."""
        try:
            return await self.storage.read_map(upload)
        except (Gone, Unverified):
            await self.hydrate(upload)
            return await self.storage.read_map(upload)

    async def _read_held(self, upload: Upload, closer: Closer) -> PresentChunks:
        """Raises LengthTold if another process has told the length, and the caller does not know it."""
        if not upload.length_known:
            row = await self.database.read(queries.upload_by_id, upload.id, brief=True)
            if row is None or row.state is not State.OPEN or row.length_known:
                raise LengthTold(upload.id)
        try:
            return await closer.read_map()
        except Unverified:
            if upload.length_known:
                # A crash may have interrupted telling the length. Durably: an outdated row would be wrong from here on.
                row = await self.database.read_durably(queries.upload_by_id, upload.id)
                if row is not None and row.length_known and await closer.settle_length(row):
                    return await self._read_held(upload, closer)
            defect = (await closer.read_map(verified=False)).defect
            if defect is not None:
                facts = {"part": defect.part, "expected": defect.expected, "actual": defect.actual}
                logger.error("an upload is damaged, and checked", extra={"upload_id": upload.id, **facts})
            await self._withdraw_held(upload, closer, await closer.find_bad_chunks(), verified=True)
            return await closer.read_map()

    async def withdraw(self, upload: Upload, numbers: list[int]) -> None:
        """Take back stored chunks whose bytes went bad: they are missing again. Raises Gone, NotOpen, Unavailable."""
        await uninterrupted(self._withdraw(upload, numbers))

    async def _withdraw(self, upload: Upload, numbers: list[int]) -> None:
        async with self.storage.closing(upload) as closer:
            await self._withdraw_held(upload, closer, numbers, verified=False)
            await self._hydrate_held(upload, closer)

    async def _withdraw_held(self, upload: Upload, closer: Closer, numbers: list[int], *, verified: bool) -> None:
        chunk_map = await closer.read_map(verified=False)
        present, tail = chunk_map.present, chunk_map.tail
        for number in numbers:
            present[number] = False
        if tail is not None and any(number <= tail.number for number in numbers):
            tail = None
        left = received_bytes(present, upload.extent, upload.chunk_size, tail)
        await self.announce(upload)
        # The generation comes first: figures of the old generation must be void before there is a smaller figure.
        generation = await self.database.transact(transactions.uploads.withdraw, upload.id, left, self.clock.now())
        crash_point("withdraw.after_commit")
        await closer.withdraw(numbers, generation=generation, verified=verified)
        crash_point("withdraw.after_map")
        self._unmergeable.discard(upload.id)
        if numbers:
            logger.error("stored chunks went bad and are withdrawn", extra={"upload_id": upload.id, "chunks": numbers})
