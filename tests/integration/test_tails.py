"""Tails on a real directory: the first bytes of a chunk, as appends bring them; who may append; what faults, crashes, power
cuts and native chunks do to them."""

import asyncio
import io
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.at_rest import OnDisk, read_directory, read_files
from tests.support.bodies import InPieces
from tests.support.content import KIB, Content
from tests.support.dying import Death, dying
from tests.support.faults import Call, failing_call, intercepting, paused_call
from tests.support.local import Local, running_local, until, waits
from tests.support.powercut import Mark, Recording, States, Sync, by_chance, bytes_only, everything, names_only, nothing
from tests.support.storing import running_storage
from tests.support.waiting import PATIENCE_SECONDS
from uploader.domain.upload import Upload
from uploader.errors import StorageFailed, Unverified, UploadBusy
from uploader.storage.base import Gone
from uploader.storage.local import chunks, digests, locks
from uploader.storage.local.store import LocalStore

CONTENT = Content(3 * 64 * KIB + 1000)
CHUNK = CONTENT.chunk_size


@pytest.fixture(autouse=True)
def nobody_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests wait for the merge: a storage that nobody drains ends before its followers."""
    monkeypatch.setattr(digests, "states_are_portable", lambda: False)


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Local]:
    async with running_local(tmp_path, CONTENT) as made:
        yield made


@pytest.fixture
async def other(local: Local) -> AsyncIterator[Local]:
    """The store as another process has it."""
    async with running_storage(local.root, durable=True) as store:
        assert isinstance(store, LocalStore)
        yield Local(store, local.root, content=CONTENT)


@pytest.fixture
async def upload(local: Local) -> Upload:
    return await local.open()


def on_disk(root: Path, upload: Upload) -> OnDisk:
    found = read_directory(root / upload.place)
    assert found.tail_is_sound
    assert found.sound == found.present
    return found


def files_in(tree: Mapping[str, bytes | None], upload: Upload) -> OnDisk:
    """After a power cut."""
    return read_files(tree[f"{upload.place}/map"] or b"", io.BytesIO(tree[f"{upload.place}/data"] or b""))


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
    local: Local, upload: Upload
) -> None:
    await local.send(upload, 0, 1000)  # the files are open from here on
    writes = Writes()
    with intercepting(writes):
        assert await local.send(upload, 1000, 3001)
        assert (await local.store.read_map(upload)).leading_bytes == 3001
        assert await local.send(upload, 3001, CHUNK)
    tail = ("map", chunks.TAIL_OFFSET, chunks.TAIL_LENGTH)
    record = ("map", chunks.map_record_offset(0), chunks.MAP_RECORD_LENGTH)
    middle = (CHUNK - 3001) // 2
    assert writes.calls[:12] == [
        *(("data", 1000, 1000), ("data", 2000, 1001), ("data",), tail, ("map",)),
        *(("data", 3001, middle), ("data", 3001 + middle, CHUNK - 3001 - middle), ("data",), record, ("map",)),
    ]
    found = on_disk(local.root, upload)
    assert (set(found.present), found.received, found.leading) == ({0}, CHUNK, CHUNK), (
        "the record of the chunk makes its tail void"
    )
    assert not await local.send(upload, 0, CHUNK), "a chunk on the map is never written again"


@pytest.mark.parametrize("name", ["pwrite", "fdatasync"])
@pytest.mark.parametrize("file", ["data", "map"])
async def test_what_the_disk_refuses_is_not_of_the_tail_and_can_be_sent_again(
    local: Local, upload: Upload, name: str, file: str
) -> None:
    for before, after in [(0, 1000), (1000, 5000)]:
        with failing_call(name, only=lambda path: path.name == file), pytest.raises(StorageFailed):
            await local.send(upload, before, after)
        assert on_disk(local.root, upload).leading == before
        await local.send(upload, before, after)
    with failing_call(name, only=lambda path: path.name == file), pytest.raises(StorageFailed):
        await local.send(upload, 5000, CHUNK)
    assert on_disk(local.root, upload).leading == 5000, "a record that was refused leaves the tail in force"
    await local.send(upload, 5000, CHUNK)
    assert on_disk(local.root, upload).leading == CHUNK


async def test_a_worker_that_dies_at_any_point_leaves_what_was_acknowledged(local: Local) -> None:
    ends = [300, 5000, CHUNK, CHUNK + 7, 2 * CHUNK]
    for at in range(1, 40):
        upload, acknowledged = await local.open(), 0
        died = False
        with dying(at):
            try:
                for start, end in zip([0, *ends], ends, strict=False):
                    await local.send(upload, start, end)
                    acknowledged = end
            except Death:
                died = True
        start = on_disk(local.root, upload).leading
        assert start >= acknowledged
        for end in ends:
            if end > start:
                await local.send(upload, start, end)
                start = end
        assert on_disk(local.root, upload).leading == 2 * CHUNK
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
        async with running_local(data, CONTENT) as local:
            upload = await local.open(content)
            for start, end in steps:
                await local.send(upload, start, end, content)
                recording.mark(end)

    def lost(without: str | None = None) -> bool:
        states, acknowledged = States(recording, without=without), 0
        chance = random.Random("tails")
        choices = [nothing, everything, names_only, bytes_only, *(by_chance(chance) for _ in range(10))]
        for count, event in enumerate(states.events, 1):
            acknowledged = event.what if isinstance(event, Mark) else acknowledged
            for tree in (states.after(count, choice) for choice in choices) if acknowledged else ():
                found = files_in(tree, upload)
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
            async with running_local(data, CONTENT) as local:
                upload = await local.open()
                with dying(at), suppress(Death):
                    await local.send(upload, 0, 700)
                async with local.store.appending(upload) as appender:
                    recording.mark((await appender.read_map()).leading_bytes)
        states = States(recording)
        ((count, end),) = (
            (count, event.what) for count, event in enumerate(states.events, 1) if isinstance(event, Mark)
        )
        tree = states.after(count, nothing)
        found = files_in(tree, upload)
        assert found.tail_is_sound
        assert found.leading == end, at
        told.add(end)
    assert told == {0, 700}


async def test_who_is_cancelled_while_the_map_is_opened_leaves_no_descriptor(local: Local, upload: Upload) -> None:
    async def ask() -> None:
        async with local.store.appending(upload):
            raise AssertionError("it was cancelled")

    with paused_call("open", only=lambda path: path.name == "map") as pause:
        asking = asyncio.create_task(ask())
        assert await asyncio.to_thread(pause.reached.wait, PATIENCE_SECONDS)
        asking.cancel()
        await asyncio.sleep(0)
        pause.go_on.set()
        with suppress(asyncio.CancelledError):
            await asking
        assert await asyncio.to_thread(pause.ended.wait, PATIENCE_SECONDS)


async def test_a_tail_that_did_not_outlive_a_reboot_is_withdrawn_and_one_that_did_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_local(tmp_path, CONTENT, durable=False) as local:
        uploads = [await local.open() for _ in range(2)]
        for upload in uploads:
            await local.put(upload, 0)
            await local.send(upload, CHUNK, CHUNK + 1000)
    with (tmp_path / uploads[0].place / "data").open("r+b") as data:
        data.seek(CHUNK + 500)
        data.write(b"rotten")
    monkeypatch.setattr("uploader.storage.disk.boot_id", lambda: "0f7b0c3e-5a39-4d57-9f7e-0d8f3c2b1a00")
    async with running_local(tmp_path, CONTENT, durable=False) as local:
        for upload, bad, left in zip(uploads, ([1], []), (CHUNK, CHUNK + 1000), strict=True):
            with pytest.raises(Unverified):
                await local.send(upload, CHUNK + 1000, CHUNK + 1001)
            async with local.store.closing(upload) as closer:
                assert await closer.find_bad_chunks() == bad
                await closer.withdraw(bad, generation=1, verified=True)
            assert (await local.store.read_map(upload)).leading_bytes == left
            await local.send(upload, left, CHUNK + 2000)


# Withdrawal


@pytest.mark.parametrize("at", range(1, 5))
async def test_a_withdrawal_that_dies_leaves_no_tail_of_a_chunk_that_went_bad(
    local: Local, upload: Upload, at: int
) -> None:
    await local.send(upload, 0, 1000)
    await local.send(upload, 1000, CHUNK)
    async with local.store.closing(upload) as closer:
        with dying(at), suppress(Death):
            await closer.withdraw([0], generation=1)
    assert on_disk(local.root, upload).leading in (0, CHUNK)


# Who may append


async def test_one_appends_at_a_time_and_whoever_wants_to_is_seen(local: Local, other: Local, upload: Upload) -> None:
    order = []

    async def want(by: Local, name: str) -> None:
        async with by.store.appending(upload) as appender:
            order.append(name)
            await until(lambda: appender.is_claimed or name == "third")

    first = asyncio.create_task(want(local, "first"))
    await until(lambda: bool(order))
    assert not first.done()
    second = asyncio.create_task(want(other, "second"))
    await first
    third = asyncio.create_task(want(local, "third"))
    await asyncio.gather(second, third)
    assert order == ["first", "second", "third"]
    await other.store.drain()


async def test_who_does_not_let_go_keeps_others_out_for_a_while_only(
    local: Local, other: Local, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.02)
    async with local.store.appending(upload) as appender:
        with pytest.raises(UploadBusy):
            async with other.store.appending(upload):
                pass
        assert not appender.is_claimed, "who gives up wants nothing any more"
    async with other.store.appending(upload), local.store.closing(upload):
        pass  # a closer needs not wait for it


async def test_who_waited_for_an_upload_that_ended_finds_it_gone(local: Local, other: Local, upload: Upload) -> None:
    async with AsyncExitStack() as stack:
        holder = await stack.enter_async_context(local.store.appending(upload))
        waiting = asyncio.create_task(other.store.appending(upload).__aenter__())
        await until(lambda: holder.is_claimed)
        async with local.store.closing(upload) as closer:
            await closer.unlink()
        with pytest.raises(Gone):
            await local.send(upload, 0, 10)
    with pytest.raises(Gone):
        await waiting


async def test_what_is_being_written_is_not_said_to_be_there(local: Local, other: Local, upload: Upload) -> None:
    """A record can be read before it is durable."""
    held = await local.store.hold_chunk(upload, 0, InPieces(CONTENT.chunk(0)))
    async with other.store.appending(upload) as appender:
        reading = asyncio.create_task(appender.read_map())
        assert await waits(reading)
        held.release()
        assert (await reading).leading_bytes == CHUNK
