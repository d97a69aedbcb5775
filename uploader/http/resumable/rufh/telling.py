"""Interim responses while a body arrives: how much of it is acknowledged."""

import asyncio
from collections.abc import Callable

from uploader.http.bodies.intake import Incoming
from uploader.http.shared.responses import Interim
from uploader.service.append import Part

SUPPORTED = 104  # Upload Resumption Supported
_PAUSE_SECONDS = 1.0


class ToldBody:
    """A body whose client hears how much of it is acknowledged."""

    def __init__(self, body: Incoming, interim: Interim | None, facts: dict[str, str], offset: int) -> None:
        self._body = body
        self._interim = interim
        self._facts = facts
        self._told = offset
        self._next_at = 0.0

    @property
    def declared_bytes(self) -> int | None:
        return self._body.declared_bytes

    async def receive_part(self, user_id: str, limit_bytes: int, goes_on: Callable[[], bool]) -> Part:
        return await self._body.receive_part(user_id, limit_bytes, goes_on)

    def stored(self, offset: int) -> None:
        now = asyncio.get_running_loop().time()
        if self._interim is None or offset == self._told or now < self._next_at or not self._interim.has_room:
            return
        self._told, self._next_at = offset, now + _PAUSE_SECONDS
        self._interim.send(SUPPORTED, self._facts | {"Upload-Offset": str(offset)})
