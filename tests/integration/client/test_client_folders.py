"""Folders by the Python client on the real server: levels, many downloads at once, deleting and moving; and old servers."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.layout import blob_path
from tests.support.rot import flip_bit
from tests.support.sockets import serving_stack
from tests.support.stack import Stack
from tests.support.uploading import Wire, client_on, nothing, stopped
from tests.support.waiting import PATIENCE_SECONDS
from uploader.client import (
    AsyncClient,
    Client,
    ContentDiffers,
    File,
    Folder,
    InvalidName,
    LocalFile,
    NotFound,
    Outcome,
    ServerProblem,
    ServerTooOld,
    Transfer,
    Unauthenticated,
    Unwritable,
    Wanted,
    Watcher,
)

CONTENT = "GET /me/files/[0-9a-f]{32}/content"
# What a client takes of an answer at once.
BLOCK = 64 * KIB
FILES = {
    "a.txt": b"a",
    "photos/2025/x.jpg": b"xx",
    "photos/2026/x.jpg": b"xxx",
    "photos/cover.jpg": b"xx",
    "übung/ß": b"u",
}


class OldWire(Wire):
    """To a server before folders: their parameters say nothing to it, and what changes them is not there."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/me/files":
            if request.method != "GET":
                return httpx2.Response(405, request=request)
            request.url = request.url.copy_remove_param("delimiter").copy_remove_param("q")
        return await super().handle_async_request(request)


@pytest.fixture
async def client(client: AsyncClient) -> AsyncClient:
    for name, data in FILES.items():
        await client.upload(data, name)
    return client


@pytest.fixture
async def old_client(stack: Stack, client: AsyncClient) -> AsyncIterator[AsyncClient]:
    async with await client_on(stack, OldWire(stack)) as made:
        yield made


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here"


async def level(client: AsyncClient, folder: str = "") -> list[str | Folder]:
    return [each if isinstance(each, Folder) else each.name async for each in client.level(folder)]


async def names(client: AsyncClient, **asked: str) -> set[str]:
    return {file.name async for file in client.files(**asked)}


def tree_in(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


class Seen(Watcher):
    """Remembers how each ended."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def ended(self, outcome: Outcome) -> None:
        self.ends.append(outcome.how if outcome.error is None else outcome.error.code)


async def test_a_level_has_folders_and_files_by_name(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uploader.client.asynchronous._PAGE", 1)
    assert await level(client) == ["a.txt", Folder("photos/", 3, 7), Folder("übung/", 1, 1)]
    assert await level(client, "photos") == [
        Folder("photos/2025/", 1, 2),
        Folder("photos/2026/", 1, 3),
        "photos/cover.jpg",
    ]
    assert await level(client, "u\u0308bung/") == ["übung/ß"]
    assert await level(client, "nothing") == []


async def test_names_are_searched_by_their_beginning_and_by_any_part(client: AsyncClient) -> None:
    assert await names(client, part="x.j") == {"photos/2025/x.jpg", "photos/2026/x.jpg"}
    assert await names(client, prefix="photos/2026", part="x.j") == {"photos/2026/x.jpg"}
    assert await names(client, part="u\u0308") == {"übung/ß"}
    await client.upload(b"another", "a.txt")
    assert [file.size for file in await client.named("a.txt")] == [1]
    assert [file.size for file in await client.named("a (2).txt")] == [7]
    assert await client.named("photos") == []


async def test_a_folder_comes_down_and_what_changed_comes_again(client: AsyncClient, wire: Wire, here: Path) -> None:
    here.mkdir()
    (here / "here.jpg").write_bytes(b"here")
    await client.upload(here / "here.jpg", "photos/2026/here.jpg")
    outcomes = await client.download_folder("photos", here / "there")
    assert {outcome.how for outcome in outcomes} == {"fetched"}
    expected = {"2025/x.jpg": b"xx", "2026/x.jpg": b"xxx", "cover.jpg": b"xx", "2026/here.jpg": b"here"}
    assert tree_in(here / "there") == expected
    assert (wire.count("POST /me/archive"), wire.count(CONTENT)) == (1, 0)
    # Those without a time are compared, the one with it is not even read.
    (here / "there/2026/here.jpg").chmod(0)
    seen = Seen()
    await client.download_folder("photos/", here / "there", watcher=seen)
    assert seen.ends == ["present"] * 4
    assert (wire.count("POST /me/archive"), wire.count(CONTENT)) == (1, 0)


class Mangling(Wire):
    """Hands on other answers for archives than the server gave."""

    def __init__(self, stack: Stack, mangle: Callable[[bytes], AsyncIterator[bytes] | int]) -> None:
        super().__init__(stack)
        self._mangle = mangle

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if request.url.path != "/me/archive" or response.status_code != 200:
            return response
        mangled = self._mangle(await response.aread())
        if isinstance(mangled, int):
            return httpx2.Response(mangled, request=request)
        return httpx2.Response(200, content=mangled, request=request)


async def _broken_off(archive: bytes) -> AsyncIterator[bytes]:
    """In the second member of the first one."""
    yield archive[: 2 * BLOCK + 1539]
    if len(archive) > 2 * BLOCK:
        raise httpx2.ReadError("broken off", request=httpx2.Request("POST", "http://test/me/archive"))


async def _without_ids(archive: bytes) -> AsyncIterator[bytes]:
    """As before 0.4: records of another name have no meaning."""
    for old, new in ((b"uploader.id=", b"uploader.xx="),):
        assert old in archive
        yield archive.replace(old, new)


@pytest.mark.parametrize(
    ("mangle", "archives", "alone"),
    [(_broken_off, 2, 1), (_without_ids, 1, 4), (lambda _: 404, 1, 4), (lambda _: 405, 1, 4)],
    ids=["broken off", "without ids", "404", "405"],
)
async def test_what_no_archive_brings_comes_alone(
    stack: Stack, client: AsyncClient, here: Path, mangle: Any, archives: int, alone: int
) -> None:
    """And of an answer that broke off what came whole stays."""
    wire, seen = Mangling(stack, mangle), Seen()
    await client.upload(bytes(2 * BLOCK - 1536), "photos/more")
    async with await client_on(stack, wire) as other:
        await other.download_folder("photos", here, watcher=seen)
    assert seen.ends == ["fetched"] * 4
    assert len(tree_in(here)) == 4
    assert (wire.count("POST /me/archive"), wire.count(CONTENT)) == (archives, alone)


async def test_a_damaged_file_fails_as_it_does_alone(client: AsyncClient, stack: Stack, here: Path) -> None:
    (damaged,) = await client.named("photos/2026/x.jpg")
    flip_bit(blob_path(stack.data, damaged.sha256), 3)
    outcomes = await client.download_folder("photos", here)
    assert {outcome.local.name: outcome.error.code for outcome in outcomes if outcome.error} == {
        "photos/2026/x.jpg": "content-damaged"
    }
    assert tree_in(here) == {"2025/x.jpg": b"xx", "cover.jpg": b"xx"}


async def test_a_file_that_fails_harms_no_other(client: AsyncClient, here: Path) -> None:
    files = {file.name: file async for file in client.files()}
    await client.delete(files["photos/cover.jpg"].id)
    (here / "photos").mkdir(parents=True)
    (here / "photos/2025").write_bytes(b"in the way")
    (here / "a.txt").write_bytes(b"mine")
    outcomes = await client.download_many([Wanted(file, name) for name, file in files.items()], here)
    assert {
        outcome.local.name: outcome.how if outcome.error is None else outcome.error.code for outcome in outcomes
    } == {
        "a.txt": "target-exists",
        "photos/2025/x.jpg": "unwritable",
        "photos/2026/x.jpg": "fetched",
        "photos/cover.jpg": "file-not-found",
        "übung/ß": "fetched",
    }


async def test_without_a_token_one_is_told_and_none_is_begun(stack: Stack, client: AsyncClient, here: Path) -> None:
    wanted = [Wanted(file, file.name) async for file in client.files()]
    async with AsyncClient("http://test", "wrong", connections=1, http_transport=Wire(stack)) as stranger:
        [outcome] = await stranger.download_many(wanted, here)
    assert isinstance(outcome.error, Unauthenticated)
    assert tree_in(here) == {}


async def test_many_downloads_are_stopped_together_and_go_on(client: AsyncClient, wire: Wire, here: Path) -> None:
    content = Content(900 * KIB, seed=191)
    twins = {f"photos/{number}": content.data for number in range(6)}  # one content: they are no quarrel
    for name, data in twins.items():
        await client.upload(data, name)
    reached = asyncio.Event()

    async def before(request: httpx2.Request) -> None:
        if request.url.path.endswith("/content"):
            reached.set()
            await asyncio.Event().wait()

    wanted = [Wanted(file, file.name) async for file in client.files("photos/")]
    wire.before = before
    transfer = client.start_download_many(wanted, here)
    await reached.wait()
    await stopped(transfer)
    wire.before = nothing
    assert {outcome.error for outcome in await client.download_many(wanted, here)} == {None}
    assert tree_in(here) == {name: data for name, data in (FILES | twins).items() if name.startswith("photos/")}


async def test_a_file_is_written_into_what_is_open(
    client: AsyncClient, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = Content(900 * KIB, seed=192)
    file = await client.upload(content.data, "film")
    opened = io.BytesIO(b"before")
    opened.seek(6)
    await client.download_into(file, opened)
    assert opened.getvalue() == b"before" + content.data
    flip_bit(blob_path(stack.data, file.sha256))
    monkeypatch.setattr(stack.services.storage, "_verifies", False)
    with pytest.raises(ContentDiffers):
        await client.download_into(file, io.BytesIO())
    with pytest.raises(Unwritable), Path("/dev/full").open("wb", buffering=0) as full:
        await client.download_into(file, full)


async def test_folders_are_deleted_and_moved(client: AsyncClient) -> None:
    assert await client.move_folder("photos/2025", "old") == 1
    assert await client.move_folder("old/", "photos/1999/") == 1
    assert await names(client, prefix="photos/1") == {"photos/1999/x.jpg"}
    assert await client.move_folder("photos/1999", "") == 1
    assert await client.delete_folder("photos") == 2
    assert await client.delete_folder("photos/") == 0
    assert await names(client) == {"a.txt", "x.jpg", "übung/ß"}
    for empty in ("", "/", "..", "a//b"):
        with pytest.raises(InvalidName):
            await client.delete_folder(empty)
        with pytest.raises(InvalidName):
            await client.move_folder(empty, "x")
    with pytest.raises(ServerProblem) as refused:
        await client.move_folder("übung", "../x")
    assert refused.value.code == "invalid-request"


class Examining(Wire):
    """To a server that examines the first file first, and has no time for the second."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if request.url.path == "/me/trash/restore" and self.count("POST /me/trash/restore") == 1:
            first, second, *others = json.loads(await response.aread())["results"]
            busy = {"code": "unavailable", "retryable": True}
            lines = [
                {"id": first["id"], "status": 202, "state": "restoring"},
                {"id": second["id"], "status": 503, "problem": busy},
            ]
            return httpx2.Response(200, json={"results": [*lines, *others]}, request=request)
        return response


async def test_many_deleted_files_come_back_each_with_what_became_of_it(
    stack: Stack, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uploader.client.asynchronous._RESTORED_AT_ONCE", 2)
    assert await client.delete_folder("photos") == 3
    deleted = {file.id: file.name async for file in client.deleted()}
    await client.upload(b"another", "photos/cover.jpg")
    async with await client_on(stack, Examining(stack)) as other:
        outcomes = [each async for each in other.restore_many([*deleted, "0" * 26])]
    became = {deleted.get(each, ""): outcome for each, outcome in outcomes}
    assert (len(outcomes), set(became)) == (4, {*deleted.values(), ""})
    for name, outcome in became.items():
        if name in ("", "photos/cover.jpg"):
            assert isinstance(outcome, ServerProblem)
            assert outcome.code == ("name-taken" if name else "file-not-found")
        else:
            assert isinstance(outcome, File)
    assert await names(client) == {*FILES}


async def test_an_older_server_says_what_it_can_not(old_client: AsyncClient, here: Path) -> None:
    with pytest.raises(ServerTooOld, match="one level"):
        await level(old_client)
    with pytest.raises(ServerTooOld, match="delete folders"):
        await old_client.delete_folder("photos")
    with pytest.raises(ServerTooOld, match="move folders"):
        await old_client.move_folder("photos", "x")
    assert await names(old_client, part="x.j") == {"photos/2025/x.jpg", "photos/2026/x.jpg"}
    assert [file.name for file in await old_client.named("a.txt")] == ["a.txt"]
    await old_client.download_folder("photos", here)
    assert tree_in(here) == {"2025/x.jpg": b"xx", "2026/x.jpg": b"xxx", "cover.jpg": b"xx"}


async def test_without_an_event_loop_it_is_the_same(make_stack: MakeStack, here: Path) -> None:
    """Each method that docs/libraries.md has in its table."""

    def use(url: str, token: str) -> None:
        with Client(url, token) as client:
            for name, data in FILES.items():
                client.upload(data, name)
            assert len(list(client.level())) == 3
            assert [file.name for file in client.files(part="ß")] == ["übung/ß"]
            [file] = client.named("a.txt")
            assert client.file(file.id) == client.page(prefix="a.txt").files[0] == file
            opened = io.BytesIO()
            client.download_into(file, opened)
            assert opened.getvalue() == b"a"
            assert len(client.download_folder("photos", here)) == 3
            assert client.start_download(file, here / "a").result(PATIENCE_SECONDS).read_bytes() == b"a"
            assert len(client.start_download_many([Wanted(file, "b")], here).result()) == 1
            found = [LocalFile.at(here / "b", "many/b")]
            assert [outcome.how for outcome in client.upload_many(found)] == ["sent"]
            assert [outcome.how for outcome in client.start_many(found).result()] == ["present"]
            assert client.rename(file.id, "moved").name == "moved"
            transfer: Transfer[File] = client.start(b"x" * 200_000, "more")
            transfer.pause()
            assert transfer.progress.size == 200_000
            transfer.resume()
            assert transfer.result(PATIENCE_SECONDS).name == "more"
            transfer.cancel()  # it has ended: nothing happens
            assert transfer.done
            assert client.uploads() == []
            assert client.move_folder("photos", "x") == 3
            assert client.delete_folder("x") == 3
            for each in client.files():
                client.delete(each.id)
            assert client.usage().use_space_finished == 0
            with pytest.raises(NotFound):
                client.file("0" * 32)

    async with serving_stack(make_stack, durability="process") as server:
        token = server.stack.client.headers["authorization"].removeprefix("Bearer ")
        await asyncio.to_thread(use, server.url, token)
