"""The Python client on the real server: what it sends, what it spares, and how it goes on after any interruption."""

import asyncio
import hashlib
import io
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.stack import Stack
from tests.support.uploading import Wire, client_on
from tests.support.waiting import eventually
from uploader.client import (
    AsyncClient,
    Cancelled,
    ClientError,
    FileChanged,
    InvalidName,
    NotFound,
    Progress,
    QuotaExceeded,
    Stopped,
    Unauthenticated,
    Unreadable,
)
from uploader.client.plan import sample_ranges
from uploader.client.source import Uploadable, digests_of

SMALL = Content(3 * 64 * KIB - 100, seed=61)
LARGE = Content(24 * 64 * KIB - 7, seed=62)
_LAST = LARGE.chunk_count - 1


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    """What survives a power cut is not the client's doing, and waiting for the disk takes most of the time."""
    async with make_stack(durability="process") as made:
        yield made


@pytest.fixture
def wire(stack: Stack) -> Wire:
    return Wire(stack)


@pytest.fixture
async def client(stack: Stack, wire: Wire) -> AsyncIterator[AsyncClient]:
    async with await client_on(stack, wire) as made:
        yield made


def written(path: Path, content: Content) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.data)
    return path


def is_chunk(request: httpx2.Request, number: int | None = None) -> bool:
    return request.method == "PUT" and (number is None or request.url.path.endswith(f"/chunks/{number}"))


async def hashing_waits_for(monkeypatch: pytest.MonkeyPatch, event: asyncio.Event) -> None:
    """Hashing goes on as soon as the event is set: as if the disk were slow until then."""

    async def waiting(*arguments: Any) -> Any:
        await event.wait()
        return await digests_of(*arguments)

    monkeypatch.setattr("uploader.client.upload.digests_of", waiting)


# What can be uploaded


@pytest.mark.parametrize("size", [0, SMALL.size, LARGE.size], ids=["empty", "small", "large"])
async def test_paths_bytes_and_file_objects_become_files(client: AsyncClient, tmp_path: Path, size: int) -> None:
    contents = [Content(size, seed=seed) for seed in range(6)]
    paths = [written(tmp_path / "here" / str(number), content) for number, content in enumerate(contents)]
    with paths[2].open("rb") as opened:
        sources: list[Uploadable] = [paths[0], str(paths[1]), opened, io.BytesIO(contents[3].data), contents[4].data]
        sources.append(memoryview(contents[5].data))
        for number, (source, content) in enumerate(zip(sources, contents, strict=True)):
            file = await client.upload(source, f"folder/{number}")
            assert (file.name, file.size, file.sha256) == (f"folder/{number}", size, content.sha256)
            assert (await client.download(file, tmp_path)).read_bytes() == content.data


async def test_a_file_object_is_read_from_where_it_stands(client: AsyncClient) -> None:
    opened = io.BytesIO(b"head" + SMALL.data)
    opened.seek(4)
    assert (await client.upload(opened, "rest")).sha256 == SMALL.sha256


async def test_the_name_is_by_default_that_of_the_file_here(client: AsyncClient, tmp_path: Path) -> None:
    path = written(tmp_path / "na\u0308me.bin", SMALL)
    assert (await client.upload(path)).name == "n\u00e4me.bin"
    with path.open("rb") as opened:
        assert (await client.upload(opened)).name == "n\u00e4me.bin"
    with pytest.raises(InvalidName):
        await client.upload(SMALL.data)


@pytest.mark.parametrize("name", ["", "../up", "a//b", "back\\slash", "line\nfeed"])
async def test_a_name_that_the_server_refuses_is_refused_before_anything_is_sent(
    client: AsyncClient, wire: Wire, name: str
) -> None:
    with pytest.raises(InvalidName):
        await client.upload(SMALL.data, name)
    assert wire.requests == []


async def test_what_can_not_be_read_is_a_clear_error(client: AsyncClient, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "missing"):
        with pytest.raises(Unreadable, match=path.name):
            await client.upload(path)
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe, pytest.raises(Unreadable, match="seek"):
        await client.upload(pipe, "name")
    with pytest.raises(TypeError, match="binary"):
        await client.upload(io.StringIO("text"), "name")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await client.upload(42, "name")  # type: ignore[arg-type]


# What need not be sent


async def test_a_small_file_that_is_there_is_not_sent(client: AsyncClient, wire: Wire) -> None:
    first = await client.upload(SMALL.data, "one")
    sent = wire.chunks_sent()
    second = await client.upload(SMALL.data, "two")
    assert (second.name, second.instant) == ("two", True)
    assert (await client.upload(SMALL.data, "one")).id == first.id
    assert wire.chunks_sent() == sent


async def test_a_large_file_that_is_there_is_dropped_as_soon_as_its_digests_are_known(
    client: AsyncClient, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.upload(LARGE.data, "one")
    wire.requests.clear()
    two_chunks_sent = asyncio.Event()
    await hashing_waits_for(monkeypatch, two_chunks_sent)

    async def after(request: httpx2.Request) -> None:
        if is_chunk(request):
            two_chunks_sent.set()
            if len(wire.chunks_sent()) > 2:  # slow, so that the digests come first
                await asyncio.sleep(3600)

    wire.after = after
    file = await client.upload(LARGE.data, "two")
    assert (file.name, file.instant) == ("two", True)
    assert 0 < len(wire.chunks_sent()) < LARGE.chunk_count
    assert await client.uploads() == []


async def test_the_same_large_file_again_sends_nothing(client: AsyncClient, wire: Wire) -> None:
    first = await client.upload(LARGE.data, "one")
    wire.requests.clear()
    assert await client.upload(LARGE.data, "one") == first
    assert wire.chunks_sent() == {}


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
async def test_content_of_others_is_had_against_a_proof(
    stack: Stack, wire: Wire, client: AsyncClient, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await client_on(stack, Wire(stack), "bob") as bob:
        await bob.upload(content.data, "bobs")
    chunk_sent = asyncio.Event()
    await hashing_waits_for(monkeypatch, chunk_sent)
    if content is SMALL:
        chunk_sent.set()

    async def after(request: httpx2.Request) -> None:
        if is_chunk(request):
            chunk_sent.set()
            await asyncio.sleep(3600)

    wire.after = after
    file = await client.upload(content.data, "mine")
    assert (file.name, file.sha256, file.instant) == ("mine", content.sha256, True)
    assert wire.count("POST .*/proof") == 1
    assert await client.uploads() == []


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
async def test_where_the_proof_is_not_taken_the_bytes_are_sent(
    stack: Stack, wire: Wire, client: AsyncClient, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await client_on(stack, Wire(stack), "bob") as bob:
        await bob.upload(content.data, "bobs")

    async def wrong(*_: Any) -> str:
        return "00" * 32

    monkeypatch.setattr("uploader.client.upload.proof_of", wrong)
    file = await client.upload(content.data, "mine")
    assert (file.sha256, file.instant) == (content.sha256, False)
    assert wire.count("POST .*/proof") == 1


async def test_equal_files_at_the_same_time_are_sent_once(client: AsyncClient, wire: Wire) -> None:
    files = await asyncio.gather(*(client.upload(SMALL.data, f"copy {number}") for number in range(5)))
    assert sorted(file.name for file in files) == [f"copy {number}" for number in range(5)]
    assert max(wire.chunks_sent().values()) == 1
    assert len(wire.chunks_sent()) == SMALL.chunk_count


async def test_large_equal_files_at_the_same_time_become_two_files(client: AsyncClient) -> None:
    files = await asyncio.gather(*(client.upload(LARGE.data, f"copy {number}") for number in range(3)))
    assert sorted(file.name for file in files) == ["copy 0", "copy 1", "copy 2"]
    assert await client.uploads() == []
    assert (await client.usage()).reserved == 0


# Going on


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
async def test_another_run_elsewhere_sends_only_what_is_missing(
    stack: Stack, wire: Wire, client: AsyncClient, tmp_path: Path, content: Content
) -> None:
    path = written(tmp_path / "here" / "file.bin", content)

    async def before(request: httpx2.Request) -> None:
        if is_chunk(request) and len(wire.chunks_sent()) > 2:
            await asyncio.sleep(3600)

    wire.before = before
    transfer = client.start(path)

    async def two_arrived() -> bool:
        return transfer.progress.received_bytes >= 2 * 64 * KIB

    await eventually(two_arrived)
    await transfer.stop()
    with pytest.raises(Stopped):
        await transfer
    # Another machine: another client, another path, another time of modification.
    copy = shutil.copy(path, written(tmp_path / "there" / "file.bin", SMALL))
    os.utime(copy, (1, 1))
    other_wire = Wire(stack)
    async with await client_on(stack, other_wire) as other:
        file = await other.upload(copy)
    assert file.sha256 == content.sha256
    assert len(other_wire.chunks_sent()) == content.chunk_count - 2
    assert await client.uploads() == []


async def test_the_last_chunk_waits_for_the_digests(
    client: AsyncClient, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the server can always compare, and no file of mixed bytes can come to be."""
    hash_now = asyncio.Event()
    await hashing_waits_for(monkeypatch, hash_now)
    uploading = asyncio.create_task(client.upload(LARGE.data, "large"))

    async def all_but_one_sent() -> bool:
        return len(wire.chunks_sent()) == _LAST

    await eventually(all_but_one_sent)
    hash_now.set()
    assert (await uploading).sha256 == LARGE.sha256
    told = next(number for number, each in enumerate(wire.requests) if each.startswith("PATCH"))
    last = next(number for number, each in enumerate(wire.requests) if each.endswith(f"/chunks/{_LAST}"))
    assert told < last


async def test_an_upload_of_other_bytes_under_the_same_key_is_begun_anew(client: AsyncClient, wire: Wire) -> None:
    """Same name, same size, same sample: only the digests tell them apart."""
    changed = bytearray(LARGE.data)
    offset = sample_ranges(LARGE.size)[1][0] - 1  # between two sampled blocks
    changed[offset] ^= 1
    wire.before = _stop_after(wire, 5)
    transfer = client.start(LARGE.data, "image")
    await eventually(_received(transfer, 5))
    await transfer.stop()
    wire.before = _stop_after(wire, 10_000)
    file = await client.upload(bytes(changed), "image")
    assert file.sha256 == hashlib.sha256(changed).hexdigest()
    assert await client.uploads() == []
    assert (await client.usage()).reserved == 0
    # And once more with the first content, of which a closed upload is in the way.
    assert (await client.upload(LARGE.data, "image")).sha256 == LARGE.sha256


def _stop_after(wire: Wire, count: int) -> Any:
    async def before(request: httpx2.Request) -> None:
        if is_chunk(request) and len(wire.chunks_sent()) > count:
            await asyncio.sleep(3600)

    return before


def _received(transfer: Any, chunks: int) -> Any:
    async def arrived() -> bool:
        return bool(transfer.progress.received_bytes >= chunks * 64 * KIB)

    return arrived


async def test_after_its_file_was_deleted_or_its_upload_cancelled_a_large_file_is_sent_again(
    client: AsyncClient, wire: Wire
) -> None:
    file = await client.upload(LARGE.data, "large")
    await client.delete(file.id)
    wire.before = _stop_after(wire, LARGE.chunk_count + 3)
    transfer = client.start(LARGE.data, "large")
    await eventually(_received(transfer, 3))
    await transfer.cancel()
    with pytest.raises(Cancelled):
        await transfer
    assert await client.uploads() == []
    wire.before = _stop_after(wire, 10_000)
    again = await client.upload(LARGE.data, "large")
    assert (again.sha256, again.instant) == (LARGE.sha256, False)


async def test_a_file_that_was_renamed_is_had_again_under_its_old_name(client: AsyncClient, wire: Wire) -> None:
    file = await client.upload(LARGE.data, "large")
    await client.rename(file.id, "moved")
    wire.requests.clear()
    again = await client.upload(LARGE.data, "large")
    assert (again.name, again.instant) == ("large", True)
    assert wire.chunks_sent() == {}


@pytest.mark.parametrize("sent_elsewhere", [2, LARGE.chunk_count - 2], ids=["emptier", "fuller"])
async def test_of_two_uploads_of_the_same_content_the_fuller_one_goes_on(
    stack: Stack, wire: Wire, client: AsyncClient, sent_elsewhere: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another device began it, by its MD5 and under another name."""
    elsewhere = (await stack.open(LARGE, name="elsewhere")).json()["upload"]["id"]
    for number in range(sent_elsewhere):
        await stack.put(LARGE, number)
    six_arrived, met = asyncio.Event(), asyncio.Event()
    await hashing_waits_for(monkeypatch, six_arrived)

    async def before(request: httpx2.Request) -> None:
        if is_chunk(request) and elsewhere not in request.url.path and len(wire.chunks_sent()) > 6:
            six_arrived.set()
            await met.wait()

    async def after(request: httpx2.Request) -> None:
        if sent_elsewhere < 6 and request.url.path == f"/uploads/{elsewhere}":
            met.set()

    wire.before, wire.after = before, after
    file = await client.upload(LARGE.data, "here")
    assert (file.name, file.sha256) == ("here", LARGE.sha256)
    left = [upload.name for upload in await client.uploads()]
    sent_there = [number for upload_id, number in wire.chunks_sent() if upload_id == elsewhere]
    if sent_elsewhere > 6:
        assert left == []
        assert sorted(sent_there) == [_LAST - 1, _LAST]
    else:
        assert left == ["elsewhere"]  # it is the other device's to finish, which is instant now
        assert sent_there == []


async def test_a_small_upload_that_was_begun_under_another_name_gives_both_files(
    stack: Stack, client: AsyncClient
) -> None:
    await stack.open(SMALL, name="elsewhere")
    file = await client.upload(SMALL.data, "here")
    assert (file.name, file.instant) == ("here", True)
    assert sorted([each.name async for each in client.files()]) == ["elsewhere", "here"]


# Failures of the moment


async def test_a_lost_answer_costs_a_question_and_no_chunk(client: AsyncClient, wire: Wire) -> None:
    async def after(request: httpx2.Request) -> None:
        if is_chunk(request) and wire.chunks_sent()[_chunk(request)] == 1:
            raise httpx2.ReadError("the connection broke", request=request)

    wire.after = after
    assert (await client.upload(LARGE.data, "large")).sha256 == LARGE.sha256
    assert set(wire.chunks_sent().values()) == {1}


def _chunk(request: httpx2.Request) -> tuple[str, int]:
    _, _, upload_id, _, number = request.url.path.split("/")
    return upload_id, int(number)


async def test_every_call_survives_a_lost_answer(client: AsyncClient, wire: Wire, tmp_path: Path) -> None:
    async def after(request: httpx2.Request) -> None:
        line = f"{request.method} {request.url.path}"
        if wire.requests.count(line) % 2:
            raise httpx2.ReadError("the connection broke", request=request)

    wire.after = after
    for content in (SMALL, LARGE):
        file = await client.upload(content.data, "a")
        file = await client.rename(file.id, "b")
        assert [each async for each in client.files()] == [file]
        assert (await client.download(file, tmp_path)).read_bytes() == content.data
        await client.delete(file.id)
        (tmp_path / "b").unlink()
    assert (await client.usage()).use_space_finished == 0


async def test_what_is_refused_for_good_is_not_tried_again(stack: Stack, wire: Wire) -> None:
    await stack.services.accounts.create_token("poor", admin=False, total_space=1000)
    async with await client_on(stack, wire, "poor") as poor:
        with pytest.raises(QuotaExceeded) as refused:
            await poor.upload(SMALL.data, "small")
        assert (refused.value.code, refused.value.fields["total_space"]) == ("quota-exceeded", 1000)
        assert wire.count("POST /files/[0-9a-f]{32}") == 1
        with pytest.raises(QuotaExceeded):
            await poor.upload(LARGE.data, "large")
        assert await poor.uploads() == []
        with pytest.raises(NotFound):
            await poor.file("0" * 32)
    nobody = AsyncClient("http://test", "wrong", http_transport=wire)
    with pytest.raises(Unauthenticated):
        await nobody.usage()


async def test_a_large_file_that_is_there_needs_no_space_to_be_opened(stack: Stack, wire: Wire) -> None:
    await stack.services.accounts.create_token("full", admin=False, total_space=LARGE.size)
    async with await client_on(stack, wire, "full") as full:
        file = await full.upload(LARGE.data, "large")
        await full.rename(file.id, "other")
        with pytest.raises(QuotaExceeded):
            await full.upload(LARGE.data, "large")  # a second name counts again
        assert (await full.upload(LARGE.data, "other")) == await full.file(file.id)


async def test_a_token_that_is_a_function_is_asked_before_every_request(stack: Stack, wire: Wire) -> None:
    token = await stack.services.accounts.create_token("alice", admin=False, total_space=None)
    asked = []

    def current() -> str:
        asked.append(1)
        return token

    async with AsyncClient("http://test", current, http_transport=wire) as client:
        await client.upload(SMALL.data, "small")
    assert len(asked) == len(wire.requests)


# Content that changes


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
async def test_a_file_that_changes_meanwhile_is_a_clear_error_and_leaves_nothing(
    client: AsyncClient, wire: Wire, tmp_path: Path, content: Content
) -> None:
    path = written(tmp_path / "log", content)

    async def after(request: httpx2.Request) -> None:
        if is_chunk(request, 1):
            with path.open("ab") as opened:
                opened.write(b"one line more")

    wire.after = after
    with pytest.raises(FileChanged, match="log changed"):
        await client.upload(path)
    assert await client.uploads() == []
    assert (await client.usage()).reserved == 0


async def test_a_file_that_becomes_shorter_is_a_clear_error(client: AsyncClient, wire: Wire, tmp_path: Path) -> None:
    path = written(tmp_path / "log", LARGE)

    async def after(request: httpx2.Request) -> None:
        if is_chunk(request, 1):
            os.truncate(path, 10)

    wire.after = after
    with pytest.raises(FileChanged):
        await client.upload(path)


# Pause, stop, cancel


async def test_while_paused_no_chunk_is_begun(client: AsyncClient, wire: Wire) -> None:
    transfer = client.start(LARGE.data, "large")

    async def after(request: httpx2.Request) -> None:
        if is_chunk(request, 3):
            transfer.pause()

    wire.after = after
    await eventually(_received(transfer, 4))
    await eventually(_nothing_in_flight(transfer))
    sent = len(wire.requests)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(wire.requests) == sent < LARGE.chunk_count
    transfer.resume()
    assert (await transfer).sha256 == LARGE.sha256


def _nothing_in_flight(transfer: Any) -> Any:
    async def landed() -> bool:
        return bool(transfer.progress.in_flight_bytes == 0)

    return landed


async def test_a_cancelled_await_stops_and_keeps_what_arrived(client: AsyncClient, wire: Wire) -> None:
    wire.before = _stop_after(wire, 3)
    task = asyncio.create_task(client.upload(LARGE.data, "large"))

    async def arrived() -> bool:
        return any(upload.received_bytes for upload in await client.uploads())

    await eventually(arrived)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [upload.name for upload in await client.uploads()] == ["large"]


async def test_cancelling_what_has_ended_does_nothing(client: AsyncClient) -> None:
    transfer = client.start(SMALL.data, "small")
    file = await transfer
    await transfer.cancel()
    assert await transfer == file == await client.file(file.id)


# Progress


async def test_progress_rises_to_the_size_and_ends_complete(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uploader.client.transfer._SHORTEST_INTERVAL_SECONDS", 0)
    seen: list[Progress] = []
    await client.upload(LARGE.data, "large", on_progress=seen.append)
    received = [progress.received_bytes for progress in seen]
    assert received == sorted(received)
    assert seen[0].state == "hashing"
    assert (seen[-1].state, seen[-1].received_bytes, seen[-1].hashed_bytes) == ("complete", LARGE.size, LARGE.size)
    assert seen[-1].in_flight_bytes == 0
    assert max(progress.in_flight_bytes for progress in seen) <= 4 * 64 * KIB
    assert all(progress.received_bytes + progress.in_flight_bytes <= LARGE.size for progress in seen)


async def test_an_error_of_the_callback_ends_the_upload(client: AsyncClient) -> None:
    def refuse(_progress: Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await client.upload(LARGE.data, "large", on_progress=refuse)


async def test_where_instant_upload_is_off_a_second_name_is_sent(make_stack: MakeStack) -> None:
    async with make_stack(instant="off") as stack:
        wire = Wire(stack)
        async with await client_on(stack, wire) as client:
            await stack.open(SMALL, name="elsewhere")
            file = await client.upload(SMALL.data, "here")
            assert (file.name, file.instant) == ("here", False)


async def test_other_servers_are_told_from_upload_servers(stack: Stack) -> None:
    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": b"<html>Welcome</html>"})

    async with AsyncClient("http://test", http_transport=httpx2.ASGITransport(app=page)) as client:
        with pytest.raises(ClientError) as refused:
            await client.usage()
    assert refused.value.code == "bad-answer"
    with pytest.raises(ValueError, match="not a URL"):
        AsyncClient("ftp://test")
