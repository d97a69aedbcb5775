"""`POST /files/{md5}` and `/uploads`: every answer of their tables, the instant upload in each mode, and uploads by id, also
before the MD5 is known."""

import re
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.merging import merge_held_up
from tests.support.problems import problem
from tests.support.stack import GIB, Stack
from tests.support.waiting import eventually
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
        bob = await stack.client_of("bob")
        for client, size, status, code in (
            (stack.client, 20 * GIB + 1, 413, "file-too-large"),
            (stack.client, 10 * GIB, 413, "quota-exceeded"),
            (stack.client, 1000, 429, "too-many-uploads"),
            (bob, 1000, 507, "storage-full"),
        ):
            for path in (f"/files/{'0' * 32}", "/uploads"):
                problem(await client.post(path, json={"name": "a", "size": size}), status, code)


_BODY = {"name": CONTENT.name, "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}


async def _open(stack: Stack) -> str:
    """Open an upload by id; its address."""
    response = await stack.client.post("/uploads", json=_BODY)
    assert response.status_code == 201
    location: str = response.headers["location"]
    return location


async def _send(stack: Stack, url: str) -> int:
    """Send every chunk; the status of the last answer."""
    for number in range(CONTENT.chunk_count):
        response = await stack.client.put(f"{url}/chunks/{number}", content=CONTENT.chunk(number))
    return response.status_code


async def test_an_upload_is_opened_before_its_md5_is_known(stack: Stack) -> None:
    response = await stack.client.post("/uploads", json=_BODY)
    assert response.status_code == 201
    body = response.json()
    assert body["state"] == "uploading"
    assert body["upload"]["md5"] is None
    assert response.headers["location"] == f"/uploads/{body['upload']['id']}"
    assert (await stack.usage("alice"))["reserved"] == CONTENT.size
    assert await _open(stack) != response.headers["location"], "the same body again is another upload"


async def test_an_idempotency_key_makes_it_the_same_upload_and_tells_what_became_of_it(stack: Stack) -> None:
    async def opened(key: str, body: dict[str, Any] = _BODY) -> httpx2.Response:
        return await stack.client.post("/uploads", json=body, headers={"Idempotency-Key": key})

    done = "!" + "x" * 126 + "~"
    first, again = await opened(done), await opened(done)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert (await stack.usage("alice"))["reserved"] == CONTENT.size
    problem(await opened(done, _BODY | {"size": 1}), 422, "invalid-request")
    assert await _send(stack, first.headers["location"]) == 201
    again = await opened(done)
    assert (again.status_code, again.json()["state"]) == (200, "complete")
    second = await opened("cancelled")
    await stack.client.delete(second.headers["location"])
    assert problem(await opened("cancelled"), 410, "upload-gone")["reason"] == "cancelled"


async def test_an_upload_whose_md5_is_never_told_completes(stack: Stack) -> None:
    url = await _open(stack)
    assert await _send(stack, url) == 201
    file = (await stack.client.get(url)).json()["file"]
    assert (file["md5"], file["sha256"], file["instant"]) == (CONTENT.md5, CONTENT.sha256, False)
    assert (await stack.client.get(f"/files/{CONTENT.md5}")).json()["file"] == file
    late = await stack.client.put(f"{url}/chunks/0", content=CONTENT.chunk(0))
    assert (late.status_code, late.json()) == (200, {"state": "complete", "file": file})
    assert (await stack.client.post(f"{url}/merge")).status_code == 200
    problem(await stack.client.delete(url), 404, "upload-not-found")


async def test_where_it_stands_and_what_is_missing(stack: Stack) -> None:
    url = await _open(stack)
    await stack.client.put(f"{url}/chunks/1", content=CONTENT.chunk(1))
    assert (await stack.client.get(url)).json()["upload"]["missing"] == [[0, 0]]
    assert (await stack.client.head(url)).status_code == 200
    assert problem(await stack.client.post(f"{url}/merge"), 409, "chunks-missing")["missing"] == [[0, 0]]
    await stack.client.patch(url, json={"md5": CONTENT.md5})
    assert (await stack.client.get(url)).json() == (await stack.client.get(f"/files/{CONTENT.md5}")).json()
    assert (await stack.put(CONTENT, 0)).status_code == 201, "by id and by MD5 it is the same"


async def test_a_cancelled_upload_is_gone(stack: Stack) -> None:
    url = await _open(stack)
    assert (await stack.client.delete(url)).status_code == 204
    for response in (
        await stack.client.get(url),
        await stack.client.delete(url),
        await stack.client.post(f"{url}/merge"),
        await stack.client.patch(url, json={"md5": CONTENT.md5}),
        await stack.client.put(f"{url}/chunks/0", content=CONTENT.chunk(0)),
    ):
        assert problem(response, 410, "upload-gone")["reason"] == "cancelled"
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


async def test_told_digests_are_kept_and_may_be_told_again(stack: Stack) -> None:
    await stack.open(CONTENT, await stack.client_of("bob"))  # which is no obstacle
    url = await _open(stack)
    told = await stack.client.patch(url, json={"md5": CONTENT.md5.upper()})
    assert told.status_code == 200
    upload = (await stack.client.get(url)).json()["upload"]
    assert told.json() == {**upload, "upload": upload}
    assert upload["md5"] == CONTENT.md5
    both = {"md5": CONTENT.md5, "sha256": CONTENT.sha256}
    assert (await stack.client.patch(url, json=both)).status_code == 200
    problem(await stack.client.patch(url, json={"md5": "0" * 32}), 409, "md5-conflict")
    problem(await stack.client.patch(url, json={**both, "sha256": "0" * 64}), 409, "sha256-conflict")
    assert (await stack.client.get(url)).json()["upload"]["md5"] == CONTENT.md5
    assert await _send(stack, url) == 201
    after = await stack.client.patch(url, json=both)
    assert (after.status_code, after.json()["state"]) == (200, "complete")
    problem(await stack.client.patch(url, json={"md5": "0" * 32}), 409, "md5-conflict")


async def test_the_md5_of_another_open_upload_is_refused_with_its_id(stack: Stack) -> None:
    other = (await stack.open(CONTENT)).json()["upload"]["id"]
    url = await _open(stack)
    assert problem(await stack.client.patch(url, json={"md5": CONTENT.md5}), 409, "upload-exists")["id"] == other


async def test_telling_the_md5_of_own_content_finishes_and_drops_what_was_sent(stack: Stack) -> None:
    await stack.upload(CONTENT)
    on_disk = stack.bytes_on_disk()
    response = await stack.client.post("/uploads", json=_BODY | {"name": "second"})
    url = response.headers["location"]
    await stack.client.put(f"{url}/chunks/0", content=CONTENT.chunk(0))
    told = await stack.client.patch(url, json={"md5": CONTENT.md5})
    assert told.status_code == 201
    file = told.json()["file"]
    assert (told.json()["state"], file["name"], file["instant"]) == ("complete", "second", True)
    assert stack.bytes_on_disk() == on_disk
    assert (await stack.client.get(url)).json() == {"state": "complete", "file": file}
    assert await stack.usage("alice") == {"finished": 2 * CONTENT.size, "unfinished": 0, "reserved": 0}


@pytest.mark.parametrize("digest", ["md5", "sha256"])
async def test_a_wrong_digest_told_in_time_is_refused_at_the_merge(stack: Stack, digest: str) -> None:
    url = await _open(stack)
    right = {"md5": CONTENT.md5, "sha256": CONTENT.sha256}
    await stack.client.patch(url, json=right | {digest: "0" * len(right[digest])})
    assert await _send(stack, url) == 422
    assert problem(await stack.client.get(url), 410, "upload-gone")["reason"] == f"{digest}-mismatch"
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


async def test_a_wrong_md5_told_while_merging_is_still_refused(make_stack: MakeStack) -> None:
    async with make_stack(merge_wait_seconds=0) as stack:
        url = await _open(stack)
        async with merge_held_up(stack, url.rsplit("/", 1)[1]):
            assert await _send(stack, url) == 202
            assert (await stack.client.patch(url, json={"md5": "0" * 32})).json()["state"] == "merging"

        async def merge_has_ended() -> bool:
            return (await stack.client.get(url)).status_code != 200

        await eventually(merge_has_ended)
        assert problem(await stack.client.get(url), 410, "upload-gone")["reason"] == "md5-mismatch"
