"""Streams that are appended to uploads: cut into chunks and a tail, whatever ends them; one at a time, the newest first.
Where the length is told late, room is reserved before the bytes come, and given back to the byte."""

import asyncio
import errno
import hashlib
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from itertools import product, takewhile
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from tests.conftest import MakeStack
from tests.support.at_rest import OnDisk, check_at_rest, read_directory, rests_within
from tests.support.bodies import Arrived
from tests.support.chosen import places
from tests.support.content import KIB, Content
from tests.support.dying import Death, dying
from tests.support.faults import Call, cancelling, paused_call
from tests.support.held import held_of
from tests.support.invariants import Account, check_pending, checked_accounts
from tests.support.stack import Stack
from tests.support.streams import Sending
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.accounting.keys import upload_keys
from uploader.database import queries
from uploader.domain.links import owner
from uploader.domain.upload import File, Upload
from uploader.errors import (
    BodyTimeout,
    FileTooLarge,
    OffsetMismatch,
    QuotaExceeded,
    SizeMismatch,
    StorageFull,
    UploadBusy,
    UploadGone,
    UploadNotFound,
)
from uploader.http.bodies.body import Reread
from uploader.runtime.crashpoints import NAMES
from uploader.service import append as service_append
from uploader.service.results import Appended, Complete, Opening, Target, UploadStatus
from uploader.storage import disk
from uploader.storage.local import chunks, digests, locks

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
        merge_wait_seconds=60.0,
        quiet_interval_seconds=0.01,
        claim_lease_seconds=0.1,
    ) as made:
        yield made


async def opened(stack: Stack, user_id: str = "alice", *, known: bool = True, content: Content = CONTENT) -> Upload:
    """`known`: its length is told."""
    opening = Opening(
        caller=owner(user_id),
        md5=None,
        sha256=None,
        name=content.name,
        size=content.size if known else 0,
        chunk_size=content.chunk_size,
        instant=False,
        length_known=known,
    )
    status: Any = await stack.services.openings.open(opening)
    assert isinstance(status, UploadStatus)
    return status.upload


def target(upload: Upload) -> Target:
    return Target(upload.caller, upload_id=upload.id)


async def append(stack: Stack, upload: Upload, start: int, end: int = CONTENT.size, **said: Any) -> Any:
    """Of the content; `told`: with its length."""
    sending = Sending.of(stack, CONTENT.data[start:end], told=said.pop("told", True))
    return await stack.services.appends.append(target(upload), start, sending.source, **said)


async def appended(stack: Stack, upload: Upload, start: int, end: int, **said: Any) -> Upload:
    told = await append(stack, upload, start, end, **said)
    assert isinstance(told, Appended)
    assert told.offset == end
    return told.upload


async def finished(stack: Stack, upload: Upload, start: int, end: int = CONTENT.size, **said: Any) -> File:
    """Append what is missing; its file."""
    complete = await append(stack, upload, start, end, **{} if upload.length_known else {"ends": True}, **said)
    assert isinstance(complete, Complete)
    assert complete.file.sha256 == hashlib.sha256(CONTENT.data[:end]).hexdigest()
    return complete.file


def begun(stack: Stack, upload: Upload, length: int | None = CONTENT.size) -> tuple[Sending, "asyncio.Task[Any]"]:
    """A request of which nothing has come yet, and what becomes of it."""
    sending = Sending(stack, length)
    return sending, asyncio.create_task(stack.services.appends.append(target(upload), 0, sending.source))


async def leading(stack: Stack, upload: Upload) -> int:
    """Where the upload ends, for who asks."""
    status = await stack.services.appends.status(target(upload))
    assert isinstance(status, Appended)
    return status.offset


async def offset_of(stack: Stack, upload: Upload) -> int:
    """The same, where the disk and Redis have these bytes and no others."""
    offset = await leading(stack, upload)
    assert offset == await in_redis(stack, upload) == on_disk(stack, upload).received
    return offset


def on_disk(stack: Stack, upload: Upload) -> OnDisk:
    found = read_directory(stack.data / upload.place)
    assert found.tail_is_sound
    assert found.sound == found.present
    return found


async def in_redis(stack: Stack, upload: Upload) -> int:
    redis: Any = stack.services.redis
    await check_pending(redis, {upload.id: on_disk(stack, upload).shape})
    return (await held_of(redis, upload_keys(0, upload.id).up)).received


async def rows(stack: Stack) -> list[Upload]:
    return await stack.services.database.read(queries.all_open_uploads, "", 9)


async def do_jobs(stack: Stack) -> None:
    for queue in stack.services.pending.flush_queues:
        await stack.services.flushing.flush_due(queue)
    for queue in stack.services.pending.merge_queues:
        await asyncio.gather(*await stack.services.merging.start_due(queue, 9))


async def at_rest(stack: Stack) -> dict[str, Account]:
    """The accounts, once all is flushed."""
    services, redis = stack.services, stack.services.redis

    async def check() -> dict[str, Account]:
        await do_jobs(stack)
        return await check_at_rest(services.database, redis, stack.data)  # type: ignore[arg-type]

    await services.storage.drain()
    return await rests_within(PATIENCE_SECONDS, check)


async def in_order(stack: Stack) -> dict[str, Account]:
    """The same, where nothing is wrong anywhere."""
    accounts = await at_rest(stack)
    assert (await stack.services.reconciling.reconcile()).drifts == []
    return accounts


async def test_a_stream_in_any_pieces_becomes_the_file(stack: Stack) -> None:
    for known, told in product((True, False), (True, False)):
        upload = await opened(stack, known=known)
        assert (await stack.usage("alice"))["reserved"] == (CONTENT.size if known else 0)
        start = 0
        for end in (1, 700, CHUNK - 1, CHUNK, CHUNK + 5, 3 * CHUNK, 4 * CHUNK + 17):
            assert (await appended(stack, upload, start, end, told=told)).size >= end
            assert await offset_of(stack, upload) == end
            start = end
        await appended(stack, upload, start, start)  # nothing may be appended, too
        complete = await append(stack, upload, start, told=told, ends=not known)
        assert (complete.file.sha256, complete.file.md5, complete.created) == (CONTENT.sha256, CONTENT.md5, True)
        assert (await stack.client.get(f"/me/files/{complete.file.id}/content")).content == CONTENT.data
        assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}
        again = await stack.services.appends.status(target(upload))
        assert again == Complete(file=complete.file, created=False)
        await delete_file(stack, upload)


async def test_appends_and_native_chunks_meet_in_one_upload(stack: Stack) -> None:
    """Where the next append begins is told after what is there already, which a stream neither repeats nor passes."""
    upload = await opened(stack)
    url = f"/uploads/{upload.id}/chunks"
    for number in (1, 3):
        await stack.client.put(f"{url}/{number}", content=CONTENT.chunk(number))
    await appended(stack, upload, 0, 100)
    assert (await stack.client.get(f"/uploads/{upload.id}")).json()["upload"]["received_bytes"] == 2 * CHUNK + 100
    response = await stack.client.put(f"{url}/0", content=b"?" + CONTENT.chunk(0)[1:])
    assert (response.status_code, response.json()["code"]) == (409, "bytes-conflict")
    with pytest.raises(OffsetMismatch) as refused:
        await append(stack, upload, 100, CHUNK + 50)
    assert refused.value.fields["offset"] == 2 * CHUNK
    assert await in_redis(stack, upload) == 3 * CHUNK
    await appended(stack, upload, 2 * CHUNK, 2 * CHUNK + 9)
    for number, offset in ((2, 4 * CHUNK), (5, 4 * CHUNK)):
        assert (await stack.client.put(f"{url}/{number}", content=CONTENT.chunk(number))).status_code == 200
        assert await leading(stack, upload) == offset
    with pytest.raises(OffsetMismatch) as refused:
        await append(stack, upload, 4 * CHUNK)
    assert refused.value.fields["offset"] == CONTENT.size
    file = await finished(stack, upload, CONTENT.size)
    assert (await stack.client.get(f"/me/files/{file.id}/content")).content == CONTENT.data


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
        await stack.services.appends.append(
            Target(owner("bob"), upload_id=upload.id), 100, Sending.of(stack, b"").source
        )


@pytest.mark.places
@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("disconnect", ClientDisconnect),
        ("time-out", BodyTimeout),
        ("cancelled", asyncio.CancelledError),
        ("newer", UploadBusy),
    ],
)
@pytest.mark.parametrize("sent", [700, CHUNK, 2 * CHUNK + 700])
async def test_what_came_of_a_stream_stays(stack: Stack, ending: str, expected: type[BaseException], sent: int) -> None:
    if ending == "time-out":
        stack.app.intake._idle_timeout_seconds = 0.05
    upload = await opened(stack)
    sending, appending = begun(stack, upload)
    sending.send(CONTENT.data[:sent])
    await eventually(sending.is_taken)
    if ending == "disconnect":
        sending.leave()
    elif ending == "cancelled":
        await asyncio.sleep(0)
        appending.cancel()
    elif ending == "newer":
        assert await offset_of(stack, upload) == sent
    with pytest.raises(expected):
        await appending
    assert await offset_of(stack, upload) == sent
    await finished(stack, upload, sent)


async def test_a_stream_that_is_cancelled_after_its_last_byte_is_kept_and_ends(stack: Stack) -> None:
    """While it is asked whether more comes than the upload has."""

    async def is_stored() -> bool:
        return on_disk(stack, upload).received == 5 * CHUNK

    upload = await opened(stack)
    sending, appending = begun(stack, upload, None)
    sending.send(CONTENT.data)
    await eventually(sending.is_taken)
    await eventually(is_stored)
    await asyncio.sleep(0)
    appending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await appending
    assert on_disk(stack, upload).received == CONTENT.size == await in_redis(stack, upload)


async def test_a_body_that_is_here_lets_go_too_while_it_is_stored(stack: Stack) -> None:
    """As one with a checksum: the newest request wins."""
    upload = await opened(stack)
    whole = stack.app.intake.whole("alice", memoryview(CONTENT.data))
    assert whole is not None
    with paused_call("pwrite", only=lambda path: path.name == "data") as pause:
        appending = asyncio.create_task(stack.services.appends.append(target(upload), 0, Reread(whole)))
        assert await asyncio.to_thread(pause.reached.wait, PATIENCE_SECONDS)
        asking = asyncio.create_task(offset_of(stack, upload))
        with (stack.data / upload.place / "map").open("r+b") as chunk_map:
            await eventually(partial(is_claimed, chunk_map.fileno()))
        pause.go_on.set()
        with pytest.raises(UploadBusy):
            await appending
    whole.close()
    offset = await asking
    assert 0 < offset < CONTENT.size
    await finished(stack, upload, offset)


async def is_claimed(descriptor: int) -> bool:
    return disk.is_locked(descriptor, chunks.CLAIM_OFFSET, 1)


@pytest.mark.parametrize("then", [0, errno.ENOSPC])
@pytest.mark.parametrize("where", ["spool", "temp"])
async def test_a_stream_cancelled_at_any_call_keeps_what_it_tells(make_stack: MakeStack, where: str, then: int) -> None:
    """In the spool, where a part is gathered, and where it is stored; also while the disk refuses it."""
    content = Content(700 * KIB, chunk_size=600 * KIB)
    async with make_stack(body_budget_bytes=256 * KIB) as stack:
        place = stack.data / where

        def chosen(call: Call) -> bool:
            return call.needs_room and call.path.is_relative_to(place)

        for at in range(1, 60):
            upload = await opened(stack, content=content)
            sending, appending = begun(stack, upload, 650 * KIB)
            sending.send(content.data[: 650 * KIB])
            with cancelling(appending, at=at, only=chosen, then=then) as fault:
                await eventually(partial(is_taken_or_ended, sending, appending))
                appending.cancel()
                with pytest.raises((asyncio.CancelledError, StorageFull)):
                    await appending
            assert not stack.services.appends.concurrency._counts
            assert not stack.app.intake._budget._charged
            offset = await offset_of(stack, upload)
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
    old, appending = begun(stack, upload)
    old.send(CONTENT.data[:100])
    await eventually(old.is_taken)
    async with make_stack() as other:
        await appended(other, upload, await offset_of(other, upload), 200)
        old.send(CONTENT.data[100:])
        with pytest.raises(UploadBusy):
            await appending
        assert await offset_of(other, upload) == 200


async def test_an_upload_that_ends_meanwhile_takes_nothing_more(stack: Stack) -> None:
    upload = await opened(stack)
    sending, appending = begun(stack, upload)
    sending.send(CONTENT.data[: CHUNK + 10])
    await eventually(sending.is_taken)
    assert (await stack.client.delete(f"/uploads/{upload.id}")).status_code == 204
    sending.send(CONTENT.data[CHUNK + 10 :])
    with pytest.raises(UploadGone):
        await appending
    with pytest.raises(UploadGone):
        await stack.services.appends.status(target(upload))
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


async def test_a_slow_closer_keeps_nobody_waiting_for_ever(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.05)
    upload = await opened(stack)
    await append(stack, upload, 0, CHUNK + 100)
    async with stack.services.storage.closing(upload):
        with pytest.raises(UploadBusy):
            await stack.services.appends.status(target(upload))
    assert await offset_of(stack, upload) == CHUNK + 100


async def test_a_loss_of_redis_costs_no_byte(stack: Stack) -> None:
    lengths = (True, None, CONTENT.size), (False, None, 3 * STEP), (False, CONTENT.size, CONTENT.size)
    for known, told, reserved in lengths:
        upload = await opened(stack, known=known)
        await append(stack, upload, 0, CHUNK + 100)
        await in_order(stack)
        await stack.services.redis.flushdb()
        await appended(stack, upload, CHUNK + 100, 2 * CHUNK + 7, length=told)
        assert await in_redis(stack, upload) == 2 * CHUNK + 7
        await in_order(stack)
        await stack.services.redis.flushdb()
        assert await offset_of(stack, upload) == 2 * CHUNK + 7, "who asks rebuilds it"
        await stack.services.redis.flushdb()
        await stack.services.sweeping.sweep(0)
        assert await in_redis(stack, upload) == 2 * CHUNK + 7
        assert await in_order(stack) == {"alice": Account(0, 2 * CHUNK + 7, reserved)}
        await finished(stack, upload, 2 * CHUNK + 7)
        await delete_file(stack, upload)


async def test_withdrawn_bytes_come_again(stack: Stack) -> None:
    """`leading`: where a chunk is there beyond it is not received again."""
    withdrawn = (2 * CHUNK + 100, CHUNK, CHUNK), (3 * CHUNK + 500, 2 * CHUNK, 3 * CHUNK)
    for known, (sent, left, leading) in product((True, False), withdrawn):
        upload = await opened(stack, known=known)
        await append(stack, upload, 0, sent)
        (row,) = await rows(stack)
        await stack.services.closers.withdraw(row, [1])
        reserved = CONTENT.size if known else 3 * STEP
        assert await in_order(stack) == {"alice": Account(0, left, reserved)}
        with pytest.raises(OffsetMismatch) as refused:
            await append(stack, upload, sent)
        assert refused.value.fields["offset"] == CHUNK
        if leading > CHUNK:
            with pytest.raises(SizeMismatch):
                await append(stack, upload, CHUNK, CHUNK, length=leading - 1)
            with pytest.raises(OffsetMismatch) as refused:
                await append(stack, upload, CHUNK, ends=not known)
            assert refused.value.fields["offset"] == leading
        await finished(stack, upload, leading)
        await delete_file(stack, upload)


async def test_a_damaged_map_is_made_anew(stack: Stack) -> None:
    for known, at, damage, cut, left in (
        (True, chunks.TAIL_OFFSET + 9, b"\xff", None, 2 * CHUNK),
        (False, chunks.TAIL_OFFSET + 9, b"\xff", None, 2 * CHUNK),
        (False, 0, b"\xff" * 8, 200_000, 2 * CHUNK + 500),
        (False, 0, b"", chunks.MAP_RECORDS_OFFSET + 800, 2 * CHUNK + 500),
    ):
        upload = await opened(stack, known=known)
        await append(stack, upload, 0, 2 * CHUNK + 500)
        chunk_map = stack.data / upload.place / "map"
        size = chunk_map.stat().st_size
        assert known or size == chunks.map_record_offset(10_001)
        with chunk_map.open("r+b") as file:
            file.seek(at)
            file.write(damage)
            file.truncate(cut or size)
        assert await offset_of(stack, upload) == left
        assert chunk_map.stat().st_size == size
        await finished(stack, upload, left)


async def test_room_is_reserved_before_the_bytes_in_steps_that_grow(stack: Stack) -> None:
    upload = await opened(stack, known=False)
    reserved = []
    for start in range(0, 5 * CHUNK, CHUNK):
        await append(stack, upload, start, start + CHUNK)
        reserved.append((await stack.usage("alice"))["reserved"])
    assert reserved == [STEP, STEP, STEP + 2 * STEP, 3 * STEP, 3 * STEP]
    assert await in_order(stack) == {"alice": Account(0, 5 * CHUNK, 3 * STEP)}


@pytest.mark.places
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("end", ["cancel", "delete", "expire"])
async def test_whatever_ends_an_upload_gives_all_back(stack: Stack, end: str, known: bool) -> None:
    upload = await opened(stack, known=known)
    await append(stack, upload, 0, 2 * CHUNK + 500)
    reserved = CONTENT.size if known else 3 * STEP
    assert await in_order(stack) == {"alice": Account(0, 2 * CHUNK + 500, reserved)}
    match end:
        case "cancel":
            await stack.services.appends.cancel(target(upload))
        case "delete":
            assert (await stack.client.delete(f"/uploads/{upload.id}")).status_code == 204
        case "expire":
            assert await stack.services.closers.expire(upload, idle_seconds=-60)
    assert await in_order(stack) == {"alice": Account()}
    assert stack.bytes_on_disk() == []


async def test_an_upload_that_fits_the_quota_to_the_byte_is_taken_and_one_more_byte_is_not(stack: Stack) -> None:
    await stack.client_of("edge", total_space=CONTENT.size)
    upload = await opened(stack, "edge", known=False)
    assert (await appended(stack, upload, 0, CONTENT.size, told=False)).size == CONTENT.size
    for told in (True, False):
        with pytest.raises(QuotaExceeded) as refused:
            await stack.services.appends.append(target(upload), CONTENT.size, Sending.of(stack, b"x", told=told).source)
        assert refused.value.fields["requested"] == 1
        assert refused.value.fields["reserved"] == refused.value.fields["total_space"] == CONTENT.size
    with pytest.raises(QuotaExceeded):
        await append(stack, upload, CONTENT.size, length=CONTENT.size + 1)
    await finished(stack, upload, CONTENT.size)
    assert await in_order(stack) == {"alice": Account(), "edge": Account(finished=CONTENT.size)}


async def test_two_that_grow_at_once_reserve_no_byte_too_many(stack: Stack) -> None:
    """Each takes what it needs, until there is no more; what was refused is not there."""
    await stack.client_of("edge", total_space=8 * CHUNK)
    uploads = [await opened(stack, "edge", known=False) for _ in range(2)]
    appending = [append(stack, upload, 0, told=False) for upload in uploads]
    outcomes = await asyncio.gather(*appending, return_exceptions=True)
    assert any(isinstance(outcome, QuotaExceeded) for outcome in outcomes)
    assert all(isinstance(outcome, QuotaExceeded | Appended) for outcome in outcomes)
    accounts = await in_order(stack)
    stored = [await leading(stack, upload) for upload in uploads]
    assert accounts["edge"].unfinished == sum(stored) > 4 * CHUNK
    for upload in uploads:
        await stack.services.appends.cancel(target(upload))
    assert await in_order(stack) == {"alice": Account(), "edge": Account()}


async def test_a_full_disk_refuses_a_step_then_what_is_wanted(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    upload, asked = await opened(stack, known=False), []

    async def check(size: int) -> None:
        asked.append(size)
        if size > 1000:
            raise StorageFull

    monkeypatch.setattr(stack.services.appends.deferred_length.admission, "check", check)
    assert ((await appended(stack, upload, 0, 1000)).size, asked) == (1000, [STEP, 1000])
    with pytest.raises(StorageFull):
        await append(stack, upload, 1000, 3000)
    assert await in_order(stack) == {"alice": Account(0, 1000, 1000)}


async def test_what_was_reserved_beyond_the_length_is_given_back(stack: Stack) -> None:
    for stored in (0, 700, CHUNK, 2 * CHUNK + 30):
        upload = await opened(stack, known=False)
        await append(stack, upload, 0, stored)
        assert (await appended(stack, upload, stored, stored, length=stored + 10)).length_known
        assert await in_order(stack) == {"alice": Account(0, stored, stored + 10)}
        await finished(stack, upload, stored, stored + 10, length=stored + 10)
        assert await in_order(stack) == {"alice": Account(finished=stored + 10)}
        await delete_file(stack, upload)


async def test_of_many_who_tell_a_length_at_once_one_is_heard(stack: Stack) -> None:
    upload = await opened(stack, known=False)
    await append(stack, upload, 0, 100)

    async def tell(length: int) -> int:
        with suppress(SizeMismatch, OffsetMismatch, UploadBusy):
            await append(stack, upload, 100, 100, length=length)
            return length
        return 0

    heard = set(await asyncio.gather(*map(tell, range(200, 206)))) - {0}
    (row,) = await rows(stack)
    assert row.length_known
    assert heard <= {row.size} < set(range(200, 206))
    assert await in_order(stack) == {"alice": Account(0, 100, row.size)}


async def test_once_the_length_is_told_chunks_come_in_the_native_way_too(stack: Stack) -> None:
    upload, at = await opened(stack, known=False), CHUNK + 500
    url = f"/uploads/{upload.id}"
    await append(stack, upload, 0, at)
    for refused in (
        await stack.client.put(f"{url}/chunks/1", content=CONTENT.chunk(1)),
        await stack.client.put(f"{url}/chunks/0", content=CONTENT.chunk(0)),
        await stack.client.patch(url, json={"md5": CONTENT.md5}),
    ):
        assert (refused.status_code, refused.json()["code"]) == (409, "length-unknown")
    assert (await stack.client.post(f"{url}/merge")).status_code == 409
    facts = ("size", "length_known", "chunk_count", "received_bytes", "missing", "state", "md5")
    (listed,) = (await stack.client.get("/uploads")).json()["uploads"]
    status = (await stack.client.get(url)).json()["upload"]
    assert {**listed, "expires_at": None} == {**status, "expires_at": None}
    assert [status[fact] for fact in facts] == [STEP, False, 2, at, [[1, 1]], "uploading", None]
    await append(stack, upload, at, at, length=CONTENT.size)
    known = (await stack.client.get(url)).json()["upload"]
    assert "length_known" not in known
    assert (known["size"], known["chunk_count"], known["missing"]) == (CONTENT.size, 6, [[1, 5]])
    for number in (5, 1, 2, 3):
        assert (await stack.client.put(f"{url}/chunks/{number}", content=CONTENT.chunk(number))).status_code == 200
    response = await stack.client.put(f"{url}/chunks/4", content=CONTENT.chunk(4))
    assert response.json()["file"]["sha256"] == CONTENT.sha256
    assert await in_order(stack) == {"alice": Account(finished=CONTENT.size)}


@pytest.fixture
def nobody_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """No digest is computed beside, so that crash points are passed in one order."""
    monkeypatch.setattr(digests, "states_are_portable", lambda: False)


@pytest.mark.usefixtures("nobody_follows")
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
        await append(stack, upload, offset, 2 * CHUNK)
        assert await offset_of(stack, upload) == 2 * CHUNK
        await stack.services.appends.cancel(target(upload))
        await checked_accounts(stack.services.database)
        if not died:
            assert at > 4 * len(ends)
            return
    raise AssertionError("they never end")


@pytest.mark.usefixtures("nobody_follows")
@pytest.mark.parametrize("ends_within", [True, False])
async def test_a_worker_that_dies_while_the_length_is_told_loses_nothing(stack: Stack, ends_within: bool) -> None:
    """Neither what was acknowledged, nor a byte of the quota; also where the client never comes back."""
    content, acknowledged = CONTENT.data[: 2 * CHUNK + (30 if ends_within else 0)], 0

    async def send(upload: Upload) -> None:
        nonlocal acknowledged
        acknowledged = 0
        for end in (700, CHUNK + 9, len(content)):
            source = Arrived(content[acknowledged:end])
            await stack.services.appends.append(target(upload), acknowledged, source)
            acknowledged = end
        await stack.services.appends.append(target(upload), acknowledged, Arrived(b""), length=len(content))

    upload = await opened(stack, known=False)
    with dying(None) as passed:
        await send(upload)
    await delete_file(stack, upload)
    # From `clear` on it ends as every upload; and directories are made but once.
    ours = takewhile(lambda name: not name.startswith("clear."), passed)
    points = [name for name in ours if not name.startswith("directory.")]
    assert {name for name in NAMES if name.startswith(("grow.", "length."))} <= {*points}
    for at in places(range(1, len(points) + 1), f"length told, {ends_within}"):
        upload = await opened(stack, known=False)
        with dying(at) as passed, suppress(Death):  # which nobody keeps: it has the locks of the dead
            await send(upload)
        if passed[at - 1].startswith("length."):
            await rests_within(PATIENCE_SECONDS, partial(nothing_waits_for_its_client, stack))
        else:
            await stack.services.appends.status(target(upload))
        await in_order(stack)
        for open_upload in await rows(stack):
            assert await offset_of(stack, open_upload) >= acknowledged
            told: Any = await stack.services.appends.status(target(upload))
            if isinstance(told, Appended):
                rest = Arrived(content[told.offset :])
                assert isinstance(
                    await stack.services.appends.append(target(upload), told.offset, rest, ends=True), Complete
                )
        assert await at_rest(stack) == {"alice": Account(finished=len(content))}
        assert await delete_file(stack, upload) == hashlib.sha256(content).hexdigest()


async def delete_file(stack: Stack, upload: Upload) -> str:
    """Delete what an upload became. Its SHA-256."""
    found = await stack.services.uploads.find(target(upload))
    assert isinstance(found, Complete)
    assert (await stack.client.delete(f"/me/files/{found.file.id}")).status_code == 204
    return found.file.sha256


async def nothing_waits_for_its_client(stack: Stack) -> None:
    """Here a length is told when all bytes are there: jobs merge it."""
    await do_jobs(stack)
    assert not any(row.length_known for row in await rows(stack))
