"""Files that come whole, over a real connection: what is read of a body, and when it is answered."""

import asyncio
import json

import pytest

from tests.conftest import MakeStack
from tests.support.archives import Entry, archive, header
from tests.support.content import KIB, MIB, Content
from tests.support.faults import open_files_under
from tests.support.sockets import on_both_loops, serving_stack
from tests.support.waiting import eventually

CONTENT = Content(3 * MIB)
URL = f"/files/{CONTENT.md5}?name=a"


@on_both_loops
async def test_files_and_archives_go_over_one_connection(make_stack: MakeStack) -> None:
    small = [Content(4 * KIB, seed=seed, name=f"{seed}") for seed in range(300)]
    data = archive(*(Entry(content.name, content.data) for content in [*small, CONTENT]))
    async with serving_stack(make_stack) as server, server.connection() as connection:
        for status in (201, 200):
            await connection.request("PUT", URL, f"Content-Length: {CONTENT.size}")
            await connection.send(CONTENT.data)
            assert (await connection.answer()).status == status
            await connection.request("POST", "/files/batch", f"Content-Length: {len(data)}")
            await connection.send(data)
            answer = await connection.answer()
            assert (answer.status, "connection" in answer.headers) == (200, False)
            results = json.loads(answer.body)["results"]
            assert [line["status"] for line in results] == [status] * 301
            assert [line["file"]["md5"] for line in results] == [content.md5 for content in [*small, CONTENT]]


@on_both_loops
async def test_the_same_without_a_length(make_stack: MakeStack) -> None:
    data = archive(Entry("a", CONTENT.data))
    async with serving_stack(make_stack) as server, server.connection() as connection:
        for method, path, body, status in (("PUT", URL, CONTENT.data, 201), ("POST", "/files/batch", data, 200)):
            await connection.request(method, path, "Transfer-Encoding: chunked")
            for start in range(0, len(body), 300_000):
                piece = body[start : start + 300_000]
                await connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
            await connection.send(b"0\r\n\r\n")
            assert (await connection.answer()).status == status


@pytest.mark.parametrize(
    ("head", "sent", "status", "code"),
    [
        (("PUT", URL, f"Content-Length: {10**12}", "Expect: 100-continue"), b"", 413, "file-too-large"),
        (("POST", "/files/batch", f"Content-Length: {10**12}"), b"x" * 2 * MIB, 422, "invalid-archive"),
    ],
    ids=["too large", "no archive"],
)
async def test_what_is_refused_is_answered_before_its_end(
    make_stack: MakeStack, head: tuple[str, ...], sent: bytes, status: int, code: str
) -> None:
    async with serving_stack(make_stack) as server, server.connection() as connection:
        await connection.request(*head)
        await connection.send(sent)
        answer = await connection.answer()
        assert (answer.status, answer.code, answer.headers["connection"]) == (status, code, "close")
        assert await connection.is_closed()


async def test_after_an_archive_that_is_refused_with_little_left_the_connection_is_kept(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack) as server, server.connection() as connection:
        for _ in range(2):
            await connection.request("POST", "/files/batch", f"Content-Length: {900 * KIB}")
            await connection.send(b"x" * 900 * KIB)
            answer = await connection.answer()
            assert (answer.code, "connection" in answer.headers) == ("invalid-archive", False)


async def test_a_client_that_goes_away_leaves_what_was_whole_and_nothing_else(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack, body_budget_bytes=4) as server:

        async def spools() -> bool:
            return open_files_under(server.stack.data / "spool") != []

        async with server.connection() as connection:
            await connection.request("POST", "/files/batch", f"Content-Length: {10 * MIB}")
            await connection.send(archive(Entry("a", b"1")).rstrip(b"\0").ljust(1024, b"\0"))
            await connection.send(header(b"b", 5 * MIB) + bytes(MIB))
            await eventually(spools)

        async def is_over() -> bool:
            files = (await server.stack.client.get("/me/files")).json()["files"]
            return [file["name"] for file in files] == ["a"] and not await spools()

        await eventually(is_over)


async def test_archives_of_many_clients_come_at_once(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack) as server:

        async def send(number: int) -> None:
            async with server.connection() as connection:
                body = archive(*(Entry(f"{number}/{each}", b"%d" % each) for each in range(50)))
                await connection.request("POST", "/files/batch", f"Content-Length: {len(body)}")
                await connection.send(body)
                assert {line["status"] for line in json.loads((await connection.answer()).body)["results"]} == {201}

        await asyncio.gather(*(send(number) for number in range(8)))
        assert len((await server.stack.client.get("/me/files?limit=1000")).json()["files"]) == 400
