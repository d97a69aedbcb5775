"""What keeps a bucket in order, on a real gateway: how often it asks, where it goes on, and what a dead process left."""

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.integration.test_cleanup import close_without_tidying
from tests.support.background import collector_of, open_with_chunks, reconciler_of, upload_of
from tests.support.buckets import requests
from tests.support.clock import ManualClock
from tests.support.content import Content
from tests.support.gateways import PART_BYTES, settings_of
from tests.support.stack import Stack
from uploader.addresses import BucketAddress
from uploader.database import models
from uploader.service import cleanup, reconcile
from uploader.service.cleanup import Cleaned
from uploader.service.reconcile import Kind, Reconciling
from uploader.storage.base import BytesBody
from uploader.storage.s3 import bucket as buckets
from uploader.storage.s3.store import S3Store

CONTENT = Content(3 * PART_BYTES, chunk_size=PART_BYTES)
# Of a list, and of all.
PAGE, CONTENTS = 5, 48
PAGES = math.ceil(CONTENTS / PAGE)
# Whatever there is: the clock of the store, the multipart uploads, and lists that end.
FEW = 6


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def make_bucket_stack(make_stack: MakeStack, s3_address: BucketAddress, clock: ManualClock) -> MakeStack:
    def make(**more: Any) -> Any:
        settings = settings_of(s3_address) | {"min_chunk_size_bytes": PART_BYTES}
        return make_stack(clock=clock, **(settings | more))

    return make


@pytest.fixture
async def stack(make_bucket_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stack]:
    monkeypatch.setattr(buckets, "_AT_ONCE", PAGE)
    monkeypatch.setattr(reconcile, "_BLOBS_PER_SECOND", 10**9)
    async with make_bucket_stack() as made:
        yield made


def bucket_of(stack: Stack) -> buckets.Bucket:
    assert isinstance(stack.services.storage, S3Store)
    return stack.services.storage._bucket


async def fill(stack: Stack, count: int = CONTENTS) -> list[str]:
    """Contents of a byte each, half of them made by uploads; their keys in order."""
    keys = sorted(f"u/{number:032x}.{number:016x}" if number % 2 else f"w/{number:032x}" for number in range(count))
    rows = [
        {"sha256": f"{number:064x}", "size": 1, "refs": 1, "location": key, "created_at": stack.services.clock.now()}
        for number, key in enumerate(reversed(keys))  # in another order than their keys
    ]
    for key in keys:
        bucket_of(stack).put(key, BytesBody(b"0"))
    async with stack.services.database.engine.begin() as connection:
        await connection.execute(models.blob.insert(), rows)
    return keys


async def blob_drifts(stack: Stack) -> list[tuple[Kind, str]]:
    found = await stack.services.reconciling.reconcile()
    kinds = (Kind.BLOB_BYTES, Kind.STRAY_BLOB, Kind.LEFTOVER)
    return sorted((drift.kind, drift.subject) for drift in found.drifts if drift.kind in kinds)


async def test_contents_are_compared_by_lists_and_only_what_they_lack_is_asked_for(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "_SETTLED_SECONDS", -60)
    monkeypatch.setattr(reconcile, "_STRETCH", 3)
    keys = await fill(stack)
    with requests() as asked:
        assert await blob_drifts(stack) == []
    assert asked["HeadObject"] == 0
    assert asked.total() <= PAGES + FEW, asked

    lost, altered = [keys[0], keys[20], keys[-1], *keys[25:38]], keys[10]
    bucket_of(stack).delete(lost)
    bucket_of(stack).put(altered, BytesBody(b"longer"))
    bucket_of(stack).put("w/stray", BytesBody(b"0"))
    async with stack.services.database.engine.begin() as connection:
        unplaced = {"sha256": "f" * 64, "size": 1, "refs": 1, "created_at": stack.services.clock.now()}
        await connection.execute(models.blob.insert(), unplaced)
    with requests() as asked:
        drifts = await blob_drifts(stack)
    of_keys = {key: f"{number:064x}" for number, key in enumerate(reversed(keys))}
    wrong = sorted([*(of_keys[key] for key in [*lost, altered]), "f" * 64])
    assert [subject for kind, subject in drifts if kind is Kind.BLOB_BYTES] == wrong
    assert [kind for kind, _ in drifts if kind is not Kind.BLOB_BYTES] == []
    assert asked["HeadObject"] == len(lost) + 1
    assert asked["ListObjectsV2"] <= PAGES + FEW


async def test_a_cleanup_lists_the_bucket_once_and_tells_what_is_too_young(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(stack)
    bucket_of(stack).put("w/0123.stray", BytesBody(bytes(1234)))
    with requests() as asked:
        cleaned = await stack.services.cleanup.clean()
    assert (cleaned, cleaned.unsettled_bytes) == (Cleaned(unsettled=1), 1234)
    assert asked.total() <= PAGES + FEW, asked
    monkeypatch.setattr(cleanup, "_SETTLED_SECONDS", -60)
    assert (await stack.services.cleanup.clean()).blobs == 1
    assert [found.place for found in await stack.services.trash.entries()] == ["w/0123.stray"]


async def test_a_walk_that_died_is_ended_by_another_worker_from_where_it_was(
    stack: Stack, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = await fill(stack)
    bucket_of(stack).delete([keys[0], keys[-1]])
    monkeypatch.setattr(reconcile, "_REMEMBER_INTERVAL_SECONDS", -1)
    pace, paced = Reconciling._pace, 0

    async def die(self: Reconciling, *more: Any) -> float:
        nonlocal paced
        paced += 1
        began = await pace(self, *more)
        if paced == PAGES // 2:
            raise SystemError
        return began

    first, second = reconciler_of(stack), reconciler_of(stack)
    with monkeypatch.context() as dying, requests() as asked:
        dying.setattr(Reconciling, "_pace", die)
        with pytest.raises(SystemError):
            await first.run_once()
        await second.run_once()
    half = asked["ListObjectsV2"]
    assert half <= PAGES // 2 + 3
    assert await stack.services.reconciling.last() is None
    clock.advance(61)
    with requests() as asked:
        await second.run_once()
    assert half + asked["ListObjectsV2"] <= PAGES + FEW
    last = await stack.services.reconciling.last()
    assert last is not None
    assert last.drifts == 2 + CONTENTS, "none has a file; with what was found before"
    with requests() as asked:
        await first.run_once()
    assert not asked.total(), "it is done for this hour"


async def test_what_a_dead_node_left_in_the_bucket_goes(stack: Stack, clock: ManualClock) -> None:
    """The parts of an upload, and the object of one that has a single chunk."""
    single = Content(1000, seed=3)
    await stack.open(single)
    of_single = await upload_of(stack, single)
    await stack.services.storage.hold_chunk(of_single, 0, BytesBody(single.data))
    for upload in (of_single, await open_with_chunks(stack, CONTENT, 0, 1)):
        await close_without_tidying(stack, upload)
    clock.advance(61)
    await collector_of(stack).run_once()
    left = [stat.key for prefix in ("u/", "w/") for batch in bucket_of(stack).list_keys(prefix) for stat in batch]
    left += [key for batch in bucket_of(stack).list_multiparts() for key, _, _ in batch]
    assert left == []
