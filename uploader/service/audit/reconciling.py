"""Recounts every figure from its definition, reports each difference as a Drift, and repairs what can be repaired.

It works while the server runs: each account is read in one snapshot, and what is said of an upload is looked at again
under the upload's locks, so that mere motion is never reported. Refuses to guess: lost bytes stay reported.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from uploader.accounting.audit import Audit, TaskBucket
from uploader.clock import Clock
from uploader.crashpoints import crash_point
from uploader.database import contents, queries
from uploader.database.audit import repairs
from uploader.database.engine import Connection, Database
from uploader.database.transactions import NotOpen
from uploader.domain.trail.acts import Action
from uploader.domain.upload import State, Upload
from uploader.errors import DatabaseDamaged, StorageFailed, Unavailable, Unverified
from uploader.service.audit.comparing import drifts_of_closed, drifts_of_upload, has_more
from uploader.service.audit.drift import Drift, Findings, Kind, Repair, cannot_be_repaired
from uploader.service.audit.leftovers import Leftovers
from uploader.service.audit.recounting import Recounting
from uploader.service.audit.wholeness import Wholeness
from uploader.service.ids import greatest
from uploader.service.trail.acting import act
from uploader.service.trail.keeping import Trail
from uploader.service.upkeep.strays import stray_blobs
from uploader.service.uploads.closers import Closers
from uploader.storage.base import Closer, Gone
from uploader.storage.store import Store
from uploader.tasks import uninterrupted

logger = logging.getLogger(__name__)

_BATCH = 200
# What is in motion is not there at every look: a writer that is told to rehydrate lets go of its chunk for a moment, and
# after a loss of Redis the sweeper comes within seconds.
_LOOKS = 10
_PAUSE_SECONDS = 0.5
# Whose repair is a transaction, which notes it.
_OF_ROWS = frozenset(
    {
        Kind.USE_SPACE_FINISHED,
        Kind.USE_SPACE_UNFINISHED,
        Kind.RESERVED,
        Kind.OVER_RESERVED,
        Kind.REFS,
        Kind.FLUSHED_BYTES,
    }
)
_OF_QUEUES = frozenset({Kind.STRAY_TASK, Kind.INDEX})


class Reconciling:
    """Several at once are safe: looking changes nothing, and every repair recounts under its locks."""

    def __init__(
        self,
        database: Database,
        storage: Store,
        audit: Audit,
        closers: Closers,
        recounting: Recounting,
        trail: Trail,
        clock: Clock,
    ) -> None:
        self._database = database
        self._recounting = recounting
        self._trail = trail
        self._storage = storage
        self._audit = audit
        self._closers = closers
        self._wholeness = Wholeness(database)
        self._leftovers = Leftovers(database, storage, closers, clock)
        self._clock = clock

    async def reconcile(self, *, repair: bool = False) -> Findings:
        """Look at everything, then repair what was found if asked to. Raises Unavailable, Stopping."""
        found = Findings()
        # The order of repairs, too: the figures of a user are sums over the uploads.
        await _checked("rows", self._wholeness.check, found)
        await _checked("uploads", self._check_uploads, found)
        await _checked("queues", self._check_queues, found)
        await _checked("accounts", self._recounting.check, found)
        await _checked("blobs", self._check_blobs, found)
        await _checked("stray blobs", self._check_stray_blobs, found)
        await _checked("leftovers", self._leftovers.check, found)
        if repair:
            for drift, repair_drift in zip(found.drifts, found.repairs, strict=True):
                found.repaired += await uninterrupted(self._repair(drift, repair_drift))
        return found

    async def _repair(self, drift: Drift, repair: Repair) -> bool:
        repaired = await _attempted(repair)
        if repaired and drift.kind not in _OF_ROWS:
            action = Action.QUEUE_REPAIRED if drift.kind in _OF_QUEUES else Action.UPLOAD_REPAIRED
            facts = {"kind": drift.kind.value, "expected": drift.expected, "actual": drift.actual}
            await self._trail.note(action, subject=drift.subject, details=facts)
        return repaired

    # Blobs, against the disk

    async def _check_blobs(self, found: Findings) -> None:
        after = ""
        while blobs := await self._blobs(after):
            sizes = await self._storage.blob_sizes([blob.sha256 for blob in blobs])
            for blob, size in zip(blobs, sizes, strict=True):
                if size != blob.size:
                    found.add(await self._look_at_blob(blob.sha256), cannot_be_repaired)
            after = greatest(after, [blob.sha256 for blob in blobs])

    async def _blobs(self, after: str) -> list[contents.Blob]:
        return await self._database.read(
            lambda connection: contents.blobs_in_use(connection, after=after, limit=_BATCH)
        )

    async def _look_at_blob(self, sha256: str) -> list[Drift]:
        """Its row is locked, so it is not collected or placed meanwhile."""

        sizes = self._database.outside(self._storage.blob_sizes)

        async def look(connection: Connection) -> list[Drift]:
            blob = await contents.blob_by_sha256(connection, sha256, lock=True)
            if blob is None or blob.refs == 0:
                return []
            (size,) = await sizes([sha256])
            return [] if size == blob.size else [Drift(Kind.BLOB_BYTES, sha256, blob.size, size)]

        return await self._database.transact(look)

    async def _check_stray_blobs(self, found: Findings) -> None:
        async for batch in stray_blobs(self._database, self._storage, self._clock.now()):
            sha256s = [stray.name for stray in batch.strays if not stray.is_draft]
            if sha256s:
                found.add(await self._look_at_strays(sha256s), cannot_be_repaired)

    async def _look_at_strays(self, sha256s: list[str]) -> list[Drift]:
        """What is just being placed has a row that is locked: this waits for it. What is collected has gone."""
        sizes = self._database.outside(self._storage.blob_sizes)

        async def look(connection: Connection) -> list[Drift]:
            known = await contents.known_blobs(connection, sha256s, lock=True)
            strays = [sha256 for sha256 in sha256s if sha256 not in known]
            found = zip(strays, await sizes(strays), strict=True)
            return [Drift(Kind.STRAY_BLOB, sha256, None, size) for sha256, size in found if size is not None]

        return await self._database.transact(look)

    # Uploads: disk, Redis and database

    async def _check_uploads(self, found: Findings) -> None:
        after, count = "", 0
        while uploads := await self._open_uploads(after):
            suspects = [upload.id for upload in uploads if not await self._seems_right(upload)]
            await self._report_uploads(found, suspects)
            after, count = greatest(after, [upload.id for upload in uploads]), count + len(uploads)
        found.checked["uploads"] = count

    async def _open_uploads(self, after: str) -> list[Upload]:
        return await self._database.read(
            lambda connection: queries.all_open_uploads(connection, after=after, limit=_BATCH)
        )

    async def _seems_right(self, upload: Upload) -> bool:
        """A look without locks: most uploads need no other."""
        try:
            chunk_map = await self._storage.read_map(upload)
        except (Gone, StorageFailed, Unverified):
            return False
        return not drifts_of_upload(upload, chunk_map, await self._audit.upload(upload.id))

    async def _report_uploads(self, found: Findings, suspects: list[str]) -> None:
        """Report what every one of several looks under the locks finds, with the figures of the last."""
        drifts = {upload_id: await self._look(upload_id) for upload_id in suspects}
        for _ in range(_LOOKS - 1):
            drifts = {upload_id: before for upload_id, before in drifts.items() if before}
            if not drifts:
                return
            await asyncio.sleep(_PAUSE_SECONDS)
            for upload_id, before in drifts.items():
                kinds = {drift.kind for drift in before}
                drifts[upload_id] = [drift for drift in await self._look(upload_id) if drift.kind in kinds]
        for upload_id, lasting in drifts.items():
            found.add(lasting, partial(self._repair_upload, upload_id))

    async def _look(self, upload_id: str) -> list[Drift]:
        return await uninterrupted(self._look_under_locks(upload_id))

    async def _look_under_locks(self, upload_id: str) -> list[Drift]:
        upload = await self._upload(upload_id)
        if upload is None or upload.state is not State.OPEN:
            return drifts_of_closed(upload_id, await self._audit.upload(upload_id))
        try:
            async with self._storage.closing(upload) as closer:
                return await self._compare(upload_id, closer)
        except Gone:
            still = await self._upload(upload_id)
            closed = still is None or still.state is not State.OPEN
            return [] if closed else [Drift(Kind.TEMP, upload_id, upload.place, None)]
        except StorageFailed:
            return [Drift(Kind.MAP, upload_id, "readable", "unreadable")]
        except Unavailable as error:
            # One that is busy must not hold up the others; a store that is away will tell the next look.
            logger.info("an upload is not reconciled for now", extra={"upload_id": upload_id, "reason": error.reason})
            return []

    async def _compare(self, upload_id: str, closer: Closer) -> list[Drift]:
        """The caller holds the locks. Redis is read before the database: what it calls flushed was committed earlier."""
        snapshot = await self._audit.upload(upload_id)
        upload = await self._upload(upload_id)
        if upload is None or upload.state is not State.OPEN:
            return drifts_of_closed(upload_id, snapshot)
        stored = await closer.read_map(verified=False)
        if (defect := stored.defect) is not None:
            return [Drift(Kind(defect.part), upload_id, defect.expected, defect.actual)]
        return drifts_of_upload(upload, await closer.read_map() if stored.settled else stored, snapshot)

    async def _upload(self, upload_id: str) -> Upload | None:
        return await self._database.read(lambda connection: queries.upload_by_id(connection, upload_id))

    async def _repair_upload(self, upload_id: str) -> bool:
        """Rebuild Redis from disk and database, or drop what is left of a closed upload; whether that was enough."""
        upload = await self._upload(upload_id)
        if upload is None or upload.state is not State.OPEN:
            await self._closers.tidy(upload_id)
        else:
            try:
                await self._closers.read_map(upload)  # withdraws what is not whole, if it can't be believed
                async with self._storage.closing(upload):
                    await self._correct_flushed(upload_id)
                await self._closers.hydrate(upload)
            except (Gone, NotOpen):
                return False
        return not await self._look(upload_id)

    async def _correct_flushed(self, upload_id: str) -> None:
        """Where accounted bytes contradict the disk, or Redis has to forget some: the disk's figure, at once."""
        snapshot = await self._audit.upload(upload_id)
        upload = await self._upload(upload_id)
        if upload is None:
            raise NotOpen(upload_id)
        stored = await self._storage.read_map(upload)
        on_disk = stored.received_bytes
        shrinks = max(upload.flushed_bytes, snapshot.flushed) > on_disk or has_more(snapshot, stored)
        if not shrinks and upload.flushed_bytes >= snapshot.flushed:
            return
        await self._closers.announce(upload)
        now = self._clock.now()
        told = act(Action.UPLOAD_REPAIRED, now, subject=upload_id, user_id=upload.user_id)
        await self._database.transact(
            lambda connection: repairs.repair_flushed(
                connection, upload_id, on_disk, renew_generation=shrinks, now=now, act=told
            )
        )
        crash_point("repair.after_commit")

    # The queues

    async def _check_queues(self, found: Findings) -> None:
        """After the uploads: what waits there for an upload that is closed, or for no upload at all."""
        count = 0
        for bucket in await self._audit.buckets():
            waiting, strays, index = await self._look_at_bucket(bucket)
            await self._report_uploads(found, await self._not_open(waiting))
            repair = partial(self._repair_bucket, bucket, strays)
            found.add([Drift(Kind.STRAY_TASK, upload_id, None, str(bucket)) for upload_id in strays], repair)
            found.add(index, repair)
            count += len(waiting)
        found.checked["tasks"] = count

    async def _look_at_bucket(self, bucket: TaskBucket) -> tuple[list[str], list[str], list[Drift]]:
        """Its tasks, its strays, and what is wrong with the index at the end."""
        waiting: dict[str, None] = {}
        strays: dict[str, None] = {}
        index: list[Drift] = []
        async for step in self._audit.bucket(bucket):
            waiting |= dict.fromkeys(step.tasks)
            strays |= dict.fromkeys(step.strays)
            words = ("bucket" if step.exists else None, "bucket" if step.indexed else None)
            index = [] if words[0] == words[1] else [Drift(Kind.INDEX, str(bucket), *words)]
        return list(waiting), list(strays), index

    async def _not_open(self, upload_ids: list[str]) -> list[str]:
        not_open: list[str] = []
        for start in range(0, len(upload_ids), _BATCH):
            batch = upload_ids[start : start + _BATCH]
            rows = await self._database.read(partial(queries.uploads_by_id, upload_ids=batch))
            not_open += [id_ for id_ in batch if id_ not in rows or rows[id_].state is not State.OPEN]
        return not_open

    async def _repair_bucket(self, bucket: TaskBucket, strays: list[str]) -> bool:
        await self._audit.tidy(bucket, strays)
        return True


async def _checked(part: str, check: Callable[[Findings], Awaitable[None]], found: Findings) -> None:
    """A part that the database can't be read for keeps nothing from being told of the others."""
    try:
        await check(found)
    except DatabaseDamaged:
        found.add([Drift(Kind.DATABASE, part, "readable", "damaged")], cannot_be_repaired)


async def _attempted(repair: Repair) -> bool:
    """One upload that can't be repaired holds up no other."""
    try:
        return await repair()
    except (DatabaseDamaged, StorageFailed, Unverified) as error:
        logger.warning("a drift is not repaired", extra={"reason": error.reason})
        return False
