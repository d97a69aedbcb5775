"""What is stored on S3, looked at without the server: what rows say, and whether the bucket has it."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.support.at_rest import OnDisk, Rows, StoredBytes
from tests.support.gateways import Gateway, gateway_of_tests, prefix_of
from tests.support.invariants import Shape
from uploader.database import models
from uploader.database.engine import Database
from uploader.domain.upload import Tail, chunk_length
from uploader.storage.s3.bucket import make_client


@dataclass(frozen=True)
class Listed:
    """All that the bucket has below the prefix, by key: the sizes and ETags of objects, the ids of multipart uploads."""

    objects: Mapping[str, tuple[int, str]]
    multiparts: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Ledger:
    """The rows of what is on S3."""

    words: dict[str, str | None]  # of the multipart uploads of uploads
    tails: dict[str, tuple[str, Tail]]
    chunks: dict[str, dict[int, tuple[str, str | None]]]  # the ETag and the key of each
    named: set[str]  # keys, whatever for
    contents: set[str]  # keys at which contents lie


def stored_of_tests(database: Database, data: Path) -> "BucketBytes | None":
    """Where the tests keep what belongs to `data`, if that is in a bucket."""
    gateway = gateway_of_tests()
    return None if gateway is None else BucketBytes(database, gateway, prefix_of(data))


class BucketBytes(StoredBytes):
    """In a bucket, below a prefix."""

    def __init__(self, database: Database, gateway: Gateway, prefix: str) -> None:
        self._database = database
        self._bucket = gateway.bucket
        self._prefix = f"{prefix}/"
        self._client = make_client(gateway.address())

    async def of_uploads(self, rows: Rows) -> dict[str, OnDisk]:
        ids = [upload_id for upload_id, _, _ in rows.open_uploads]
        shapes = await self._database.read(lambda connection: _shapes(connection, ids))
        ledger = await self._database.read(_ledger, snapshot=True)
        listed = await asyncio.to_thread(self._list)
        known = [upload_id for upload_id in ids if upload_id in ledger.words and upload_id in shapes]
        return {
            upload_id: await asyncio.to_thread(self._look, upload_id, shapes[upload_id], ledger, listed)
            for upload_id in known
        }

    async def check_rest(self, rows: Rows, uploads: Mapping[str, OnDisk]) -> None:
        listed = await asyncio.to_thread(self._list)
        for sha256, size, location in rows.blobs:
            assert location is not None, f"{sha256} lies nowhere"
            found = listed.objects.get(location)
            assert found is not None, f"invariant 3: {sha256} is not at {location}"
            assert found[0] == size, f"invariant 3: {sha256} has {found[0]} bytes at {location}"

    async def leftovers(self) -> list[str]:
        """What no row names, and rows that no open upload has."""
        ledger = await self._database.read(_ledger, snapshot=True)
        rows = await self._database.read(_open_ids)
        listed = await asyncio.to_thread(self._list)
        words = {word for word in ledger.words.values() if word is not None}
        named = ledger.named | {f"s/{key}" for key in ledger.contents} | {word.partition(":")[0] for word in words}
        stray = [f"the object {key}" for key in listed.objects if key not in named and not key.startswith("marks/")]
        stray += [f"the multipart upload {key}" for key, name in listed.multiparts if f"{key}:{name}" not in words]
        return stray + [
            f"the rows of {upload_id}, which is not open" for upload_id in ledger.words if upload_id not in rows
        ]

    async def count(self) -> tuple[int, int]:
        """Objects, and multipart uploads."""
        listed = await asyncio.to_thread(self._list)
        return len(listed.objects), len(listed.multiparts)

    def close(self) -> None:
        self._client.close()

    # In threads

    def _look(self, upload_id: str, shape: Shape, ledger: Ledger, listed: Listed) -> OnDisk:
        chunks = ledger.chunks.get(upload_id, {})
        there = self._etags(upload_id, shape, ledger, listed)
        present = frozenset(chunks)
        sound = frozenset(
            number
            for number, (etag, key) in chunks.items()
            if there.get(number if key is None else key) == (chunk_length(number, shape.size, shape.chunk_size), etag)
        )
        if upload_id not in ledger.tails:
            return OnDisk(shape, present, sound)
        key, tail = ledger.tails[upload_id]
        if tail.number in present or any(number not in present for number in range(tail.number)):
            return OnDisk(shape, present, sound)  # it does not count
        return OnDisk(shape, present, sound, tail, listed.objects.get(key, (-1, ""))[0] == tail.length)

    def _etags(
        self, upload_id: str, shape: Shape, ledger: Ledger, listed: Listed
    ) -> Mapping[str | int, tuple[int, str]]:
        """The length and the ETag of each part, by number, or of each object, by key."""
        word = ledger.words[upload_id]
        if word is None:
            return dict(listed.objects.items())
        key, _, multipart_id = word.partition(":")
        if (key, multipart_id) not in listed.multiparts and listed.objects.get(key, (-1, ""))[0] == shape.size:
            # Completed, which compares each ETag.
            chunks = ledger.chunks.get(upload_id, {})
            return {
                number: (chunk_length(number, shape.size, shape.chunk_size), etag)
                for number, (etag, _) in chunks.items()
            }
        pages = self._client.get_paginator("list_parts")
        try:
            return {
                part["PartNumber"] - 1: (part["Size"], part["ETag"].strip('"'))
                for page in pages.paginate(Bucket=self._bucket, Key=self._prefix + key, UploadId=multipart_id)
                for part in page.get("Parts", [])
            }
        except self._client.exceptions.NoSuchUpload:
            return {}

    def _list(self) -> Listed:
        objects = {
            found["Key"].removeprefix(self._prefix): (found["Size"], found["ETag"].strip('"'))
            for page in self._pages("list_objects_v2")
            for found in page.get("Contents", [])
            if not found["Key"].endswith("/")
        }
        multiparts = {
            (found["Key"].removeprefix(self._prefix), found["UploadId"])
            for page in self._pages("list_multipart_uploads")
            for found in page.get("Uploads", [])
        }
        return Listed(objects, frozenset(multiparts))

    def _pages(self, operation: Any) -> Iterable[Any]:
        yield from self._client.get_paginator(operation).paginate(Bucket=self._bucket, Prefix=self._prefix)


async def _shapes(connection: AsyncConnection, ids: list[str]) -> dict[str, Shape]:
    uploads = models.upload.c
    query = select(uploads.id, uploads.size, uploads.chunk_size).where(uploads.id.in_(ids))
    return {row[0]: Shape(row[1], row[2]) for row in await connection.execute(query)}


async def _open_ids(connection: AsyncConnection) -> set[str]:
    uploads = models.upload.c
    return await _column(connection, select(uploads.id).where(uploads.state == "OPEN"))


async def _ledger(connection: AsyncConnection) -> Ledger:
    rows, chunks = models.multipart.c, models.chunk.c
    words, tails = {}, {}
    asked = select(rows.upload_id, rows.multipart_id, rows.tail_key, rows.tail_number, rows.tail_length)
    for upload_id, word, key, number, length in await connection.execute(asked):
        words[upload_id] = word
        if key is not None:
            tails[upload_id] = (key, Tail(number, length))
    found: dict[str, dict[int, tuple[str, str | None]]] = defaultdict(dict)
    for upload_id, number, etag, key in await connection.execute(
        select(chunks.upload_id, chunks.number, chunks.etag, chunks.object_key)
    ):
        found[upload_id][number] = (etag, key)
    contents = await _column(connection, select(models.blob.c.location).where(models.blob.c.location.is_not(None)))
    named = contents | {key for key, _ in tails.values()}
    for column in (chunks.object_key, models.piece.c.object_key, models.put_away.c.object_key):
        named |= await _column(connection, select(column).where(column.is_not(None)))
    return Ledger(words, tails, dict(found), named, contents)


async def _column(connection: AsyncConnection, query: Select[Any]) -> set[str]:
    return set((await connection.execute(query)).scalars())
