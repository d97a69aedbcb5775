"""Reads every blob again and compares it with its SHA-256, to find what rotted on the disk.

Reports, and neither moves nor deletes anything. Goes through the blobs in the order of their SHA-256 and remembers where it
is, so that the next run goes on there; safe while servers run.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from uploader.clock import Clock
from uploader.database import meta, queries
from uploader.database.engine import Database
from uploader.domain.upload import File
from uploader.errors import StorageFailed
from uploader.storage.base import BlobBytes

_BATCH = 200
_POSITION = "scrub"
_REMEMBER_INTERVAL_SECONDS = 5.0


class BlobProblem(StrEnum):
    """What is wrong with a blob."""

    ALTERED = "altered"  # its bytes have another SHA-256
    MISSING = "missing"  # it has a row with refs, and no bytes
    UNREADABLE = "unreadable"  # the disk reports an error


@dataclass(frozen=True, slots=True)
class Damage:
    """A blob that is not what it should be, and the files that have it as their content."""

    sha256: str
    size: int
    problem: BlobProblem
    files: list[File]


class ScrubProgress(msgspec.Struct):
    """How far the present pass has come, over all its runs."""

    after: str = ""
    blobs: int = 0
    bytes: int = 0
    damaged: int = 0


class Scrubbing:
    """Two at once only do the same work twice."""

    def __init__(self, database: Database, storage: BlobBytes, clock: Clock) -> None:
        self._database = database
        self._storage = storage
        self._clock = clock
        self.progress = ScrubProgress()

    async def scrub(self, pace: Callable[[int], None], *, restart: bool = False) -> AsyncGenerator[Damage]:
        """What is damaged, from where the last run ended, or from the first blob on after a whole pass or with `restart`.

        `pace` is told the bytes of every read, in a thread, and may sleep there. Raises Unavailable, Stopping.
        """
        self.progress = ScrubProgress() if restart else await self._recall()
        remembered_at = self._clock.monotonic()
        while blobs := await self._blobs(self.progress.after):
            for blob in blobs:
                damage = await self._look(blob, pace)
                self.progress.after = blob.sha256
                self.progress.blobs += 1
                self.progress.bytes += blob.size
                if damage is not None:
                    self.progress.damaged += 1
                    yield damage
                if damage or self._clock.monotonic() - remembered_at > _REMEMBER_INTERVAL_SECONDS:
                    await self._remember(self.progress)
                    remembered_at = self._clock.monotonic()
        await self._remember(ScrubProgress())

    async def _look(self, blob: queries.Blob, pace: Callable[[int], None]) -> Damage | None:
        """Looked at twice before it is called damaged: it may have been deleted and sent again meanwhile."""
        if await self._problem_of(blob, pace) is None:
            return None
        problem = await self._problem_of(blob, pace)
        files = await self._database.read(lambda connection: queries.files_by_sha256(connection, blob.sha256))
        if problem is None or not files:
            return None
        return Damage(blob.sha256, blob.size, problem, files)

    async def _problem_of(self, blob: queries.Blob, pace: Callable[[int], None]) -> BlobProblem | None:
        try:
            found = await self._storage.hash_blob(blob.sha256, pace)
        except StorageFailed:
            return BlobProblem.UNREADABLE
        if found is None:
            return BlobProblem.MISSING
        return None if found == blob.sha256 else BlobProblem.ALTERED

    async def _blobs(self, after: str) -> list[queries.Blob]:
        return await self._database.read(lambda connection: queries.blobs_in_use(connection, after=after, limit=_BATCH))

    async def _recall(self) -> ScrubProgress:
        stored = await self._database.read(lambda connection: meta.fact(connection, _POSITION))
        return ScrubProgress() if stored is None else msgspec.json.decode(stored, type=ScrubProgress)

    async def _remember(self, progress: ScrubProgress) -> None:
        value = msgspec.json.encode(progress).decode()
        await self._database.transact(lambda connection: meta.replace_fact(connection, _POSITION, value))
