"""The direct path of a body: from the socket into the memory of its receiver, past the parser and its small pieces.

Offered to the application in `scope["extensions"]`, for bodies whose length was told and that came unencrypted; all others
come by ASGI's `receive`. It decides who is given the bytes of a body and nothing else: what a request is and how long
anything may take stays with the connection and with the receiver.
"""

import asyncio
import weakref
from typing import Protocol

from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from uploader.http.bodies.source import Sink
from uploader.http.server.batching import ReadBatching

# Of one body, before all other connections have their turn.
_TURN_BYTES = 1 << 20
_NO_ROOM = memoryview(b"")
# What is read at once where no body is received: a head and a chunk of 64 KiB fit, and it stays below the size from which
# glibc asks the kernel for new pages each time.
_SCRATCH_BYTES = 96 << 10


class Carrier(Protocol):
    """What a body needs of the connection that it comes by."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    flow: FlowControl
    # The body that is received past the parser now.
    direct: "DirectBody | None"
    # Of the last request's body, what came through the parser.
    parsed_body_bytes: int

    def end_direct_body(self) -> None:
        """All of it was read from the socket."""

    def data_received(self, data: memoryview) -> None:
        """What is no part of it."""


class DirectBody:
    """The body of one request."""

    def __init__(self, carrier: Carrier, cycle: RequestResponseCycle, length_bytes: int) -> None:
        # Both refer to this; in a circle the memory of each request would wait for the garbage collector.
        self._carrier: Carrier = weakref.proxy(carrier)
        self._cycle: RequestResponseCycle = weakref.proxy(cycle)
        self._length = length_bytes
        self._poured = 0
        self._read_in_turn = 0
        self._sink: Sink | None = None
        self._filled = 0  # of the sink's room, what it was not told of yet
        self._paused: asyncio.Future[None] | None = None
        self._batching: ReadBatching | None = None
        # Where the next bytes go; empty if nobody asks for them.
        self.room = _NO_ROOM
        # What of it was not read from the socket yet, once the parser sees no more of it.
        self.on_wire = 0
        # When a byte last came, by the loop's clock, in seconds.
        self.progressed_at = carrier.loop.time()

    @property
    def started(self) -> bool:
        """Whether anything was poured: the rest has to be asked for here, too."""
        return self._poured > 0 or self._carrier.direct is self

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
        self._sink, self.room = sink, sink.room()
        try:
            self._pour_parsed()
            if self.room and not self.ended:
                await self._pour_from_wire(until)
        finally:
            self._tell_sink()
            self._sink, self.room = None, _NO_ROOM

    def _invite(self) -> None:
        cycle = self._cycle
        if cycle.waiting_for_100_continue and not self._carrier.transport.is_closing():
            cycle.waiting_for_100_continue = False
            self._carrier.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _pour_parsed(self) -> None:
        """What came with the head, or before anybody asked."""
        parsed, start = self._cycle.body, 0
        if not parsed:
            return
        with memoryview(parsed) as view:
            while self.room and start < len(view):
                count = min(len(view) - start, len(self.room))
                self.room[:count] = view[start : start + count]
                start += count
                self._give(count)
        # A bytearray would keep the memory of what is taken out of it.
        self._cycle.body = parsed[start:]

    async def _pour_from_wire(self, until: float) -> None:
        if self._cycle.disconnected or not self._cycle.more_body:
            raise ClientDisconnect()
        if self._carrier.direct is None:
            self.on_wire = self._length - self._carrier.parsed_body_bytes
            self._carrier.direct = self
            self._batching = ReadBatching(self._carrier.transport, self._carrier.loop, self.on_wire)
        self._paused = self._carrier.loop.create_future()
        timer = self._carrier.loop.call_at(until, self._wake)
        self._carrier.flow.resume_reading()
        try:
            await self._paused
        finally:
            timer.cancel()
            self._paused = None
            if self.on_wire:
                self._carrier.flow.pause_reading()
        if self._cycle.disconnected:
            raise ClientDisconnect()

    def _give(self, count: int) -> None:
        """So many bytes are in the sink's room, which asks for another one when it is full."""
        self._poured += count
        self._filled += count
        self.room = self.room[count:]
        if not self.room:
            self._tell_sink()
            assert self._sink is not None
            self.room = self._sink.room()

    def _tell_sink(self) -> None:
        if self._filled:
            assert self._sink is not None
            filled, self._filled = self._filled, 0
            self._sink.advance(filled)

    def _wake(self) -> None:
        if self._paused is not None and not self._paused.done():
            self._paused.set_result(None)

    # What the connection says

    def received(self, count: int) -> None:
        """So many bytes were put into the room, or dropped if there was none."""
        assert self._batching is not None
        self.progressed_at = self._carrier.loop.time()
        self.on_wire -= count
        if self._batching.mark_bytes == 1 or self.on_wire < self._batching.mark_bytes:
            self._batching.received(count, self.on_wire)
        else:
            self._batching.progress = True
        if self.room:
            self._give(count)
        if not self.on_wire:
            self._batching.end()
            self._carrier.end_direct_body()
            self._wake()
        elif not self.room:
            self._carrier.flow.pause_reading()
            self._wake()
        else:
            self._take_turns(count)

    def _take_turns(self, count: int) -> None:
        """A client that sends as fast as it is read would be read on and on, and no other client be heard."""
        self._read_in_turn += count
        if self._read_in_turn >= _TURN_BYTES:
            self._read_in_turn = 0
            self._carrier.flow.pause_reading()
            self._carrier.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._paused is not None and not self._paused.done():
            self._carrier.flow.resume_reading()

    def lose(self) -> None:
        """The connection is gone."""
        if self._batching is not None:
            self._batching.end()
        self._wake()


class BufferedReads(asyncio.BufferedProtocol):
    """The reading side of a connection: into the body that is received, or for the parser."""

    # Shared by all: what is read is handed on before the next read.
    _scratch = memoryview(bytearray(_SCRATCH_BYTES))

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Where the next bytes go, never empty, and never for more than a body: what nobody asks for is dropped."""
        direct = self._carrier.direct
        return self._scratch if direct is None else (direct.room or self._scratch)[: direct.on_wire]

    def buffer_updated(self, count: int) -> None:
        direct = self._carrier.direct
        if direct is None:
            self._carrier.data_received(self._scratch[:count])
        else:
            direct.received(count)
