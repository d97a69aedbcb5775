"""`PUT /files/{md5}/chunks/{n}`: every answer of its table."""

import asyncio
import base64
import errno
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.faults import failing_call
from tests.support.merging import merge_held_up
from tests.support.problems import problem
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, eventually

CONTENT = Content(200 * KIB)  # four chunks, the last one shorter
URL = f"/files/{CONTENT.md5}"


@pytest.fixture
async def opened(stack: Stack) -> Stack:
    """With an open upload of CONTENT."""
    await stack.open(CONTENT)
    return stack


async def _upload(stack: Stack) -> dict[str, Any]:
    upload: dict[str, Any] = (await stack.client.get(URL)).json()["upload"]
    return upload


async def _pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_an_acknowledged_chunk_is_answered_with_where_the_upload_stands(opened: Stack) -> None:
    chunk = CONTENT.chunk(2)
    for content, duplicate in ((chunk, False), (chunk, True), (_pieces(chunk[:1000], chunk[1000:]), True)):
        response = await opened.client.put(f"{URL}/chunks/2", content=content)
        assert response.status_code == 200
        assert response.json() == {
            "state": "uploading",
            "received_bytes": 64 * KIB,
            "received_chunks": 1,
            "chunk_count": 4,
            "duplicate": duplicate,
        }


async def test_chunks_come_in_any_order_and_the_last_missing_one_completes(opened: Stack) -> None:
    for number in (3, 0, 2):
        assert (await opened.put(CONTENT, number)).status_code == 200
    last = CONTENT.chunk(1)
    response = await opened.client.put(
        f"{URL}/chunks/1", content=_pieces(last[:1000], last[1000:])
    )  # no length is told
    assert response.status_code == 201
    body = response.json()
    assert body.keys() == {"state", "file"}
    assert body["state"] == "complete"
    file = body["file"]
    assert file.keys() == {"id", "name", "md5", "sha256", "size", "created_at", "modified_at", "instant"}
    assert (file["name"], file["md5"], file["sha256"]) == (CONTENT.name, CONTENT.md5, CONTENT.sha256)
    assert (file["size"], file["instant"]) == (CONTENT.size, False)
    place = f"/me/files/{file['id']}"
    assert (await opened.client.get(f"{place}/content")).content == CONTENT.data
    for number, late in ((0, CONTENT.chunk(0)), (3, b"x"), (99, b"")):
        response = await opened.client.put(f"{URL}/chunks/{number}", content=late)
        assert (response.status_code, response.json()) == (200, {"state": "complete", "file": file})
    await opened.client.delete(place)
    problem(await opened.put(CONTENT, 0), 404, "upload-not-found")


async def test_chunks_come_in_parallel_and_one_of_them_completes(opened: Stack) -> None:
    answers = await asyncio.gather(*(opened.put(CONTENT, number) for number in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
    assert await opened.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}


async def test_the_same_chunk_again_is_a_duplicate_whatever_it_holds(opened: Stack) -> None:
    await opened.put(CONTENT, 0)
    for body in (CONTENT.chunk(0), bytes(64 * KIB), b"", b"x", bytes(65 * KIB)):
        response = await opened.client.put(f"{URL}/chunks/{'0' * 500}", content=body)
        assert response.status_code == 200
        answer = response.json()
        assert (answer["duplicate"], answer["received_bytes"], answer["received_chunks"]) == (True, 64 * KIB, 1)
    for number in (1, 2, 3):
        response = await opened.put(CONTENT, number)
    assert response.json()["file"]["sha256"] == CONTENT.sha256


async def test_the_same_chunk_in_parallel_counts_once(opened: Stack) -> None:
    answers = await asyncio.gather(*(opened.put(CONTENT, 0) for _ in range(5)))
    assert sorted(answer.json()["duplicate"] for answer in answers) == [False, True, True, True, True]
    assert {answer.json()["received_bytes"] for answer in answers} == {64 * KIB}


async def test_while_the_merge_takes_longer_the_answer_is_to_come_back(make_stack: MakeStack) -> None:
    async with make_stack(merge_wait_seconds=0, jobs=True) as stack:
        upload = (await stack.open(CONTENT)).json()["upload"]
        for number in range(3):
            await stack.put(CONTENT, number)
        async with merge_held_up(stack, upload["id"]):
            response = await stack.put(CONTENT, 3)
            assert response.status_code == 202
            assert response.headers["location"] == URL
            assert int(response.headers["retry-after"]) > 0
            body = response.json()
            assert (body["state"], body["upload"]["state"]) == ("merging", "merging")
            assert body["upload"]["merged_bytes"] <= CONTENT.size
            assert body["upload"]["missing"] == []
            for number in (0, 3):
                assert (await stack.put(CONTENT, number)).status_code == 202
            merge = await stack.client.post(f"{URL}/merge")
            assert (merge.status_code, merge.headers["location"], merge.json()["state"]) == (202, URL, "merging")
            assert int(merge.headers["retry-after"]) > 0
            reopened = await stack.open(CONTENT)
            assert (reopened.status_code, reopened.json()["state"]) == (200, "merging")
            states = await stack.client.post("/files/status", json={"md5s": [CONTENT.md5]})
            assert states.json() == {CONTENT.md5: {"state": "merging"}}
            by_id = await stack.client.put(f"/uploads/{upload['id']}/chunks/0", content=CONTENT.chunk(0))
            assert (by_id.status_code, by_id.headers["location"]) == (202, f"/uploads/{upload['id']}")

        async def is_complete() -> bool:
            return bool((await stack.client.get(URL)).json()["state"] == "complete")

        await eventually(is_complete)
        assert (await stack.client.get(URL)).json()["file"]["sha256"] == CONTENT.sha256
        assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}


@pytest.mark.parametrize("digest", ["md5", "sha256"])
async def test_wrong_bytes_are_refused_at_the_merge_and_give_everything_back(stack: Stack, digest: str) -> None:
    actual = {"md5": CONTENT.md5, "sha256": CONTENT.sha256}[digest]
    wrong = "0" * len(actual)
    url = f"/files/{wrong if digest == 'md5' else CONTENT.md5}"
    opening = {"name": "a", "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
    await stack.client.post(url, json=opening | ({} if digest == "md5" else {"sha256": wrong}))
    for number in range(4):
        response = await stack.client.put(f"{url}/chunks/{number}", content=CONTENT.chunk(number))
    body = problem(response, 422, f"{digest}-mismatch")
    assert (body["expected"], body["actual"]) == (wrong, actual)
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}
    assert stack.bytes_on_disk() == []
    for gone in (
        await stack.client.get(url),
        await stack.client.put(f"{url}/chunks/0", content=CONTENT.chunk(0)),
        await stack.client.post(f"{url}/merge"),
    ):
        assert problem(gone, 410, "upload-gone")["reason"] == f"{digest}-mismatch"
    assert (await stack.client.post(url, json=opening)).status_code == 201


async def test_bytes_lost_on_disk_make_chunks_missing_again(stack: Stack) -> None:
    upload = (await stack.open(CONTENT)).json()["upload"]
    for number in range(3):
        await stack.put(CONTENT, number)
    await stack.services.storage.drain()
    async with merge_held_up(stack, upload["id"]):
        last = asyncio.create_task(stack.put(CONTENT, 3))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await stack.client.get(URL)).json()["state"] != "merging":
                await asyncio.sleep(0.01)
        (chunk_map,) = (stack.data / "temp").rglob("map")
        with chunk_map.open("r+b") as file:  # as if the record of chunk 1 had been lost
            file.seek(128 + 8)
            file.write(bytes(8))
    assert problem(await last, 409, "chunks-missing")["missing"] == [[1, 1]]
    assert (await stack.client.get(URL)).json()["upload"]["missing"] == [[1, 1]]
    assert (await stack.put(CONTENT, 1)).json()["file"]["sha256"] == CONTENT.sha256


async def test_an_id_keeps_a_late_chunk_from_a_later_upload(stack: Stack) -> None:
    other = (await stack.open(Content(1000, seed=1))).json()["upload"]["id"]
    problem(await stack.put(CONTENT, 0, params={"id": other}), 404, "upload-not-found")
    first = (await stack.open(CONTENT)).json()["upload"]["id"]
    assert (await stack.put(CONTENT, 0, params={"id": first})).status_code == 200
    await stack.client.delete(URL)
    second = (await stack.open(CONTENT)).json()["upload"]["id"]
    gone = await stack.put(CONTENT, 0, params={"id": first})
    assert problem(gone, 410, "upload-gone")["reason"] == "cancelled"
    problem(await stack.put(CONTENT, 0, params={"id": "0" * 32}), 410, "upload-gone")
    assert (await stack.client.get(URL)).json()["upload"]["received_bytes"] == 0
    assert (await stack.put(CONTENT, 0, params={"id": second})).status_code == 200
    for wrong in ("x" * 65, [first, second]):
        problem(await stack.put(CONTENT, 0, params={"id": wrong}), 422, "invalid-request")


@pytest.mark.parametrize("declared", [True, False])
async def test_a_wrong_length_is_refused_and_nothing_counts(opened: Stack, declared: bool) -> None:
    for number, length in ((0, 0), (0, 64 * KIB - 1), (0, 64 * KIB + 1), (3, 64 * KIB), (3, 8 * KIB - 1)):
        expected = len(CONTENT.chunk(number))
        body = bytes(length) if declared else _pieces(bytes(min(length, expected)), bytes(max(0, length - expected)))
        response = await opened.client.put(f"{URL}/chunks/{number}", content=body)
        answer = problem(response, 422, "chunk-length-mismatch")
        assert (answer["expected"], answer["received"]) == (expected, length)
        assert (await _upload(opened))["missing"] == [[0, 3]]


async def test_a_matching_digest_is_accepted_and_any_other_one_refused(opened: Stack) -> None:
    def digests(content: bytes) -> list[dict[str, str]]:
        md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
        sha256 = base64.b64encode(hashlib.sha256(content).digest()).decode()
        unknown = "crc32c=:AAAAAA==:"
        return [
            {"Content-MD5": md5},
            {"Content-Digest": f"{unknown}, md5=:{md5}:"},
            {"Content-Digest": f"{unknown}, sha-256=:{sha256}:"},
        ]

    for wrong in digests(b"other"):
        body = problem(await opened.put(CONTENT, 0, headers=wrong), 422, "digest-mismatch")
        assert body["retryable"] is True
    assert (await _upload(opened))["missing"] == [[0, 3]]
    for number in range(3):
        right = digests(CONTENT.chunk(number))[number]
        assert (await opened.put(CONTENT, number, headers=right)).json()["duplicate"] is False


async def test_a_disk_that_is_full_in_a_write_is_told_and_nothing_counts(opened: Stack) -> None:
    await opened.put(CONTENT, 0)
    for call, error_number, status, code in (
        ("pwrite", errno.ENOSPC, 507, "storage-full"),
        ("pwrite", errno.EDQUOT, 507, "storage-full"),
        ("fdatasync", errno.EIO, 503, "unavailable"),
    ):
        only = (lambda path: path.name == "data") if call == "pwrite" else (lambda _: True)
        with failing_call(call, error_number, only=only):
            response = await opened.put(CONTENT, 1)
        assert problem(response, status, code)["retryable"] is True
        assert str(opened.data) not in response.text
        assert (await _upload(opened))["missing"] == [[1, 3]]
    assert (await opened.put(CONTENT, 1)).json()["duplicate"] is False


async def test_a_disk_that_is_full_at_the_merge_is_told_and_the_merge_can_be_repeated(opened: Stack) -> None:
    for number in range(3):
        await opened.put(CONTENT, number)
    with failing_call("link", errno.ENOSPC) as fault:
        response = await opened.put(CONTENT, 3)
    assert fault.hits == 1
    problem(response, 507, "storage-full")
    assert (await opened.client.get(URL)).json()["state"] == "merging"
    assert (await opened.client.post(f"{URL}/merge")).status_code == 201
