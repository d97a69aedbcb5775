"""What is around every request and answer: the request id, security headers, and the rest of a body nobody read."""

import asyncio
import re
import secrets
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from uploader.errors import NotFound, UploaderError
from uploader.http.problem import problem_response
from uploader.observability import request_id

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MAX_DRAINED_BYTES = 1 << 20
_MAX_DRAIN_SECONDS = 2.0
_BODY_TIMEOUT = 408
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


def _new_request_id() -> str:
    return secrets.token_hex(8)


def refusal(error: UploaderError) -> bytes:
    """The whole answer to what never becomes a request of the application; the connection ends with it."""
    identifier = _new_request_id()
    reset = request_id.set(identifier)
    try:
        headers = {**_HEADERS, "X-Request-ID": identifier, "Connection": "close"}
        response = problem_response(error, headers)
    finally:
        request_id.reset(reset)
    lines = [f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode()]
    lines += [b"%s: %s" % header for header in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])


class _BodyWatch:
    """Knows whether a request's body was read to its end, and reads the rest if it is small."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        headers = Headers(scope=scope)
        length = headers.get("content-length")
        self.ended = length in (None, "0") and "transfer-encoding" not in headers
        self._waits_for_continue = headers.get("expect", "").lower() == "100-continue"
        self._receive = receive
        self._touched = False

    async def receive(self) -> Message:
        self._touched = True
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self.ended = True
        return message

    async def drain(self) -> None:
        # A client that waits for 100 Continue has sent nothing yet, and asking for it would invite it to.
        if self._waits_for_continue and not self._touched:
            return
        drained = 0
        try:
            async with asyncio.timeout(_MAX_DRAIN_SECONDS):
                while not self.ended and drained < _MAX_DRAINED_BYTES:
                    drained += len((await self.receive()).get("body", b""))
        except TimeoutError:
            return


async def _nothing_there(scope: Scope, receive: Receive, send: Send) -> None:
    await problem_response(NotFound())(scope, receive, send)


class Envelope:
    """The outermost layer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        identifier = given if _REQUEST_ID.fullmatch(given) else _new_request_id()
        reset = request_id.set(identifier)
        body = _BodyWatch(scope, receive)

        async def send_wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = identifier
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if not body.ended and message["status"] != _BODY_TIMEOUT:  # which waited long enough
                    await body.drain()
                if not body.ended:
                    headers["Connection"] = "close"
            await send(message)

        # The router works on the decoded path, where an encoded slash would pass for one that separates.
        app = _nothing_there if b"%2f" in scope.get("raw_path", b"").lower() else self._app
        try:
            await app(scope, body.receive, send_wrapped)
        finally:
            request_id.reset(reset)
