"""Receives whole bodies before anybody works with them, and counts them as they arrive. A body gathers in memory within the
budget. If the budget is used up or the body is slow, it moves to the spool: no client is refused for lack of memory, and
slow clients hold none.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from uploader import errors
from uploader.domain.links import Caller
from uploader.http.bodies.body import BodyBudget, ReceivedBody, Segments, WholeBody
from uploader.runtime.meter import BYTE_SECONDS, JSON_BYTE_SECONDS, Kind, charge, go_on, pause
from uploader.runtime.tasks import uninterrupted
from uploader.service.append import Part, a_newer_one
from uploader.settings import Settings
from uploader.storage.store import Spool

# A slower body moves to the spool; the minimum rate also applies only after this time.
GRACE_SECONDS = 10.0

# The key in `scope["extensions"]` for `{"body": DirectSource}`, if the server offers one for the request.
DIRECT_BODY = "uploader.direct_body"
# The key in `scope["extensions"]` for `{"fields": trailers}`, if the request announces trailers. Filled when the body has
# ended; names are in lower case.
TRAILERS = "uploader.trailers"

# JSON bodies are small and always in memory. They have a separate budget, which chunks cannot use up.
MAX_JSON_BYTES = 256 << 10
_JSON_BUDGET_BYTES = 64 << 20
# Bytes per read for bodies that are processed while they arrive.
PIECE_BYTES = 256 << 10
_DRAIN_BYTES = 64 << 10
# How often `goes_on` is asked while a part of a body is received.
_LOOK_SECONDS = 0.25
# How long the next part of a stream waits for memory. Earlier parts hold most of it while they are stored or hashed; moving
# to the spool would take longer.
_PATIENCE_SECONDS = 0.25


_Receiving = Coroutine[Any, Any, ReceivedBody | WholeBody]


class Pace:
    """The limits of a slow body: idle time and minimum rate. Times are of the loop's clock, in seconds."""

    def __init__(self, started_at: float, idle_timeout_seconds: float, min_rate_bytes: int) -> None:
        self._started_at = started_at
        self._idle_timeout_seconds = idle_timeout_seconds
        self._min_rate_bytes = min_rate_bytes
        self.slow_at = started_at + GRACE_SECONDS
        # The time since which the server waits for the client.
        self._ready_at = started_at

    def excuse(self, since: float, now: float) -> None:
        """Do not count the time between `since` and `now` against the client: the server was busy."""
        if now == since:
            return
        self._started_at += now - since
        self.slow_at += now - since
        self._ready_at = now

    def late_at(self, progressed_at: float, length: int) -> float:
        """Return the time at which a body with this progress is late."""
        still_at = max(progressed_at, self._ready_at) + self._idle_timeout_seconds
        if not self._min_rate_bytes:
            return still_at
        return min(still_at, max(self.slow_at, self._started_at + length / self._min_rate_bytes))


class Sink(Protocol):
    """Memory into which a body is poured."""

    def room(self) -> memoryview:
        """Return the memory for the next bytes; empty if there is none now."""

    def advance(self, count: int) -> None:
        """Note bytes that were put into the room; called at the latest when the pouring ends."""


class BodySource(Protocol):
    """A body that is arriving."""

    @property
    def ended(self) -> bool:
        """Return True if all bytes were poured."""

    @property
    def is_whole(self) -> bool:
        """Return True if the complete body is waiting, and nothing was poured."""

    def take(self) -> bytes:
        """Return the waiting bytes instead of pouring them."""

    @property
    def progressed_at(self) -> float:
        """Return the time of the last byte, or of the start (loop clock, seconds)."""

    @property
    def waiting_bytes(self) -> int:
        """Return the number of bytes that arrived and were not poured, as far as known."""

    async def pour(self, sink: Sink, until: float) -> None:
        """Give bytes to `sink` until it has no room, the body ends, or the loop's clock reaches `until`. Raises
        ClientDisconnect."""


class DirectSource(BodySource, Protocol):
    """A body read from the socket without the HTTP parser."""

    @property
    def is_waited_for(self) -> bool:
        """Return True if the reading waits only for the client."""

    @property
    def started(self) -> bool:
        """Return True if bytes were poured; then the rest must also be read here."""


class MessageBody:
    """A body that arrives in ASGI messages."""

    # Unknown until the first message.
    is_whole = False

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._rest = memoryview(b"")
        self._more = True
        self.progressed_at = asyncio.get_running_loop().time()

    @property
    def ended(self) -> bool:
        return not self._more and not self._rest

    @property
    def waiting_bytes(self) -> int:
        return len(self._rest)

    def take(self) -> bytes:
        taken, self._rest = bytes(self._rest), memoryview(b"")
        return taken

    async def pour(self, sink: Sink, until: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while (room := sink.room()) and not self.ended:
                    if not self._rest:
                        await self._next()
                    count = min(len(self._rest), len(room))
                    room[:count] = self._rest[:count]
                    self._rest = self._rest[count:]
                    sink.advance(count)

    async def _next(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect()
        self._rest = memoryview(message.get("body", b""))
        self._more = message.get("more_body", False)
        if self._rest:
            self.progressed_at = asyncio.get_running_loop().time()


class PieceReader:
    """Reads a body in pieces. The time that the taker spends between two pieces does not count against the client."""

    def __init__(self, source: BodySource, pace: Pace, too_slow: str | None = None) -> None:
        self._source = source
        self._pace = pace
        self._too_slow = too_slow
        self._memory = memoryview(bytearray(PIECE_BYTES))
        self._length = 0
        self._received = 0
        self._read_at = asyncio.get_running_loop().time()
        # Why the last piece came before the end of the body.
        self.failure: errors.BodyTimeout | ClientDisconnect | None = None

    @property
    def ended(self) -> bool:
        return self._source.ended

    def room(self) -> memoryview:
        return self._memory[self._length :]

    def advance(self, count: int) -> None:
        self._length += count

    async def read(self) -> memoryview:
        """Return the next piece, valid until the next call. If `failure` is set, the piece holds the bytes before the
        failure."""
        loop = asyncio.get_running_loop()
        pause()
        self._pace.excuse(self._read_at, loop.time())
        self._length = 0
        try:
            await self._source.pour(self, self._pace.late_at(self._source.progressed_at, self._received))
        except ClientDisconnect as error:
            self.failure = error
        self._received += self._length
        self._read_at = loop.time()
        late = self._read_at >= self._pace.late_at(self._source.progressed_at, self._received)
        if late and not self.ended:
            self.failure = self.failure or errors.BodyTimeout(self._too_slow)
        await go_on(Kind.RECEIVED, self._length)
        return self._memory[: self._length]


class Drain:
    """Discards bytes, up to a limit."""

    def __init__(self, most_bytes: int) -> None:
        self.length = 0
        self._most_bytes = most_bytes
        self._memory = memoryview(bytearray(min(most_bytes, _DRAIN_BYTES)))

    def room(self) -> memoryview:
        return self._memory[: self._most_bytes - self.length]

    def advance(self, count: int) -> None:
        self.length += count


@dataclass(frozen=True, slots=True)
class Incoming:
    """The body of a request, before it is received."""

    intake: "Intake"
    source: BodySource
    declared_bytes: int | None = None

    # Not `async`: each coroutine in between would be resumed with every wait.
    def receive(self, caller: Caller, expected_bytes: int) -> _Receiving:
        """Receive exactly `expected_bytes`; stop if the body is longer. Raises ChunkLengthMismatch, BodyTimeout,
        StorageFull, ClientDisconnect."""
        return self._gather(caller, expected_bytes, exactly=True)

    def receive_up_to(self, caller: Caller, limit_bytes: int) -> _Receiving:
        """Receive the declared length, or up to the limit if none was declared. Raises FileTooLarge, and the errors of
        `receive`."""
        if self.declared_bytes is None:
            return self._gather(caller, limit_bytes, exactly=False)
        if self.declared_bytes > limit_bytes:
            raise errors.FileTooLarge(limit=limit_bytes)
        return self._gather(caller, self.declared_bytes, exactly=True)

    async def _gather(self, caller: Caller, most_bytes: int, *, exactly: bool) -> ReceivedBody | WholeBody:
        source, budget = self.source, self.intake._budget
        if source.is_whole and budget.charge(caller, source.waiting_bytes):
            whole = WholeBody(budget, caller, source.take())
            charge(Kind.RECEIVED, whole.length * BYTE_SECONDS)
            try:
                _check_length(whole.length, most_bytes, exactly=exactly)
            except errors.UploaderError:
                whole.close()
                raise
            return whole
        body = self.intake.gathering(caller, most_bytes)
        try:
            _check_length(await self._fill(body, most_bytes), most_bytes, exactly=exactly)
            await body.end()
        except BaseException:
            body.close()
            raise
        finally:
            charge(Kind.RECEIVED, body.length * BYTE_SECONDS)
        return body

    async def _fill(self, body: ReceivedBody, most_bytes: int) -> int:
        """Fill `body`. Return the length of the body, at least as far as it is known."""
        loop, source = asyncio.get_running_loop(), self.source
        pace, excess = self.intake.pace(), Drain(1)  # holds the first byte beyond the limit
        while not source.ended:
            if body.length == most_bytes:
                await source.pour(excess, pace.late_at(source.progressed_at, body.length))
            else:
                await source.pour(body, await self._make_room(body, pace))
            if excess.length:
                return body.length + excess.length + source.waiting_bytes
            if loop.time() >= pace.late_at(source.progressed_at, body.length):
                raise errors.BodyTimeout()
        return body.length

    async def receive_part(self, caller: Caller, limit_bytes: int, goes_on: Callable[[], bool]) -> Part:
        """Receive up to `limit_bytes`, and say why no more came. An error does not lose the received bytes: the next part
        continues after them. `goes_on` is asked repeatedly if the part is still wanted. Raises StorageFull."""
        source, budget = self.source, self.intake._budget
        is_here = source.is_whole and source.waiting_bytes <= limit_bytes
        if is_here and budget.charge(caller, source.waiting_bytes):
            return Part(WholeBody(budget, caller, source.take()), ended=True)
        body = self.intake.gathering(caller, limit_bytes)
        try:
            error = await self._fill_part(body, limit_bytes, goes_on)
            if not body.in_memory:
                ending = asyncio.create_task(body.end())
                try:
                    await uninterrupted(ending)
                except asyncio.CancelledError as cancelled:
                    ending.result()
                    error = cancelled
        except BaseException:
            body.close()
            raise
        finally:
            charge(Kind.RECEIVED, body.length * BYTE_SECONDS)
        return Part(body, ended=source.ended, error=error)

    def stored(self, offset: int) -> None:
        """Do nothing: the client learns of stored bytes at the end."""

    async def _fill_part(
        self, body: ReceivedBody, limit_bytes: int, goes_on: Callable[[], bool]
    ) -> BaseException | None:
        loop, source = asyncio.get_running_loop(), self.source
        pace, is_wanted = self.intake.pace(), True
        try:
            while not source.ended and body.length < limit_bytes:
                if not is_wanted:  # the bytes already received were taken in a last round
                    return a_newer_one()
                is_wanted = goes_on()
                look_again_at = await self._make_room(body, pace, _PATIENCE_SECONDS)
                await source.pour(body, min(look_again_at, loop.time() + (_LOOK_SECONDS if is_wanted else 0.0)))
                if loop.time() >= pace.late_at(source.progressed_at, body.length):
                    return errors.BodyTimeout("The body came too slowly; its bytes so far are kept.")
        except (ClientDisconnect, asyncio.CancelledError) as ending:
            return ending
        return None

    async def _make_room(self, body: ReceivedBody, pace: Pace, patience_seconds: float = 0.0) -> float:
        """Make room for the next bytes. Return the time of the next check of the pace. Raises StorageFull."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await body.make_room(slow=began >= pace.slow_at, patience_seconds=patience_seconds)
        pace.excuse(began, loop.time())
        late_at = pace.late_at(self.source.progressed_at, body.length)
        return min(late_at, pace.slow_at) if body.in_memory and loop.time() < pace.slow_at else late_at


class Intake:
    def __init__(self, settings: Settings, spool: Spool) -> None:
        self._spool = spool
        self._budget = BodyBudget(settings.body_budget_bytes)
        self._segments = Segments(settings.body_budget_bytes)
        self._json_budget = BodyBudget(_JSON_BUDGET_BYTES)
        self._idle_timeout_seconds = settings.body_idle_timeout_seconds
        self._min_rate_bytes = settings.min_body_rate_bytes

    def body_of(self, request: Request) -> Incoming:
        """Raises BadRequest for an invalid Content-Length."""
        length = request.headers.get("content-length")
        if length is not None and not re.fullmatch(r"[0-9]{1,19}", length.strip()):
            raise errors.BadRequest("Content-Length is not a number.")
        return Incoming(self, source_of(request), None if length is None else int(length))

    async def receive_json(self, receive: Receive, caller: Caller, most_bytes: int = MAX_JSON_BYTES) -> bytes:
        """Receive a small body within the idle timeout. Raises InvalidRequest if it is larger, TooManyRequests, BodyTimeout,
        ClientDisconnect."""
        content, more = bytearray(), True
        try:
            async with asyncio.timeout(self._idle_timeout_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect()
                    piece, more = message.get("body", b""), message.get("more_body", False)
                    if len(content) + len(piece) > most_bytes:
                        raise errors.InvalidRequest.field("body", f"is longer than {most_bytes} bytes")
                    if not self._json_budget.charge(caller, len(piece)):
                        raise errors.TooManyRequests()
                    content += piece
        except TimeoutError as error:
            raise errors.BodyTimeout() from error
        finally:
            self._json_budget.release(caller, len(content))
            charge(Kind.JSON, len(content) * JSON_BYTE_SECONDS)
        return bytes(content)

    def whole(self, caller: Caller, content: memoryview) -> WholeBody | None:
        """Copy the content into a body; return None if the budget does not allow it."""
        if not self._budget.charge(caller, len(content)):
            return None
        return WholeBody(self._budget, caller, bytes(content))

    def gathering(self, caller: Caller, limit_bytes: int) -> ReceivedBody:
        return ReceivedBody(self._budget, self._segments, self._spool, caller, limit_bytes)

    def pace(self) -> Pace:
        now = asyncio.get_running_loop().time()
        return Pace(now, self._idle_timeout_seconds, self._min_rate_bytes)


def _check_length(length: int, most_bytes: int, *, exactly: bool) -> None:
    """Raises ChunkLengthMismatch, FileTooLarge."""
    if exactly and length != most_bytes:
        raise errors.ChunkLengthMismatch(expected=most_bytes, received=length)
    if length > most_bytes:
        raise errors.FileTooLarge(limit=most_bytes)


def source_of(request: Request) -> BodySource:
    """Return the unread body of a request; read without the parser if the server offers that."""
    offered = request.scope.get("extensions", {}).get(DIRECT_BODY)
    return offered["body"] if offered else MessageBody(request.receive)
