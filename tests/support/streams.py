"""Bodies of requests as a client sends them: piece by piece, with or without an end."""

import asyncio
from typing import Any

from starlette.requests import Request

from tests.support.stack import Stack
from uploader.http.bodies.intake import Incoming


class Sending:
    """The body of one request, as the server receives it; nothing of it has come in the beginning."""

    def __init__(self, stack: Stack, length: int | None = None) -> None:
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        headers = [] if length is None else [(b"content-length", b"%d" % length)]
        request = Request({"type": "http", "headers": headers}, self._messages.get)
        self.source: Incoming = stack.app.intake.body_of(request)

    @classmethod
    def of(cls, stack: Stack, data: bytes, *, told: bool = True) -> "Sending":
        """All of it at once; `told`: with its length."""
        sending = cls(stack, len(data) if told else None)
        sending.send(data)
        sending.end()
        return sending

    def send(self, data: bytes) -> None:
        self._messages.put_nowait({"type": "http.request", "body": data, "more_body": True})

    async def is_taken(self) -> bool:
        """Whether the server has taken all that was sent into a body; what only waits is lost with the request."""
        return self._messages.empty() and self.source.source.waiting_bytes == 0

    def end(self) -> None:
        self._messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    def leave(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})
