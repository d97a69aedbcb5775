"""Receives bodies whole, before anything is done with them, counted as they arrive.

A body gathers in memory within the budget; where there is no budget, or where it is slow, it moves to the spool. So no
client is refused for lack of memory, and no slow one holds it.
"""

import asyncio
import re

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from uploader.errors import BadRequest, BodyTimeout, ChunkLengthMismatch, InvalidRequest, TooManyRequests
from uploader.http.bodies.received import BodyBudget, ReceivedBody, Segments, WholeBody
from uploader.http.bodies.source import DIRECT_BODY, BodySource, MessageBody
from uploader.settings import Settings
from uploader.storage.base import Body
from uploader.storage.spool import Spool

# A body that takes longer than this moves out of memory; the minimum rate is asked for from here on, too.
_GRACE_SECONDS = 10.0
# JSON is small, and there is no place for it but memory: it has a budget of its own, so that chunks never starve it.
MAX_JSON_BYTES = 256 << 10
_JSON_BUDGET_BYTES = 64 << 20


class _Excess:
    """Room for the one byte that is too many."""

    def __init__(self) -> None:
        self.length = 0

    def room(self) -> memoryview:
        return memoryview(bytearray(1 - self.length))

    def advance(self, count: int) -> None:
        self.length += count


class Incoming:
    """The body of one request, to be received."""

    def __init__(self, intake: "Intake", request: Request) -> None:
        """Raises BadRequest for a length that is no number."""
        self._intake = intake
        self._request = request
        self.declared_bytes = _declared_bytes(request)

    async def receive(self, user_id: str, expected_bytes: int) -> Body:
        """As `Intake.receive`."""
        return await self._intake.receive(source_of(self._request), user_id, expected_bytes)


class Intake:
    """Takes in the bodies of one process, within its limits."""

    def __init__(self, settings: Settings, spool: Spool) -> None:
        self._spool = spool
        self._budget = BodyBudget(settings.body_budget_bytes)
        self._segments = Segments(settings.body_budget_bytes)
        self._json_budget = BodyBudget(_JSON_BUDGET_BYTES)
        self._idle_timeout_seconds = settings.body_idle_timeout_seconds
        self._min_rate_bytes = settings.min_body_rate_bytes

    def body_of(self, request: Request) -> "Incoming":
        """The body of a request that nobody has begun to read. Raises BadRequest for a length that is no number."""
        return Incoming(self, request)

    async def receive(self, source: BodySource, user_id: str, expected_bytes: int) -> Body:
        """A body of exactly `expected_bytes`; one that is longer is cut off at the limit.

        Raises ChunkLengthMismatch, BodyTimeout, StorageFull, and ClientDisconnect if the client went away.
        """
        if source.is_whole and self._budget.charge(user_id, source.waiting_bytes):
            return _checked(WholeBody(self._budget, user_id, source.take()), expected_bytes)
        body = ReceivedBody(self._budget, self._segments, self._spool, user_id, expected_bytes)
        try:
            await self._fill(body, source, expected_bytes)
            await body.end()
        except BaseException:
            body.close()
            raise
        return body

    async def receive_json(self, receive: Receive, user_id: str) -> bytes:
        """A small body, within the idle time-out as a whole.

        Raises InvalidRequest if it is not small, TooManyRequests, BodyTimeout, and ClientDisconnect.
        """
        content, more = bytearray(), True
        try:
            async with asyncio.timeout(self._idle_timeout_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect()
                    piece, more = message.get("body", b""), message.get("more_body", False)
                    if len(content) + len(piece) > MAX_JSON_BYTES:
                        raise InvalidRequest.field("body", f"is longer than {MAX_JSON_BYTES} bytes")
                    if not self._json_budget.charge(user_id, len(piece)):
                        raise TooManyRequests()
                    content += piece
        except TimeoutError as error:
            raise BodyTimeout() from error
        finally:
            self._json_budget.release(user_id, len(content))
        return bytes(content)

    async def _fill(self, body: ReceivedBody, source: BodySource, expected_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        pace = _Pace(loop.time(), self._idle_timeout_seconds, self._min_rate_bytes)
        excess = _Excess()
        while not source.ended:
            whole = body.length == expected_bytes
            if not whole:
                began = loop.time()
                await body.make_room(slow=began >= pace.slow_at)
                if loop.time() != began:
                    pace.ready_at = loop.time()
            look_again_at = pace.late_at(source.progressed_at, body.length)
            if body.in_memory and loop.time() < pace.slow_at:
                look_again_at = min(look_again_at, pace.slow_at)
            await source.pour(excess if whole else body, look_again_at)
            if excess.length:
                raise ChunkLengthMismatch(
                    expected=expected_bytes, received=expected_bytes + excess.length + source.waiting_bytes
                )
            if loop.time() >= pace.late_at(source.progressed_at, body.length):
                raise BodyTimeout()
        if body.length != expected_bytes:
            raise ChunkLengthMismatch(expected=expected_bytes, received=body.length)


def _checked(body: WholeBody, expected_bytes: int) -> WholeBody:
    if body.length != expected_bytes:
        body.close()
        raise ChunkLengthMismatch(expected=expected_bytes, received=body.length)
    return body


class _Pace:
    """When a body stands still for too long, or is slower than it may be; by the loop's clock, in seconds."""

    def __init__(self, started_at: float, idle_timeout_seconds: float, min_rate_bytes: int) -> None:
        self._started_at = started_at
        self._idle_timeout_seconds = idle_timeout_seconds
        self._min_rate_bytes = min_rate_bytes
        self.slow_at = started_at + _GRACE_SECONDS
        # Since when it is waited for: what a busy disk takes is not the client's.
        self.ready_at = started_at

    def late_at(self, progressed_at: float, length: int) -> float:
        """For a body that gets no further than this."""
        still_at = max(progressed_at, self.ready_at) + self._idle_timeout_seconds
        if not self._min_rate_bytes:
            return still_at
        return min(still_at, max(self.slow_at, self._started_at + length / self._min_rate_bytes))


def source_of(request: Request) -> BodySource:
    """The body of a request that nobody has begun to read: past the parser, if the server offers that."""
    offered = request.scope.get("extensions", {}).get(DIRECT_BODY)
    return offered["body"] if offered else MessageBody(request.receive)


def _declared_bytes(request: Request) -> int | None:
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", text.strip()):
        raise BadRequest("Content-Length is not a number.")
    return int(text)
