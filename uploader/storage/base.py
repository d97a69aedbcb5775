"""The seam between the use cases and where bytes are kept: what the service needs, and no more.

A second implementation (S3, where a chunk is a part) would be another module beside `local.py`.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from uploader.domain.upload import Upload
from uploader.storage.local.formats import ChunkMap


class Gone(Exception):
    """The bytes are not there (any more)."""


class Busy(Exception):
    """Another worker is computing the digests of this upload."""


class Stopping(Exception):
    """The process is about to end; the work goes on elsewhere or after the next start."""


@dataclass(frozen=True, slots=True)
class Digests:
    """Both digests of the whole content, in lower-case hexadecimal, computed here."""

    md5: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Space:
    """The disk that holds temp and blobs, in bytes."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a walk met: the directory of an upload in temp, or a file of blobs."""

    # Such as `temp/2026/11/<upload_id>` or `blobs/ab/cd/<sha256>`.
    path: str
    # When anything about it last changed, in seconds since the epoch: the ctime, which nobody can set.
    changed_at: float
    # What its removal gives back; what is written back to the disk may still change it.
    disk_bytes: int = field(compare=False)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def is_draft(self) -> bool:
        """Whether it is the bytes of an upload on their way to a blob's place, `<sha256>.<upload_id>`."""
        return "." in self.name


class Body(Protocol):
    """A chunk that was received whole."""

    @property
    def length(self) -> int:
        """Its length in bytes."""

    def pieces(self) -> Iterator[memoryview]:
        """Its bytes in order, from a thread; may be asked for again."""

    def keep(self) -> None:
        """Keep its bytes for one `close` more."""

    def close(self) -> None:
        """Give its bytes up."""


class HeldChunk(Protocol):
    """A chunk that is on disk, its record locked until `release`."""

    @property
    def written(self) -> bool:
        """Whether it was put there just now."""

    def release(self) -> None: ...


class Closer(Protocol):
    """An upload whose every chunk is locked: nothing is written or recorded while this is held."""

    async def read_map(self, *, verified: bool = True) -> ChunkMap:
        """Raises Unverified, unless it may be one that is not `verified`."""

    async def find_bad_chunks(self) -> list[int]:
        """As `Storage.find_bad_chunks`."""

    async def place_blob(self, sha256: str, *, keep_existing: bool) -> None:
        """Make the upload's bytes the blob `sha256`, durably. Repeatable. `keep_existing`: the blob has a row with refs,
        so bytes that are there already are the blob's."""

    async def withdraw(self, numbers: list[int], *, verified: bool = False) -> None:
        """Take chunks off the map, durably, and forget the digests. `verified`: all others are whole. Repeatable."""

    async def unlink(self) -> bool:
        """Remove the upload's bytes; whether this call did it. Repeatable."""


class OpenBlob(Protocol):
    """Finished bytes, open to be read; they stay readable when they are removed meanwhile."""

    async def read(self, length_bytes: int, offset: int) -> bytes:
        """Up to so many bytes; none at the end."""

    async def close(self) -> None: ...


@runtime_checkable
class FileBlob(OpenBlob, Protocol):
    """A blob that is a file of this machine, which the system can send by itself."""

    def fileno(self) -> int:
        """Its descriptor, until `close`."""


class Spool(Protocol):
    """Bytes that nothing is left of once it is closed."""

    async def append(self, content: memoryview) -> None:
        """Raises StorageFull."""

    def read(self, length_bytes: int, offset: int) -> bytes:
        """Up to so many bytes, from a thread."""

    def close(self) -> None: ...


class Storage(Protocol):
    """Where the bytes are."""

    async def prepare(self) -> None:
        """Make ready to store. Raises ConfigurationError if this place is unfit."""

    async def create(self, upload: Upload) -> float:
        """Make room for a new upload, durably, before its row commits. Returns when, as `last_write` would."""

    async def discard(self, upload: Upload) -> bool:
        """Remove an upload's bytes without its locks: its row did not commit, or its map is gone. Repeatable.

        Returns whether this call did it.
        """

    async def remaining(self, uploads: list[Upload]) -> list[Upload]:
        """Those of which any bytes are left, or of which the disk does not tell."""

    async def hold_chunk(self, upload: Upload, number: int, body: Body | None) -> HeldChunk:
        """Put a chunk on disk unless it is there, and keep its record locked; without a body it has to be there.

        The digests follow, as far as there is no gap; a body may be kept until then.
        Raises Gone, StorageFull, Unverified, Unavailable.
        """

    async def keep_pace(self, upload: Upload, number: int) -> None:
        """Wait while the digests are far behind a chunk that was put on disk, and come nearer."""

    def closing(self, upload: Upload) -> AbstractAsyncContextManager[Closer]:
        """Lock all chunks of an upload. Raises Gone, Unavailable."""

    async def read_map(self, upload: Upload) -> ChunkMap:
        """Which chunks are on disk. Raises Gone, Unverified."""

    async def last_write(self, upload: Upload) -> float:
        """When a chunk last arrived, in seconds since the epoch. Raises Gone."""

    async def digest(self, upload: Upload) -> Digests:
        """Both digests of a complete upload, durable like its bytes. Raises Gone, Busy, Stopping."""

    async def digested_bytes(self, upload: Upload) -> int:
        """How far its digests have come, whoever computes them. Raises Gone."""

    async def find_bad_chunks(self, upload: Upload) -> list[int]:
        """The chunks on the map whose bytes do not have the checksum they were stored with. Raises Gone, Stopping."""

    async def open_blob(self, sha256: str) -> OpenBlob:
        """A blob to read. Raises Gone."""

    async def read_blob(self, sha256: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        """The bytes of some ranges, each an offset and a length, of a blob. Raises Gone if they are not there."""

    async def blob_sizes(self, sha256s: list[str]) -> list[int | None]:
        """The sizes of blobs in bytes, in the same order; None where there is none."""

    async def hash_blob(self, sha256: str, pace: Callable[[int], None]) -> str | None:
        """The SHA-256 of a blob's bytes as they are read from the disk now, in lower-case hexadecimal; None if there are
        none. `pace` is told the bytes of every read, in a thread, and may sleep. Raises StorageFailed, Stopping."""

    async def find_blob(self, sha256: str) -> Found | None:
        """A blob's bytes, to `remove` them; None if there are none. The caller holds the lock of its row."""

    async def months(self) -> list[str]:
        """The months that have a directory in temp, such as `2026/11`, the oldest first."""

    def walk_uploads(self, month: str) -> AsyncIterator[list[Found]]:
        """The upload directories of a month, in batches. Raises Stopping."""

    def walk_blobs(self) -> AsyncIterator[list[Found]]:
        """All files of blobs, in batches: named by their SHA-256, or `<sha256>.<upload_id>` if `place_blob` was
        interrupted. Raises Stopping."""

    async def holds_chunks(self, found: Found) -> bool:
        """Whether the upload directory that a walk met has chunks on its map, also where the rest of that is damaged."""

    async def remove(self, found: Found) -> bool:
        """Remove what a walk found, unless it changed since; whether this call did it."""

    async def remove_month(self, month: str) -> None:
        """Remove a month's directory if it is empty, and its year's; safe while uploads are created in it."""

    async def space(self) -> Space: ...

    async def check(self) -> None:
        """Make a byte durable and forget it. Raises StorageFailed; a full disk is no failure."""

    async def open_spool(self) -> Spool:
        """A place for a body that is not kept in memory. Raises StorageFull."""

    def stop(self) -> None:
        """Let long work end with Stopping."""

    async def drain(self) -> None:
        """Wait until the digests have followed what was stored."""

    def close(self) -> None:
        """Give up the threads; nothing is stored after this."""
