"""Where the bytes of a body come from, and where they are poured: the two sides of receiving."""

import asyncio
from contextlib import suppress
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.types import Receive

# Under this name `scope["extensions"]` holds `{"body": a DirectSource}`, where the server offers one for a request.
DIRECT_BODY = "uploader.direct_body"
# And under this one, for a request that announces trailers, `{"fields": those that came}`, once all of its body has: each
# name in lower case, with its value.
TRAILERS = "uploader.trailers"


class Sink(Protocol):
    """Memory that a body is poured into."""

    def room(self) -> memoryview:
        """Where the next bytes go; empty if there is no room now."""

    def advance(self, count: int) -> None:
        """So many bytes were put there, at the latest when the pouring ends."""


class Piece:
    """What was read of a body, and not yet looked at."""

    def __init__(self, size_bytes: int) -> None:
        self._memory = memoryview(bytearray(size_bytes))
        self.length = 0

    def room(self) -> memoryview:
        return self._memory[self.length :]

    def advance(self, count: int) -> None:
        self.length += count

    def take(self) -> memoryview:
        """What was read; good until the next is."""
        taken, self.length = self._memory[: self.length], 0
        return taken


class BodySource(Protocol):
    """A body that is on its way."""

    @property
    def ended(self) -> bool:
        """Whether all of it was poured."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it is waiting, and nothing was poured."""

    def take(self) -> bytes:
        """What is waiting, in place of pouring it."""

    @property
    def progressed_at(self) -> float:
        """When a byte last came, or when it began, by the loop's clock, in seconds."""

    @property
    def waiting_bytes(self) -> int:
        """What has come beyond that, as far as is known."""

    async def pour(self, sink: Sink, until: float) -> None:
        """Give bytes to `sink` until it has no room, the body ends, or the loop's clock says `until`.

        Raises ClientDisconnect.
        """


class DirectSource(BodySource, Protocol):
    """A body that the server reads past its parser."""

    @property
    def started(self) -> bool:
        """Whether anything was poured: the rest has to be asked for here, too."""


class MessageBody:
    """A body in ASGI's messages."""

    # It may be, but nobody asked.
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
