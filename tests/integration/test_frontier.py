"""The digests follow the chunks: without reading again what came in order, over workers and restarts, and never over bytes
that are not the upload's."""

import asyncio
import errno
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
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
from tests.support.merging import merge_held_up
from tests.support.reading import counted_reads
from tests.support.rows import upload_row
from tests.support.stack import Stack
from tests.support.storing import running_storage
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
from uploader.storage.local import chunks, digests
from uploader.storage.local.chunks import SavedProgress
from uploader.storage.store import Store

CONTENT = Content(8 * 64 * KIB + 1000)
OTHER = Content(CONTENT.size, seed=1)
CHUNK = CONTENT.chunk_size
LAST = CONTENT.chunk_count - 1
RIGHT = Digests(CONTENT.md5, CONTENT.sha256)


@asynccontextmanager
async def a_worker(root: Path) -> AsyncIterator[Store]:
    """A storage of its own, as every process has one: its locks are its own, too."""
    async with running_storage(root, durable=False) as made:
        yield made
        await made.drain()


@pytest.fixture(autouse=True)
def nothing_is_left_open(tmp_path: Path) -> Iterator[None]:
    yield
    assert open_files_under(tmp_path / "temp") == []


@pytest.fixture(autouse=True)
def chunks_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are taken as 1 MiB and more are; the tests of small ones say so."""
    monkeypatch.setattr(digests, "GATHERED_BYTES", 0)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Store]:
    async with a_worker(tmp_path) as made:
        yield made


@pytest.fixture
async def upload(storage: Store) -> Upload:
    made = upload_row(size=CONTENT.size)
    await storage.create(made)
    return made


async def put(storage: Store, upload: Upload, *numbers: int, content: Content = CONTENT) -> None:
    """Store chunks one after the other; the digests may lag behind."""
    for number in numbers:
        body = InPieces(content.chunk(number))
        try:
            (await storage.hold_chunk(upload, number, body)).release()
        finally:
            body.close()


async def put_and_follow(storage: Store, upload: Upload, *numbers: int) -> None:
    for number in numbers:
        await put(storage, upload, number)
        await storage.drain()


# What is read again


async def test_what_comes_in_order_is_never_read_again(storage: Store, upload: Upload) -> None:
    with counted_reads("data") as read:
        await put(storage, upload, *range(LAST + 1))
        assert await storage.digest(upload) == RIGHT
    assert read.bytes == 0


async def test_an_upload_over_http_that_comes_in_order_is_never_read_again(stack: Stack) -> None:
    with counted_reads("data") as read:
        response = await stack.upload(CONTENT)
    assert response.json()["file"]["sha256"] == CONTENT.sha256
    assert read.bytes == 0


async def test_out_of_order_only_what_lay_beyond_the_gap_is_read(storage: Store, upload: Upload) -> None:
    with counted_reads("data") as read:
        await put_and_follow(storage, upload, 0, 1, 3, 4, LAST, 5)
        assert await storage.digested_bytes(upload) == 2 * CHUNK
        assert read.bytes == 0
        await put_and_follow(storage, upload, 2)
        assert await storage.digested_bytes(upload) == 6 * CHUNK
        assert read.bytes == 3 * CHUNK
        await put(storage, upload, 6, 7)
        assert await storage.digest(upload) == RIGHT
    assert read.bytes == 3 * CHUNK + CONTENT.size % CHUNK


async def test_a_merge_reads_nothing_but_what_was_saved(storage: Store, upload: Upload, tmp_path: Path) -> None:
    await put_and_follow(storage, upload, *range(LAST + 1))
    assert await storage.digested_bytes(upload) == CONTENT.size
    async with a_worker(tmp_path) as another:
        with counted_reads("data") as read:
            assert await another.digest(upload) == RIGHT
    assert read.bytes == 0


# Workers and restarts


async def test_workers_take_turns_without_starting_again(storage: Store, upload: Upload, tmp_path: Path) -> None:
    async with a_worker(tmp_path) as another:
        with counted_reads("data") as read:
            for number in range(LAST + 1):
                await put_and_follow((storage, another)[number % 2], upload, number)
            assert await another.digest(upload) == RIGHT
    assert read.bytes == 0


async def test_a_worker_that_was_started_again_goes_on(upload: Upload, tmp_path: Path) -> None:
    with counted_reads("data") as read:
        for number in range(LAST + 1):
            async with a_worker(tmp_path) as started:
                await put_and_follow(started, upload, number)
        async with a_worker(tmp_path) as started:
            assert await started.digest(upload) == RIGHT
    assert read.bytes == 0


async def test_while_another_worker_has_the_lock_chunks_are_stored_all_the_same(
    storage: Store, upload: Upload, tmp_path: Path
) -> None:
    other = os.open(tmp_path / upload.place / "digest", os.O_RDWR | os.O_CLOEXEC)
    assert try_lock(other, 0, 0)
    await put_and_follow(storage, upload, *range(LAST + 1))
    assert await storage.digested_bytes(upload) == 0
    with pytest.raises(Busy):
        await storage.digest(upload)
    os.close(other)
    assert await storage.digest(upload) == RIGHT


@pytest.mark.parametrize("seed", range(12))
async def test_any_order_over_any_workers_gives_the_right_digests(
    storage: Store, upload: Upload, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where few bodies are kept and the turns are short; every chunk is sent by two, the second with other bytes."""
    choose = random.Random(seed)
    monkeypatch.setattr(digests, "MAX_KEPT_BYTES", choose.choice([0, CHUNK, 64 << 20]))
    monkeypatch.setattr(digests, "_TURN_BYTES", choose.choice([CHUNK, 32 << 20]))
    numbers = list(range(LAST + 1))
    choose.shuffle(numbers)
    async with a_worker(tmp_path) as another:
        workers = (storage, another)
        for together in (numbers[:3], numbers[3:4], numbers[4:]):
            await asyncio.gather(*(put(choose.choice(workers), upload, number) for number in together))
            for number in together:
                await put(choose.choice(workers), upload, number, content=OTHER)
            if choose.random() < 0.5:
                await choose.choice(workers).drain()
        await asyncio.gather(*(worker.drain() for worker in workers))
        assert await choose.choice(workers).digest(upload) == RIGHT


@pytest.mark.parametrize("seed", range(8))
async def test_of_senders_with_different_bytes_those_are_hashed_that_are_stored(
    storage: Store, upload: Upload, tmp_path: Path, seed: int
) -> None:
    choose = random.Random(seed)
    async with a_worker(tmp_path) as another:
        for number in range(LAST + 1):
            senders = [(storage, CONTENT), (another, OTHER), (storage, OTHER), (another, CONTENT)]
            choose.shuffle(senders)
            await asyncio.gather(*(put(worker, upload, number, content=content) for worker, content in senders))
        stored = (tmp_path / upload.place / "data").read_bytes()
        await another.drain()
        hashed = PrefixHashes()
        hashed.update(memoryview(stored))
        assert await storage.digest(upload) == hashed.digests()


# Without an MD5, until one is told


def without_md5(upload: Upload) -> Upload:
    return replace(upload, md5=None, computes_md5=False)


async def test_of_what_needs_no_md5_none_is_computed(storage: Store, upload: Upload, tmp_path: Path) -> None:
    upload = without_md5(upload)
    await put_and_follow(storage, upload, 0, 1, 2)
    async with a_worker(tmp_path) as another:
        with counted_reads("data") as read:
            await put(another, upload, *range(3, LAST + 1))
            assert await another.digest(upload) == Digests(None, CONTENT.sha256)
        assert read.bytes == 0


async def test_an_md5_that_is_told_starts_at_the_first_byte(storage: Store, upload: Upload) -> None:
    await put_and_follow(storage, without_md5(upload), 0, 1, 2)
    assert await storage.digested_bytes(upload) == 0
    with counted_reads("data") as read:
        storage.follow(upload)
        await storage.drain()
        assert (await storage.digested_bytes(upload), read.bytes) == (3 * CHUNK, 3 * CHUNK)
        await put(storage, upload, *range(3, LAST + 1))
        assert await storage.digest(upload) == RIGHT
    assert read.bytes == 3 * CHUNK


async def test_who_has_not_heard_of_it_goes_on_with_both(storage: Store, upload: Upload, tmp_path: Path) -> None:
    await put_and_follow(storage, upload, 0, 1)
    async with a_worker(tmp_path) as another:
        with counted_reads("data") as read:
            await put_and_follow(another, without_md5(upload), *range(2, LAST + 1))
            assert await storage.digest(upload) == RIGHT
        assert read.bytes == 0


async def test_who_follows_it_already_hears_of_it(storage: Store, upload: Upload) -> None:
    """Of several chunks at once: the follower has begun without."""
    early = without_md5(upload)
    await asyncio.gather(*(put(storage, early, number) for number in range(LAST)), _told(storage, upload))
    await storage.drain()
    assert await storage.digested_bytes(upload) == LAST * CHUNK
    await put(storage, early, LAST)
    assert await storage.digest(upload) == RIGHT


async def _told(storage: Store, upload: Upload) -> None:
    storage.follow(upload)


async def test_digests_that_were_finished_without_are_finished_again(storage: Store, upload: Upload) -> None:
    early = without_md5(upload)
    await put(storage, early, *range(LAST + 1))
    assert await storage.digest(early) == Digests(None, CONTENT.sha256)
    assert await storage.digested_bytes(early) == CONTENT.size
    assert await storage.digested_bytes(upload) == 0
    assert await storage.digest(upload) == RIGHT
    assert await storage.digest(early) == RIGHT, "more than is needed"


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
async def test_a_state_that_is_not_certain_starts_at_the_first_byte(
    storage: Store, upload: Upload, tmp_path: Path, how: str
) -> None:
    await put_and_follow(storage, upload, 0, 1, 2, 4, 5)
    path = tmp_path / upload.place / "digest"
    path.write_bytes(NOT_BELIEVED[how](path.read_bytes()))
    with counted_reads("data") as read:
        await put_and_follow(storage, upload, 6, 3)
        assert await storage.digested_bytes(upload) == 7 * CHUNK
        assert read.bytes == 6 * CHUNK, "all but the last to come"
    await put(storage, upload, 7, LAST)
    assert await storage.digest(upload) == RIGHT


async def test_the_state_of_a_chunk_that_is_not_on_the_map_any_more_is_not_gone_on_from(
    storage: Store, upload: Upload, tmp_path: Path
) -> None:
    """As a withdrawal leaves it that a power cut interrupted."""
    await put_and_follow(storage, upload, 0, 1, 2)
    with (tmp_path / upload.place / "map").open("r+b") as chunk_map:
        chunk_map.seek(chunks.map_record_offset(1))
        chunk_map.write(bytes(chunks.MAP_RECORD_LENGTH))
    await put_and_follow(storage, upload, 3)
    assert await storage.digested_bytes(upload) == CHUNK
    await put(storage, upload, 1, *range(4, LAST + 1))
    assert await storage.digest(upload) == RIGHT


async def test_a_python_without_openssls_states_hashes_all_at_the_merge(
    storage: Store, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uploader.storage.hashes._library", lambda: None)
    with counted_reads("data") as read:
        await put_and_follow(storage, upload, *range(LAST + 1))
        assert read.bytes == 0
        assert await storage.digested_bytes(upload) == 0
        assert await storage.digest(upload) == RIGHT
    assert read.bytes == CONTENT.size


# Chunks do not wait, nor suffer


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Hashing waits to be let go on, once for each piece."""
    go_on, real = threading.Semaphore(0), PrefixHashes.update_by

    def update_by(hashes: PrefixHashes, pieces: Callable[[], Iterable[memoryview]], length_bytes: int) -> None:
        assert go_on.acquire(timeout=30)
        real(hashes, pieces, length_bytes)

    monkeypatch.setattr(PrefixHashes, "update_by", update_by)
    return go_on


async def test_a_chunk_is_acknowledged_before_it_is_hashed(stack: Stack, stalled: threading.Semaphore) -> None:
    await stack.open(CONTENT)
    for number in range(LAST):
        assert (await stack.put(CONTENT, number)).status_code == 200
    stalled.release(CONTENT.chunk_count)
    assert (await stack.put(CONTENT, LAST)).status_code == 201


async def test_bodies_are_kept_until_they_are_hashed_and_only_so_many(
    storage: Store, upload: Upload, stalled: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "MAX_KEPT_BYTES", 2 * CHUNK)
    bodies = [InPieces(CONTENT.chunk(number)) for number in range(4)]
    for number, body in enumerate(bodies):
        (await storage.hold_chunk(upload, number, body)).release()
        body.close()
    assert [body.keepers for body in bodies] == [1, 1, 0, 0]
    with counted_reads("data") as read:
        stalled.release(CONTENT.chunk_count)
        await storage.drain()
    assert [body.keepers for body in bodies] == [0, 0, 0, 0]
    assert await storage.digested_bytes(upload) == 4 * CHUNK
    assert read.bytes == 2 * CHUNK, "the others are read from the page cache"


async def test_a_body_is_not_kept_for_a_chunk_that_may_never_come(storage: Store, upload: Upload) -> None:
    body = InPieces(CONTENT.chunk(3))
    (await storage.hold_chunk(upload, 3, body)).release()
    await storage.drain()
    assert body.keepers == 1


async def test_bytes_that_could_not_be_stored_are_not_hashed(storage: Store, upload: Upload) -> None:
    await put(storage, upload, 0)
    with failing_call("pwrite", only=lambda path: path.name == "map"), pytest.raises(StorageFailed):
        await put(storage, upload, 1, content=OTHER)
    await put(storage, upload, *range(1, LAST + 1))
    assert await storage.digest(upload) == RIGHT


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EIO])
async def test_a_state_that_cannot_be_saved_costs_no_chunk(storage: Store, upload: Upload, error_number: int) -> None:
    with failing_call("pwrite", error_number, times=None, only=lambda path: path.name == "digest") as fault:
        await put_and_follow(storage, upload, 0, 1, 2)
    assert fault.hits >= 3
    assert await storage.digested_bytes(upload) == 0
    await put(storage, upload, *range(3, LAST + 1))
    assert await storage.digest(upload) == RIGHT


async def test_following_ends_with_its_upload(storage: Store, upload: Upload, tmp_path: Path) -> None:
    await put(storage, upload, 1, 2)
    await storage.drain()
    with paused_call("preadv") as pause:
        await put(storage, upload, 0)
        assert await asyncio.to_thread(pause.reached.wait, 10)
        assert await storage.discard(upload)
        pause.go_on.set()
        await storage.drain()
    assert open_files_under(tmp_path) == []
    with pytest.raises(Gone):
        await storage.digest(upload)


# Who sends faster than the digests go


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is near that begins two chunks or less ahead of the digests, and two chunks are much nearer."""
    monkeypatch.setattr(digests, "NEAR_BYTES", 2 * CHUNK)
    monkeypatch.setattr(digests, "NEARER_BYTES", 2 * CHUNK)
    monkeypatch.setattr(hashes, "_PATIENCE_SECONDS", 3600)


class Pace:
    """An answer that may have to wait for the digests."""

    def __init__(self, storage: Store, upload: Upload, number: int) -> None:
        self._task = asyncio.create_task(storage.keep_pace(upload, number))

    async def waits(self) -> bool:
        await asyncio.wait({self._task}, timeout=0.05)
        return not self._task.done()

    async def ends(self) -> bool:
        await asyncio.wait({self._task}, timeout=30)
        return self._task.done()


async def taken_up(storage: Any, upload: Upload) -> None:
    """Until it is known how far the digests of an upload are that somebody looks after."""

    async def position_is_known() -> bool:
        return storage._followers[upload.id].position is not None

    await eventually(position_is_known)


async def test_a_chunk_far_ahead_of_the_digests_is_answered_once_they_are_near(
    storage: Store, upload: Upload, stalled: threading.Semaphore, near: None
) -> None:
    await put(storage, upload, *range(4))
    await taken_up(storage, upload)
    assert await Pace(storage, upload, 2).ends()
    far = Pace(storage, upload, 3)
    assert await far.waits()
    stalled.release(CONTENT.chunk_count)
    assert await far.ends()


async def test_over_http_the_answer_waits_and_the_chunk_counts_already(
    stack: Stack, stalled: threading.Semaphore, near: None
) -> None:
    upload = await _opened(stack)
    for number in range(3):
        assert (await stack.put(CONTENT, number)).status_code == 200
    far = asyncio.create_task(stack.put(CONTENT, 3))

    async def is_counted() -> bool:
        answer = (await stack.client.get(f"/uploads/{upload.id}")).json()
        return bool(answer["upload"]["received_bytes"] == 4 * CHUNK)

    await eventually(is_counted)
    await asyncio.wait({far}, timeout=0.05)
    assert not far.done()
    stalled.release(CONTENT.chunk_count)
    assert (await far).json()["received_chunks"] == 4


async def test_a_chunk_that_is_sent_again_is_answered_at_once(
    stack: Stack, stalled: threading.Semaphore, near: None
) -> None:
    """Its sender had no patience with the first answer."""
    upload = await _opened(stack)
    for number in range(3):
        assert (await stack.put(CONTENT, number)).status_code == 200
    await taken_up(stack.services.storage, upload)
    first = asyncio.create_task(stack.put(CONTENT, 3))

    async def is_counted() -> bool:
        answer = (await stack.client.get(f"/uploads/{upload.id}")).json()
        return bool(answer["upload"]["received_bytes"] == 4 * CHUNK)

    await eventually(is_counted)
    async with asyncio.timeout(PATIENCE_SECONDS):
        again = (await stack.put(CONTENT, 3)).json()
    assert (again["duplicate"], again["received_chunks"], first.done()) == (True, 4, False)
    stalled.release(CONTENT.chunk_count)
    assert (await first).json()["duplicate"] is False


async def test_nobody_waits_for_digests_that_a_gap_holds_up(storage: Store, upload: Upload, near: None) -> None:
    await put(storage, upload, *range(1, LAST))
    await storage.drain()
    assert await Pace(storage, upload, LAST - 1).ends()


async def test_what_is_far_beyond_a_stretch_that_is_hashed_does_not_wait_for_all_of_it(
    storage: Store, upload: Upload, stalled: threading.Semaphore, near: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_TURN_BYTES", CHUNK)
    await put(storage, upload, *range(LAST))
    await taken_up(storage, upload)
    far = Pace(storage, upload, LAST - 1)
    stalled.release(1)
    assert await far.waits()
    stalled.release(1)
    assert await far.ends(), "two chunks were hashed meanwhile"
    stalled.release(LAST)


async def test_nobody_waits_for_long(
    storage: Store,
    upload: Upload,
    stalled: threading.Semaphore,
    near: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await put(storage, upload, *range(4))
    await taken_up(storage, upload)
    monkeypatch.setattr(hashes, "_PATIENCE_SECONDS", 0.01)
    assert await Pace(storage, upload, 3).ends()
    stalled.release(CONTENT.chunk_count)


async def test_who_waits_for_digests_is_let_go_with_their_upload(
    storage: Store, upload: Upload, stalled: threading.Semaphore, near: None
) -> None:
    await put(storage, upload, *range(4))
    await taken_up(storage, upload)
    far = Pace(storage, upload, 3)
    assert await far.waits()
    assert await storage.discard(upload)
    stalled.release(CONTENT.chunk_count)
    assert await far.ends()


async def test_digests_of_another_worker_are_kept_pace_with_while_they_come_any_further(
    storage: Store, upload: Upload, tmp_path: Path, stalled: threading.Semaphore, near: None
) -> None:
    async with a_worker(tmp_path) as another:
        await put(another, upload, 0)
        await taken_up(another, upload)
        await put(storage, upload, *range(1, 4))
        await taken_up(storage, upload)
        far = Pace(storage, upload, 3)
        assert await far.waits()
        assert await far.ends(), "they stand still"
        stalled.release(CONTENT.chunk_count)
        await asyncio.gather(storage.drain(), another.drain())
        await put(storage, upload, *range(4, LAST + 1))
        assert await storage.digest(upload) == RIGHT


# Small chunks


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four chunks are gathered, however long it takes."""
    monkeypatch.setattr(digests, "GATHERED_BYTES", 4 * CHUNK)
    monkeypatch.setattr(digests, "_GATHER_SECONDS", 3600)


async def test_small_chunks_are_gathered_and_hashed_at_one_go(storage: Store, upload: Upload, patience: None) -> None:
    async def four_are_hashed() -> bool:
        return await storage.digested_bytes(upload) == 4 * CHUNK

    with recorded_calls("preadv", "pwrite") as calls:
        await put(storage, upload, 0, 1, 2)
        assert not [call for call in calls if call[1] == "digest"]
        await put(storage, upload, 3)
        await eventually(four_are_hashed)
    assert [call for call in calls if call[1] == "digest" or call[0] == "preadv"] == [
        ("preadv", "data"),
        ("pwrite", "digest"),
    ]


async def test_small_chunks_of_which_too_few_come_are_not_waited_for(
    storage: Store, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "GATHERED_BYTES", CONTENT.size)
    await put(storage, upload, 0, 1)

    async def both_are_hashed() -> bool:
        return await storage.digested_bytes(upload) == 2 * CHUNK

    await eventually(both_are_hashed)


async def test_a_merge_and_the_end_of_the_process_do_not_wait_for_more_small_chunks(
    storage: Store, upload: Upload, patience: None
) -> None:
    await put(storage, upload, 0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await storage.drain()
        await put(storage, upload, *range(1, LAST + 1))
        assert await storage.digest(upload) == RIGHT


async def test_small_chunks_are_not_kept_in_memory(storage: Store, upload: Upload, patience: None) -> None:
    body = InPieces(CONTENT.chunk(0))
    (await storage.hold_chunk(upload, 0, body)).release()
    assert body.keepers == 1
    await storage.drain()
    assert await storage.digested_bytes(upload) == CHUNK


# Withdrawal


async def test_withdrawing_waits_for_who_hashes_and_starts_the_digests_again(
    storage: Store, upload: Upload, tmp_path: Path
) -> None:
    await put_and_follow(storage, upload, 1, 2)
    with paused_call("preadv") as pause:
        await put(storage, upload, 0)
        assert await asyncio.to_thread(pause.reached.wait, 10)
        async with a_worker(tmp_path) as another, another.closing(upload) as closer:
            withdrawing = asyncio.create_task(closer.withdraw([1], generation=1))
            await asyncio.wait({withdrawing}, timeout=0.05)
            assert not withdrawing.done()
            pause.go_on.set()
            await withdrawing
    await storage.drain()
    assert await storage.digested_bytes(upload) == 0
    await put(storage, upload, 1, *range(3, LAST + 1))
    assert await storage.digest(upload) == RIGHT


async def test_a_merge_of_an_older_generation_does_not_fail_an_upload_that_was_healed(
    make_stack_on: MakeStack,
) -> None:
    """It compared what was there before the withdrawal with the claims."""
    async with make_stack_on() as stack:
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
            assert await asyncio.to_thread(pause.reached.wait, 10)
            seen.add(await _merged_bytes(other))
        with failing_call("link", times=None) as fault:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not fault.hits:
                    await asyncio.sleep(0.01)
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
    make_stack_on: MakeStack, monkeypatch: pytest.MonkeyPatch, in_order: bool
) -> None:
    monkeypatch.setattr(merge, "_LONG_MERGE_BYTES", 4 * CHUNK)
    accounted: list[str] = []
    real = transactions.uploads.flush

    async def flush(*arguments: object) -> object:
        accounted.append("flush")
        return await real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(transactions.uploads, "flush", flush)
    async with make_stack_on() as stack:
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
