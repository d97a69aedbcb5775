"""Recounts every figure from its definition, reports each difference as a Drift, and repairs what can be repaired.

Works while the server runs. Each account is read in one snapshot. A suspected upload gets a second look under all
locks, and ordinary changes are never reported. Lost bytes stay reported: nothing is guessed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import zip_longest
from typing import Any

import msgspec

from uploader.accounting.pending import Audit, AuditedUpload, TaskBucket
from uploader.database import meta, queries, recount
from uploader.database.engine import Connection, Database
from uploader.database.recount import KeptFigures, Slice
from uploader.database.transactions.rows import NotOpen
from uploader.domain.audit_log import Action
from uploader.domain.upload import State, Tail, Upload, from_bitmap, received_bytes, to_bitmap
from uploader.errors import DatabaseDamaged, StorageFailed, Unavailable, Unverified
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.observability import level_of
from uploader.runtime.tasks import uninterrupted
from uploader.service.audit_log import AuditLog, act
from uploader.service.cleanup import is_settled, stray_blobs
from uploader.service.close import Closers
from uploader.service.ids import greatest
from uploader.storage.base import Closer, Gone, PresentChunks, Stretch
from uploader.storage.store import Store


class Kind(StrEnum):
    # Rows of SQLite that contradict their indexes, or hold values that their columns can't have.
    DATABASE = "database"
    # Figures of a user in the database: the sums over uploads and files, the number of both, and the limits of these
    # sums.
    USE_SPACE_FINISHED = "use_space_finished"
    USE_SPACE_UNFINISHED = "use_space_unfinished"
    RESERVED = "reserved"
    FILES = "files"
    OVER_RESERVED = "over-reserved"
    OVER_TOTAL_SPACE = "over-total-space"
    # Of a link: open uploads that came through the link, and their bytes; files, and their bytes.
    LINK_FILES = "link-files"
    LINK_BYTES = "link-bytes"
    LINK_RECEIVED_FILES = "link-received-files"
    LINK_RECEIVED_BYTES = "link-received-bytes"
    # Of a blob: the number of its files; its size; a missing row.
    REFS = "refs"
    BLOB_BYTES = "blob-bytes"
    STRAY_BLOB = "stray-blob"
    # Of a file: the facts that its blob repeats.
    FILE = "file"
    # Of an upload: its directory; its files, as far as a defect shows without reading them; a directory that outlived
    # the upload.
    TEMP = "temp"
    MAP = "map"
    DATA = "data"
    LEFTOVER = "leftover"
    # Bytes: flushed according to the database, then according to Redis; chunks on disk against bits in Redis; the end
    # of the tail.
    FLUSHED_BYTES = "flushed_bytes"
    FLUSHED = "flushed"
    CHUNKS = "chunks"
    TAIL = "tail"
    RECEIVED = "received"
    STATE = "state"
    TASK = "task"
    # Of a minute bucket: the hash of an upload that waits there; the existence of the bucket.
    STRAY_TASK = "stray-task"
    INDEX = "index"


_SUMS = (Kind.USE_SPACE_FINISHED, Kind.USE_SPACE_UNFINISHED, Kind.RESERVED, Kind.FILES)
_OF_LINK = {
    "files": Kind.LINK_RECEIVED_FILES,
    "bytes": Kind.LINK_RECEIVED_BYTES,
    "reserved_files": Kind.LINK_FILES,
    "reserved_bytes": Kind.LINK_BYTES,
}
# In the order of the checks.
_ACTIONS = {
    recount.USERS: Action.USER_REPAIRED,
    recount.LINKS: Action.LINK_REPAIRED,
    recount.CONTENTS: Action.CONTENT_REPAIRED,
}
_WHAT = {"user_info": "users", "link": "links", "blob": "blobs"}


@dataclass(frozen=True, slots=True)
class Drift:
    """A figure that differs from its definition; None stands for nothing. Some drifts can be repaired."""

    kind: Kind
    subject: str
    expected: int | str | None
    actual: int | str | None

    def __str__(self) -> str:
        expected, actual = ("nothing" if value is None else value for value in (self.expected, self.actual))
        return f"{self.kind} of {self.subject}: expected {expected}, actual {actual}"


Repair = Callable[[], Coroutine[Any, Any, bool]]


async def cannot_be_repaired() -> bool:
    return False


@dataclass(slots=True)
class Findings:
    """The drifts, with a repair at the same index for each. `notes` are no drifts: users with more bytes than the total
    space that an administrator has left them."""

    drifts: list[Drift] = field(default_factory=list)
    notes: list[Drift] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    repaired: int = 0
    repairs: list[Repair] = field(default_factory=list)
    # Drifts found by the walk before it was interrupted.
    before: int = 0

    @property
    def count(self) -> int:
        return self.before + len(self.drifts)

    def add(self, drifts: Iterable[Drift], repair: Repair = cannot_be_repaired) -> None:
        for drift in drifts:
            self.drifts.append(drift)
            self.repairs.append(repair)


_FACT = "reconciled"


class Reconciled(msgspec.Struct, frozen=True):
    """The last complete look, and how many drifts it found."""

    at: datetime
    drifts: int
    repaired: int


async def last_reconciled(connection: Connection) -> Reconciled | None:
    """Return None before the first complete look."""
    return await meta.kept(connection, _FACT, Reconciled)


_WALK = "reconciling blobs"
_MAX_WALK = timedelta(days=1)
_REMEMBER_INTERVAL_SECONDS = 5.0
# The rate of a walk in the background: at most 18 million blobs an hour, by 5 list requests of S3 a second.
_BLOBS_PER_SECOND = 5000
_STRETCH = 1000


class BlobWalk(msgspec.Struct):
    """A walk over all blobs: the start, the position, and the number of drifts so far."""

    at: datetime
    after: str = ""
    drifts: int = 0


def drifts_of_upload(upload: Upload, stored: PresentChunks, snapshot: AuditedUpload) -> list[Drift]:
    """Return the drifts between the row, the map and the Redis record of an open upload."""
    drifts, present, on_disk = [], stored.present, stored.received_bytes
    if upload.flushed_bytes > on_disk or (snapshot.state and upload.flushed_bytes < min(snapshot.flushed, on_disk)):
        expected = min(snapshot.flushed, on_disk) if upload.flushed_bytes < on_disk else on_disk
        drifts.append(Drift(Kind.FLUSHED_BYTES, upload.id, expected, upload.flushed_bytes))
    if snapshot.state == "":
        # The upload was not touched since Redis was lost. This is no drift, unless bytes wait to be accounted.
        waiting = [Drift(Kind.RECEIVED, upload.id, on_disk, None)] if upload.flushed_bytes < on_disk else []
        return drifts + waiting
    bits = from_bitmap(snapshot.bitmap, len(present))
    state = "merging" if all(bits) and not upload.is_part else "open"
    if snapshot.state not in ("open", "merging"):
        return [*drifts, Drift(Kind.STATE, upload.id, state, snapshot.state)]
    in_bits = received_bytes(bits, upload.extent, upload.chunk_size, snapshot.tail)
    if snapshot.received != in_bits:
        drifts.append(Drift(Kind.RECEIVED, upload.id, in_bits, snapshot.received))
    if snapshot.bitmap.rstrip(b"\0") != to_bitmap(present).rstrip(b"\0"):
        drifts.append(Drift(Kind.CHUNKS, upload.id, on_disk, in_bits))
    ends = [_end_of(tail, upload) for tail in (stored.tail, snapshot.tail)]
    if ends[0] != ends[1]:
        drifts.append(Drift(Kind.TAIL, upload.id, *ends))
    if not 0 <= snapshot.flushed <= on_disk:
        drifts.append(Drift(Kind.FLUSHED, upload.id, on_disk, snapshot.flushed))
    if snapshot.state != state:
        drifts.append(Drift(Kind.STATE, upload.id, state, snapshot.state))
    queue = {"open": "flush", "merging": "merge"}[snapshot.state]
    needed = snapshot.state == "merging" or snapshot.received != snapshot.flushed
    if needed and snapshot.queue != queue:
        drifts.append(Drift(Kind.TASK, upload.id, queue, snapshot.queue or None))
    return drifts


def drifts_of_closed(upload_id: str, snapshot: AuditedUpload) -> list[Drift]:
    return [Drift(Kind.TASK, upload_id, None, snapshot.queue)] if snapshot.queue else []


def _end_of(tail: Tail | None, upload: Upload) -> int | None:
    return None if tail is None else tail.number * upload.chunk_size + tail.length


def has_more(snapshot: AuditedUpload, stored: PresentChunks) -> bool:
    """Return whether Redis has bits of chunks, or a tail, that the map lacks."""
    on_map = to_bitmap(stored.present)
    if any(bits & ~of_map for bits, of_map in zip_longest(snapshot.bitmap, on_map, fillvalue=0)):
        return True
    if snapshot.tail is None or stored.present[snapshot.tail.number : snapshot.tail.number + 1] == b"\1":
        return False
    known = stored.tail
    return known is None or known.number != snapshot.tail.number or known.length < snapshot.tail.length


logger = logging.getLogger(__name__)

# To include uploads opened this month.
_OVER_A_MONTH = timedelta(days=32)


_SLICE = 2000


@dataclass(eq=False, repr=False)
class Recounting:
    """Recounts users and contents from their rows, in slices, so that no transaction is long. May run several times at
    once: looking changes nothing, and every repair recounts under its locks."""

    database: Database
    clock: Clock

    async def recount(self, user_id: str | None = None) -> Findings:
        """Recount everything, or one user. A missing user is not checked. Raises Unavailable."""
        found = Findings()
        if user_id is None:
            await self.check(found)
        else:
            user = await self.database.read(recount.user, user_id, snapshot=True)
            self._add(found, recount.USERS, user)
        return found

    async def check(self, found: Findings) -> None:
        """Recount all users, links and contents, and compare the sizes and MD5s of files with their contents."""
        for figures in _ACTIONS:
            after: str | None = ""
            while after is not None:
                part = await self.database.read(recount.after, figures, after, _SLICE, snapshot=True)
                self._add(found, figures, part)
                if figures is recount.CONTENTS:
                    unlike = await self.database.read(recount.files_unlike_blobs, after, part.until)
                    found.add(Drift(Kind.FILE, *file) for file in unlike)
                after = part.until

    def _add(self, found: Findings, figures: KeptFigures, part: Slice) -> None:
        what = _WHAT[figures.kept.name]
        found.checked[what] = found.checked.get(what, 0) + part.count
        for row in part.rows:
            drifts = []
            for name, expected in row.counted.items():
                actual = None if row.stored is None else row.stored[name]
                if actual != expected and (expected or row.stored is not None):
                    drifts.append(
                        Drift(_OF_LINK[name] if figures is recount.LINKS else Kind(name), row.id, expected, actual)
                    )
            if figures is recount.USERS and row.stored is not None:
                drifts += _beyond(found, row.id, row.stored, drifts)
            found.add(drifts, partial(self._repair, figures, row.id))

    async def _repair(self, figures: KeptFigures, id_: str) -> bool:
        told = act(_ACTIONS[figures], self.clock.now(), subject=id_)
        return await self.database.transact(recount.repair, figures, id_, told)


def _beyond(found: Findings, user_id: str, stored: dict[str, int], drifts: list[Drift]) -> list[Drift]:
    # A user may hold more than the total space after an administrator lowered it.
    if (held := stored["use_space_finished"] + stored["reserved"]) > stored["total_space"]:
        found.notes.append(Drift(Kind.OVER_TOTAL_SPACE, user_id, stored["total_space"], held))
    # If the figures themselves are wrong, that is the only report.
    if not drifts and stored["use_space_unfinished"] > stored["reserved"]:
        return [Drift(Kind.OVER_RESERVED, user_id, stored["reserved"], stored["use_space_unfinished"])]
    return []


_BATCH = 200
# Changes in motion do not show at every look: a writer that has to rehydrate releases its chunk for a moment, and after
# a loss of Redis the sweeper comes within seconds.
_LOOKS = 10
_PAUSE_SECONDS = 0.5
# Kinds with a repair in one transaction, which writes the act, too.
_OF_ROWS = frozenset({*_SUMS, Kind.OVER_RESERVED, *_OF_LINK.values(), Kind.REFS, Kind.FLUSHED_BYTES})
_OF_QUEUES = frozenset({Kind.STRAY_TASK, Kind.INDEX})


@dataclass(eq=False, repr=False)
class Reconciling:
    database: Database
    storage: Store
    audit: Audit
    closers: Closers
    recounting: Recounting
    audit_log: AuditLog
    clock: Clock
    _remembered_at: float = field(default=float("-inf"), init=False)

    async def last(self) -> Reconciled | None:
        """Return the last complete look; None before the first. Raises Unavailable."""
        return await self.database.read(last_reconciled)

    async def reconcile(self, *, repair: bool = False, goes_on: bool = False) -> Findings:
        """Look at everything, then repair the drifts if asked to. `goes_on`: look at the blobs at a limited rate, from
        where the last such walk was interrupted. Raises Unavailable, Stopping."""
        # Also the order of repairs: the figures of a user are sums over the uploads.
        checks: dict[str, Callable[[Findings], Awaitable[None]]] = {
            "rows": self._check_rows,
            "uploads": self._check_uploads,
            "queues": self._check_queues,
            "accounts": self.recounting.check,
            "blobs": partial(self._check_blobs, goes_on=goes_on),
            "leftovers": self._check_leftovers,
        }
        found = Findings()
        for part, check in checks.items():
            try:
                await check(found)
            except DatabaseDamaged:  # the other checks go on
                found.add([Drift(Kind.DATABASE, part, "readable", "damaged")])
        if repair:
            for drift, repair_drift in zip(found.drifts, found.repairs, strict=True):
                found.repaired += await uninterrupted(self._repair(drift, repair_drift))
        with suppress(Unavailable):  # the findings are returned all the same
            done = Reconciled(self.clock.now(), found.count, found.repaired)
            await self.database.transact(meta.keep, _FACT, done)
        return found

    async def _repair(self, drift: Drift, repair: Repair) -> bool:
        try:
            repaired = await repair()
        except (DatabaseDamaged, StorageFailed, Unverified) as error:  # does not hold up the others
            logger.log(level_of(error), "a drift is not repaired", extra={"reason": error.reason})
            return False
        if repaired and drift.kind not in _OF_ROWS:
            action = Action.QUEUE_REPAIRED if drift.kind in _OF_QUEUES else Action.UPLOAD_REPAIRED
            facts = {"kind": drift.kind.value, "expected": drift.expected, "actual": drift.actual}
            await self.audit_log.note(action, subject=drift.subject, details=facts)
        return repaired

    # Rows of the database

    async def _check_rows(self, found: Findings) -> None:
        """Report rows in which a byte flipped, as far as this shows. Only a backup can tell the earlier value."""
        lines = await self.database.read(recount.contradictions)
        found.add(Drift(Kind.DATABASE, "the file", "ok", line) for line in lines)
        for row in await self.database.read(recount.malformed):
            subject, expected = f"{row.table} {row.rowid}", f"a valid {row.column}"
            found.add([Drift(Kind.DATABASE, subject, expected, row.value)])

    # Blobs, against the store: the list of the store and the rows are compared in one order. Only blobs missing from
    # the list are looked up one by one, because they may have come since.

    async def _check_blobs(self, found: Findings, *, goes_on: bool) -> None:
        walk = await self._interrupted_walk() if goes_on else BlobWalk(self.clock.now())
        found.before = walk.drifts
        began, drifts = self.clock.monotonic(), len(found.drifts)
        if self.storage.lists_by_location and not walk.after:
            await self._check_unplaced(found)
        async for batch in stray_blobs(self.database, self.storage, self.clock.now(), walk.after):
            await self._check_stretch(found, walk.after, batch.listed)
            if sha256s := [stray.name for stray in batch.strays if not stray.is_draft]:
                found.add(await self._look_at_strays(sha256s))
            walk.after, walk.drifts = batch.listed.until or "", found.before + len(found.drifts) - drifts
            if goes_on and walk.after:
                began = await self._pace(walk, began, len(batch.listed.found))
        if goes_on:
            await self.database.transact(meta.forget_fact, _WALK)

    async def _interrupted_walk(self) -> BlobWalk:
        """Return the interrupted walk, or a new one. An old walk has seen the bucket too long ago."""
        walk, now = await self.database.read(meta.kept, _WALK, BlobWalk), self.clock.now()
        return walk if walk is not None and now - _MAX_WALK < walk.at <= now else BlobWalk(now)

    async def _pace(self, walk: BlobWalk, began: float, count: int) -> float:
        """Keep the walk to the rate, and remember the position now and then. Return the time."""
        now = self.clock.monotonic()
        if now - self._remembered_at > _REMEMBER_INTERVAL_SECONDS:
            await self.database.transact(meta.keep, _WALK, walk)
            self._remembered_at = now
        await asyncio.sleep(max(0.0, began + count / _BLOBS_PER_SECOND - now))
        return self.clock.monotonic()

    async def _check_unplaced(self, found: Findings) -> None:
        after = ""
        while sha256s := await self.database.read(queries.blobs_without_location, after, _STRETCH):
            for sha256 in sha256s:
                found.add(await self._look_at_blob(sha256))
            after = greatest(after, sha256s)

    async def _check_stretch(self, found: Findings, after: str, listed: Stretch) -> None:
        """Compare the rows of a stretch with the list. There may be far more rows than listed blobs."""
        sizes = {each.name: each.size for each in listed if not each.is_draft}
        ask = partial(queries.blobs_in_stretch, by_location=self.storage.lists_by_location)
        while rows := await self.database.read(ask, after, listed.until, _STRETCH):
            for _, sha256, size in rows:
                if sizes.get(sha256) != size:
                    found.add(await self._look_at_blob(sha256))
            after = greatest(after, [key for key, _, _ in rows])

    async def _look_at_blob(self, sha256: str) -> list[Drift]:
        """Compare a blob with its row. The row is locked, so the blob is not collected or placed meanwhile."""

        sizes = self.database.outside(self.storage.blob_sizes)

        async def look(connection: Connection) -> list[Drift]:
            blob = await queries.blob_by_sha256(connection, sha256, lock=True)
            if blob is None or blob.refs == 0:
                return []
            (size,) = await sizes([sha256])
            return [] if size == blob.size else [Drift(Kind.BLOB_BYTES, sha256, blob.size, size)]

        return await self.database.transact(look)

    async def _look_at_strays(self, sha256s: list[str]) -> list[Drift]:
        """Look again at blobs without a row, and wait for the row of a blob that is just being placed."""
        sizes = self.database.outside(self.storage.blob_sizes)

        async def look(connection: Connection) -> list[Drift]:
            known = await queries.known_blobs(connection, sha256s, lock=True)
            strays = [sha256 for sha256 in sha256s if sha256 not in known]
            found = zip(strays, await sizes(strays), strict=True)
            return [Drift(Kind.STRAY_BLOB, sha256, None, size) for sha256, size in found if size is not None]

        return await self.database.transact(look)

    # Uploads: disk, Redis and database

    async def _check_uploads(self, found: Findings) -> None:
        after, count = "", 0
        while uploads := await self.database.read(queries.all_open_uploads, after, _BATCH):
            suspects = [upload.id for upload in uploads if not await self._seems_right(upload)]
            await self._report_uploads(found, suspects)
            after, count = greatest(after, [upload.id for upload in uploads]), count + len(uploads)
        found.checked["uploads"] = count

    async def _seems_right(self, upload: Upload) -> bool:
        """Look at an upload without locks; most uploads need no second look."""
        try:
            chunk_map = await self.storage.read_map(upload)
        except (Gone, StorageFailed, Unverified):
            return False
        return not drifts_of_upload(upload, chunk_map, await self.audit.upload(upload.id))

    async def _report_uploads(self, found: Findings, suspects: list[str]) -> None:
        """Report drifts that every one of several looks under the locks finds, with the figures of the last look."""
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
            return drifts_of_closed(upload_id, await self.audit.upload(upload_id))
        try:
            async with self.storage.closing(upload) as closer:
                return await self._compare(upload_id, closer)
        except Gone:
            still = await self._upload(upload_id)
            closed = still is None or still.state is not State.OPEN
            return [] if closed else [Drift(Kind.TEMP, upload_id, upload.place, None)]
        except StorageFailed:
            return [Drift(Kind.MAP, upload_id, "readable", "unreadable")]
        except Unavailable as error:
            # A busy upload must not hold up the others. If the store is away, the next look raises.
            logger.log(
                level_of(error, logging.INFO),
                "an upload is not reconciled for now",
                extra={"upload_id": upload_id, "reason": error.reason},
            )
            return []

    async def _compare(self, upload_id: str, closer: Closer) -> list[Drift]:
        """Compare disk, Redis and database, under the locks of the caller. Redis is read before the database: bytes
        that Redis calls flushed were committed earlier."""
        snapshot = await self.audit.upload(upload_id)
        upload = await self._upload(upload_id)
        if upload is None or upload.state is not State.OPEN:
            return drifts_of_closed(upload_id, snapshot)
        stored = await closer.read_map(verified=False)
        if (defect := stored.defect) is not None:
            return [Drift(Kind(defect.part), upload_id, defect.expected, defect.actual)]
        return drifts_of_upload(upload, await closer.read_map() if stored.settled else stored, snapshot)

    async def _upload(self, upload_id: str) -> Upload | None:
        return await self.database.read(queries.upload_by_id, upload_id)

    async def _repair_upload(self, upload_id: str) -> bool:
        """Rebuild Redis from disk and database, or tidy up after a closed upload. Return whether the drift is gone."""
        upload = await self._upload(upload_id)
        if upload is None or upload.state is not State.OPEN:
            await self.closers.tidy(upload_id)
        else:
            try:
                await self.closers.read_map(upload)  # withdraws damaged chunks, if the map is not trusted
                async with self.storage.closing(upload):
                    await self._correct_flushed(upload_id)
                await self.closers.hydrate(upload)
            except (Gone, NotOpen):
                return False
        return not await self._look(upload_id)

    async def _correct_flushed(self, upload_id: str) -> None:
        """Correct the flushed bytes in the database, if they contradict the disk, or if Redis has to forget bytes."""
        snapshot = await self.audit.upload(upload_id)
        upload = await self._upload(upload_id)
        if upload is None:
            raise NotOpen(upload_id)
        stored = await self.storage.read_map(upload)
        on_disk = stored.received_bytes
        shrinks = max(upload.flushed_bytes, snapshot.flushed) > on_disk or has_more(snapshot, stored)
        if not shrinks and upload.flushed_bytes >= snapshot.flushed:
            return
        await self.closers.announce(upload)
        now = self.clock.now()
        told = act(Action.UPLOAD_REPAIRED, now, subject=upload_id, user_id=upload.user_id)
        repair = partial(recount.repair_flushed, renew_generation=shrinks, now=now, act=told)
        await self.database.transact(repair, upload_id, on_disk)
        crash_point("repair.after_commit")

    # The queues

    async def _check_queues(self, found: Findings) -> None:
        """Report tasks of closed or unknown uploads. Runs after the check of uploads."""
        count = 0
        for bucket in await self.audit.buckets():
            waiting, strays, index = await self._look_at_bucket(bucket)
            await self._report_uploads(found, await self._not_open(waiting))
            repair = partial(self._repair_bucket, bucket, strays)
            found.add([Drift(Kind.STRAY_TASK, upload_id, None, str(bucket)) for upload_id in strays], repair)
            found.add(index, repair)
            count += len(waiting)
        found.checked["tasks"] = count

    async def _look_at_bucket(self, bucket: TaskBucket) -> tuple[list[str], list[str], list[Drift]]:
        waiting: dict[str, None] = {}
        strays: dict[str, None] = {}
        index: list[Drift] = []
        async for step in self.audit.bucket(bucket):
            waiting |= dict.fromkeys(step.tasks)
            strays |= dict.fromkeys(step.strays)
            words = ("bucket" if step.exists else None, "bucket" if step.indexed else None)
            index = [] if words[0] == words[1] else [Drift(Kind.INDEX, str(bucket), *words)]
        return list(waiting), list(strays), index

    async def _not_open(self, upload_ids: list[str]) -> list[str]:
        not_open: list[str] = []
        for start in range(0, len(upload_ids), _BATCH):
            batch = upload_ids[start : start + _BATCH]
            rows = await self.database.read(queries.uploads_by_id, batch)
            not_open += [id_ for id_ in batch if id_ not in rows or rows[id_].state is not State.OPEN]
        return not_open

    async def _repair_bucket(self, bucket: TaskBucket, strays: list[str]) -> bool:
        await self.audit.tidy(bucket, strays)
        return True

    # Leftovers

    async def _check_leftovers(self, found: Findings) -> None:
        """Report the directories of uploads that have ended: an unlink failed, a crash came first, or the database was
        replaced. A directory with a closed row can be repaired by tidying. A directory without a row may belong to
        another database."""
        now = self.clock.now()
        try:
            async for batch in self.storage.list_uploads(now + _OVER_A_MONTH):
                settled = [each for each in batch if is_settled(each, now)]
                rows = await self.database.read(queries.uploads_by_id, [each.name for each in settled])
                for each in settled:
                    row, drift = rows.get(each.name), Drift(Kind.LEFTOVER, each.name, None, each.place)
                    if row is None:
                        found.add([drift])
                    elif row.state is not State.OPEN and await self._outlives(row):
                        found.add([drift], partial(self.closers.tidy, row.id))
        except StorageFailed as error:
            logger.log(level_of(error), "leftovers are not looked for any further", extra={"reason": error.reason})

    async def _outlives(self, closed: Upload) -> bool:
        """Return whether a closed upload still has files, under the locks, which an ending upload holds to the end."""
        try:
            async with self.storage.closing(closed):
                return True
        except Gone:
            return bool(await self.storage.remaining([closed]))
        except StorageFailed:
            return True
