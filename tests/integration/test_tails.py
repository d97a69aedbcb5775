"""Tails on a real directory: the first bytes of a chunk, as appends bring them; who may append; what faults, crashes, power
cuts and native chunks do to them."""

import asyncio
import io
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.at_rest import OnDisk, read_directory, read_files
from tests.support.bodies import InPieces
from tests.support.content import KIB, Content
from tests.support.dying import Death, dying
from tests.support.faults import Call, failing_call, intercepting, left_open, paused_call
from tests.support.powercut import (
    Mark,
    Recording,
    States,
    Sync,
    by_chance,
    bytes_only,
    everything,
    names_only,
    nothing,
)
from tests.support.rows import upload_row
from tests.support.storing import running_storage
from uploader.domain.upload import Tail, Upload
from uploader.errors import BytesConflict, StorageFailed, Unverified, UploadBusy
from uploader.storage.base import Gone
from uploader.storage.local import chunks, digests, locks
from uploader.storage.store import Store

CONTENT = Content(3 * 64 * KIB + 1000)
CHUNK = CONTENT.chunk_size


@pytest.fixture(autouse=True)
def nobody_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests wait for the merge: a storage that nobody drains ends before its followers."""
    monkeypatch.setattr(digests, "states_are_portable", lambda: False)


@pytest.fixture
async def upload(storage: Store) -> Upload:
    return await opened(storage)


@pytest.fixture
async def other(storage: Store, tmp_path: Path) -> AsyncIterator[Store]:
    """The store as another process has it."""
    async with running_storage(tmp_path, durable=True) as made:
        yield made


async def opened(storage: Store, content: Content = CONTENT) -> Upload:
    made = upload_row(size=content.size, chunk_size=content.chunk_size)
    await storage.create(made)
    return made


async def append(storage: Store, upload: Upload, start: int, end: int, content: Content = CONTENT) -> bool:
    """Bytes of one chunk; whether they were written."""
    number, begun = divmod(start, upload.chunk_size)
    held = await storage.hold_chunk(upload, number, InPieces(content.data[start:end]), start=begun)
    held.release()
    return held.written


async def put(storage: Store, upload: Upload, number: int, data: bytes | None = None) -> bool:
    held = await storage.hold_chunk(upload, number, InPieces(CONTENT.chunk(number) if data is None else data))
    held.release()
    return held.written


def on_disk(root: Path, upload: Upload) -> OnDisk:
    found = read_directory(root / upload.place)
    assert found.tail_is_sound
    assert found.sound == found.present
    return found


class Writes:
    """The calls that reach the disk, each with the name of its file, and where and how much."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, call: Call) -> Any:
        if call.name == "pwrite":
            _, content, offset = call.arguments
            self.calls.append((call.path.name, offset, len(content)))
        elif call.name == "fdatasync":
            self.calls.append((call.path.name,))
        return call.make()


async def test_bytes_are_claimed_after_they_are_durable_and_no_byte_is_written_or_read_twice(
    storage: Store, tmp_path: Path, upload: Upload
) -> None:
    await append(storage, upload, 0, 1000)  # the files are open from here on
    writes = Writes()
    with intercepting(writes):
        assert await append(storage, upload, 1000, 3001)
        assert (await storage.read_map(upload)).leading_bytes == 3001
        assert await append(storage, upload, 3001, CHUNK)
    tail = ("map", chunks.TAIL_OFFSET, chunks.TAIL_LENGTH)
    record = ("map", chunks.map_record_offset(0), chunks.MAP_RECORD_LENGTH)
    middle = (CHUNK - 3001) // 2
    assert writes.calls[:12] == [
        *(("data", 1000, 1000), ("data", 2000, 1001), ("data",), tail, ("map",)),
        *(("data", 3001, middle), ("data", 3001 + middle, CHUNK - 3001 - middle), ("data",), record, ("map",)),
    ]
    found = on_disk(tmp_path, upload)
    assert (set(found.present), found.received, found.leading) == ({0}, CHUNK, CHUNK), (
        "the record of the chunk makes its tail void"
    )
    assert not await append(storage, upload, 0, CHUNK), "a chunk on the map is never written again"


async def test_appends_and_chunks_that_meet_in_one_upload_make_one_content(
    storage: Store, tmp_path: Path, upload: Upload
) -> None:
    await put(storage, upload, 1)
    await append(storage, upload, 0, 10)
    assert on_disk(tmp_path, upload).received == CHUNK + 10
    await append(storage, upload, 10, CHUNK)
    await append(storage, upload, 2 * CHUNK, 2 * CHUNK + 1)
    await put(storage, upload, 3)
    with pytest.raises(BytesConflict):
        await put(storage, upload, 2, b"?" + CONTENT.chunk(2)[1:])
    assert await put(storage, upload, 2)
    digests = await storage.digest(upload)
    assert (digests.md5, digests.sha256) == (CONTENT.md5, CONTENT.sha256)
    assert await left_open(storage, tmp_path) == []


async def test_a_chunk_that_only_has_the_checksum_of_the_tail_is_refused(storage: Store, upload: Upload) -> None:
    """Else its digests would be of bytes that are not on the disk, and somebody could give a content other bytes."""
    await append(storage, upload, 0, 1000)
    forged = bytearray(CONTENT.chunk(0))
    for place, bits in enumerate(
        (0x1DB710641).to_bytes(5, "little"), 100
    ):  # the polynomial of CRC-32: its remainder is 0
        forged[place] ^= bits
    with pytest.raises(BytesConflict):
        await put(storage, upload, 0, bytes(forged))
    assert await put(storage, upload, 0)


async def test_a_writer_that_is_wrong_about_the_tail_writes_nothing(
    storage: Store, tmp_path: Path, upload: Upload
) -> None:
    await append(storage, upload, 0, 1000)
    for start, end in [(0, 500), (999, 2000), (1001, 2000), (CHUNK, CHUNK + 1), (CHUNK + 1, CHUNK + 2)]:
        with pytest.raises(Gone):
            await append(storage, upload, start, end)
    assert on_disk(tmp_path, upload).tail == Tail(0, 1000)


@pytest.mark.parametrize("name", ["pwrite", "fdatasync"])
@pytest.mark.parametrize("file", ["data", "map"])
async def test_what_the_disk_refuses_is_not_of_the_tail_and_can_be_sent_again(
    storage: Store, tmp_path: Path, upload: Upload, name: str, file: str
) -> None:
    for before, after in [(0, 1000), (1000, 5000)]:
        with failing_call(name, only=lambda path: path.name == file), pytest.raises(StorageFailed):
            await append(storage, upload, before, after)
        assert on_disk(tmp_path, upload).leading == before
        await append(storage, upload, before, after)
    with failing_call(name, only=lambda path: path.name == file), pytest.raises(StorageFailed):
        await append(storage, upload, 5000, CHUNK)
    assert on_disk(tmp_path, upload).leading == 5000, "a record that was refused leaves the tail in force"
    await append(storage, upload, 5000, CHUNK)
    assert on_disk(tmp_path, upload).leading == CHUNK
    assert await left_open(storage, tmp_path) == []


async def test_a_worker_that_dies_at_any_point_leaves_what_was_acknowledged(storage: Store, tmp_path: Path) -> None:
    ends = [300, 5000, CHUNK, CHUNK + 7, 2 * CHUNK]
    for at in range(1, 40):
        upload, acknowledged = await opened(storage), 0
        died = False
        with dying(at):
            try:
                for start, end in zip([0, *ends], ends, strict=False):
                    await append(storage, upload, start, end)
                    acknowledged = end
            except Death:
                died = True
        start = on_disk(tmp_path, upload).leading
        assert start >= acknowledged
        for end in ends:
            if end > start:
                await append(storage, upload, start, end)
                start = end
        assert on_disk(tmp_path, upload).leading == 2 * CHUNK
        if not died:
            assert at == 4 * len(ends) + 1, "each append passes four points"
            return
    raise AssertionError("they never end")


# Power cuts


async def test_after_a_power_cut_every_acknowledged_byte_is_there(tmp_path: Path) -> None:
    content = Content(4000, chunk_size=1536)
    steps = [(0, 100), (100, 700), (700, 1536), (1536, 3000), (3000, 3072), (3072, 3100), (3100, 4000)]
    data = tmp_path / "data"
    recording = Recording(data)
    with recording.running():
        async with running_storage(data, durable=True) as storage:
            upload = await opened(storage, content)
            for start, end in steps:
                await append(storage, upload, start, end, content)
                recording.mark(end)

    def lost(without: str | None = None) -> bool:
        states, acknowledged = States(recording, without=without), 0
        chance = random.Random("tails")
        choices = [nothing, everything, names_only, bytes_only, *(by_chance(chance) for _ in range(10))]
        for count, event in enumerate(states.events, 1):
            acknowledged = event.what if isinstance(event, Mark) else acknowledged
            for tree in (states.after(count, choice) for choice in choices) if acknowledged else ():
                found = read_files(tree[f"{upload.place}/map"] or b"", io.BytesIO(tree[f"{upload.place}/data"] or b""))
                if not found.tail_is_sound or found.sound != found.present or found.leading < acknowledged:
                    return True
        return False

    assert not lost()
    places = {event.place for event in recording.events if isinstance(event, Sync) and "_sync_data" in event.place}
    assert len(places) == 2
    assert all(lost(place) for place in places), "each sync is needed"


async def test_what_a_killed_writer_left_is_durable_before_it_is_told(tmp_path: Path) -> None:
    """It may have died between a record and its sync: others read the record."""
    told = set()
    for at in range(1, 6):
        data = tmp_path / str(at)
        recording = Recording(data)
        with recording.running():
            async with running_storage(data, durable=True) as storage:
                upload = await opened(storage)
                with dying(at), suppress(Death):
                    await append(storage, upload, 0, 700)
                async with storage.appending(upload) as appender:
                    recording.mark((await appender.read_map()).leading_bytes)
        states = States(recording)
        ((count, end),) = (
            (count, event.what) for count, event in enumerate(states.events, 1) if isinstance(event, Mark)
        )
        tree = states.after(count, nothing)
        found = read_files(tree[f"{upload.place}/map"] or b"", io.BytesIO(tree[f"{upload.place}/data"] or b""))
        assert found.tail_is_sound
        assert found.leading == end, at
        told.add(end)
    assert told == {0, 700}


async def test_who_is_cancelled_while_the_map_is_opened_leaves_no_descriptor(
    storage: Store, tmp_path: Path, upload: Upload
) -> None:
    async def ask() -> None:
        async with storage.appending(upload):
            raise AssertionError("it was cancelled")

    with paused_call("open", only=lambda path: path.name == "map") as pause:
        asking = asyncio.create_task(ask())
        assert await asyncio.to_thread(pause.reached.wait, 10)
        asking.cancel()
        await asyncio.sleep(0)
        pause.go_on.set()
        with suppress(asyncio.CancelledError):
            await asking
        assert await asyncio.to_thread(pause.ended.wait, 10)
    assert await left_open(storage, tmp_path) == []


async def test_a_tail_that_did_not_outlive_a_reboot_is_withdrawn_and_one_that_did_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_storage(tmp_path, durable=False) as storage:
        uploads = [await opened(storage) for _ in range(2)]
        for upload in uploads:
            await put(storage, upload, 0)
            await append(storage, upload, CHUNK, CHUNK + 1000)
    with (tmp_path / uploads[0].place / "data").open("r+b") as data:
        data.seek(CHUNK + 500)
        data.write(b"rotten")
    monkeypatch.setattr("uploader.storage.disk.boot_id", lambda: "0f7b0c3e-5a39-4d57-9f7e-0d8f3c2b1a00")
    async with running_storage(tmp_path, durable=False) as storage:
        for upload, bad, left in zip(uploads, ([1], []), (CHUNK, CHUNK + 1000), strict=True):
            with pytest.raises(Unverified):
                await append(storage, upload, CHUNK + 1000, CHUNK + 1001)
            async with storage.closing(upload) as closer:
                assert await closer.find_bad_chunks() == bad
                await closer.withdraw(bad, generation=1, verified=True)
            assert (await storage.read_map(upload)).leading_bytes == left
            await append(storage, upload, left, CHUNK + 2000)


# Withdrawal


@pytest.mark.parametrize(("withdrawn", "left"), [([1], CHUNK), ([0], 0), ([2], 2 * CHUNK), ([], 2 * CHUNK + 1000)])
async def test_a_tail_goes_with_its_chunk_and_with_those_before_it(
    storage: Store, tmp_path: Path, upload: Upload, withdrawn: list[int], left: int
) -> None:
    for number in (0, 1):
        await put(storage, upload, number)
    await append(storage, upload, 2 * CHUNK, 2 * CHUNK + 1000)
    await put(storage, upload, 3)
    async with storage.closing(upload) as closer:
        await closer.withdraw(withdrawn, generation=1)
    assert on_disk(tmp_path, upload).leading == left
    for number in withdrawn:
        await put(storage, upload, number)
    again = 3 * CHUNK + 1000 if withdrawn == [2] else 2 * CHUNK + (0 if withdrawn else 1000)
    assert on_disk(tmp_path, upload).leading == again, "what was withdrawn is not there again by itself"


@pytest.mark.parametrize("at", range(1, 5))
async def test_a_withdrawal_that_dies_leaves_no_tail_of_a_chunk_that_went_bad(
    storage: Store, tmp_path: Path, upload: Upload, at: int
) -> None:
    await append(storage, upload, 0, 1000)
    await append(storage, upload, 1000, CHUNK)
    async with storage.closing(upload) as closer:
        with dying(at), suppress(Death):
            await closer.withdraw([0], generation=1)
    assert on_disk(tmp_path, upload).leading in (0, CHUNK)


# Who may append


async def test_one_appends_at_a_time_and_whoever_wants_to_is_seen(
    storage: Store, other: Store, tmp_path: Path, upload: Upload
) -> None:
    order = []

    async def want(store: Store, name: str) -> None:
        async with store.appending(upload) as appender:
            order.append(name)
            while not appender.is_claimed and name != "third":
                await asyncio.sleep(0.001)

    first = asyncio.create_task(want(storage, "first"))
    while not order:
        await asyncio.sleep(0.001)
    assert not first.done()
    second = asyncio.create_task(want(other, "second"))
    await first
    third = asyncio.create_task(want(storage, "third"))
    await asyncio.gather(second, third)
    assert order == ["first", "second", "third"]
    await other.drain()
    assert await left_open(storage, tmp_path) == []


async def test_who_does_not_let_go_keeps_others_out_for_a_while_only(
    storage: Store, other: Store, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.02)
    async with storage.appending(upload) as appender:
        with pytest.raises(UploadBusy):
            async with other.appending(upload):
                pass
        assert not appender.is_claimed, "who gives up wants nothing any more"
    async with other.appending(upload), storage.closing(upload):
        pass  # a closer needs not wait for it


async def test_who_waited_for_an_upload_that_ended_finds_it_gone(storage: Store, other: Store, upload: Upload) -> None:
    async with AsyncExitStack() as stack:
        holder = await stack.enter_async_context(storage.appending(upload))
        waiting = asyncio.create_task(other.appending(upload).__aenter__())
        while not holder.is_claimed:
            await asyncio.sleep(0.001)
        async with storage.closing(upload) as closer:
            await closer.unlink()
        with pytest.raises(Gone):
            await append(storage, upload, 0, 10)
    with pytest.raises(Gone):
        await waiting


async def test_what_is_being_written_is_not_said_to_be_there(storage: Store, other: Store, upload: Upload) -> None:
    """A record can be read before it is durable."""
    held = await storage.hold_chunk(upload, 0, InPieces(CONTENT.chunk(0)))
    async with other.appending(upload) as appender:
        reading = asyncio.create_task(appender.read_map())
        await asyncio.wait({reading}, timeout=0.03)
        assert not reading.done()
        held.release()
        assert (await reading).leading_bytes == CHUNK
