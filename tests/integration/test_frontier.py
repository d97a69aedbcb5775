"""The digests follow the chunks: without reading again what came in order, over workers and restarts, and never over bytes
that are not the upload's."""

import asyncio
import errno
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest

from tests.conftest import MakeStack
from tests.support.bodies import InPieces
from tests.support.content import KIB, Content
from tests.support.faults import failing_call, open_files_under, paused_call, recorded_calls
from tests.support.local import Local, running_local, until, waits
from tests.support.merging import merge_held_up
from tests.support.reading import counted_reads
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.database import queries, transactions
from uploader.database.transactions.rows import NotOpen
from uploader.domain.upload import Reason, Upload
from uploader.errors import StorageFailed
from uploader.service import merge
from uploader.storage import hashes
from uploader.storage.base import Busy, Digests, Gone
from uploader.storage.disk import try_lock
from uploader.storage.hashes import PrefixHashes
from uploader.storage.local import chunks, digests, turns
from uploader.storage.local.chunks import SavedProgress

CONTENT = Content(8 * 64 * KIB + 1000)
OTHER = Content(CONTENT.size, seed=1)
CHUNK = CONTENT.chunk_size
LAST = CONTENT.chunk_count - 1
RIGHT = Digests(CONTENT.md5, CONTENT.sha256)


def a_worker(root: Path) -> AbstractAsyncContextManager[Local]:
    return running_local(root, CONTENT, durable=False)


@pytest.fixture(autouse=True)
def chunks_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are taken as 1 MiB and more are; the tests of small ones say so."""
    monkeypatch.setattr(digests, "GATHERED_BYTES", 0)


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Local]:
    async with a_worker(tmp_path) as made:
        yield made


@pytest.fixture
async def upload(local: Local) -> Upload:
    return await local.open()


# What is read again


async def test_what_comes_in_order_is_never_read_again(local: Local, upload: Upload) -> None:
    with counted_reads("data") as read:
        await local.put_these(upload, *range(LAST + 1))
        assert await local.store.digest(upload) == RIGHT
    assert read.bytes == 0


async def test_an_upload_over_http_that_comes_in_order_is_never_read_again(stack: Stack) -> None:
    with counted_reads("data") as read:
        response = await stack.upload(CONTENT)
    assert response.json()["file"]["sha256"] == CONTENT.sha256
    assert read.bytes == 0


async def test_out_of_order_only_what_lay_beyond_the_gap_is_read(local: Local, upload: Upload) -> None:
    with counted_reads("data") as read:
        await local.put_and_follow(upload, 0, 1, 3, 4, LAST, 5)
        assert await local.store.digested_bytes(upload) == 2 * CHUNK
        assert read.bytes == 0
        await local.put_and_follow(upload, 2)
        assert await local.store.digested_bytes(upload) == 6 * CHUNK
        assert read.bytes == 3 * CHUNK
        await local.put_these(upload, 6, 7)
        assert await local.store.digest(upload) == RIGHT
    assert read.bytes == 3 * CHUNK + CONTENT.size % CHUNK


# Workers and restarts


async def test_workers_that_take_turns_or_were_started_again_go_on(local: Local, upload: Upload) -> None:
    with counted_reads("data") as read:
        async with a_worker(local.root) as another:
            for number in range(LAST - 1):
                await (local, another)[number % 2].put_and_follow(upload, number)
        for number in (LAST - 1, LAST):
            async with a_worker(local.root) as started:
                await started.put_and_follow(upload, number)
        async with a_worker(local.root) as started:
            assert await started.store.digested_bytes(upload) == CONTENT.size
            assert await started.store.digest(upload) == RIGHT
    assert read.bytes == 0


async def test_while_another_worker_has_the_lock_chunks_are_stored_all_the_same(local: Local, upload: Upload) -> None:
    other = os.open(local.file(upload, "digest"), os.O_RDWR | os.O_CLOEXEC)
    assert try_lock(other, 0, 0)
    await local.put_and_follow(upload, *range(LAST + 1))
    assert await local.store.digested_bytes(upload) == 0
    with pytest.raises(Busy):
        await local.store.digest(upload)
    os.close(other)
    assert await local.store.digest(upload) == RIGHT


@pytest.mark.parametrize("seed", range(12))
async def test_any_order_over_any_workers_gives_the_digests_of_what_is_stored(
    local: Local, upload: Upload, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where few bodies are kept and the turns are short; every chunk is sent by several, with different bytes."""
    choose = random.Random(seed)
    monkeypatch.setattr(digests, "MAX_KEPT_BYTES", choose.choice([0, CHUNK, 64 << 20]))
    monkeypatch.setattr(digests, "_TURN_BYTES", choose.choice([CHUNK, 32 << 20]))
    numbers = list(range(LAST + 1))
    choose.shuffle(numbers)
    async with a_worker(local.root) as another:
        workers = (local, another)
        for together in (numbers[:3], numbers[3:4], numbers[4:]):
            senders = [(worker, number, each) for number in together for each in (CONTENT, OTHER) for worker in workers]
            choose.shuffle(senders)
            await asyncio.gather(*(worker.put(upload, number, each) for worker, number, each in senders))
            if choose.random() < 0.5:
                await choose.choice(workers).store.drain()
        await asyncio.gather(*(worker.store.drain() for worker in workers))
        hashed = PrefixHashes()
        hashed.update(memoryview(local.data(upload)))
        assert await choose.choice(workers).store.digest(upload) == hashed.digests()


# Without an MD5, until one is told


def without_md5(upload: Upload) -> Upload:
    return replace(upload, md5=None, computes_md5=False)


async def test_of_what_needs_no_md5_none_is_computed_until_it_does(local: Local, upload: Upload) -> None:
    early = without_md5(upload)
    await local.put_and_follow(early, 0, 1, 2)
    async with a_worker(local.root) as another:
        with counted_reads("data") as read:
            await another.put_these(early, *range(3, LAST + 1))
            assert await another.store.digest(early) == Digests(None, CONTENT.sha256)
        assert read.bytes == 0
    assert await local.store.digested_bytes(early) == CONTENT.size
    assert await local.store.digested_bytes(upload) == 0
    assert await local.store.digest(upload) == RIGHT
    assert await local.store.digest(early) == RIGHT, "more than is needed"


async def test_an_md5_that_is_told_starts_at_the_first_byte(local: Local, upload: Upload) -> None:
    await local.put_and_follow(without_md5(upload), 0, 1, 2)
    assert await local.store.digested_bytes(upload) == 0
    with counted_reads("data") as read:
        local.store.follow(upload)
        await local.store.drain()
        assert (await local.store.digested_bytes(upload), read.bytes) == (3 * CHUNK, 3 * CHUNK)
        await local.put_these(upload, *range(3, LAST + 1))
        assert await local.store.digest(upload) == RIGHT
    assert read.bytes == 3 * CHUNK


async def test_who_has_not_heard_of_it_goes_on_with_both(local: Local, upload: Upload) -> None:
    await local.put_and_follow(upload, 0, 1)
    async with a_worker(local.root) as another:
        with counted_reads("data") as read:
            await another.put_and_follow(without_md5(upload), *range(2, LAST + 1))
            assert await local.store.digest(upload) == RIGHT
        assert read.bytes == 0


async def test_who_follows_it_already_hears_of_it(local: Local, upload: Upload) -> None:
    """Of several chunks at once: the follower has begun without."""
    early = without_md5(upload)
    await asyncio.gather(*(local.put_these(early, number) for number in range(LAST)), _told(local, upload))
    await local.store.drain()
    assert await local.store.digested_bytes(upload) == LAST * CHUNK
    await local.put_these(early, LAST)
    assert await local.store.digest(upload) == RIGHT


async def _told(local: Local, upload: Upload) -> None:
    local.store.follow(upload)


# What is saved, and not believed


def tampered(change: Callable[[SavedProgress], SavedProgress]) -> Callable[[bytes], bytes]:
    def tamper(saved: bytes) -> bytes:
        record = chunks.parse_digest_record(saved)
        assert isinstance(record, SavedProgress)
        return chunks.digest_record(change(record))

    return tamper


def replaced(**changes: object) -> Callable[[bytes], bytes]:
    return tampered(lambda record: msgspec.structs.replace(record, **changes))


NOT_BELIEVED: dict[str, Callable[[bytes], bytes]] = {
    "of another boot": replaced(boot_id="0" * 36),
    "of an older generation": replaced(generation=-1),
    "beyond what is on the map": replaced(position=7 * CHUNK),
    "at the end of a file that is not complete": replaced(position=CONTENT.size),
    "beyond the end": replaced(position=CONTENT.size + CHUNK),
    "in the middle of a chunk": replaced(position=CHUNK + 1),
    "before the start": replaced(position=-CHUNK),
    "without a state": replaced(state=b""),
    "with half a state": tampered(lambda record: msgspec.structs.replace(record, state=record.state[:100])),
    "a flipped bit": lambda saved: bytes([saved[0] ^ 1]) + saved[1:],
    "written in part": lambda saved: saved[:200] + bytes(len(saved) - 200),
    "cut short": lambda saved: saved[:100],
    "empty": lambda _: b"",
    "something else": lambda _: b'{"type":"frontier"}',
    "of another format": lambda saved: b"%08x %s" % (crc32(b'{"type":"new"}'), b'{"type":"new"}'),
}


@pytest.mark.parametrize("how", NOT_BELIEVED)
async def test_a_state_that_is_not_certain_starts_at_the_first_byte(local: Local, upload: Upload, how: str) -> None:
    await local.put_and_follow(upload, 0, 1, 2, 4, 5)
    path = local.file(upload, "digest")
    path.write_bytes(NOT_BELIEVED[how](path.read_bytes()))
    with counted_reads("data") as read:
        await local.put_and_follow(upload, 6, 3)
        assert await local.store.digested_bytes(upload) == 7 * CHUNK
        assert read.bytes == 6 * CHUNK, "all but the last to come"
    await local.put_these(upload, 7, LAST)
    assert await local.store.digest(upload) == RIGHT


async def test_the_state_of_a_chunk_that_is_not_on_the_map_any_more_is_not_gone_on_from(
    local: Local, upload: Upload
) -> None:
    """As a withdrawal leaves it that a power cut interrupted."""
    await local.put_and_follow(upload, 0, 1, 2)
    with local.file(upload, "map").open("r+b") as chunk_map:
        chunk_map.seek(chunks.map_record_offset(1))
        chunk_map.write(bytes(chunks.MAP_RECORD_LENGTH))
    await local.put_and_follow(upload, 3)
    assert await local.store.digested_bytes(upload) == CHUNK
    await local.put_these(upload, 1, *range(4, LAST + 1))
    assert await local.store.digest(upload) == RIGHT


async def test_a_python_without_openssls_states_hashes_all_at_the_merge(
    local: Local, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uploader.storage.hashes._library", lambda: None)
    with counted_reads("data") as read:
        await local.put_and_follow(upload, *range(LAST + 1))
        assert read.bytes == 0
        assert await local.store.digested_bytes(upload) == 0
        assert await local.store.digest(upload) == RIGHT
    assert read.bytes == CONTENT.size


# Chunks do not wait, nor suffer


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Hashing waits to be let go on, once for each piece."""
    go_on, real = threading.Semaphore(0), PrefixHashes.update_by

    def update_by(hashes: PrefixHashes, pieces: Callable[[], Iterable[memoryview]], length_bytes: int) -> None:
        assert go_on.acquire(timeout=PATIENCE_SECONDS)
        real(hashes, pieces, length_bytes)

    monkeypatch.setattr(PrefixHashes, "update_by", update_by)
    return go_on


async def test_bodies_are_kept_until_they_are_hashed_and_only_so_many(
    local: Local, upload: Upload, stalled: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "MAX_KEPT_BYTES", 2 * CHUNK)
    bodies = [InPieces(CONTENT.chunk(number)) for number in range(4)]
    for number, body in enumerate(bodies):
        (await local.store.hold_chunk(upload, number, body)).release()
        body.close()
    assert [body.keepers for body in bodies] == [1, 1, 0, 0]
    with counted_reads("data") as read:
        stalled.release(CONTENT.chunk_count)
        await local.store.drain()
    assert [body.keepers for body in bodies] == [0, 0, 0, 0]
    assert await local.store.digested_bytes(upload) == 4 * CHUNK
    assert read.bytes == 2 * CHUNK, "the others are read from the page cache"


async def test_a_body_is_not_kept_for_a_chunk_that_may_never_come(local: Local, upload: Upload) -> None:
    body = InPieces(CONTENT.chunk(3))
    (await local.store.hold_chunk(upload, 3, body)).release()
    await local.store.drain()
    assert body.keepers == 1


async def test_bytes_that_could_not_be_stored_are_not_hashed(local: Local, upload: Upload) -> None:
    await local.put_these(upload, 0)
    with failing_call("pwrite", only=lambda path: path.name == "map"), pytest.raises(StorageFailed):
        await local.put_these(upload, 1, content=OTHER)
    await local.put_these(upload, *range(1, LAST + 1))
    assert await local.store.digest(upload) == RIGHT


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EIO])
async def test_a_state_that_cannot_be_saved_costs_no_chunk(local: Local, upload: Upload, error_number: int) -> None:
    with failing_call("pwrite", error_number, times=None, only=lambda path: path.name == "digest") as fault:
        await local.put_and_follow(upload, 0, 1, 2)
    assert fault.hits >= 3
    assert await local.store.digested_bytes(upload) == 0
    await local.put_these(upload, *range(3, LAST + 1))
    assert await local.store.digest(upload) == RIGHT


async def test_following_ends_with_its_upload(local: Local, upload: Upload) -> None:
    await local.put_these(upload, 1, 2)
    await local.store.drain()
    with paused_call("preadv") as pause:
        await local.put_these(upload, 0)
        assert await asyncio.to_thread(pause.reached.wait, PATIENCE_SECONDS)
        assert await local.store.discard(upload)
        pause.go_on.set()
        await local.store.drain()
    assert open_files_under(local.root) == []
    with pytest.raises(Gone):
        await local.store.digest(upload)


# Who sends faster than the digests go


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is near that begins two chunks or less ahead of the digests, and two chunks are much nearer."""
    monkeypatch.setattr(digests, "NEAR_BYTES", 2 * CHUNK)
    monkeypatch.setattr(digests, "NEARER_BYTES", 2 * CHUNK)
    monkeypatch.setattr(hashes, "_PATIENCE_SECONDS", 3600)


def pace(local: Local, upload: Upload, number: int) -> "asyncio.Task[None]":
    """An answer that may have to wait for the digests."""
    return asyncio.create_task(local.store.keep_pace(upload, number))


async def ends(task: "asyncio.Task[None]") -> bool:
    await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
    return task.done()


async def taken_up(storage: Any, upload: Upload) -> None:
    """Until it is known how far the digests of an upload are that somebody looks after."""
    await until(lambda: storage._followers[upload.id].position is not None)


@pytest.mark.parametrize("how", ["they are near", "it is long", "their upload goes"])
async def test_a_chunk_far_ahead_of_the_digests_is_answered_once(
    local: Local, upload: Upload, stalled: threading.Semaphore, near: None, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local.put_these(upload, *range(4))
    await taken_up(local.store, upload)
    assert await ends(pace(local, upload, 2))
    if how == "it is long":
        monkeypatch.setattr(hashes, "_PATIENCE_SECONDS", 0.01)
        assert await ends(pace(local, upload, 3))
    else:
        far = pace(local, upload, 3)
        assert await waits(far)
        if how == "their upload goes":
            assert await local.store.discard(upload)
        stalled.release(CONTENT.chunk_count)
        assert await ends(far)
    stalled.release(CONTENT.chunk_count)


async def test_over_http_the_answer_waits_and_that_of_a_chunk_which_is_sent_again_does_not(
    stack: Stack, stalled: threading.Semaphore, near: None
) -> None:
    """Its sender had no patience with the first answer; the chunk counts already."""
    upload = await _opened(stack)
    for number in range(3):
        assert (await stack.put(CONTENT, number)).status_code == 200
    await taken_up(stack.services.storage, upload)
    first = asyncio.create_task(stack.put(CONTENT, 3))

    async def is_counted() -> bool:
        answer = (await stack.client.get(f"/uploads/{upload.id}")).json()
        return bool(answer["upload"]["received_bytes"] == 4 * CHUNK)

    await eventually(is_counted)
    assert await waits(first)
    async with asyncio.timeout(PATIENCE_SECONDS):
        again = (await stack.put(CONTENT, 3)).json()
    assert (again["duplicate"], again["received_chunks"], first.done()) == (True, 4, False)
    stalled.release(CONTENT.chunk_count)
    answer = (await first).json()
    assert (answer["duplicate"], answer["received_chunks"]) == (False, 4)


async def test_nobody_waits_for_digests_that_a_gap_holds_up(local: Local, upload: Upload, near: None) -> None:
    await local.put_these(upload, *range(1, LAST))
    await local.store.drain()
    assert await ends(pace(local, upload, LAST - 1))


async def test_what_is_far_beyond_a_stretch_that_is_hashed_does_not_wait_for_all_of_it(
    local: Local, upload: Upload, stalled: threading.Semaphore, near: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_TURN_BYTES", CHUNK)
    await local.put_these(upload, *range(LAST))
    await taken_up(local.store, upload)
    far = pace(local, upload, LAST - 1)
    stalled.release(1)
    assert await waits(far)
    stalled.release(1)
    assert await ends(far), "two chunks were hashed meanwhile"
    stalled.release(LAST)


async def test_digests_of_another_worker_are_kept_pace_with_while_they_come_any_further(
    local: Local, upload: Upload, stalled: threading.Semaphore, near: None
) -> None:
    async with a_worker(local.root) as another:
        await another.put_these(upload, 0)
        await taken_up(another.store, upload)
        await local.put_these(upload, *range(1, 4))
        await taken_up(local.store, upload)
        far = pace(local, upload, 3)
        assert await waits(far)
        assert await ends(far), "they stand still"
        stalled.release(CONTENT.chunk_count)
        await asyncio.gather(local.store.drain(), another.store.drain())
        await local.put_these(upload, *range(4, LAST + 1))
        assert await local.store.digest(upload) == RIGHT


# Small chunks


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four chunks are gathered, however long it takes."""
    monkeypatch.setattr(digests, "GATHERED_BYTES", 4 * CHUNK)
    monkeypatch.setattr(digests, "_GATHER_SECONDS", 3600)


async def until_digested(local: Local, upload: Upload, position: int) -> None:
    async def is_digested() -> bool:
        return await local.store.digested_bytes(upload) == position

    await eventually(is_digested)


async def test_small_chunks_are_gathered_and_hashed_at_one_go(local: Local, upload: Upload, patience: None) -> None:
    with recorded_calls("preadv", "pwrite") as calls:
        await local.put_these(upload, 0, 1, 2)
        assert not [call for call in calls if call[1] == "digest"]
        await local.put_these(upload, 3)
        await until_digested(local, upload, 4 * CHUNK)
    assert [call for call in calls if call[1] == "digest" or call[0] == "preadv"] == [
        ("preadv", "data"),
        ("pwrite", "digest"),
    ]


async def test_small_chunks_of_which_too_few_come_are_not_waited_for(
    local: Local, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "GATHERED_BYTES", CONTENT.size)
    await local.put_these(upload, 0, 1)
    await until_digested(local, upload, 2 * CHUNK)


async def test_a_merge_and_the_end_of_the_process_do_not_wait_for_more_small_chunks(
    local: Local, upload: Upload, patience: None
) -> None:
    body = InPieces(CONTENT.chunk(0))
    (await local.store.hold_chunk(upload, 0, body)).release()
    assert body.keepers == 1, "they are not kept in memory"
    async with asyncio.timeout(PATIENCE_SECONDS):
        await local.store.drain()
        assert await local.store.digested_bytes(upload) == CHUNK
        await local.put_these(upload, *range(1, LAST + 1))
        assert await local.store.digest(upload) == RIGHT


async def test_a_merge_does_not_wait_for_other_uploads_to_be_hashed_with(
    local: Local, upload: Upload, patience: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_COMPANY_SECONDS", 3600)
    other = await local.open()
    await local.put_these(other, 0)
    await local.put_these(upload, 0, 1, 2, 3)
    await until(lambda: bool(local.store._company._waiting))
    assert await local.store.digested_bytes(upload) == 0
    async with asyncio.timeout(PATIENCE_SECONDS):
        await local.put_these(upload, *range(4, LAST + 1))
        assert await local.store.digest(upload) == RIGHT


# Withdrawal


async def test_withdrawing_waits_for_who_hashes_and_starts_the_digests_again(local: Local, upload: Upload) -> None:
    await local.put_and_follow(upload, 1, 2)
    with paused_call("preadv") as pause:
        await local.put_these(upload, 0)
        assert await asyncio.to_thread(pause.reached.wait, PATIENCE_SECONDS)
        async with a_worker(local.root) as another, another.store.closing(upload) as closer:
            withdrawing = asyncio.create_task(closer.withdraw([1], generation=1))
            assert await waits(withdrawing)
            pause.go_on.set()
            await withdrawing
    await local.store.drain()
    assert await local.store.digested_bytes(upload) == 0
    await local.put_these(upload, 1, *range(3, LAST + 1))
    assert await local.store.digest(upload) == RIGHT


async def test_a_merge_of_an_older_generation_does_not_fail_an_upload_that_was_healed(
    make_stack: MakeStack,
) -> None:
    """It compared what was there before the withdrawal with the claims."""
    async with make_stack() as stack:
        upload = await _opened(stack)
        await stack.put(CONTENT, 0)
        await stack.services.closers.withdraw(upload, [0])
        with pytest.raises(NotOpen):
            await stack.services.closers.close(upload, Reason.MD5_MISMATCH)
        with suppress(NotOpen):
            await stack.services.merging._compare(upload, Digests(OTHER.md5, OTHER.sha256))
        for number in range(LAST + 1):
            response = await stack.put(CONTENT, number)
        assert response.status_code == 201


async def _opened(stack: Stack) -> Upload:
    upload_id = (await stack.open(CONTENT)).json()["upload"]["id"]
    upload = await stack.services.database.read(lambda connection: queries.upload_by_id(connection, upload_id))
    assert upload is not None
    return upload


# The merge, when it is long


async def test_how_far_a_merge_is_shows_in_every_worker(make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_TURN_BYTES", 2 * CHUNK)
    async with make_stack(merge_wait_seconds=0, jobs=True) as stack, make_stack() as other:
        upload = await _opened(stack)
        async with merge_held_up(stack, upload.id):
            for number in range(LAST + 1):
                response = await stack.put(CONTENT, number)
            assert (response.status_code, response.json()["upload"]["merged_bytes"]) == (202, 0)
        seen = {0}
        with paused_call("preadv") as pause:
            assert await asyncio.to_thread(pause.reached.wait, PATIENCE_SECONDS)
            seen.add(await _merged_bytes(other))
        with failing_call("link", times=None) as fault:
            await until(lambda: fault.hits > 0)
            seen.add(await _merged_bytes(other))
        assert max(seen) == CONTENT.size
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (answer := (await other.client.get(f"/files/{CONTENT.md5}")).json())["state"] == "merging":
                await other.client.post(f"/files/{CONTENT.md5}/merge")
        assert answer["file"]["sha256"] == CONTENT.sha256


async def _merged_bytes(stack: Stack) -> int:
    answer = (await stack.client.get(f"/files/{CONTENT.md5}")).json()
    assert answer["state"] == "merging"
    merged: int = answer["upload"]["merged_bytes"]
    return merged


@pytest.mark.parametrize("in_order", [True, False])
async def test_bytes_are_accounted_before_a_merge_that_has_much_left_to_hash(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch, in_order: bool
) -> None:
    monkeypatch.setattr(merge, "_LONG_MERGE_BYTES", 4 * CHUNK)
    accounted: list[str] = []
    real = transactions.uploads.flush

    async def flush(*arguments: object) -> object:
        accounted.append("flush")
        return await real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(transactions.uploads, "flush", flush)
    async with make_stack() as stack:
        await stack.open(CONTENT)
        numbers = list(range(LAST + 1)) if in_order else [*range(1, LAST + 1), 0]
        for number in numbers[:-1]:
            await stack.put(CONTENT, number)
        await stack.services.storage.drain()
        with monkeypatch.context() as nothing_more:
            # So that the last chunk can't be caught up while the merge looks how much is left.
            nothing_more.setattr(digests, "states_are_portable", lambda: False)
            response = await stack.put(CONTENT, numbers[-1])
        assert response.status_code == 201
        assert accounted == ([] if in_order else ["flush"])
        assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}
