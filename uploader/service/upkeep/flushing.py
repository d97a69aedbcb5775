"""Carries what is pending in Redis into the accounts of the database, in batches of absolute figures."""

import logging
import time
from typing import NamedTuple

from uploader.accounting.pending import Pending
from uploader.accounting.queues import Claim, UploadQueue
from uploader.clock import Clock
from uploader.crashpoints import crash_point
from uploader.database import transactions
from uploader.database.engine import Database
from uploader.database.transactions import Received
from uploader.errors import DatabaseDamaged, StorageFailed, Unavailable, Unverified
from uploader.observability import FLUSH_BATCH_UPLOADS, FLUSH_LAG_SECONDS, FLUSHED_UPLOADS
from uploader.service.uploads.closers import Closers

__all__ = ["FlushedBatch", "Flushing", "UploadQueue"]

logger = logging.getLogger(__name__)

# So many claims are written in one transaction: a commit costs as much as several hundred rows. More would hold rows
# locked, and the event loop busy, for longer than others should feel.
_CLAIMS_A_TRANSACTION = 10


class FlushedBatch(NamedTuple):
    """How many tasks were claimed, and whether more may be due."""

    claimed: int
    more: bool


class Flushing:
    """Claims what is due, writes it, and only then acknowledges. A crash in between repeats what changes nothing."""

    def __init__(self, database: Database, pending: Pending, closers: Closers, clock: Clock) -> None:
        self._database = database
        self._pending = pending
        self._closers = closers
        self._clock = clock

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
        await self._pending.ack_flush(queue.shard, [claim for claim in claims if is_open.get(claim.upload_id)])
        crash_point("flush.after_ack")
        for claim in claims:
            if is_open.get(claim.upload_id) is False:
                await self._tidy_one(claim.upload_id)
        return FlushedBatch(len(claims), more)

    async def _tidy_one(self, upload_id: str) -> None:
        try:
            await self._closers.tidy(upload_id)
        except (DatabaseDamaged, StorageFailed, Unverified) as error:
            logger.warning("a closed upload is not tidied", extra={"upload_id": upload_id, "reason": error.reason})

    async def _write(self, claims: list[Claim]) -> dict[str, bool]:
        """Write a batch, and tell of each upload whether it is open. One that fails is split, so that one bad row holds
        up no other; an upload that fails alone is left out, neither acknowledged nor tidied: it is due after the lease."""
        batch = [Received(claim.upload_id, claim.generation, claim.received) for claim in claims]
        try:
            flushed = await self._database.transact(
                lambda connection: transactions.flush(connection, batch, self._clock.now())
            )
        except Exception as error:
            if isinstance(error, Unavailable) and not isinstance(error, DatabaseDamaged):
                raise
            if len(claims) == 1:
                logger.exception("an upload can't be accounted", extra={"upload_id": claims[0].upload_id})
                return {}
            middle = len(claims) // 2
            return await self._write(claims[:middle]) | await self._write(claims[middle:])
        if flushed.open_ids and not flushed.changed:
            # It wrote nothing, so its commit waited for nothing: the figures may be somebody else's, and not durable yet.
            await self._database.sync()
        crash_point("flush.after_commit")
        FLUSHED_UPLOADS.inc(flushed.changed)
        return {claim.upload_id: claim.upload_id in flushed.open_ids for claim in claims}
