"""What may come back of a POST, from a real socket, on the event loop of the server and on that of a worker."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import self_signed
from tests.support.consumer import consuming
from tests.support.sockets import on_both_loops
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.sinks import webhook
from uploader.sinks.webhook import Answer, NoAnswer, Poster

pytestmark = on_both_loops


GOOD = b"HTTP/1.1 204 No\r\n\r\n"
BAD = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"


class Scripted:
    """A server that answers each request with the next of its answers; None: it closes the connection instead."""

    def __init__(self, *answers: bytes | None, closes: bool = False) -> None:
        self._answers = iter(answers)
        self._closes = closes
        self.connections = 0
        self.requests: list[bytes] = []
        self.serving: list[Any] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.serving.append(asyncio.current_task())
        self.writers.append(writer)
        with suppress(ConnectionError):
            while head := await reader.read(1 << 16):
                self.requests.append(head)
                answer = next(self._answers)
                if answer is None:
                    break
                writer.write(answer)
                if self._closes:
                    break
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def posting(server: Scripted) -> AsyncIterator[Poster]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    poster = Poster(f"http://127.0.0.1:{port}/a/b?c=d", timeout_seconds=PATIENCE_SECONDS)
    yield poster
    poster.close()
    listener.close()
    await asyncio.gather(*server.serving)


@pytest.mark.parametrize(
    ("raw", "answer"),
    [
        (b"HTTP/1.1 204 No\r\n\r\n", Answer(204, b"")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nyo", Answer(200, b"yo")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nyo\r\n0\r\n\r\n", Answer(200, b"yo")),
        (b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 500 No\r\nContent-Length: 1\r\n\r\nx", Answer(500, b"x")),
    ],
)
async def test_an_answer_and_another_one_over_the_same_connection(raw: bytes, answer: Answer) -> None:
    server = Scripted(raw, raw)
    async with posting(server) as poster:
        for body in (b"one", b"more"):
            assert await poster.send({"content-type": "x/y"}, body) == answer
    assert server.connections == 1
    head, _, body = server.requests[1].partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[0], body) == (b"POST /a/b?c=d HTTP/1.1", b"more")
    assert b"content-length: 4" in head
    assert b"content-type: x/y" in head


async def test_an_answer_may_end_with_its_connection_which_is_not_used_again() -> None:
    server = Scripted(b"HTTP/1.0 200 OK\r\n\r\nall", b"HTTP/1.0 200 OK\r\n\r\nof it", closes=True)
    async with posting(server) as poster:
        assert await poster.send({}, b"") == Answer(200, b"all")
        assert await poster.send({}, b"") == Answer(200, b"of it")
    assert server.connections == 2
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * (1 << 17)
    async with posting(Scripted(raw)) as poster:
        assert await poster.send({}, b"") == Answer(200, b"x" * (64 << 10)), "of a long one the beginning is read"


@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ],
)
async def test_what_is_no_answer(raw: bytes | None) -> None:
    async with posting(Scripted(raw)) as poster:
        # And there is none where no name server could know.
        for each in (poster, Poster(f"http://{'a' * 64}.test/", timeout_seconds=PATIENCE_SECONDS)):
            with pytest.raises(NoAnswer):
                await each.send({}, b"")


@pytest.mark.parametrize("trusted", [True, False])
async def test_only_who_is_trusted_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool) -> None:
    certificate, key = self_signed(tmp_path, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with consuming(context) as consumer:
        poster = Poster(consumer.url, timeout_seconds=PATIENCE_SECONDS)
        if trusted:
            for _ in range(2):
                assert (await poster.send({}, b"{}")).status == 204
        else:
            with pytest.raises(NoAnswer, match="CERTIFICATE_VERIFY_FAILED"):
                await poster.send({}, b"{}")
        poster.close()
    assert len(consumer.requests) == (2 if trusted else 0)


async def has_ended(server: Scripted, connections: int) -> bool:
    return [task.done() for task in server.serving].count(True) == connections


async def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Scripted(GOOD, GOOD, GOOD)
    async with posting(server) as poster:
        await poster.send({}, b"")
        await poster.send({}, b"")
        assert server.connections == 1
        monkeypatch.setattr(webhook, "_MAX_IDLE_SECONDS", -1.0)
        await poster.send({}, b"")
        await eventually(lambda: has_ended(server, 1))
    assert server.connections == 2


async def test_when_one_answer_does_not_come_the_idle_connections_are_not_used_again() -> None:
    server = Scripted(GOOD, GOOD, b"", GOOD)
    async with posting(server) as poster:
        await asyncio.gather(poster.send({}, b""), poster.send({}, b""))
        assert server.connections == 2
        poster._timeout_seconds = 0.1  # for what does not come; a busy machine has time for what does
        with pytest.raises(NoAnswer, match=r"no answer within 0\.1 s"):
            await poster.send({}, b"")
        poster._timeout_seconds = PATIENCE_SECONDS
        await eventually(lambda: has_ended(server, 2))
        assert (await poster.send({}, b"")).status == 204
    assert server.connections == 3


@pytest.mark.parametrize("surplus", [None, GOOD, b"HTTP/1.1 408 Late\r\n", b"x"])
async def test_a_kept_connection_that_was_closed_or_over_which_more_came_is_replaced(surplus: bytes | None) -> None:
    server = Scripted(GOOD, None, BAD) if surplus is None else Scripted(GOOD + surplus, BAD)
    async with posting(server) as poster:
        assert (await poster.send({}, b"")).status == 204
        assert (await poster.send({}, b"")).status == 500
    assert server.connections == 2


async def test_what_comes_unasked_over_an_idle_connection_is_no_answer_to_the_next_question() -> None:
    server = Scripted(GOOD, BAD)
    async with posting(server) as poster:
        assert (await poster.send({}, b"")).status == 204
        (wire,) = poster._idle
        server.writers[0].write(GOOD)
        while wire.is_open:
            await asyncio.sleep(0.01)
        assert (await poster.send({}, b"")).status == 500
    assert server.connections == 2


async def test_who_is_cancelled_as_the_answer_comes_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Scripted(GOOD)
    async with posting(server) as poster:
        succeed = webhook._Wire._succeed
        sending = asyncio.ensure_future(poster.send({}, b""))

        def cancelled_then(wire: Any) -> None:
            succeed(wire)
            sending.cancel()

        monkeypatch.setattr(webhook._Wire, "_succeed", cancelled_then)
        with pytest.raises(asyncio.CancelledError):
            await sending
        await eventually(lambda: has_ended(server, 1))
