"""What is around every request and answer: the request id, security headers, the line in the log, and the rest of a body
nobody read."""

import asyncio
import logging
import random
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from uploader.errors import UploaderError
from uploader.http.server.direct_body import DIRECT_BODY, DirectBody
from uploader.http.shared.problem import problem_response
from uploader.observability import REQUESTS, request_id, user_id

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_MAX_DRAINED_BYTES = 1 << 20
_MAX_DRAIN_SECONDS = 2.0
_DRAIN_BYTES = 64 << 10
_BODY_TIMEOUT = 408
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# What load balancers and Prometheus ask all day.
_PROBES = frozenset({"/livez", "/readyz", "/metrics"})
_SCOPE_KEY = "uploader.exchange"
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
_RAW_SECURITY_HEADERS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


@dataclass(slots=True)
class Exchange:
    """What becomes known of a request and its answer on the way: for the log and the metrics."""

    # The path as the route table has it: the path itself may hold what is nobody's business.
    route: str = ""
    status: int = 0
    # `ok`, or the code of the error.
    outcome: str = "ok"


def exchange_of(request: Request) -> Exchange:
    """Of a request that came through the envelope."""
    exchange: Exchange = request.scope[_SCOPE_KEY]
    return exchange


def _new_request_id() -> str:
    # Unique is enough, nobody is kept from guessing it; the kernel's randomness costs more than all else here.
    return f"{random.getrandbits(64):016x}"


def refusal(error: UploaderError) -> bytes:
    """The whole answer to what never becomes a request of the application; the connection ends with it."""
    identifier = _new_request_id()
    reset = request_id.set(identifier)
    try:
        headers = {**SECURITY_HEADERS, "X-Request-ID": identifier, "Connection": "close"}
        response = problem_response(error, headers)
        _tell(Exchange(status=response.status_code, outcome=error.code), "other", "", 0.0)
    finally:
        request_id.reset(reset)
    lines = [f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode()]
    lines += [b"%s: %s" % header for header in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])


class _BodyWatch:
    """Knows whether a request's body was read to its end, and reads the rest if it is small."""

    def __init__(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> None:
        length = headers.get(b"content-length")
        self._received = length in (None, b"0") and b"transfer-encoding" not in headers
        offered = scope.get("extensions", {}).get(DIRECT_BODY)
        self._direct: DirectBody | None = offered["body"] if offered else None
        self._waits_for_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        self._receive = receive
        self._touched = False

    @property
    def ended(self) -> bool:
        return self._received or (self._direct is not None and self._direct.ended)

    async def receive(self) -> Message:
        self._touched = True
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._received = True
        return message

    async def drain(self) -> None:
        # A client that waits for 100 Continue has sent nothing yet, and asking for it would invite it to.
        direct = self._direct if self._direct is not None and self._direct.started else None
        if self._waits_for_continue and not self._touched and direct is None:
            return
        with suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(_MAX_DRAIN_SECONDS):
                await (self._drain_messages() if direct is None else self._drain_direct(direct))

    async def _drain_messages(self) -> None:
        drained = 0
        while not self.ended and drained < _MAX_DRAINED_BYTES:
            drained += len((await self.receive()).get("body", b""))

    async def _drain_direct(self, direct: DirectBody) -> None:
        await direct.pour(_Drain(), asyncio.get_running_loop().time() + _MAX_DRAIN_SECONDS)


class _Drain:
    """Takes bytes that nobody wants, up to a bound."""

    def __init__(self) -> None:
        self._left = _MAX_DRAINED_BYTES
        self._memory = memoryview(bytearray(_DRAIN_BYTES))

    def room(self) -> memoryview:
        return self._memory[: self._left]

    def advance(self, count: int) -> None:
        self._left -= count


class Envelope:
    """The outermost layer, around each request of HTTP."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers_given = dict(reversed(scope["headers"]))  # the first of several
        given = headers_given.get(b"x-request-id", b"")
        identifier = given.decode() if _REQUEST_ID.fullmatch(given) else _new_request_id()
        reset, reset_user = request_id.set(identifier), user_id.set("")
        exchange, started = Exchange(), time.perf_counter()
        scope[_SCOPE_KEY] = exchange
        body = _BodyWatch(scope, headers_given, receive)

        async def send_wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                headers = message["headers"] = list(message.get("headers", ()))
                given_names = {name.lower() for name, _ in headers}
                headers.append((b"x-request-id", identifier.encode()))
                headers += [header for header in _RAW_SECURITY_HEADERS if header[0] not in given_names]
                if not body.ended and message["status"] != _BODY_TIMEOUT:  # which waited long enough
                    await body.drain()
                if not body.ended:
                    headers.append((b"connection", b"close"))
            await send(message)

        try:
            await self._app(scope, body.receive, send_wrapped)
        except BaseException:
            exchange.outcome = "aborted"
            raise
        finally:
            _tell(exchange, scope["method"], (scope.get("client") or ("",))[0], time.perf_counter() - started)
            user_id.reset(reset_user)
            request_id.reset(reset)


def _tell(exchange: Exchange, method: str, peer: str, seconds: float) -> None:
    """One line in the log, and one more request in the metrics."""
    method = method if method in _METHODS else "other"
    REQUESTS.labels(method, exchange.route or "other", exchange.status).inc()
    facts = {"method": method, "route": exchange.route, "status": exchange.status, "outcome": exchange.outcome}
    facts |= {"peer": peer, "duration_ms": round(seconds * 1000, 1)}
    level = logging.DEBUG if exchange.route in _PROBES else logging.WARNING if exchange.status >= 500 else logging.INFO
    logger.log(level, "request", extra=facts)
