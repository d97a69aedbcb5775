"""The shapes of answers."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from uploader.domain.links import Caller
from uploader.errors import PreconditionFailed
from uploader.http.bodies.intake import Intake

# The message of the ASGI extension by which a part of a file is sent
# (asgi.readthedocs.io/en/latest/extensions.html#zero-copy-send), where the server offers it.
ZERO_COPY_SEND = "http.response.zerocopysend"
# Under this name `scope["extensions"]` holds `{"responses": InterimResponses}`, where the server offers that for a request.
INTERIM = "uploader.interim"
# Of an answer of many lines: what is sent at a time, and what it gathers before it asks for memory.
_PIECE_BYTES = 256 << 10
_TAIL_BYTES = 64 << 10


class Json(Response):
    media_type = "application/json"
    render = staticmethod(msgspec.json.encode)  # type: ignore[assignment]


def is_not_modified(request: Request, etag: str) -> bool:
    """Return whether the caller has the content of this ETag already (RFC 9110, section 13.2.2). Raises PreconditionFailed
    where it asks for other content."""
    wanted, known = _etags_in(request, "if-match"), _etags_in(request, "if-none-match")
    if wanted and not {etag, "*"} & wanted:
        raise PreconditionFailed()
    return bool({etag, "*"} & {each.removeprefix("W/") for each in known})


def _etags_in(request: Request, name: str) -> set[str]:
    return {each.strip() for value in request.headers.getlist(name) for each in value.split(",")}


class Results:
    """One line for each of many things, encoded as soon as it is known: all but the last 64 KiB are in memory within
    the budget, or in the spool. To be answered, or closed."""

    def __init__(self, intake: Intake, caller: Caller) -> None:
        self._body = intake.gathering(caller, sys.maxsize)  # how many lines there may be is for others to say
        self._pace = intake.pace()
        self._tail = bytearray()

    async def add(self, line: dict[str, Any]) -> None:
        """Raises StorageFull."""
        if self._body.length or self._tail:
            self._tail += b","
        self._tail += msgspec.json.encode(line)
        if len(self._tail) >= _TAIL_BYTES:
            slow = asyncio.get_running_loop().time() >= self._pace.slow_at
            await self._body.append(memoryview(self._tail), slow=slow)
            self._tail = bytearray()

    async def end(self) -> None:
        """Raises StorageFull."""
        await self._body.end()

    def answer(self, members: dict[str, Any], status: int, headers: dict[str, str], media_type: str) -> Response:
        """Return a JSON object of these members, and `results`."""
        before = msgspec.json.encode(members)[:-1] + (b"," if members else b"") + b'"results":['
        self._tail += b"]}"
        length = len(before) + self._body.length + len(self._tail)
        headers = {**headers, "Content-Length": str(length)}
        answer = _Streamed(self._pieces(before), status, headers, media_type)
        answer.results = self
        return answer

    def close(self) -> None:
        self._body.close()

    async def _pieces(self, before: bytes) -> AsyncIterator[bytes]:
        for start in range(0, self._body.length, _PIECE_BYTES):
            length = min(_PIECE_BYTES, self._body.length - start)
            yield before + await asyncio.to_thread(b"".join, self._body.pieces_of(start, length))
            before = b""
        yield before + self._tail


class _Streamed(StreamingResponse):
    """Closes the results however the sending ends."""

    results: Results

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.results.close()
