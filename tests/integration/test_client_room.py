"""What can't fit is refused before it is read; what would be taken all the same is not."""

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.stack import Stack
from tests.support.uploading import Wire, client_on
from tests.support.waiting import eventually
from uploader.cli.client.events import Completed, Event, Failed, TransferSummary
from uploader.cli.client.local import FoundFiles
from uploader.cli.client.put import put_found
from uploader.cli.client.reporters import Reporter
from uploader.client import AsyncClient, LocalFile, QuotaExceeded, Stopped

SIZE = 12 * 64 * KIB
ONE, OTHER = Content(SIZE, seed=71), Content(SIZE, seed=72)

both_ways = pytest.mark.parametrize("hash_first_bytes", [64 * KIB, 1 << 30], ids=["opened-first", "hashed-first"])


class Unread(io.BytesIO):
    """Has a size, and fails whoever reads it."""

    def readinto(self, _buffer: object) -> int:
        raise AssertionError("it was read")

    def read(self, _size: int | None = -1) -> bytes:
        raise AssertionError("it was read")


@pytest.fixture
async def stack(make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stack]:
    monkeypatch.setattr("uploader.client.plan.ASK_FOR_ROOM_BYTES", 128 * KIB)
    async with make_stack(durability="process") as made:
        await made.services.accounts.create_token("poor", admin=False, total_space=2 * SIZE)
        yield made


async def client_of_poor(stack: Stack, wire: Wire, hash_first_bytes: int) -> AsyncClient:
    return await client_on(stack, wire, "poor", hash_first_bytes=hash_first_bytes)


@both_ways
async def test_what_can_not_fit_is_not_read(stack: Stack, hash_first_bytes: int) -> None:
    wire = Wire(stack)
    async with await client_of_poor(stack, wire, hash_first_bytes) as client:
        await client.upload(ONE.data, "one")
        wire.requests.clear()
        for name, if_exists in (("new", "keep"), ("new", "replace"), ("one", "keep")):
            with pytest.raises(QuotaExceeded) as refused:
                await client.upload(Unread(bytes(2 * SIZE)), name, if_exists=if_exists)  # type: ignore[arg-type]
            figures = ("total_space", "use_space_finished", "reserved", "requested")
            assert [refused.value.fields[each] for each in figures] == [2 * SIZE, SIZE, 0, 2 * SIZE]
            assert refused.value.code == "quota-exceeded"
        assert {request.partition(" ")[0] for request in wire.requests} == {"GET"}


@both_ways
async def test_what_was_taken_meanwhile_is_noticed(stack: Stack, hash_first_bytes: int) -> None:
    wire = Wire(stack)
    async with await client_of_poor(stack, wire, hash_first_bytes) as client:
        for name, content in (("one", ONE), ("other", OTHER)):
            await client.upload(content.data, name)
        with pytest.raises(QuotaExceeded):
            await client.upload(Unread(bytes(SIZE + 1)), "third")


@both_ways
async def test_what_needs_no_more_space_is_taken(stack: Stack, hash_first_bytes: int) -> None:
    wire = Wire(stack)
    async with await client_of_poor(stack, wire, hash_first_bytes) as client:
        await client.upload(ONE.data, "one")
        await client.upload(OTHER.data, "other")
        assert (await client.usage()).available == 0
        assert (await client.upload(ONE.data, "one")).sha256 == ONE.sha256, "it is there"
        replaced = await client.upload(ONE.data, "other", if_exists="replace")
        assert replaced.sha256 == ONE.sha256, "its content is there, and takes no more than what it replaces"
        assert (await client.usage()).available == 0


@both_ways
async def test_what_has_its_space_already_goes_on(stack: Stack, hash_first_bytes: int) -> None:
    wire = Wire(stack)
    third = Content(2 * SIZE, seed=74)
    async with await client_of_poor(stack, wire, hash_first_bytes) as client:
        transfer = client.start(third.data, "third")

        async def some_arrived() -> bool:
            return transfer.progress.received_bytes > 0

        await eventually(some_arrived)
        await transfer.stop()
        with pytest.raises(Stopped):
            await transfer
    async with await client_of_poor(stack, wire, hash_first_bytes) as client:
        assert (await client.usage()).available == 0
        assert (await client.upload(third.data, "third")).sha256 == third.sha256


async def test_of_many_files_those_that_fit_go_and_the_others_are_told(stack: Stack, tmp_path: Path) -> None:
    class Listening(Reporter):
        def __init__(self) -> None:
            self.heard: list[Event] = []

        def show(self, event: Event) -> None:
            self.heard.append(event)

    paths = []
    for number, size in enumerate((3 * SIZE, SIZE // 2, SIZE // 2)):
        paths.append(tmp_path / str(number))
        await asyncio.to_thread(paths[-1].write_bytes, Content(size, seed=80 + number).data)
    listening = Listening()
    async with await client_of_poor(stack, Wire(stack), 1 << 30) as client:
        found = FoundFiles([LocalFile.at(path) for path in paths])
        code = await put_found(client, listening, found, if_exists=None, checksum=False, verbose=False)
    assert code == 4
    [failed] = [event for event in listening.heard if isinstance(event, Failed)]
    assert (failed.path, failed.code) == (str(paths[0]), "quota-exceeded")
    assert len([event for event in listening.heard if isinstance(event, Completed)]) == 2
    summary = listening.heard[-1]
    assert isinstance(summary, TransferSummary)
    assert (summary.sent, summary.failed, summary.moved_bytes) == (2, 1, SIZE)
