"""Streams that are appended to uploads: cut into chunks and a tail, whatever ends them; one at a time, the newest first;
with native chunks in the same uploads."""

import asyncio
import errno
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from tests.conftest import MakeStack
from tests.support.at_rest import OnDisk, check_at_rest, read_directory
from tests.support.content import KIB, Content
from tests.support.dying import Death, dying
from tests.support.faults import Call, cancelling, paused_call
from tests.support.held import held_of
from tests.support.invariants import Account, Shape, check_pending, checked_accounts
from tests.support.stack import Stack
from tests.support.streams import Sending
from tests.support.waiting import eventually
from uploader.accounting.keys import upload_keys
from uploader.domain.upload import Upload
from uploader.errors import (
    BodyTimeout,
    FileTooLarge,
    OffsetMismatch,
    StorageFull,
    UploadBusy,
    UploadGone,
    UploadNotFound,
)
from uploader.http.bodies.body import Reread
from uploader.service.results import Appended, Complete, Opening, Target, UploadStatus
from uploader.storage import disk
from uploader.storage.local import chunks, locks

CHUNK = 64 * KIB
CONTENT = Content(5 * CHUNK + 1000, name="streamed.bin")


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    async with make_stack(body_idle_timeout_seconds=2.0, merge_wait_seconds=10.0) as made:
        yield made


async def opened(stack: Stack, content: Content = CONTENT) -> Upload:
    status: Any = await stack.services.openings.open(
        Opening(
            user_id="alice",
            md5=None,
            sha256=None,
            name=content.name,
            size=content.size,
            chunk_size=content.chunk_size,
            instant=False,
        )
    )
    assert isinstance(status, UploadStatus)
    return status.upload


def target(upload: Upload) -> Target:
    return Target(upload.user_id, upload_id=upload.id)


async def append(stack: Stack, upload: Upload, start: int, end: int, *, told: bool = True) -> int | Complete:
    """Where the upload ends then, or its file."""
    sending = Sending.of(stack, CONTENT.data[start:end], told=told)
    match await stack.services.appends.append(target(upload), start, sending.source):
        case Appended(offset=offset):
            return offset
        case Complete() as complete:
            return complete
        case other:
            raise AssertionError(other)


async def offset_of(stack: Stack, upload: Upload) -> int:
    status = await stack.services.appends.status(target(upload))
    assert isinstance(status, Appended)
    return status.offset


def on_disk(stack: Stack, upload: Upload) -> OnDisk:
    found = read_directory(stack.data / upload.place)
    assert found.tail_is_sound
    assert found.sound == found.present
    return found


async def in_redis(stack: Stack, upload: Upload) -> int:
    redis: Any = stack.services.redis
    await check_pending(redis, {upload.id: Shape(upload.size, upload.chunk_size)})
    return (await held_of(redis, upload_keys(0, upload.id).up)).received


async def content_of(stack: Stack, complete: Complete) -> bytes:
    response = await stack.client.get(f"/me/files/{complete.file.id}/content")
    return bytes(response.content)


@pytest.mark.parametrize("told", [True, False])
async def test_a_stream_in_any_pieces_becomes_the_file(stack: Stack, told: bool) -> None:
    upload = await opened(stack)
    start = 0
    for end in (1, 700, CHUNK - 1, CHUNK, CHUNK + 5, 3 * CHUNK, 4 * CHUNK + 17):
        assert await append(stack, upload, start, end, told=told) == end
        assert await offset_of(stack, upload) == end == await in_redis(stack, upload) == on_disk(stack, upload).received
        start = end
    assert await append(stack, upload, start, start) == start, "nothing may be appended, too"
    complete = await append(stack, upload, start, CONTENT.size, told=told)
    assert isinstance(complete, Complete)
    assert (complete.file.sha256, complete.file.md5, complete.created) == (CONTENT.sha256, CONTENT.md5, True)
    assert await content_of(stack, complete) == CONTENT.data
    assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}
    again = await stack.services.appends.status(target(upload))
    assert again == Complete(file=complete.file, created=False)


async def test_appends_and_native_chunks_meet_in_one_upload(stack: Stack) -> None:
    """Where the next append begins is told after what is there already, which a stream neither repeats nor passes."""
    upload = await opened(stack)
    url = f"/uploads/{upload.id}/chunks"
    for number in (1, 3):
        await stack.client.put(f"{url}/{number}", content=CONTENT.chunk(number))
    assert await append(stack, upload, 0, 100) == 100
    assert (await stack.client.get(f"/uploads/{upload.id}")).json()["upload"]["received_bytes"] == 2 * CHUNK + 100
    response = await stack.client.put(f"{url}/0", content=b"?" + CONTENT.chunk(0)[1:])
    assert (response.status_code, response.json()["code"]) == (409, "bytes-conflict")
    with pytest.raises(OffsetMismatch) as refused:
        await append(stack, upload, 100, CHUNK + 50)
    assert refused.value.fields["offset"] == 2 * CHUNK
    assert await in_redis(stack, upload) == 3 * CHUNK
    assert await append(stack, upload, 2 * CHUNK, 2 * CHUNK + 9) == 2 * CHUNK + 9
    assert (await stack.client.put(f"{url}/2", content=CONTENT.chunk(2))).status_code == 200
    assert await offset_of(stack, upload) == 4 * CHUNK
    assert (await stack.client.put(f"{url}/5", content=CONTENT.chunk(5))).status_code == 200
    with pytest.raises(OffsetMismatch) as refused:
        await append(stack, upload, 4 * CHUNK, CONTENT.size)
    assert refused.value.fields["offset"] == CONTENT.size
    complete = await append(stack, upload, CONTENT.size, CONTENT.size)
    assert isinstance(complete, Complete)
    assert await content_of(stack, complete) == CONTENT.data


async def test_what_does_not_fit_is_refused_and_changes_nothing(stack: Stack) -> None:
    upload = await opened(stack)
    await append(stack, upload, 0, 100)
    for start, end in ((0, 10), (99, 109), (101, 111), (CHUNK, CHUNK + 10), (CHUNK, 2 * CHUNK)):
        with pytest.raises(OffsetMismatch) as refused:
            await append(stack, upload, start, end)
        assert refused.value.fields["offset"] == 100
    for told, left in ((True, 100), (False, 5 * CHUNK)):
        sending = Sending.of(stack, CONTENT.data[100:] + b"?", told=told)
        with pytest.raises(FileTooLarge):
            await stack.services.appends.append(target(upload), 100, sending.source)
        assert await offset_of(stack, upload) == left, "the last chunk, which would make the file, is not stored"
    with pytest.raises(UploadNotFound):
        await stack.services.appends.append(Target("bob", upload_id=upload.id), 100, Sending.of(stack, b"").source)


# What ends a stream


@pytest.mark.parametrize("ending", ["disconnect", "time-out", "cancelled", "newer"])
@pytest.mark.parametrize("sent", [700, CHUNK, 2 * CHUNK + 700])
async def test_whatever_ends_a_stream_what_came_of_it_stays(stack: Stack, ending: str, sent: int) -> None:
    if ending == "time-out":
        stack.app.intake._idle_timeout_seconds = 0.05
    upload = await opened(stack)
    sending = Sending(stack, CONTENT.size)
    appending = asyncio.create_task(stack.services.appends.append(target(upload), 0, sending.source))
    sending.send(CONTENT.data[:sent])
    await eventually(sending.is_taken)
    expected: type[BaseException] = ClientDisconnect
    if ending == "disconnect":
        sending.leave()
    elif ending == "time-out":
        expected = BodyTimeout
    elif ending == "cancelled":
        await asyncio.sleep(0)
        appending.cancel()
        expected = asyncio.CancelledError
    else:
        expected = UploadBusy
        assert await offset_of(stack, upload) == sent
    with pytest.raises(expected):
        await appending
    assert await offset_of(stack, upload) == sent == await in_redis(stack, upload)
    complete = await append(stack, upload, sent, CONTENT.size)
    assert isinstance(complete, Complete)
    assert complete.file.sha256 == CONTENT.sha256


async def test_a_stream_that_is_cancelled_after_its_last_byte_is_kept_and_ends(stack: Stack) -> None:
    """While it is asked whether more comes than the upload has."""
    upload = await opened(stack)
    sending = Sending(stack)
    appending = asyncio.create_task(stack.services.appends.append(target(upload), 0, sending.source))
    sending.send(CONTENT.data)
    await eventually(sending.is_taken)
    await eventually(partial(holds, stack, upload, 5 * CHUNK))
    await asyncio.sleep(0)
    appending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await appending
    assert on_disk(stack, upload).received == CONTENT.size == await in_redis(stack, upload)


async def holds(stack: Stack, upload: Upload, length: int) -> bool:
    return on_disk(stack, upload).received == length


async def test_a_body_that_is_here_lets_go_too_while_it_is_stored(stack: Stack) -> None:
    """As one with a checksum: the newest request wins."""
    upload = await opened(stack)
    whole = stack.app.intake.whole("alice", memoryview(CONTENT.data))
    assert whole is not None
    with paused_call("pwrite", only=lambda path: path.name == "data") as pause:
        appending = asyncio.create_task(stack.services.appends.append(target(upload), 0, Reread(whole)))
        assert await asyncio.to_thread(pause.reached.wait, 10)
        asking = asyncio.create_task(offset_of(stack, upload))
        with (stack.data / upload.place / "map").open("r+b") as chunk_map:
            await eventually(partial(is_claimed, chunk_map.fileno()))
        pause.go_on.set()
        with pytest.raises(UploadBusy):
            await appending
    whole.close()
    offset = await asking
    assert 0 < offset < CONTENT.size
    assert isinstance(await append(stack, upload, offset, CONTENT.size), Complete)


async def is_claimed(descriptor: int) -> bool:
    return disk.is_locked(descriptor, chunks.CLAIM_OFFSET, 1)


@pytest.mark.parametrize("then", [0, errno.ENOSPC])
@pytest.mark.parametrize("where", ["spool", "temp"])
async def test_a_stream_that_is_cancelled_at_any_call_keeps_what_it_tells(
    make_stack: MakeStack, where: str, then: int
) -> None:
    """In the spool, where a part is gathered, and where it is stored; also while the disk refuses it."""
    content = Content(700 * KIB, chunk_size=600 * KIB)
    async with make_stack(body_budget_bytes=256 * KIB, body_idle_timeout_seconds=5.0) as stack:
        place = stack.data / where

        def chosen(call: Call) -> bool:
            return call.needs_room and call.path.is_relative_to(place)

        for at in range(1, 60):
            upload = await opened(stack, content)
            sending = Sending(stack, 650 * KIB)
            sending.send(content.data[: 650 * KIB])
            appending = asyncio.create_task(stack.services.appends.append(target(upload), 0, sending.source))
            with cancelling(appending, at=at, only=chosen, then=then) as fault:
                await eventually(partial(is_taken_or_ended, sending, appending))
                appending.cancel()
                with pytest.raises((asyncio.CancelledError, StorageFull)):
                    await appending
            assert not stack.services.appends.concurrency._counts
            assert not stack.app.intake._budget._charged
            offset = await offset_of(stack, upload)
            assert offset == await in_redis(stack, upload) == on_disk(stack, upload).received
            stored = (stack.data / upload.place / "data").read_bytes()[:offset]
            assert stored == content.data[:offset]
            if where == "spool" and not then:
                assert offset > 0
            await stack.services.appends.cancel(target(upload))
            if not fault.hits:
                assert at > 3
                return
    raise AssertionError("they never end")


async def is_taken_or_ended(sending: Sending, appending: "asyncio.Task[Any]") -> bool:
    return appending.done() or await sending.is_taken()


async def test_an_old_request_that_goes_on_late_appends_nothing(stack: Stack, make_stack: MakeStack) -> None:
    """In another process: a store of its own, as each has it."""
    upload = await opened(stack)
    old = Sending(stack, CONTENT.size)
    appending = asyncio.create_task(stack.services.appends.append(target(upload), 0, old.source))
    old.send(CONTENT.data[:100])
    await eventually(old.is_taken)
    async with make_stack() as other:
        assert await append(other, upload, await offset_of(other, upload), 200) == 200
        old.send(CONTENT.data[100:])
        with pytest.raises(UploadBusy):
            await appending
        assert await offset_of(other, upload) == 200
        assert await in_redis(other, upload) == 200


async def test_an_upload_that_ends_meanwhile_takes_nothing_more(stack: Stack) -> None:
    upload = await opened(stack)
    sending = Sending(stack, CONTENT.size)
    appending = asyncio.create_task(stack.services.appends.append(target(upload), 0, sending.source))
    sending.send(CONTENT.data[: CHUNK + 10])
    await eventually(sending.is_taken)
    assert (await stack.client.delete(f"/uploads/{upload.id}")).status_code == 204
    sending.send(CONTENT.data[CHUNK + 10 :])
    with pytest.raises(UploadGone):
        await appending
    with pytest.raises(UploadGone):
        await stack.services.appends.status(target(upload))
    other = await opened(stack)
    await append(stack, other, 0, 100)
    await stack.services.appends.cancel(target(other))
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


async def test_a_loss_of_redis_costs_no_tail(stack: Stack) -> None:
    upload = await opened(stack)
    await append(stack, upload, 0, CHUNK + 100)
    await stack.services.redis.flushdb()
    assert await append(stack, upload, CHUNK + 100, CHUNK + 300) == CHUNK + 300
    assert await in_redis(stack, upload) == CHUNK + 300
    await stack.services.redis.flushdb()
    assert await offset_of(stack, upload) == CHUNK + 300, "who asks rebuilds it"
    assert await in_redis(stack, upload) == CHUNK + 300
    await stack.services.redis.flushdb()
    await stack.services.sweeping.sweep(0)
    assert await in_redis(stack, upload) == CHUNK + 300


async def test_bytes_that_went_bad_are_asked_for_again(stack: Stack) -> None:
    upload = await opened(stack)
    await append(stack, upload, 0, 2 * CHUNK + 100)
    await stack.services.closers.withdraw(upload, [1])
    assert await offset_of(stack, upload) == CHUNK == await in_redis(stack, upload)
    with pytest.raises(OffsetMismatch):
        await append(stack, upload, 2 * CHUNK + 100, 2 * CHUNK + 200)
    complete = await append(stack, upload, CHUNK, CONTENT.size)
    assert isinstance(complete, Complete)
    assert complete.file.sha256 == CONTENT.sha256


async def test_a_tail_whose_record_is_damaged_is_given_up_and_sent_again(stack: Stack) -> None:
    upload = await opened(stack)
    await append(stack, upload, 0, CHUNK + 100)
    with (stack.data / upload.place / "map").open("r+b") as chunk_map:
        chunk_map.seek(chunks.TAIL_OFFSET + 9)
        chunk_map.write(b"\xff")
    assert await offset_of(stack, upload) == CHUNK == await in_redis(stack, upload)
    complete = await append(stack, upload, CHUNK, CONTENT.size)
    assert isinstance(complete, Complete)
    assert complete.file.sha256 == CONTENT.sha256


async def test_a_closer_that_takes_long_keeps_nobody_waiting_for_ever(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.05)
    upload = await opened(stack)
    await append(stack, upload, 0, CHUNK + 100)
    async with stack.services.storage.closing(upload):
        with pytest.raises(UploadBusy):
            await stack.services.appends.status(target(upload))
    assert await offset_of(stack, upload) == CHUNK + 100


async def test_tails_are_accounted_for_and_given_back(make_stack: MakeStack) -> None:
    async with make_stack(jobs=True, quiet_interval_seconds=0.02) as stack:
        upload = await opened(stack)
        await append(stack, upload, 0, CHUNK + 100)

        async def is_accounted() -> bool:
            return (await stack.usage("alice"))["unfinished"] == CHUNK + 100

        await eventually(is_accounted)
        redis: Any = stack.services.redis
        await check_at_rest(stack.services.database, redis, stack.data)
        await stack.services.appends.cancel(target(upload))
        assert await checked_accounts(stack.services.database) == {"alice": Account()}


async def test_a_worker_that_dies_at_any_point_of_an_append_loses_and_invents_nothing(stack: Stack) -> None:
    ends = (300, CHUNK + 7, 2 * CHUNK)
    for at in range(1, 60):
        upload, acknowledged, died = await opened(stack), 0, False
        with dying(at):
            try:
                for start, end in zip((0, *ends), ends, strict=False):
                    await append(stack, upload, start, end)
                    acknowledged = end
            except Death:
                died = True
        offset = await offset_of(stack, upload)
        assert offset >= acknowledged
        assert offset == await in_redis(stack, upload) == on_disk(stack, upload).received
        await append(stack, upload, offset, 2 * CHUNK)
        assert await in_redis(stack, upload) == 2 * CHUNK
        await stack.services.appends.cancel(target(upload))
        await checked_accounts(stack.services.database)
        if not died:
            assert at > 4 * len(ends)
            return
    raise AssertionError("they never end")
