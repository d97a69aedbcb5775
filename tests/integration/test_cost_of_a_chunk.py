"""What an acknowledged chunk costs once its upload is known to the process: one round trip to Redis, no statement of SQL.
And what a small file costs as a whole."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from tests.conftest import MakeStack
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.stack import Stack
from tests.support.statements import statements
from tests.support.waiting import PATIENCE_SECONDS
from uploader.accounting.redis import Script

CONTENT = Content(20 * 64 * KIB)
CHUNK = 64 * KIB
RECORD_CHUNK, RECORD_TAIL = Script("record_chunk").sha, Script("record_tail").sha
TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
RUFH = {"Upload-Draft-Interop-Version": "8", "Upload-Complete": "?0", "Content-Type": "application/partial-upload"}


@asynccontextmanager
async def commands(stack: Stack) -> AsyncIterator[list[str]]:
    """Every command that clients send to Redis meanwhile; what a script does inside is no round trip."""
    sent: list[str] = []
    url = stack.services.settings.redis_url
    assert url is not None
    await stack.services.redis.ping()  # by a connection of the pool, which introduces itself, as that of the end would
    async with Redis.from_url(url) as watching, watching.monitor() as monitor:

        async def take_down() -> None:
            while (command := await monitor.next_command())["command"] != "ECHO end":
                if command["client_type"] != "lua":
                    sent.append(command["command"])

        taking_down = asyncio.create_task(take_down())
        yield sent
        await stack.services.redis.echo("end")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await taking_down


async def test_each_chunk_costs_one_round_trip_and_no_statement(stack: Stack) -> None:
    await stack.open(CONTENT)
    assert (await stack.put(CONTENT, 0)).status_code == 200
    with statements(stack.services.database) as sql:
        async with commands(stack) as redis:
            for number in range(1, 19):
                response = await stack.put(CONTENT, number)
                assert (response.status_code, response.json()["duplicate"]) == (200, False)
    assert sql == []
    assert [command.split()[:2] for command in redis] == [["EVALSHA", RECORD_CHUNK]] * 18


async def test_chunks_in_parallel_and_duplicates_cost_no_more(stack: Stack) -> None:
    await stack.open(CONTENT)
    await asyncio.gather(*(stack.put(CONTENT, number) for number in range(4)))
    with statements(stack.services.database) as sql:
        async with commands(stack) as redis:
            responses = await asyncio.gather(*(stack.put(CONTENT, number) for number in range(8)))
    assert [response.json()["duplicate"] for response in responses] == [True] * 4 + [False] * 4
    assert sql == []
    assert [command.split()[1] for command in redis if command.startswith("EVALSHA")] == [RECORD_CHUNK] * 8
    # A connection that the pool opens for them introduces itself; that is not a chunk's.
    assert all(command.split()[0] in ("EVALSHA", "CLIENT", "SELECT", "HELLO") for command in redis)


@pytest.mark.parametrize("protocol", [TUS, RUFH], ids=["tus", "rufh"])
async def test_an_append_costs_one_round_trip_for_each_chunk_and_no_statement(
    stack: Stack, protocol: dict[str, str]
) -> None:
    """As chunks do; and one for a tail."""
    opened = await stack.open(CONTENT)
    place, offset = f"/resumable/{opened.json()['upload']['id']}", 0

    async def append(length: int) -> None:
        nonlocal offset
        body, headers = CONTENT.data[offset : offset + length], protocol | {"Upload-Offset": str(offset)}
        response = await stack.client.patch(place, content=body, headers=headers)
        offset += length
        assert (response.status_code, response.headers["upload-offset"]) == (204, str(offset))

    for length in (1000, CHUNK - 1000):  # so that Redis has both scripts
        await append(length)
    with statements(stack.services.database) as sql:
        async with commands(stack) as redis:
            for length in (CHUNK, 3 * CHUNK, 1000, CHUNK - 1000, 2 * CHUNK + 500):
                await append(length)
    assert sql == []
    chunk, tail = ["EVALSHA", RECORD_CHUNK], ["EVALSHA", RECORD_TAIL]
    assert [command.split()[:2] for command in redis] == [*[chunk] * 4, tail, *[chunk] * 3, tail]


async def test_an_append_to_what_is_no_upload_any_more_is_looked_up(stack: Stack) -> None:
    """What is remembered is out of date, however it ended: each answer is what it was without a memory."""
    content = Content(2 * CHUNK)
    for is_cancelled in (True, False):
        upload_id = (await stack.open(content)).json()["upload"]["id"]

        async def append(number: int, place: str = f"/resumable/{upload_id}") -> int:
            headers = TUS | {"Upload-Offset": str(number * CHUNK)}
            return (await stack.client.patch(place, content=content.chunk(number), headers=headers)).status_code

        assert await append(0) == 204
        if is_cancelled:
            await stack.client.delete(f"/uploads/{upload_id}")
        else:
            await stack.client.put(f"/uploads/{upload_id}/chunks/1", content=content.chunk(1))
        assert [await append(1), await append(1)] == [404 if is_cancelled else 409] * 2


@pytest.mark.parametrize("by", ["md5", "id"])
async def test_a_file_of_one_chunk_costs_two_looks_and_two_commits(
    make_stack_on: MakeStack, clock: ManualClock, by: str
) -> None:
    async with make_stack_on(clock=clock) as stack:  # the room of the disk is known for a moment, which does not pass
        before, small = Content(1000, seed=1), Content(1000, seed=2, name="folder/other")
        await stack.open(before)  # so that the user, and the room of the disk, are known
        await stack.put(before, 0)
        with statements(stack.services.database) as sql:
            opened = await stack.open(small)
            assert opened.status_code == 201
            place = {"md5": f"/files/{small.md5}", "id": f"/uploads/{opened.json()['upload']['id']}"}[by]
            assert (await stack.client.put(f"{place}/chunks/0", content=small.chunk(0))).status_code == 201
        # One that only reads is rolled back.
        ends = [statement for statement in sql if statement in ("COMMIT", "ROLLBACK")]
        assert ends == ["ROLLBACK", "COMMIT", "ROLLBACK", "COMMIT"]
        assert len([statement for statement in sql if not statement.startswith("BEGIN")]) - len(ends) <= 16


async def test_the_counting_sees_the_statements_and_commands_of_other_calls(stack: Stack) -> None:
    with statements(stack.services.database) as sql:
        async with commands(stack) as redis:
            await stack.open(CONTENT)
            await stack.put(CONTENT, 0)
    assert any(statement.startswith("INSERT INTO upload") for statement in sql)
    assert sum(command.startswith("EVALSHA") for command in redis) > 1
