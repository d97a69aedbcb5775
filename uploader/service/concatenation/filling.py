"""Fills wholes with the bytes of their parts, each chunk in the way of every chunk, and has them merged.

It may end anywhere and go on anywhere: a chunk that is on the map is skipped, and the store says who fills.
"""

import asyncio
import logging
from contextlib import suppress

from uploader.database import queries
from uploader.database.engine import Database
from uploader.database.transactions import NotOpen
from uploader.domain.upload import Reason, State, Upload
from uploader.errors import Unavailable, UploaderError
from uploader.service.uploads.closers import Closers
from uploader.service.uploads.merging import Merging
from uploader.service.uploads.receiving import COUNTED, Receiving
from uploader.storage.base import Busy, Gone, Stopping, UploadBytes
from uploader.storage.wholes import PartDamaged, WholeBytes
from uploader.tasks import ended, uninterrupted

logger = logging.getLogger(__name__)

# To fill is to copy: more at once than this only makes each slower.
_AT_ONCE = 2


class Filling:
    """The wholes that this process fills."""

    def __init__(
        self,
        database: Database,
        storage: UploadBytes,
        wholes: WholeBytes,
        closers: Closers,
        receiving: Receiving,
        merging: Merging,
    ) -> None:
        self._database = database
        self._storage = storage
        self._wholes = wholes
        self._closers = closers
        self._receiving = receiving
        self._merging = merging
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, upload_id: str) -> "asyncio.Task[None]":
        """Begin to fill a whole, and to merge it then; or join who does that here."""
        task = self._running.get(upload_id)
        if task is None:
            task = self._running[upload_id] = asyncio.create_task(self._run(upload_id), name=f"fill {upload_id}")
            task.add_done_callback(lambda _: self._running.pop(upload_id, None))
        return task

    async def close(self) -> None:
        """Stop after the chunks that are under way."""
        for task in list(self._running.values()):
            await ended(task)

    async def _run(self, upload_id: str) -> None:
        """What goes wrong is logged: the job comes back to it."""
        try:
            async with self._turns:
                complete = await self._fill(upload_id)
        except (Busy, Gone, NotOpen, Stopping):
            return
        except UploaderError as error:
            logger.warning("a whole is not filled for now", extra={"upload_id": upload_id, "reason": error.reason})
            return
        except Exception:
            logger.exception("a whole is not filled", extra={"upload_id": upload_id})
            return
        if complete:
            with suppress(UploaderError, Stopping):
                await asyncio.shield(self._merging.start(upload_id))

    async def _fill(self, upload_id: str) -> bool:
        """Whether it was completed here: the merge of one that was before has its task. Raises Busy, Gone, NotOpen,
        Stopping, StorageFull, Unavailable."""
        upload = await self._database.read(lambda connection: queries.upload_by_id(connection, upload_id), brief=True)
        if upload is None or upload.state is not State.OPEN:
            return False
        missing = await self._missing(upload)
        if missing:
            try:
                await self._copy(upload, missing)
            except PartDamaged as error:
                logger.error("a part of a whole is damaged", extra={"upload_id": upload.id, "reason": str(error)})
                await self._closers.close(upload, Reason.PART_DAMAGED)
                return False
        return bool(missing) or not upload.size

    async def _missing(self, upload: Upload) -> list[int]:
        present = (await self._closers.read_map(upload)).present
        return [number for number, there in enumerate(present) if not there]

    async def _copy(self, upload: Upload, numbers: list[int]) -> None:
        async with self._wholes.filling(upload) as parts:
            for number in numbers:
                body = await parts.chunk(number)
                stored = await uninterrupted(self._receiving.hold_and_record(upload, number, body))
                if stored.result.outcome not in COUNTED:
                    raise NotOpen(upload.id)
                if self._database.is_lost:
                    raise Unavailable("The database is lost.")
                await self._storage.keep_pace(upload, number)
