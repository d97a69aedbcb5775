"""The Python client on the real server: what it sends, what it spares, and how it goes on after any interruption."""

import asyncio
import hashlib
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.stack import Stack
from tests.support.uploading import Wire, arrived, client_on, is_chunk, nothing, stopped
from tests.support.waiting import eventually
from uploader.client import (
    AsyncClient,
    Cancelled,
    ClientError,
    FileChanged,
    InvalidName,
    LocalFile,
    NotFound,
    Progress,
    QuotaExceeded,
    ServerProblem,
    Unauthenticated,
    Unreadable,
)
from uploader.client.plan import sample_ranges
from uploader.client.source import Uploadable, digests_of

SMALL = Content(3 * 64 * KIB - 100, seed=61)
LARGE = Content(24 * 64 * KIB - 7, seed=62)
_LAST = LARGE.chunk_count - 1

both = pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])


def written(path: Path, content: Content) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.data)
    return path


async def hashing_waits_for(monkeypatch: pytest.MonkeyPatch, event: asyncio.Event) -> None:
    """Hashing goes on as soon as the event is set: as if the disk were slow until then."""

    async def waiting(*arguments: Any) -> Any:
        await event.wait()
        return await digests_of(*arguments)

    monkeypatch.setattr("uploader.client.upload.digests_of", waiting)


@pytest.mark.parametrize("size", [0, SMALL.size, LARGE.size], ids=["empty", "small", "large"])
async def test_paths_bytes_and_file_objects_become_files(client: AsyncClient, tmp_path: Path, size: int) -> None:
    contents = [Content(size, seed=seed) for seed in range(6)]
    paths = [written(tmp_path / "here" / str(number), content) for number, content in enumerate(contents)]
    behind = io.BytesIO(b"head" + contents[3].data)
    behind.seek(4)
    with paths[2].open("rb") as opened:
        sources: list[Uploadable] = [paths[0], str(paths[1]), opened, behind, contents[4].data]
        sources.append(memoryview(contents[5].data))
        for number, (source, content) in enumerate(zip(sources, contents, strict=True)):
            file = await client.upload(source, f"folder/{number}")
            assert (file.name, file.size, file.sha256) == (f"folder/{number}", size, content.sha256)
            assert (await client.download(file, tmp_path)).read_bytes() == content.data


async def test_the_name_is_that_of_the_file_if_none_is_given(client: AsyncClient, wire: Wire, tmp_path: Path) -> None:
    for name in (None, "", "../up", "a//b", "back\\slash", "line\nfeed"):
        with pytest.raises(InvalidName):
            await client.upload(SMALL.data, name)
    assert wire.requests == []
    path = written(tmp_path / "na\u0308me.bin", SMALL)
    assert (await client.upload(path)).name == "n\u00e4me.bin"
    with path.open("rb") as opened:
        assert (await client.upload(opened)).name == "n\u00e4me.bin"


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


@both
async def test_what_is_or_was_there_so_named_is_not_sent(client: AsyncClient, wire: Wire, content: Content) -> None:
    file = await client.upload(content.data, "one")
    sent = wire.chunks_sent()
    assert await client.upload(content.data, "one") == file
    await client.rename(file.id, "moved")
    again = await client.upload(content.data, "one")
    assert (again.name, again.instant) == ("one", True)
    assert wire.chunks_sent() == sent


@pytest.mark.parametrize(
    ("owner", "content"),
    [("alice", LARGE), ("bob", SMALL), ("bob", LARGE)],
    ids=["large, one's own", "small, of others", "large, of others"],
)
async def test_what_the_server_has_is_dropped_as_soon_as_its_digests_are_known(
    stack: Stack, wire: Wire, client: AsyncClient, owner: str, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of others against a proof."""
    async with await client_on(stack, Wire(stack), owner) as other:
        await other.upload(content.data, "theirs")
    chunk_sent = asyncio.Event()
    await hashing_waits_for(monkeypatch, chunk_sent)
    if content is SMALL:  # it is hashed first
        chunk_sent.set()

    async def after(request: httpx2.Request) -> None:
        if is_chunk(request):
            chunk_sent.set()
            await asyncio.Event().wait()  # so that the digests come first

    wire.after = after
    file = await client.upload(content.data, "mine")
    assert (file.name, file.sha256, file.instant) == ("mine", content.sha256, True)
    assert len(wire.chunks_sent()) < content.chunk_count
    assert wire.count("POST .*/proof") == (owner == "bob")
    assert await client.uploads() == []


@both
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


@both
async def test_equal_files_at_the_same_time_become_as_many(client: AsyncClient, wire: Wire, content: Content) -> None:
    names = [f"copy {number}" for number in range(5)]
    files = await asyncio.gather(*(client.upload(content.data, name) for name in names))
    assert sorted(file.name for file in files) == names
    assert await client.uploads() == []
    assert (await client.usage()).reserved == 0
    if content is SMALL:
        assert list(wire.chunks_sent().values()) == [1] * SMALL.chunk_count


@both
async def test_another_run_elsewhere_sends_only_what_is_missing(
    stack: Stack, wire: Wire, client: AsyncClient, tmp_path: Path, content: Content
) -> None:
    path = written(tmp_path / "here" / "file.bin", content)
    wire.hold_chunks(after=2)
    transfer = client.start(path)
    await arrived(transfer, 2)
    await stopped(transfer)
    # Another machine: another client, another path, another time of modification.
    copy = shutil.copy(path, written(tmp_path / "there" / "file.bin", SMALL))
    os.utime(copy, (1, 1))
    other_wire = Wire(stack)
    async with await client_on(stack, other_wire) as other:
        file = await other.upload(copy)
    assert file.sha256 == content.sha256
    assert len(other_wire.chunks_sent()) == content.chunk_count - 2
    assert await client.uploads() == []


async def test_the_last_chunk_awaits_digests(client: AsyncClient, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
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
    wire.hold_chunks(after=5)
    transfer = client.start(LARGE.data, "image")
    await arrived(transfer, 5)
    await stopped(transfer)
    wire.before = nothing
    file = await client.upload(bytes(changed), "image")
    assert file.sha256 == hashlib.sha256(changed).hexdigest()
    assert await client.uploads() == []
    assert (await client.usage()).reserved == 0
    # And once more with the first content, of which a closed upload is in the way.
    assert (await client.upload(LARGE.data, "image")).sha256 == LARGE.sha256


async def test_after_its_deletion_or_cancellation_a_large_file_is_sent_again(client: AsyncClient, wire: Wire) -> None:
    file = await client.upload(LARGE.data, "large")
    await client.delete(file.id)
    wire.hold_chunks(after=LARGE.chunk_count + 3)
    transfer = client.start(LARGE.data, "large")
    await arrived(transfer, 3)
    await transfer.cancel()
    with pytest.raises(Cancelled):
        await transfer
    assert await client.uploads() == []
    wire.before = nothing
    again = await client.upload(LARGE.data, "large")
    assert (again.sha256, again.instant) == (LARGE.sha256, False)


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
    sent_there = sorted(number for upload_id, number in wire.chunks_sent() if upload_id == elsewhere)
    # The emptier one is the other device's to finish, which is instant now.
    expected = ([], [_LAST - 1, _LAST]) if sent_elsewhere > 6 else (["elsewhere"], [])
    assert (left, sent_there) == expected


@pytest.mark.parametrize("instant", ["proof", "off"])
async def test_a_small_upload_that_was_begun_under_another_name_goes_on(make_stack: MakeStack, instant: str) -> None:
    async with make_stack(instant=instant) as stack, await client_on(stack, Wire(stack)) as client:
        await stack.open(SMALL, name="elsewhere")
        file = await client.upload(SMALL.data, "here")
        assert (file.name, file.instant) == ("here", instant != "off")
        assert sorted([each.name async for each in client.files()]) == ["elsewhere", "here"]


def lost(request: httpx2.Request) -> httpx2.ReadError:
    return httpx2.ReadError("the connection broke", request=request)


async def test_a_lost_answer_costs_a_question_and_no_chunk(client: AsyncClient, wire: Wire) -> None:
    async def after(request: httpx2.Request) -> None:
        if is_chunk(request) and wire.requests.count(f"PUT {request.url.path}") == 1:
            raise lost(request)

    wire.after = after
    assert (await client.upload(LARGE.data, "large")).sha256 == LARGE.sha256
    assert set(wire.chunks_sent().values()) == {1}


async def test_every_call_survives_a_lost_answer(client: AsyncClient, wire: Wire, tmp_path: Path) -> None:
    async def after(request: httpx2.Request) -> None:
        if wire.requests.count(f"{request.method} {request.url.path}") % 2:
            raise lost(request)

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
    await stack.services.accounts.create_token("poor", admin=False, total_space=LARGE.size)
    async with await client_on(stack, wire, "poor") as poor:
        file = await poor.upload(LARGE.data, "large")
        await poor.rename(file.id, "other")
        with pytest.raises(QuotaExceeded):
            await poor.upload(LARGE.data, "large")  # a second name counts again
        assert await poor.upload(LARGE.data, "other") == await poor.file(file.id)
        wire.requests.clear()
        with pytest.raises(QuotaExceeded) as refused:
            await poor.upload(SMALL.data, "small")
        assert (refused.value.code, refused.value.fields["total_space"]) == ("quota-exceeded", LARGE.size)
        assert wire.count("POST /files/[0-9a-f]{32}") == 1
        assert await poor.uploads() == []
        with pytest.raises(NotFound):
            await poor.file("0" * 32)
    nobody = AsyncClient("http://test", "wrong", http_transport=wire)
    with pytest.raises(Unauthenticated):
        await nobody.usage()


def extend(path: Path) -> None:
    with path.open("ab") as opened:
        opened.write(b"one line more")


def cut(path: Path) -> None:
    os.truncate(path, 10)


@pytest.mark.parametrize(("content", "change"), [(SMALL, extend), (LARGE, extend), (LARGE, cut)])
async def test_a_file_that_changes_meanwhile_is_a_clear_error_and_leaves_nothing(
    client: AsyncClient, wire: Wire, tmp_path: Path, content: Content, change: Callable[[Path], None]
) -> None:
    path = written(tmp_path / "log", content)

    async def after(request: httpx2.Request) -> None:
        if is_chunk(request, 1):
            change(path)

    wire.after = after
    with pytest.raises(FileChanged, match="log changed"):
        await client.upload(path)
    assert await client.uploads() == []
    assert (await client.usage()).reserved == 0


async def test_while_paused_no_chunk_is_begun(client: AsyncClient, wire: Wire) -> None:
    transfer = client.start(LARGE.data, "large")

    async def after(request: httpx2.Request) -> None:
        if is_chunk(request, 3):
            transfer.pause()

    async def none_in_flight() -> bool:
        return transfer.progress.in_flight_bytes == 0

    wire.after = after
    await arrived(transfer, 4)
    await eventually(none_in_flight)
    sent = len(wire.requests)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(wire.requests) == sent < LARGE.chunk_count
    transfer.resume()
    file = await transfer
    assert file.sha256 == LARGE.sha256
    await transfer.cancel()  # it has ended: nothing happens
    assert await transfer == file == await client.file(file.id)


async def test_a_cancelled_await_stops_and_keeps_what_arrived(client: AsyncClient, wire: Wire) -> None:
    wire.hold_chunks(after=3)
    task = asyncio.create_task(client.upload(LARGE.data, "large"))

    async def some_arrived() -> bool:
        return any(upload.received_bytes for upload in await client.uploads())

    await eventually(some_arrived)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [upload.name for upload in await client.uploads()] == ["large"]


async def test_progress_rises_to_the_size_and_its_errors_end_it(
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

    def refuse(_progress: Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await client.upload(LARGE.data, "another", on_progress=refuse)


async def test_a_token_that_is_a_function_is_asked_before_every_request(stack: Stack, wire: Wire) -> None:
    token, asked = await stack.services.accounts.create_token("alice", admin=False, total_space=None), []

    def current() -> str:
        asked.append(1)
        return token

    async with AsyncClient("http://test", current, http_transport=wire) as client:
        await client.upload(SMALL.data, "small")
    assert len(asked) == len(wire.requests)


async def test_other_servers_are_told_from_upload_servers() -> None:
    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": b"<html>Welcome</html>"})

    async with AsyncClient("http://test", http_transport=httpx2.ASGITransport(app=page)) as client:
        with pytest.raises(ClientError) as refused:
            await client.usage()
    assert refused.value.code == "bad-answer"
    with pytest.raises(ValueError, match="not a URL"):
        AsyncClient("ftp://test")


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
async def test_chunks_become_smaller_than_the_bodies_that_a_proxy_takes(
    stack: Stack, wire: Wire, tmp_path: Path, content: Content
) -> None:
    wire.most_body_bytes = 100 * KIB
    async with await client_on(stack, wire, chunk_size=512 * KIB) as client:
        assert (await client.upload(content.data, "a")).sha256 == content.sha256
        assert {upload.name for upload in await client.uploads()} == set()
        files = [LocalFile.at(written(tmp_path / f"{number}", Content(70 * KIB, seed=number))) for number in range(5)]
        assert all(outcome.error is None for outcome in await client.upload_many(files))
        assert len([file async for file in client.files()]) == 6
        wire.most_body_bytes = 64 * KIB - 1
        with pytest.raises(ServerProblem, match="limits bodies to less than 64KiB") as refused:
            await client.upload(LARGE.data[1:], "b")
        assert (refused.value.code, refused.value.retryable) == ("body-limited", False)


async def test_open_upload_goes_on_by_appends_of_the_size_that_a_proxy_takes(stack: Stack, wire: Wire) -> None:
    async with await client_on(stack, wire, chunk_size=256 * KIB, connections=1) as client:
        wire.hold_chunks(after=2)
        transfer = client.start(LARGE.data, "a")
        await arrived(transfer, 2 * 4)
        await stopped(transfer)
        wire.before, wire.most_body_bytes = nothing, 100 * KIB
        (before,) = await client.uploads()
        transfer = client.start(LARGE.data, "a")
        assert (await transfer).sha256 == LARGE.sha256
    # A chunk was refused, and half of one; everything else that was sent was missing.
    missing_bytes = LARGE.size - before.received_bytes
    assert wire.count("PATCH /resumable/.*") == -(-missing_bytes // (64 * KIB)) + 1
    assert transfer.progress.moved_bytes == missing_bytes + 256 * KIB + 128 * KIB
