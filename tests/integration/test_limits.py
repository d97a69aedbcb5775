"""Limits on a real connection: how many, how large, how slow, and how the server stops."""

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, MIB, Content
from tests.support.loop_time import pass_time
from tests.support.sockets import CONTENT, GET, URL, Connection, Server, serving, serving_stack
from tests.support.waiting import eventually
from uploader.http.bodies import intake
from uploader.http.server.http11 import MAX_HEAD_BYTES, MAX_HEADERS, MAX_PIPELINED, MAX_TARGET_BYTES


async def status_of(connection: Connection) -> tuple[int, str]:
    answer = await connection.answer()
    return answer.status, answer.code if answer.status >= 400 else ""


async def test_heads_are_taken_up_to_their_limits(server: Server) -> None:
    for head, status, code in (
        (b"GET /" + b"a" * (MAX_TARGET_BYTES - 1) + b" HTTP/1.1\r\nHost: a\r\n\r\n", 404, "not-found"),
        (b"GET /" + b"a" * MAX_TARGET_BYTES + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414, "target-too-long"),
        (b"GET /x HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * (MAX_HEADERS - 1) + b"\r\n", 404, "not-found"),
        (b"GET /x HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * MAX_HEADERS + b"\r\n", 431, "headers-too-large"),
        (b"GET /x HTTP/1.1\r\nHost: a\r\nX: " + b"a" * (MAX_HEAD_BYTES - 100) + b"\r\n\r\n", 404, "not-found"),
        (b"GET /x HTTP/1.1\r\nHost: a\r\nX: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n", 431, "headers-too-large"),
    ):
        async with server.connection() as connection:
            await connection.send(head)
            answer = await connection.answer()
            assert (answer.status, answer.code) == (status, code)
            for limit in {414: [MAX_TARGET_BYTES], 431: [MAX_HEAD_BYTES, MAX_HEADERS]}.get(status, []):
                assert f"{limit:,}" in json.loads(answer.body)["detail"]


async def test_a_head_without_end_is_cut_off(server: Server) -> None:
    for start in (b"GET /", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nX: "):
        async with server.connection() as connection:
            await connection.send(start)
            for _ in range(200):
                await connection.send(b"a" * 1024 if start[-1:] in b"/ " else b"X: a\r\n")
                await asyncio.sleep(0)
            assert (await status_of(connection))[0] in (414, 431)
            assert await connection.is_closed()


async def test_what_follows_a_body_without_end_is_cut_off(connection: Connection) -> None:
    await connection.request("PUT", f"{URL}/chunks/0", "Transfer-Encoding: chunked")
    await connection.send(b"3\r\nabc\r\n0\r\nX: ")
    for _ in range(64):
        await connection.send(b"a" * 1024)
        await asyncio.sleep(0)
    assert await status_of(connection) == (431, "headers-too-large")


def in_pieces(content: bytes, piece_bytes: int, extension: bytes) -> bytes:
    """A body in chunks."""
    pieces = [content[at : at + piece_bytes] for at in range(0, len(content), piece_bytes)]
    return b"".join(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces) + b"0\r\n\r\n"


async def test_a_body_in_small_chunks_is_taken(server: Server, connection: Connection) -> None:
    pieces = (1, b""), (3, b";a"), (8 * KIB, b";chunk-signature=" + b"0" * 64)
    for seed, (piece_bytes, extension) in enumerate(pieces):
        small = Content(256 * KIB, seed, chunk_size=256 * KIB)
        await server.stack.open(small)
        await connection.request("PUT", f"/files/{small.md5}/chunks/0", "Transfer-Encoding: chunked")
        await connection.send(in_pieces(small.data, piece_bytes, extension))
        assert await status_of(connection) == (201, "")


async def test_a_body_of_chunks_that_are_mostly_extensions_is_cut_off(server: Server) -> None:
    for piece_bytes, extension_bytes in ((KIB, 6 * KIB), (1, 64), (64 * KIB, 31 * KIB)):
        async with server.connection() as connection:
            await connection.request("PUT", f"{URL}/chunks/0", "Transfer-Encoding: chunked")
            body = in_pieces(CONTENT.chunk(0), piece_bytes, b";x=" + b"a" * extension_bytes)
            sending = asyncio.create_task(connection.send(body))
            answer = await connection.answer()
            assert (answer.status, answer.code, answer.headers["connection"]) == (400, "bad-request", "close")
            assert await connection.is_closed()
            await sending
        assert (await server.stack.client.get(URL)).json()["upload"]["missing"] == [[0, 1]]


async def test_what_follows_a_body_is_none_of_its_headers(server: Server, connection: Connection) -> None:
    await connection.request("PUT", f"{URL}/chunks/0", "Transfer-Encoding: chunked", authorized=False)
    authorization = server.stack.client.headers["authorization"]
    await connection.send(b"3\r\nabc\r\n0\r\nAuthorization: %s\r\n\r\n" % authorization.encode())
    assert await status_of(connection) == (401, "unauthenticated")


async def test_large_reads_of_requests_in_a_row_are_no_large_head(connection: Connection) -> None:
    await connection.request("PUT", f"{URL}/chunks/0", f"Content-Length: {2 * MIB}")
    await connection.send(CONTENT.chunk(0) + GET[:20])
    assert (await connection.answer()).status == 200
    await connection.send(GET[20:])
    assert (await connection.answer()).status == 200


async def test_blank_lines_do_not_keep_a_connection_open(connection: Connection) -> None:
    await connection.send(GET)
    assert (await connection.answer()).status == 200
    for _ in range(4):
        await connection.send(b"\r\n")
        await pass_time(4.5)
    assert await connection.is_closed()


async def test_some_requests_may_be_sent_ahead_of_their_answers_and_a_flood_ends_the_connection(
    connection: Connection,
) -> None:
    await connection.send(GET * MAX_PIPELINED)
    for _ in range(MAX_PIPELINED):
        assert (await connection.answer()).status == 200
    await connection.send(GET * 5000)
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        for _ in range(2 * MAX_PIPELINED):
            await connection.answer()
        pytest.fail("all were answered")


async def test_a_refusal_does_not_get_into_the_answer_to_a_request_before(server: Server) -> None:
    async with server.connection(narrow=True) as connection:
        file = (await server.stack.upload(CONTENT)).json()["file"]
        await connection.request("GET", f"/me/files/{file['id']}/content")
        await connection.request("PUT", f"{URL}/chunks/0", "Transfer-Encoding: chunked")
        await connection.send(b"no length\r\n")
        answers = await connection.rest()
        assert answers.count(b"HTTP/1.1") <= 1


async def test_an_offer_to_upgrade_is_ignored_and_with_a_body_refused(server: Server) -> None:
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
    async with server.connection() as connection:
        await connection.request("GET", "/livez", *upgrade)
        assert (await connection.answer()).status == 200
    async with server.connection() as connection:
        await connection.request("PUT", f"{URL}/chunks/0", f"Content-Length: {2 * MIB}", *upgrade)
        await connection.send(CONTENT.chunk(0))
        assert await status_of(connection) == (400, "bad-request")


async def test_a_body_slower_than_the_minimum_is_given_up_though_it_never_stands_still(connection: Connection) -> None:
    await connection.request("PUT", f"{URL}/chunks/0", f"Content-Length: {2 * MIB}", "Expect: 100-continue")
    assert (await connection.answer()).status == 100
    for _ in range(2):
        await connection.send(b"x")
        await pass_time(5.5)
    assert await status_of(connection) == (408, "body-timeout")


async def test_json_that_stands_still_is_given_up(connection: Connection) -> None:
    await connection.request("POST", URL, "Content-Length: 100", "Expect: 100-continue")
    assert (await connection.answer()).status == 100
    await connection.send(b'{"name": ')
    await pass_time(31)
    assert await status_of(connection) == (408, "body-timeout")
    assert await connection.is_closed()


async def test_json_of_unknown_length_is_cut_off_at_the_limit(connection: Connection) -> None:
    await connection.request("POST", URL, "Transfer-Encoding: chunked")
    piece = b"10000\r\n%s\r\n" % (b" " * 64 * KIB)
    for _ in range(5):
        await connection.send(piece)
    assert await status_of(connection) == (422, "invalid-request")


async def test_json_bodies_of_a_user_at_once_are_bounded(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "_JSON_BUDGET_BYTES", 64 * KIB)
    async with serving_stack(make_stack) as server, AsyncExitStack() as open_connections:
        large = b'{"md5s": [' + b" " * (14 * KIB)
        held = await open_connections.enter_async_context(server.connection())
        await held.request("POST", "/files/status", f"Content-Length: {len(large) + 2}")
        await held.send(large)
        async with server.connection() as connection:
            answers = [await _ask_states(connection, large) for _ in range(3)]
        assert (429, "too-many-requests") in answers
        await held.send(b"]}")
        assert (await held.answer()).status == 200
        async with server.connection() as connection:
            assert await _ask_states(connection, large) == (200, "")


async def _ask_states(connection: Connection, start: bytes) -> tuple[int, str]:
    await connection.request("POST", "/files/status", f"Content-Length: {len(start) + 2}")
    await connection.send(start + b"]}")
    return await status_of(connection)


async def test_more_chunk_bodies_of_a_user_at_once_than_allowed_are_refused(make_stack: MakeStack) -> None:
    async with serving(make_stack, max_concurrent_chunks=2) as server, AsyncExitStack() as open_connections:
        expected = ("Expect: 100-continue", f"Content-Length: {2 * MIB}")
        connections = [await open_connections.enter_async_context(server.connection()) for _ in range(3)]
        for connection, status in zip(connections, (100, 100, 429), strict=True):
            await connection.request("PUT", f"{URL}/chunks/0", *expected)
            answer = await connection.answer()
            assert answer.status == status
        assert (answer.code, answer.headers["connection"]) == ("too-many-requests", "close")
        await connections[0].send(CONTENT.chunk(0))
        assert (await connections[0].answer()).status == 200
        async with server.connection() as connection:
            await connection.request("PUT", f"{URL}/chunks/0", *expected)
            assert (await connection.answer()).status == 100


async def test_an_answer_that_nobody_takes_is_given_up(make_stack: MakeStack) -> None:
    content = Content(16 * MIB, chunk_size=16 * MIB)
    async with make_stack() as stack:
        file = (await stack.upload(content)).json()["file"]
    idle: dict[str, Any] = {"body_idle_timeout_seconds": 0.5}
    async with serving_stack(make_stack, **idle) as server, server.connection(narrow=True) as connection:
        await connection.request("GET", f"/me/files/{file['id']}/content")
        await eventually(lambda: server.has_connections(1))
        await eventually(lambda: server.has_connections(0))


async def test_a_server_that_stops_finishes_what_is_in_flight_and_takes_nothing_new(make_stack: MakeStack) -> None:
    async with serving(make_stack) as server, server.connection() as busy, server.connection() as idle:
        await busy.request("PUT", f"{URL}/chunks/0", f"Content-Length: {2 * MIB}")
        await busy.send(CONTENT.chunk(0)[: 1 * MIB])
        await idle.send(GET)
        assert (await idle.answer()).status == 200
        port = server.port
        server.uvicorn.config.timeout_graceful_shutdown = 600
        server.uvicorn.should_exit = True
        assert await idle.is_closed()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
        await busy.send(CONTENT.chunk(0)[1 * MIB :])
        answer = await busy.answer()
        assert (answer.status, json.loads(answer.body)["received_bytes"]) == (200, 2 * MIB)
        assert answer.headers["connection"] == "close"
        assert await busy.is_closed()


async def test_a_server_that_stops_waits_no_longer_than_it_may(make_stack: MakeStack) -> None:
    async with serving(make_stack) as server, server.connection() as stuck:
        await stuck.request("PUT", f"{URL}/chunks/0", f"Content-Length: {2 * MIB}")
        await stuck.send(bytes(1000))
        server.uvicorn.should_exit = True
        await eventually(lambda: _has_ended(server))


async def _has_ended(server: Any) -> bool:
    return not server.uvicorn.server_state.tasks and server.uvicorn.lifespan.shutdown_event.is_set()
