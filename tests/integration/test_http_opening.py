"""`POST /files/{md5}`: every answer of its table, and the instant upload in each mode."""

import re
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.stack import GIB, Stack
from uploader.domain.digest import EMPTY_MD5, EMPTY_SHA256
from uploader.storage.base import Space

CONTENT = Content(100 * KIB)
_UPLOAD_MEMBERS = {
    *("id", "md5", "name", "size", "chunk_size", "chunk_count"),
    *("received_bytes", "missing", "state", "created_at", "expires_at"),
}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


async def test_a_new_upload_is_described_whole_and_reserved(stack: Stack) -> None:
    response = await stack.open(CONTENT, name="cafe\u0301/ma\u0308rz.txt", chunk_size=1)
    assert response.status_code == 201
    assert response.headers["location"] == f"/files/{CONTENT.md5}"
    body = response.json()
    assert body.keys() == {"state", "upload"}
    upload = body["upload"]
    assert upload.keys() == _UPLOAD_MEMBERS
    assert (upload["md5"], upload["name"], upload["size"]) == (CONTENT.md5, "caf\u00e9/m\u00e4rz.txt", CONTENT.size)
    assert (upload["chunk_size"], upload["chunk_count"]) == (64 * KIB, 2), "1 is less than may be"
    assert (upload["received_bytes"], upload["missing"], upload["state"]) == (0, [[0, 1]], "uploading")
    assert _TIME.fullmatch(upload["created_at"])
    assert _TIME.fullmatch(upload["expires_at"])
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": CONTENT.size}
    response = await stack.client.post("/uploads", json={"name": "a", "size": 1})
    assert response.json()["upload"]["chunk_size"] == 8 * 1024 * KIB


async def test_a_repeated_opening_resumes_with_the_stored_name_and_chunk_size(stack: Stack) -> None:
    opened = (await stack.open(CONTENT)).json()["upload"]
    await stack.put(CONTENT, 1)
    other = {"name": "another.bin", "size": CONTENT.size, "chunk_size": 128 * KIB}
    for md5 in (CONTENT.md5, CONTENT.md5.upper()):
        response = await stack.client.post(f"/files/{md5}", json=other)
        assert response.status_code == 200
        assert "location" not in response.headers
        upload = response.json()["upload"]
        assert (upload["id"], upload["name"], upload["chunk_size"]) == (opened["id"], CONTENT.name, 64 * KIB)
        assert (upload["missing"], upload["received_bytes"]) == ([[0, 0]], len(CONTENT.chunk(1)))
    assert (await stack.usage("alice"))["reserved"] == CONTENT.size


async def test_an_empty_file_completes_in_the_opening_call_with_the_digests_of_nothing(stack: Stack) -> None:
    empty = {"name": "empty", "size": 0}
    body = problem(await stack.client.post(f"/files/{CONTENT.md5}", json=empty), 422, "md5-mismatch")
    assert (body["expected"], body["actual"]) == (CONTENT.md5, EMPTY_MD5)
    other = await stack.client.post(f"/files/{EMPTY_MD5}", json={**empty, "sha256": CONTENT.sha256})
    problem(other, 422, "sha256-mismatch")
    response = await stack.client.post(f"/files/{EMPTY_MD5}", json=empty)
    assert response.status_code == 201
    file = response.json()["file"]
    assert (file["md5"], file["sha256"], file["size"]) == (EMPTY_MD5, EMPTY_SHA256, 0)
    assert (await stack.client.get(f"/me/files/{file['id']}/content")).content == b""
    again = await stack.client.post(f"/files/{EMPTY_MD5}", json=empty)
    assert (again.status_code, again.json()["file"]) == (200, file)


async def test_own_content_under_another_name_is_instant(stack: Stack) -> None:
    first = (await stack.upload(CONTENT)).json()["file"]
    on_disk = stack.bytes_on_disk()
    response = await stack.open(CONTENT, name="second.bin")
    assert (response.status_code, response.json()["state"]) == (201, "complete")
    second = response.json()["file"]
    assert (first["instant"], second["instant"]) == (False, True)
    assert (second["name"], second["sha256"]) == ("second.bin", CONTENT.sha256)
    assert response.headers["location"] == f"/me/files/{second['id']}"
    assert stack.bytes_on_disk() == on_disk
    assert await stack.usage("alice") == {"finished": 2 * CONTENT.size, "unfinished": 0, "reserved": 0}


@pytest.mark.parametrize("more", [{"name": "second.bin", "instant": False}, {"sha256": "0" * 64}])
async def test_bytes_are_asked_for_where_the_client_wants_that_or_means_others(
    stack: Stack, more: dict[str, Any]
) -> None:
    await stack.upload(CONTENT)
    response = await stack.open(CONTENT, **more)
    assert (response.status_code, response.json()["state"]) == (201, "uploading")


async def test_the_same_file_again_makes_no_twin(stack: Stack) -> None:
    file = (await stack.upload(CONTENT)).json()["file"]
    for more in ({}, {"instant": False}, {"sha256": CONTENT.sha256}):
        response = await stack.open(CONTENT, **more)
        assert (response.status_code, response.json()) == (200, {"state": "complete", "file": file})
    assert len((await stack.client.get("/me/files")).json()["files"]) == 1


async def test_an_open_upload_becomes_the_instant_file(stack: Stack) -> None:
    file = (await stack.upload(CONTENT)).json()["file"]
    await stack.open(CONTENT, name="open.bin", instant=False)
    await stack.put(CONTENT, 0)
    response = await stack.open(CONTENT, name="instant.bin")
    assert (response.status_code, response.json()["file"]["name"]) == (201, "instant.bin")
    assert (await stack.client.get("/uploads")).json() == {"uploads": []}
    assert await stack.usage("alice") == {"finished": 2 * CONTENT.size, "unfinished": 0, "reserved": 0}
    assert (await stack.client.get(f"/me/files/{file['id']}")).status_code == 200


@pytest.mark.parametrize(("mode", "own"), [("own", "complete"), ("off", "uploading")])
async def test_content_of_others_has_to_be_sent(make_stack: MakeStack, mode: str, own: str) -> None:
    async with make_stack(instant=mode) as stack:
        await stack.upload(CONTENT)
        response = await stack.open(CONTENT, await stack.client_of("bob"), sha256=CONTENT.sha256)
        assert (response.status_code, response.json()["state"]) == (201, "uploading")
        assert (await stack.open(CONTENT)).json()["state"] == "complete", "the very same file is there already"
        assert (await stack.open(CONTENT, name="own.bin")).json()["state"] == own


async def test_where_users_trust_one_another_md5_and_size_are_enough(make_stack: MakeStack) -> None:
    async with make_stack(instant="trust") as stack:
        await stack.upload(CONTENT)
        bob = await stack.client_of("bob")
        problem(await stack.open(CONTENT, await stack.client_of("poor", total_space=1)), 413, "quota-exceeded")
        other_size = await bob.post(f"/files/{CONTENT.md5}", json={"name": "a", "size": CONTENT.size + 1})
        assert other_size.json()["state"] == "uploading"
        assert (await bob.delete(f"/files/{CONTENT.md5}")).status_code == 204
        response = await stack.open(CONTENT, bob)
        assert (response.status_code, response.json()["file"]["instant"]) == (201, True)
        content = await bob.get(f"/me/files/{response.json()['file']['id']}/content")
        assert content.content == CONTENT.data
        assert (await stack.usage("bob"))["finished"] == CONTENT.size


async def test_what_contradicts_an_open_upload_is_a_conflict(stack: Stack) -> None:
    await stack.open(CONTENT)
    response = await stack.client.post(f"/files/{CONTENT.md5}", json={"name": "a", "size": CONTENT.size + 1})
    problem(response, 409, "size-mismatch")
    other = Content(1000, seed=1)
    await stack.open(other, sha256=other.sha256)
    for content in (CONTENT, other):  # told when resuming, or before
        for sha256 in (content.sha256, content.sha256.upper()):
            assert (await stack.open(content, sha256=sha256)).status_code == 200
        problem(await stack.open(content, sha256="0" * 64), 409, "sha256-conflict")


async def test_more_than_the_quota_is_refused_with_the_figures_and_leaves_nothing(stack: Stack) -> None:
    small = await stack.client_of("small", total_space=250 * KIB)
    await stack.upload(CONTENT, small)
    await stack.open(Content(100 * KIB, seed=1), small)
    directories = set((stack.data / "temp").glob("*/*/*"))
    body = problem(await stack.open(Content(50 * KIB + 1, seed=2), small), 413, "quota-exceeded")
    figures = ("total_space", "use_space_finished", "use_space_unfinished", "reserved", "requested")
    assert [body[name] for name in figures] == [250 * KIB, 100 * KIB, 0, 100 * KIB, 50 * KIB + 1]
    assert set((stack.data / "temp").glob("*/*/*")) == directories
    assert await stack.usage("small") == {"finished": 100 * KIB, "unfinished": 0, "reserved": 100 * KIB}
    assert (await stack.open(Content(50 * KIB, seed=2), small)).status_code == 201


async def test_a_file_over_the_limit_is_too_large(make_stack: MakeStack) -> None:
    async with make_stack(max_file_size_bytes=1000) as stack:
        for size in (1001, 2**63 - 1):
            response = await stack.client.post("/uploads", json={"name": "a", "size": size})
            assert problem(response, 413, "file-too-large")["limit"] == 1000
        assert (await stack.open(Content(1000))).status_code == 201


async def test_a_file_of_more_chunks_than_there_may_be_is_too_large(make_stack: MakeStack) -> None:
    async with make_stack(max_chunk_size_bytes=64 * KIB, chunk_size_bytes=64 * KIB) as stack:
        for size, status in ((10_000 * 64 * KIB, 201), (10_000 * 64 * KIB + 1, 413)):
            body = {"name": "a", "size": size}
            response = await stack.client.post(f"/files/{size:032x}", json=body)
            assert response.status_code == status
        assert problem(response, 413, "file-too-large")["limit"] == 10_000 * 64 * KIB


async def test_too_many_open_uploads_are_refused(make_stack: MakeStack) -> None:
    async with make_stack(max_open_uploads=2) as stack:
        contents = [Content(1000, seed=seed) for seed in range(3)]
        for content in contents[:2]:
            assert (await stack.open(content)).status_code == 201
        response = await stack.open(contents[2])
        assert problem(response, 429, "too-many-uploads")["limit"] == 2
        assert int(response.headers["retry-after"]) > 0
        assert (await stack.open(contents[0])).status_code == 200
        await stack.client.delete(f"/files/{contents[0].md5}")
        assert (await stack.open(contents[2])).status_code == 201


async def test_an_opening_that_the_disk_has_no_room_for_is_refused(make_stack: MakeStack) -> None:
    async with make_stack(free_space_floor_bytes=2**62) as stack:
        refused = problem(await stack.open(CONTENT), 507, "storage-full")
        assert (refused["retryable"], refused["limit"]) == (False, 0), "it would not fit on an empty disk"
        assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}
        assert stack.bytes_on_disk() == []


async def test_room_is_promised_to_each_upload_and_free_again_at_once_when_it_ends(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_stack(free_space_floor_bytes=0) as stack:

        async def space() -> Space:
            return Space(total=10**6, free=2500, trash=0)

        monkeypatch.setattr(stack.services.storage, "space", space)
        contents = [Content(1000, seed=seed) for seed in range(3)]
        for content in contents[:2]:
            assert (await stack.open(content)).status_code == 201
        refused = problem(await stack.open(contents[2]), 507, "storage-full")
        assert (refused["retryable"], refused["requested"], refused["available"]) == (True, 1000, 500)
        await stack.client.delete(f"/files/{contents[0].md5}")
        assert (await stack.open(contents[2])).status_code == 201
        refused = problem(await stack.open(Content(10**6 + 1)), 507, "storage-full")
        assert (refused["retryable"], refused["limit"]) == (False, 10**6)


async def test_the_size_is_checked_before_the_quota_the_number_of_uploads_and_the_disk(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        await stack.open(CONTENT)
    async with make_stack(max_file_size_bytes=20 * GIB, max_open_uploads=1, free_space_floor_bytes=2**62) as stack:
        for size, status, code in (
            (20 * GIB + 1, 413, "file-too-large"),
            (10 * GIB, 413, "quota-exceeded"),
            (1000, 429, "too-many-uploads"),
        ):
            response = await stack.client.post(f"/files/{'0' * 32}", json={"name": "a", "size": size})
            problem(response, status, code)
