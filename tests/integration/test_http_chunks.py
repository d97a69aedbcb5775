"""`PUT /files/{md5}/chunks/{n}`, asking where an upload stands, asking for the merge again, cancelling: every answer of
their tables; and the lists of a user's uploads."""

import asyncio
import base64
import errno
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.faults import failing_call
from tests.support.merging import merge_held_up
from tests.support.problems import problem
from tests.support.servers import PrivateRedis
from tests.support.stack import Stack
from tests.support.waiting import eventually
from uploader.service.chunk import Stored

CONTENT = Content(200 * KIB)  # four chunks, the last one shorter
URL = f"/files/{CONTENT.md5}"
DAY = 86400


@pytest.fixture
async def opened(stack: Stack) -> Stack:
    """With an open upload of CONTENT."""
    await stack.open(CONTENT)
    return stack


async def _upload(stack: Stack) -> dict[str, Any]:
    upload: dict[str, Any] = (await stack.client.get(URL)).json()["upload"]
    return upload


async def _is_merging(stack: Stack) -> bool:
    return bool((await stack.client.get(URL)).json()["state"] == "merging")


WRONG_URL = f"/files/{'0' * 32}"


async def _send_all(stack: Stack) -> int:
    """Send every chunk; the status of the last answer."""
    for number in range(CONTENT.chunk_count):
        response = await stack.put(CONTENT, number)
    return response.status_code


async def _send_all_as_another(stack: Stack) -> httpx2.Response:
    """To an upload of another MD5; the last answer."""
    body = {"name": "a", "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
    await stack.client.post(WRONG_URL, json=body)
    for number in range(CONTENT.chunk_count):
        response = await stack.client.put(f"{WRONG_URL}/chunks/{number}", content=CONTENT.chunk(number))
    return response


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
        await eventually(lambda: _is_merging(stack))
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


async def test_a_wrong_length_is_refused_and_nothing_counts(opened: Stack) -> None:
    for number, length in ((0, 0), (0, 64 * KIB - 1), (0, 64 * KIB + 1), (3, 64 * KIB), (3, 8 * KIB - 1)):
        expected = len(CONTENT.chunk(number))
        for body in (bytes(length), _pieces(bytes(min(length, expected)), bytes(max(0, length - expected)))):
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


async def test_a_chunk_puts_off_the_expiry(make_stack: MakeStack) -> None:
    async with make_stack(upload_expiry_seconds=DAY) as stack:
        opened = (await stack.open(CONTENT)).json()["upload"]
        await stack.put(CONTENT, 0)
        later = (await stack.client.get(URL)).json()["upload"]
        assert opened["created_at"] == later["created_at"] < opened["expires_at"] < later["expires_at"]


async def test_a_finished_file_is_what_an_md5_stands_for(stack: Stack) -> None:
    first = (await stack.upload(CONTENT)).json()["file"]
    problem(await stack.client.delete(URL), 404, "upload-not-found")
    for _ in range(2):
        for response in (await stack.client.get(URL), await stack.client.post(f"{URL}/merge")):
            assert (response.status_code, response.json()) == (200, {"state": "complete", "file": first})
    newest = (await stack.open(CONTENT, name="newest")).json()["file"]
    assert (await stack.client.get(URL)).json() == {"state": "complete", "file": newest}
    for file in (first, newest):
        assert (await stack.client.delete(f"/me/files/{file['id']}")).status_code == 204
    problem(await stack.client.get(URL), 404, "upload-not-found")


async def test_what_there_is_of_an_upload_is_told_to_each_method(make_stack: MakeStack, clock: ManualClock) -> None:
    async with make_stack(clock=clock, closed_retention_seconds=10 * DAY) as stack:

        async def told(status: int, code: str) -> None:
            for answer in (await stack.client.get(URL), await stack.client.post(f"{URL}/merge")):
                reason = problem(answer, status, code).get("reason")
                assert reason == ("cancelled" if status == 410 else None)
            assert (await stack.client.head(URL)).status_code == status
            problem(await stack.client.delete(URL), 404, "upload-not-found")

        await told(404, "upload-not-found")
        await stack.open(CONTENT)
        assert (await stack.client.head(URL)).status_code == 200
        await stack.client.delete(URL)
        await told(410, "upload-gone")
        clock.advance(9 * DAY)
        await told(410, "upload-gone")
        clock.advance(2 * DAY)
        await told(404, "upload-not-found")


async def test_without_redis_the_disk_answers(make_stack: MakeStack, own_redis: PrivateRedis) -> None:
    async with make_stack(redis_url=own_redis.url) as stack:
        await stack.open(CONTENT)
        await stack.put(CONTENT, 0)
        own_redis.kill()
        assert (await stack.client.get(URL)).json()["upload"]["missing"] == [[1, 3]]


async def test_an_open_upload_says_what_is_missing(opened: Stack) -> None:
    await opened.put(CONTENT, 1)
    upload = await _upload(opened)
    assert (upload["missing"], upload["received_bytes"]) == ([[0, 0], [2, 3]], 64 * KIB)
    assert "merged_bytes" not in upload
    body = problem(await opened.client.post(f"{URL}/merge"), 409, "chunks-missing")
    assert body["missing"] == [[0, 0], [2, 3]]
    await opened.put(CONTENT, 3)
    assert (await _upload(opened))["missing"] == [[0, 0], [2, 2]]


@pytest.mark.parametrize(("error_number", "status"), [(errno.EIO, 503), (errno.ENOSPC, 507)])
async def test_a_merge_that_failed_on_the_way_is_carried_out_when_asked_again(
    opened: Stack, error_number: int, status: int
) -> None:
    with failing_call("link", error_number) as fault:  # when the blob is placed
        assert await _send_all(opened) == status
    assert fault.hits == 1
    assert await _is_merging(opened)
    response = await opened.client.post(f"{URL}/merge")
    assert response.status_code == 201
    assert response.json()["file"]["sha256"] == CONTENT.sha256
    assert await opened.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}


async def test_who_sent_the_last_chunk_of_wrong_bytes_is_told_so_however_fast_the_merge_was(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiving = stack.services.receiving
    real = receiving.acknowledge

    async def is_closed() -> bool:
        return (await stack.client.get(WRONG_URL)).status_code == 410

    async def acknowledge_late(stored: Stored) -> bool:
        new = await real(stored)
        if stored.result.settled:
            await eventually(is_closed)
        return new

    monkeypatch.setattr(receiving, "acknowledge", acknowledge_late)
    last = await _send_all_as_another(stack)
    assert problem(last, 422, "md5-mismatch")["actual"] == CONTENT.md5
    again = await stack.client.put(f"{WRONG_URL}/chunks/3", content=CONTENT.chunk(3))
    assert problem(again, 410, "upload-gone")["reason"] == "md5-mismatch"


async def test_retry_is_told_of_its_upload_and_of_no_other_file_of_the_content(stack: Stack) -> None:
    first = (await stack.upload(CONTENT)).json()
    other = (await stack.open(CONTENT, name="other")).json()
    assert other["file"]["id"] != first["file"]["id"]

    async def retried() -> list[httpx2.Response]:
        return [await stack.client.post(f"{URL}/merge"), await stack.put(CONTENT, 0)]

    opening = {"name": CONTENT.name, "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
    upload_id = (await stack.client.post("/uploads", json=opening)).json()["upload"]["id"]
    for number in range(CONTENT.chunk_count):
        last = await stack.client.put(f"/uploads/{upload_id}/chunks/{number}", content=CONTENT.chunk(number))
    assert last.json() == first, "the same content of the same name"
    for again in await retried():
        assert (again.status_code, again.json()) == (200, first)
    assert (await stack.client.get(URL)).json() == other, "the newest file"

    await stack.open(CONTENT, name="third", instant=False)
    assert (await stack.client.delete(URL)).status_code == 204
    for again in await retried():
        assert problem(again, 410, "upload-gone")["reason"] == "cancelled"
    await stack.open(CONTENT, name="third", instant=False)
    for number in range(CONTENT.chunk_count):
        wrong = await stack.client.put(f"{URL}/chunks/{number}", content=bytes(len(CONTENT.chunk(number))))
    problem(wrong, 422, "md5-mismatch")
    for again in await retried():
        assert problem(again, 410, "upload-gone")["reason"] == "md5-mismatch"
    assert (await stack.client.get(URL)).json() == other

    whole = await stack.client.put(URL, params={"name": "fourth"}, content=CONTENT.data)
    for again in await retried():
        assert (again.status_code, again.json()) == (200, whole.json()), "it came after that upload"


@pytest.mark.parametrize("jump_days", [-9, 9])
async def test_retry_gets_its_own_upload_under_jumped_clocks(
    make_stack: MakeStack, clock: ManualClock, jump_days: int
) -> None:
    """Three servers disagree on the time: two of them close the two uploads, the third answers the retry."""
    async with make_stack(clock=clock) as stack:
        await stack.upload(CONTENT)
        clock.jump(jump_days * 86400)
        await stack.open(CONTENT, name="copy", instant=False)
        for number in range(CONTENT.chunk_count):
            last = await stack.put(CONTENT, number)
        assert last.json()["file"]["name"] == "copy"
        for back_days in (0, -jump_days):
            clock.jump(back_days * 86400)
            for again in (await stack.client.post(f"{URL}/merge"), await stack.put(CONTENT, 0)):
                assert (again.status_code, again.json()) == (200, last.json()), back_days


async def test_a_merge_of_wrong_bytes_is_refused_once_and_then_gone(stack: Stack) -> None:
    # So the last chunk does not get as far as comparing.
    with failing_call("pwrite", errno.EIO, times=None, only=lambda path: path.name == "digest"):
        await _send_all_as_another(stack)
    refused = problem(await stack.client.post(f"{WRONG_URL}/merge"), 422, "md5-mismatch")
    assert (refused["expected"], refused["actual"]) == ("0" * 32, CONTENT.md5)
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}
    gone = await stack.client.post(f"{WRONG_URL}/merge")
    assert problem(gone, 410, "upload-gone")["reason"] == "md5-mismatch"


async def test_cancelling_frees_the_bytes_and_the_quota_and_a_late_one_is_of_its_id(stack: Stack) -> None:
    first = (await stack.open(CONTENT)).json()["upload"]["id"]
    await stack.put(CONTENT, 0)
    response = await stack.client.delete(URL)
    assert (response.status_code, response.content) == (204, b"")
    assert stack.bytes_on_disk() == []
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}
    reopened = await stack.open(CONTENT)
    second = reopened.json()["upload"]["id"]
    assert (reopened.status_code, second != first) == (201, True)
    problem(await stack.client.delete(URL, params={"id": first}), 410, "upload-gone")
    assert (await stack.client.get(URL)).json()["upload"]["id"] == second
    assert (await stack.client.delete(URL, params={"id": second})).status_code == 204
    await stack.open(CONTENT)
    assert await _send_all(stack) == 201


async def test_cancelling_while_merging_wins(stack: Stack) -> None:
    upload = (await stack.open(CONTENT)).json()["upload"]
    async with merge_held_up(stack, upload["id"]):
        sending = asyncio.create_task(_send_all(stack))
        await eventually(lambda: _is_merging(stack))
        assert (await stack.client.delete(URL)).status_code == 204
    assert await sending == 410
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}
    assert stack.bytes_on_disk() == []


async def test_open_uploads_are_listed_newest_first(stack: Stack) -> None:
    contents = [Content(1000, seed=seed, name=f"{seed}") for seed in range(3)]
    for content in contents:
        await stack.open(content)
    by_id = await stack.client.post("/uploads", json={"name": "by id", "size": 5})
    await stack.client.delete(f"/files/{contents[1].md5}")
    uploads = (await stack.client.get("/uploads")).json()["uploads"]
    assert [upload["name"] for upload in uploads] == ["by id", "2", "0"]
    assert uploads[0] == by_id.json()["upload"]
    assert uploads[0]["md5"] is None


async def test_the_states_of_many_md5s_are_told_at_once(stack: Stack) -> None:
    finished, open_, cancelled = (Content(100 * KIB, seed=seed) for seed in range(3))
    await stack.upload(finished)
    await stack.open(open_)
    await stack.open(cancelled)
    await stack.client.delete(f"/files/{cancelled.md5}")
    md5s = [finished.md5, open_.md5.upper(), cancelled.md5, "0" * 32, finished.md5]
    response = await stack.client.post("/files/status", json={"md5s": md5s})
    assert response.status_code == 200
    assert response.json() == {
        finished.md5: {"state": "complete"},
        open_.md5: {"state": "uploading"},
        cancelled.md5: {"state": "absent"},
        "0" * 32: {"state": "absent"},
    }
    assert (await stack.client.post("/files/status", json={"md5s": []})).json() == {}
    thousand = [f"{number:032x}" for number in range(1000)]
    answer = (await stack.client.post("/files/status", json={"md5s": thousand})).json()
    assert list(answer) == thousand
