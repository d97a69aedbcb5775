"""Stored chunks that went bad are withdrawn at the merge, missing again, and healed by sending them again."""

from pathlib import Path

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.soak.races.rounds import Worker, keep
from tests.support.background import flush_due, until, upload_of
from tests.support.content import KIB, Content
from tests.support.invariants import checked_accounts
from tests.support.problems import problem
from tests.support.process import Process, ended
from tests.support.rot import flip_bit
from tests.support.stack import Stack
from tests.support.waiting import eventually
from uploader.domain.links import owner
from uploader.service.chunk import Stored
from uploader.service.results import Target

CONTENT = Content(300 * KIB)
OTHER = Content(CONTENT.size, seed=1)
# Sent last, so that nothing is hashed before: what comes in order is hashed from memory.
FINAL = 0
LAST = CONTENT.chunk_count - 1


async def _sent_but(stack: Stack, number: int, content: Content = CONTENT) -> Path:
    """All chunks but one are acknowledged and accounted for; the file they lie in."""
    await stack.open(CONTENT)
    for other in range(CONTENT.chunk_count):
        if other != number:
            url = f"/files/{CONTENT.md5}/chunks/{other}"
            assert (await stack.client.put(url, content=content.chunk(other))).status_code == 200
    await stack.services.storage.drain()
    await flush_due(stack)
    return stack.data / (await upload_of(stack, CONTENT)).place / "data"


def _rot(data: Path, *chunks: int) -> None:
    for number in chunks:
        flip_bit(data, 8 * (number * CONTENT.chunk_size + 17))


@pytest.mark.parametrize(
    ("rotten", "ranges"),
    [([LAST], [[LAST, LAST]]), ([1, 3, LAST], [[1, 1], [3, LAST]])],
)
async def test_chunks_that_went_bad_are_missing_again_and_healed_by_sending_them(
    make_stack: MakeStack, rotten: list[int], ranges: list[list[int]]
) -> None:
    async with make_stack(max_pending_bytes=1) as stack:
        data = await _sent_but(stack, FINAL)
        flushed = CONTENT.size - len(CONTENT.chunk(FINAL))
        assert (await stack.usage("alice"))["unfinished"] == flushed
        _rot(data, *rotten)
        response = await stack.put(CONTENT, FINAL)
        assert (response.status_code, response.json()["code"]) == (409, "chunks-missing")
        assert response.json()["missing"] == ranges

        left = CONTENT.size - sum(len(CONTENT.chunk(number)) for number in rotten)
        status = (await stack.client.get(f"/files/{CONTENT.md5}")).json()
        assert status["state"] == "uploading"
        assert (status["upload"]["missing"], status["upload"]["received_bytes"]) == (ranges, left)
        upload = await upload_of(stack, CONTENT)
        assert (upload.generation, upload.flushed_generation) == (1, 1)
        assert (await stack.services.pending.read(upload.id)).received == left
        usage = await stack.usage("alice")
        assert usage == {"finished": 0, "unfinished": min(flushed, left), "reserved": CONTENT.size}
        await checked_accounts(stack.services.database)

        for number in rotten:
            response = await stack.put(CONTENT, number)
        await _finished(stack, response)


async def _finished(stack: Stack, response: httpx2.Response) -> None:
    """The file has the bytes that were sent, and the accounts have nothing else."""
    assert response.status_code == 201
    assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}
    content = await stack.client.get(f"/me/files/{response.json()['file']['id']}/content")
    assert content.content == CONTENT.data

    # Another process may have merged it, and unlinks after its commit.
    await until(lambda: [file.name for file in stack.bytes_on_disk()] == [CONTENT.sha256])


async def test_another_process_finds_what_went_bad_after_the_one_that_took_the_last_chunk_died(
    make_stack_on: MakeStack, database_url: str, redis_url: str, tmp_path: Path
) -> None:
    async with make_stack_on(claim_lease_seconds=1.0) as stack:
        data = await _sent_but(stack, FINAL)
        _rot(data, 1, LAST)
        kept = await keep(Worker(stack.services, {}), Target(owner("alice"), CONTENT.md5), CONTENT, FINAL)
        assert isinstance(kept, Stored)
        assert kept.result.settled
        stores = {"DATA": str(stack.data), "DATABASE_URL": database_url, "REDIS_URL": redis_url}
        worker = Process(tmp_path / "log", stores | {"CLAIM_LEASE": "1s", "FREE_SPACE_FLOOR": "0"}, "work")

        async def missing_again() -> bool:
            status = (await stack.client.get(f"/files/{CONTENT.md5}")).json()
            return bool(status["state"] == "uploading" and status["upload"]["missing"] == [[1, 1], [LAST, LAST]])

        with ended(worker):
            await eventually(missing_again)
            await checked_accounts(stack.services.database)
            assert (await stack.put(CONTENT, 1)).status_code == 200
            await _finished(stack, await stack.put(CONTENT, LAST))


async def test_a_client_that_lied_is_refused_after_what_went_bad_was_healed(stack: Stack) -> None:
    data = await _sent_but(stack, FINAL, OTHER)
    _rot(data, 1)
    url = f"/files/{CONTENT.md5}/chunks"
    assert (await stack.client.put(f"{url}/{FINAL}", content=OTHER.chunk(FINAL))).status_code == 409
    response = await stack.client.put(f"{url}/1", content=OTHER.chunk(1))
    refused = problem(response, 422, "md5-mismatch")
    assert (refused["expected"], refused["actual"]) == (CONTENT.md5, OTHER.md5)
    # Nothing is left of it, and its MD5 is free again.
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}
    assert stack.bytes_on_disk() == []
    assert (await stack.client.get(f"/files/{CONTENT.md5}")).json()["reason"] == "md5-mismatch"
    await _finished(stack, await stack.upload(CONTENT))
