"""What only shows on a real connection: bodies nobody reads, bodies that stall, headers that never end."""

import asyncio
import json
import socket
from functools import partial
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.conftest import MakeStack
from tests.support.archives import Entry, archive, header
from tests.support.content import KIB, MIB, Content
from tests.support.faults import open_files_under
from tests.support.loop_time import pass_time
from tests.support.sockets import CONTENT, URL, Connection, Server, on_both_loops, serving, serving_stack
from tests.support.waiting import eventually

NOBODYS = f"/files/{'0' * 32}"
WHOLE = Content(3 * MIB)
WHOLE_URL = f"/files/{WHOLE.md5}?name=a"
ASKS = "Expect: 100-continue"


async def put(connection: Connection, number: int, *headers: str) -> None:
    """The head of a request of a chunk; its body is to come."""
    await connection.request("PUT", f"{URL}/chunks/{number}", *(headers or (f"Content-Length: {2 * MIB}",)))


async def is_refused(connection: Connection, status: int, code: str) -> None:
    answer = await connection.answer()
    assert (answer.status, answer.code, answer.headers["connection"]) == (status, code, "close")
    assert await connection.is_closed()


async def is_asked_for(connection: Connection) -> None:
    """The body of a chunk: from now on it is waited for."""
    await put(connection, 0, f"Content-Length: {2 * MIB}", ASKS)
    assert (await connection.answer()).status == 100


@on_both_loops
async def test_files_and_archives_go_over_one_connection(connection: Connection) -> None:
    contents = [*(Content(4 * KIB, seed=seed, name=f"{seed}") for seed in range(300)), WHOLE]
    data = archive(*(Entry(content.name, content.data) for content in contents))
    for status in (201, 200):
        await connection.request("PUT", WHOLE_URL, f"Content-Length: {WHOLE.size}")
        await connection.send(WHOLE.data)
        assert (await connection.answer()).status == status
        await connection.request("POST", "/files/batch", f"Content-Length: {len(data)}")
        await connection.send(data)
        answer = await connection.answer()
        assert (answer.status, "connection" in answer.headers) == (200, False)
        results = json.loads(answer.body)["results"]
        assert [line["status"] for line in results] == [status] * 301
        assert [line["file"]["md5"] for line in results] == [content.md5 for content in contents]


@on_both_loops
async def test_the_same_without_a_length(connection: Connection) -> None:
    data = archive(Entry("a", WHOLE.data))
    for method, path, body, status in (("PUT", WHOLE_URL, WHOLE.data, 201), ("POST", "/files/batch", data, 200)):
        await connection.request(method, path, "Transfer-Encoding: chunked")
        for start in range(0, len(body), 300_000):
            piece = body[start : start + 300_000]
            await connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        await connection.send(b"0\r\n\r\n")
        assert (await connection.answer()).status == status


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


async def test_a_chunk_of_a_told_length_never_goes_through_the_messages_of_asgi(make_stack: MakeStack) -> None:
    bodies = []

    def listening(app: ASGIApp) -> ASGIApp:
        async def listen(scope: Scope, receive: Receive, send: Send) -> None:
            async def heard() -> Message:
                message = await receive()
                bodies.append(len(message.get("body", b"")))
                return message

            await app(scope, heard if scope["type"] == "http" else receive, send)

        return listen

    async with serving_stack(make_stack, around=listening) as server, server.connection() as connection:
        await server.stack.open(CONTENT)
        await connection.request("PUT", f"{URL}/chunks/0", f"Content-Length: {2 * MIB}")
        await connection.send(CONTENT.chunk(0))
        assert (await connection.answer()).status == 200
    assert bodies == []


async def test_an_endless_body_is_cut_off_and_the_connection_closed(connection: Connection) -> None:
    async def flood() -> None:
        piece = b"10000\r\n%s\r\n" % bytes(64 * KIB)
        while True:
            await connection.send(piece)
            await asyncio.sleep(0)

    await put(connection, 0, "Transfer-Encoding: chunked")
    flooding = asyncio.create_task(flood())
    await is_refused(connection, 422, "chunk-length-mismatch")
    flooding.cancel()
    await asyncio.wait({flooding})


async def test_after_an_early_answer_a_small_body_is_read_and_the_connection_kept(connection: Connection) -> None:
    for operation, length, authorized, status in (
        (f"PUT {NOBODYS}/chunks/0", 64 * KIB, True, 404),
        (f"PUT {NOBODYS}/chunks/0", 64 * KIB, False, 401),
        ("POST /files/batch", 900 * KIB, True, 422),
    ):
        for _ in range(2):
            await connection.request(*operation.split(), f"Content-Length: {length}", authorized=authorized)
            await connection.send(b"x" * length)
            answer = await connection.answer()
            assert (answer.status, "connection" in answer.headers) == (status, False)


async def test_after_an_early_answer_a_large_body_closes_the_connection(server: Server) -> None:
    for operation, headers, sent, status, code in (
        (f"PUT {URL}/chunks/0", [f"Content-Length: {10**15}"], 2 * MIB, 422, "chunk-length-mismatch"),
        (f"PUT {URL}/chunks/99", [f"Content-Length: {2 * MIB}"], 2 * MIB, 422, "chunk-number-out-of-range"),
        (f"PUT {NOBODYS}/chunks/0", [f"Content-Length: {2 * MIB}", ASKS], 0, 404, "upload-not-found"),
        (f"PUT {WHOLE_URL}", [f"Content-Length: {10**12}", ASKS], 0, 413, "file-too-large"),
        ("POST /files/batch", [f"Content-Length: {10**12}"], 2 * MIB + 1, 422, "invalid-archive"),
    ):
        async with server.connection() as connection:
            await connection.request(*operation.split(), *headers)
            await connection.send(b"x" * sent)
            await is_refused(connection, status, code)


@on_both_loops
@pytest.mark.parametrize("framing", [f"Content-Length: {8 * MIB}", "Transfer-Encoding: chunked"])
async def test_who_sends_all_before_it_reads_gets_an_early_answer_too(server: Server, framing: str) -> None:
    """To close with bytes unread would reset the connection, and take the answer away again (RFC 9112, section 9.6)."""
    piece = b"10000\r\n%s\r\n" % bytes(64 * KIB) if framing.endswith("chunked") else bytes(64 * KIB)

    def ask() -> bytes:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(f"PUT {NOBODYS}/chunks/0 HTTP/1.1\r\nHost: test\r\n{framing}\r\n\r\n".encode())
            for _ in range(128):
                client.sendall(piece)
            return b"".join(iter(partial(client.recv, 64 * KIB), b""))

    assert (await asyncio.to_thread(ask)).startswith(b"HTTP/1.1 401 ")


async def test_a_long_early_answer_is_taken_as_slowly_as_its_client_likes(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for longer than the connection stays for what is still sent."""
    monkeypatch.setattr("uploader.http.server.http11._LINGER_SECONDS", 0.1)
    members = b"".join(header(b"%05d" % number, 0) for number in range(10_000))
    async with server.connection(narrow=True) as connection:
        await connection.request("POST", "/files/batch", f"Content-Length: {10**9}")
        await connection.send(members + b"x" * 2 * MIB)
        begin = await connection.take(1)
        await asyncio.sleep(0.2)
        head, _, body = (begin + await connection.rest()).partition(b"\r\n\r\n")
        assert (head[:12], len(json.loads(body)["results"])) == (b"HTTP/1.1 422", 10_000)


async def test_a_body_that_stands_still_is_given_up(server: Server, connection: Connection) -> None:
    await is_asked_for(connection)
    await connection.send(bytes(1000))
    await pass_time(31)
    answer = await connection.answer()
    assert (answer.status, answer.code, answer.headers["connection"]) == (408, "body-timeout", "close")
    assert json.loads(answer.body)["retryable"] is True
    assert await connection.is_closed()
    standing = (await server.stack.client.get(URL)).json()["upload"]
    assert standing["missing"] == [[0, 1]]


async def test_a_body_that_comes_slowly_does_not_stand_still(make_stack: MakeStack) -> None:
    """However few its bytes are: nobody waits for many of them. It takes time: the kernel says when bytes are there."""
    content, slow_bytes = CONTENT.chunk(0), 12
    idle: dict[str, Any] = {"body_idle_timeout_seconds": 2.0, "header_timeout_seconds": 2.0}
    async with serving(make_stack, **idle) as server, server.connection() as connection:
        await is_asked_for(connection)
        for at in range(slow_bytes):
            await connection.send(content[at : at + 1])
            await asyncio.sleep(0.2)
        await connection.send(content[slow_bytes:])
        assert (await connection.answer()).status == 200


async def test_a_body_that_breaks_off_leaves_nothing(server: Server) -> None:
    async with server.connection() as connection:
        await put(connection, 0)
        await connection.send(CONTENT.chunk(0)[: 1 * MIB])
    async with server.connection() as connection:
        await put(connection, 0)
        await connection.send(CONTENT.chunk(0))
        answer = await connection.answer()
        assert (answer.status, json.loads(answer.body)["duplicate"]) == (200, False)


STATUS = b'{"md5s": ["%s"]}' % CONTENT.md5.encode()
IN_PIECES = b"%x\r\n%s\r\n0\r\n\r\n" % (2 * MIB, CONTENT.chunk(0))


@on_both_loops
@pytest.mark.parametrize(
    ("request_line", "header", "body"),
    [
        ("GET /livez", "Accept: */*", b""),
        ("POST /files/status", f"Content-Length: {len(STATUS)}", STATUS),
        (f"PUT {URL}/chunks/0", f"Content-Length: {2 * MIB}", CONTENT.chunk(0)),
        (f"PUT {URL}/chunks/0", "Transfer-Encoding: chunked", IN_PIECES),
    ],
    ids=["nothing sent", "JSON", "a chunk", "a chunk of unknown length"],
)
async def test_a_client_that_sends_no_more_gets_its_answer(
    connection: Connection, request_line: str, header: str, body: bytes
) -> None:
    await connection.request(*request_line.split(), header)
    await connection.send(body)
    connection.end()
    assert (await connection.answer()).status == 200
    assert await connection.is_closed()


@on_both_loops
@pytest.mark.parametrize("last", [b"", b"GET /livez HTTP/1.1\r\nHo"], ids=["whole", "and a part of another"])
async def test_all_that_a_client_asked_for_before_it_sends_no_more_is_answered(
    server: Server, connection: Connection, last: bytes
) -> None:
    for number in (0, 0, 1):
        await put(connection, number)
        await connection.send(CONTENT.chunk(number))
    await connection.send(last)
    connection.end()
    assert [(await connection.answer()).status for _ in range(3)] == [200, 200, 201]
    assert await connection.is_closed()
    (file,) = (await server.stack.client.get("/me/files")).json()["files"]
    assert (await server.stack.client.get(f"/me/files/{file['id']}/content")).content == CONTENT.data


@on_both_loops
async def test_a_client_that_sends_no_more_and_asks_for_nothing_is_let_go(make_stack: MakeStack) -> None:
    async with serving(make_stack, header_timeout_seconds=3600.0) as server:
        server.uvicorn.config.timeout_keep_alive = 3600
        for asked_before in (False, True):
            async with server.connection() as connection:
                if asked_before:
                    await connection.request("GET", "/livez")
                    assert (await connection.answer()).status == 200
                connection.end()
                assert await connection.is_closed()


@on_both_loops
async def test_a_body_that_its_client_does_not_end_is_no_request(make_stack: MakeStack) -> None:
    """What was asked for before it is answered, and nobody waits for the rest."""
    async with serving(make_stack, body_idle_timeout_seconds=3600.0) as server:

        async def is_over() -> bool:
            return not server.uvicorn.server_state.tasks

        for header, body in (
            (f"Content-Length: {2 * MIB}", CONTENT.chunk(0)[: 1 * MIB]),
            ("Transfer-Encoding: chunked", IN_PIECES.removesuffix(b"0\r\n\r\n")),
        ):
            async with server.connection() as connection:
                await connection.request("GET", URL)
                await put(connection, 0, header)
                await connection.send(body)
                connection.end()
                assert (await connection.answer()).status == 200
                assert await connection.is_closed()
            await eventually(is_over)
            assert (await server.stack.client.get(URL)).json()["upload"]["missing"] == [[0, 1]]


@pytest.mark.parametrize("head", [b"", b"GET /livez HTTP/1.1\r\nHost: te"])
async def test_headers_that_do_not_come_close_the_connection(
    server: Server, connection: Connection, head: bytes
) -> None:
    await connection.send(head)
    await pass_time(14)
    await pass_time(0)
    assert len(server.uvicorn.server_state.connections) == 1
    await pass_time(2)
    assert await connection.is_closed()
