"""After a restart of the machine: chunks that were stored without a sync count only if their bytes are whole."""

from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.conftest import MakeStack
from tests.support.at_rest import check_at_rest, rests_within
from tests.support.background import flush_due, open_with_chunks, upload_of
from tests.support.content import KIB, Content
from tests.support.faults import recorded_calls
from tests.support.maps import parsed_map
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS
from uploader.storage import disk
from uploader.storage.local import chunks

CONTENT = Content(5 * 64 * KIB - 100)
LAST = CONTENT.chunk_count - 1
PROCESS = {"durability": "process", "max_pending_bytes": 1}


async def _send(stack: Stack, *numbers: int) -> Path:
    """Send chunks and account for them; the directory of the upload."""
    upload = await open_with_chunks(stack, CONTENT, *numbers)
    await flush_due(stack)
    return stack.data / upload.place


def _restart_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "boot_id", lambda: "00000000-0000-0000-0000-000000000001")


def _lose_bytes(directory: Path, number: int) -> None:
    with (directory / "data").open("r+b") as data:
        data.seek(number * CONTENT.chunk_size + 4096)
        data.write(bytes(4096))


def _lose_record(directory: Path, number: int) -> None:
    with (directory / "map").open("r+b") as file:
        file.seek(chunks.map_record_offset(number))
        file.write(bytes(chunks.MAP_RECORD_LENGTH))


async def _rests(stack: Stack) -> None:
    async def check() -> None:
        await flush_due(stack)
        assert isinstance(stack.services.redis, Redis)
        await check_at_rest(stack.services.database, stack.services.redis, stack.data)

    await rests_within(PATIENCE_SECONDS, check)


@pytest.mark.parametrize("first", ["get", "open", "put", "hydrate", "merge"])
async def test_lost_bytes_and_lost_records_are_missing_again_whatever_is_asked_first(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    async with make_stack(**PROCESS) as stack:
        directory = await _send(stack, 0, 1, 2, 3)
    _lose_bytes(directory, 1)
    _lose_record(directory, 3)
    _restart_machine(monkeypatch)
    async with make_stack(**PROCESS) as stack:  # with a Redis that was not restarted, and knows of all
        if first == "get":
            assert (await stack.client.get(f"/files/{CONTENT.md5}")).json()["upload"]["missing"] == [[1, 1], [3, 4]]
        elif first == "open":
            assert (await stack.open(CONTENT)).json()["upload"]["missing"] == [[1, 1], [3, 4]]
        elif first == "put":
            assert (await stack.put(CONTENT, LAST)).json()["received_chunks"] == 3
        elif first == "merge":
            assert (await stack.client.post(f"/files/{CONTENT.md5}/merge")).json()["missing"] == [[1, 1], [3, 4]]
        else:
            assert (await stack.services.closers.hydrate(await upload_of(stack, CONTENT))).chunks == 2
        assert (await upload_of(stack, CONTENT)).generation == 1
        await _rests(stack)
        for number in (1, 3, LAST):
            answer = (await stack.put(CONTENT, number)).json()
        assert answer["file"]["sha256"] == CONTENT.sha256
        await _rests(stack)


async def test_chunks_that_are_whole_are_checked_once_and_count(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_stack(**PROCESS) as stack:
        directory = await _send(stack, 0, 2)
    _restart_machine(monkeypatch)
    async with make_stack(**PROCESS) as stack:
        assert (await stack.open(CONTENT)).json()["upload"]["missing"] == [[1, 1], [3, 4]]
        with recorded_calls("pread") as calls:
            assert (await stack.open(CONTENT)).json()["upload"]["missing"] == [[1, 1], [3, 4]]
        assert "data" not in {name for _, name in calls}
        await _rests(stack)
        assert parsed_map((directory / "map").read_bytes()).boot_id == ""
        await stack.put(CONTENT, 1)
        assert parsed_map((directory / "map").read_bytes()).boot_id == disk.boot_id()


async def test_a_check_that_ended_in_the_middle_is_made_again(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_stack(**PROCESS) as stack:
        directory = await _send(stack, 0, 1)
        before = (directory / "map").read_bytes()
    _restart_machine(monkeypatch)
    async with make_stack(**PROCESS) as stack:
        _lose_bytes(directory, 0)
        await stack.open(CONTENT)
        (directory / "map").write_bytes(before)  # as if the power had been cut after the commit
        await stack.open(CONTENT)
        assert (await upload_of(stack, CONTENT)).generation == 2
        await _rests(stack)
        assert (await stack.client.get(f"/files/{CONTENT.md5}")).json()["upload"]["missing"] == [[0, 0], [2, 4]]


async def test_chunks_that_were_synced_are_not_checked_until_one_comes_without_a_sync(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which marks the map durably before it is stored."""
    async with make_stack(max_pending_bytes=1) as stack:
        directory = await _send(stack, 0, 1)
    _restart_machine(monkeypatch)
    async with make_stack(**PROCESS) as stack:
        with recorded_calls("pread", "preadv") as calls:
            assert (await stack.open(CONTENT)).json()["upload"]["missing"] == [[2, 4]]
        assert "data" not in {name for _, name in calls}
        assert (await upload_of(stack, CONTENT)).generation == 0
        with recorded_calls("pwrite", "fdatasync") as calls:
            await stack.put(CONTENT, 2)
            await stack.put(CONTENT, 3)
        kept = [call for call in calls if call[1] != "digest"]
        assert kept == [
            *(("pwrite", "map"), ("fdatasync", "map"), ("pwrite", "data"), ("pwrite", "map")),
            *(("pwrite", "data"), ("pwrite", "map")),
        ]
    assert parsed_map((directory / "map").read_bytes()).boot_id == disk.boot_id()
