"""`/me`: finished files, their content in whole and in ranges, and the accounts of a user."""

import asyncio
import base64
import re
from typing import Any
from urllib.parse import quote, unquote

import pytest
from sqlalchemy import text

from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.stack import Stack
from uploader.database import transactions
from uploader.database.engine import Connection
from uploader.domain.digest import EMPTY_MD5

CONTENT = Content(100 * KIB)
ETAG = f'"{CONTENT.sha256}"'


async def _upload(stack: Stack, content: Content = CONTENT, **more: Any) -> str:
    """Upload a file; its address."""
    file = (await stack.upload(content, **more)).json()["file"]
    return f"/me/files/{file['id']}"


# Listing


async def test_files_are_listed_newest_first_in_pages(stack: Stack) -> None:
    for number in range(5):
        await stack.upload(Content(1000, seed=number, name=f"{number}"))
    names, after = [], None
    for expected in (2, 2, 1):
        params = {"limit": "2"} | ({} if after is None else {"after": after})
        page = (await stack.client.get("/me/files", params=params)).json()
        assert len(page["files"]) == expected
        names += [file["name"] for file in page["files"]]
        after = page["next"]
    assert (names, after) == (["4", "3", "2", "1", "0"], None)


async def test_a_full_last_page_has_no_next(stack: Stack) -> None:
    await _upload(stack)
    assert (await stack.client.get("/me/files?limit=1")).json()["next"] is None


async def test_a_cursor_outlives_its_file(stack: Stack) -> None:
    urls = [await _upload(stack, Content(1000, seed=number, name=f"{number}")) for number in range(3)]
    after = (await stack.client.get("/me/files?limit=1")).json()["next"]
    await stack.client.delete(urls[2])
    page = (await stack.client.get("/me/files", params={"after": after})).json()
    assert [file["name"] for file in page["files"]] == ["1", "0"]


async def test_a_prefix_selects_byte_by_byte(stack: Stack) -> None:
    for number, name in enumerate(("a/1", "a/2", "A/3", "ä/4", "b%/5", "b_/6")):
        await stack.upload(Content(1000, seed=number, name=name))
    for prefix, expected in (("a/", ["a/2", "a/1"]), ("ä", ["ä/4"]), ("b%", ["b%/5"]), ("c", []), ("", 6)):
        files = (await stack.client.get("/me/files", params={"prefix": prefix})).json()["files"]
        assert len(files) == expected if isinstance(expected, int) else [file["name"] for file in files] == expected


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        "limit=-1",
        "limit=",
        "limit=1e2",
        "limit=1&limit=2",
        "after=x",
        "after=",
        "after=a&after=b",
    ],
)
async def test_a_malformed_question_is_refused(stack: Stack, query: str) -> None:
    body = problem(await stack.client.get(f"/me/files?{query}"), 422, "invalid-request")
    assert [error["field"] for error in body["errors"]] == [query.partition("=")[0]]


async def test_the_largest_limit_is_accepted(stack: Stack) -> None:
    assert (await stack.client.get("/me/files?limit=1000")).json() == {"files": [], "next": None}


# One file


async def test_a_file_is_read_renamed_and_deleted(stack: Stack) -> None:
    url = await _upload(stack)
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


@pytest.mark.parametrize("file_id", ["x", "0" * 32, "%00", "0" * 5000, "%F0%9F%98%80"])
async def test_an_id_of_nothing_is_not_found(stack: Stack, file_id: str) -> None:
    problem(await stack.client.get(f"/me/files/{file_id}"), 404, "file-not-found")


async def test_a_name_may_be_kept_when_renaming(stack: Stack) -> None:
    url = await _upload(stack)
    assert (await stack.client.patch(url, json={"name": CONTENT.name})).status_code == 200


async def test_equal_names_coexist_unless_the_content_is_equal_too(stack: Stack) -> None:
    await _upload(stack)
    same = await _upload(stack, name="same")
    other = await _upload(stack, Content(1000, seed=1), name="other")
    problem(await stack.client.patch(same, json={"name": CONTENT.name}), 409, "name-taken")
    assert (await stack.client.get(same)).json()["name"] == "same"
    assert (await stack.client.patch(other, json={"name": CONTENT.name})).status_code == 200


@pytest.mark.parametrize("name", ["", "../a", "/a", "a\x00"])
async def test_a_bad_new_name_is_refused(stack: Stack, name: str) -> None:
    url = await _upload(stack)
    problem(await stack.client.patch(url, json={"name": name}), 422, "invalid-request")


async def test_two_users_share_a_blob_until_the_last_file_goes(stack: Stack) -> None:
    bob = await stack.client_of("bob")
    own = await _upload(stack)
    bobs = (await stack.upload(CONTENT, bob)).json()["file"]
    assert len(stack.bytes_on_disk()) == 1
    assert (await stack.usage("alice"))["finished"] == (await stack.usage("bob"))["finished"] == CONTENT.size
    await stack.client.delete(own)
    assert (await bob.get(f"/me/files/{bobs['id']}/content")).content == CONTENT.data
    await bob.delete(f"/me/files/{bobs['id']}")
    assert stack.bytes_on_disk() == []


# Content


async def test_content_comes_whole_with_its_digest_and_safe_headers(stack: Stack) -> None:
    url = await _upload(stack)
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


@pytest.mark.parametrize("name", ["plain.txt", "dir/sp ace.txt", 'qu"ote%41;.txt', "dir/ünï 文.txt", "'(a)*.txt"])
async def test_the_file_is_always_an_attachment_under_its_last_segment(stack: Stack, name: str) -> None:
    url = await _upload(stack, name=name)
    header = (await stack.client.head(f"{url}/content")).headers["content-disposition"]
    match = re.fullmatch(r"attachment; filename=\"([^\"\\%]*)\"; filename\*=UTF-8''([A-Za-z0-9%._~-]+)", header)
    assert match
    segment = name.rsplit("/", 1)[-1]
    assert unquote(match[2]) == segment
    assert match[2] == quote(segment, safe="")


@pytest.mark.parametrize(
    ("header", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=0-", 0, 102399),
        ("bytes=1000-70000", 1000, 70000),
        ("bytes=102399-", 102399, 102399),
        ("bytes=5-99999999999999999999", 5, 102399),
        ("bytes=-1", 102399, 102399),
        ("bytes=-999999", 0, 102399),
        ("bytes= 7-9 ", 7, 9),
        ("BYTES=7-9", 7, 9),
        ("bytes=7-9,", 7, 9),
        ("bytes=7-9,200000-200001", 7, 9),
    ],
)
async def test_one_range_is_sent_alone(stack: Stack, header: str, first: int, last: int) -> None:
    url = await _upload(stack)
    response = await stack.client.get(f"{url}/content", headers={"Range": header})
    assert (response.status_code, response.content) == (206, CONTENT.data[first : last + 1])
    assert response.headers["content-range"] == f"bytes {first}-{last}/{CONTENT.size}"
    assert response.headers["content-length"] == str(last - first + 1)
    assert response.headers["etag"] == ETAG


async def test_several_ranges_are_sent_in_parts(stack: Stack) -> None:
    url = await _upload(stack)
    response = await stack.client.get(f"{url}/content", headers={"Range": "bytes=0-4, 70000-70009, -3"})
    assert response.status_code == 206
    kind, boundary = response.headers["content-type"].split("; boundary=")
    assert kind == "multipart/byteranges"
    assert "content-range" not in response.headers
    assert int(response.headers["content-length"]) == len(response.content)
    expected = b""
    for first, last in ((0, 4), (70000, 70009), (102397, 102399)):
        expected += f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n".encode()
        expected += (
            f"Content-Range: bytes {first}-{last}/{CONTENT.size}\r\n\r\n".encode() + CONTENT.data[first : last + 1]
        )
    assert response.content == expected.removeprefix(b"\r\n") + f"\r\n--{boundary}--\r\n".encode()


async def test_a_hundred_ranges_are_sent_and_more_refused(stack: Stack) -> None:
    url = await _upload(stack)
    hundred = "bytes=" + ",".join(["0-0"] * 100)
    response = await stack.client.get(f"{url}/content", headers={"Range": hundred})
    assert (response.status_code, response.content.count(b"Content-Range")) == (206, 100)
    response = await stack.client.get(f"{url}/content", headers={"Range": f"{hundred},0-0"})
    problem(response, 416, "range-not-satisfiable")


@pytest.mark.parametrize(
    "header",
    [
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=a-b",
        "bytes=5-4",
        "bytes=0-1,x",
        "bytes=0x1-2",
        "lines=0-1",
        "bytes=1 -2",
        "bytes=--1",
        "",
    ],
)
async def test_an_invalid_range_is_ignored(stack: Stack, header: str) -> None:
    url = await _upload(stack)
    response = await stack.client.get(f"{url}/content", headers={"Range": header})
    assert (response.status_code, response.content) == (200, CONTENT.data)


@pytest.mark.parametrize("header", ["bytes=-0", "bytes=102400-", "bytes=102400-102401", f"bytes={'9' * 5000}-"])
async def test_a_range_beyond_the_file_is_refused_with_its_size(stack: Stack, header: str) -> None:
    url = await _upload(stack)
    response = await stack.client.get(f"{url}/content", headers={"Range": header})
    problem(response, 416, "range-not-satisfiable")
    assert response.headers["content-range"] == f"bytes */{CONTENT.size}"


async def test_an_empty_file_has_content_and_no_ranges(stack: Stack) -> None:
    file = (await stack.client.post(f"/files/{EMPTY_MD5}", json={"name": "a", "size": 0})).json()["file"]
    url = f"/me/files/{file['id']}/content"
    response = await stack.client.get(url)
    assert (response.status_code, response.content, response.headers["content-length"]) == (200, b"", "0")
    problem(await stack.client.get(url, headers={"Range": "bytes=0-"}), 416, "range-not-satisfiable")


@pytest.mark.parametrize(
    ("condition", "status"), [(ETAG, 206), ('"other"', 200), (f"W/{ETAG}", 200), ("Sat, 01 Jan 2050 00:00:00 GMT", 200)]
)
async def test_a_range_is_sent_only_if_the_file_is_still_the_same(stack: Stack, condition: str, status: int) -> None:
    url = await _upload(stack)
    response = await stack.client.get(f"{url}/content", headers={"Range": "bytes=0-9", "If-Range": condition})
    assert response.status_code == status
    assert response.content == (CONTENT.data[:10] if status == 206 else CONTENT.data)


@pytest.mark.parametrize(
    ("condition", "status"), [(ETAG, 304), (f"W/{ETAG}", 304), (f'"other", {ETAG}', 304), ("*", 304), ('"other"', 200)]
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_the_client_has_is_not_sent_again(stack: Stack, method: str, condition: str, status: int) -> None:
    url = await _upload(stack)
    headers = {"If-None-Match": condition, "Range": "bytes=999999-"} if status == 304 else {"If-None-Match": condition}
    response = await stack.client.request(method, f"{url}/content", headers=headers)
    assert response.status_code == status
    assert response.headers["etag"] == ETAG
    assert response.content == (CONTENT.data if (method, status) == ("GET", 200) else b"")


# The accounts


async def test_the_accounts_say_what_is_used_and_what_is_left(stack: Stack) -> None:
    user = await stack.client_of("user", total_space=1000 * KIB)
    await stack.upload(CONTENT, user)
    await stack.open(Content(300 * KIB, seed=1), user)
    assert (await user.get("/me/usage")).json() == {
        "total_space": 1000 * KIB,
        "use_space_finished": 100 * KIB,
        "use_space_unfinished": 0,
        "reserved": 300 * KIB,
        "available": 600 * KIB,
    }


async def test_what_is_available_is_never_negative(stack: Stack) -> None:
    user = await stack.client_of("user", total_space=1000 * KIB)
    await stack.upload(CONTENT, user)
    await stack.services.accounts.set_total_space("user", 10)
    usage = (await user.get("/me/usage")).json()
    assert (usage["total_space"], usage["use_space_finished"], usage["available"]) == (10, 100 * KIB, 0)
    problem(await user.post("/uploads", json={"name": "a", "size": 1}), 413, "quota-exceeded")


# Removing content


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
        database.transact(lambda connection: transactions.files.delete_file(connection, row)),
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
