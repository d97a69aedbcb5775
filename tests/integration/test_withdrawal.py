"""Stored chunks that went bad before they were hashed are withdrawn at the merge, missing again, and healed by sending
them again."""

from pathlib import Path

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.stack import Stack
from uploader.database import queries, transactions
from uploader.domain.upload import Upload

CONTENT = Content(300 * KIB)
# Sent last, so that nothing is hashed before: what comes in order is hashed from memory.
LAST = 0
SENT = range(1, CONTENT.chunk_count)


async def _upload(stack: Stack) -> Upload:
    found = await stack.services.database.read(
        lambda connection: queries.open_upload_by_md5(connection, "alice", CONTENT.md5)
    )
    assert found is not None
    return found


async def _sent_but_the_last(stack: Stack) -> Path:
    """All chunks but the last are acknowledged and accounted for; the file they lie in."""
    await stack.open(CONTENT)
    for number in SENT:
        assert (await stack.put(CONTENT, number)).status_code == 200
    await stack.services.flushing.flush_due(stack.services.pending.flush_queues[0])
    return stack.data / (await _upload(stack)).temp_path / "data"


def _rot(data: Path, *chunks: int) -> None:
    with data.open("r+b") as file:
        for number in chunks:
            file.seek(number * CONTENT.chunk_size + 17)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))


async def test_a_chunk_that_went_bad_is_missing_again_and_healed_by_sending_it(make_stack_on: MakeStack) -> None:
    async with make_stack_on(max_pending_bytes=1) as stack:
        data = await _sent_but_the_last(stack)
        assert (await stack.usage("alice"))["unfinished"] == CONTENT.size - CONTENT.chunk_size
        _rot(data, 1, 2, 4)
        response = await stack.put(CONTENT, LAST)
        assert (response.status_code, response.json()["code"]) == (409, "chunks-missing")
        assert response.json()["missing"] == [[1, 2], [4, 4]]

        left = 2 * CONTENT.chunk_size
        status = (await stack.client.get(f"/files/{CONTENT.md5}")).json()
        assert status["state"] == "uploading"
        assert (status["upload"]["missing"], status["upload"]["received_bytes"]) == ([[1, 2], [4, 4]], left)
        upload = await _upload(stack)
        assert (upload.generation, upload.flushed_generation) == (1, 1)
        assert (await stack.services.pending.read(upload.id)).received == left
        usage = await stack.usage("alice")
        assert usage == {"finished": 0, "unfinished": left, "reserved": CONTENT.size}

        for number in (1, 2, 4):
            response = await stack.put(CONTENT, number)
        assert response.status_code == 201
        assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}
        content = await stack.client.get(f"/me/files/{response.json()['file']['id']}/content")
        assert content.content == CONTENT.data


async def test_a_flush_of_the_old_generation_comes_too_late(stack: Stack) -> None:
    data = await _sent_but_the_last(stack)
    late = await stack.services.pending.flush_queues[0].claim(now_ms=2**42)
    assert [claim.received for claim in late] == [CONTENT.size - CONTENT.chunk_size]
    _rot(data, 1)
    assert (await stack.put(CONTENT, LAST)).status_code == 409
    before = await stack.usage("alice")
    await stack.services.flushing._write(late)
    await stack.services.pending.ack_flush(0, late)
    assert await stack.usage("alice") == before


async def test_a_client_that_lied_is_refused_though_its_bytes_are_well_stored(stack: Stack) -> None:
    other = Content(CONTENT.size, seed=1)
    await stack.open(CONTENT)
    for number in range(CONTENT.chunk_count):
        response = await stack.client.put(f"/files/{CONTENT.md5}/chunks/{number}", content=other.chunk(number))
    assert (response.status_code, response.json()["code"]) == (422, "md5-mismatch")
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


@pytest.mark.parametrize("done_before_the_crash", ["database", "database and map"])
async def test_a_withdrawal_that_was_interrupted_is_carried_out_by_the_next_merge(
    stack: Stack, done_before_the_crash: str
) -> None:
    data = await _sent_but_the_last(stack)
    _rot(data, 1)
    upload = await _upload(stack)
    await _commit_withdrawal(stack, upload)
    if done_before_the_crash == "database and map":
        async with stack.services.storage.closing(upload) as closer:
            await closer.withdraw([1])
    response = await stack.put(CONTENT, LAST)
    assert response.status_code in (200, 409)
    status = (await stack.client.get(f"/files/{CONTENT.md5}")).json()
    assert status["upload"]["missing"] == [[1, 1]]
    assert (await stack.put(CONTENT, 1)).status_code == 201
    assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}


async def _commit_withdrawal(stack: Stack, upload: Upload) -> None:
    left = CONTENT.size - 2 * CONTENT.chunk_size
    now = stack.services.clock.now()
    await stack.services.database.transact(lambda connection: transactions.withdraw(connection, upload.id, left, now))
