"""What uvicorn is given as its protocol: its own HTTP/1.1 over buffered reads and batched writes, with limits that neither
uvicorn nor ASGI has: on connections, on the time and the size of a request's head, on how long an answer may stand still.

Owns what is decided before the application sees a request, and refuses it in the application's words.
"""

import asyncio
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from uploader.errors import BadRequest, HeadersTooLarge, TargetTooLong, UploaderError
from uploader.http.bodies.source import DIRECT_BODY, TRAILERS
from uploader.http.server.batching import WriteBatching
from uploader.http.server.connections import CONNECTIONS_STATE, Connections
from uploader.http.server.direct_body import BufferedReads, DirectBody
from uploader.http.server.faults import fault_of, has_body
from uploader.http.server.interim import offer_interim
from uploader.http.server.sendfile import SENDERS_STATE, SENDING_METHODS, with_sendfile
from uploader.http.server.stalls import StallWatch
from uploader.http.shared.exchange import PROBES, refusal

MAX_TARGET_BYTES = 8 << 10
MAX_HEAD_BYTES = 32 << 10
MAX_HEADERS = 100
# What a body in chunks may hold between its bytes, beyond so much a chunk and a share of the body (one byte in so many).
MAX_FRAMING_BYTES = 64 << 10
_CHUNK_FRAMING_BYTES, _BODY_PER_FRAMING = 16, 8
# Requests sent ahead of the answers before them: each costs memory, and no client needs many.
MAX_PIPELINED = 16
# How long a connection stays that is beyond the limits: for its request, and then so that its client can read the answer.
_LINGER_SECONDS = 2.0


class LimitedProtocol(HttpToolsProtocol):
    """The requests of one connection, and their limits."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_late_at: float | None = None  # by the loop's clock, in seconds; None between heads
    stall_watch: type[StallWatch] = StallWatch
    stalls: StallWatch
    _linger_timer: asyncio.TimerHandle | None = None
    _excess: UploaderError | None = None  # what all but a probe is answered, if the connection is beyond the limits
    _refused = False
    _in_head = True  # from the end of one request to the end of the next one's headers
    _unparsed_bytes = 0
    _header_bytes = 0
    _header_count = 0
    _progress = False  # whether what is being parsed held a part of a body, or ended a head
    _chunk_heads = 0  # in what is being parsed
    _framing_bytes = 0  # of the last request's body, what was between its bytes and not needed
    _content_length = 0  # as the last request told it
    parsed_body_bytes = 0  # of the last request's body, what came through the parser
    direct: DirectBody | None = None  # the body that is received past the parser
    _trailers: list[tuple[bytes, bytes]] | None = None  # of the last request, if it announces any
    # The request whose turn it is; uvicorn's `cycle` is the one that came last.
    _answered: RequestResponseCycle | None = None

    @property
    def _connections(self) -> Connections:
        connections: Connections = self.app_state[CONNECTIONS_STATE]
        return connections

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
        """The client sends no more, and may still read: what it has asked for is answered, then the connection ends.
        Or it is gone: TCP tells that apart no sooner than an answer is sent."""
        self._stop_head_timer()
        last = None
        if not self._refused:
            last = self.cycle if self._in_head else self._break_off()
        if last is None or last.response_complete:
            self.transport.close()
            return False
        last.keep_alive = False
        return True

    def _break_off(self) -> RequestResponseCycle | None:
        """The rest of the last request's body will not come. Returns the request before it, if that has no answer yet."""
        _abandon(self.cycle)
        if self.direct is not None:
            self.direct.lose()
        if not self.pipeline:
            return None
        self.pipeline.popleft()
        return self.pipeline[0][0] if self.pipeline else self._answered

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
            self.cycle.keep_alive = False  # what follows is no HTTP/1.1 to the parser
        self._count_unparsed(len(data))
        if body_of is self.cycle and not self._in_head:
            self._count_framing(len(data), self.parsed_body_bytes - parsed_before)

    def _count_unparsed(self, length: int) -> None:
        """The parser keeps a header until it is whole, also one after the body: bound what it may keep."""
        self._unparsed_bytes = 0 if self._progress else self._unparsed_bytes + length
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            self._refuse(HeadersTooLarge())

    def _count_framing(self, length: int, body_bytes: int) -> None:
        """Of a read that was all of one body: chunks may have extensions, which nobody reads but the parser. Who sends a
        byte a chunk needs five bytes for each; bound what is far beyond that."""
        needed = self._chunk_heads * _CHUNK_FRAMING_BYTES + body_bytes // _BODY_PER_FRAMING
        self._framing_bytes = max(0, self._framing_bytes + length - body_bytes - needed)
        if self._framing_bytes > MAX_FRAMING_BYTES:
            self._refuse(BadRequest("There is too much between the bytes of the body."))

    # The request, as the parser meets its parts

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = self._header_count = 0
        self._start_head_timer()

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > MAX_TARGET_BYTES:
            self._refuse_and_stop(TargetTooLong())
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._header_bytes += len(name) + len(value)
        if self._header_count > MAX_HEADERS or self._header_bytes > MAX_HEAD_BYTES:
            self._refuse_and_stop(HeadersTooLarge())
        if self._in_head:
            super().on_header(name, value)
        elif self._trailers is not None:  # what comes after a body is none of the request's headers
            self._trailers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        self._in_head, self._progress = False, True
        fault = fault_of(self.headers, self.parser.get_http_version())
        if fault is None and self.parser.should_upgrade() and has_body(self.headers):
            fault = "A request with a body can't be an offer to upgrade."  # the parser would not see the body
        if fault is not None:
            self._refuse_and_stop(BadRequest(fault))
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse_and_stop(BadRequest("Too many requests ahead of their answers."))
        if self._excess is not None:
            self._let_in_for_a_probe(self._excess)
        self._connections.work(self)
        super().on_headers_complete()
        self.cycle.keep_alive &= self._excess is None
        self._trailers = None
        if any(name == b"trailer" for name, _ in self.headers):
            self._trailers = []
            self.scope.setdefault("extensions", {})[TRAILERS] = {"fields": self._trailers}
        self.parsed_body_bytes = self._framing_bytes = 0
        self._offer_direct_body()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        if cycle.scope["method"] in SENDING_METHODS:
            app = with_sendfile(app, cycle, self.app_state.get(SENDERS_STATE))
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

    # A body past the parser

    def _offer_direct_body(self) -> None:
        length = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        self._content_length = length
        if length and self.scheme == "http":
            body = DirectBody(self, self.cycle, length)
            self.scope.setdefault("extensions", {})[DIRECT_BODY] = {"body": body}

    def end_direct_body(self) -> None:
        """All of it was read from the socket: what follows is another request, to another parser."""
        self.direct = None
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self.on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:
            self._connections.wait(self)
        if self.direct is not None and not self.transport.is_closing():
            self.transport.close()  # the rest of its body is no request

    # The head takes too long

    def _start_head_timer(self) -> None:
        """One timer for all heads of a connection: most are whole at once, and to set it and take it back costs more."""
        if self._head_late_at is None:
            seconds = self._connections.limits.header_timeout_seconds if self._excess is None else _LINGER_SECONDS
            self._head_late_at = self.loop.time() + seconds
            if self._head_timer is None:
                self._head_timer = self.loop.call_at(self._head_late_at, self._check_head)

    def _stop_head_timer(self) -> None:
        self._head_late_at = None

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

    # The client does not take its answer

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalls.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stalls.end()

    # Too many connections

    def _let_in_for_a_probe(self, error: UploaderError) -> None:
        """And for nothing else: whoever watches over the server must not take it for dead."""
        if self.url.partition(b"?")[0].decode("latin-1") not in PROBES or not self._connections.probe(self):
            self._refuse_and_stop(error)

    def is_sending(self) -> bool:
        return self.transport.get_write_buffer_size() > 0

    def dismiss(self, error: UploaderError) -> None:
        if self._head_late_at is None:
            self.transport.close()  # kept since its last answer: its client knows that it may end
        else:
            self._refuse(error)

    def cut(self) -> None:
        if self._excess is not None:
            self._refuse(self._excess)
        self.transport.close()

    # Refusing

    def _refuse_and_stop(self, error: UploaderError) -> None:
        """From a callback of the parser, which must not go on."""
        self._refuse(error)
        raise ValueError(error.detail)

    def _refuse(self, error: UploaderError) -> None:
        """Answer where the client can tell what is answered, and let go of the connection."""
        if self._refused:
            return
        self._refused = True
        self._stop_head_timer()
        self._unset_keepalive_if_required()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.response_complete:
            cycle = None
        if self.pipeline or (cycle is not None and (self._in_head or cycle.response_started)):
            self.transport.close()  # the next bytes on the connection belong to the answer under way
            return
        if cycle is not None:
            _abandon(cycle)
        self.flow.resume_reading()
        self.transport.write(refusal(error))
        self.transport.write_eof()
        self._connections.refuse(self)
        # To close with bytes unread would take the answer away from the client again.
        self._linger_timer = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)


class HttpConnection(BufferedReads):
    """What uvicorn makes of each connection."""

    protocol_class = LimitedProtocol

    def __init__(self, **of_uvicorn: Any) -> None:
        self._http = self.protocol_class(**of_uvicorn)
        super().__init__(self._http)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._begin(WriteBatching(transport, self._http.loop))

    def _begin(self, writes: WriteBatching) -> None:
        self._http.connection_made(cast(asyncio.Transport, writes))

    def eof_received(self) -> bool:
        return self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._http.connection_lost(error)


def _abandon(cycle: RequestResponseCycle) -> None:
    """Its client is gone, as far as its application is concerned."""
    cycle.disconnected = True
    cycle.message_event.set()
