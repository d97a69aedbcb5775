"""Bodies of chunks, as the storage takes them."""

from collections.abc import Iterator


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
