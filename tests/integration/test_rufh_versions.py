"""The versions of resumable uploads of HTTP that clients in use speak: iOS 17 sends 3, iOS 18.0 5, 18.1 and later 6, iOS 26
8; tus-js-client 4 speaks 5 and 6."""

import base64
from collections.abc import AsyncIterator

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.invariants import Account, checked_accounts
from tests.support.stack import Stack

CONTENT = Content(130 * KIB)
VERSIONS = pytest.mark.parametrize("version", [3, 4, 5, 6, 7, 8, None], ids=str)


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    async with make_stack(chunk_size_bytes=64 * KIB) as made:
        yield made


def named(version: int | None, complete: bool | None = None) -> dict[str, str]:
    """What a request of a version says: its name, and whether its content is the last."""
    headers = {} if version is None else {"Upload-Draft-Interop-Version": str(version)}
    if complete is None:
        return headers
    if version == 3:
        return {**headers, "Upload-Incomplete": "?0" if complete else "?1"}
    return {**headers, "Upload-Complete": "?1" if complete else "?0"}


def appending(version: int | None, offset: int, complete: bool) -> dict[str, str]:
    kind = {"Content-Type": "application/partial-upload"} if version is None or version >= 6 else {}
    return {**named(version, complete), "Upload-Offset": str(offset), **kind}


def check(answer: httpx2.Response, version: int | None, status: int, complete: bool | None) -> None:
    """Its status, and what an answer of a version says, and no more than that."""
    assert answer.status_code == status, answer.text
    assert answer.headers.get("upload-draft-interop-version") == (None if version is None else str(version))
    told = answer.headers.get("upload-incomplete" if version == 3 else "upload-complete")
    assert told == (None if complete is None else "?1" if complete is not (version == 3) else "?0")
    assert ("upload-complete" if version == 3 else "upload-incomplete") not in answer.headers
    limits = answer.headers.get("upload-limit", "")
    assert bool(limits) is (version is None or version >= 6)
    assert ("expires=" in limits) <= (version == 6)
    assert ("max-age=" in limits) <= (version != 6)


@VERSIONS
async def test_an_upload_in_parts(stack: Stack, version: int | None) -> None:
    length = {"Upload-Length": str(CONTENT.size)}
    opened = await stack.client.post("/resumable", headers={**named(version, False), **length})
    check(opened, version, 201, complete=False)
    path = opened.headers["location"]
    first = await stack.client.patch(path, content=CONTENT.data[: 70 * KIB], headers=appending(version, 0, False))
    check(first, version, 204, complete=False)
    assert first.headers["upload-offset"] == str(70 * KIB)
    asked = await stack.client.head(path, headers=named(version))
    check(asked, version, 204, complete=False)
    assert (asked.headers["upload-offset"], asked.headers["cache-control"]) == (str(70 * KIB), "no-store")
    stale = await stack.client.patch(path, content=b"x", headers=appending(version, 0, False))
    check(stale, version, 409, complete=False)
    assert stale.headers["upload-offset"] == str(70 * KIB)
    last = await stack.client.patch(path, content=CONTENT.data[70 * KIB :], headers=appending(version, 70 * KIB, True))
    check(last, version, 201, complete=True)
    assert (await stack.client.get(last.headers["content-location"])).json()["sha256"] == CONTENT.sha256
    check(await stack.client.head(path, headers=named(version)), version, 204, complete=True)
    assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}


@VERSIONS
async def test_a_whole_upload_and_a_cancelled_one(stack: Stack, version: int | None) -> None:
    whole = await stack.client.post("/resumable", content=CONTENT.data, headers=named(version, True))
    check(whole, version, 201, complete=True)
    forgotten = await stack.client.delete(whole.headers["location"], headers=named(version))
    check(forgotten, version, 204, complete=None)
    length = {"Upload-Length": "100"}
    part = await stack.client.post("/resumable", content=b"12345", headers={**named(version, False), **length})
    check(part, version, 201, complete=False)
    path = part.headers["location"]
    check(await stack.client.delete(path, headers=named(version)), version, 204, complete=None)
    check(await stack.client.head(path, headers=named(version)), version, 410, complete=None)
    accounts = await checked_accounts(stack.services.database)
    assert accounts == {"alice": Account(finished=CONTENT.size)}


@VERSIONS
async def test_only_later_versions_have_a_media_type(stack: Stack, version: int | None) -> None:
    headers = {**named(version, False), "Upload-Length": "5"}
    path = (await stack.client.post("/resumable", headers=headers)).headers["location"]
    told = {**appending(version, 0, False), "Content-Type": "application/octet-stream"}
    wanted = 415 if version is None or version >= 6 else 204
    check(await stack.client.patch(path, content=b"123", headers=told), version, wanted, complete=False)


@pytest.mark.parametrize("version", ["2", "9", "x", "", "8.0"])
async def test_a_version_that_is_not_spoken_is_served_as_the_current_one(stack: Stack, version: str) -> None:
    headers = {"Upload-Draft-Interop-Version": version, "Upload-Complete": "?1"}
    answer = await stack.client.post("/resumable", content=b"12345", headers=headers)
    check(answer, None, 201, complete=True)


async def test_version_3_may_leave_out_that_it_is_the_last(stack: Stack) -> None:
    headers = {**named(3, False), "Upload-Length": "5"}
    path = (await stack.client.post("/resumable", headers=headers)).headers["location"]
    told = {**named(3), "Upload-Offset": "0"}
    check(await stack.client.patch(path, content=b"12345", headers=told), 3, 201, complete=True)


@pytest.mark.parametrize("version", [5, 6])
async def test_what_tus_js_client_sends_of_a_stream_becomes_a_file(stack: Stack, version: int) -> None:
    """It never says that the last bytes are the last, and takes the offset for the end."""
    metadata = {"Upload-Metadata": "filename " + base64.b64encode(b"stream.bin").decode()}
    headers = {**named(version, False), "Upload-Length": "10", **metadata}
    path = (await stack.client.post("/resumable", headers=headers)).headers["location"]
    for start in (0, 5):
        told = {**appending(version, start, False), "X-HTTP-Method-Override": "PATCH"}
        check(await stack.client.post(path, content=b"12345", headers=told), version, 204, complete=False)
    (file,) = (await stack.client.get("/me/files")).json()["files"]
    assert (file["name"], file["size"]) == ("stream.bin", 10)
    empty = {**named(version, False), "Upload-Length": "0", **metadata}
    check(await stack.client.post("/resumable", headers=empty), version, 201, complete=False)
    assert len((await stack.client.get("/me/files")).json()["files"]) == 2


@pytest.mark.parametrize("version", [5, 6])
async def test_what_tus_js_client_sends_of_a_stream_without_length_becomes_a_file(stack: Stack, version: int) -> None:
    headers = {**named(version, False), "Upload-Defer-Length": "1"}
    path = (await stack.client.post("/resumable", headers=headers)).headers["location"]
    for start in (0, 5):
        told = appending(version, start, False)
        check(await stack.client.patch(path, content=b"12345", headers=told), version, 204, complete=False)
    last = {name: value for name, value in appending(version, 10, False).items() if name != "Upload-Complete"}
    answer = await stack.client.patch(path, headers={**last, "Upload-Length": "10"})
    check(answer, version, 204, complete=False)
    assert answer.headers["upload-offset"] == "10"
    (file,) = (await stack.client.get("/me/files")).json()["files"]
    assert file["size"] == 10
