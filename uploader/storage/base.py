"""The interface between the services and the stores, split into capabilities: each service takes what it needs.

A store keeps the bytes of open uploads, and blobs, and does housekeeping. It lives as long as its process. The layout is the
store's own business. A *place* is the store's word for the location of an upload, and nobody else reads it.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

from uploader.domain.upload import Tail, Upload, received_bytes
from uploader.errors import Md5Mismatch, Sha256Mismatch, StorageFailed, UploaderError
from uploader.runtime.tasks import all_or_none, uninterrupted

_ID_DIGITS = 32


class Gone(Exception):
    """The bytes are not there (any more)."""


class Busy(Exception):
    """Another worker is computing the digests of this upload."""


class Stopping(Exception):
    """The process is about to end. The work goes on elsewhere, or after the next start."""


class PartDamaged(Exception):
    """The stored bytes of a part are damaged."""


class BytesAltered(Gone):
    """Other bytes lie in the place of a blob."""


@dataclass(frozen=True, slots=True)
class Space:
    """The space of a store with a limit, in bytes."""

    total: int
    # With the bytes in the trash, which is emptied when space is short.
    free: int
    trash: int


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect of an open upload's files, as far as it shows without reading all bytes."""

    # `map` or `data`.
    part: str
    expected: int | str | None
    actual: int | str | None


# Contents


@dataclass(frozen=True, slots=True)
class Found:
    """An entry of a list: the bytes of an upload, or a blob."""

    # The id of the upload, or the SHA-256 of the blob, also in the trash.
    name: str
    place: str
    # Tells these bytes from other bytes at the same place.
    inode: int
    # The time of the last change, in seconds since the epoch, by a clock that nobody can set.
    changed_at: float
    # The bytes that a removal frees. Until all bytes are on the disk, this may change.
    disk_bytes: int = field(compare=False)
    # Of a blob: True for the remains of a blob that was being placed or has gone, under a name that no row has.
    is_draft: bool = False
    in_trash: bool = False
    # Of a blob, in bytes.
    size: int = field(default=0, compare=False)

    @property
    def is_blob(self) -> bool:
        return len(self.name) != _ID_DIGITS


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the list of all blobs."""

    found: list[Found]
    # The end of this part, after which the next part begins: the SHA-256 or the location of a blob, as the store orders
    # them. None: this is the last part.
    until: str | None

    def __iter__(self) -> Iterator[Found]:
        return iter(self.found)


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of a whole content, in lower-case hexadecimal, computed by this server."""

    # None: nobody needs the MD5.
    md5: str | None
    sha256: str

    def are(self, md5: str | None, sha256: str | None) -> bool:
        """Return whether the digests equal the claimed digests; None equals any digest."""
        return md5 in (None, self.md5) and sha256 in (None, self.sha256)


class OpenBlob(Protocol):
    """An open blob. It stays readable after its removal."""

    async def read(self, length_bytes: int, offset: int) -> bytes:
        """Return up to `length_bytes` from `offset` on; none at the end."""

    async def read_all(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of some ranges, each an offset and a length, which fit into memory together. Raises Gone if any
        of them is missing, StorageFailed."""

    async def close(self) -> None: ...


@runtime_checkable
class FileBlob(OpenBlob, Protocol):
    """A blob in a file of this machine: the system can send it by itself."""

    def fileno(self) -> int:
        """Return the descriptor, valid until `close`."""


@runtime_checkable
class ViewedBlob(OpenBlob, Protocol):
    """A blob whose bytes are verified before anybody gets them."""

    def view(self, offset: int, most_bytes: int) -> memoryview:
        """Return bytes from `offset` on, in memory that the next call of this thread overwrites; none at the end. Raises
        BytesAltered, StorageFailed."""


@runtime_checkable
class PresigningBlob(OpenBlob, Protocol):
    """A blob that clients can read from the store itself, whole or in one range, without this server."""

    async def presign(self, seconds: int, disposition: str, media_type: str) -> str:
        """Return a URL by which anybody may begin to read within `seconds`. The response has these headers."""


# Bytes that were read at one go. They are valid until the next piece is asked for.
Piece = bytes | memoryview
# Called in a thread with the number of bytes of every read. It may sleep.
Pace = Callable[[int], None]


# Chunks


class Body(Protocol):
    """A chunk that was received completely."""

    @property
    def length(self) -> int:
        """The length in bytes."""

    def pieces(self) -> Iterable[memoryview]:
        """Yield the bytes in order, in a thread. May be called again."""

    def keep(self) -> None:
        """Keep the bytes for one more `close`."""

    def close(self) -> None:
        """Release the bytes."""


class BytesBody:
    """A body in memory, in one piece."""

    def __init__(self, content: bytes | memoryview) -> None:
        self._content = content
        self.length = len(content)

    def pieces(self) -> Sequence[memoryview]:
        return [memoryview(self._content)]

    def keep(self) -> None:
        """Do nothing: the memory lives as long as its users."""

    def close(self) -> None:
        """Do nothing: the memory lives as long as its users."""


@dataclass(frozen=True, slots=True)
class PresentChunks:
    """The stored chunks of an upload."""

    # 1 or 0 for each chunk.
    present: bytearray
    # The bytes that appends have brought of the first missing chunk.
    tail: Tail | None
    size: int
    chunk_size: int
    # When a chunk last arrived, in seconds since the epoch.
    written_at: float
    # False if the length is known, but the store still has the form for an unknown length.
    settled: bool = True
    # With a defect, chunks count only after their bytes were compared with their checksums.
    defect: Defect | None = None

    @property
    def complete(self) -> bool:
        return all(self.present)

    @property
    def leading_chunks(self) -> int:
        return self.present.find(0) if 0 in self.present else len(self.present)

    @property
    def leading_bytes(self) -> int:
        """The number of bytes before the first gap, where the next append begins."""
        return min(self.leading_chunks * self.chunk_size, self.size) + (self.tail.length if self.tail else 0)

    @property
    def received_bytes(self) -> int:
        return received_bytes(self.present, self.size, self.chunk_size, self.tail)


@dataclass(slots=True, eq=False)
class HeldChunk:
    """A stored chunk, or the first bytes of one. In a store with locks, its record is locked until `release`."""

    # True if this call stored the chunk.
    written: bool

    def release(self) -> None:
        """Release the chunk."""


class Appender(Protocol):
    """The right to append to an upload."""

    @property
    def is_claimed(self) -> bool:
        """Return whether another request wants the right. The holder should end soon then."""

    async def read_map(self) -> PresentChunks:
        """Return the stored chunks. The chunks before the first gap are durable, and so is the tail. Raises Gone,
        Unverified."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The note that nothing more can be stored for an upload until chunks are withdrawn."""

    numbers: list[int]
    # The finding, in the store's own form.
    seen: object


# Reads a chunk of a whole by its number.
ReadPart = Callable[[int], Awaitable[Body]]


@dataclass(slots=True, eq=False)
class Arrival:
    """A whole file, and the progress of storing it. It belongs to one store."""

    body: Body
    # The claimed digests; None: any.
    md5: str | None
    sha256: str | None
    # The computed digests.
    digests: Digests | None = None
    # The checksums of its blocks, if the store keeps them.
    checksums: bytes = b""
    # The reason why it is not stored: wrong claimed digests, or no space.
    error: UploaderError | None = None
    # Where it was stored, in the store's own form.
    place: object = None

    @property
    def sha256_of_bytes(self) -> str:
        """The computed SHA-256."""
        assert self.digests is not None
        return self.digests.sha256

    def compare(self) -> bool:
        """Compare the computed digests with the claimed ones. Return whether they are equal; set the error if not."""
        assert self.digests is not None
        if self.md5 not in (None, self.digests.md5):
            self.error = Md5Mismatch(expected=self.md5, actual=self.digests.md5)
        elif self.sha256 not in (None, self.digests.sha256):
            self.error = Sha256Mismatch(expected=self.sha256, actual=self.digests.sha256)
        return self.error is None


# The capabilities of a store. Every store has the abstract methods. The others are for stores that can do more, or can do it
# in fewer steps.


class UploadBytes(ABC):
    """Keeps the bytes of open uploads."""

    @abstractmethod
    def place_of(self, upload_id: str, opened_at: datetime) -> str:
        """Choose the place of a new upload."""

    @abstractmethod
    async def create(self, upload: Upload, parts: Sequence[Upload] | None = None) -> float:
        """Make a place for a new upload, durably, before its row commits. Return the time, as `last_write` does.

        A whole has the bytes of its `parts` from here on, even after the parts have gone. No byte moves. The caller has
        locked the parts, and nobody else makes this whole. To make it is repeatable.
        """

    @abstractmethod
    async def discard(self, upload: Upload, placed_at: str | None = None) -> bool:
        """Remove the bytes of an upload, with or without its locks, because its row did not commit, or its map is gone.
        Repeatable. `placed_at`: the result of `place_blob`. Return whether this call removed them."""

    async def check_answers(self) -> None:
        """Before a body is received, raise StorageAway if the store is known to take no bytes."""

    @abstractmethod
    async def hold_chunk(self, upload: Upload, number: int, body: Body | None, *, start: int = 0) -> HeldChunk:
        """Store a missing chunk, and keep its record locked. Without a body, the chunk has to be there.

        An appender gives the bytes from `start` on, where the tail ends. If they do not reach the end of the chunk, they
        become the end of the tail, and the chunk has to be the first missing chunk. A whole chunk has to begin with the
        bytes of its tail.

        The digests follow up to the first gap; a body may be kept until then. Raises Gone (also if the tail is another one),
        BytesConflict, StorageFull, Unverified, Unavailable.
        """

    @abstractmethod
    async def read_map(self, upload: Upload, *, verified: bool = True) -> PresentChunks:
        """Return the stored chunks. Raises Gone; and Unverified if the map has to be `verified` first."""

    async def last_write(self, upload: Upload) -> float:
        """Return the time of the last chunk, in seconds since the epoch, even if the map is damaged. Raises Gone."""
        return (await self.read_map(upload, verified=False)).written_at

    @abstractmethod
    def appending(self, upload: Upload) -> AbstractAsyncContextManager[Appender]:
        """Take the right to append to an upload as soon as its holder releases it. No chunk is locked. Raises Gone,
        UploadBusy."""

    @abstractmethod
    def filling(self, whole: Upload) -> AbstractAsyncContextManager[ReadPart]:
        """Take the right to fill a whole. Yield a function that reads the bytes of a chunk from the parts; it raises
        PartDamaged, Gone, Stopping, StorageFailed. Raises Gone, Busy if another call has the right."""

    @abstractmethod
    def locked(self, upload: Upload) -> AbstractAsyncContextManager[None]:
        """Lock all chunks of an upload. Raises Gone, Unavailable."""

    # Under its locks

    @asynccontextmanager
    async def closing(self, upload: Upload) -> AsyncIterator["Closer"]:
        """Lock all chunks as `locked` does, and yield a closer."""
        async with self.locked(upload):
            yield Closer(self, upload)

    @abstractmethod
    async def settle_length(self, upload: Upload) -> bool:
        """Give the bytes the form for the length in the row, if they still have the form for an unknown length. Return
        whether they had. Durable and repeatable. All stored bytes lie within the length."""

    @abstractmethod
    async def place_blob(self, upload: Upload, sha256: str) -> str | None:
        """Make the verified bytes of an upload the blob `sha256`, durably. Repeatable. Other bytes in its place go to the
        trash. In a store with locations this is left to the caller: the new location is returned. A transaction waits for
        this call. Raises Gone if the bytes went or changed since they were verified, Busy if the caller may try again."""

    @abstractmethod
    async def withdraw(
        self, upload: Upload, numbers: list[int], *, generation: int, verified: bool = False, lost: Lost | None = None
    ) -> None:
        """Remove chunks from the map, durably, and the tail if it belongs to the first of them or to a later chunk. Forget
        the digests; new ones are of `generation`. `verified`: all other chunks are whole, and any other damage to the files
        is repaired. `lost`: the result of `find_lost`. Repeatable."""

    async def find_lost(self, upload: Upload) -> Lost | None:
        """Return the note that nothing more can be stored for this upload until chunks are withdrawn; else None."""
        return None

    # Chunks that went bad

    @abstractmethod
    async def find_bad_chunks(self, upload: Upload) -> list[int]:
        """Find the chunks whose bytes can't be read from the disk now, or do not have the checksum of their record. The tail
        is checked, too. Raises Gone, Stopping, StorageFailed."""

    async def check_lost(self, upload: Upload) -> None:
        """Return if missing bytes are lost for good. Raises StorageFailed if the store itself may be missing, Gone if this
        kind of store loses no bytes like this."""
        raise Gone(upload.id)

    async def begin_anew(self, upload: Upload) -> None:
        """Make a place again, durably, for an open upload whose bytes are gone; do nothing if it is there by now. The caller
        has renewed the generation. Repeatable. Raises as `check_lost`, and StorageFull."""
        raise Gone(upload.id)

    # Their digests

    @abstractmethod
    async def digest(self, upload: Upload) -> Digests:
        """Return the digests of a complete upload, after its bytes are durable; with the MD5 if needed. Raises Gone, Busy,
        Stopping."""

    async def forget_digests(self, upload: Upload) -> None:
        """Let the digests be computed anew from the stored bytes, which are all good. Raises Gone, Busy."""

    async def digested_bytes(self, upload: Upload) -> int:
        """Return the position of the digests, in bytes, as far as this process knows it. Raises Gone."""
        return 0

    async def keep_pace(self, upload: Upload, number: int) -> None:
        """Wait while the digests are far behind a stored chunk, and advance."""

    def follow(self, upload: Upload) -> None:
        """Bring the digests up with the chunks, because a digest to compare them with was told just now."""


class Closer:
    """An upload with all chunks locked: nothing is written or recorded while this is held."""

    def __init__(self, store: UploadBytes, upload: Upload) -> None:
        self._store = store
        self._upload = upload
        self._place: str | None = None
        self._lost: Lost | None = None

    async def read_map(self, *, verified: bool = True) -> PresentChunks:
        return await self._store.read_map(self._upload, verified=verified)

    async def settle_length(self, upload: Upload) -> bool:
        self._upload = upload
        return await self._store.settle_length(upload)

    async def place_blob(self, sha256: str) -> str | None:
        self._place = await self._store.place_blob(self._upload, sha256)
        return self._place

    async def unlink(self) -> bool:
        """Remove the upload's bytes. Return whether this call removed them. Repeatable."""
        return await self._store.discard(self._upload, self._place)

    async def find_bad_chunks(self) -> list[int]:
        return await self._store.find_bad_chunks(self._upload)

    async def find_lost(self) -> list[int] | None:
        self._lost = await self._store.find_lost(self._upload)
        return None if self._lost is None else self._lost.numbers

    async def withdraw(self, numbers: list[int], *, generation: int, verified: bool = False) -> None:
        await self._store.withdraw(self._upload, numbers, generation=generation, verified=verified, lost=self._lost)


class BlobBytes(ABC):
    """Keeps blobs and, in the trash, for a while, bytes that would be deleted otherwise."""

    # True if bytes that are put away stay until they are removed from here, even with a short retention.
    keeps_trash: bool

    # Contents that come whole, without an upload

    @abstractmethod
    async def store_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        """Compute the digests of these arrivals, compare them with the claimed ones, and make the bytes durable, before
        there is a row. Housekeeping finds the remains of a crash. Each arrival gets its own error. Raises StorageFailed if
        none is stored."""

    @abstractmethod
    def place_arrivals(self, arrivals: Sequence[Arrival]) -> Mapping[str, str]:
        """Make the arrivals blobs, durably, unless they still are. The caller has the rows locked, and calls this in a
        thread. Return their locations by SHA-256, if the store has locations. Raises StorageFull, StorageFailed."""

    # Reading

    async def open_blob(self, sha256: str, size: int) -> OpenBlob:
        """Open a blob. Raises Gone if it is missing or has another size."""
        found = await self.find_blob(sha256)
        if found is None or found.size != size:
            raise Gone(sha256)
        return await self.open_found(found)

    @abstractmethod
    async def open_found(self, found: Found) -> OpenBlob:
        """Open the bytes of a blob, in the trash or not. Raises Gone."""

    async def read_blob(self, sha256: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of some ranges of a blob, each an offset and a length. Raises Gone if any of them is missing."""
        found = await self.find_blob(sha256)
        if found is None:
            raise Gone(sha256)
        blob = await self.open_found(found)
        try:
            return await blob.read_all(ranges)
        finally:
            await uninterrupted(blob.close())

    async def read_contents(self, contents: Sequence[tuple[str, int]]) -> list[bytes | None]:
        """Return whole blobs, each by its SHA-256 and size, which fit into memory together. None for a blob that can't be
        read like this: reading it alone tells the reason."""

        async def read(sha256: str, size: int) -> bytes | None:
            try:
                blob = await self.open_blob(sha256, size)
                try:
                    (content,) = await blob.read_all([(0, size)])
                finally:
                    await uninterrupted(blob.close())
            except (Gone, StorageFailed):
                return None
            return content

        return await all_or_none(read(*each) for each in contents)

    async def blob_sizes(self, sha256s: list[str]) -> list[int | None]:
        """Return the sizes of blobs in bytes, in the same order; None for a missing blob."""
        found = [await self.find_blob(sha256) for sha256 in sha256s]
        return [None if blob is None else blob.size for blob in found]

    @abstractmethod
    async def find_blob(self, sha256: str) -> Found | None:
        """Find a blob; None if it is missing. To change the blob, hold the lock of its row."""

    # In threads

    @abstractmethod
    def pieces(self, found: Found, *, cold: bool = False) -> Generator[Piece]:
        """Yield the bytes of a blob in order, in the trash or not. `cold`: from the disk, leaving the page cache to others.
        Raises Gone, StorageFailed."""

    def read_beside(self, found: Found) -> bytes | None:
        """Return the bytes that are kept beside a blob; None if there are no usable ones."""
        return None

    def keep_beside(self, found: Found, content: bytes) -> None:
        """Keep bytes beside a blob, to be removed with the blob."""

    # The trash. Bytes are read and compared before they come back from here.

    @abstractmethod
    async def put_away(self, found: Found) -> bool:
        """Move an entry of a list, or of `find_blob`, to the trash, durably, unless it has changed since. Return whether
        this call did it."""

    @abstractmethod
    def list_trash(self, name: str | None = None) -> AsyncIterator[list[Found]]:
        """Yield the entries of the trash in batches, or only the entries of a content or an upload. `changed_at` is the time
        of their arrival. Raises Stopping."""

    async def copies(self, name: str) -> list[Found]:
        """Return the copies of a content or an upload in the trash, the latest first."""
        found = [each async for batch in self.list_trash(name) for each in batch]
        return sorted(found, key=lambda each: each.changed_at, reverse=True)

    async def good_copies(self, contents: Sequence[tuple[str, int]]) -> dict[str, Found]:
        """Find copies in the trash of contents, by SHA-256 and size, whose bytes are whole as they are read now: of those
        contents that a store reads together in a moment."""
        return {}

    async def restore_blobs(self, found: Sequence[Found]) -> str | None:
        """Make the `good_copies` of contents the blobs again, as `restore_blob`, in a store without locations."""
        for each in found:
            await self.restore_blob(each)
        return None

    @abstractmethod
    async def restore_blob(self, found: Found) -> str | None:
        """Make bytes from the trash the blob again, durably. Other bytes in its place go to the trash. In a store with
        locations this is left to the caller: the new location is returned. The caller holds the lock of the row. Repeatable.
        Raises Gone."""

    async def restore_upload(self, found: Found, upload: Upload) -> bool:
        """Give an upload without bytes its bytes back, durably. Return whether this call did it."""
        return False


class Housekeeping(ABC):
    """Lists the contents of a store, whatever the rows say, and removes them. Lists, and `holds_chunks` of listed entries,
    work before the store is prepared. An entry that has gone is a result here, not an error: nothing raises Gone."""

    # True if blobs are listed by the locations in their rows, False if by their SHA-256.
    lists_by_location = False

    @abstractmethod
    async def check(self) -> None:
        """Make a byte durable and remove it. Raises StorageFailed; a full disk is no failure."""

    async def space(self) -> Space | None:
        """Return the present space; None if no limit of the store is known."""
        return None

    @abstractmethod
    def list_uploads(self, opened_before: datetime) -> AsyncIterator[list[Found]]:
        """Yield the uploads that were opened before `opened_before`, as exactly as the store knows, the oldest first, in
        batches. Raises Stopping."""

    @abstractmethod
    def list_blobs(self, after: str = "") -> AsyncIterator[Stretch]:
        """Yield all blobs in order, and the remains of interrupted calls of `place_blob`; or only the blobs after the end of
        a stretch. Raises Stopping."""

    @abstractmethod
    async def remaining(self, uploads: list[Upload]) -> list[Upload]:
        """Return the uploads with any bytes left, or of which the store can't tell."""

    @abstractmethod
    async def holds_chunks(self, found: Found) -> bool:
        """Return whether a listed upload has chunks, even with a damaged map."""

    @abstractmethod
    async def remove(self, found: Found) -> bool:
        """Remove a listed entry for good, in the trash or not, unless it has changed since. Return whether this call did
        it."""

    async def remove_emptied(self, opened_before: datetime) -> None:
        """Remove directories of uploads of that time, if they are empty now. Safe while uploads are created."""
