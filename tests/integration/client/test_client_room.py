"""What can't fit is refused before it is read; what would be taken all the same is not."""

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.stack import Stack
from tests.support.uploading import Listening, Wire, arrived, client_on, stopped
from uploader.cli.client.events import Completed, Failed, TransferSummary
from uploader.cli.client.local import FoundFiles
from uploader.cli.client.put import put_found
from uploader.client import AsyncClient, LocalFile, QuotaExceeded

SIZE = 12 * 64 * KIB
ONE, OTHER = Content(SIZE, seed=71), Content(SIZE, seed=72)

both_ways = pytest.mark.parametrize(
    "client_options",
    [{"user_id": "poor", "hash_first_bytes": 64 * KIB}, {"user_id": "poor", "hash_first_bytes": 1 << 30}],
    ids=["opened-first", "hashed-first"],
)


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


@both_ways
async def test_what_can_not_fit_is_not_read_and_what_needs_no_more_is_taken(client: AsyncClient, wire: Wire) -> None:
    await client.upload(ONE.data, "one")
    wire.requests.clear()
    for name, if_exists in (("new", "keep"), ("new", "replace"), ("one", "keep")):
        with pytest.raises(QuotaExceeded) as refused:
            await client.upload(Unread(bytes(2 * SIZE)), name, if_exists=if_exists)  # type: ignore[arg-type]
        figures = ("total_space", "use_space_finished", "reserved", "requested")
        assert [refused.value.fields[each] for each in figures] == [2 * SIZE, SIZE, 0, 2 * SIZE]
        assert refused.value.code == "quota-exceeded"
    assert {request.partition(" ")[0] for request in wire.requests} == {"GET"}
    # What was taken meanwhile is noticed.
    await client.upload(OTHER.data, "other")
    assert (await client.usage()).available == 0
    with pytest.raises(QuotaExceeded):
        await client.upload(Unread(bytes(SIZE + 1)), "third")
    assert (await client.upload(ONE.data, "one")).sha256 == ONE.sha256, "it is there"
    replaced = await client.upload(ONE.data, "other", if_exists="replace")
    assert replaced.sha256 == ONE.sha256, "its content is there, and takes no more than what it replaces"
    assert (await client.usage()).available == 0


@both_ways
async def test_what_has_its_space_already_goes_on(
    stack: Stack, wire: Wire, client: AsyncClient, client_options: dict[str, Any]
) -> None:
    third = Content(2 * SIZE, seed=74)
    transfer = client.start(third.data, "third")
    await arrived(transfer, 1)
    await stopped(transfer)
    async with await client_on(stack, wire, **client_options) as again:
        assert (await again.usage()).available == 0
        assert (await again.upload(third.data, "third")).sha256 == third.sha256


async def test_of_many_files_those_that_fit_go_and_the_others_are_told(stack: Stack, tmp_path: Path) -> None:
    paths = []
    for number, size in enumerate((3 * SIZE, SIZE // 2, SIZE // 2)):
        paths.append(tmp_path / str(number))
        await asyncio.to_thread(paths[-1].write_bytes, Content(size, seed=80 + number).data)
    listening = Listening()
    async with await client_on(stack, Wire(stack), "poor", hash_first_bytes=1 << 30) as client:
        found = FoundFiles([LocalFile.at(path) for path in paths])
        code = await put_found(client, listening, found, if_exists=None, checksum=False, verbose=False)
    assert code == 4
    [failed] = [event for event in listening.heard if isinstance(event, Failed)]
    assert (failed.path, failed.code) == (str(paths[0]), "quota-exceeded")
    assert len([event for event in listening.heard if isinstance(event, Completed)]) == 2
    summary = listening.heard[-1]
    assert isinstance(summary, TransferSummary)
    assert (summary.sent, summary.failed, summary.moved_bytes) == (2, 1, SIZE)
