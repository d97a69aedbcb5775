"""Bodies of requests as a server of ASGI hands them on."""

import asyncio

from starlette.types import Message


class Sender:
    """An ASGI `receive` that gives these pieces, and then is at its end, has a `disconnect`, or is in `silence`."""

    def __init__(self, *pieces: bytes, then: str = "end", delay_seconds: float = 0) -> None:
        more = [True] * (len(pieces) - 1) + [then != "end"]
        self._messages: list[Message] = [
            {"type": "http.request", "body": piece, "more_body": flag} for piece, flag in zip(pieces, more, strict=True)
        ]
        if then == "disconnect":
            self._messages.append({"type": "http.disconnect"})
        self._delay_seconds = delay_seconds
        self.asked = 0

    async def receive(self) -> Message:
        if self.asked > 0:
            await asyncio.sleep(self._delay_seconds)
        self.asked += 1
        if self.asked > len(self._messages):
            await asyncio.Event().wait()
        return self._messages[self.asked - 1]
