"""The HTTP/1.1 protocol given to uvicorn: uvicorn's own parser over buffered reads and batched writes. Adds limits that
uvicorn lacks: on connections, on time and size of a request's head, and on answers that the client does not take. Also adds
what ASGI lacks: bodies read without the parser, interim responses, and files sent from the page cache.

The border to uvicorn: no other module touches uvicorn's private parts (`tests/unit/test_private_parts.py` lists them).
"""

import asyncio
import weakref
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import httptools
from starlette.requests import ClientDisconnect
from starlette.types import Message
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from uploader.errors import BadRequest, HeadersTooLarge, TargetTooLong, UploaderError
from uploader.http.bodies.intake import DIRECT_BODY, TRAILERS, Sink
from uploader.http.server import connections
from uploader.http.shared.exchange import PROBES, UNREADY_STATE, refusal
from uploader.http.shared.mount import inside
from uploader.http.shared.responses import INTERIM, ZERO_COPY_SEND

Headers = list[tuple[bytes, bytes]]

# Only these may be answered with a file. For other methods the extension would only cost two layers per request.
_SENDING_METHODS = frozenset({"GET", "HEAD"})
# Only these get interim responses. PUT, which sends chunks, is left alone.
_INTERIM_METHODS = frozenset({"POST", "PATCH"})
_PHRASES = {104: "Upload Resumption Supported"}

# Bytes to read from one body before other connections get a turn.
_TURN_BYTES = 1 << 20
_NO_ROOM = memoryview(b"")
# Bytes per read outside of bodies: enough for a head with a chunk of 64 KiB, and below the size from which glibc takes new
# pages from the kernel each time.
_SCRATCH_BYTES = 96 << 10

MAX_TARGET_BYTES = 8 << 10
MAX_HEAD_BYTES = 32 << 10
MAX_HEADERS = 100
_TOO_LARGE = f"The headers of the request are larger than {MAX_HEAD_BYTES:,} bytes, or more than {MAX_HEADERS}."
# Overhead that a chunked body may have: this much, plus `_CHUNK_FRAMING_BYTES` per chunk, plus one byte for
# `_BODY_PER_FRAMING` bytes of the body.
MAX_FRAMING_BYTES = 64 << 10
_CHUNK_FRAMING_BYTES, _BODY_PER_FRAMING = 16, 8
# Requests that a client may send ahead of their answers; each costs memory.
MAX_PIPELINED = 16
# Seconds that a connection beyond the limits has for its request, and then again for its client to read the answer.
_LINGER_SECONDS = 2.0


def fault_of(headers: Headers, http_version: str) -> str | None:
    """Return the fault of a request's head, or None (RFC 9112, sections 3.2 and 6.1)."""
    if http_version not in ("1.0", "1.1"):
        return "Only HTTP/1.1 and HTTP/1.0 are spoken here."
    names = [name for name, _ in headers]
    hosts = names.count(b"host")
    if hosts > 1 or (hosts == 0 and http_version == "1.1"):
        return "A request has one Host header."
    if b"transfer-encoding" not in names:
        return None
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if http_version == "1.0" or codings != [b"chunked"]:
        return "The only Transfer-Encoding is chunked."
    return None


def has_body(headers: Headers) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" 0")) for name, value in headers
    )


class InterimResponses:
    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle: RequestResponseCycle = weakref.proxy(cycle)

    @property
    def has_room(self) -> bool:
        """Return False while earlier bytes are unsent: a client that does not read must not fill memory."""
        return not self._cycle.transport.get_write_buffer_size()

    def send(self, status: int, headers: dict[str, str]) -> None:
        """Write an interim response, unless the answer has begun or the client is gone."""
        cycle = self._cycle
        if cycle.response_started or cycle.disconnected or cycle.transport.is_closing():
            return
        lines = [f"HTTP/1.1 {status} {_PHRASES.get(status) or HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        cycle.transport.write("\r\n".join([*lines, "", ""]).encode("latin-1"))


def offer_interim(cycle: RequestResponseCycle) -> None:
    """Offer interim responses to the application for this request. HTTP/1.0 clients would take an interim response for the
    answer."""
    scope = cycle.scope
    if scope["method"] in _INTERIM_METHODS and scope["http_version"] == "1.1":
        scope.setdefault("extensions", {})[INTERIM] = {"responses": InterimResponses(cycle)}


class DirectBody:
    def __init__(self, carrier: "LimitedProtocol", cycle: RequestResponseCycle, length_bytes: int) -> None:
        # Weak, because both refer to this object: a cycle would keep each request's memory until garbage collection.
        self._carrier: LimitedProtocol = weakref.proxy(carrier)
        self._cycle: RequestResponseCycle = weakref.proxy(cycle)
        self._length = length_bytes
        self._poured = 0
        self._read_in_turn = 0
        self._sink: Sink | None = None
        self._filled = 0  # bytes in the sink's memory that the sink does not know of yet
        self._paused: asyncio.Future[None] | None = None
        self._batching: connections.ReadBatching | None = None
        # The memory for the next bytes; empty while nobody reads the body.
        self.room = _NO_ROOM
        # Bytes still to be read from the socket; counts from the moment when the parser no longer gets the body.
        self.on_wire = 0
        # The time of the last byte (loop clock, seconds).
        self.progressed_at = carrier.loop.time()

    @property
    def started(self) -> bool:
        """Return True if bytes were poured; then the rest must also be read here."""
        return self._poured > 0 or self._carrier.direct is self

    @property
    def is_waited_for(self) -> bool:
        return self._paused is not None and not self._paused.done()

    @property
    def ended(self) -> bool:
        return self._poured == self._length

    @property
    def waiting_bytes(self) -> int:
        """Return the number of bytes that came with the head and were not poured."""
        return len(self._cycle.body)

    @property
    def is_whole(self) -> bool:
        return self.waiting_bytes == self._length

    def take(self) -> bytes:
        """Return the waiting bytes; without a copy if they are the complete body in one piece."""
        self._invite()
        taken, self._cycle.body = bytes(self._cycle.body), bytearray()
        self._poured += len(taken)
        return taken

    async def pour(self, sink: Sink, until: float) -> None:
        """Pour as `BodySource.pour` does. Also raises ClientDisconnect if somebody else read the rest of the body."""
        self._invite()
        self._sink, self.room = sink, sink.room()
        try:
            self._pour_parsed()
            if self.room and not self.ended:
                await self._pour_from_wire(until)
        finally:
            self._tell_sink()
            self._sink, self.room = None, _NO_ROOM

    def _invite(self) -> None:
        cycle = self._cycle
        if cycle.waiting_for_100_continue and not self._carrier.transport.is_closing():
            cycle.waiting_for_100_continue = False
            self._carrier.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _pour_parsed(self) -> None:
        parsed, start = self._cycle.body, 0
        if not parsed:
            return
        with memoryview(parsed) as view:
            while self.room and start < len(view):
                count = min(len(view) - start, len(self.room))
                self.room[:count] = view[start : start + count]
                start += count
                self._give(count)
        # Deleting from the front of a bytearray would not free its memory.
        self._cycle.body = parsed[start:]

    async def _pour_from_wire(self, until: float) -> None:
        if self._cycle.disconnected or not self._cycle.more_body:
            raise ClientDisconnect()
        if self._carrier.direct is None:
            self.on_wire = self._length - self._carrier.parsed_body_bytes
            self._carrier.direct = self
            self._batching = connections.ReadBatching(self._carrier.transport, self._carrier.loop, self.on_wire)
        self._paused = self._carrier.loop.create_future()
        timer = self._carrier.loop.call_at(until, self._wake)
        self._carrier.flow.resume_reading()
        try:
            await self._paused
        finally:
            timer.cancel()
            self._paused = None
            if self.on_wire:
                self._carrier.flow.pause_reading()
        if self._cycle.disconnected:
            raise ClientDisconnect()

    def _give(self, count: int) -> None:
        self._poured += count
        self._filled += count
        self.room = self.room[count:]
        if not self.room:
            self._tell_sink()
            assert self._sink is not None
            self.room = self._sink.room()

    def _tell_sink(self) -> None:
        if self._filled:
            assert self._sink is not None
            filled, self._filled = self._filled, 0
            self._sink.advance(filled)

    def _wake(self) -> None:
        if self._paused is not None and not self._paused.done():
            self._paused.set_result(None)

    # Called by the connection

    def received(self, count: int) -> None:
        """Note bytes that were read into `room`, or dropped if there was no room."""
        assert self._batching is not None
        self.progressed_at = self._carrier.loop.time()
        self.on_wire -= count
        if self._batching.mark_bytes == 1 or self.on_wire < self._batching.mark_bytes:
            self._batching.received(count, self.on_wire)
        else:
            self._batching.progress = True
        if self.room:
            self._give(count)
        if not self.on_wire:
            self._batching.end()
            self._carrier.end_direct_body()
            self._wake()
        elif not self.room:
            self._carrier.flow.pause_reading()
            self._wake()
        else:
            self._take_turns(count)

    def _take_turns(self, count: int) -> None:
        """Pause after `_TURN_BYTES`: otherwise a fast sender would keep the loop from all other clients."""
        self._read_in_turn += count
        if self._read_in_turn >= _TURN_BYTES:
            self._read_in_turn = 0
            self._carrier.flow.pause_reading()
            self._carrier.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._paused is not None and not self._paused.done():
            self._carrier.flow.resume_reading()

    def lose(self) -> None:
        if self._batching is not None:
            self._batching.end()
        self._wake()


@dataclass(frozen=True, slots=True)
class _Sending:
    """Wraps uvicorn's `send` to support `http.response.zerocopysend` (asgi.readthedocs.io/en/latest/extensions.html)."""

    cycle: RequestResponseCycle
    send: ASGISendCallable
    senders: connections.Senders

    async def __call__(self, message: Any) -> None:
        cycle = self.cycle
        if message["type"] != ZERO_COPY_SEND or not cycle.response_started or cycle.response_complete:
            await self.send(message)
            return
        if cycle.scope["method"] != "HEAD":
            await self._send_file(message)
        if not message.get("more_body", False):
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_file(self, message: Message) -> None:
        cycle, (file, offset, count) = self.cycle, connections.extent_of(message)
        if not cycle.chunked_encoding:
            if count > cycle.expected_content_length:
                raise RuntimeError("Response content longer than Content-Length")
            cycle.expected_content_length -= count
        if not count:
            return
        if cycle.chunked_encoding:
            cycle.transport.write(b"%x\r\n" % count)
        await self.senders.send(cycle.transport, partial(_is_drained, cycle), file, offset, count)
        if cycle.chunked_encoding:
            cycle.transport.write(b"\r\n")


async def _is_drained(cycle: RequestResponseCycle) -> bool:
    transport = cycle.transport
    if not transport.is_closing() and transport.get_write_buffer_size():
        low, high = transport.get_write_buffer_limits()
        transport.set_write_buffer_limits(high=0)
        await cycle.flow.drain()
        if not transport.is_closing():
            transport.set_write_buffer_limits(high=high, low=low)
    return not (cycle.disconnected or transport.is_closing())


def with_sendfile(
    app: ASGI3Application, cycle: RequestResponseCycle, senders: connections.Senders | None
) -> ASGI3Application:
    if senders is None or cycle.transport.get_extra_info("sslcontext") is not None:
        return app
    cycle.scope.setdefault("extensions", {})[ZERO_COPY_SEND] = {}

    async def sending(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await app(scope, receive, _Sending(cycle, send, senders))

    return sending


class LimitedProtocol(HttpToolsProtocol):
    _head_timer: asyncio.TimerHandle | None = None
    _head_late_at: float | None = None  # loop clock, seconds; None between heads
    stall_watch: type[connections.StallWatch] = connections.StallWatch
    stalls: connections.StallWatch
    _linger_timer: asyncio.TimerHandle | None = None
    _excess: UploaderError | None = None  # for a connection beyond the limits: the answer to all but probes
    _refused = False  # true after the last answer: further bytes are ignored
    _has_ended = False  # the client sends nothing more
    _in_head = True  # from the end of a request to the end of the next request's headers
    _unparsed_bytes = 0
    _header_bytes = 0
    _header_count = 0
    _progress = False  # the current data had a part of a body, or ended a head
    _chunk_heads = 0  # in the current data
    _framing_bytes = 0  # surplus overhead of the current chunked body
    _content_length = 0  # of the last request
    parsed_body_bytes = 0  # bytes of the last request's body that went through the parser
    direct: DirectBody | None = None  # the body that is read without the parser
    _trailers: list[tuple[bytes, bytes]] | None = None  # trailers of the last request, if it announces any
    # The request that is being answered; uvicorn's `cycle` is the newest one.
    _answered: RequestResponseCycle | None = None

    @property
    def _connections(self) -> connections.Connections:
        found: connections.Connections = self.app_state[connections.CONNECTIONS_STATE]
        return found

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.stalls = self.stall_watch(transport, self.loop, self._connections.limits.idle_timeout_seconds)
        self._excess = self._connections.enter(self, self.client[0] if self.client else "")
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self)
        self.stalls.end()
        for timer in (self._head_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:
            _abandon(self._answered)
        if self.direct is not None:
            self.direct.lose()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer running requests, then close. The client sends nothing more, but may still read; TCP cannot tell that from
        a client that is gone before an answer is sent."""
        self._head_late_at = None
        self._has_ended = True
        last = None
        if not self._refused:
            last = self.cycle if self._in_head else self._break_off()
        if last is None or last.response_complete:
            self.transport.close()
            return False
        last.keep_alive = False
        last.message_event.set()  # wake handlers that have the whole body and wait for a disconnect
        return True

    def _break_off(self) -> RequestResponseCycle | None:
        """Abandon the last request, whose body is incomplete. Return the request before, if still unanswered."""
        _abandon(self.cycle)
        if self.direct is not None:
            self.direct.lose()
        if not self.pipeline:
            return None
        self.pipeline.popleft()
        return self.pipeline[0][0] if self.pipeline else self._answered

    def shutdown(self) -> None:
        """Close, but let a trusted proxy send one more request if no answer told it to close: the request may already be on
        its way, and a proxy can seldom send a body twice."""
        cycle: RequestResponseCycle | None = self.cycle
        if not self._connections.comes_by_proxy(self):
            super().shutdown()
        elif cycle is not None and not cycle.response_complete:
            if not cycle.response_started:
                cycle.keep_alive = False
        elif self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def data_received(self, data: bytes | memoryview) -> None:
        if self._refused:
            return
        self._progress, self._chunk_heads = False, 0
        body_of, parsed_before = None if self._in_head else self.cycle, self.parsed_body_bytes
        if self._in_head:
            self._start_head_timer()
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(BadRequest("This is not a valid HTTP/1.1 request."))
        except httptools.HttpParserUpgrade:
            self.cycle.keep_alive = False  # the parser stops here
        self._count_unparsed(len(data))
        if body_of is self.cycle and not self._in_head:
            self._count_framing(len(data), self.parsed_body_bytes - parsed_before)

    def _count_unparsed(self, length: int) -> None:
        """Limit the bytes that the parser buffers: it keeps a header, or a trailer, until the line is complete."""
        self._unparsed_bytes = 0 if self._progress else self._unparsed_bytes + length
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            self._refuse(HeadersTooLarge(_TOO_LARGE))

    def _count_framing(self, length: int, body_bytes: int) -> None:
        """Limit chunk extensions and other overhead of a chunked body. Even a sender of one byte per chunk needs only five
        more bytes for each."""
        needed = self._chunk_heads * _CHUNK_FRAMING_BYTES + body_bytes // _BODY_PER_FRAMING
        self._framing_bytes = max(0, self._framing_bytes + length - body_bytes - needed)
        if self._framing_bytes > MAX_FRAMING_BYTES:
            self._refuse(BadRequest("The chunked body has too much overhead."))

    # Called by the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = self._header_count = 0
        self._start_head_timer()

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > MAX_TARGET_BYTES:
            self._refuse_and_stop(TargetTooLong(f"The address is longer than {MAX_TARGET_BYTES:,} bytes."))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._header_bytes += len(name) + len(value)
        if self._header_count > MAX_HEADERS or self._header_bytes > MAX_HEAD_BYTES:
            self._refuse_and_stop(HeadersTooLarge(_TOO_LARGE))
        if self._in_head:
            super().on_header(name, value)
        elif self._trailers is not None:  # trailers are not headers of the request
            self._trailers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._head_late_at = None
        self._in_head, self._progress = False, True
        fault = fault_of(self.headers, self.parser.get_http_version())
        if fault is None and self.parser.should_upgrade() and has_body(self.headers):
            fault = "A request with a body can't be an offer to upgrade."  # the parser would not see the body
        if fault is not None:
            self._refuse_and_stop(BadRequest(fault))
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse_and_stop(BadRequest("Too many requests ahead of their answers."))
        if self._excess is not None:
            # Answer probes even beyond the limits, or a supervisor would take the server for dead.
            path = self.url.partition(b"?")[0].decode("latin-1")
            is_probe = inside(path, self._connections.mount.prefix) in PROBES or path in PROBES
            if not (is_probe and self._connections.probe(self)):
                self._refuse_and_stop(self._excess)
        self._connections.work(self)
        super().on_headers_complete()
        self.cycle.keep_alive &= self._excess is None and self.app_state.get(UNREADY_STATE) is None
        self._trailers = None
        if any(name == b"trailer" for name, _ in self.headers):
            self._trailers = []
            self.scope.setdefault("extensions", {})[TRAILERS] = {"fields": self._trailers}
        self.parsed_body_bytes = self._framing_bytes = 0
        length = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        self._content_length = length
        if length and self.scheme == "http":
            body = DirectBody(self, self.cycle, length)
            self.scope.setdefault("extensions", {})[DIRECT_BODY] = {"body": body}

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        if cycle.scope["method"] in _SENDING_METHODS:
            app = with_sendfile(app, cycle, self.app_state.get(connections.SENDERS_STATE))
        offer_interim(cycle)
        super()._start_asgi_task(cycle, app)

    def on_chunk_header(self) -> None:
        self._chunk_heads += 1

    def on_body(self, body: bytes) -> None:
        self._progress = True
        self.parsed_body_bytes += len(body)
        if len(body) == self._content_length <= HIGH_WATER_LIMIT and not self.cycle.response_complete:
            self.cycle.body = body  # type: ignore[assignment]  # all of it: nothing will be added, so it needs no copy
            self.cycle.message_event.set()
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._progress = True, True
        super().on_message_complete()

    # Bodies read without the parser

    def end_direct_body(self) -> None:
        """Finish a body that was read completely from the socket; the next request gets a new parser."""
        self.direct = None
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own parser
        self.on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._refused:
            self._unset_keepalive_if_required()
            return
        if self.cycle.response_complete:
            self._connections.wait(self)
        if self.direct is not None and not self.transport.is_closing():
            self.transport.close()  # the rest of the body must not be read as a request

    # Timeout of the head

    def _start_head_timer(self) -> None:
        """Keep one timer for all heads of a connection: most heads arrive at once, and a timer for each would cost more."""
        if self._head_late_at is None:
            seconds = self._connections.limits.header_timeout_seconds if self._excess is None else _LINGER_SECONDS
            self._head_late_at = self.loop.time() + seconds
            if self._head_timer is None:
                self._head_timer = self.loop.call_at(self._head_late_at, self._check_head)

    def _check_head(self) -> None:
        self._head_timer = None
        if self._head_late_at is None or self.transport.is_closing():
            return
        if self.loop.time() < self._head_late_at:
            self._head_timer = self.loop.call_at(self._head_late_at, self._check_head)
        elif self._excess is not None:
            self._refuse(self._excess)
        else:
            self.transport.close()

    # Clients that do not take their answer

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalls.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stalls.end()

    # Too many connections

    def is_sending(self) -> bool:
        return self.transport.get_write_buffer_size() > 0

    def dismiss(self, error: UploaderError) -> None:
        if self._head_late_at is None:
            self.transport.close()  # idle since its last answer: the client expects that it may close
        else:
            self._refuse(error)

    def cut(self) -> None:
        if self._excess is not None:
            self._refuse(self._excess)
        self.transport.close()

    # Refusing

    def _refuse_and_stop(self, error: UploaderError) -> None:
        """Refuse from a callback of the parser; the exception stops the parser."""
        self._refuse(error)
        raise ValueError(error.detail)

    def _refuse(self, error: UploaderError) -> None:
        """Send the error if it cannot be mistaken for part of another answer, and end the connection."""
        if self._refused:
            return
        self._refused = True
        self._head_late_at = None
        self._unset_keepalive_if_required()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.response_complete:
            cycle = None
        if self.pipeline or (cycle is not None and (self._in_head or cycle.response_started)):
            self.transport.close()  # the next bytes would belong to the answer in progress
            return
        if cycle is not None:
            _abandon(cycle)
        self.transport.write(refusal(error, self._connections.mount))
        self._linger()

    def lingers(self) -> bool:
        """Return True if a connection that is to be closed must linger: after an answer to a request whose body was not
        read."""
        is_read = self._in_head and self.direct is None
        if self._refused or self._has_ended or is_read or not self.cycle.response_complete:
            return False
        self._refused = True
        if self.direct is not None:
            self.direct.lose()
            self.direct = None
        self._linger()
        return True

    def _linger(self) -> None:
        """Read and drop further bytes for a while. Closing with unread bytes would reset the connection, and the client
        would lose the answer (RFC 9112, section 9.6)."""
        self.flow.resume_reading()
        self.transport.write_eof()
        self._connections.refuse(self)
        self._linger_timer = self.loop.call_later(_LINGER_SECONDS, self._end_lingering)

    def _end_lingering(self) -> None:
        if self.is_sending():
            self.transport.close()  # the client is still reading a long answer
        else:
            self.transport.abort()


class HttpConnection(asyncio.BufferedProtocol):
    """One connection. Reads go into the body being received, or to the parser."""

    protocol_class = LimitedProtocol
    # Shared by all connections: each read is handled before the next one.
    _scratch = memoryview(bytearray(_SCRATCH_BYTES))

    def __init__(self, **of_uvicorn: Any) -> None:
        self._http = self.protocol_class(**of_uvicorn)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._begin(connections.WriteBatching(transport, self._http.loop))

    def _begin(self, writes: connections.WriteBatching) -> None:
        writes.lingers = weakref.WeakMethod(self._http.lingers)  # weak: a cycle would wait for garbage collection
        self._http.connection_made(cast(asyncio.Transport, writes))

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Return the memory for the next read. Never empty, and never larger than the rest of the body; bytes that nobody
        wants are dropped."""
        direct = self._http.direct
        return self._scratch if direct is None else (direct.room or self._scratch)[: direct.on_wire]

    def buffer_updated(self, count: int) -> None:
        direct = self._http.direct
        if direct is None:
            self._http.data_received(self._scratch[:count])
        else:
            direct.received(count)

    def eof_received(self) -> bool:
        return self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._http.connection_lost(error)


def _abandon(cycle: RequestResponseCycle) -> None:
    cycle.disconnected = True
    cycle.message_event.set()
