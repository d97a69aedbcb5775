"""Limits on a real connection: how many, how large, how slow, and how the server stops."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.consumer import events_file
from tests.support.content import KIB, MIB, Content
from tests.support.loop_time import pass_time
from tests.support.merging import merge_held_up
from tests.support.sockets import CONTENT, GET, URL, Answer, Connection, Server, serving, serving_stack
from tests.support.visiting import make_link, visit
from tests.support.waiting import eventually
from uploader.errors import LinkGone
from uploader.http import app
from uploader.http.bodies import intake
from uploader.http.server.http11 import MAX_HEAD_BYTES, MAX_HEADERS, MAX_PIPELINED, MAX_TARGET_BYTES

NOWHERE = "0" * 32


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
    patient: dict[str, Any] = {"shutdown_timeout_seconds": 600.0}
    async with serving(make_stack, **patient) as server, server.connection() as busy, server.connection() as idle:
        await busy.request("PUT", f"{URL}/chunks/0", f"Content-Length: {2 * MIB}")
        await busy.send(CONTENT.chunk(0)[: 1 * MIB])
        await idle.send(GET)
        assert (await idle.answer()).status == 200
        port = server.port
        server.uvicorn.end()
        assert await idle.is_closed()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
        await busy.send(CONTENT.chunk(0)[1 * MIB :])
        answer = await busy.answer()
        assert (answer.status, json.loads(answer.body)["received_bytes"]) == (200, 2 * MIB)
        assert answer.headers["connection"] == "close"
        assert await busy.is_closed()


QUEUE = '[queues.scan]\ntypes = ["file.finished"]\n'
LARGE = Content(8 * MIB, chunk_size=8 * MIB, seed=1)
TUS = ("Tus-Resumable: 1.0.0", "Upload-Offset: 0", "Content-Type: application/offset+octet-stream")


@pytest.mark.parametrize("seconds", [600.0, 0.5])
async def test_each_request_ends_with_an_answer_or_breaks_off_when_the_server_stops(
    make_stack: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A body that stands still ends at once, one that moves has until the time-out, and may end before."""
    monkeypatch.setattr(app, "_STILL_SECONDS", 0.6)
    monkeypatch.setattr(app, "_LOOK_SECONDS", 0.1)
    settings: dict[str, Any] = {"shutdown_timeout_seconds": seconds, "events": events_file(tmp_path / "events", QUEUE)}
    async with AsyncExitStack() as exits:
        merging = Content(64 * KIB, seed=2)
        async with make_stack() as stack:
            large = (await stack.upload(LARGE)).json()["file"]["id"]
        server = await exits.enter_async_context(serving(make_stack, **settings))
        client = server.stack.client
        worker = await server.stack.services.accounts.create_token("w", admin=False, scope="queue:scan")
        merged = (await server.stack.open(merging)).json()["upload"]["id"]

        unsent = dict[Connection, int]()

        async def begin(
            method: str, path: str, *headers: str, length: int = 0, token: str | None = None, narrow: bool = False
        ) -> Connection:
            connection = await exits.enter_async_context(server.connection(narrow=narrow))
            sender = () if token is None else (f"Authorization: Bearer {token}",)
            told = (f"Content-Length: {length}",) if length else ()
            unsent[connection] = length
            await connection.request(method, path, *headers, *told, *sender, authorized=token is None)
            return connection

        async def begin_bodies() -> dict[str, Connection]:
            made = await client.post("/resumable", headers={"Tus-Resumable": "1.0.0", "Upload-Length": str(MIB)})
            number = (await client.post("/uploads", json={"name": "c", "size": MIB})).json()["upload"]["id"]
            rufh, whole = ("Upload-Draft-Interop-Version: 6", "Upload-Complete: ?1"), f"/files/{CONTENT.md5}?name=whole"
            begun = {
                "chunk": await begin("PUT", f"/uploads/{number}/chunks/0", length=MIB),
                "tus": await begin("PATCH", made.headers["location"], *TUS, length=MIB),
                "upload of HTTP": await begin("POST", "/resumable", *rufh, length=MIB),
                "whole file": await begin("PUT", whole, length=CONTENT.size),
                "new file": await begin("POST", "/me/files?name=new", length=MIB),
                "batch": await begin("POST", "/files/batch", length=10240),
                "JSON": await begin("POST", "/me/folders", length=200),
            }
            if seconds < 1:  # else it has its answer after 2 s, once its body was waited for
                begun["refused early"] = await begin("PUT", f"/files/{NOWHERE}/chunks/0", length=MIB)
            return begun

        async def move(connection: Connection) -> None:
            while True:
                unsent[connection] -= 1
                await connection.send(b" ")
                await asyncio.sleep(0.05)

        async def expect_stopped(name: str, connection: Connection) -> None:
            answer = await final_answer(connection)
            expected = {"tus": (423,), "refused early": (404, 503)}.get(name, (503,))
            assert answer.status in expected, (name, answer)
            assert answer.headers["content-type"] == "application/problem+json", name
            assert answer.status == 404 or int(answer.headers["retry-after"]) > 0, name
            assert answer.headers["connection"] == "close", name

        standing, moving = [await begin_bodies() for _ in range(2)]
        for connection in standing.values():
            await connection.send(b"{")
        movers = [asyncio.create_task(move(connection)) for connection in moving.values()]
        claim = json.dumps({"wait_seconds": 30}).encode()
        standing["claim"] = await begin("POST", "/queues/scan/claim", length=len(claim), token=worker)
        await standing["claim"].send(claim)
        reading = {
            "download": await begin("GET", f"/me/files/{large}/content", narrow=seconds < 1),
            "archive": await begin("GET", "/me/archive?prefix=&format=tar", narrow=seconds < 1),
        }
        for connection in reading.values():
            assert (await connection.take(12)).startswith(b"HTTP/1.1 200")
        async with merge_held_up(server.stack, merged):
            last = await begin("PUT", f"/uploads/{merged}/chunks/0", length=merging.size)
            await last.send(merging.data)
            await eventually(lambda: _is_received(server, merged))
            server.uvicorn.end()
            for name, connection in standing.items():
                await expect_stopped(name, connection)
            if seconds < 1:
                await expect_stopped("merge", last)
                for name, connection in moving.items():
                    await expect_stopped(name, connection)
        if seconds < 1:
            for name, connection in reading.items():
                assert len(await connection.rest()) < LARGE.size, name
        for mover, (name, connection) in zip(movers, moving.items(), strict=True):
            mover.cancel()
            if seconds > 1:
                await connection.send(b" " * unsent[connection])
                assert (await final_answer(connection)).status in (200, 201, 204, 409, 422), name
        if seconds < 1:
            return
        assert (await last.answer()).status == 201
        assert (await reading["download"].rest()).endswith(LARGE.data[-1 * MIB :])
        assert (await reading["archive"].rest()).endswith(b"0\r\n\r\n")


async def final_answer(connection: Connection) -> Answer:
    while (answer := await connection.answer()).status < 200:  # how far it is
        pass
    return answer


async def _is_received(server: Server, upload_id: str) -> bool:
    found = (await server.stack.client.get(f"/uploads/{upload_id}")).json()
    return bool(found["state"] == "merging")


async def test_request_that_ends_while_its_answer_waits_for_the_body_is_answered(make_stack: MakeStack) -> None:
    """The answer is there, but for the rest of the body, when the link of its visitor ends."""
    async with serving_stack(make_stack) as server:
        stack = server.stack
        link = await make_link(stack)
        visitor = (await visit(stack, link)).headers["authorization"]
        async with server.connection() as connection:
            long = (f"Content-Length: {MIB}", f"Authorization: {visitor}")
            await connection.request("PUT", f"/files/{NOWHERE}/chunks/0", *long, authorized=False)
            running = stack.services.revocations._running
            await eventually(lambda: _is(lambda: len(running) == 1))
            await asyncio.sleep(0.1)
            (request,) = running
            request.cut(LinkGone())
            answer = await connection.answer()
            assert (answer.status, answer.code) == (410, "link-gone")


async def _is(condition: Callable[[], bool]) -> bool:
    return condition()
