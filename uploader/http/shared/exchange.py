"""The exchange of a request and its answer: sets the request id and security headers, writes the line in the log, reads the
rest of a body; and limits the requests at once of a user, or of a client behind a proxy, as connections are limited.
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
# The questions of load balancers, and of supervisors that start a server again.
PROBES = frozenset({"/livez", "/readyz"})
# Under this name the application's lifespan state says why the process takes no new requests, if so.
UNREADY_STATE = "uploader.unready"
_ASKED_ALL_DAY = PROBES | {"/metrics"}
# The outcome of an answer that has no end.
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
    """One request and its answer: `receive` and `send` go through it, and it has the last word."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The path as the route table has it: the path itself may hold what is nobody's business.
        self.route = ""
        self.status = 0
        # `ok`, or the code of the error.
        self.outcome = "ok"
        # Which host or file stands behind the outcome, where one does.
        self.reason: str | None = None
        # The log has that already.
        self.is_told = False
        self.at_end: list[Callable[[], None]] = []
        # Who came by a link, if that is who asks.
        self.visit: Visit | None = None
        # It ends with the right of its caller, and with the server.
        self.running = Running()
        # By somebody else: the answer does not end that.
        self.is_cancelled = False
        # What it costs its user, where it has one.
        self.cost: Cost | None = None
        headers = dict(reversed(scope["headers"]))  # the first of several
        given = headers.get(b"x-request-id", b"")
        self._request_id = given.decode() if _REQUEST_ID.fullmatch(given) else _new_request_id()
        self._contexts = request_id.set(self._request_id), user_id.set("")
        self._began = time.perf_counter()
        self._scope = scope
        self._receive = receive
        self._send = send
        # The body: whether it was received to its end, or any of it; and where it can be read past the parser.
        self._received = headers.get(b"content-length") in (None, b"0") and b"transfer-encoding" not in headers
        self._touched = False
        # Whether a message is waited for; when the last one came, by the loop's clock, in seconds.
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
        """Return when the client last sent anything, by the loop's clock, if nothing but the client is waited for, and there
        is no answer yet."""
        if self._is_answered:
            return None
        if self._direct is not None and self._direct.is_waited_for:
            return self._direct.progressed_at
        return self._message_at if self._waits else None

    async def send(self, message: Message) -> None:
        """Read what is left of the body first, if it is small: else the connection has to end."""
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
            cost.pause()  # the client is waited for
        await self._send(message)
        if message.get("more_body", False):
            await cost.go_on()  # what follows is made when it is its turn

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
        """Return whether the body has ended."""
        if status == _BODY_TIMEOUT or self.running.has_left:
            return False  # it was waited for long enough, or the request was ended
        # A client that waits for 100 Continue has sent nothing yet, and asking for it would invite it to.
        direct = self._direct if self._direct is not None and self._direct.started else None
        if self._waits_for_continue and not self._touched and direct is None:
            return False
        source = MessageBody(self.receive) if direct is None else direct
        with suppress(ClientDisconnect):
            await source.pour(Drain(_MAX_DRAINED_BYTES), asyncio.get_running_loop().time() + _MAX_DRAIN_SECONDS)
        return self._body_ended()


def refusal(error: UploaderError, mount: Mount) -> bytes:
    """Return the whole answer to a request that never reaches the application."""
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
    # Unique is enough, nobody is kept from guessing it; the kernel's randomness costs more than all else here.
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
    """Filter what uvicorn logs: why an answer has no end its request's own line tells, where the error has a name."""
    return not isinstance((record.exc_info or (None, None))[1], UploaderError)


class ConcurrencyLimit:
    """The requests that have no whole answer yet, by whom they are."""

    def __init__(self, settings: Settings, proxies: Proxies) -> None:
        self._proxies = proxies
        self._by_address = _Limit(settings.max_connections_per_address, "your address")
        self._by_caller = _Limit(settings.max_connections_per_user, "you")

    def admit_address(self, request: Request, exchange: Exchange) -> None:
        """Count a request by where it comes from, if that is behind a proxy: else its connection counts. Raises
        TooManyRequests, but never for a probe."""
        party = self._proxies.party_behind(request) if self._proxies.are_any else None
        if party is not None and exchange.route not in PROBES:
            self._by_address.admit(party, exchange)

    def admit_caller(self, caller: Caller, exchange: Exchange) -> None:
        """Count a request of a user, or of a visitor, without exceptions. Raises TooManyRequests."""
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
