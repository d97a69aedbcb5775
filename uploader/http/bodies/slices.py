"""A body that was received whole, taken up again in parts."""

from collections.abc import Callable, Iterable

from uploader.http.bodies.received import ReceivedBody, WholeBody
from uploader.service.append import Part, a_newer_one


class BodySlice:
    """Some bytes of a body, which is kept for them. Close it, as a body."""

    def __init__(self, body: ReceivedBody | WholeBody, start: int, length: int) -> None:
        self._body = body
        self._start = start
        self.length = length
        body.keep()

    def pieces(self) -> Iterable[memoryview]:
        return self._body.pieces_of(self._start, self.length)

    def keep(self) -> None:
        self._body.keep()

    def close(self) -> None:
        self._body.close()


class Reread:
    """A stream of bytes that are here."""

    def __init__(self, body: ReceivedBody | WholeBody) -> None:
        self._body = body
        self._position = 0
        self.declared_bytes = body.length

    async def receive_part(self, _user_id: str, limit_bytes: int, goes_on: Callable[[], bool]) -> Part:
        if not goes_on():
            return Part(BodySlice(self._body, self._position, 0), ended=False, error=a_newer_one())
        length = min(limit_bytes, self.declared_bytes - self._position)
        part = BodySlice(self._body, self._position, length)
        self._position += length
        return Part(part, ended=self._position == self.declared_bytes)

    def stored(self, offset: int) -> None:
        """As `Incoming.stored`."""

    def close(self) -> None:
        self._body.close()
