"""Stores on S3 as several processes have them, below the services: one bucket, one ledger."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from tests.support.buckets import WatchedBucket
from tests.support.clock import ManualClock
from tests.support.content import Content
from tests.support.stores import CHUNK, Process
from uploader.addresses import BucketAddress
from uploader.database.engine import Database
from uploader.database.ledger import LedgerRows
from uploader.domain.ledger import Entry
from uploader.domain.upload import Upload
from uploader.storage.base import Digests
from uploader.storage.s3.parts import Multipart, multipart_of
from uploader.storage.s3.store import S3Store


@dataclass
class Node(Process):
    """A store on S3 as a process has it."""

    store: S3Store
    bucket: WatchedBucket
    ledger: LedgerRows

    async def entry(self, upload: Upload) -> Entry:
        found = await self.ledger.entry(upload.id)
        assert found is not None
        return found

    async def multipart(self, upload: Upload) -> Multipart:
        word = (await self.entry(upload)).multipart_id
        assert word is not None
        return multipart_of(word)

    async def place_of(self, upload: Upload) -> str:
        digests = await self.store.digest(upload)
        async with self.store.closing(upload) as closer:
            place = await closer.place_blob(digests.sha256)
        assert place is not None
        return place

    async def bytes_of(self, upload: Upload) -> bytes:
        return self.bucket.get(await self.place_of(upload), 0, upload.size)


MakeNode = Callable[[], Node]


@asynccontextmanager
async def making_nodes(database_url: str, address: BucketAddress) -> AsyncIterator[MakeNode]:
    """They end with this."""
    async with AsyncExitStack() as stack:

        def make() -> Node:
            bucket, database = WatchedBucket(address), Database(database_url)
            ledger = LedgerRows(database)
            store = S3Store(bucket, ledger, ManualClock(), min_chunk_size_bytes=CHUNK)

            async def end() -> None:
                await store.drain()
                store.close()
                await database.close()

            stack.push_async_callback(end)
            return Node(store, database, bucket, ledger)

        yield make


def digests_of(content: Content) -> Digests:
    return Digests(content.md5, content.sha256)
