"""The seam between the use cases and where bytes are kept, in capabilities: each service takes those that it needs.

A store keeps the bytes of open uploads, and blobs; it is looked after; and it lives as long as its process. What lies where
is the store's own business: a *place* is its word for where it keeps an upload, and nobody else reads it.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

from uploader.domain.upload import Tail, Upload, received_bytes
from uploader.errors import Md5Mismatch, Sha256Mismatch, StorageFailed, UploaderError
from uploader.tasks import all_or_none, uninterrupted

_ID_DIGITS = 32


class Gone(Exception):
    """The bytes are not there (any more)."""


class Busy(Exception):
    """Another worker is computing the digests of this upload."""


class Stopping(Exception):
    """The process is about to end; the work goes on elsewhere or after the next start."""


class PartDamaged(Exception):
    """The bytes of a part are not those that it was sent."""


class BytesAltered(Gone):
    """Other bytes are there, in the place of those of a blob."""


@dataclass(frozen=True, slots=True)
class Space:
    """The room of a store that has a bound, in bytes."""

    total: int
    # With what the trash holds: it is emptied where room is short.
    free: int
    trash: int


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect of the bytes of an open upload, as far as it shows without reading them."""

    # Its `map`, or its `data`.
    part: str
    expected: int | str | None
    actual: int | str | None


# Contents


@dataclass(frozen=True, slots=True)
class Found:
    """An entry of a list: the bytes of an upload, or those of a blob."""

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
    # The next part comes after this: the SHA-256 of a blob, or its location, as the store orders them; None: this is the
    # last part.
    until: str | None

    def __iter__(self) -> Iterator[Found]:
        return iter(self.found)


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of the whole content, in lower-case hexadecimal, computed here."""

    # None: nobody needs it.
    md5: str | None
    sha256: str

    def are(self, md5: str | None, sha256: str | None) -> bool:
        """Return whether they are what was claimed; None: anything."""
        return md5 in (None, self.md5) and sha256 in (None, self.sha256)


class OpenBlob(Protocol):
    """Finished bytes, open to be read; they stay readable when they are removed meanwhile."""

    async def read(self, length_bytes: int, offset: int) -> bytes:
        """Up to so many bytes; none at the end."""

    async def read_all(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read the bytes of some ranges, each an offset and a length, that fit into memory together. Raises Gone if
        they are not all there, StorageFailed."""

    async def close(self) -> None: ...


@runtime_checkable
class FileBlob(OpenBlob, Protocol):
    """A blob that is a file of this machine, which the system can send by itself."""

    def fileno(self) -> int:
        """Return its descriptor, until `close`."""


@runtime_checkable
class ViewedBlob(OpenBlob, Protocol):
    """A blob whose bytes are compared before anybody has them."""

    def view(self, offset: int, most_bytes: int) -> memoryview:
        """Return bytes from there on, in the memory of this thread until it asks for others; none at the end. Raises
        BytesAltered, StorageFailed."""


@runtime_checkable
class PresigningBlob(OpenBlob, Protocol):
    """A blob that others can be sent to: they read it where it lies, whole or in one range, without this server."""

    async def presign(self, seconds: int, disposition: str, media_type: str) -> str:
        """Return a URL that anybody may begin to read by, for so long; what comes has these headers."""


# What is read at one go; it lives until the next one is asked for.
Piece = bytes | memoryview
# Is told the bytes of every read, in a thread, and may sleep.
Pace = Callable[[int], None]


# Chunks


class Body(Protocol):
    """A chunk that was received whole."""

    @property
    def length(self) -> int:
        """Its length in bytes."""

    def pieces(self) -> Iterable[memoryview]:
        """Yield its bytes in order, from a thread; may be asked for again."""

    def keep(self) -> None:
        """Keep its bytes for one `close` more."""

    def close(self) -> None:
        """Give its bytes up."""


class BytesBody:
    """A body that lies in memory, of one piece."""

    def __init__(self, content: bytes | memoryview) -> None:
        self._content = content
        self.length = len(content)

    def pieces(self) -> Sequence[memoryview]:
        return [memoryview(self._content)]

    def keep(self) -> None:
        """Do nothing: it is kept as long as anybody has it."""

    def close(self) -> None:
        """Do nothing: it is kept as long as anybody has it."""


@dataclass(frozen=True, slots=True)
class PresentChunks:
    """The chunks of an upload that are stored."""

    # For each chunk 1 or 0.
    present: bytearray
    # What appends have brought of the first chunk that is not stored.
    tail: Tail | None
    size: int
    chunk_size: int
    # When a chunk last arrived, in seconds since the epoch.
    written_at: float
    # False where the length is known, and the bytes are still those of an upload of which it is not.
    settled: bool = True
    # Where there is any, chunks count only once their bytes were compared with their checksums.
    defect: Defect | None = None

    @property
    def complete(self) -> bool:
        return all(self.present)

    @property
    def leading_chunks(self) -> int:
        return self.present.find(0) if 0 in self.present else len(self.present)

    @property
    def leading_bytes(self) -> int:
        """The number of bytes before the first gap: where the next append begins."""
        return min(self.leading_chunks * self.chunk_size, self.size) + (self.tail.length if self.tail else 0)

    @property
    def received_bytes(self) -> int:
        return received_bytes(self.present, self.size, self.chunk_size, self.tail)


@dataclass(slots=True, eq=False)
class HeldChunk:
    """A chunk that is stored, or the first bytes of one. Where a store locks, its record is locked until `release`."""

    # Whether it was stored just now.
    written: bool

    def release(self) -> None:
        """Let go of it."""


class Appender(Protocol):
    """The right to append to an upload."""

    @property
    def is_claimed(self) -> bool:
        """Return whether somebody else wants it: its holder ends soon."""

    async def read_map(self) -> PresentChunks:
        """Read which chunks are stored; those before the first gap are durable, and so is the tail. Raises Gone,
        Unverified."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The note about an upload for which nothing can be stored any more until it is withdrawn."""

    numbers: list[int]
    # What the store has seen, in a word of its own.
    seen: object


# Reads a chunk of a whole.
ReadPart = Callable[[int], Awaitable[Body]]


@dataclass(slots=True, eq=False)
class Arrival:
    """A content that came whole, and where its storing stands. It belongs to one store."""

    body: Body
    # What it was claimed to be; None: anything.
    md5: str | None
    sha256: str | None
    # What it is.
    digests: Digests | None = None
    # Of its blocks, where the store keeps such.
    checksums: bytes = b""
    # Why it is not stored: it is something else than was claimed, or there is no room.
    error: UploaderError | None = None
    # Where it was stored, in a word of the store's own.
    place: object = None

    @property
    def sha256_of_bytes(self) -> str:
        """Its SHA-256, once it was digested."""
        assert self.digests is not None
        return self.digests.sha256

    def compare(self) -> bool:
        """Return whether it is what it was claimed to be, once it was digested; else it has the error."""
        assert self.digests is not None
        if self.md5 not in (None, self.digests.md5):
            self.error = Md5Mismatch(expected=self.md5, actual=self.digests.md5)
        elif self.sha256 not in (None, self.digests.sha256):
            self.error = Sha256Mismatch(expected=self.sha256, actual=self.digests.sha256)
        return self.error is None


# The capabilities of a store. What is abstract every store has to do; the rest only those that can do more, or can do it in
# fewer steps.


class UploadBytes(ABC):
    """Keeps the bytes of open uploads."""

    @abstractmethod
    def place_of(self, upload_id: str, opened_at: datetime) -> str:
        """Choose the place of a new upload."""

    @abstractmethod
    async def create(self, upload: Upload, parts: Sequence[Upload] | None = None) -> float:
        """Make room for a new upload, durably, before its row commits. Returns when, as `last_write` would.

        A whole has the bytes of its `parts` from here on, whatever becomes of them. No byte moves. The caller has locked the
        parts, and nobody else makes this whole; to make one is repeatable.
        """

    @abstractmethod
    async def discard(self, upload: Upload, placed_at: str | None = None) -> bool:
        """Remove an upload's bytes, with its locks or without them: its row did not commit, or its map is gone. Repeatable.
        `placed_at`: what `place_blob` has returned. Returns whether this call did it."""

    async def check_answers(self) -> None:
        """Look whether the store takes bytes, as far as that is known, before a body is received. Raises StorageAway."""

    @abstractmethod
    async def hold_chunk(self, upload: Upload, number: int, body: Body | None, *, start: int = 0) -> HeldChunk:
        """Store a chunk unless it is there, and keep its record locked; without a body it has to be there.

        The appender gives the bytes from `start` on, where the tail ends; if they do not reach the end of the chunk, they
        are of the tail from now on, and the chunk has to be the first that is not stored. A whole chunk that comes where
        there is a tail has to begin with its bytes.

        The digests follow, as far as there is no gap; a body may be kept until then.
        Raises Gone, also where the tail is another one, BytesConflict, StorageFull, Unverified, Unavailable.
        """

    @abstractmethod
    async def read_map(self, upload: Upload, *, verified: bool = True) -> PresentChunks:
        """Read which chunks are stored. Raises Gone; Unverified, unless it may be one that is not `verified`."""

    async def last_write(self, upload: Upload) -> float:
        """Return the time of the last chunk, in seconds since the epoch; also of a map that can't be read. Raises Gone."""
        return (await self.read_map(upload, verified=False)).written_at

    @abstractmethod
    def appending(self, upload: Upload) -> AbstractAsyncContextManager[Appender]:
        """Have the right to append to an upload, as soon as its holder lets go. It locks no chunk. Raises Gone,
        UploadBusy."""

    @abstractmethod
    def filling(self, whole: Upload) -> AbstractAsyncContextManager[ReadPart]:
        """Have the right to fill a whole, and read the bytes of its chunks from those of its parts, by their numbers: that
        raises PartDamaged, Gone, Stopping, StorageFailed. Raises Gone, Busy if somebody else has it."""

    @abstractmethod
    def locked(self, upload: Upload) -> AbstractAsyncContextManager[None]:
        """Lock all chunks of an upload. Raises Gone, Unavailable."""

    # Under its locks

    @asynccontextmanager
    async def closing(self, upload: Upload) -> AsyncIterator["Closer"]:
        """As `locked`."""
        async with self.locked(upload):
            yield Closer(self, upload)

    @abstractmethod
    async def settle_length(self, upload: Upload) -> bool:
        """Let the bytes be those of this upload, as its row is now, if they are still those of one whose length is not
        known; whether they were. Durable and repeatable. All that is stored lies within that length."""

    @abstractmethod
    async def place_blob(self, upload: Upload, sha256: str) -> str | None:
        """Make the upload's bytes, which were just verified, the blob `sha256`, durably. Repeatable. Others that are there
        already go to the trash: by the caller, who is told where the blob is now, if the store has locations. A transaction
        waits for it. Raises Gone if the bytes went or changed since they were verified, Busy if it may be tried again."""

    @abstractmethod
    async def withdraw(
        self, upload: Upload, numbers: list[int], *, generation: int, verified: bool = False, lost: Lost | None = None
    ) -> None:
        """Take chunks off the map, durably, with the tail if it is of one of them or comes after one, and forget the
        digests; from here on they are of `generation`. `verified`: all others are whole, and what else is damaged is made
        anew. `lost`: what `find_lost` has found. Repeatable."""

    async def find_lost(self, upload: Upload) -> Lost | None:
        """Find the note that nothing can be stored for this upload any more until it is withdrawn; else None."""
        return None

    # Chunks that went bad

    @abstractmethod
    async def find_bad_chunks(self, upload: Upload) -> list[int]:
        """Find the chunks whose bytes, as they are read from the disk now, do not have the checksum they were stored
        with, or can't be read; that of the tail, too. Raises Gone, Stopping, StorageFailed."""

    async def check_lost(self, upload: Upload) -> None:
        """Return only where bytes that are not found are lost. Raises StorageFailed if it may be the store that is not
        there, Gone if no bytes are ever lost so."""
        raise Gone(upload.id)

    async def begin_anew(self, upload: Upload) -> None:
        """Make room for an open upload whose bytes are gone, as for a new one, durably; nothing happens if it is there by
        now. Its generation was renewed before. Repeatable. Raises as `check_lost`, and StorageFull."""
        raise Gone(upload.id)

    # Their digests

    @abstractmethod
    async def digest(self, upload: Upload) -> Digests:
        """Return the digests of a complete upload, with the MD5 if it needs that, durable like its bytes. Raises Gone, Busy,
        Stopping."""

    async def forget_digests(self, upload: Upload) -> None:
        """Let the digests be computed anew from the bytes that are stored, none of which is bad. Raises Gone, Busy."""

    async def digested_bytes(self, upload: Upload) -> int:
        """Return how far its digests have come, in this process or another. Raises Gone."""
        return 0

    async def keep_pace(self, upload: Upload, number: int) -> None:
        """Wait while the digests are far behind a chunk that was stored, and come nearer."""

    def follow(self, upload: Upload) -> None:
        """Bring the digests up with the chunks, unasked: it has been told what they have to be."""


class Closer:
    """An upload whose every chunk is locked: nothing is written or recorded while this is held."""

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
        """Remove the upload's bytes; whether this call did it. Repeatable."""
        return await self._store.discard(self._upload, self._place)

    async def find_bad_chunks(self) -> list[int]:
        return await self._store.find_bad_chunks(self._upload)

    async def find_lost(self) -> list[int] | None:
        self._lost = await self._store.find_lost(self._upload)
        return None if self._lost is None else self._lost.numbers

    async def withdraw(self, numbers: list[int], *, generation: int, verified: bool = False) -> None:
        await self._store.withdraw(self._upload, numbers, generation=generation, verified=verified, lost=self._lost)


class BlobBytes(ABC):
    """Keeps blobs; and the trash, for a while, what would be deleted otherwise."""

    # Whether what is put away stays until it is removed from here, however short the retention is.
    keeps_trash: bool

    # Contents that come whole, without an upload

    @abstractmethod
    async def store_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        """Digest them, compare, and make their bytes durable, before there is a row: what a crash leaves, housekeeping
        finds. An error of one is its own. Raises StorageFailed, and then none is stored."""

    @abstractmethod
    def place_arrivals(self, arrivals: Sequence[Arrival]) -> Mapping[str, str]:
        """Make them the blobs that they are, durably, if they are not any more. The caller has the rows locked, and a
        thread. Returns by SHA-256 where they are now, if the store has locations. Raises StorageFull, StorageFailed."""

    # Reading

    async def open_blob(self, sha256: str, size: int) -> OpenBlob:
        """Return a blob to read. Raises Gone if it is not there, or has another size."""
        found = await self.find_blob(sha256)
        if found is None or found.size != size:
            raise Gone(sha256)
        return await self.open_found(found)

    @abstractmethod
    async def open_found(self, found: Found) -> OpenBlob:
        """Bytes of a blob, in the trash or not, to read. Raises Gone."""

    async def read_blob(self, sha256: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of some ranges, each an offset and a length, of a blob. Raises Gone if they are not there."""
        found = await self.find_blob(sha256)
        if found is None:
            raise Gone(sha256)
        blob = await self.open_found(found)
        try:
            return await blob.read_all(ranges)
        finally:
            await uninterrupted(blob.close())

    async def read_contents(self, contents: Sequence[tuple[str, int]]) -> list[bytes | None]:
        """Read whole blobs, each by its SHA-256 and size, that fit into memory together. None in the place of one that
        is not to be had so: to read it alone tells why."""

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
        """Return the sizes of blobs in bytes, in the same order; None where there is none."""
        found = [await self.find_blob(sha256) for sha256 in sha256s]
        return [None if blob is None else blob.size for blob in found]

    @abstractmethod
    async def find_blob(self, sha256: str) -> Found | None:
        """Return a blob's bytes; None if there are none. Who acts on them holds the lock of its row."""

    # In threads

    @abstractmethod
    def pieces(self, found: Found, *, cold: bool = False) -> Generator[Piece]:
        """Bytes of a blob in order, in the trash or not. `cold`: as the disk has them, and memory is left to others. Raises
        Gone, StorageFailed."""

    def read_beside(self, found: Found) -> bytes | None:
        """Read what is kept beside a blob; None if nothing whole is there."""
        return None

    def keep_beside(self, found: Found, content: bytes) -> None:
        """Keep something beside a blob, which goes with it."""

    # The trash. What comes back from here is read and compared first.

    @abstractmethod
    async def put_away(self, found: Found) -> bool:
        """Move to the trash what a list or `find_blob` met, durably, unless it changed since; whether this call did it."""

    @abstractmethod
    def list_trash(self, name: str | None = None) -> AsyncIterator[list[Found]]:
        """Yield all that is there, in batches, or what is there of a content or an upload. `changed_at` is when it
        came. Raises Stopping."""

    async def copies(self, name: str) -> list[Found]:
        """List the copies in the trash of a content or an upload, the latest first."""
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
        """Make bytes of the trash the blob again, durably. Others at its place go to the trash: by the caller, who is told
        where the blob is now, if the store has locations. The caller holds the lock of the row. Repeatable. Raises Gone."""

    async def restore_upload(self, found: Found, upload: Upload) -> bool:
        """Give an upload its bytes back, durably, unless it has any; whether this call did it."""
        return False


class Housekeeping(ABC):
    """Tells what a store holds, whatever the rows say, and removes it. Lists, and `holds_chunks` of what they met, may be
    asked for before it is prepared. What went meanwhile is an answer here, and no error: nothing raises Gone."""

    # Whether blobs are listed by the locations in their rows, and not by their SHA-256.
    lists_by_location = False

    @abstractmethod
    async def check(self) -> None:
        """Make a byte durable and forget it. Raises StorageFailed; a full disk is no failure."""

    async def space(self) -> Space | None:
        """Return the room there is now; None if the store has no bound that anybody here knows."""
        return None

    @abstractmethod
    def list_uploads(self, opened_before: datetime) -> AsyncIterator[list[Found]]:
        """Uploads by the time of their opening, earlier than `opened_before` as exactly as the store knows, the oldest
        first, in batches. Raises Stopping."""

    @abstractmethod
    def list_blobs(self, after: str = "") -> AsyncIterator[Stretch]:
        """Yield all blobs in order, with what `place_blob` has left where it was interrupted; or those that follow the end
        of a stretch. Raises Stopping."""

    @abstractmethod
    async def remaining(self, uploads: list[Upload]) -> list[Upload]:
        """Return those of which any bytes are left, or of which the store does not tell."""

    @abstractmethod
    async def holds_chunks(self, found: Found) -> bool:
        """Return whether an upload that a list met has chunks, also where its map is damaged."""

    @abstractmethod
    async def remove(self, found: Found) -> bool:
        """Remove for good what a list met, in the trash or not, unless it changed since; whether this call did it."""

    async def remove_emptied(self, opened_before: datetime) -> None:
        """Remove what held nothing but uploads of that time and is empty now; safe while uploads are created."""
