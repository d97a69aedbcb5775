"""The trash of one's own: what a user deleted, and what was replaced, is listed, read, restored, and leaves in time."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.background import keeper_of
from tests.support.clock import ManualClock
from tests.support.content import KIB, MIB, Content
from tests.support.invariants import checked_accounts
from tests.support.layout import blob_path
from tests.support.paging import pages
from tests.support.problems import problem
from tests.support.rot import flip_bit
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.database import meta
from uploader.storage.base import Digests

CONTENT = Content(3 * 64 * KIB - 100)
FILES = {"a.txt": b"a", "photos/x.jpg": b"xx", "photos/2026/y.jpg": b"yyy", "empty": b""}


async def _put(stack: Stack, name: str, content: bytes, **query: str) -> dict[str, Any]:
    response = await stack.client.post("/me/files", params={"name": name, **query}, content=content)
    assert response.status_code in (200, 201), response.text
    file: dict[str, Any] = response.json()["file"]
    return file


async def _trash(client: httpx2.AsyncClient, **query: str) -> list[dict[str, Any]]:
    return [file for page in await pages(client, "/me/trash", **query) for file in page["files"]]


async def _delete(stack: Stack, file: dict[str, Any]) -> None:
    assert (await stack.client.delete(f"/me/files/{file['id']}")).status_code == 204


async def _restore(stack: Stack, file: dict[str, Any], **body: str) -> httpx2.Response:
    return await stack.client.post(f"/me/trash/{file['id']}/restore", json=body)


async def _in_store(stack: Stack) -> list[str]:
    """The contents in the trash of a disk: that of a bucket has what others took the place of, too."""
    return [found.name for found in await stack.services.trash.entries() if stack.services.storage.keeps_files]


async def _count(stack: Stack) -> int:
    """The number of alice's files, checked."""
    await checked_accounts(stack.services.database)
    return (await stack.services.files.usage("alice")).files


@pytest.fixture
async def stack_on(make_stack_on: MakeStack) -> AsyncIterator[Stack]:
    """A stack on each kind of database."""
    async with make_stack_on() as stack:
        yield stack


async def test_what_was_deleted_is_listed_and_comes_back_as_it_was(stack_on: Stack) -> None:
    stack = stack_on
    files = {
        name: await _put(stack, name, content, modified_at="2020-01-02T03:04:05Z") for name, content in FILES.items()
    }
    before = await _count(stack)
    await _delete(stack, files["a.txt"])
    await _delete(stack, files["photos/x.jpg"])
    assert (await stack.client.delete("/me/files", params={"prefix": "photos/"})).json() == {"files": 1}
    trashed = await _trash(stack.client, limit="2")
    assert [file["name"] for file in trashed] == ["photos/2026/y.jpg", "photos/x.jpg", "a.txt"]
    assert (await stack.usage("alice"))["finished"] == 0
    assert await _count(stack) == before
    for file in trashed:
        own = files[file["name"]]
        assert {**file, **own} == file and file["reason"] == "deleted"
        kept = datetime.fromisoformat(file["expires_at"]) - datetime.fromisoformat(file["deleted_at"])
        assert kept == timedelta(days=7)
        answer = await stack.client.get(f"/me/trash/{file['id']}/content")
        assert (answer.status_code, answer.content) == (200, FILES[file["name"]])
        restored = await _restore(stack, file)
        assert (restored.status_code, restored.json()) == (200, own)
        assert (await _restore(stack, file)).json() == own, "asked again"
        assert (await stack.client.get(f"/me/files/{file['id']}/content")).content == FILES[file["name"]]
    assert await _trash(stack.client) == []
    assert await _count(stack) == before
    assert (await stack.services.reconciling.reconcile()).drifts == []


async def test_versions_of_a_name_and_whose_place_they_take(stack_on: Stack) -> None:
    stack = stack_on
    versions = [await _put(stack, "a.txt", b"%d" % number, if_exists="replace") for number in range(4)]
    other = await _put(stack, "b.txt", b"other")
    await _delete(stack, other)
    listed = await _trash(stack.client, name="a.txt")
    assert [file["id"] for file in listed] == [file["id"] for file in versions[2::-1]]
    assert {file["reason"] for file in listed} == {"replaced"}
    taken = problem(await _restore(stack, versions[1]), 409, "name-taken")
    assert taken["taken"] == "a.txt"
    kept = (await _restore(stack, versions[1], if_exists="keep")).json()
    assert kept == {**versions[1], "name": "a (2).txt"}
    replaced = (await _restore(stack, versions[0], if_exists="replace")).json()
    assert replaced == versions[0]
    assert [file["id"] for file in await _trash(stack.client, name="a.txt")] == [versions[3]["id"], versions[2]["id"]]
    renamed = (await _restore(stack, versions[3], name="new/e\u0301.txt")).json()
    assert renamed == {**versions[3], "name": "new/\u00e9.txt"}
    assert await _count(stack) == 5
    # The same content under the name is another file, too.
    await stack.client.post("/me/files", params={"name": "b.txt"}, content=b"other")
    problem(await _restore(stack, other), 409, "name-taken")


async def test_a_content_that_others_have_takes_a_ref_and_one_that_nobody_has_comes_from_the_trash(
    stack_on: Stack,
) -> None:
    stack = stack_on
    file = await _put(stack, "mine", CONTENT.data)
    bob = await stack.client_of("bob", total_space=1 << 30)
    assert (await bob.post("/me/files?name=his", content=CONTENT.data)).status_code == 201
    await _delete(stack, file)
    assert await _in_store(stack) == [], "bob has it"
    assert (await _restore(stack, file)).json() == file
    await _delete(stack, file)
    (his,) = (await bob.get("/me/files")).json()["files"]
    problem(await bob.post(f"/me/trash/{file['id']}/restore"), 404, "file-not-found")
    problem(await bob.get(f"/me/trash/{file['id']}/content"), 404, "file-not-found")
    problem(await bob.delete(f"/me/trash/{file['id']}"), 404, "file-not-found")
    await bob.delete(f"/me/files/{his['id']}")
    assert await _in_store(stack) in ([], [CONTENT.sha256])
    assert (await _restore(stack, file)).json() == file
    assert (await stack.client.get(f"/me/files/{file['id']}/content")).content == CONTENT.data
    assert await _in_store(stack) == []
    assert (await stack.services.reconciling.reconcile()).drifts == []
    assert [each["name"] for each in await _trash(bob)] == ["his"]


async def test_the_content_of_a_deleted_file_is_read_in_ranges_and_compared(stack: Stack) -> None:
    content = Content(3 * MIB + 17)
    assert (await stack.upload(content)).status_code == 201
    (file,) = (await stack.client.get("/me/files")).json()["files"]
    await _delete(stack, file)
    url = f"/me/trash/{file['id']}/content"
    whole = await stack.client.get(url)
    assert whole.content == content.data and whole.headers["etag"] == f'"{content.sha256}"'
    part = await stack.client.get(url, headers={"Range": "bytes=2000000-2000099"})
    assert (part.status_code, part.content) == (206, content.data[2_000_000:2_000_100])
    problem(await stack.client.get(url, headers={"Range": "bytes=99999999-"}), 416, "range-not-satisfiable")
    if not stack.services.storage.keeps_files:
        return
    (found,) = await stack.services.trash.entries()
    flip_bit(stack.data / found.place)
    damaged = [
        await stack.client.get(url, headers={"Range": f"bytes={at}-{at}"}) for at in range(0, content.size, 64 * KIB)
    ]
    assert {answer.status_code for answer in damaged} == {206, 500}, "a range of other blocks is as it was"
    problem(await _restore(stack, file), 410, "content-gone")
    assert [each["id"] for each in await _trash(stack.client)] == [file["id"]], "somebody may still send it"
    assert (await stack.upload(content, name="again")).status_code == 201
    assert (await _restore(stack, file)).json() == file


async def test_many_come_back_at_once_from_their_places_and_from_the_trash(stack_on: Stack) -> None:
    stack = stack_on
    files = [await _put(stack, f"many/{number}", b"%d" % number) for number in range(30)]
    assert (await stack.client.delete("/me/files", params={"prefix": "many/"})).json() == {"files": 30}
    for file in files[:3]:
        await stack.services.files.collect(file["sha256"])
    if stack.services.storage.keeps_files:
        assert len(await stack.services.trash.entries()) == 3
    await _put(stack, "many/7", b"in the way")
    asked = [*(file["id"] for file in files), "0" * 32, "none", files[0]["id"]]
    answer = await stack.client.post("/me/trash/restore", json={"ids": asked})
    lines = answer.json()["results"]
    assert [line["id"] for line in lines] == asked
    assert [line["status"] for line in lines] == [*[200] * 7, 409, *[200] * 22, 404, 404, 200]
    assert (lines[7]["problem"]["code"], lines[7]["problem"]["taken"]) == ("name-taken", "many/7")
    assert [line["file"] for line in lines[:7]] == files[:7]
    for file in files[:9]:
        if file is not files[7]:
            content = await stack.client.get(f"/me/files/{file['id']}/content")
            assert content.content == file["name"].removeprefix("many/").encode()
    assert [file["name"] for file in await _trash(stack.client)] == ["many/7"]
    alone = await stack.client.post("/me/trash/restore", json={"ids": [files[7]["id"]]})
    assert [line["status"] for line in alone.json()["results"]] == [409]
    assert await _count(stack) == 31
    assert (await stack.services.reconciling.reconcile()).drifts == []
    problem(await stack.client.post("/me/trash/restore", json={"ids": ["0"] * 5001}), 422, "invalid-request")


async def test_a_file_that_does_not_fit_any_more_stays_in_the_trash(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        carol = await stack.client_of("carol", total_space=1000)
        file = (await carol.post("/me/files?name=a", content=bytes(600))).json()["file"]
        await carol.delete(f"/me/files/{file['id']}")
        assert (await carol.post("/me/files?name=b", content=bytes(500))).status_code == 201
        refused = problem(await carol.post(f"/me/trash/{file['id']}/restore"), 413, "quota-exceeded")
        assert (refused["requested"], refused["total_space"]) == (600, 1000)
        assert [each["id"] for each in await _trash(carol)] == [file["id"]]
        # Where it takes the place of another, only the difference has to fit.
        swapped = await carol.post(f"/me/trash/{file['id']}/restore", json={"name": "b", "if_exists": "replace"})
        assert swapped.json() == {**file, "name": "b"}
        await checked_accounts(stack.services.database)


async def test_the_oldest_leave_where_the_user_has_too_many_files(make_stack_on: MakeStack) -> None:
    async with make_stack_on(max_files=6) as stack:
        files = [await _put(stack, f"{number}", b"%d" % number) for number in range(6)]
        for file in files[:3]:
            await _delete(stack, file)
        assert await _count(stack) == 6
        await _put(stack, "whole", b"whole")
        assert [file["name"] for file in await _trash(stack.client)] == ["2", "1"]
        opened = await stack.open(CONTENT)
        assert opened.status_code == 201
        assert [file["name"] for file in await _trash(stack.client)] == ["2"]
        await _put(stack, "whole", b"another", if_exists="replace")
        assert [(file["name"], file["reason"]) for file in await _trash(stack.client)] == [("whole", "replaced")]
        await _put(stack, "whole", b"a third", if_exists="replace")
        assert len(await _trash(stack.client)) == 1, "who takes a place needs none"
        assert (await stack.client.post("/me/folders", json={"name": "new"})).status_code == 201
        assert await _trash(stack.client) == []
        problem(await stack.client.post("/me/files?name=no", content=b"no"), 413, "too-many-files")
        problem(await stack.open(Content(99, name="no")), 413, "too-many-files")
        await _put(stack, "3", b"once more", if_exists="replace")
        assert await _trash(stack.client) == [], "there is no room for a version"
        await stack.client.delete(f"/files/{CONTENT.md5}")
        await _delete(stack, files[4])
        restored = await _restore(stack, files[4])
        assert restored.status_code == 200
        assert await _count(stack) == 5


async def test_the_trash_is_emptied_of_one_and_of_all(stack: Stack) -> None:
    files = [await _put(stack, f"{number}", b"%d" % number) for number in range(4)]
    for file in files:
        await _delete(stack, file)
    assert (await stack.client.delete(f"/me/trash/{files[0]['id']}")).status_code == 204
    for gone in (files[0]["id"], "none"):
        problem(await stack.client.delete(f"/me/trash/{gone}"), 404, "file-not-found")
        problem(await stack.client.post(f"/me/trash/{gone}/restore"), 404, "file-not-found")
        problem(await stack.client.get(f"/me/trash/{gone}/content"), 404, "file-not-found")
    assert (await stack.client.delete("/me/trash")).status_code == 204
    assert (await _trash(stack.client), await _count(stack)) == ([], 0)
    for query in ("after=nothing", "limit=0", "limit=1001"):
        problem(await stack.client.get(f"/me/trash?{query}"), 422, "invalid-request")


async def test_an_administrator_deletes_a_file_into_the_trash_of_its_owner(stack: Stack) -> None:
    file = await _put(stack, "bad", b"bad")
    problem(await stack.client.delete(f"/admin/files/{file['id']}"), 403, "forbidden")
    admin = await stack.client_of("root", admin=True)
    reason = {"reason": "abuse, as told by post"}
    problem(await admin.delete(f"/admin/files/{file['id']}", params={"reason": "x" * 501}), 422, "invalid-request")
    assert (await admin.delete(f"/admin/files/{file['id']}", params=reason)).status_code == 204
    problem(await admin.delete(f"/admin/files/{file['id']}", params=reason), 404, "file-not-found")
    assert [(each["id"], each["reason"]) for each in await _trash(stack.client)] == [(file["id"], "admin")]
    (noted,) = (await admin.get("/admin/audit?action=file.deleted")).json()["acts"]
    assert (noted["actor"], noted["user_id"], noted["subject"]) == ("root", "alice", file["id"])
    assert noted["details"] == {"name": "bad", "size": 3, **reason}
    assert (await _restore(stack, file)).json() == file
    assert await _count(stack) == 1


async def test_without_a_retention_there_is_no_trash(make_stack: MakeStack) -> None:
    async with make_stack(trash_retention_seconds=0) as stack:
        await _put(stack, "a", b"1")
        file = await _put(stack, "a", b"2", if_exists="replace")
        bob = await stack.client_of("bob", total_space=1 << 30)
        his = (await bob.post("/me/files?name=his", content=b"2")).json()["file"]
        await _delete(stack, file)
        assert (await bob.delete(f"/me/files/{his['id']}")).status_code == 204
        assert (await _trash(stack.client), await _count(stack)) == ([], 0)
        assert await _in_store(stack) == []
        assert not blob_path(stack.data, file["sha256"]).exists()


async def test_what_was_deleted_leaves_after_the_retention(make_stack: MakeStack, clock: ManualClock) -> None:
    async with make_stack(clock=clock) as stack:
        keeper = keeper_of(stack)

        async def keep(hours: int) -> None:
            """Leave an outage, as it seems, behind."""
            clock.advance(hours * 3600 - 130 * 60)
            for _ in range(130):
                clock.advance(60)
                await keeper.run_once()

        first, later = await _put(stack, "first", b"1"), await _put(stack, "later", b"2")
        await _delete(stack, first)
        await keep(100)
        await _delete(stack, later)
        await keep(67)
        assert [file["name"] for file in await _trash(stack.client)] == ["later", "first"]
        await keep(3)
        assert [file["name"] for file in await _trash(stack.client)] == ["later"]
        assert await _count(stack) == 1
        clock.jump(365 * 86_400)
        await keeper.run_once()
        assert (await _restore(stack, later)).json() == later, "the clock may be wrong"


async def test_what_takes_long_to_examine_comes_back_meanwhile(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_stack(merge_wait_seconds=0.05) as stack:
        storage, gate = stack.services.storage, asyncio.Event()
        before = storage.hash_blob

        async def slow(*of: Any, **more: Any) -> Digests | None:
            await gate.wait()
            return await before(*of, **more)

        monkeypatch.setattr(storage, "hash_blob", slow)
        files = [await _put(stack, name, name.encode() * 300_000) for name in ("a", "b", "c")]  # no small ones
        for file in files:
            await _delete(stack, file)
        if storage.keeps_files:
            (bad,) = await storage.copies(files[2]["sha256"])
            flip_bit(stack.data / bad.place)
        waiting = await _restore(stack, files[0])
        assert (waiting.status_code, waiting.json()) == (202, {"state": "restoring"})
        assert int(waiting.headers["retry-after"]) > 0
        many = await stack.client.post("/me/trash/restore", json={"ids": [file["id"] for file in files[1:]]})
        assert many.json()["results"] == [{"id": file["id"], "status": 202, "state": "restoring"} for file in files[1:]]
        assert len(await _trash(stack.client)) == 3
        gate.set()
        await eventually(lambda: _are_back(stack, files[:2]))
        for file in files[:2]:
            assert (await _restored(stack, file)).json() == file
        if storage.keeps_files:
            problem(await _restored(stack, files[2]), 410, "content-gone")


async def _restored(stack: Stack, file: dict[str, Any]) -> httpx2.Response:
    """The answer of a server that may be busy, asked until it has one."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (answer := await _restore(stack, file)).status_code == 202:
            await asyncio.sleep(0.02)
    return answer


async def _are_back(stack: Stack, files: list[dict[str, Any]]) -> bool:
    return {(await stack.client.get(f"/me/files/{file['id']}")).status_code for file in files} == {200}


async def test_deleting_restoring_collecting_and_emptying_race_without_a_loss(stack_on: Stack) -> None:
    stack = stack_on
    files = [await _put(stack, f"{number}", CONTENT.data[: 70_000 + number // 2]) for number in range(8)]
    told: list[int] = []

    async def turn(file: dict[str, Any]) -> None:
        for _ in range(2):
            told.append((await stack.client.delete(f"/me/files/{file['id']}")).status_code)
            restores = asyncio.gather(_restore(stack, file), _restore(stack, file))
            await stack.services.files.collect(file["sha256"])
            assert [answer.json() for answer in await restores] == [file, file]

    await asyncio.gather(*map(turn, files))
    assert told == [204] * 16
    for file in files:
        content = (await stack.client.get(f"/me/files/{file['id']}/content")).content
        assert content == CONTENT.data[: file["size"]]
    assert await _count(stack) == 8
    for file in files:
        await _delete(stack, file)
    racing = [*(_restore(stack, file) for file in files), stack.client.delete("/me/trash")]
    codes = {answer.status_code for answer in await asyncio.gather(*racing)}
    assert codes <= {200, 204, 404}
    left = len((await stack.client.get("/me/files")).json()["files"])
    assert await _count(stack) == left
    await stack.services.files.collect_all()
    assert (await stack.services.reconciling.reconcile()).drifts == []


async def test_a_content_that_the_disk_had_no_room_for_is_gone_and_whoever_holds_most_gives_first(stack: Stack) -> None:
    if not stack.services.storage.keeps_files:
        pytest.skip("a bucket is never short")
    bob = await stack.client_of("bob", total_space=1 << 30)
    mine = [await _put(stack, f"{number}", bytes([number]) * 30_000) for number in range(3)]
    his = (await bob.post("/me/files?name=his", content=b"h" * 70_000)).json()["file"]
    for file in mine:
        await _delete(stack, file)
    await bob.delete(f"/me/files/{his['id']}")
    nobody = await _put(stack, "nobody's", b"n" * 10)
    await _delete(stack, nobody)
    await stack.client.delete(f"/me/trash/{nobody['id']}")

    async def gone() -> list[str]:
        kept = {found.name for found in await stack.services.trash.entries()}
        return [file["name"] for file in (*mine, his, nobody) if file["sha256"] not in kept]

    for expected in (["nobody's"], ["0", "nobody's"], ["0", "his", "nobody's"], ["0", "1", "his", "nobody's"]):
        await stack.services.trash.make_room(1)
        assert await gone() == expected
    problem(await _restore(stack, mine[0]), 410, "content-gone")
    problem(await stack.client.get(f"/me/trash/{mine[0]['id']}/content"), 410, "content-gone")
    assert (await _restore(stack, mine[2])).json() == mine[2]
    assert [each["name"] for each in await _trash(stack.client)] == ["1", "0"], "the same content may be sent again"
    assert (await stack.services.reconciling.reconcile()).drifts == []
    await _put(stack, "again", bytes([0]) * 30_000)
    assert (await _restore(stack, mine[0])).json() == mine[0]


async def test_the_last_copy_stays_as_long_as_it_is_in_the_trash_of_somebody(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    async with make_stack(clock=clock) as stack:
        file = await _put(stack, "a", b"a")
        clock.advance(8 * 86_400)
        await _delete(stack, file)
        if stack.services.storage.keeps_files:  # it came by a clock that nobody set
            await stack.services.trash.purge_old()
        assert (await _restore(stack, file)).json() == file


async def test_bytes_that_a_brought_back_database_does_not_know_are_found_in_their_place(stack: Stack) -> None:
    if not stack.services.storage.keeps_files:
        pytest.skip("of a bucket the rows say what is where")
    file = await _put(stack, "a", b"a")
    now = stack.services.clock.now()
    await stack.services.database.transact(meta.hold_contents, meta.Held(now - timedelta(days=1), now))
    await _delete(stack, file)
    assert blob_path(stack.data, file["sha256"]).exists()
    assert (await stack.client.get(f"/me/trash/{file['id']}/content")).content == b"a"
    assert (await _restore(stack, file)).json() == file
