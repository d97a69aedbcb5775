"""Every store behind the seam, as its tests have it: in several processes, and with rows where it needs some."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import delete, insert

from tests.conformance.third_store import PlainStore
from tests.support.bodies import InPieces
from tests.support.buckets import WatchedBucket
from tests.support.clock import ManualClock
from tests.support.content import Content
from tests.support.gateways import PART_BYTES
from tests.support.rows import NOW, upload_row
from tests.support.stack import patient
from tests.support.waiting import PATIENCE_SECONDS
from uploader.addresses import BucketAddress
from uploader.database import models
from uploader.database.engine import Database
from uploader.database.ledger import LedgerRows
from uploader.domain.upload import Upload
from uploader.storage.base import Arrival, Busy, Digests, Found
from uploader.storage.local.store import LocalStore
from uploader.storage.s3.store import S3Store
from uploader.storage.store import Store

CHUNK = PART_BYTES
CONTENT = Content(3 * CHUNK + 1000, chunk_size=CHUNK)
STORES = ("local", "s3", "plain")


@dataclass
class Uploads:
    """Open uploads in a store, as a process has it."""

    store: Store
    content: Content = field(default=CONTENT, kw_only=True)

    def row(self, content: Content | None = None, **more: Any) -> Upload:
        """An upload of which the store has nothing so far."""
        content = content or self.content
        facts: dict[str, Any] = {"size": content.size, "chunk_size": content.chunk_size, "md5": content.md5}
        row = upload_row(**facts | more)
        return replace(row, place=self.store.place_of(row.id, NOW))

    async def open(self, content: Content | None = None, **more: Any) -> Upload:
        upload = self.row(content, **more)
        await self.store.create(upload)
        return upload

    async def full(self, content: Content | None = None, **more: Any) -> Upload:
        """An upload with all its chunks."""
        upload = await self.open(content, **more)
        await self.put_all(upload, content)
        return upload

    async def put_all(self, upload: Upload, content: Content | None = None) -> None:
        await self.put_these(upload, *range((content or self.content).chunk_count), content=content)

    async def put_these(self, upload: Upload, *numbers: int, content: Content | None = None) -> None:
        """One after the other."""
        for number in numbers:
            await self.put(upload, number, content)

    async def put(self, upload: Upload, number: int, content: Content | None = None) -> bool:
        """Whether it was this one that was stored."""
        return await self.append(upload, (content or self.content).chunk(number), number * upload.chunk_size)

    async def send(self, upload: Upload, start: int, end: int, content: Content | None = None) -> bool:
        """Bytes of one chunk."""
        return await self.append(upload, (content or self.content).data[start:end], start)

    async def append(self, upload: Upload, data: bytes, start: int) -> bool:
        """Bytes from `start` on, which is in the chunk that they belong to."""
        number, offset = divmod(start, upload.chunk_size)
        body = InPieces(data)
        try:
            held = await self.store.hold_chunk(upload, number, body, start=offset)
        finally:
            body.close()
        held.release()
        return held.written

    async def digest(self, upload: Upload) -> Digests:
        """The digests, once no other process computes them."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                with suppress(Busy):
                    return await self.store.digest(upload)
                await asyncio.sleep(0.02)

    async def withdraw(self, upload: Upload, numbers: list[int], *, generation: int = 1) -> None:
        async with self.store.closing(upload) as closer:
            await closer.withdraw(numbers, generation=generation)

    async def present(self, upload: Upload) -> list[int]:
        """The chunks that are stored."""
        return [number for number, there in enumerate((await self.store.read_map(upload)).present) if there]


@dataclass
class Process(Uploads):
    """A store as a process has it, and the database beside it."""

    database: Database

    async def merge(self, upload: Upload) -> str:
        """Make an upload a content that a row names, and forget the upload."""
        sha256 = (await self.digest(upload)).sha256
        async with self.store.closing(upload) as closer:
            await self.name(sha256, upload.size, await closer.place_blob(sha256))
            await closer.unlink()
        return sha256

    async def arrive(self, content: Content) -> str:
        """Make a body a content that a row names."""
        arrival = Arrival(InPieces(content.data), None, None)
        await self.store.store_arrivals([arrival])
        places = self.store.place_arrivals([arrival])
        await self.name(content.sha256, content.size, places.get(content.sha256))
        return content.sha256

    async def name(self, sha256: str, size: int, place: str | None) -> None:
        """Write the row of a content, instead of the one that it has."""
        await self.unname(sha256)
        values = {"sha256": sha256, "size": size, "refs": 1, "location": place, "created_at": NOW}
        async with self.database.engine.begin() as connection:
            await connection.execute(insert(models.blob).values(**values))

    async def unname(self, sha256: str) -> None:
        """Remove the row of a content."""
        async with self.database.engine.begin() as connection:
            await connection.execute(delete(models.blob).where(models.blob.c.sha256 == sha256))

    async def put_away(self, sha256: str) -> Found:
        """As whoever collects a content does; returns what the trash has last."""
        found = await self.store.find_blob(sha256)
        assert found is not None
        await self.unname(sha256)
        assert await self.store.put_away(found)
        return (await self.store.copies(sha256))[0]

    async def read(self, sha256: str, size: int) -> bytes:
        """All of a content."""
        blob = await self.store.open_blob(sha256, size)
        try:
            read = bytearray()
            while piece := await blob.read(CHUNK, len(read)):
                read += piece
            return bytes(read)
        finally:
            await blob.close()


MakeProcess = Callable[[], Process]


@asynccontextmanager
async def making_processes(
    kind: str, root: Path, database_url: str, address: BucketAddress | None
) -> AsyncIterator[MakeProcess]:
    """They have one directory or bucket, and one database; they end with this."""
    async with AsyncExitStack() as stack:

        def make() -> Process:
            database = patient(database_url)
            store = _new_store(kind, root, database, address)

            async def end() -> None:
                await store.drain()
                store.close()
                await database.close()

            stack.push_async_callback(end)
            return Process(store, database)

        yield make


def _new_store(kind: str, root: Path, database: Database, address: BucketAddress | None) -> Store:
    if kind == "local":
        return LocalStore(root, durable=True)
    if kind == "plain":
        return PlainStore(root)
    assert address is not None
    return S3Store(WatchedBucket(address), LedgerRows(database), ManualClock(), min_chunk_size_bytes=CHUNK)
