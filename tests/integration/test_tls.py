"""The server's own TLS: nothing of a body is lost on the way around the parser, and what never becomes HTTP is let go."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.certificates import self_signed
from tests.support.content import KIB, MIB, Content
from tests.support.sockets import CONTENT, GET, URL, Connection, Server, on_both_loops, serving, serving_stack
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.http.server import connections


@pytest.fixture
def make_secure(make_stack: MakeStack, tmp_path: Path) -> MakeStack:
    """Stacks that are served over TLS."""
    certificate, key = self_signed(tmp_path, "127.0.0.1")
    return partial(make_stack, tls_certificate=certificate, tls_key=key)


@asynccontextmanager
async def plain(server: Server) -> AsyncIterator[socket.socket]:
    """A connection on which nobody has begun with TLS."""
    with socket.socket() as client:
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", server.port))
        yield client


async def received(client: socket.socket) -> bytes:
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            return await asyncio.get_running_loop().sock_recv(client, 64 * KIB)
        except ConnectionError:
            return b""


async def put(connection: Connection, *headers: str) -> None:
    await connection.request("PUT", f"{URL}/chunks/0", f"Content-Length: {2 * MIB}", *headers)


@on_both_loops
async def test_bodies_of_every_length_come_whole_over_one_connection(make_secure: MakeStack) -> None:
    """Around a record of TLS, the room for what is read, what uvicorn holds, and in many of each."""
    edges = (1, 16 * KIB, 64 * KIB, 96 * KIB, 256 * KIB, 3 * MIB)
    sizes = [edge + more for edge in edges for more in (-1, 0, 1) if edge + more > 0]
    async with serving_stack(make_secure) as server, server.connection() as connection:
        for seed, size in enumerate(sizes):
            content = Content(size, seed=seed)
            path = f"/files/{content.md5}?name={seed}"
            await connection.request("PUT", path, f"Content-Length: {size}")
            await connection.send(content.data)
            file = json.loads((await connection.answer()).body)["file"]
            await connection.request("GET", f"/me/files/{file['id']}/content")
            assert (await connection.answer()).body == content.data


@on_both_loops
async def test_chunks_are_asked_for_sent_ahead_and_sent_in_pieces(make_secure: MakeStack) -> None:
    async with serving(make_secure) as server, server.connection() as connection:
        await put(connection, "Expect: 100-continue")
        assert (await connection.answer()).status == 100
        await connection.send(CONTENT.chunk(0))
        assert (await connection.answer()).status == 200
        for _ in range(2):
            await put(connection)
            await connection.send(CONTENT.chunk(0))
        await connection.request("PUT", f"{URL}/chunks/1", "Transfer-Encoding: chunked")
        await connection.send(b"%x\r\n%s\r\n0\r\n\r\n" % (2 * MIB, CONTENT.chunk(1)))
        assert [(await connection.answer()).status for _ in range(3)] == [200, 200, 201]
        (file,) = (await server.stack.client.get("/me/files")).json()["files"]
        assert file["sha256"] == CONTENT.sha256


async def test_what_is_said_before_the_answer_comes_before_it(make_secure: MakeStack) -> None:
    async with serving_stack(make_secure) as server, server.connection() as connection:
        told = ("Upload-Draft-Interop-Version: 8", "Upload-Complete: ?1", f"Content-Length: {CONTENT.size}")
        await connection.request("POST", "/resumable", *told)
        first = await connection.answer(has_body=False)
        assert first.status == 104
        await connection.send(CONTENT.data)
        while (answer := await connection.answer()).status == 104:
            pass
        assert (answer.status, answer.headers["location"]) == (201, first.headers["location"])


@on_both_loops
async def test_a_request_may_come_with_the_end_of_the_handshake(make_secure: MakeStack) -> None:
    loop = asyncio.get_running_loop()
    async with serving_stack(make_secure) as server, plain(server) as client:
        assert server.trust is not None
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secure = server.trust.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        while True:
            try:
                secure.do_handshake()
                break
            except ssl.SSLWantReadError:
                await loop.sock_sendall(client, outgoing.read())
                incoming.write(await received(client))
        secure.write(GET)
        await loop.sock_sendall(client, outgoing.read())
        answer = b""
        while b'"' not in answer:
            incoming.write(await received(client))
            try:
                answer += secure.read(64 * KIB)
            except ssl.SSLWantReadError:  # a ticket, for the next time
                continue
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_what_is_refused_below_http_is_told(make_secure: MakeStack) -> None:
    async with (
        serving_stack(make_secure, max_connections=1) as server,
        server.connection() as connection,
        server.connection() as newer,
    ):
        assert (await connection.answer()).status == 503
        await newer.send(b"nonsense\r\n\r\n")
        assert (await newer.answer()).status == 400


async def test_a_client_that_knows_http_2_is_spoken_to_in_http_1(make_secure: MakeStack) -> None:
    async with serving_stack(make_secure) as server:
        trust = server.trust
        assert trust is not None
        trust.set_alpn_protocols(["h2", "http/1.1"])
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trust)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        writer.close()
        await writer.wait_closed()


@on_both_loops
async def test_a_client_that_does_not_end_its_handshake_is_let_go(make_secure: MakeStack) -> None:
    async with serving_stack(make_secure, header_timeout_seconds=0.2) as server:
        for said in (b"", b"\x16\x03\x01\x02\x00\x01"):  # nothing, or a beginning
            async with plain(server) as client:
                await asyncio.get_running_loop().sock_sendall(client, said)
                assert await received(client) == b""


async def test_the_oldest_handshakes_give_way(make_secure: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_RESERVED_CONNECTIONS", 2)
    async with serving_stack(make_secure) as server, AsyncExitStack() as silent:
        clients = [await silent.enter_async_context(plain(server)) for _ in range(4)]
        assert [await received(client) for client in clients[:2]] == [b"", b""]
        async with server.connection() as connection:
            await connection.request("GET", "/livez")
            assert (await connection.answer()).status == 200


async def test_http_without_tls_gets_no_answer(make_secure: MakeStack) -> None:
    async with serving_stack(make_secure) as server, plain(server) as client:
        await asyncio.get_running_loop().sock_sendall(client, GET)
        assert b"HTTP" not in await received(client)


async def test_an_answer_that_nobody_takes_is_given_up(make_secure: MakeStack) -> None:
    content = Content(16 * MIB, chunk_size=16 * MIB)
    async with make_secure() as stack:
        file = (await stack.upload(content)).json()["file"]
    idle: dict[str, Any] = {"body_idle_timeout_seconds": 0.5}
    async with serving_stack(make_secure, **idle) as server, server.connection(narrow=True) as connection:
        await connection.request("GET", f"/me/files/{file['id']}/content")
        await eventually(lambda: server.has_connections(1))
        await eventually(lambda: server.has_connections(0))
