"""`/uploads`: uploads by id, also before the MD5 is known."""

from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.merging import merge_held_up
from tests.support.problems import problem
from tests.support.stack import GIB, Stack
from tests.support.waiting import eventually

CONTENT = Content(100 * KIB)
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


async def test_what_is_refused_by_md5_is_refused_by_id(make_stack: MakeStack) -> None:
    async with make_stack(max_open_uploads=1, max_file_size_bytes=100 * GIB) as stack:
        await _open(stack)
        for body, status, code in (
            ({"name": "a", "size": 101 * GIB}, 413, "file-too-large"),
            ({"name": "a", "size": 11 * GIB}, 413, "quota-exceeded"),
            ({"name": "..", "size": 1}, 422, "invalid-request"),
            (_BODY, 429, "too-many-uploads"),
        ):
            problem(await stack.client.post("/uploads", json=body), status, code)
    async with make_stack(free_space_floor_bytes=2**62) as stack:
        problem(await stack.client.post("/uploads", json=_BODY), 507, "storage-full")


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


async def test_the_same_content_under_the_same_name_makes_no_twin(stack: Stack) -> None:
    file = (await stack.upload(CONTENT)).json()["file"]
    url = await _open(stack)
    assert await _send(stack, url) == 201
    assert (await stack.client.get(url)).json()["file"] == file
    assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}


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
