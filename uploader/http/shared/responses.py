"""Kinds of answers: JSON, conditional requests, and long lists of results."""

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

# The ASGI message that sends a part of a file without copying, if the server supports it
# (asgi.readthedocs.io/en/latest/extensions.html#zero-copy-send).
ZERO_COPY_SEND = "http.response.zerocopysend"
# The key in `scope["extensions"]` for `{"responses": InterimResponses}`, if the server can send 104 for the request.
INTERIM = "uploader.interim"
# Of a long answer: bytes per message; bytes collected before they go to the memory budget or the spool.
_PIECE_BYTES = 256 << 10
_TAIL_BYTES = 64 << 10


class Json(Response):
    media_type = "application/json"
    render = staticmethod(msgspec.json.encode)  # type: ignore[assignment]


def is_not_modified(request: Request, etag: str) -> bool:
    """Return True if the caller already has the content with this ETag (RFC 9110, section 13.2.2). Raises PreconditionFailed
    if `If-Match` names other contents."""
    wanted, known = _etags_in(request, "if-match"), _etags_in(request, "if-none-match")
    if wanted and not {etag, "*"} & wanted:
        raise PreconditionFailed()
    return bool({etag, "*"} & {each.removeprefix("W/") for each in known})


def _etags_in(request: Request, name: str) -> set[str]:
    return {each.strip() for value in request.headers.getlist(name) for each in value.split(",")}


class Results:
    """A long list of results. Each result is encoded when it is added. The last 64 KiB stay in a buffer here; the rest lies
    in the memory budget or in the spool. The caller must call `answer` or `close`."""

    def __init__(self, intake: Intake, caller: Caller) -> None:
        self._body = intake.gathering(caller, sys.maxsize)  # callers limit the number of results
        self._pace = intake.pace()
        self._tail = bytearray()

    async def add(self, line: dict[str, Any]) -> None:
        """Add one result. Raises StorageFull."""
        if self._body.length or self._tail:
            self._tail += b","
        self._tail += msgspec.json.encode(line)
        if len(self._tail) >= _TAIL_BYTES:
            slow = asyncio.get_running_loop().time() >= self._pace.slow_at
            await self._body.append(memoryview(self._tail), slow=slow)
            self._tail = bytearray()

    async def end(self) -> None:
        """Finish the list. Raises StorageFull."""
        await self._body.end()

    def answer(self, members: dict[str, Any], status: int, headers: dict[str, str], media_type: str) -> Response:
        """Return a JSON object with `members` and the list as `results`."""
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
    """Closes the results when sending ends, also after an error."""

    results: Results

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.results.close()
