"""The trash of the store on S3: objects that stay where they are, and rows that say since when nobody needs them."""

from collections.abc import AsyncIterator

from uploader.clock import Clock
from uploader.crashpoints import crash_point
from uploader.domain.ledger import PutAway
from uploader.domain.upload import Upload
from uploader.storage.base import Gone
from uploader.storage.contents import Found
from uploader.storage.s3 import keys
from uploader.storage.s3.bucket import Bucket
from uploader.storage.s3.contents.blobs import S3Blob, S3Blobs
from uploader.storage.s3.ledger import Ledger
from uploader.tasks import Pool

_LIST_BATCH = 250


class S3Trash:
    """As `Trash`. An object goes after the transaction that let go of it, whatever the retention is."""

    keeps = True

    def __init__(self, bucket: Bucket, ledger: Ledger, pool: Pool, blobs: S3Blobs, clock: Clock) -> None:
        self._bucket = bucket
        self._ledger = ledger
        self._pool = pool
        self._blobs = blobs
        self._clock = clock

    async def put_away(self, found: Found) -> bool:
        return await self._ledger.put_away(PutAway(found.place, found.name, found.disk_bytes, self._clock.now()))

    async def list_all(self) -> AsyncIterator[list[Found]]:
        after = ""
        while batch := await self._ledger.all_put_away(after=after, limit=_LIST_BATCH):
            yield [_found(put) for put in batch]
            after = max(put.key for put in batch)

    async def copies(self, sha256: str) -> list[Found]:
        return [_found(put) for put in await self._ledger.copies(sha256)]

    async def put_away_of(self, upload: Upload) -> list[Found]:
        return []

    async def open(self, found: Found) -> S3Blob:
        return self._blobs.open_found(found)

    async def restore_blob(self, found: Found) -> str | None:
        """It lies where it is: the transaction says so. But a purge that died may have left its row alone."""
        if await self._pool.run(self._bucket.head, found.place) is None:
            raise Gone(found.name)
        return found.place

    async def restore_upload(self, found: Found, upload: Upload) -> bool:
        """No upload is ever put away: what is left of one is aborted."""
        return False

    async def remove(self, found: Found) -> bool:
        if await self._ledger.contents_at([found.place]):
            await self._ledger.take_out(found.place)  # it was restored
            return False
        await self._pool.run(self._bucket.delete, [found.place, keys.of_signature(found.place)])
        crash_point("trash.after_delete")
        return await self._ledger.take_out(found.place)


def _found(put: PutAway) -> Found:
    return keys.found(put.key, name=put.name, changed_at=put.created_at.timestamp(), size=put.size)
