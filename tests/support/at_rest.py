"""What has to hold when nothing is under way: database, store and Redis agree to the byte, and nothing is left over."""

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar
from zlib import crc32

from redis.asyncio import Redis
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.support.held import held_of
from tests.support.invariants import Account, Shape, check_pending, checked_accounts
from tests.support.maps import parsed_map, shape_of
from uploader.accounting.keys import upload_keys
from uploader.database import models
from uploader.database.engine import Database
from uploader.domain.upload import Tail, chunk_length
from uploader.storage.local import chunks

T = TypeVar("T")


@dataclass(frozen=True)
class OnDisk:
    """The bytes of an open upload, looked at without the server; on a disk or elsewhere."""

    shape: Shape
    present: frozenset[int]
    sound: frozenset[int]  # those whose bytes match what was written down of them
    tail: Tail | None = None
    tail_is_sound: bool = True

    @property
    def received(self) -> int:
        whole = sum(chunk_length(number, self.shape.size, self.shape.chunk_size) for number in self.present)
        return whole + (self.tail.length if self.tail else 0)

    @property
    def leading(self) -> int:
        """What is there before the first gap."""
        gap = next(number for number in itertools.count() if number not in self.present)
        whole = min(gap * self.shape.chunk_size, self.shape.size)
        return whole + (self.tail.length if self.tail else 0)


def read_directory(directory: Path) -> OnDisk:
    """The chunks of an upload as its map and its data say."""
    with (directory / "data").open("rb") as data:
        return read_files((directory / "map").read_bytes(), data)


def read_files(content: bytes, data: BinaryIO) -> OnDisk:
    """`content`: the map, whole."""
    chunk_map = parsed_map(content)
    facts = shape_of(content)
    shape = Shape(facts.size, facts.chunk_size)
    present = frozenset(number for number, there in enumerate(chunk_map.present) if there)
    sound = set()
    for number in present:
        data.seek(number * shape.chunk_size)
        checksum = crc32(data.read(chunk_length(number, shape.size, shape.chunk_size)))
        offset = chunks.map_record_offset(number)
        if content[offset : offset + chunks.MAP_RECORD_LENGTH] == chunks.map_record(checksum):
            sound.add(number)
    if chunk_map.tail is None:
        return OnDisk(shape, present, frozenset(sound))
    tail = Tail(chunk_map.tail.number, chunk_map.tail.length)
    data.seek(tail.number * shape.chunk_size)
    tail_is_sound = crc32(data.read(tail.length)) == chunk_map.tail.checksum
    return OnDisk(shape, present, frozenset(sound), tail, tail_is_sound)


async def rests_within(seconds: float, check: Callable[[], Awaitable[T]]) -> T:
    """Repeat a check until it passes; what it still has to say after `seconds` is raised."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.05)


@dataclass(frozen=True)
class Rows:
    """What the database names."""

    open_uploads: list[tuple[str, str, int]]  # id, place, flushed bytes
    blobs: list[tuple[str, int, str | None]]  # SHA-256, size, location


class StoredBytes(ABC):
    """What is stored, looked at without the server."""

    @abstractmethod
    async def of_uploads(self, rows: Rows) -> dict[str, OnDisk]:
        """Of the open uploads, by id; but for those whose bytes are gone."""

    @abstractmethod
    async def check_rest(self, rows: Rows, uploads: Mapping[str, OnDisk]) -> None:
        """The contents are there, and nothing else is."""


class DiskBytes(StoredBytes):
    """In a data directory."""

    def __init__(self, data: Path, *, orphans: bool) -> None:
        """`orphans`: a crash may have left directories of uploads that are not open."""
        self._data = data
        self._orphans = orphans

    async def of_uploads(self, rows: Rows) -> dict[str, OnDisk]:
        places = {upload_id: self._data / place for upload_id, place, _ in rows.open_uploads}
        return {upload_id: read_directory(place) for upload_id, place in places.items() if (place / "map").exists()}

    async def check_rest(self, rows: Rows, uploads: Mapping[str, OnDisk]) -> None:
        for sha256, size, _ in rows.blobs:
            path = self._data / "blobs" / sha256[:2] / sha256[2:4] / sha256
            assert path.stat().st_size == size, f"invariant 3: {sha256}"
        left = {path.name for path in (self._data / "temp").glob("*/*/*")} - uploads.keys()
        assert self._orphans or not left, f"invariant 7: directories without an open upload: {left}"


async def check_at_rest(database: Database, redis: Redis, data: Path, *, orphans: bool = False) -> dict[str, Account]:
    """Check every invariant that can be seen from outside; returns the accounts. `orphans`: as `DiskBytes` has it."""
    from tests.support.in_bucket import stored_of_tests  # which is made of what is here

    stored = stored_of_tests(database, data) or DiskBytes(data, orphans=orphans)
    return await check_stored_at_rest(database, redis, stored)


async def check_stored_at_rest(database: Database, redis: Redis, stored: StoredBytes) -> dict[str, Account]:
    """The same, wherever the bytes are."""
    accounts = await checked_accounts(database)
    rows = await database.read(read_rows)
    uploads = await stored.of_uploads(rows)
    for upload_id, _, flushed in rows.open_uploads:
        assert upload_id in uploads, f"invariant 6: the bytes of {upload_id}, which is open, are gone"
        held = uploads[upload_id]
        assert held.sound == held.present, f"invariant 6: {upload_id} lost bytes of {held.present - held.sound}"
        assert held.tail_is_sound, f"invariant 6: {upload_id} lost bytes of {held.tail}"
        assert held.received == flushed, f"invariant 7: {upload_id} has {held.received} stored, {flushed} flushed"
        known = await held_of(redis, upload_keys(0, upload_id).up)
        assert known.received == known.flushed == flushed, (
            f"invariant 7: {upload_id} has {flushed} flushed, in Redis {known}"
        )
    await check_pending(redis, {upload_id: held.shape for upload_id, held in uploads.items()})
    await stored.check_rest(rows, uploads)
    return accounts


async def read_rows(connection: AsyncConnection) -> Rows:
    """As of now."""
    uploads, blobs = models.upload.c, models.blob.c
    open_uploads = select(uploads.id, uploads.temp_path, uploads.flushed_bytes).where(uploads.state == "OPEN")
    used = select(blobs.sha256, blobs.size, blobs.location).where(blobs.refs > 0)
    return Rows(
        [(row[0], row[1], row[2]) for row in await connection.execute(open_uploads)],
        [(row[0], row[1], row[2]) for row in await connection.execute(used)],
    )
