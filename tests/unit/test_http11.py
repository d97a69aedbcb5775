"""Bodies past the parser: the same requests, torn at every byte, get the same answers as from uvicorn as it is. And how long
a head may take, where one timer serves all heads of a connection."""

import asyncio
import gc
import hashlib
import json
import sys
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.http.bodies.intake import DIRECT_BODY, source_of
from uploader.http.server.connections import CONNECTIONS_STATE, ConnectionLimits, Connections
from uploader.http.server.http11 import HttpConnection
from uploader.http.shared.exchange import UNREADY_STATE
from uploader.http.shared.mount import Mount
from uploader.http.shared.proxies import Proxies

LIMITS = ConnectionLimits(
    max_connections=10,
    max_connections_per_address=10,
    reserved_connections=1,
    header_timeout_seconds=60,
    idle_timeout_seconds=60,
)
TURNS = 12


class Wire:
    """A connection in memory: what is fed to one end is read by the protocol, as far as it reads."""

    def __init__(self, make_protocol: Callable[..., Any], app: ASGIApp, peer: str | None = None) -> None:
        """`peer`: the address of the client; None: it is not known, as behind a proxy by a socket of Unix."""
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        self.state, self.peer = ServerState(), peer
        self.app_state: dict[str, Any] = {CONNECTIONS_STATE: Connections(LIMITS, Proxies(None), Mount())}
        self.protocol = make_protocol(config=config, server_state=self.state, app_state=self.app_state)
        self.answers = b""
        self.reading = True
        self.closing = False
        self.ended = False
        self.protocol.connection_made(self)

    # The protocol's end

    def write(self, content: bytes) -> None:
        assert not (self.closing or self.ended)
        self.answers += content

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return (self.peer, 0) if self.peer is not None and name == "peername" else None

    def stop(self) -> None:
        """As the server does at a stop, to each connection that there is."""
        self.app_state[UNREADY_STATE] = "the process stops"
        for connection in list(self.state.connections):
            connection.shutdown()

    # The client's end

    async def feed(self, content: bytes) -> None:
        """Send this, and let the server go on."""
        await self._feed(content)
        await self.turns()

    async def _feed(self, content: bytes) -> None:
        while content and not self.closing:
            for _ in range(TURNS):
                if self.reading:
                    break
                await asyncio.sleep(0)
            else:
                return  # nobody wants more
            if not isinstance(self.protocol, asyncio.BufferedProtocol):
                self.protocol.data_received(content)
                return
            buffer: Any = self.protocol.get_buffer(-1)
            count = min(len(buffer), len(content))
            assert count > 0
            buffer[:count] = content[:count]
            self.protocol.buffer_updated(count)
            content = content[count:]

    async def turns(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def end(self) -> bytes:
        """All answers, once the client has sent all it wants."""
        if not self.closing:
            self.protocol.eof_received()
        await self.turns()
        self.close()
        while self.state.tasks:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self.answers


class Pieces:
    """A sink with little room at a time."""

    def __init__(self, room_bytes: int, most_bytes: int) -> None:
        self._memory = memoryview(bytearray(room_bytes))
        self._most = most_bytes
        self._filled = 0
        self.content = b""

    def refill(self) -> None:
        self.content += self._memory[: self._filled]
        self._filled = 0

    def room(self) -> memoryview:
        return self._memory[self._filled : self._most - len(self.content)]

    def advance(self, count: int) -> None:
        self._filled += count


class Echo:
    """Answers what it got. `/ignored` reads nothing, `/stopped` stops after some bytes and lets go of the connection, and
    `/whole` takes a body that is there as it is."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            content = b"" if scope["path"] == "/ignored" else await self._read(request)
        except ClientDisconnect:
            self.seen.append((scope["path"], "gone"))
            return
        self.seen.append((scope["path"], hashlib.sha256(content).hexdigest()))
        headers = {"Connection": "close"} if scope["path"] == "/stopped" else {}
        answer = json.dumps({"method": scope["method"], "path": scope["path"], "content": content.decode()})
        await Response(answer, 200, headers, "application/json")(scope, receive, send)

    async def _read(self, request: Request) -> bytes:
        source = source_of(request)
        if request.url.path == "/whole" and source.is_whole:
            return source.take()
        most = 10 if request.url.path == "/stopped" else 1 << 20
        sink = Pieces(int(request.query_params.get("room", "1000")), most)
        while not source.ended and len(sink.content) < most:
            await source.pour(sink, in_time())
            sink.refill()
        return sink.content


def in_time(seconds: float = PATIENCE_SECONDS) -> float:
    return asyncio.get_running_loop().time() + seconds


def body_of(scope: Scope) -> Any:
    """What is offered of the body past the messages."""
    return scope["extensions"][DIRECT_BODY]["body"]


@asynccontextmanager
async def wired(app: ASGIApp, content: bytes = b"", peer: str | None = None) -> AsyncIterator[Wire]:
    """A connection to an application, on which this has come."""
    wire = Wire(HttpConnection, app, peer)
    await wire.feed(content)
    yield wire
    await wire.end()


def put(path: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    lines = [f"PUT {path} HTTP/{version}", "Host: test", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


BODY = b"0123456789abcdefghijklmnopqrstuvwxyz" * 4
GET = b"GET /after HTTP/1.1\r\nHost: test\r\n\r\n"
CHUNKED = b"PUT /chunked?room=3 HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED += b"5\r\nabcde\r\n1\r\nf\r\n0\r\nA: b\r\n\r\n"
STREAMS = {
    "one after the other": put("/first", BODY) + GET,
    "little room": put("/first?room=7", BODY) + put("/second?room=1", b"xy"),
    "nothing in it": put("/first", b"") + put("/second", b"z") + put("/third", BODY),
    "asks first": put("/first", BODY, "Expect: 100-continue") + GET,
    "of unknown length": CHUNKED + put("/second", BODY) + GET,
    "the last one": put("/first", BODY, "Connection: close") + GET,
    "taken whole": put("/whole", BODY) + put("/whole?room=3", b"xy", "Expect: 100-continue") + GET,
    "older": put("/first", BODY, version="1.0"),
    "nobody reads": put("/ignored", BODY) + put("/second", BODY) + GET,
    "nobody reads to the end": put("/stopped?room=3", BODY) + GET,
    "gone in the middle": put("/first?room=50", BODY)[:-30],
    "white space": put("/first", b"\r\n\r\n" + GET, "X-A:   ") + b"\r\n" + GET,
}


async def answers_of(make_protocol: Callable[..., Any], pieces: list[bytes]) -> tuple[bytes, list[tuple[str, str]]]:
    echo = Echo()
    wire = Wire(make_protocol, echo)
    for piece in pieces:
        await wire.feed(piece)
    return await wire.end(), echo.seen


@pytest.mark.parametrize("name", STREAMS)
async def test_requests_torn_at_every_byte_are_answered_as_uvicorn_answers_them(name: str) -> None:
    stream = STREAMS[name]
    wanted = await answers_of(HttpToolsProtocol, [stream])
    assert wanted[1], "the application was asked"
    for at in range(1, len(stream)):
        assert await answers_of(HttpConnection, [stream[:at], stream[at:]]) == wanted, f"torn at {at}"
    assert await answers_of(HttpConnection, [stream[at : at + 1] for at in range(len(stream))]) == wanted


@settings(max_examples=60)
@given(
    names=st.lists(st.sampled_from(sorted(set(STREAMS) - {"gone in the middle"})), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 1500), max_size=12),
)
def test_any_requests_torn_anywhere_are_answered_as_uvicorn_answers_them(names: list[str], cuts: list[int]) -> None:
    stream = b"".join(STREAMS[name] for name in names)
    places = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
    pieces = [stream[start:end] for start, end in pairwise(places)]

    async def both() -> None:
        assert await answers_of(HttpConnection, pieces) == await answers_of(HttpToolsProtocol, pieces)

    asyncio.run(both())


async def test_a_body_that_came_with_its_head_is_taken_as_it_is() -> None:
    outcome: list[Any] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        body = body_of(scope)
        outcome.append(body.is_whole)
        if body.is_whole:
            outcome.extend([body.take(), body.is_whole, body.ended])

    for stream in (put("/first", BODY), put("/first", BODY)[:-1]):
        async with wired(app, stream):
            pass
    assert outcome == [True, BODY, False, True, False]


async def test_what_comes_after_a_body_stays_in_the_socket_while_the_body_is_poured() -> None:
    async def app(scope: Scope, receive: Receive, _send: Send) -> None:
        await body_of(scope).pour(Pieces(1000, 1000), in_time())
        await receive()

    async with wired(app, put("/first", BODY)[:-20]) as wire:
        assert len(wire.protocol.get_buffer(-1)) == 20


async def test_a_body_that_is_not_asked_for_is_not_read_on() -> None:
    """Beyond what is parsed with the head, which uvicorn bounds."""
    go_on = asyncio.Event()
    got = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        for _ in range(3):
            sink = Pieces(10, 10)
            await body_of(scope).pour(sink, in_time())
            sink.refill()
            got.append(sink.content)
            await go_on.wait()

    head, body = put("/first", BODY).split(b"\r\n\r\n", 1)
    async with wired(app, head + b"\r\n\r\n") as wire:
        await wire.feed(body[:10])
        assert [wire.reading] == [False]
        go_on.set()
        await wire.turns()
        assert [wire.reading] == [True]
        await wire.feed(body[10:20])
        assert got == [body[:10], body[10:20]]


async def test_a_pour_ends_in_time_with_what_has_come() -> None:
    poured = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        for _ in range(2):
            sink = Pieces(1000, 1000)
            await body_of(scope).pour(sink, in_time(0.01))
            sink.refill()
            poured.append(sink.content)

    async with wired(app, put("/first", BODY)[:-50]) as wire:
        await eventually(lambda: holds(not wire.state.tasks))
        assert poured == [BODY[:-50], b""]


async def test_a_client_that_sends_as_fast_as_it_is_read_gives_all_others_their_turn() -> None:
    length = 3 << 20
    sink = Pieces(length, length)

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        await body_of(scope).pour(sink, in_time())

    def push(count: int) -> int:
        """What is read of so many bytes before the event loop goes on."""
        pushed = 0
        while wire.reading and pushed < count:
            room = wire.protocol.get_buffer(-1)[: min(64 << 10, count - pushed)]
            wire.protocol.buffer_updated(len(room))
            pushed += len(room)
        return pushed

    async with wired(app, put("/first", bytes(length)).partition(b"\r\n\r\n")[0] + b"\r\n\r\n") as wire:
        pushed = 0
        for _ in range(10):
            once = push(length - pushed)
            assert once < length
            pushed += once
            await wire.turns()
        sink.refill()
        assert (pushed, len(sink.content)) == (length, length)


async def test_a_cancelled_pour_leaves_nothing_that_writes_into_its_memory() -> None:
    sink = Pieces(1000, 1000)
    tasks: list[Any] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        tasks.append(asyncio.current_task())
        await body_of(scope).pour(sink, in_time())

    async with wired(app, put("/first", BODY)[:-50]) as wire:
        tasks[0].cancel()
        await wire.turns()
        sink.refill()
        await wire.feed(b"x" * 20)
        sink.refill()
        assert sink.content == BODY[:-50]


async def test_who_takes_a_part_of_a_body_as_messages_does_not_wait_for_it_for_ever() -> None:
    outcome: list[str] = []

    async def app(scope: Scope, receive: Receive, _send: Send) -> None:
        await receive()
        try:
            await body_of(scope).pour(Pieces(1000, 1000), in_time())
        except ClientDisconnect:
            outcome.append("gone")

    async with wired(app, put("/first", BODY)):
        assert outcome == ["gone"]


async def test_the_memory_of_a_request_does_not_wait_for_the_garbage_collector() -> None:
    bodies: list[weakref.ref[Any]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        bodies.extend(weakref.ref(offer["body"]) for offer in scope.get("extensions", {}).values())
        await Echo()(scope, receive, send)

    gc.disable()
    try:
        async with wired(app, put("/first", BODY)) as wire:
            assert [body() is None for body in bodies] == [False]
            await wire.feed(GET)
            assert [body() is None for body in bodies] == [True]
    finally:
        gc.enable()


async def test_a_request_with_others_behind_it_learns_that_its_client_is_gone() -> None:
    outcome: list[str] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        for _ in range(2):
            outcome.append((await receive())["type"])

    async with wired(app, GET + GET) as wire:
        wire.close()
        await wire.turns()
        assert outcome == ["http.request", "http.disconnect"]
        assert not wire.state.tasks


@pytest.mark.parametrize("broken_off", [put("/second", BODY)[:-30], CHUNKED[:-20]], ids=["told", "chunked"])
@pytest.mark.parametrize("before", [0, 1, 2])
async def test_who_breaks_off_in_a_body_gets_what_was_asked_for_before(broken_off: bytes, before: int) -> None:
    go_on, echo = asyncio.Event(), Echo()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/after":
            await go_on.wait()
        await echo(scope, receive, send)

    async with wired(app, GET * before + broken_off) as wire:
        assert wire.protocol.eof_received() is (before > 0)
        await wire.turns()
        assert wire.closing is (before == 0)
        go_on.set()
        await wire.turns()
        assert (wire.closing, wire.answers.count(b"HTTP/1.1 200")) == (True, before)
        assert [path for path, outcome in echo.seen if outcome != "gone"] == ["/after"] * before


async def test_a_request_that_was_refused_in_its_body_says_no_more() -> None:
    """It is asked for the body and refused in one read, before its application has begun."""
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, fault: faults.append(fault))
    echo = Echo()
    head = CHUNKED.partition(b"\r\n\r\n")[0]
    async with wired(echo, head + b"\r\nExpect: 100-continue\r\n\r\nno length\r\n") as wire:
        assert (wire.answers[:12], echo.seen, faults) == (b"HTTP/1.1 400", [("/chunked", "gone")], [])


async def test_what_an_application_sends_without_a_pause_does_not_pile_up() -> None:
    waiting: list[int] = []

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        for _ in range(40):
            await send({"type": "http.response.body", "body": bytes(10_000), "more_body": True})
            waiting.append(wire.protocol._http.transport.get_write_buffer_size())
        await send({"type": "http.response.body"})

    async with wired(app) as wire:
        await wire.feed(GET)
        assert max(waiting) < 100_000
        assert wire.answers.count(bytes(10_000)) == 40


@pytest.fixture(name="wire")
async def quick_wire(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Wire]:
    monkeypatch.setattr(sys.modules[__name__], "LIMITS", replace(LIMITS, header_timeout_seconds=0.05))
    async with wired(Echo()) as made:
        yield made


async def holds(fact: bool) -> bool:
    return fact


async def rang(wire: Wire) -> None:
    """The timer that was set for an earlier head has run out."""
    timer: Any = wire.protocol._http._head_timer
    await eventually(lambda: holds(timer is None or wire.protocol._http._head_timer is not timer))


async def test_between_two_requests_no_head_is_late_and_then_one_may_be(wire: Wire) -> None:
    await wire.feed(GET)
    await rang(wire)
    assert not wire.closing
    await wire.feed(GET[:-1])
    await eventually(lambda: holds(wire.closing))


async def test_a_head_has_its_own_time_whatever_those_before_it_took(wire: Wire) -> None:
    await wire.feed(GET)
    await wire.feed(GET[:-1])
    wire.protocol._http._head_late_at += 60
    await rang(wire)
    assert not wire.closing


async def test_a_head_that_never_ends_costs_no_answer_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LIMITS", replace(LIMITS, header_timeout_seconds=0.05))
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        await Echo()(scope, receive, send)

    async with wired(app, GET + GET[:-1]) as wire:
        assert wire.protocol.eof_received() is True
        await rang(wire)
        assert not wire.closing
        go_on.set()
        await eventually(lambda: holds(wire.closing))
        assert wire.answers.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    ("came", "rest", "is_told"),
    [
        (b"", GET, False),
        (GET, GET, False),
        (GET + GET[:7], GET[7:], False),
        (GET.replace(b"after", b"begun"), GET, False),
        (GET.replace(b"after", b"waits"), b"", True),
    ],
    ids=["new", "kept", "in a head", "in an answer", "before an answer"],
)
async def test_connection_of_a_proxy_takes_requests_at_a_stop_until_an_answer_says_that_it_closes(
    came: bytes, rest: bytes, is_told: bool
) -> None:
    goes_on = asyncio.Event()

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/waits":
            await goes_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"o", "more_body": True})
        if scope["path"] == "/begun":
            await goes_on.wait()
        await send({"type": "http.response.body", "body": b"k"})

    async with wired(app, came) as wire:
        wire.stop()
        goes_on.set()
        await wire.turns()
        assert [wire.closing] == [is_told]
        await wire.feed(rest)
        assert [wire.closing] == [True]
        *earlier, last = wire.answers.split(b"HTTP/1.1 200")[1:]
        assert b"connection: close" in last and last.endswith(b"ok")
        assert not any(b"connection: close" in answer for answer in earlier)


async def test_connection_of_no_proxy_that_waits_for_a_request_is_closed_at_a_stop() -> None:
    for came in (b"", GET):
        async with wired(Echo(), came, "192.0.2.1") as wire:
            wire.stop()
            assert [wire.closing] == [True]
