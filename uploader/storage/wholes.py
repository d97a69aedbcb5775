"""The capability of a store to make a whole of parts, without moving a byte of theirs when they are joined to it."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from uploader.domain.upload import Upload
from uploader.storage.base import Body


class PartDamaged(Exception):
    """The bytes of a part are not those that it was sent."""


class PartBytes(Protocol):
    """The bytes of the parts of a whole, for whoever has the right to fill it."""

    async def chunk(self, number: int) -> Body:
        """The bytes of a chunk of the whole. Raises PartDamaged, Gone, Stopping, StorageFailed."""


class WholeBytes(Protocol):
    """Keeps the bytes of parts for their whole."""

    async def create(self, whole: Upload, parts: Sequence[Upload]) -> None:
        """Make room for a whole, durably, before its row commits; from here on it has the bytes of its parts, whatever
        becomes of them. The caller has locked the parts, and nobody else makes this whole. Repeatable."""

    def filling(self, whole: Upload) -> AbstractAsyncContextManager[PartBytes]:
        """Have the right to fill a whole. Raises Gone, Busy if somebody else has it."""
