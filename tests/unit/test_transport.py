"""Bytes of a body that comes fast wake nobody up before there are many of them; those of a slow one are seen soon."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tests.support.waiting import PATIENCE_SECONDS
from uploader.http.server import connections
from uploader.http.server.connections import ReadBatching

MARK = connections._MARK_BYTES
BODY = 8 * MARK


class Reader(asyncio.BufferedProtocol):
    """Notes what is read at once."""

    def __init__(self) -> None:
        self.memory = bytearray(2 * MARK)
        self.reads: list[int] = []
        self.mark: ReadBatching | None = None
        self.left = 0
        self.lost = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def expect(self, left: int) -> None:
        self.left = left
        self.mark = ReadBatching(self.transport, asyncio.get_running_loop(), left)

    def get_buffer(self, _size_hint: int) -> bytearray:
        return self.memory

    def buffer_updated(self, count: int) -> None:
        self.reads.append(count)
        if self.mark is not None:
            self.left -= count
            self.mark.received(count, self.left)

    def connection_lost(self, _error: Exception | None) -> None:
        if self.mark is not None:
            self.mark.end()
        self.lost.set()

    @property
    def low_water(self) -> int:
        found: int = self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        return found


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Reader, socket.socket]]:
    """The server's end of a connection, and the client's."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Reader] = loop.create_future()

    class Noted(Reader):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            made.set_result(self)

    server = await loop.create_server(Noted, "127.0.0.1", 0)
    client = socket.create_connection(server.sockets[0].getsockname())
    client.setblocking(False)
    try:
        reader = await made
        yield reader, client
        reader.transport.close()
        await reader.lost.wait()
    finally:
        client.close()
        server.close()
        await server.wait_closed()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await asyncio.sleep(0.005)


def has_read(reader: Reader, count: int) -> bool:
    return sum(reader.reads) == count


async def send(client: socket.socket, content: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(client, content)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_PATIENCE_SECONDS", 3600)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_PATIENCE_SECONDS", 0.02)


async def test_a_body_is_read_once_there_is_much_of_it_and_at_its_end_and_what_follows_at_once(patient: None) -> None:
    async with connected() as (reader, client):
        reader.expect(2 * MARK)
        await send(client, bytes(MARK - 1))
        await asyncio.sleep(0.05)
        assert not reader.reads
        await send(client, bytes(1001))
        await until(lambda: has_read(reader, MARK + 1000))
        assert reader.low_water == reader.left == MARK - 1000
        await send(client, bytes(MARK - 1000))
        await until(lambda: reader.left == 0)
        assert reader.low_water == 1
        assert reader.mark is not None
        reader.mark.end()
        reader.reads.clear()
        await send(client, b"GET")
        await until(lambda: reader.reads == [3])


async def test_the_bytes_of_a_slow_client_are_seen_soon(impatient: None) -> None:
    async with connected() as (reader, client):
        reader.expect(BODY)
        assert reader.low_water == MARK
        await send(client, b"x")
        await until(lambda: reader.reads == [1])
        assert reader.low_water == 1


async def test_one_that_becomes_fast_is_read_in_large_pieces(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (reader, client):
        reader.expect(BODY)
        await until(lambda: reader.low_water == 1)
        reader.transport.pause_reading()
        monkeypatch.setattr(connections, "_PATIENCE_SECONDS", 3600)
        await send(client, bytes(connections._FAST_BYTES))
        reader.transport.resume_reading()
        await until(lambda: reader.low_water == MARK)


async def test_a_body_that_goes_on_keeps_its_mark(patient: None) -> None:
    async with connected() as (reader, client):
        reader.expect(BODY)
        assert reader.mark is not None
        for number in range(1, 8):
            await send(client, bytes(MARK))
            await until(partial(has_read, reader, number * MARK))
            reader.mark._check()  # as after a while
            assert reader.low_water == MARK
        assert len(reader.reads) <= 7
        reader.mark._check()
        assert reader.low_water == 1


async def test_short_bodies_are_read_as_they_come() -> None:
    async with connected() as (reader, client):
        reader.expect(MARK - 1)
        assert reader.low_water == 1
        await send(client, b"x")
        await until(lambda: reader.reads == [1])


async def test_a_connection_that_is_lost_is_let_be(impatient: None) -> None:
    async with connected() as (reader, _client):
        reader.expect(BODY)
        reader.transport.abort()
        await reader.lost.wait()
        await asyncio.sleep(0.05)
        assert reader.mark is not None
        assert reader.mark._timer is None


async def test_a_client_that_goes_away_is_noticed_at_once(patient: None) -> None:
    async with connected() as (reader, client):
        reader.expect(BODY)
        await send(client, b"x")
        client.close()
        await asyncio.wait_for(reader.lost.wait(), PATIENCE_SECONDS)
