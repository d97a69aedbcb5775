"""A server on a port of this process, and raw connections to it: for what a client library would mend."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.types import ASGIApp

from tests.conftest import MakeStack
from tests.support.content import MIB, Content
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS
from uploader.bootstrap import build_application, server_config
from uploader.bootstrap.processes import SleepingServer
from uploader.bootstrap.server import listening_state

# The event loop of the server, which has a transport of its own.
UVLOOP = ("asyncio", {"use_uvloop": True})
on_both_loops = pytest.mark.parametrize(
    "anyio_backend", ["asyncio", pytest.param(UVLOOP, id="uvloop")], scope="session"
)
# Of which an upload is open where it is `serving`.
CONTENT = Content(4 * MIB, chunk_size=2 * MIB)
URL = f"/files/{CONTENT.md5}"
GET = b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n"


@dataclass
class Answer:
    """One answer as it came over the connection."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["code"])


class Connection:
    """A raw connection of the user `alice`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authorization: str) -> None:
        self._reader = reader
        self._writer = writer
        self._authorization = authorization

    async def send(self, content: bytes) -> None:
        """Send, unless the other side has closed already."""
        with suppress(ConnectionError):
            self._writer.write(content)
            await self._writer.drain()

    async def request(self, method: str, path: str, *headers: str, authorized: bool = True) -> None:
        """Send the head of a request."""
        lines = [f"{method} {path} HTTP/1.1", "Host: test", *headers]
        lines += [f"Authorization: {self._authorization}"] if authorized else []
        await self.send(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def answer(self, *, has_body: bool = True) -> Answer:
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await self._reader.readexactly(int(headers.get("content-length", 0)) if has_body else 0)
        return Answer(int(head[0].split()[1]), headers, body)

    async def take(self, length: int) -> bytes:
        """The next bytes, fewer only at the end."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                return await self._reader.readexactly(length)
            except asyncio.IncompleteReadError as end:
                return end.partial

    async def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._reader.read()

    async def is_closed(self) -> bool:
        """Whether the server closes the connection without another byte."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                return await self._reader.read(1) == b""
            except ConnectionError:
                return True

    def end(self) -> None:
        """Send nothing more, and go on reading."""
        self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError, ssl.SSLError):  # it may have unread answers
            await self._writer.wait_closed()


@dataclass
class Server:
    """A server on a port, over a stack."""

    stack: Stack
    uvicorn: SleepingServer

    @property
    def port(self) -> int:
        return int(self.uvicorn.servers[0].sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"{'http' if self.trust is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def trust(self) -> ssl.SSLContext | None:
        """Of a client that knows its certificate, if it has one."""
        certificate = self.stack.services.settings.tls_certificate
        return None if certificate is None else ssl.create_default_context(cafile=certificate)

    async def has_connections(self, count: int) -> bool:
        return len(self.uvicorn.server_state.connections) == count

    @asynccontextmanager
    async def connection(self, *, narrow: bool = False, source: str = "127.0.0.1") -> AsyncIterator[Connection]:
        """A connection from this address; a `narrow` one takes a few kilobytes in advance, not megabytes."""
        client = socket.socket()
        client.bind((source, 0))
        if narrow:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
        secure: dict[str, Any] = {} if self.trust is None else {"ssl": self.trust, "server_hostname": "127.0.0.1"}
        reader, writer = await asyncio.open_connection(sock=client, **secure)
        connection = Connection(reader, writer, self.stack.client.headers["authorization"])
        try:
            yield connection
        finally:
            await connection.close()


@asynccontextmanager
async def serving_stack(
    make_stack: MakeStack, *, around: Callable[[ASGIApp], ASGIApp] | None = None, **settings: Any
) -> AsyncIterator[Server]:
    """A stack behind uvicorn on a free port, its application inside `around`."""
    async with make_stack(**{"shutdown_timeout_seconds": 1.0, **settings}) as stack:
        in_force = stack.services.settings

        application = build_application(stack.services, lambda _app: listening_state(in_force))
        config = server_config(in_force)
        config.app = application if around is None else around(application)
        config.factory, config.port = False, 0
        server = SleepingServer(config)
        task = asyncio.create_task(server.serve())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not server.started:
                    await asyncio.sleep(0.01)
            yield Server(stack, server)
        finally:
            server.end()
            await task


@asynccontextmanager
async def serving(make_stack: MakeStack, **settings: Any) -> AsyncIterator[Server]:
    """A server with an open upload of CONTENT."""
    async with serving_stack(make_stack, **settings) as server:
        await server.stack.open(CONTENT)
        yield server
