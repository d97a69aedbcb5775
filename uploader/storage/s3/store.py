"""The store on an S3-compatible server, behind the seam of `storage/base.py`: gives its parts threads, and nothing else.

What was acknowledged, and where contents lie, rows say (`ledger.py`); S3 holds bytes. No node has anything of its own but
what it remembers: any of them may go on with any upload.
"""

from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime

from uploader.clock import Clock
from uploader.domain.upload import Upload
from uploader.errors import ConfigurationError, StorageFull, Unverified
from uploader.storage import disk
from uploader.storage.base import (
    Arrival,
    Body,
    Digests,
    Found,
    Gone,
    HeldChunk,
    Lost,
    PresentChunks,
    ReadPart,
)
from uploader.storage.digests import MemoryDigests
from uploader.storage.marks import InstallationMark
from uploader.storage.s3 import keys
from uploader.storage.s3.blobs import S3Arrivals, S3Blob, S3Blobs, S3Trash
from uploader.storage.s3.bucket import Bucket
from uploader.storage.s3.completing import Completing
from uploader.storage.s3.housekeeping import S3Housekeeping
from uploader.storage.s3.ledger import Ledger
from uploader.storage.s3.marks import S3Marks
from uploader.storage.s3.parts import Parts, S3Appender, appending, map_of
from uploader.storage.s3.probe import probe
from uploader.storage.s3.wholes import S3Wholes
from uploader.storage.store import Store
from uploader.tasks import Pool
from uploader.units import format_size

# Requests to S3 at one time; each waits in a thread.
_REQUESTS = 64


class S3Store(Store):
    """On a bucket and its ledger. Nothing is locked, rows decide: a chunk that is written down meanwhile is in the map of
    whoever reads it next, or its row is refused."""

    keeps_files = False
    # An object goes after the transaction that let go of it, whatever the retention is.
    keeps_trash = True

    def __init__(self, bucket: Bucket, ledger: Ledger, clock: Clock, *, min_chunk_size_bytes: int) -> None:
        self._requests = Pool(_REQUESTS, "s3", translate=disk.refusal)
        super().__init__(self._requests)
        self._min_chunk_size_bytes = min_chunk_size_bytes
        self._bucket = bucket
        self._ledger = ledger
        self.marks = InstallationMark(S3Marks(bucket), self._requests)
        self._digests = MemoryDigests(self.threads.long_hashing, ledger)
        self._parts = Parts(bucket, ledger, self._requests, self._digests, clock)
        pools = (self._requests, self.threads.long_hashing)
        self.completing = Completing(bucket, ledger, self._parts, self._digests, pools, self.check_stopping)
        self._blobs = S3Blobs(bucket, ledger, self._requests, self.check_stopping)
        self._wholes = S3Wholes(bucket, ledger, self._parts, self.completing, self._requests, self.check_stopping)
        self._arrivals = S3Arrivals(bucket, self._requests, self.threads.long_hashing)
        self._trash = S3Trash(bucket, ledger, self._requests, clock)
        self._housekeeping = S3Housekeeping(bucket, ledger, self._requests, self.completing, clock, self.check_stopping)

    # Its life

    async def prepare(self) -> None:
        abilities = await self._requests.run(probe, self._bucket)
        if self._min_chunk_size_bytes < abilities.min_part_bytes:
            raise ConfigurationError(
                f"UPLOADER_MIN_CHUNK_SIZE: chunks are parts, and {self._bucket.place} takes none below "
                f"{format_size(abilities.min_part_bytes)}"
            )

    async def check(self) -> None:
        try:
            await self._requests.run(self._bucket.check)
        except StorageFull:
            return

    def stop(self) -> None:
        self._stopping.set()

    async def drain(self) -> None:
        await self._digests.drain()

    def close(self) -> None:
        super().close()
        self._requests.shutdown()
        self._bucket.close()

    # Open uploads

    def place_of(self, upload_id: str, opened_at: datetime) -> str:
        return f"{keys.UPLOADS}{upload_id}"

    async def create(self, upload: Upload, parts: Sequence[Upload] | None = None) -> float:
        return await (self._parts.create(upload) if parts is None else self._wholes.create(upload, parts))

    def filling(self, whole: Upload) -> AbstractAsyncContextManager[ReadPart]:
        return self._wholes.filling(whole)

    async def discard(self, upload: Upload, placed_at: str | None = None) -> bool:
        """Most are all content by now: then there is nothing to ask S3 for."""
        return await self.completing.remove(upload.id, placed_at=placed_at)

    async def hold_chunk(self, upload: Upload, number: int, body: Body | None, *, start: int = 0) -> HeldChunk:
        return await self._parts.hold(upload, number, body, start)

    async def keep_pace(self, upload: Upload, number: int) -> None:
        await self._digests.keep_pace(upload)

    async def read_map(self, upload: Upload, *, verified: bool = True) -> PresentChunks:
        entry = await self._ledger.entry(upload.id)
        if entry is None:
            raise Gone(upload.id)
        part_map = map_of(upload, entry)
        if verified and not part_map.settled:
            raise Unverified()
        return part_map

    async def last_write(self, upload: Upload) -> float:
        entry = await self._ledger.entry(upload.id)
        if entry is None:
            raise Gone(upload.id)
        return entry.written_at.timestamp()

    async def find_bad_chunks(self, upload: Upload) -> list[int]:
        return await self.completing.find_bad(upload)

    async def digest(self, upload: Upload) -> Digests:
        return await self.completing.digest(upload)

    async def digested_bytes(self, upload: Upload) -> int:
        return self._digests.position(upload.id)

    async def forget_digests(self, upload: Upload) -> None:
        self._digests.forget(upload.id)
        await self._ledger.forget_digest(upload.id)

    def appending(self, upload: Upload) -> AbstractAsyncContextManager[S3Appender]:
        return appending(upload, self._ledger, self.read_map)

    @asynccontextmanager
    async def locked(self, upload: Upload) -> AsyncIterator[None]:
        if await self._ledger.glance(upload.id, 0) is None:
            raise Gone(upload.id)
        yield

    async def settle_length(self, upload: Upload) -> bool:
        return await self.completing.settle_length(upload)

    async def place_blob(self, upload: Upload, sha256: str) -> str:
        """They lie where they are: the transaction says so. It has the row of the upload locked: whoever withdraws chunks
        has changed that before, or finds the upload closed."""
        return await self.completing.place_of(upload, sha256)

    async def find_lost(self, upload: Upload) -> Lost | None:
        return await self.completing.find_lost(upload.id)

    async def withdraw(
        self, upload: Upload, numbers: list[int], *, generation: int, verified: bool = False, lost: Lost | None = None
    ) -> None:
        await self.completing.withdraw(upload, numbers, lost)

    # Contents

    async def store_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        await self._arrivals.store(arrivals)

    def place_arrivals(self, arrivals: Sequence[Arrival]) -> Mapping[str, str]:
        return self._arrivals.place_blobs(arrivals)

    async def open_found(self, found: Found) -> S3Blob:
        return self._blobs.open_found(found)

    async def blob_sizes(self, sha256s: list[str]) -> list[int | None]:
        return await self._blobs.sizes(sha256s)

    def pieces(self, found: Found, *, cold: bool = False) -> Generator[bytes]:
        return self._blobs.pieces(found)

    def read_beside(self, found: Found) -> bytes | None:
        return self._blobs.read_signature(found.place)

    def keep_beside(self, found: Found, content: bytes) -> None:
        self._blobs.keep_signature(found.place, content)

    async def find_blob(self, sha256: str) -> Found | None:
        return await self._blobs.find(sha256)

    # The trash

    async def put_away(self, found: Found) -> bool:
        return await self._trash.put_away(found)

    def list_trash(self, name: str | None = None) -> AsyncIterator[list[Found]]:
        return self._trash.list_all(name)

    async def restore_blob(self, found: Found) -> str | None:
        return await self._trash.restore_blob(found)

    # Housekeeping

    def list_uploads(self, opened_before: datetime) -> AsyncIterator[list[Found]]:
        return self._housekeeping.list_uploads(opened_before)

    def list_blobs(self) -> AsyncIterator[list[Found]]:
        return self._housekeeping.list_blobs()

    async def remaining(self, uploads: list[Upload]) -> list[Upload]:
        return await self._housekeeping.remaining(uploads)

    async def holds_chunks(self, found: Found) -> bool:
        return await self._housekeeping.holds_chunks(found)

    async def remove(self, found: Found) -> bool:
        return await (self._trash if found.in_trash else self._housekeeping).remove(found)
