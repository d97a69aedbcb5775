"""The merge: verify, link into the blobs, account. Any worker may repeat it from any step; nothing is copied.

A process runs at most one merge of an upload, and all callers join this merge. The lock on the digest file keeps
processes from hashing an upload twice. The upload's task in Redis is the lease of the merge: it is pushed back while
the work goes on.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from uploader import errors
from uploader.accounting.pending import Pending
from uploader.accounting.queue import UploadQueue
from uploader.database import queries, transactions
from uploader.database.engine import Database, Duplicate
from uploader.database.transactions.rows import ClaimsChanged, NotOpen
from uploader.database.transactions.uploads import Received
from uploader.domain.upload import REFUSED, SUPERSEDED, File, Reason, State, Upload, as_ranges, missing_ranges
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.observability import MERGE_SECONDS, MERGES
from uploader.runtime.tasks import ended, uninterrupted
from uploader.service.close import Closers
from uploader.service.heal import waits_since
from uploader.service.ids import new_id
from uploader.service.results import Complete
from uploader.settings import Settings
from uploader.storage.base import Busy, Digests, Gone, Stopping, UploadBytes

logger = logging.getLogger(__name__)

# If more than this is left to hash, the bytes are accounted before hashing.
_LONG_MERGE_BYTES = 64 << 20
_FIRST_PAUSE_SECONDS = 0.005
_LONGEST_PAUSE_SECONDS = 0.1
_LOST_ATTEMPTS = 20
# How long the reason of a failed merge is kept: the sender of the last bytes asks only after their acknowledgement.
_FINAL = (errors.Md5Mismatch, errors.Sha256Mismatch, errors.NameTaken, errors.LinkGone)
_TOLD_SECONDS = 10.0


@dataclass(eq=False, repr=False)
class Merging:
    settings: Settings
    database: Database
    storage: UploadBytes
    pending: Pending
    closers: Closers
    clock: Clock
    _running: dict[str, asyncio.Task[Complete]] = field(default_factory=dict, init=False)
    _stopping: bool = field(default=False, init=False)

    def start(self, upload_id: str) -> "asyncio.Task[Complete]":
        task = self._running.get(upload_id)
        if task is None:
            task = self._running[upload_id] = asyncio.create_task(self._merge(upload_id), name=f"merge {upload_id}")
            task.add_done_callback(lambda done: self._ended(upload_id, done))
        return task

    async def start_due(self, queue: UploadQueue, limit: int) -> "list[asyncio.Task[Complete]]":
        """Begin at most `limit` merges that are due in a queue. Raises Unavailable."""
        return [self.start(claim.upload_id) for claim in await queue.claim(limit)]

    def _ended(self, upload_id: str, task: "asyncio.Task[Complete]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, _FINAL):
            asyncio.get_running_loop().call_later(_TOLD_SECONDS, self._running.pop, upload_id, None)
            return
        self._running.pop(upload_id, None)
        if error is not None and not isinstance(error, (errors.UploaderError, Stopping)):
            logger.error("merge failed", extra={"upload_id": upload_id}, exc_info=error)

    async def wait(self, upload_id: str) -> Complete | None:
        """Merge and return the file, which is `created` unless it came another way. Return None if the merge takes longer
        than a request waits. Raises Md5Mismatch, Sha256Mismatch, NameTaken, ChunksMissing, UploadGone, Unavailable."""
        task = self.start(upload_id)
        await asyncio.wait({task}, timeout=self.settings.merge_wait_seconds)
        return _result_of(task) if task.done() else None

    async def finish(self, upload_id: str) -> Complete:
        """Wait as `wait` does, but without a limit."""
        task = self.start(upload_id)
        await asyncio.wait({task})
        return _result_of(task)

    async def close(self) -> None:
        """Wait for the merges of this process. Long ones end with Stopping once the storage was told to stop."""
        self._stopping = True
        if self._running:
            await asyncio.wait(self._running.values(), timeout=10)

    async def _merge(self, upload_id: str) -> Complete:
        started = time.perf_counter()
        lost, pause = 0, _FIRST_PAUSE_SECONDS
        while True:
            upload = await self.database.read(queries.upload_by_id, upload_id, brief=True)
            if upload is None:
                raise errors.UploadGone(reason=Reason.CANCELLED.value)
            if upload.state is not State.OPEN:
                return await self._what_became_of(upload)
            try:
                file = await self._attempt(upload)
            except (NotOpen, Gone, ClaimsChanged, Duplicate) as error:
                # Another process was faster, with this upload or with its name.
                lost += 1
                if lost == _LOST_ATTEMPTS:
                    raise errors.Unavailable("The bytes of this upload can't be found.") from error
                await asyncio.sleep(_LONGEST_PAUSE_SECONDS)
            except Busy:
                if self._stopping:
                    raise Stopping from None
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            else:
                MERGES.labels("complete").inc()
                MERGE_SECONDS.observe(time.perf_counter() - started)
                return Complete(file=file, created=True)

    async def _what_became_of(self, upload: Upload) -> Complete:
        await self.closers.tidy(upload.id)
        if upload.state is not State.DONE or upload.file_id is None:
            raise errors.UploadGone(reason=upload.close_reason or Reason.CANCELLED.value)
        file = await self.database.read(queries.file_of_upload, upload, brief=True)
        if file is None:
            raise errors.UploadGone(reason=REFUSED if upload.is_refused else Reason.CANCELLED.value)
        return Complete(file=file, created=upload.close_reason != SUPERSEDED)

    async def _attempt(self, upload: Upload) -> File:
        if upload.is_part:
            raise errors.Forbidden("A part is merged with its whole.")
        chunk_map = await self.closers.read_map(upload)
        if not chunk_map.complete:
            await self.closers.hydrate(upload)  # Redis armed this merge without knowing of withdrawn chunks
            raise errors.ChunksMissing(missing=missing_ranges(chunk_map.present))
        if upload.flushed_bytes < upload.size and upload.size >= _LONG_MERGE_BYTES:
            await self._account_early(upload)
        digests = await self._digest(upload)
        await self._compare(upload, digests)
        try:
            return await uninterrupted(self._commit(upload, digests))
        except errors.NameTaken:
            await self._fail(upload, Reason.NAME_TAKEN)
            raise
        except errors.LinkGone:
            await self._fail(upload, Reason.CANCELLED)
            raise

    async def _digest(self, upload: Upload) -> Digests:
        """Return the digests. Raises ChunksMissing if stored bytes are bad. Raises StorageFailed if bytes can't be read
        though none is bad; the next attempt computes the digests anew. StorageAway proves nothing about the bytes, and
        the next attempt continues."""
        try:
            async with self._leased(upload.id):
                return await self.storage.digest(upload)
        except errors.StorageAway:
            raise
        except errors.StorageFailed:
            await self._withdraw_bad(upload)
            self.closers.note_unmergeable(upload)
            await self.storage.forget_digests(upload)
            raise

    async def _withdraw_bad(self, upload: Upload) -> None:
        """Raises ChunksMissing if stored bytes went bad."""
        async with self._leased(upload.id):
            bad = await self.storage.find_bad_chunks(upload)
        if bad:
            await self.closers.withdraw(upload, bad)
            MERGES.labels("withdrawn").inc()
            raise errors.ChunksMissing("Stored bytes went bad; these chunks are missing again.", missing=as_ranges(bad))

    async def _account_early(self, upload: Upload) -> None:
        """Account all bytes before a long hashing."""
        if upload.size - await self.storage.digested_bytes(upload) >= _LONG_MERGE_BYTES:
            whole = Received(upload.id, upload.generation, upload.size)
            await self.database.transact(transactions.uploads.flush, [whole], self.clock.now())
            crash_point("merge.after_account")

    @asynccontextmanager
    async def _leased(self, upload_id: str) -> AsyncIterator[None]:
        renewing = asyncio.create_task(self._renew(upload_id))
        try:
            yield
        finally:
            await ended(renewing)

    async def _renew(self, upload_id: str) -> None:
        while True:
            await asyncio.sleep(min(1.0, self.settings.claim_lease_seconds / 3))
            try:
                await self.pending.lease(upload_id)
            except errors.Unavailable:
                logger.debug("lease of a merge not renewed", extra={"upload_id": upload_id})

    async def _compare(self, upload: Upload, digests: Digests) -> None:
        """Refuse bytes that differ from the claims: the upload ends, and gives back its reservation. But if stored
        bytes went bad, only those chunks are missing again, because the client is not to blame."""
        if digests.are(upload.md5, upload.sha256):
            return
        await self._withdraw_bad(upload)
        if upload.md5 not in (None, digests.md5):
            await self._fail(upload, Reason.MD5_MISMATCH)
            raise errors.Md5Mismatch(expected=upload.md5, actual=digests.md5)
        await self._fail(upload, Reason.SHA256_MISMATCH)
        raise errors.Sha256Mismatch(expected=upload.sha256, actual=digests.sha256)

    async def _fail(self, upload: Upload, reason: Reason) -> None:
        await self.closers.close(upload, reason)
        MERGES.labels(reason.value).inc()

    async def _commit(self, upload: Upload, digests: Digests) -> File:
        async with self.storage.closing(upload) as closer:
            place = self.database.outside(lambda: closer.place_blob(digests.sha256))
            await self.closers.announce(upload)
            merge = partial(
                transactions.uploads.merge,
                upload_id=upload.id,
                file_id=new_id(),
                md5=digests.md5,
                sha256=digests.sha256,
                place_blob=place,
                now=(now := self.clock.now()),
                came_at=waits_since(self.settings, upload.created_at, now),
            )
            file = await self.database.transact(merge)
            crash_point("merge.after_commit")
            await self.closers.clear(upload, State.DONE, closer)
        logger.info("upload merged", extra={"upload_id": upload.id, "user_id": upload.user_id, "size": upload.size})
        return file


def _result_of(task: "asyncio.Task[Complete]") -> Complete:
    try:
        return task.result()
    except Stopping as error:
        raise errors.Unavailable("The server is stopping; the merge goes on after its start.") from error
