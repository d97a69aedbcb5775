"""The store on an S3-compatible server, behind the seam of `storage/base.py`: gives its parts threads, and nothing else.

What was acknowledged, and where contents lie, rows say (`ledger.py`); S3 holds bytes. No node has anything of its own but
what it remembers: any of them may go on with any upload.
"""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime

from uploader.clock import Clock
from uploader.domain.ledger import Entry
from uploader.domain.upload import Upload
from uploader.errors import ConfigurationError, StorageFull, Unverified
from uploader.storage import disk
from uploader.storage.base import Body, Gone, Stopping
from uploader.storage.contents import Digests, Found, OpenSignature, Pace
from uploader.storage.s3 import keys
from uploader.storage.s3.bucket import Bucket
from uploader.storage.s3.contents.arrivals import S3Arrivals
from uploader.storage.s3.contents.blobs import S3Blob, S3Blobs
from uploader.storage.s3.contents.signatures import S3Signatures
from uploader.storage.s3.contents.trash import S3Trash
from uploader.storage.s3.housekeeping import S3Housekeeping
from uploader.storage.s3.ledger import Ledger
from uploader.storage.s3.marks import S3Marks
from uploader.storage.s3.probe import probe
from uploader.storage.s3.uploads.appending import S3Appender, appending
from uploader.storage.s3.uploads.completing import Completing
from uploader.storage.s3.uploads.frontier import MemoryFrontier
from uploader.storage.s3.uploads.maps import PartMap, map_of
from uploader.storage.s3.uploads.parts import HeldPart, Parts
from uploader.storage.s3.wholes import S3Wholes
from uploader.storage.threads import Threads
from uploader.tasks import Pool
from uploader.units import format_size

# Requests to S3 at one time; each waits in a thread.
_REQUESTS = 64


class S3Closer:
    """An upload as a whole. Nothing is locked: what counts is decided by rows, and a chunk that is written down meanwhile is
    in the map of whoever reads it next, or its row is refused."""

    def __init__(self, store: "S3Store", upload: Upload) -> None:
        self._store = store
        self._upload = upload
        self._place: str | None = None  # where its content lies, once it is one
        self._lost: Entry | None = None

    async def read_map(self, *, verified: bool = True) -> PartMap:
        return await self._store.read_map(self._upload, verified=verified)

    async def place_blob(self, sha256: str) -> str | None:
        """They lie where they are: the transaction says so. It has the row of the upload locked: whoever withdraws chunks
        has changed that before, or finds the upload closed."""
        self._place = await self._store.completing.place_of(self._upload, sha256)
        return self._place

    async def find_bad_chunks(self) -> list[int]:
        return await self._store.find_bad_chunks(self._upload)

    async def find_lost(self) -> list[int] | None:
        self._lost = await self._store.completing.find_lost(self._upload.id)
        return None if self._lost is None else sorted(self._lost.parts)

    async def withdraw(self, numbers: list[int], *, generation: int, verified: bool = False) -> None:
        await self._store.completing.withdraw(self._upload, numbers, self._lost)

    async def settle_length(self, upload: Upload) -> bool:
        self._upload = upload
        return await self._store.completing.settle_length(upload)

    async def unlink(self) -> bool:
        """Most are all content by now: then there is nothing to ask S3 for."""
        return await self._store.completing.remove(self._upload.id, placed_at=self._place)


class S3Store:
    """All capabilities of `storage/base.py`."""

    keeps_files = False

    def __init__(self, bucket: Bucket, ledger: Ledger, clock: Clock, *, min_chunk_size_bytes: int) -> None:
        self._min_chunk_size_bytes = min_chunk_size_bytes
        self._bucket = bucket
        self._ledger = ledger
        self._stopping = threading.Event()
        self._threads = Threads()
        self._requests = Pool(_REQUESTS, "s3", translate=disk.refusal)
        self.marks = S3Marks(bucket, self._requests)
        self._frontier = MemoryFrontier(self._threads.long_hashing, ledger)
        self._parts = Parts(bucket, ledger, self._requests, self._frontier, clock)
        pools = (self._requests, self._threads.long_hashing)
        self.completing = Completing(bucket, ledger, self._parts, self._frontier, pools, self._check_stopping)
        hashing = (self._threads.long_hashing, self._threads.scrubbing)
        self._blobs = S3Blobs(bucket, ledger, self._requests, hashing, self._check_stopping)
        self._signatures = S3Signatures(
            bucket, self._blobs, self._requests, self._threads.signing, self._check_stopping
        )
        self.wholes = S3Wholes(bucket, ledger, self._parts, self.completing, self._requests, self._check_stopping)
        self.arrivals = S3Arrivals(bucket, self._requests, self._threads.long_hashing)
        self.trash = S3Trash(bucket, ledger, self._requests, self._blobs, clock)
        self._housekeeping = S3Housekeeping(
            bucket, ledger, self._requests, self.completing, clock, self._check_stopping
        )

    # Its life

    async def prepare(self) -> None:
        abilities = await self._requests.run(probe, self._bucket)
        if self._min_chunk_size_bytes < abilities.min_part_bytes:
            raise ConfigurationError(
                f"UPLOADER_MIN_CHUNK_SIZE: chunks are parts, and {self._bucket.place} takes none below "
                f"{format_size(abilities.min_part_bytes)}"
            )

    @property
    def doubt(self) -> str | None:
        """The probe refuses what is unsafe."""
        return None

    async def check(self) -> None:
        try:
            await self._requests.run(self._bucket.check)
        except StorageFull:
            return

    def stop(self) -> None:
        self._stopping.set()

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise Stopping

    async def drain(self) -> None:
        await self._frontier.drain()

    def close(self) -> None:
        self._threads.shutdown()
        self._requests.shutdown()
        self._bucket.close()

    # Open uploads

    def place_of(self, upload_id: str, opened_at: datetime) -> str:
        return f"{keys.UPLOADS}{upload_id}"

    async def create(self, upload: Upload) -> float:
        return await self._parts.create(upload)

    async def check_lost(self, upload: Upload) -> None:
        """What is written down of an upload lies beside its row: neither is lost without the other."""
        raise Gone(upload.id)

    async def begin_anew(self, upload: Upload) -> None:
        await self.check_lost(upload)

    async def discard(self, upload: Upload) -> bool:
        return await self.completing.remove(upload.id)

    async def hold_chunk(self, upload: Upload, number: int, body: Body | None, *, start: int = 0) -> HeldPart:
        return await self._parts.hold(upload, number, body, start)

    async def keep_pace(self, upload: Upload, number: int) -> None:
        await self._frontier.keep_pace(upload)

    async def read_map(self, upload: Upload, *, verified: bool = True) -> PartMap:
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

    def follow(self, upload: Upload) -> None:
        """What was not hashed as it came is read at the end."""

    async def digest(self, upload: Upload) -> Digests:
        return await self.completing.digest(upload)

    async def digested_bytes(self, upload: Upload) -> int:
        return self._frontier.position(upload.id)

    async def forget_digests(self, upload: Upload) -> None:
        self._frontier.forget(upload.id)
        await self._ledger.forget_digest(upload.id)

    async def hash(self, compute: Callable[[], bytes]) -> bytes:
        return await self._threads.long_hashing.run(compute)

    def appending(self, upload: Upload) -> AbstractAsyncContextManager[S3Appender]:
        return appending(upload, self._ledger, self.read_map)

    @asynccontextmanager
    async def closing(self, upload: Upload) -> AsyncIterator[S3Closer]:
        """Raises Gone."""
        if await self._ledger.glance(upload.id, 0) is None:
            raise Gone(upload.id)
        yield S3Closer(self, upload)

    # Contents

    async def open_blob(self, sha256: str, size: int) -> S3Blob:
        return await self._blobs.open(sha256, size)

    async def open_signature(self, sha256: str, size: int) -> OpenSignature:
        return await self._signatures.open(sha256, size)

    async def read_blob(self, sha256: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        return await self._blobs.read(sha256, ranges)

    async def blob_sizes(self, sha256s: list[str]) -> list[int | None]:
        return await self._blobs.sizes(sha256s)

    async def hash_blob(self, found: Found, pace: Pace | None, *, with_md5: bool) -> Digests | None:
        return await self._blobs.hash(found, pace, with_md5=with_md5)

    async def find_blob(self, sha256: str) -> Found | None:
        return await self._blobs.find(sha256)

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
        return await self._housekeeping.remove(found)

    async def remove_emptied(self, opened_before: datetime) -> None:
        """There are no directories."""

    async def space(self) -> None:
        """It has no bound that anybody here knows."""
