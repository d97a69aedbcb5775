"""Writes the pending bytes in Redis to the accounts of the database, in batches of absolute figures. After a loss of
Redis, recovers pending bytes from the disk."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from uploader.accounting.pending import Pending
from uploader.accounting.queue import Claim, UploadQueue
from uploader.database import queries, transactions
from uploader.database.engine import Database
from uploader.database.transactions.rows import NotOpen
from uploader.database.transactions.uploads import Received
from uploader.domain.upload import State, Upload
from uploader.errors import DatabaseDamaged, StorageFailed, Unavailable, Unverified
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.observability import FLUSH_BATCH_UPLOADS, FLUSH_LAG_SECONDS, FLUSHED_UPLOADS, level_of
from uploader.runtime.tasks import all_or_none
from uploader.service.close import Closers
from uploader.service.ids import greatest
from uploader.storage.base import Gone

__all__ = ["FlushedBatch", "Flushing", "UploadQueue"]


logger = logging.getLogger(__name__)

# Claims per transaction: a commit costs as much as several hundred rows. More claims would lock rows, and block the
# event loop, for noticeably long.
_CLAIMS_A_TRANSACTION = 10


class FlushedBatch(NamedTuple):
    claimed: int
    more: bool


@dataclass(eq=False, repr=False)
class Flushing:
    """Claims due uploads, writes their figures, then acknowledges. A crash in between only repeats the write."""

    database: Database
    pending: Pending
    closers: Closers
    clock: Clock

    async def flush_due(self, queue: UploadQueue) -> FlushedBatch:
        """Flush one batch of a queue. Raises Unavailable."""
        claims, more = await queue.claim_many(_CLAIMS_A_TRANSACTION)
        if not claims:
            return FlushedBatch(0, more)
        crash_point("flush.after_claim")
        started = time.perf_counter()
        is_open = await self._write(claims)
        FLUSH_BATCH_UPLOADS.observe(len(claims))
        FLUSH_LAG_SECONDS.observe(claims[0].late_ms / 1000 + time.perf_counter() - started)
        await self.pending.ack_flush(queue.shard, [claim for claim in claims if is_open.get(claim.upload_id)])
        crash_point("flush.after_ack")
        for claim in claims:
            if is_open.get(claim.upload_id) is False:
                try:
                    await self.closers.tidy(claim.upload_id)
                except (DatabaseDamaged, StorageFailed, Unverified) as error:
                    facts = {"upload_id": claim.upload_id, "reason": error.reason}
                    logger.log(level_of(error), "a closed upload is not tidied", extra=facts)
        return FlushedBatch(len(claims), more)

    async def _write(self, claims: list[Claim]) -> dict[str, bool]:
        """Write a batch. Return the uploads, each with True if open, False if closed. A failed batch is split, to isolate a
        bad row. An upload that fails alone is left out, neither acknowledged nor tidied: it is due again after the lease."""
        batch = [Received(claim.upload_id, claim.generation, claim.received) for claim in claims]
        try:
            flushed = await self.database.transact(transactions.uploads.flush, batch, self.clock.now())
        except Exception as error:
            if isinstance(error, Unavailable) and not isinstance(error, DatabaseDamaged):
                raise
            if len(claims) == 1:
                trace = None if isinstance(error, DatabaseDamaged) else error
                facts = {"upload_id": claims[0].upload_id, "reason": getattr(error, "reason", repr(error))}
                logger.error("an upload can't be accounted", extra=facts, exc_info=trace)
                return {}
            middle = len(claims) // 2
            return await self._write(claims[:middle]) | await self._write(claims[middle:])
        if flushed.open_ids and not flushed.changed:
            # Nothing was written, so the commit waited for nothing. The figures may come from another transaction, not
            # durable yet.
            await self.database.sync()
        crash_point("flush.after_commit")
        FLUSHED_UPLOADS.inc(flushed.changed)
        return {claim.upload_id: claim.upload_id in flushed.open_ids for claim in claims}


_BATCH = 200
_AT_ONCE = 8
# How many uploads the log names among those left.
_TOLD = 10


@dataclass(eq=False, repr=False)
class Sweeping:
    """Hydrates, after a loss of Redis, the uploads that nobody touches: their pending bytes must be accounted for, too.
    One sweep of a shard looks at every open upload. One process sweeps a shard; another one takes over if it dies."""

    database: Database
    pending: Pending
    closers: Closers

    async def sweep(self, shard: int) -> int:
        """Sweep a shard if the era of Redis has changed since the last sweep. Return how many uploads were hydrated.
        Raises Unavailable; then the next sweep begins anew. Raises StorageFailed if a few uploads could not be handled,
        after all others were."""
        era = await self.pending.claim_sweep(shard)
        if era is None:
            return 0
        crash_point("sweep.after_claim")
        rebuilt, after, left = 0, "", _Left()
        while batch := await self.database.read(queries.all_open_uploads, after, _BATCH):
            mine = [upload for upload in batch if self.pending.shards.of(upload.id) == shard]
            rebuilt += await self._rebuild(mine, left)
            after = greatest(after, [upload.id for upload in batch])
            if await self.pending.claim_sweep(shard) != era:
                return rebuilt  # lost again, or claimed by another process
        await self._tidy_closed(shard, left)
        crash_point("sweep.after_rebuild")
        if rebuilt:
            logger.info("uploads rebuilt after a loss of Redis", extra={"shard": shard, "rebuilt": rebuilt})
        if left.reasons:
            raise StorageFailed(f"Uploads that are not rebuilt for now: {left}.")
        await self.pending.end_sweep(shard, era)
        return rebuilt

    async def _tidy_closed(self, shard: int, left: "_Left") -> None:
        """Tidy closed uploads that a Redis with an older state has as open, perhaps without a task to find them by."""
        suspects = [upload_id async for upload_id in self.pending.not_closed(shard)]
        for start in range(0, len(suspects), _BATCH):
            ids = suspects[start : start + _BATCH]
            rows = await self.database.read(queries.uploads_by_id, ids)
            for upload_id in ids:
                if upload_id not in rows or rows[upload_id].state is not State.OPEN:
                    with left.noted(upload_id):
                        await self.closers.tidy(upload_id)

    async def _rebuild(self, uploads: list[Upload], left: "_Left") -> int:
        places = asyncio.Semaphore(_AT_ONCE)

        async def one(upload: Upload) -> bool:
            async with places:
                if (await self.pending.read(upload.id)).state:
                    return False  # touched in this era already
                with suppress(Gone, NotOpen), left.noted(upload.id):
                    await self.closers.hydrate(upload)
                    return True
                return False

        return sum(await all_or_none(map(one, uploads)))


class _Left:
    """The uploads that a sweep could not handle. If Redis or the database is away, the next look ends the sweep."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def __str__(self) -> str:
        return ", ".join(f"{upload_id} ({reason})" for upload_id, reason in islice(self.reasons.items(), _TOLD))

    @contextmanager
    def noted(self, upload_id: str) -> Iterator[None]:
        try:
            yield
        except Unavailable as error:
            self.reasons[upload_id] = error.reason
