"""An upload on S3 that two processes end at one time. A store of its own stands for each: they share rows and the bucket."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator

import pytest

from tests.support.rows import upload_row
from uploader.addresses import BucketAddress
from uploader.clock import Clock
from uploader.database.engine import Database
from uploader.database.ledger import LedgerRows
from uploader.domain.upload import Upload
from uploader.storage.base import BytesBody
from uploader.storage.s3.bucket import Bucket, NoSuchMultipart
from uploader.storage.s3.store import S3Store

CHUNK = 5 << 20
CONTENT = os.urandom(2 * CHUNK + 1000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
async def stores(sqlite_url: str, s3_address: BucketAddress) -> AsyncIterator[list[S3Store]]:
    database = Database(sqlite_url)
    made = [S3Store(Bucket(s3_address), LedgerRows(database), Clock(), min_chunk_size_bytes=CHUNK) for _ in range(2)]
    yield made
    for store in made:
        await store.drain()
        store.close()
    await database.close()


async def sent(store: S3Store) -> Upload:
    upload: Upload = upload_row(size=len(CONTENT), chunk_size=CHUNK)
    await store.create(upload)
    for number in range(3):
        body = BytesBody(CONTENT[number * CHUNK : (number + 1) * CHUNK])
        (await store.hold_chunk(upload, number, body)).release()
    return upload


async def stored(store: S3Store, upload: Upload, address: BucketAddress) -> bytes:
    async with store.closing(upload) as closer:
        place = await closer.place_blob(SHA256)
    return await asyncio.to_thread(Bucket(address).get, str(place), 0, len(CONTENT))


async def test_one_completes_and_the_other_waits(
    stores: list[S3Store], s3_address: BucketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed: list[str] = []
    complete = Bucket.complete

    def noted(self: Bucket, key: str, multipart_id: str, etags: list[str]) -> None:
        completed.append(key)
        complete(self, key, multipart_id, etags)

    monkeypatch.setattr(Bucket, "complete", noted)
    for _ in range(5):
        completed.clear()
        upload = await sent(stores[0])
        digests = await asyncio.gather(*(store.digest(upload) for store in stores))
        assert {each.sha256 for each in digests} == {SHA256}
        assert await stored(stores[1], upload, s3_address) == CONTENT
        assert len(completed) == 1


async def test_who_waits_for_somebody_that_died_completes_by_himself(
    stores: list[S3Store], s3_address: BucketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uploader.storage.s3.multipart._PATIENCE_SECONDS", 0.2)
    upload = await sent(stores[0])
    dead, survivor = stores
    with monkeypatch.context() as dying:
        dying.setattr(Bucket, "complete", _vanish)
        with pytest.raises(SystemError):
            await dead.digest(upload)
    assert (await survivor.digest(upload)).sha256 == SHA256
    assert await stored(survivor, upload, s3_address) == CONTENT


async def test_what_two_have_completed_is_not_believed_before_it_was_compared(
    stores: list[S3Store], s3_address: BucketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JuiceFS, seldom: the object that another one finds completed is neither short nor whole."""
    monkeypatch.setattr("uploader.storage.s3.multipart._PATIENCE_SECONDS", 0.2)
    upload = await sent(stores[0])
    hole = CONTENT[:CHUNK] + bytes(CHUNK) + CONTENT[2 * CHUNK :]

    def damaged(self: Bucket, key: str, multipart_id: str, _etags: list[str]) -> None:
        self.abort(key, multipart_id)
        self.put(key, BytesBody(hole))
        raise NoSuchMultipart

    first, second = stores
    with monkeypatch.context() as dying:
        dying.setattr(Bucket, "complete", _vanish)
        with pytest.raises(SystemError):
            await first.digest(upload)
    monkeypatch.setattr(Bucket, "complete", damaged)
    with pytest.raises(Exception, match="reports an error"):
        await second.digest(upload)
    assert await second.find_bad_chunks(upload) == [0, 1, 2]


def _vanish(*_: object) -> None:
    """Nothing of it reaches S3."""
    raise SystemError
