"""`PUT /files/{md5}` and `POST /me/files`: every answer of their tables."""

import asyncio
import base64
import errno
import hashlib
from collections.abc import AsyncIterator
from functools import partial
from itertools import chain, product
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.archives import Entry, archive
from tests.support.content import KIB, MIB, Content
from tests.support.faults import failing_call
from tests.support.paging import pages
from tests.support.problems import problem
from tests.support.resumable import RESUMABLE, Resumable, Rufh, Tus
from tests.support.stack import Stack
from tests.support.visiting import make_link, visit
from uploader.domain.digest import EMPTY_MD5

CONTENT = Content(100 * KIB, name="docs/a.bin")
URL = f"/files/{CONTENT.md5}"


async def _pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _put(stack: Stack, content: Content = CONTENT, **query: str) -> httpx2.Response:
    params = {"name": content.name} | query
    return await stack.client.put(f"/files/{content.md5}", params=params, content=content.data)


async def _names(stack: Stack) -> list[str]:
    return [file["name"] for file in (await stack.client.get("/me/files")).json()["files"]]


async def test_a_whole_file_is_stored(stack: Stack) -> None:
    stored = 0
    for size in (0, 1, 4 * KIB, 64 * KIB, 2 * MIB + 1):
        content = Content(size, name=f"docs/{size}.bin")
        told = {"sha256": content.sha256.upper(), "modified_at": "2026-01-02T03:04:05.678+02:00"}
        response = await _put(stack, content, **told)
        assert response.status_code == 201
        body = response.json()
        file = body["file"]
        assert body == {"state": "complete", "file": file}
        assert response.headers["location"] == f"/me/files/{file['id']}"
        expected = {"name": content.name, "md5": content.md5, "sha256": content.sha256, "size": size, "instant": False}
        assert expected.items() <= file.items()
        assert file["modified_at"] == "2026-01-02T01:04:05.678000Z"
        assert (await stack.client.get(f"/me/files/{file['id']}/content")).content == content.data
        assert (await stack.client.get(f"/files/{content.md5}")).json() == body
        stored += size
        assert await stack.usage("alice") == {"finished": stored, "unfinished": 0, "reserved": 0}


async def test_form_and_range_of_a_file_are_stored_as_no_file(stack: Stack) -> None:
    """By whichever route, and whoever sends them; a chunk is a part of a file anyway."""
    routes = {each.route for each in stack.app.operations if each.takes_bytes and "/chunks/" not in each.route}
    wrongs = (
        ({"Content-Type": "Multipart/Form-Data; boundary=x"}, 415, "unsupported-media-type"),
        ({"Content-Range": f"bytes 0-9/{CONTENT.size}"}, 400, "bad-request"),
        ({"Content-Encoding": "gzip"}, 415, "unsupported-media-type"),
    )
    for client in (stack.client, await visit(stack, await make_link(stack))):
        tus, rufh, early = Tus(client), Rufh(client), Rufh(client, 3)
        begun = {protocol: await protocol.created(CONTENT.size) for protocol in (tus, rufh, early)}
        opened = {"name": "a", "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
        upload = (await client.post(URL, json=opened)).json()["upload"]
        asked: dict[str, list[partial[Any]]] = {
            "PUT /files/{md5}": [partial(client.put, URL, params={"name": "a"}, content=CONTENT.data)],
            "POST /me/files": [partial(client.post, "/me/files", params={"name": "a"}, content=CONTENT.data)],
            "POST /files/batch": [partial(client.post, "/files/batch", content=archive(Entry("a", b"a")))],
            "POST /resumable": [
                partial(client.post, RESUMABLE, content=CONTENT.data),
                *(partial(each.create, CONTENT.size, CONTENT.data, last=True) for each in begun),
            ],
            "PATCH /resumable/{id}": [
                partial(each.patch, path, 0, CONTENT.data, last=True) for each, path in begun.items()
            ],
        }
        assert asked.keys() == routes
        for send, (headers, status, code) in product(chain(*asked.values()), wrongs):
            said = {name.replace("-", "_"): value for name, value in headers.items()}
            is_resumable = isinstance(getattr(send.func, "__self__", None), Resumable)
            problem(await (send(**said) if is_resumable else send(headers=headers)), status, code)
        for headers, _, _ in wrongs[:2]:
            chunk = await client.put(f"/uploads/{upload['id']}/chunks/0", content=CONTENT.chunk(0), headers=headers)
            assert (chunk.status_code, chunk.json()["received_bytes"]) == (200, len(CONTENT.chunk(0)))
        for protocol, path in begun.items():
            assert await protocol.state(path) == (0, False, CONTENT.size)
    assert await _names(stack) == []


async def test_leap_second_is_a_time(stack: Stack) -> None:
    """RFC 3339, section 5.7; to the second after it, as POSIX has it."""
    client, leap = stack.client, {"modified_at": "2016-12-31T15:59:60.25-08:00"}
    sizes = {"size": 0, "name": "a"}
    for answer in (
        await client.post("/me/files", params={"name": "whole", **leap}, content=b"1"),
        await client.put(f"/files/{EMPTY_MD5}", params={"name": "whole too", **leap}),
        await client.post(f"/files/{EMPTY_MD5}", json={**sizes, **leap, "instant": False}),
        await client.post("/uploads", json={**sizes, **leap, "name": "b"}),
    ):
        assert answer.json()["file"]["modified_at"] == "2017-01-01T00:00:00.250000Z", answer.text
    for wrong in ("2016-12-31T23:59:60-08:00", "2016-12-31T23:58:60Z", "2016-12-31T23:59:61Z", "9999-12-31T23:59:60Z"):
        refused = await client.post("/uploads", json={**sizes, "modified_at": wrong})
        assert problem(refused, 422, "invalid-request")["errors"][0]["field"] == "modified_at"


async def test_neither_length_nor_md5_need_be_known(stack: Stack) -> None:
    response = await stack.client.put(URL, params={"name": "a"}, content=_pieces(CONTENT.data[:7], CONTENT.data[7:]))
    assert (response.status_code, response.json()["file"]["size"]) == (201, CONTENT.size)
    response = await stack.client.post("/me/files", params={"name": "e\u0301"}, content=CONTENT.data)
    assert response.status_code == 201
    file = response.json()["file"]
    assert (file["md5"], file["name"], file["modified_at"]) == (CONTENT.md5, "\u00e9", None)
    response = await stack.client.put(f"/files/{CONTENT.md5.upper()}?name=b", content=CONTENT.data)
    assert response.json()["file"]["md5"] == CONTENT.md5


async def test_a_repeated_call_makes_no_twin(stack: Stack) -> None:
    first, again = await _put(stack), await _put(stack)
    assert (again.status_code, again.json()) == (200, first.json())
    assert "location" not in again.headers
    known = await stack.client.post("/me/files", params={"name": CONTENT.name}, content=CONTENT.data)
    assert (known.status_code, known.json()) == (200, first.json())
    assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}
    problem(await stack.client.put(URL, params={"name": CONTENT.name}, content=b"other"), 422, "md5-mismatch")
    assert len(await _names(stack)) == 1
    assert (await _put(stack, name="another")).status_code == 201


async def test_files_of_one_name_stay_side_by_side_unless_it_is_said_otherwise(stack: Stack) -> None:
    first, second, third = (Content(1000 + seed, seed=seed, name="a") for seed in range(3))
    await _put(stack, first)
    assert (await _put(stack, second, if_exists="keep")).status_code == 201
    assert sorted(await _names(stack)) == ["a", "a (2)"]
    assert (await _put(stack, second, if_exists="keep")).status_code == 200
    assert (await _put(stack, third, if_exists="replace")).status_code == 201
    assert sorted(await _names(stack)) == ["a", "a (2)"]
    assert problem(await _put(stack, first, if_exists="fail"), 409, "name-taken")["taken"] == "a"
    assert (await _put(stack, third, if_exists="fail")).status_code == 200
    assert await stack.usage("alice") == {"finished": second.size + third.size, "unfinished": 0, "reserved": 0}


async def test_an_upload_takes_the_same_words(stack: Stack) -> None:
    first, second = Content(1000, name="a"), Content(2000, seed=1, name="a")
    await _put(stack, first)
    problem(await stack.open(second, if_exists="fail"), 409, "name-taken")
    response = await stack.upload(second, if_exists="replace", modified_at="2026-01-02T03:04:05Z")
    assert (response.status_code, response.json()["file"]["modified_at"]) == (201, "2026-01-02T03:04:05Z")
    assert await stack.usage("alice") == {"finished": second.size, "unfinished": 0, "reserved": 0}
    by_id = {"name": "a", "size": 0, "if_exists": "replace", "modified_at": "1969-12-31T23:59:59.5Z"}
    response = await stack.client.post("/uploads", json=by_id)
    assert (response.status_code, response.json()["file"]["modified_at"]) == (201, "1969-12-31T23:59:59.500000Z")
    assert await _names(stack) == ["a"]


async def test_what_does_not_fit_is_refused_before_the_body(stack: Stack) -> None:
    client = await stack.client_of("bob", total_space=1000)
    asked = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal asked
        asked += 1
        yield bytes(2000)

    headers = {"Content-Length": "2000"}
    refused = problem(
        await client.put(URL, params={"name": "a"}, content=body(), headers=headers), 413, "quota-exceeded"
    )
    assert (refused["requested"], refused["total_space"]) == (2000, 1000)
    problem(await client.put(URL, params={"name": "a"}, content=_pieces(CONTENT.data)), 413, "quota-exceeded")
    assert await stack.usage("bob") == {"finished": 0, "unfinished": 0, "reserved": 0}


@pytest.mark.parametrize("declared", [True, False])
async def test_a_file_longer_than_a_chunk_is_to_be_sent_in_chunks(make_stack: MakeStack, declared: bool) -> None:
    async with make_stack(max_chunk_size_bytes=128 * KIB, chunk_size_bytes=64 * KIB) as stack:
        for size, status in ((128 * KIB, 201), (128 * KIB + 1, 413)):
            content = Content(size)
            sent: Any = content.data if declared else _pieces(content.data)
            response = await stack.client.put(f"/files/{content.md5}?name=a", content=sent)
            assert response.status_code == status
        assert problem(response, 413, "file-too-large")["limit"] == 128 * KIB


async def test_other_bytes_than_claimed_leave_nothing(stack: Stack) -> None:
    other = Content(100, seed=1)
    refused = problem(await stack.client.put(URL, params={"name": "a"}, content=other.data), 422, "md5-mismatch")
    assert (refused["expected"], refused["actual"]) == (CONTENT.md5, other.md5)
    refused = problem(await _put(stack, sha256=other.sha256), 422, "sha256-mismatch")
    assert (refused["expected"], refused["actual"]) == (other.sha256, CONTENT.sha256)
    response = await stack.client.post("/me/files", params={"name": "a", "sha256": other.sha256}, content=b"x")
    problem(response, 422, "sha256-mismatch")
    problem(await stack.client.put(URL, params={"name": "a"}), 422, "md5-mismatch")  # nothing has an MD5 of its own
    assert stack.bytes_on_disk() == []
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


async def test_a_digest_that_is_sent_with_the_body_is_compared(stack: Stack) -> None:
    for name, form in (("Content-MD5", "{}"), ("Content-Digest", "md5=:{}:")):
        for data, status in ((CONTENT.data, 201), (b"other", 422)):
            digest = base64.b64encode(hashlib.md5(data).digest()).decode()
            headers = {name: form.format(digest)}
            response = await stack.client.post(f"/me/files?name={name}", content=CONTENT.data, headers=headers)
            assert response.status_code == status
        problem(response, 422, "digest-mismatch")


async def test_the_path_goes_before_the_query_the_coding_and_the_token_before_all(stack: Stack) -> None:
    problem(await stack.client.put("/files/xyz", content=b"x"), 422, "invalid-md5")
    for method, path in (("PUT", URL), ("POST", "/me/files"), ("POST", "/files/batch")):
        problem(await stack.anonymous().request(method, path, content=b"x"), 401, "unauthenticated")
        coded = {"Content-Encoding": "gzip"}
        response = await stack.client.request(method, f"{path}?name=a", content=b"x", headers=coded)
        problem(response, 415, "unsupported-media-type")
    problem(await stack.anonymous().put("/files/xyz", content=b"x"), 401, "unauthenticated")


async def test_too_many_at_once_are_refused(make_stack: MakeStack) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        begun.set()
        await go_on.wait()
        yield CONTENT.data

    async with make_stack(max_concurrent_chunks=1) as stack:
        first = asyncio.create_task(stack.client.put(f"{URL}?name=a", content=body()))
        await begun.wait()
        refused = await _put(stack, name="b")
        assert problem(refused, 429, "too-many-requests")["limit"] == 1
        assert int(refused.headers["retry-after"]) > 0
        await stack.open(Content(1000))
        problem(await stack.put(Content(1000), 0), 429, "too-many-requests")
        problem(await stack.client.post("/files/batch", content=bytes(1024)), 429, "too-many-requests")
        go_on.set()
        assert (await first).status_code == 201


async def test_a_full_disk_is_told_and_leaves_no_bytes(stack: Stack) -> None:
    with failing_call("pwrite", errno.ENOSPC):
        problem(await _put(stack), 507, "storage-full")
    assert sum(path.stat().st_size for path in stack.bytes_on_disk()) == 0
    assert (await _put(stack)).status_code == 201


async def test_names_that_contain_something_are_found(stack: Stack) -> None:
    for number, name in enumerate(("a/b", "a/c", "b", "\u00e9/%b_", "B")):
        await stack.client.post("/me/files", params={"name": name}, content=b"%d" % number)
    for query, expected in (
        ({"q": "b", "limit": "2"}, ["\u00e9/%b_", "b", "a/b"]),
        ({"q": "e\u0301/"}, ["\u00e9/%b_"]),
    ):
        found = [file["name"] for page in await pages(stack.client, "/me/files", **query) for file in page["files"]]
        assert found == expected
