"""What the use case of appends reads from: a stream that is on its way, and what comes of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from uploader.errors import UploadBusy
from uploader.storage.base import Body


@dataclass(frozen=True, slots=True)
class Said:
    """What a request says of lengths: of its stream, of the upload, and whether this ends with that."""

    stream_bytes: int | None
    length: int | None
    ends: bool

    def length_from(self, offset: int) -> int | None:
        """The length of an upload that ends at `offset` before this stream, if it is said before the stream comes."""
        if self.length is None and self.ends and self.stream_bytes is not None:
            return offset + self.stream_bytes
        return self.length


@dataclass(frozen=True, slots=True)
class Part:
    """What came of a stream. Close its body."""

    body: Body
    # Whether it was the last.
    ended: bool
    # What ended the stream before its end: a time-out, a newer request, a client that went away.
    error: BaseException | None = None


def a_newer_one() -> UploadBusy:
    """What ends a stream whose upload somebody else wants to append to."""
    return UploadBusy("A newer request appends to this upload.")


class AppendSource(Protocol):
    """A stream that is on its way."""

    @property
    def declared_bytes(self) -> int | None:
        """Its length, if the client has told it."""

    async def receive_part(self, user_id: str, limit_bytes: int, goes_on: Callable[[], bool]) -> Part:
        """What comes next, at most so much: less only at the end of the stream. Raises StorageFull."""

    def stored(self, offset: int) -> None:
        """What of it lies before this offset of the upload is acknowledged, while more is on its way."""


# How the checksum of a body is computed.
Hashing = Callable[[Callable[[], bytes]], Awaitable[bytes]]


class WholeAppend(AppendSource, Protocol):
    """A stream that was received whole. Close it."""

    def close(self) -> None: ...


class CheckedSource(Protocol):
    """A stream that is on its way, and counts as a whole or not at all."""

    @property
    def declared_bytes(self) -> int | None:
        """As `AppendSource.declared_bytes`."""

    async def receive_whole(self, user_id: str, limit_bytes: int, hashing: Hashing) -> WholeAppend:
        """Receive and check it. Raises DigestMismatch, FileTooLarge, BodyTimeout, StorageFull."""
