"""The direct path of a body: from the socket into the memory of whoever asks for it, past the parser and its small pieces.

Offered to the application in `scope["extensions"]`, for bodies whose length was told and that came unencrypted; all others
come by ASGI's `receive`. It decides who is given the bytes of a body and nothing else: what a request is and how long
anything may take stays with the protocol and with whoever asks.
"""

import asyncio
import weakref
from typing import TYPE_CHECKING, Protocol

from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from uploader.http.server.read_batching import LowWaterMark

if TYPE_CHECKING:
    from uploader.http.server.http11 import LimitedProtocol

# Under this name `scope["extensions"]` holds the `DirectBody` of a request.
DIRECT_BODY = "uploader.direct_body"

# Of one body, before all other connections have their turn.
_TURN_BYTES = 1 << 20
_NO_ROOM = memoryview(b"")


class Sink(Protocol):
    """Memory that a body is poured into."""

    def room(self) -> memoryview:
        """Where the next bytes go; empty if there is no room now."""

    def advance(self, count: int) -> None:
        """So many bytes were put there."""


class DirectBody:
    """The body of one request."""

    def __init__(self, http: "LimitedProtocol", cycle: RequestResponseCycle, length_bytes: int) -> None:
        # Both refer to this; in a circle the memory of each request would wait for the garbage collector.
        self._http: LimitedProtocol = weakref.proxy(http)
        self._cycle: RequestResponseCycle = weakref.proxy(cycle)
        self._length = length_bytes
        self._poured = 0
        self._read_in_turn = 0
        self._on_wire = 0  # what of it was not read from the socket yet, once the parser sees no more of it
        self._sink: Sink | None = None
        self._room = _NO_ROOM
        self._paused: asyncio.Future[None] | None = None
        self._low_water: LowWaterMark | None = None
        # When a byte last came, by the loop's clock, in seconds.
        self.progressed_at = http.loop.time()

    @property
    def started(self) -> bool:
        """Whether anything was poured: the rest has to be asked for here, too."""
        return self._poured > 0 or self._http.direct is self

    @property
    def ended(self) -> bool:
        """Whether all of it was poured."""
        return self._poured == self._length

    @property
    def waiting_bytes(self) -> int:
        """What came with the head and was not poured."""
        return len(self._cycle.body)

    @property
    def is_whole(self) -> bool:
        """Whether all of it came before anybody asked for any."""
        return self.waiting_bytes == self._length

    def take(self) -> bytes:
        """What is waiting, in place of pouring it: no copy of it, if it is all of the body and came in one piece."""
        self._invite()
        taken, self._cycle.body = bytes(self._cycle.body), bytearray()
        self._poured += len(taken)
        return taken

    async def pour(self, sink: Sink, until: float) -> None:
        """Give bytes to `sink` until it has no room, the body ends, or the loop's clock says `until`.

        Raises ClientDisconnect, also if the rest was taken otherwise: it never comes.
        """
        self._invite()
        self._sink, self._room = sink, sink.room()
        try:
            self._pour_parsed()
            if self._room and not self.ended:
                await self._pour_from_wire(until)
        finally:
            self._sink, self._room = None, _NO_ROOM

    def _invite(self) -> None:
        cycle = self._cycle
        if cycle.waiting_for_100_continue and not self._http.transport.is_closing():
            cycle.waiting_for_100_continue = False
            self._http.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _pour_parsed(self) -> None:
        """What came with the head, or before anybody asked."""
        parsed, start = self._cycle.body, 0
        if not parsed:
            return
        with memoryview(parsed) as view:
            while self._room and start < len(view):
                count = min(len(view) - start, len(self._room))
                self._room[:count] = view[start : start + count]
                start += count
                self._gave(count)
        # A bytearray would keep the memory of what is taken out of it.
        self._cycle.body = parsed[start:]

    async def _pour_from_wire(self, until: float) -> None:
        if self._cycle.disconnected or not self._cycle.more_body:
            raise ClientDisconnect()
        if self._http.direct is None:
            self._on_wire = self._length - self._http.parsed_body_bytes
            self._http.direct = self
            self._low_water = LowWaterMark(self._http.transport, self._http.loop, self._on_wire)
        self._paused = self._http.loop.create_future()
        timer = self._http.loop.call_at(until, self._wake)
        self._http.flow.resume_reading()
        try:
            await self._paused
        finally:
            timer.cancel()
            self._paused = None
            if self._on_wire:
                self._http.flow.pause_reading()
        if self._cycle.disconnected:
            raise ClientDisconnect()

    def _gave(self, count: int) -> None:
        assert self._sink is not None
        self._poured += count
        self._sink.advance(count)
        self._room = self._sink.room()

    def _wake(self) -> None:
        if self._paused is not None and not self._paused.done():
            self._paused.set_result(None)

    # What the connection says

    def buffer(self, scratch: memoryview) -> memoryview:
        """Where the next bytes go, never empty, and never for more than the body: what nobody asks for is dropped."""
        return (self._room or scratch)[: self._on_wire]

    def received(self, count: int) -> None:
        """So many bytes were put there."""
        self.progressed_at = self._http.loop.time()
        self._on_wire -= count
        assert self._low_water is not None
        self._low_water.received(count, self._on_wire)
        if self._room:
            self._gave(count)
        if not self._on_wire:
            self._low_water.end()
            self._http.end_direct_body()
            self._wake()
        elif not self._room:
            self._http.flow.pause_reading()
            self._wake()
        else:
            self._take_turns(count)

    def _take_turns(self, count: int) -> None:
        """A client that sends as fast as it is read would be read on and on, and nobody else be heard."""
        self._read_in_turn += count
        if self._read_in_turn >= _TURN_BYTES:
            self._read_in_turn = 0
            self._http.flow.pause_reading()
            self._http.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._paused is not None and not self._paused.done():
            self._http.flow.resume_reading()

    def lose(self) -> None:
        """The connection is gone."""
        if self._low_water is not None:
            self._low_water.end()
        self._wake()
