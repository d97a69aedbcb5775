"""One request and its answer. Sets the request id and the security headers, writes the log line, and drains the rest of the
body. Also limits how many requests a user, or a client behind a proxy, has open at once.
"""

import asyncio
import logging
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from uploader.domain.links import Caller, Visit
from uploader.errors import TooManyRequests, UploaderError
from uploader.http.bodies.intake import DIRECT_BODY, DirectSource, Drain, MessageBody
from uploader.http.shared.mount import Mount, leave_mount, mount_of_request
from uploader.http.shared.problem import problem_response
from uploader.http.shared.proxies import Proxies
from uploader.runtime.meter import Cost
from uploader.runtime.observability import REQUESTS, request_id, user_id
from uploader.service.revocations import Running
from uploader.settings import Settings

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_MAX_DRAINED_BYTES = 1 << 20
_MAX_DRAIN_SECONDS = 2.0
_BODY_TIMEOUT = 408
_SERVER_ERROR = 500
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Load balancers and supervisors ask these paths.
PROBES = frozenset({"/livez", "/readyz"})
# The key in the lifespan state for the reason why the process accepts no new requests.
UNREADY_STATE = "uploader.unready"
_ASKED_ALL_DAY = PROBES | {"/metrics"}
# The outcome of an answer that broke off.
ABORTED = "aborted"
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
_RAW_SECURITY_HEADERS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


class Exchange:
    """One request and its answer. All ASGI messages pass through `receive` and `send`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The path of the route table, with its placeholders: the requested path may hold private names.
        self.route = ""
        self.status = 0
        # `ok`, or the code of the error.
        self.outcome = "ok"
        # The host or the file behind an error, if known.
        self.reason: str | None = None
        # True if the log already has the error.
        self.is_told = False
        self.at_end: list[Callable[[], None]] = []
        # The visit, if the caller came by a link.
        self.visit: Visit | None = None
        # Ended when the caller's right is revoked, and when the server stops.
        self.running = Running()
        # True if the surrounding server cancelled the task: then the cancellation continues after the answer.
        self.is_cancelled = False
        # The CPU time charged to the user; None for a request without a user.
        self.cost: Cost | None = None
        headers = dict(reversed(scope["headers"]))  # the first of repeated headers wins
        given = headers.get(b"x-request-id", b"")
        self._request_id = given.decode() if _REQUEST_ID.fullmatch(given) else _new_request_id()
        self._contexts = request_id.set(self._request_id), user_id.set("")
        self._began = time.perf_counter()
        self._scope = scope
        self._receive = receive
        self._send = send
        # Of the body: received to its end; read at all. `_direct`, below, reads the body without the parser if the server
        # offers that.
        self._received = headers.get(b"content-length") in (None, b"0") and b"transfer-encoding" not in headers
        self._touched = False
        # True while `receive` waits; when the last message came, in seconds of the loop's clock.
        self._waits, self._message_at = False, 0.0
        self._is_answered = False
        offered = scope.get("extensions", {}).get(DIRECT_BODY)
        self._direct: DirectSource | None = offered["body"] if offered else None
        self._waits_for_continue = headers.get(b"expect", b"").lower() == b"100-continue"

    async def receive(self) -> Message:
        loop = asyncio.get_running_loop()
        if not self._touched:
            self._touched, self._message_at = True, loop.time()
        self._waits = True
        try:
            message = await self._receive()
        finally:
            self._waits = False
        self._message_at = loop.time()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._received = True
        return message

    def stands_since(self) -> float | None:
        """Return the time of the client's last bytes (loop clock), if the request waits only for its client. None if the
        server is working, or if the answer has begun."""
        if self._is_answered:
            return None
        if self._direct is not None and self._direct.is_waited_for:
            return self._direct.progressed_at
        return self._message_at if self._waits else None

    async def send(self, message: Message) -> None:
        """Send a message. Before the headers go out, drain a small rest of the body; after a larger rest the connection must
        close."""
        if message["type"] == "http.response.start":
            self._is_answered = True
            headers = message["headers"] = list(message.get("headers", ()))
            given_names = {name.lower() for name, _ in headers}
            headers.append((b"x-request-id", self._request_id.encode()))
            headers += [header for header in _RAW_SECURITY_HEADERS if header[0] not in given_names]
            if not self._body_ended() and not await self._drain(message["status"]):
                headers.append((b"connection", b"close"))
            self.status = message["status"]
        cost = self.cost
        if cost is None or message["type"] == "http.response.start":
            await self._send(message)
            return
        cost.sent_bytes += len(message.get("body", b"")) or message.get("count") or 0
        if cost.turn is not None:
            cost.pause()  # sending waits for the client
        await self._send(message)
        if message.get("more_body", False):
            await cost.go_on()  # wait for the user's turn before the next piece is made

    def end(self) -> None:
        if self.cost is not None:
            self.cost.end()
        for step in self.at_end:
            step()
        peer = (self._scope.get("client") or ("",))[0]
        seconds = time.perf_counter() - self._began
        facts = (self.route, self.status, self.outcome, self._scope["method"], peer, seconds, self.reason)
        _tell(*facts, is_told=self.is_told)
        reset_request, reset_user = self._contexts
        user_id.reset(reset_user)
        request_id.reset(reset_request)

    def _body_ended(self) -> bool:
        return self._received or (self._direct is not None and self._direct.ended)

    async def _drain(self, status: int) -> bool:
        """Read the rest of the body within limits. Return True if the body has ended."""
        if status == _BODY_TIMEOUT or self.running.has_left:
            return False  # the request already waited its full time, or was ended
        # A client that waits for 100 Continue has sent nothing yet, and reading would ask it to send the body.
        direct = self._direct if self._direct is not None and self._direct.started else None
        if self._waits_for_continue and not self._touched and direct is None:
            return False
        source = MessageBody(self.receive) if direct is None else direct
        with suppress(ClientDisconnect):
            await source.pour(Drain(_MAX_DRAINED_BYTES), asyncio.get_running_loop().time() + _MAX_DRAIN_SECONDS)
        return self._body_ended()


def refusal(error: UploaderError, mount: Mount) -> bytes:
    """Return the complete HTTP/1.1 answer to a request that never reaches the application."""
    identifier = _new_request_id()
    reset = request_id.set(identifier)
    mount_of_request.set(mount)
    try:
        headers = {**SECURITY_HEADERS, "X-Request-ID": identifier, "Connection": "close"}
        response = problem_response(error, headers)
        _tell("", response.status_code, error.code, "other", "", 0.0)
    finally:
        leave_mount()
        request_id.reset(reset)
    lines = [f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode()]
    lines += [b"%s: %s" % header for header in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])


def _new_request_id() -> str:
    # The id must be unique, not secret. Random bytes from the kernel would cost more than all the rest here.
    return f"{random.getrandbits(64):016x}"


def _tell(
    route: str,
    status: int,
    outcome: str,
    method: str,
    peer: str,
    seconds: float,
    reason: str | None = None,
    *,
    is_told: bool = False,
) -> None:
    method = method if method in _METHODS else "other"
    REQUESTS.labels(method, route or "other", status).inc()
    facts = {"method": method, "route": route, "status": status, "outcome": outcome}
    facts |= {} if reason is None else {"reason": reason}
    facts |= {"peer": peer, "duration_ms": round(seconds * 1000, 1)}
    is_ill = status >= _SERVER_ERROR or (outcome == ABORTED and reason is not None)
    level = (
        logging.DEBUG
        if route in _ASKED_ALL_DAY or (is_ill and is_told)
        else logging.WARNING
        if is_ill
        else logging.INFO
    )
    logger.log(level, "request", extra=facts)


def is_news(record: logging.LogRecord) -> bool:
    """Filter uvicorn's error log: drop tracebacks of UploaderError, because the request's own log line names the error."""
    return not isinstance((record.exc_info or (None, None))[1], UploaderError)


class ConcurrencyLimit:
    """Counts and limits the unanswered requests of each user, and of each address behind a proxy."""

    def __init__(self, settings: Settings, proxies: Proxies) -> None:
        self._proxies = proxies
        self._by_address = _Limit(settings.max_connections_per_address, "your address")
        self._by_caller = _Limit(settings.max_connections_per_user, "you")

    def admit_address(self, request: Request, exchange: Exchange) -> None:
        """Count a request through a proxy for the client's address; direct clients are limited per connection.
        Probes are exempt. Raises TooManyRequests."""
        party = self._proxies.party_behind(request) if self._proxies.are_any else None
        if party is not None and exchange.route not in PROBES:
            self._by_address.admit(party, exchange)

    def admit_caller(self, caller: Caller, exchange: Exchange) -> None:
        """Count a request for its user or visitor; no path is exempt. Raises TooManyRequests."""
        if caller.user_id:
            self._by_caller.admit(caller, exchange)


class _Limit:
    def __init__(self, most: int, whose: str) -> None:
        self._most = most
        self._whose = whose
        self._counts: Counter[Hashable] = Counter()

    def admit(self, party: Hashable, exchange: Exchange) -> None:
        if self._counts[party] >= self._most:
            raise TooManyRequests(f"Too many requests of {self._whose} at once: wait for an answer.")
        self._counts[party] += 1
        exchange.at_end.append(partial(self._release, party))

    def _release(self, party: Hashable) -> None:
        self._counts[party] -= 1
        if not self._counts[party]:
            del self._counts[party]
