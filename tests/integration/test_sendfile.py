"""Downloads that threads send: what arrives is what arrives without, and nothing is left behind."""

import asyncio
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import httpx2
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.conftest import MakeStack
from tests.support.content import KIB, MIB, Content
from tests.support.layout import blob_path
from tests.support.sockets import UVLOOP, Server, on_both_loops, serving_stack
from tests.support.waiting import eventually
from uploader.http.server import connections
from uploader.http.server.connections import SENDERS_STATE
from uploader.http.server.http11 import LimitedProtocol
from uploader.http.shared.responses import ZERO_COPY_SEND
from uploader.storage.base import OpenBlob

# More than a socket takes at once.
CONTENT = Content(6 * MIB, chunk_size=6 * MIB)


@pytest.fixture(params=["off", "on"])
def verify_reads(request: pytest.FixtureRequest) -> str:
    """By sendfile, or compared first."""
    way: str = request.param
    return way


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, verify_reads: str) -> Iterator[list[int]]:
    """The bytes of each turn of a thread."""
    calls: list[int] = []
    name = "_send" if verify_reads == "off" else "_send_viewed"
    real = getattr(connections, name)

    def counted(*arguments: Any) -> tuple[int, bytes]:
        done: tuple[int, bytes] = real(*arguments)
        calls.append(done[0])
        return done

    monkeypatch.setattr(connections, name, counted)
    yield calls


def take_away_sendfile(server: Server) -> None:
    del server.uvicorn.lifespan.state[SENDERS_STATE]


async def upload(server: Server) -> str:
    """The path of the content."""
    file = (await server.stack.upload(CONTENT)).json()["file"]
    return f"/me/files/{file['id']}/content"


async def fetch(server: Server, requests: list[tuple[str, str, str]]) -> bytes:
    """Everything that comes for requests sent at once over one connection, the last of which closes it."""
    async with server.connection() as connection:
        for method, path, header in requests:
            await connection.request(method, path, header)
        await connection.request("GET", "/livez", "Connection: close")
        return await connection.rest()


def masked(answers: bytes) -> bytes:
    """Without what differs from one answer to the next."""
    answers = re.sub(rb"\r\ndate: [^\r]+", b"", re.sub(rb"\r\nx-request-id: \S+", b"", answers))
    for boundary in set(re.findall(rb"boundary=(\S+)", answers)):
        answers = answers.replace(boundary, b"")
    return answers


async def test_every_answer_is_the_same_as_without_threads(
    make_stack: MakeStack, verify_reads: str, sent: list[int]
) -> None:
    async with serving_stack(make_stack, verify_reads=verify_reads) as server:
        path = await upload(server)
        requests = [
            ("GET", path, "Accept: */*"),
            ("HEAD", path, "Accept: */*"),
            ("GET", path, "Range: bytes=1-"),
            ("GET", path, "Range: bytes=-3000001"),
            ("GET", path, "Range: bytes=5-9, 1000000-4999999, 3-3, 5000000-5999999"),
            ("GET", "/livez", "Accept: */*"),
            ("GET", path, "Accept: */*"),
        ]
        by_sendfile = await fetch(server, requests)
        calls = len(sent)
        assert calls >= 5
        take_away_sendfile(server)
        assert masked(by_sendfile) == masked(await fetch(server, requests))
        assert len(sent) == calls
        assert by_sendfile.count(CONTENT.data) == 2


# Each two of the three in each way.
@pytest.mark.parametrize(
    ("anyio_backend", "verify_reads", "sends_no_more"),
    [("asyncio", "off", True), ("asyncio", "on", False), (UVLOOP, "off", False), (UVLOOP, "on", True)],
    ids=["asyncio", "asyncio, compared", "uvloop", "uvloop, compared"],
    scope="session",
)
async def test_a_reader_that_is_slow_gets_everything(
    make_stack: MakeStack, verify_reads: str, sent: list[int], sends_no_more: bool
) -> None:
    async with serving_stack(make_stack, verify_reads=verify_reads) as server:
        path = await upload(server)
        async with server.connection(narrow=True) as connection:
            await connection.request("GET", path, "Connection: close")
            if sends_no_more:
                connection.end()
            answer = b""
            while piece := await connection.take(256 * KIB):
                answer += piece
                await asyncio.sleep(0.005)
        assert answer.partition(b"\r\n\r\n")[2] == CONTENT.data
        assert sent


async def test_a_client_that_takes_little_does_not_stand_still(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack) as server, server.connection(narrow=True) as connection:
        await connection.request("GET", await upload(server))
        [protocol] = cast(set[LimitedProtocol], server.uvicorn.server_state.connections)
        await eventually(lambda: _has_paused(protocol))
        untaken = protocol.stalls.untaken_bytes()
        await connection.take(400 * KIB)
        await eventually(lambda: _has_untaken_below(protocol, untaken))


async def _has_paused(protocol: LimitedProtocol) -> bool:
    return protocol.flow.write_paused


async def _has_untaken_below(protocol: LimitedProtocol, count: int) -> bool:
    return protocol.stalls.untaken_bytes() < count


@on_both_loops
@pytest.mark.parametrize("says_so", [False, True])
async def test_a_client_that_goes_away_leaves_no_descriptor(make_stack: MakeStack, says_so: bool) -> None:
    async with serving_stack(make_stack) as server:
        path = await upload(server)
        for length in (0, 100, 1 * MIB):
            async with server.connection(narrow=True) as connection:
                await connection.request("GET", path)
                await connection.take(length)
                await eventually(lambda: _has_open(server, 1))
                if says_so:
                    connection.end()
            await eventually(lambda: _has_open(server, 0))
        await eventually(lambda: _has_only_its_listener(server))


async def test_a_server_that_stops_finishes_a_download(make_stack: MakeStack) -> None:
    patient: dict[str, Any] = {"shutdown_timeout_seconds": 600.0}
    async with serving_stack(make_stack, **patient) as server, server.connection(narrow=True) as connection:
        await connection.request("GET", await upload(server))
        await connection.take(1000)
        server.uvicorn.end()
        assert (await connection.rest()).endswith(CONTENT.data[-CONTENT.size // 2 :])


@pytest.mark.parametrize("sendfile", [True, False])
async def test_a_blob_that_is_cut_while_it_is_sent_ends_the_connection(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch, verify_reads: str, sendfile: bool
) -> None:
    async with serving_stack(make_stack, verify_reads=verify_reads) as server:
        path = await upload(server)
        storage = server.stack.services.storage
        before = storage.open_blob

        async def cut_when_it_is_open(sha256: str, size: int) -> OpenBlob:
            blob = await before(sha256, size)
            os.truncate(blob_path(server.stack.data, CONTENT.sha256), 5 * MIB)
            return blob

        monkeypatch.setattr(storage, "open_blob", cut_when_it_is_open)
        if not sendfile:
            take_away_sendfile(server)
        async with server.connection() as connection:
            await connection.request("GET", path)
            head, _, body = (await connection.rest()).partition(b"\r\n\r\n")
        assert f"content-length: {CONTENT.size}".encode() in head
        # What the client had not taken yet may go with the connection.
        assert len(body) > MIB
        assert CONTENT.data[: 5 * MIB].startswith(body)


async def _has_open(server: Server, count: int) -> bool:
    """Whether the blob is open as often as that."""
    return list(_open_files().values()).count(str(blob_path(server.stack.data, CONTENT.sha256))) == count


async def _has_only_its_listener(server: Server) -> bool:
    sockets = [number for number, file in _open_files().items() if file.startswith("socket:")]
    return [_local_port(number) for number in sockets].count(server.port) == 1


def _open_files() -> dict[int, str]:
    """By their descriptors."""
    files = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that this looks through
            files[int(descriptor.name)] = str(descriptor.readlink())
    return files


def _local_port(descriptor: int) -> int | None:
    with socket.socket(fileno=os.dup(descriptor)) as opened:
        return int(opened.getsockname()[1]) if opened.family == socket.AF_INET else None


def sending(file: BinaryIO) -> Callable[[ASGIApp], ASGIApp]:
    """An application whose answer is of parts of a file, as long as the path says it is."""

    async def answer(scope: Scope, send: Send) -> None:
        assert ZERO_COPY_SEND in scope["extensions"]
        length = scope["path"].removeprefix("/")
        headers = [(b"content-length", length.encode())] if length else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": ZERO_COPY_SEND, "file": file, "offset": 50, "count": MIB, "more_body": True})
        await send({"type": "http.response.body", "body": b"between", "more_body": True})
        await send({"type": ZERO_COPY_SEND, "file": file.fileno(), "offset": 0, "count": 0, "more_body": True})
        file.seek(2 * MIB - 1000)
        await send({"type": ZERO_COPY_SEND, "file": file})

    def around(app: ASGIApp) -> ASGIApp:
        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            await (answer(scope, send) if scope["type"] == "http" else app(scope, receive, send))

        return call

    return around


async def test_any_application_may_send_parts_of_files(make_stack: MakeStack, tmp_path: Path) -> None:
    data = CONTENT.data[: 2 * MIB]
    (tmp_path / "file").write_bytes(data)
    expected = data[50 : MIB + 50] + b"between" + data[-1000:]
    with (tmp_path / "file").open("rb") as file:
        async with (
            serving_stack(make_stack, around=sending(file)) as server,
            httpx2.AsyncClient(base_url=server.url) as client,
        ):
            in_chunks = await client.get("/")
            assert (in_chunks.headers["transfer-encoding"], in_chunks.content) == ("chunked", expected)
            at_once = await client.get(f"/{len(expected)}")
            assert (at_once.headers["content-length"], at_once.content) == (str(len(expected)), expected)
            assert (await client.head(f"/{len(expected)}")).content == b""
            for length in (1000, len(expected) + 1):
                with pytest.raises(httpx2.RemoteProtocolError):
                    await client.get(f"/{length}")
