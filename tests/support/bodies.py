"""Bodies of chunks, as the storage takes them, and of streams, as the service does."""

from collections.abc import Callable, Iterator

from uploader.domain.links import Caller
from uploader.service.append import Part
from uploader.storage.base import Body


def joined(body: Body) -> bytes:
    """All of its bytes."""
    return b"".join(bytes(piece) for piece in body.pieces())


class InPieces:
    """A body that comes in two pieces, and counts those who keep it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.keepers = 1

    @property
    def length(self) -> int:
        return len(self._data)

    def pieces(self) -> Iterator[memoryview]:
        assert self.keepers, "it was given up"
        middle = self.length // 2
        yield memoryview(self._data)[:middle]
        yield memoryview(self._data)[middle:]

    def keep(self) -> None:
        self.keepers += 1

    def close(self) -> None:
        self.keepers -= 1


class Changing(InPieces):
    """Bytes that are others each time they are read: whoever sends them after their digest sends what it is not of."""

    def pieces(self) -> Iterator[memoryview]:
        yield from super().pieces()
        self._data = self._data[1:] + self._data[:1]


class Arrived:
    """A stream that is there."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.declared_bytes = len(data)

    async def receive_part(self, _caller: Caller, limit_bytes: int, _goes_on: Callable[[], bool]) -> Part:
        part, self._data = self._data[:limit_bytes], self._data[limit_bytes:]
        return Part(InPieces(part), ended=not self._data)

    def stored(self, offset: int) -> None:
        """Nobody wants to know."""
