"""The seam to where contents are kept: their bytes, called blobs, and the trash. See `base.py` for the whole store."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from uploader.domain.upload import Upload

_ID_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Found:
    """What a list met: the bytes of an upload, or those of a blob."""

    # The id of the upload, or the SHA-256 of the blob; in the trash, too.
    name: str
    place: str
    # Tells them from other bytes at the same place.
    inode: int
    # When anything about it last changed, in seconds since the epoch, by a clock that nobody can set.
    changed_at: float
    # What its removal gives back; what is written back to the disk may still change it.
    disk_bytes: int = field(compare=False)
    # Of a blob: whether it is what was left on its way to its place, or of a blob that went, under a name that no row has.
    is_draft: bool = False

    @property
    def is_blob(self) -> bool:
        """Whether these are the bytes of a blob, not of an upload."""
        return len(self.name) != _ID_DIGITS


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of the whole content, in lower-case hexadecimal, computed here."""

    # None: nobody needs it.
    md5: str | None
    sha256: str

    def are(self, md5: str | None, sha256: str | None) -> bool:
        """Whether they are what was claimed; None: anything."""
        return md5 in (None, self.md5) and sha256 in (None, self.sha256)


class OpenBlob(Protocol):
    """Finished bytes, open to be read; they stay readable when they are removed meanwhile."""

    async def read(self, length_bytes: int, offset: int) -> bytes:
        """Up to so many bytes; none at the end."""

    async def read_all(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of some ranges, each an offset and a length, that fit into memory together. Raises Gone if they are not
        all there, StorageFailed."""

    async def close(self) -> None: ...


@runtime_checkable
class FileBlob(OpenBlob, Protocol):
    """A blob that is a file of this machine, which the system can send by itself."""

    def fileno(self) -> int:
        """Its descriptor, until `close`."""


@runtime_checkable
class PresigningBlob(OpenBlob, Protocol):
    """A blob that others can be sent to: they read it where it lies, whole or in one range, without this server."""

    async def presign(self, seconds: int, disposition: str, media_type: str) -> str:
        """A URL that anybody may begin to read by, for so long; what comes has these headers."""


@dataclass(frozen=True, slots=True)
class OpenSignature:
    """The signature of a blob: a part of something that is open to be read."""

    blob: OpenBlob
    offset: int
    length: int


# Is told the bytes of every read, in a thread, and may sleep.
Pace = Callable[[int], None]


class BlobBytes(Protocol):
    """Keeps blobs. Placing one is the closer's, because its bytes are an upload's."""

    async def open_blob(self, sha256: str, size: int) -> OpenBlob:
        """A blob to read. Raises Gone if it is not there, or has another size."""

    async def read_blob(self, sha256: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        """The bytes of some ranges, each an offset and a length, of a blob. Raises Gone if they are not there."""

    async def open_signature(self, sha256: str, size: int) -> OpenSignature:
        """The signature of a blob, to read; computed where it is not kept, which takes as long as reading the blob. Raises
        Gone if the blob is not there, or is something else; StorageFull, StorageFailed, Stopping."""

    async def blob_sizes(self, sha256s: list[str]) -> list[int | None]:
        """The sizes of blobs in bytes, in the same order; None where there is none."""

    async def hash_blob(self, found: Found, pace: Pace | None, *, with_md5: bool) -> Digests | None:
        """The digests of bytes of a blob, in the trash or not, as they are read from the disk now; None if there are none.
        With a `pace` it gives way to everything else. Raises StorageFailed, Stopping."""

    async def find_blob(self, sha256: str) -> Found | None:
        """A blob's bytes; None if there are none. Who acts on them holds the lock of its row."""


class Trash(Protocol):
    """Keeps for a while what would be deleted otherwise. What comes back from here is read and compared first."""

    keeps: bool
    """Whether what is put away stays until it is removed from here, however short the retention is."""

    async def put_away(self, found: Found) -> bool:
        """Move to the trash what a list or `find_blob` met, durably, unless it changed since; whether this call did it."""

    def list_all(self) -> AsyncIterator[list[Found]]:
        """All that is there, in batches. `changed_at` is when it came. Raises Stopping."""

    async def copies(self, sha256: str) -> list[Found]:
        """The bytes that are there of a content, those that came last first."""

    async def put_away_of(self, upload: Upload) -> list[Found]:
        """What is there of an upload."""

    async def open(self, found: Found) -> OpenBlob:
        """Bytes from here, to read. Raises Gone."""

    async def restore_blob(self, found: Found) -> str | None:
        """Make bytes from here the blob again, durably. Others at its place go to the trash: by the caller, who is told
        where the blob is now, if the store has locations. The caller holds the lock of the row. Repeatable. Raises Gone."""

    async def restore_upload(self, found: Found, upload: Upload) -> bool:
        """Give an upload its bytes back, durably, unless it has any; whether this call did it."""

    async def remove(self, found: Found) -> bool:
        """Remove for good, unless it changed since; whether this call did it."""
