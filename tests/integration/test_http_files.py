"""`/me`: finished files, their content in whole and in ranges, and the accounts of a user."""

import asyncio
import base64
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import text

from tests.conftest import MakeStack
from tests.support.consumer import events_file
from tests.support.content import KIB, Content
from tests.support.paging import pages
from tests.support.problems import problem
from tests.support.stack import Stack
from tests.support.visiting import make_link, visit
from uploader.database import transactions
from uploader.database.engine import Connection
from uploader.domain.digest import EMPTY_MD5

CONTENT = Content(100 * KIB)
ETAG = f'"{CONTENT.sha256}"'


async def _upload(stack: Stack, content: Content = CONTENT, **more: Any) -> str:
    """Upload a file; its address."""
    file = (await stack.upload(content, **more)).json()["file"]
    return f"/me/files/{file['id']}"


@pytest.fixture
async def url(stack: Stack) -> str:
    return await _upload(stack)


async def _names(stack: Stack, **query: str) -> list[str]:
    return [file["name"] for page in await pages(stack.client, "/me/files", **query) for file in page["files"]]


async def test_files_are_listed_newest_first_in_pages(stack: Stack) -> None:
    urls = [await _upload(stack, Content(1000, seed=number, name=f"{number}")) for number in range(5)]
    for limit, lengths in (("2", [2, 2, 1]), ("5", [5]), ("1000", [5])):
        paged = await pages(stack.client, "/me/files", limit=limit)
        assert [len(page["files"]) for page in paged] == lengths
        assert await _names(stack, limit=limit) == ["4", "3", "2", "1", "0"]
    after = (await stack.client.get("/me/files?limit=2")).json()["next"]
    await stack.client.delete(urls[3])
    assert await _names(stack, after=after) == ["2", "1", "0"], "a cursor outlives its file"


async def test_a_file_is_read_renamed_and_deleted(stack: Stack, url: str) -> None:
    file = (await stack.client.get(url)).json()
    renamed = await stack.client.patch(url, json={"name": "new/na\u0308me"})
    assert (renamed.status_code, renamed.json()) == (200, file | {"name": "new/n\u00e4me"})
    assert (await stack.client.get(url)).json() == renamed.json()
    deleted = await stack.client.delete(url)
    assert (deleted.status_code, deleted.content) == (204, b"")
    for response in (
        await stack.client.get(url),
        await stack.client.get(f"{url}/content"),
        await stack.client.patch(url, json={"name": "a"}),
        await stack.client.delete(url),
    ):
        problem(response, 404, "file-not-found")
    assert stack.bytes_on_disk() == []
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


async def test_a_name_is_of_one_file(stack: Stack, url: str) -> None:
    same = await _upload(stack, name="same")
    other = await _upload(stack, Content(1000, seed=1), name="other")
    for file, name in ((same, "same"), (other, "other")):
        for more in ({}, {"if_exists": "fail"}):
            refused = await stack.client.patch(file, json={"name": CONTENT.name, **more})
            assert problem(refused, 409, "name-taken")["taken"] == CONTENT.name
        assert (await stack.client.get(file)).json()["name"] == name
    for file, name in ((url, CONTENT.name), (other, "folder/file (2).bin"), (same, "folder/file (3).bin")):
        kept = await stack.client.patch(file, json={"name": CONTENT.name, "if_exists": "keep"})
        assert (kept.status_code, kept.json()["name"]) == (200, name)
    replaced = await stack.client.patch(other, json={"name": CONTENT.name, "if_exists": "replace"})
    assert (replaced.status_code, replaced.json()["name"]) == (200, CONTENT.name)
    assert (await stack.client.get(url)).status_code == 404


async def test_content_comes_whole_with_its_digest_and_safe_headers(stack: Stack, url: str) -> None:
    response = await stack.client.get(f"{url}/content")
    assert (response.status_code, response.content) == (200, CONTENT.data)
    digest = base64.b64encode(bytes.fromhex(CONTENT.sha256)).decode()
    expected = {
        "accept-ranges": "bytes",
        "content-length": str(CONTENT.size),
        "etag": ETAG,
        "repr-digest": f"sha-256=:{digest}:",
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox",
    }
    assert {name: response.headers[name] for name in expected} == expected
    head = await stack.client.head(f"{url}/content")
    assert (head.status_code, head.content) == (200, b"")
    assert {name: head.headers[name] for name in expected} == expected


async def test_one_range_is_sent_alone_none_that_is_invalid_and_none_beyond_the_file(stack: Stack, url: str) -> None:
    for header, first, last in (
        ("bytes=0-0", 0, 0),
        ("bytes=1000-70000", 1000, 70000),
        ("bytes=5-99999999999999999999", 5, 102399),
        ("bytes=-1", 102399, 102399),
        ("bytes=7-9,200000-200001", 7, 9),
    ):
        response = await stack.client.get(f"{url}/content", headers={"Range": header})
        assert (response.status_code, response.content) == (206, CONTENT.data[first : last + 1]), header
        assert response.headers["content-range"] == f"bytes {first}-{last}/{CONTENT.size}"
        assert response.headers["content-length"] == str(last - first + 1)
        assert response.headers["etag"] == ETAG
    for header in ("", "lines=0-1", "bytes=5-4"):
        response = await stack.client.get(f"{url}/content", headers={"Range": header})
        assert (response.status_code, response.content) == (200, CONTENT.data), header
    response = await stack.client.get(f"{url}/content", headers={"Range": "bytes=102400-"})
    problem(response, 416, "range-not-satisfiable")
    assert response.headers["content-range"] == f"bytes */{CONTENT.size}"


async def test_several_ranges_are_sent_in_parts(stack: Stack, url: str) -> None:
    response = await stack.client.get(f"{url}/content", headers={"Range": "bytes=0-4, 70000-70009, -3"})
    assert response.status_code == 206
    kind, boundary = response.headers["content-type"].split("; boundary=")
    assert kind == "multipart/byteranges"
    assert "content-range" not in response.headers
    assert int(response.headers["content-length"]) == len(response.content)
    expected = b""
    for first, last in ((0, 4), (70000, 70009), (102397, 102399)):
        expected += f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n".encode()
        expected += f"Content-Range: bytes {first}-{last}/{CONTENT.size}\r\n\r\n".encode()
        expected += CONTENT.data[first : last + 1]
    assert response.content == expected.removeprefix(b"\r\n") + f"\r\n--{boundary}--\r\n".encode()


async def test_an_empty_file_has_content_and_no_ranges(stack: Stack) -> None:
    file = (await stack.client.post(f"/files/{EMPTY_MD5}", json={"name": "a", "size": 0})).json()["file"]
    url = f"/me/files/{file['id']}/content"
    response = await stack.client.get(url)
    assert (response.status_code, response.content, response.headers["content-length"]) == (200, b"", "0")
    problem(await stack.client.get(url, headers={"Range": "bytes=0-"}), 416, "range-not-satisfiable")


async def test_a_range_is_sent_only_if_the_file_is_still_the_same(stack: Stack, url: str) -> None:
    others = ('"other"', f"W/{ETAG}", "Sat, 01 Jan 2050 00:00:00 GMT")
    for condition, status, content in (
        (ETAG, 206, CONTENT.data[:10]),
        *((other, 200, CONTENT.data) for other in others),
    ):
        response = await stack.client.get(f"{url}/content", headers={"Range": "bytes=0-9", "If-Range": condition})
        assert (response.status_code, response.content) == (status, content), condition


async def test_what_the_client_has_is_not_sent_again(stack: Stack, url: str) -> None:
    for method in ("GET", "HEAD"):
        for condition in (ETAG, f"W/{ETAG}", f'"other", {ETAG}', "*"):
            headers = {"If-None-Match": condition, "Range": "bytes=999999-"}
            response = await stack.client.request(method, f"{url}/content", headers=headers)
            assert (response.status_code, response.headers["etag"], response.content) == (304, ETAG, b"")
        response = await stack.client.request(method, f"{url}/content", headers={"If-None-Match": '"other"'})
        assert (response.status_code, response.headers["etag"]) == (200, ETAG)
        assert response.content == (CONTENT.data if method == "GET" else b"")


async def test_content_of_another_etag_is_not_sent(make_stack: MakeStack, tmp_path: Path) -> None:
    """RFC 9110, section 13.1.1, by each route that tells an ETag."""
    events = events_file(tmp_path / "events", '[queues.scan]\ntypes = ["file.finished"]\n')
    async with make_stack(events=events) as stack:
        client, root = stack.client, await stack.client_of("root", admin=True)
        (deleted, _) = [await _upload(stack, name=name) for name in ("a", "b")]
        await client.delete(deleted)
        (_, task) = (await root.post("/queues/scan/claim", json={"max": 2})).json()["tasks"]
        link = await make_link(stack, "download", "b")
        visitor = await visit(stack, link)
        url = await _upload(stack, name="c")
        shared = (await visitor.get(f"{link['url']}/files")).json()["files"][0]["id"]
        asked: dict[str, tuple[httpx2.AsyncClient, str]] = {
            "GET /me/files/{id}/content": (client, f"{url}/content"),
            "GET /me/trash/{id}/content": (client, f"{deleted.replace('files', 'trash')}/content"),
            "GET /s/{slug}/files/{id}/content": (visitor, f"{link['url']}/files/{shared}/content"),
            "GET /queues/{name}/tasks/{id}/content": (root, f"/queues/scan/tasks/{task['id']}/content"),
        }
        assert asked.keys() == {each.route for each in stack.app.operations if 304 in each.responses}
        for (asking, path), method in product(asked.values(), ("GET", "HEAD")):
            send = partial(asking.request, method, path)
            lease = {"Lease": task["lease"]}
            for condition in ('"other"', f"W/{ETAG}", "x", ""):
                headers = {"If-Match": condition, "If-None-Match": ETAG, "Range": "bytes=0-9"}
                refused = await send(headers=headers | lease)
                assert refused.status_code == 412, (path, refused.text)
                if method == "GET":
                    problem(refused, 412, "precondition-failed")
            for condition in (ETAG, f'"other", {ETAG}', "*"):
                assert (await send(headers={"If-Match": condition} | lease)).status_code == 200
                known = {"If-Match": condition, "If-None-Match": ETAG}
                assert (await send(headers=known | lease)).status_code == 304


async def test_the_accounts_say_what_is_used_and_what_is_left(stack: Stack) -> None:
    user = await stack.client_of("user", total_space=1000 * KIB)
    await stack.upload(CONTENT, user)
    await stack.open(Content(300 * KIB, seed=1), user)
    figures = {"use_space_finished": 100 * KIB, "use_space_unfinished": 0, "reserved": 300 * KIB}
    assert (await user.get("/me/usage")).json() == {"total_space": 1000 * KIB, "available": 600 * KIB, **figures}
    await stack.services.accounts.set_total_space("user", 10)
    assert (await user.get("/me/usage")).json() == {"total_space": 10, "available": 0, **figures}
    problem(await user.post("/uploads", json={"name": "a", "size": 1}), 413, "quota-exceeded")


async def test_content_is_removed_only_for_a_deletion_that_is_committed(stack: Stack) -> None:
    """Writers that wait commit together on SQLite: bytes that went for a deletion that is then undone would be lost."""
    file = await _upload(stack)
    database, files = stack.services.database, stack.services.files
    go_on, held = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        held.set()
        await go_on.wait()

    waiting = database.outside(wait)

    async def hold_up(_connection: Connection) -> None:
        await waiting()

    async def end_all(connection: Connection) -> None:
        await connection.execute(text("ROLLBACK"))
        raise KeyError("as a full disk does")

    row = await files.get("alice", file.rpartition("/")[2])
    first = asyncio.create_task(database.transact(hold_up))
    await held.wait()
    others = []
    for work in (
        database.transact(transactions.files.delete_file, row, files.clock.now()),
        files.collect(CONTENT.sha256),
        database.transact(end_all),
    ):
        others.append(asyncio.create_task(work))
        for _ in range(10):
            await asyncio.sleep(0)  # until it waits for its turn
    go_on.set()
    await asyncio.gather(first, *others, return_exceptions=True)
    statuses = [(await stack.client.get(place)).status_code for place in (file, f"{file}/content")]
    assert statuses == [404, 404], "it was deleted; or else its bytes would have to be there"
