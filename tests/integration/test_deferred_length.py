"""Uploads whose length is told late: room is reserved before their bytes come, and given back to the byte."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.at_rest import check_at_rest, rests_within
from tests.support.bodies import Arrived
from tests.support.content import KIB, Content
from tests.support.dying import Death, dying
from tests.support.invariants import Account
from tests.support.stack import Stack
from tests.support.streams import Sending
from tests.support.waiting import PATIENCE_SECONDS
from uploader.crashpoints import NAMES
from uploader.database import queries
from uploader.domain.upload import Upload
from uploader.errors import FileTooLarge, OffsetMismatch, QuotaExceeded, SizeMismatch, StorageFull, UploadBusy
from uploader.service import append as service_append
from uploader.service.results import Appended, Complete, Opening, Target, UploadStatus
from uploader.storage.local import chunks

CHUNK = 64 * KIB
CONTENT = Content(5 * CHUNK + 1000, name="streamed.bin")
STEP = 2 * CHUNK


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_append, "FIRST_STEP_BYTES", STEP)


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    async with make_stack(
        max_file_size_bytes=10_000 * CHUNK,
        merge_wait_seconds=10.0,
        quiet_interval_seconds=0.05,
        claim_lease_seconds=0.5,
    ) as made:
        yield made


async def opened(stack: Stack, user_id: str = "alice", content: Content = CONTENT) -> Upload:
    status: Any = await stack.services.openings.open(
        Opening(
            user_id=user_id,
            md5=None,
            sha256=None,
            name=content.name,
            size=0,
            chunk_size=CHUNK,
            instant=False,
            length_known=False,
        )
    )
    assert isinstance(status, UploadStatus)
    return status.upload


def target(upload: Upload) -> Target:
    return Target(upload.user_id, upload_id=upload.id)


async def append(stack: Stack, upload: Upload, start: int, end: int, **said: Any) -> Appended | Complete:
    sending = Sending.of(stack, CONTENT.data[start:end], told=said.pop("told", True))
    told: Any = await stack.services.appends.append(target(upload), start, sending.source, **said)
    assert isinstance(told, Appended | Complete)
    return told


@pytest.mark.parametrize("told", [True, False])
async def test_a_stream_of_no_length_becomes_the_file(stack: Stack, told: bool) -> None:
    upload = await opened(stack)
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}
    start = 0
    for end in (1, 700, CHUNK - 1, CHUNK, CHUNK + 5, 3 * CHUNK, 4 * CHUNK + 17):
        appended = await append(stack, upload, start, end, told=told)
        assert isinstance(appended, Appended)
        assert appended.offset == end == await stored_bytes(stack, upload)
        assert appended.upload.size >= end
        start = end
    complete = await append(stack, upload, start, CONTENT.size, told=told, ends=True)
    assert isinstance(complete, Complete)
    assert (complete.file.sha256, complete.file.md5, complete.created) == (CONTENT.sha256, CONTENT.md5, True)
    assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}


# Reserving


async def test_room_is_reserved_before_the_bytes_in_steps_that_grow(stack: Stack) -> None:
    upload = await opened(stack)
    reserved = []
    for start in range(0, 5 * CHUNK, CHUNK):
        await append(stack, upload, start, start + CHUNK)
        reserved.append((await stack.usage("alice"))["reserved"])
    assert reserved == [STEP, STEP, STEP + 2 * STEP, 3 * STEP, 3 * STEP]
    assert await in_order(stack) == {"alice": Account(0, 5 * CHUNK, 3 * STEP)}


async def test_an_upload_that_fits_the_quota_to_the_byte_is_taken_and_one_more_byte_is_not(stack: Stack) -> None:
    await stack.client_of("edge", total_space=CONTENT.size)
    upload = await opened(stack, "edge")
    sending = Sending.of(stack, CONTENT.data, told=False)
    appended = await stack.services.appends.append(target(upload), 0, sending.source)
    assert isinstance(appended, Appended)
    assert (appended.offset, appended.upload.size) == (CONTENT.size, CONTENT.size)
    for told in (True, False):
        with pytest.raises(QuotaExceeded) as refused:
            await stack.services.appends.append(target(upload), CONTENT.size, Sending.of(stack, b"x", told=told).source)
        assert refused.value.fields["requested"] == 1
        assert refused.value.fields["reserved"] == refused.value.fields["total_space"] == CONTENT.size
    with pytest.raises(QuotaExceeded):
        await stack.services.appends.append(
            target(upload), CONTENT.size, Sending.of(stack, b"").source, length=CONTENT.size + 1
        )
    assert isinstance(await append(stack, upload, CONTENT.size, CONTENT.size, ends=True), Complete)
    assert await in_order(stack) == {"alice": Account(), "edge": Account(finished=CONTENT.size)}


async def test_two_that_grow_at_once_reserve_no_byte_too_many(stack: Stack) -> None:
    """Each takes what it needs, until there is no more; what was refused is not there."""
    await stack.client_of("edge", total_space=8 * CHUNK)
    uploads = [await opened(stack, "edge") for _ in range(2)]
    sources = [Sending.of(stack, CONTENT.data, told=False).source for _ in uploads]
    appending = [
        stack.services.appends.append(target(upload), 0, source)
        for upload, source in zip(uploads, sources, strict=True)
    ]
    outcomes = await asyncio.gather(*appending, return_exceptions=True)
    assert any(isinstance(outcome, QuotaExceeded) for outcome in outcomes)
    assert all(isinstance(outcome, QuotaExceeded | Appended) for outcome in outcomes)
    accounts = await in_order(stack)
    stored = [await stored_bytes(stack, upload) for upload in uploads]
    assert accounts["edge"].unfinished == sum(stored) > 4 * CHUNK
    for upload in uploads:
        await stack.services.appends.cancel(target(upload))
    assert await in_order(stack) == {"alice": Account(), "edge": Account()}


async def test_no_upload_becomes_larger_than_a_file_may_be(make_stack: MakeStack) -> None:
    async with make_stack(max_file_size_bytes=2 * CHUNK + 10) as stack:
        upload = await opened(stack)
        for source in (Sending.of(stack, CONTENT.data[: 2 * CHUNK + 11], told=told).source for told in (True, False)):
            with pytest.raises(FileTooLarge) as refused:
                await stack.services.appends.append(target(upload), 0, source)
            assert refused.value.fields["limit"] == 2 * CHUNK + 10
            if await stored_bytes(stack, upload):
                break
        with pytest.raises(FileTooLarge):
            await stack.services.appends.append(
                target(upload), 2 * CHUNK, Sending.of(stack, b"").source, length=2 * CHUNK + 11
            )
        appended = await append(stack, upload, 2 * CHUNK, 2 * CHUNK + 10)
        assert isinstance(appended, Appended), "as long as it may be, and nobody said that this is its end"
        assert isinstance(await append(stack, upload, 2 * CHUNK + 10, 2 * CHUNK + 10, ends=True), Complete)


async def test_a_full_disk_refuses_a_step_and_then_what_is_wanted(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload, asked = await opened(stack), []

    async def check(size: int) -> None:
        asked.append(size)
        if size > 1000:
            raise StorageFull

    monkeypatch.setattr(stack.services.appends.deferred_length.admission, "check", check)
    appended = await append(stack, upload, 0, 1000)
    assert isinstance(appended, Appended)
    assert (appended.upload.size, asked) == (1000, [STEP, 1000])
    with pytest.raises(StorageFull):
        await append(stack, upload, 1000, 3000)
    assert await in_order(stack) == {"alice": Account(0, 1000, 1000)}


# Telling


@pytest.mark.parametrize("stored", [0, 700, CHUNK, 2 * CHUNK + 30])
async def test_what_was_reserved_beyond_the_length_is_given_back(stack: Stack, stored: int) -> None:
    upload = await opened(stack)
    await append(stack, upload, 0, stored)
    told = await append(stack, upload, stored, stored, length=stored + 10)
    assert isinstance(told, Appended)
    assert (told.offset, told.upload.length_known) == (stored, True)
    assert await in_order(stack) == {"alice": Account(0, stored, stored + 10)}
    complete = await append(stack, upload, stored, stored + 10, length=stored + 10)
    assert isinstance(complete, Complete)
    assert complete.file.sha256 == hashlib.sha256(CONTENT.data[: stored + 10]).hexdigest()
    assert await in_order(stack) == {"alice": Account(finished=stored + 10)}


async def test_a_length_is_told_once_and_never_less_than_is_there(stack: Stack) -> None:
    upload = await opened(stack)
    await append(stack, upload, 0, CHUNK + 5)
    for wrong in (0, CHUNK, CHUNK + 4):
        with pytest.raises(SizeMismatch):
            await append(stack, upload, CHUNK + 5, CHUNK + 5, length=wrong)
    await append(stack, upload, CHUNK + 5, CHUNK + 5, length=CONTENT.size)
    for _ in range(2):
        await append(stack, upload, CHUNK + 5, CHUNK + 5, length=CONTENT.size)
        with pytest.raises(SizeMismatch):
            await append(stack, upload, CHUNK + 5, CHUNK + 5, length=CONTENT.size + 1)
        with pytest.raises(SizeMismatch):
            await append(stack, upload, CHUNK + 5, CHUNK + 6, ends=True)
    with pytest.raises(SizeMismatch):
        await append(stack, upload, CHUNK + 5, CHUNK + 6, ends=True, told=False)
    complete = await append(stack, upload, CHUNK + 6, CONTENT.size, ends=True, told=False)
    assert isinstance(complete, Complete)
    assert await append(stack, upload, CONTENT.size, CONTENT.size, length=CONTENT.size) == Complete(
        file=complete.file, created=False
    )
    with pytest.raises(SizeMismatch):
        await append(stack, upload, CONTENT.size, CONTENT.size, length=CONTENT.size + 1)


async def test_of_many_who_tell_a_length_at_once_one_is_heard(stack: Stack) -> None:
    upload = await opened(stack)
    await append(stack, upload, 0, 100)

    async def tell(length: int) -> int:
        try:
            await append(stack, upload, 100, 100, length=length)
        except (SizeMismatch, OffsetMismatch, UploadBusy):
            return 0
        return length

    heard = set(await asyncio.gather(*map(tell, range(200, 206)))) - {0}
    (row,) = await rows(stack)
    assert row.length_known
    assert heard <= {row.size} < set(range(200, 206))
    assert await in_order(stack) == {"alice": Account(0, 100, row.size)}


async def test_once_the_length_is_told_chunks_come_in_the_native_way_too(stack: Stack) -> None:
    upload = await opened(stack)
    url = f"/uploads/{upload.id}"
    await append(stack, upload, 0, CHUNK + 500)
    for refused in (
        await stack.client.put(f"{url}/chunks/1", content=CONTENT.chunk(1)),
        await stack.client.put(f"{url}/chunks/0", content=CONTENT.chunk(0)),
        await stack.client.patch(url, json={"md5": CONTENT.md5}),
    ):
        assert (refused.status_code, refused.json()["code"]) == (409, "length-unknown")
    assert (await stack.client.post(f"{url}/merge")).status_code == 409
    await append(stack, upload, CHUNK + 500, CHUNK + 500, length=CONTENT.size)
    for number in (5, 1, 2, 3):
        assert (await stack.client.put(f"{url}/chunks/{number}", content=CONTENT.chunk(number))).status_code == 200
    response = await stack.client.put(f"{url}/chunks/4", content=CONTENT.chunk(4))
    assert response.json()["file"]["sha256"] == CONTENT.sha256
    assert await in_order(stack) == {"alice": Account(finished=CONTENT.size)}


# What others see of it


async def test_its_status_tells_what_is_reserved_and_that_the_length_is_not_known(stack: Stack) -> None:
    upload = await opened(stack)
    await append(stack, upload, 0, CHUNK + 500)
    (listed,) = (await stack.client.get("/uploads")).json()["uploads"]
    status = (await stack.client.get(f"/uploads/{upload.id}")).json()["upload"]
    assert {**listed, "expires_at": None} == {**status, "expires_at": None}
    facts = ("size", "length_known", "chunk_count", "received_bytes", "missing", "state", "md5")
    assert [status[fact] for fact in facts] == [STEP, False, 2, CHUNK + 500, [[1, 1]], "uploading", None]
    await append(stack, upload, CHUNK + 500, CHUNK + 500, length=CONTENT.size)
    known = (await stack.client.get(f"/uploads/{upload.id}")).json()["upload"]
    assert "length_known" not in known
    assert (known["size"], known["chunk_count"], known["missing"]) == (CONTENT.size, 6, [[1, 5]])


@pytest.mark.parametrize("end", ["cancel", "expire"])
async def test_whatever_ends_it_gives_all_back(stack: Stack, end: str) -> None:
    upload = await opened(stack)
    await append(stack, upload, 0, 2 * CHUNK + 500)
    assert await in_order(stack) == {"alice": Account(0, 2 * CHUNK + 500, 3 * STEP)}
    if end == "cancel":
        assert (await stack.client.delete(f"/uploads/{upload.id}")).status_code == 204
    else:
        assert await stack.services.closers.expire(upload, idle_seconds=-60)
    assert await in_order(stack) == {"alice": Account()}
    assert stack.bytes_on_disk() == []


@pytest.mark.parametrize("known", [False, True])
async def test_what_redis_lost_is_rebuilt(stack: Stack, known: bool) -> None:
    upload = await opened(stack)
    redis: Any = stack.services.redis
    await append(stack, upload, 0, CHUNK + 500)
    await in_order(stack)
    await redis.flushall()
    await append(stack, upload, CHUNK + 500, 2 * CHUNK + 7, length=CONTENT.size if known else None)
    await in_order(stack)
    await redis.flushall()
    assert await stored_bytes(stack, upload) == 2 * CHUNK + 7
    reserved = CONTENT.size if known else 3 * STEP
    assert await in_order(stack) == {"alice": Account(0, 2 * CHUNK + 7, reserved)}
    assert isinstance(await append(stack, upload, 2 * CHUNK + 7, CONTENT.size, ends=True), Complete)


async def test_bytes_that_went_bad_are_withdrawn_and_come_again(stack: Stack) -> None:
    upload = await opened(stack)
    await append(stack, upload, 0, 3 * CHUNK + 500)
    (row,) = await rows(stack)
    await stack.services.closers.withdraw(row, [1])
    assert await in_order(stack) == {"alice": Account(0, 2 * CHUNK, 3 * STEP)}
    with pytest.raises(SizeMismatch):  # a chunk is there beyond
        await append(stack, upload, CHUNK, CHUNK, length=3 * CHUNK - 1)
    with pytest.raises(OffsetMismatch) as refused:  # and is not received again
        await append(stack, upload, CHUNK, CONTENT.size, ends=True)
    assert refused.value.fields["offset"] == 3 * CHUNK
    assert isinstance(await append(stack, upload, 3 * CHUNK, CONTENT.size, ends=True), Complete)


async def test_a_damaged_map_is_made_anew_and_no_byte_is_lost(stack: Stack) -> None:
    upload = await opened(stack)
    await append(stack, upload, 0, 2 * CHUNK + 500)
    chunk_map = stack.data / upload.place / "map"
    for damage in (b"\xff" * 8, b""):
        with chunk_map.open("r+b") as file:
            file.write(damage)
            file.truncate(chunks.MAP_RECORDS_OFFSET + 800 if not damage else 200_000)
        assert await stored_bytes(stack, upload) == 2 * CHUNK + 500
        assert chunk_map.stat().st_size == chunks.map_record_offset(10_001)
    assert isinstance(await append(stack, upload, 2 * CHUNK + 500, CONTENT.size, ends=True), Complete)


# Crashes


@pytest.mark.parametrize("ends_within", [True, False])
async def test_a_worker_that_dies_at_any_point_loses_nothing(stack: Stack, ends_within: bool) -> None:
    """Neither what was acknowledged, nor a byte of the quota; also where the client never comes back."""
    content = CONTENT.data[: 2 * CHUNK + (30 if ends_within else 0)]
    names, last = set(), ""
    for at in range(1, 60):
        upload, acknowledged, died = await opened(stack), 0, False
        with dying(at):
            try:
                for end in (700, CHUNK + 9, len(content)):
                    source = Arrived(content[acknowledged:end])
                    await stack.services.appends.append(target(upload), acknowledged, source)
                    acknowledged = end
                await stack.services.appends.append(target(upload), acknowledged, Arrived(b""), length=len(content))
            except Death as death:
                died = True
                last = str(death)
                names.add(last)
        if not died or last.startswith("clear."):  # from there on it ends as every upload
            assert {name for name in NAMES if name.startswith(("grow.", "length."))} <= names
            return
        if last.startswith("length."):
            await rests_within(PATIENCE_SECONDS, partial(nothing_waits_for_its_client, stack))
        else:
            await stack.services.appends.status(target(upload))
        await in_order(stack)
        for open_upload in await rows(stack):
            stored = await stored_bytes(stack, open_upload)
            assert stored >= acknowledged
            told: Any = await stack.services.appends.status(target(upload))
            if isinstance(told, Appended):
                rest = Arrived(content[told.offset :])
                assert isinstance(
                    await stack.services.appends.append(target(upload), told.offset, rest, ends=True), Complete
                )
        assert await in_order(stack) == {"alice": Account(finished=len(content))}
        file = await stack.services.uploads.find(target(upload))
        assert isinstance(file, Complete)
        assert file.file.sha256 == hashlib.sha256(content).hexdigest()
        await stack.client.delete(f"/me/files/{file.file.id}")
    raise AssertionError("they never end")


# Looking


async def stored_bytes(stack: Stack, upload: Upload) -> int:
    told = await stack.services.appends.status(target(upload))
    assert isinstance(told, Appended)
    return told.offset


async def rows(stack: Stack) -> list[Upload]:
    return await stack.services.database.read(queries.all_open_uploads, "", 9)


async def nothing_waits_for_its_client(stack: Stack) -> None:
    """Here a length is told when all bytes are there: jobs merge it."""
    await do_jobs(stack)
    assert not any(row.length_known for row in await rows(stack))


async def do_jobs(stack: Stack) -> None:
    for queue in stack.services.pending.flush_queues:
        await stack.services.flushing.flush_due(queue)
    for queue in stack.services.pending.merge_queues:
        await asyncio.gather(*await stack.services.merging.start_due(queue, 9))


async def in_order(stack: Stack) -> dict[str, Account]:
    """The accounts, once all is flushed and nothing is wrong anywhere."""
    services = stack.services
    redis: Any = services.redis

    async def check() -> dict[str, Account]:
        await do_jobs(stack)
        return await check_at_rest(services.database, redis, stack.data)

    await services.storage.drain()
    accounts = await rests_within(PATIENCE_SECONDS, check)
    assert (await services.reconciling.reconcile()).drifts == []
    return accounts
