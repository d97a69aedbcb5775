"""Joins parts that are complete to the upload that they become: under the locks of all of them, and in one transaction.

Before it the directory of the whole has the bytes of the parts; after it they are closed, and the whole waits to be filled.
Until then nothing rests on what an attempt has left: the next one makes it anew.
"""

import logging
from contextlib import AsyncExitStack
from datetime import timedelta

from uploader.clock import Clock
from uploader.crashpoints import crash_point
from uploader.database import transactions
from uploader.database.engine import Database, Duplicate
from uploader.domain.chunks import ChunkSizes
from uploader.domain.concatenation import Concatenation
from uploader.domain.upload import State, Upload, UploadKind
from uploader.service.uploads.admission import Admission
from uploader.service.uploads.closers import Closers
from uploader.settings import Settings
from uploader.storage.base import UploadBytes
from uploader.storage.wholes import WholeBytes
from uploader.tasks import uninterrupted

logger = logging.getLogger(__name__)


class Joining:
    """Makes uploads of concatenations."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        storage: UploadBytes,
        wholes: WholeBytes,
        closers: Closers,
        admission: Admission,
        clock: Clock,
    ) -> None:
        self._database = database
        self._storage = storage
        self._wholes = wholes
        self._closers = closers
        self._admission = admission
        self._clock = clock
        self._expiry = timedelta(seconds=settings.upload_expiry_seconds)
        self._chunk_sizes = ChunkSizes(
            settings.chunk_size_bytes, settings.min_chunk_size_bytes, settings.max_chunk_size_bytes
        )

    async def join(self, ordered: Concatenation, parts: dict[str, Upload]) -> bool:
        """Join the parts, which were open a moment ago; False if one of them is not complete. Raises Gone, NotOpen,
        QuotaExceeded, StorageFull, Unavailable."""
        for part in parts.values():
            if not part.length_known or not (await self._closers.read_map(part)).complete:
                return False
        whole = self._whole_of(ordered, parts)
        # Its chunks are written beside those of its parts, which are there until it is merged.
        await self._admission.check(whole.size)
        try:
            return await uninterrupted(self._join(ordered, whole, parts))
        except Duplicate:  # somebody else has joined them
            return True

    def _whole_of(self, ordered: Concatenation, parts: dict[str, Upload]) -> Upload:
        now = self._clock.now()
        size = sum(parts[part_id].size for part_id in ordered.part_ids)
        return Upload(
            id=ordered.id,
            user_id=ordered.user_id,
            md5=None,
            sha256=None,
            name=ordered.name,
            size=size,
            chunk_size=self._chunk_sizes.choose(None, size),
            flushed_bytes=0,
            flushed_generation=0,
            generation=0,
            state=State.OPEN,
            close_reason=None,
            file_id=None,
            # By the time of the order, so that each attempt meets what the one before has left.
            place=self._storage.place_of(ordered.id, ordered.created_at),
            idempotency_key=None,
            created_at=now,
            updated_at=now,
            closed_at=None,
            metadata=ordered.metadata,
            kind=UploadKind.WHOLE,
            computes_md5=False,
        )

    async def _join(self, ordered: Concatenation, whole: Upload, parts: dict[str, Upload]) -> bool:
        in_order = [parts[part_id] for part_id in ordered.part_ids]
        make_room = self._database.outside(lambda: self._wholes.create(whole, in_order))
        async with AsyncExitStack() as stack:
            # In the order of their ids, as everywhere where somebody locks several.
            held = [
                (part, await stack.enter_async_context(self._storage.closing(part)))
                for _, part in sorted(parts.items())
            ]
            for part, closer in held:
                if not (await closer.read_map()).complete:
                    return False
                await self._closers.announce(part)
            await self._database.transact(
                lambda connection: transactions.join_concatenation(
                    connection,
                    whole,
                    expires_at=whole.created_at + self._expiry,
                    make_room=make_room,
                )
            )
            crash_point("join.after_commit")
            self._admission.promise(whole.size)
            for part, closer in held:
                await self._closers.clear(part, State.CONSUMED, closer)
        logger.info("parts joined", extra={"upload_id": whole.id, "user_id": whole.user_id, "parts": len(in_order)})
        return True
