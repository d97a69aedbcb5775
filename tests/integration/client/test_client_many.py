"""Many files by the Python client on the real server: what it asks, what it sends, and how one that fails harms no other."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.content import KIB, Content
from tests.support.stack import Stack
from tests.support.uploading import Listening, Wire, client_on, nothing, stopped
from tests.support.waiting import eventually
from uploader.cli.client.events import Noted
from uploader.cli.client.local import FoundFiles
from uploader.cli.client.put import put_found
from uploader.client import (
    AsyncClient,
    Cancelled,
    InvalidName,
    LocalFile,
    Outcome,
    Patience,
    QuotaExceeded,
    ServerTooOld,
    Unauthenticated,
    Unreachable,
    Unreadable,
    Wanted,
    Watcher,
)

SMALL = [Content(size, seed=120 + size) for size in (0, 1, 511, 512, 4096, 60_000)]
MIDDLE = Content(300 * KIB, seed=121)
LARGE = Content(24 * 64 * KIB - 7, seed=122)
ALL = [*SMALL, MIDDLE, LARGE]


@pytest.fixture
def client_options() -> dict[str, Any]:
    return {"chunk_size": 512 * KIB, "hash_first_bytes": 512 * KIB}


def folder_of(directory: Path, contents: Sequence[Content] = ALL, to: str = "to") -> list[LocalFile]:
    """Write these, and find them as files of a folder on the server."""
    directory.mkdir(exist_ok=True)
    for number, content in enumerate(contents):
        (directory / f"{number:04}").write_bytes(content.data)
    return found_in(directory, to)


def found_in(directory: Path, to: str = "to") -> list[LocalFile]:
    return [LocalFile.at(path, f"{to}/{path.name}") for path in sorted(directory.iterdir())]


def hows(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """How each became a file, or why it did not."""
    return {
        str(outcome.local.name): outcome.how if outcome.error is None else outcome.error.code for outcome in outcomes
    }


async def names_of(client: AsyncClient) -> list[str]:
    return sorted([file.name async for file in client.files()])


def is_batch(request: httpx2.Request) -> bool:
    """With members."""
    return request.url.path == "/files/batch" and int(request.headers["content-length"]) > 1024


def whole(wire: Wire) -> int:
    """Files that went in a request of their own."""
    return wire.count("PUT /files/[0-9a-f]{32}")


async def test_a_folder_becomes_files_by_few_requests(client: AsyncClient, wire: Wire, tmp_path: Path) -> None:
    for local in folder_of(tmp_path / "here"):
        os.utime(local.path, ns=(0, 1_700_000_000_123_456_000))
    files = found_in(tmp_path / "here")
    outcomes = await client.upload_many(files)
    assert hows(outcomes) == {local.name: "sent" for local in files}
    by_name = {outcome.local.name: outcome.file for outcome in outcomes}
    for local, content in zip(files, ALL, strict=True):
        file = by_name[local.name]
        assert file is not None
        assert (file.name, file.size, file.sha256) == (local.name, content.size, content.sha256)
        assert file.modified_at is not None
        assert file.modified_at.isoformat() == "2023-11-14T22:13:20.123456+00:00"
        assert (await client.download(file, tmp_path)).read_bytes() == content.data
    # One asks whether the server takes batches, one is a batch.
    assert (wire.count("POST /files/batch"), whole(wire)) == (2, 1)
    assert wire.count("GET /me/files") == 1


async def test_an_unchanged_folder_costs_hardly_a_request(
    stack: Stack, client: AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uploader.client.files._PAGE_FILES", 20)
    contents = [Content(3, seed=number) for number in range(21)] + ALL
    files = folder_of(tmp_path / "here", contents)
    first = await client.upload_many(files)
    assert {outcome.error for outcome in first} == {None}
    for local in files:
        Path(local.path).unlink()  # so nothing of it is read
    wire = Wire(stack)
    async with await client_on(stack, wire, chunk_size=512 * KIB) as again:
        outcomes = await again.upload_many(files)
    assert hows(outcomes) == {local.name: "present" for local in files}
    assert sorted(wire.requests) == ["GET /config", "GET /me/files", "GET /me/files", "POST /files/batch"]
    assert len(await names_of(client)) == len(files)


async def test_only_what_is_new_or_changed_is_sent(client: AsyncClient, wire: Wire, tmp_path: Path) -> None:
    files = folder_of(tmp_path / "here")
    await client.upload_many(files)
    (tmp_path / "here" / "0004").write_bytes(b"changed")
    (tmp_path / "here" / "0006").write_bytes(Content(300 * KIB, seed=123).data)
    (tmp_path / "here" / "new").write_bytes(b"new")
    os.utime(tmp_path / "here" / "0005", (1, 1))  # touched alone
    wire.requests.clear()
    outcomes = await client.upload_many(found_in(tmp_path / "here"))
    sent = {name for name, how in hows(outcomes).items() if how == "sent"}
    assert sent == {"to/0004", "to/0006", "to/new"}
    assert len(outcomes) == len(ALL) + 1
    assert (wire.count("POST /files/batch"), whole(wire)) == (1, 1)


async def test_a_change_that_only_a_checksum_shows_is_found_by_it(client: AsyncClient, tmp_path: Path) -> None:
    files = folder_of(tmp_path / "here")
    await client.upload_many(files)
    for number in (4, 6, 7):  # small, middle and large
        changed = Path(files[number].path)
        changed.write_bytes(Content(files[number].size, seed=124).data)
        os.utime(changed, ns=(0, files[number].modified_ns))
    assert set(hows(await client.upload_many(files)).values()) == {"present"}
    outcomes = hows(await client.upload_many(files, checksum=True))
    assert {name for name, how in outcomes.items() if how == "sent"} == {files[number].name for number in (4, 6, 7)}
    assert list(outcomes.values()).count("present") == len(files) - 3


async def test_what_is_there_under_another_name_is_had_at_once(client: AsyncClient, wire: Wire, tmp_path: Path) -> None:
    files = folder_of(tmp_path / "here")
    await client.upload_many(files)
    wire.requests.clear()
    outcomes = await client.upload_many(folder_of(tmp_path / "here", to="copy"))
    assert {name for name, how in hows(outcomes).items() if how == "instant"} >= {"copy/0006"}
    assert (whole(wire), wire.count("POST /files/status")) == (0, 1)
    assert len(await names_of(client)) == 2 * len(ALL)


async def test_single_files_go_in_one_request_up_to_a_chunk(client: AsyncClient, wire: Wire) -> None:
    for content in (SMALL[5], MIDDLE):
        file = await client.upload(content.data, f"single/{content.size}")
        assert file.sha256 == content.sha256
        again = await client.upload(content.data, f"single/{content.size}")
        assert again == file
    assert wire.count("POST /files/[0-9a-f]{32}") == 1  # the middle one again: asked for, and not sent
    assert whole(wire) == 3
    assert wire.count("(GET /config|POST /files/batch)") == 2
    await client.upload(LARGE.data, "single/large")
    assert (whole(wire), len(wire.chunks_sent())) == (3, 3)


async def test_a_name_that_is_taken_fails_or_is_replaced_as_is_wanted(client: AsyncClient, tmp_path: Path) -> None:
    files = folder_of(tmp_path / "here")
    await client.upload_many(files[::2])
    others = folder_of(tmp_path / "here", [Content(content.size + 1, seed=125) for content in ALL])
    failed = hows(await client.upload_many(others, if_exists="fail"))
    assert failed == {local.name: "sent" if number % 2 else "name-taken" for number, local in enumerate(files)}
    others = folder_of(tmp_path / "here", [Content(content.size + 2, seed=126) for content in ALL])
    outcomes = await client.upload_many(others, if_exists="replace")
    assert set(hows(outcomes).values()) == {"sent"}
    assert await names_of(client) == sorted(local.name for local in others)
    await client.upload(b"other", "to/0000", if_exists="replace")
    assert len(await names_of(client)) == len(others)
    await client.upload(b"one more", "to/0000")
    assert len(await names_of(client)) == len(others) + 1


async def test_a_batch_whose_answer_is_lost_makes_no_twins(client: AsyncClient, wire: Wire, tmp_path: Path) -> None:
    files = folder_of(tmp_path / "here", SMALL)
    lost = 0

    async def after(request: httpx2.Request) -> None:
        nonlocal lost
        if is_batch(request) and lost < 2:
            lost += 1
            raise httpx2.ReadError("the connection broke", request=request)

    wire.after = after
    outcomes = await client.upload_many(files)
    assert hows(outcomes) == {local.name: "present" for local in files}
    assert await names_of(client) == sorted(local.name for local in files)


class CuttingWire(Wire):
    """Lets only a part of the first batch arrive, as a proxy does that gives up."""

    cut_at_bytes = 4000

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        if is_batch(request) and self.cut_at_bytes:
            content, self.cut_at_bytes = request.content[: self.cut_at_bytes], 0
            headers = [(name, value) for name, value in request.headers.items() if name != "content-length"]
            request = httpx2.Request(request.method, request.url, headers=headers, content=content)
        return await super().handle_async_request(request)


async def test_of_a_batch_that_arrives_in_part_the_rest_is_sent_again(stack: Stack, tmp_path: Path) -> None:
    wire = CuttingWire(stack)
    files = folder_of(tmp_path / "here", [Content(500, seed=number) for number in range(20)])
    async with await client_on(stack, wire) as client:
        outcomes = await client.upload_many(files)
        assert len(outcomes) == len(files)
        assert "sent" in hows(outcomes).values()
        assert await names_of(client) == sorted(local.name for local in files)


async def test_where_batches_are_refused_each_goes_for_itself(client: AsyncClient, wire: Wire, tmp_path: Path) -> None:
    """As a proxy does that takes no large bodies."""

    async def before(request: httpx2.Request) -> None:
        if is_batch(request):
            request.url = request.url.copy_with(path="/nothing")

    wire.before = before
    files = folder_of(tmp_path / "here", [*SMALL[1:], MIDDLE])
    assert hows(await client.upload_many(files)) == {local.name: "sent" for local in files}
    assert whole(wire) == len(files)


async def test_what_is_refused_harms_no_other(stack: Stack, wire: Wire, tmp_path: Path) -> None:
    await stack.services.accounts.create_token("poor", admin=False, total_space=5000)
    files = folder_of(tmp_path / "here", [*SMALL[:5], SMALL[5], SMALL[1]])
    files.append(LocalFile(tmp_path / "missing", "to/missing", 1, 0))
    files.append(LocalFile(tmp_path / "here" / "0001", "../up", 1, 0))
    async with await client_on(stack, wire, "poor") as poor:
        outcomes = await poor.upload_many(files)
        errors = {outcome.local.name: type(outcome.error) for outcome in outcomes if outcome.error is not None}
        # 5,120 bytes: the one of 4,096 does not fit behind 1,024 others, or they do not behind it.
        assert errors.pop("to/missing") is Unreadable
        assert errors.pop("../up") is InvalidName
        assert errors.pop("to/0005") is QuotaExceeded
        assert set(errors.values()) <= {QuotaExceeded}
        assert len(errors) == 1
        assert len(await names_of(poor)) == 5
        assert (await poor.usage()).use_space_finished <= 5000


async def test_what_stands_between_us_and_the_server_is_told_once(stack: Stack, wire: Wire, tmp_path: Path) -> None:
    files = folder_of(tmp_path / "here")
    async with AsyncClient("http://test", "wrong", http_transport=wire) as nobody:
        outcomes = await nobody.upload_many(files)
    assert [type(outcome.error) for outcome in outcomes] == [Unauthenticated]

    async def before(request: httpx2.Request) -> None:
        if is_batch(request) or request.method == "PUT":
            raise httpx2.ConnectError("nobody listens", request=request)

    wire.before = before
    patience = Patience(give_up_after_seconds=0.05, first_pause_seconds=0.01)
    async with await client_on(stack, wire, patience=patience, connections=1) as client:
        outcomes = await client.upload_many(files[:5])
    assert [type(outcome.error) for outcome in outcomes] == [Unreachable]


async def test_a_paused_folder_waits_and_a_stopped_one_keeps_what_is_there(
    client: AsyncClient, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uploader.client.batch._MOST_MEMBERS", 40)
    files = folder_of(tmp_path / "here", [Content(10, seed=number) for number in range(120)])
    transfer = client.start_many(files)
    paused = asyncio.Event()

    async def after(request: httpx2.Request) -> None:
        if is_batch(request):
            transfer.pause()
            paused.set()

    async def answered() -> bool:
        return transfer.progress.received_bytes >= 10 * 40

    wire.after = after
    await paused.wait()
    await eventually(answered)
    assert wire.count("POST /files/batch") <= 3  # the question, and the two that were on their way
    await stopped(transfer)
    there = len(await names_of(client))
    assert 40 <= there <= 80
    wire.after = nothing
    outcomes = hows(await client.upload_many(files))
    # A server goes on with what it has received.
    assert there <= list(outcomes.values()).count("present") <= 80
    assert len(outcomes) == 120


async def test_of_those_that_wait_for_a_pause_one_gets_the_last_file(
    client: AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = folder_of(tmp_path / "here", [Content(0)] * 5)  # the pause stops no bytes of those that are on their way
    await client.upload_many(files)
    monkeypatch.setattr("uploader.client.plan.SMALL_BYTES", -1)  # each comes alone
    wanted = [Wanted(file, file.name) async for file in client.files()]
    ended = []

    class Pausing(Watcher):
        def ended(self, outcome: Outcome) -> None:
            ended.append(outcome)
            transfer.pause()

    transfer = client.start_download_many(wanted, tmp_path / "there", watcher=Pausing())

    async def all_but_one() -> bool:
        return len(ended) == 4

    await eventually(all_but_one)
    await asyncio.sleep(0)
    transfer.resume()
    assert len(await transfer) == 5


async def test_a_cancelled_folder_leaves_no_open_upload(client: AsyncClient, wire: Wire, tmp_path: Path) -> None:
    wire.hold_chunks(after=1)
    transfer = client.start_many(folder_of(tmp_path / "here", [LARGE]))

    async def some_arrived() -> bool:
        return wire.chunks_sent().total() > 1

    await eventually(some_arrived)
    await transfer.cancel()
    with pytest.raises(Cancelled):
        await transfer
    assert await client.uploads() == []


async def test_a_watcher_is_told_of_each_file_once(client: AsyncClient, tmp_path: Path) -> None:
    begun, moved, ended = [], set(), []

    class Noting(Watcher):
        def begun(self, local: LocalFile) -> None:
            begun.append(local.name)

        def moved(self, local: LocalFile, progress: Any) -> None:
            moved.add(local.name)
            assert progress.name == local.name

        def ended(self, outcome: Outcome) -> None:
            ended.append(outcome.local.name)

    files = folder_of(tmp_path / "here")
    bad = LocalFile(files[0].path, "../up", 1, 0)
    [refused] = await client.upload_many([bad], watcher=Noting())
    assert isinstance(refused.error, InvalidName)
    assert (begun, ended) == ([], ["../up"])
    ended.clear()
    for _ in range(2):
        outcomes = await client.upload_many(files, watcher=Noting())
        names = sorted(local.name for local in files)
        assert sorted(begun) == sorted(ended) == sorted(outcome.local.name for outcome in outcomes) == names
        begun.clear()
        ended.clear()
    assert moved == {"to/0006", "to/0007"}


async def test_of_files_that_would_be_one_there_none_is_sent(client: AsyncClient, tmp_path: Path) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    for path, content in (
        (here / "e\u0301", b"one"),
        (here / "\u00e9", b"two"),
        (here / "z", b"z"),
        (other / "z", b"y"),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    twins = [LocalFile.at(here / "e\u0301"), LocalFile.at(here / "\u00e9"), LocalFile.at(here / "z")]
    for if_exists in ("keep", "fail", "replace"):  # nobody asked for two files of one name
        outcomes = await client.upload_many(twins, if_exists=if_exists)
        codes = [outcome.error and outcome.error.code for outcome in outcomes]
        assert codes[:2] == ["ambiguous-name", "ambiguous-name"]
        assert "2 files here would be '\u00e9'" in str(outcomes[0].error)
    assert await names_of(client) == ["z"]
    same = [LocalFile.at(here / "z", "a"), LocalFile.at(other / "z", "a")]
    assert {
        outcome.error and outcome.error.code for outcome in await client.upload_many(same, if_exists="replace")
    } == {"ambiguous-name"}
    assert await names_of(client) == ["z"]
    # Others of this name may stay beside it; and one file that is given twice is no quarrel.
    await client.upload_many(same, if_exists="keep")
    assert await names_of(client) == ["a", "a (2)", "z"]
    twice = await client.upload_many([same[0], same[0]], if_exists="replace")
    assert [outcome.error for outcome in twice] == [None, None]
    assert await names_of(client) == ["a", "a (2)", "z"]


class OlderWire(Wire):
    """Makes of this server one of before batches: refuses what that refused, and says no more than that said."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        path, body = request.url.path, request.content
        if path == "/uploads" or path.startswith("/files/"):
            assert b"modified_at" not in body
            assert b"if_exists" not in body
        if path == "/files/batch":
            request.url = request.url.copy_with(path="/files/no-batch")  # 422, as an MD5 that is none
        if request.method == "PUT" and "/chunks/" not in path:
            request.url = request.url.copy_with(path="/files/status")  # 405
        response = await super().handle_async_request(request)
        content = json.loads(await response.aread(), object_hook=_without_time)
        return httpx2.Response(response.status_code, json=content)


def _without_time(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if name != "modified_at"}


async def test_an_older_server_is_served_as_ever(stack: Stack, tmp_path: Path) -> None:
    wire = OlderWire(stack)
    files = folder_of(tmp_path / "here", [*SMALL, MIDDLE])
    async with await client_on(stack, wire, hash_first_bytes=512 * KIB) as client:
        outcomes = await client.upload_many(files)
        assert [outcome.error for outcome in outcomes] == [None] * len(files)
        assert await names_of(client) == [local.name for local in files]
        assert len(wire.chunks_sent()) == len(SMALL) - 1 + MIDDLE.chunk_count
        assert (await client.upload(LARGE.data, "large")).sha256 == LARGE.sha256
        wire.requests.clear()
        assert hows(await client.upload_many(files)) == {local.name: "present" for local in files}
        assert wire.requests == ["GET /me/files"]  # compared by their digests, here
        with pytest.raises(ServerTooOld):
            await client.upload(b"x", "x", if_exists="replace")
        [refused] = await client.upload_many(files, if_exists="fail")
        assert isinstance(refused.error, ServerTooOld)
        # The command's default is to replace; nobody asked for it.
        assert not await client.can_replace()
        (tmp_path / "here" / "0001").write_bytes(b"other")
        listening, found = Listening(), FoundFiles(found_in(tmp_path / "here"))
        assert await put_found(client, listening, found, if_exists=None, checksum=False, verbose=True) == 0
        [noted] = [event for event in listening.heard if isinstance(event, Noted)]
        assert noted.detail.startswith("the server is too old")
        assert "to/0001 (2)" in await names_of(client)
