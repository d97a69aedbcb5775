"""Asking where an upload stands, asking for the merge again, cancelling; and the lists of a user's uploads."""

import asyncio
import errno

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

CONTENT = Content(200 * KIB)
URL = f"/files/{CONTENT.md5}"
DAY = 86400


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


async def test_an_open_upload_says_what_is_missing(stack: Stack) -> None:
    await stack.open(CONTENT)
    await stack.put(CONTENT, 1)
    upload = (await stack.client.get(URL)).json()["upload"]
    assert (upload["missing"], upload["received_bytes"]) == ([[0, 0], [2, 3]], 64 * KIB)
    assert "merged_bytes" not in upload
    body = problem(await stack.client.post(f"{URL}/merge"), 409, "chunks-missing")
    assert body["missing"] == [[0, 0], [2, 3]]
    await stack.put(CONTENT, 3)
    told = (await stack.client.get(URL)).json()
    assert (told["state"], told["upload"]["missing"]) == ("uploading", [[0, 0], [2, 2]])


async def test_a_merge_that_failed_on_the_way_is_carried_out_when_asked_again(stack: Stack) -> None:
    await stack.open(CONTENT)
    with failing_call("link", errno.EIO) as fault:  # when the blob is placed
        assert await _send_all(stack) == 503
    assert fault.hits == 1
    assert (await stack.client.get(URL)).json()["state"] == "merging"
    response = await stack.client.post(f"{URL}/merge")
    assert response.status_code == 201
    assert response.json()["file"]["sha256"] == CONTENT.sha256
    assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}


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

    async def is_merging() -> bool:
        return bool((await stack.client.get(URL)).json()["state"] == "merging")

    async with merge_held_up(stack, upload["id"]):
        sending = asyncio.create_task(_send_all(stack))
        await eventually(is_merging)
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
