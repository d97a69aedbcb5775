"""The seam between the use cases and where bytes are kept, in capabilities: each service takes those that it needs.

A store keeps the bytes of open uploads, and blobs; it is looked after; and it lives as long as its process. What lies where
is the store's own business: a *place* is its word for where it keeps an upload, and nobody else reads it.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from uploader.domain.upload import Tail, Upload
from uploader.errors import Md5Mismatch, Sha256Mismatch, UploaderError
from uploader.storage.contents import Digests, Found


class Gone(Exception):
    """The bytes are not there (any more)."""


class Busy(Exception):
    """Another worker is computing the digests of this upload."""


class Stopping(Exception):
    """The process is about to end; the work goes on elsewhere or after the next start."""


@dataclass(frozen=True, slots=True)
class Space:
    """The room of a store that has a bound, in bytes."""

    total: int
    # With what the trash holds: it is emptied where room is short.
    free: int
    trash: int


@dataclass(frozen=True, slots=True)
class Defect:
    """What is wrong with the bytes of an open upload, as far as it shows without reading them."""

    # Its `map`, or its `data`.
    part: str
    expected: int | str | None
    actual: int | str | None


@dataclass(frozen=True, slots=True)
class Marks:
    """Of which installation a store says that it is."""

    installation: str | None
    # By first starts that are under way, or were interrupted: by one at the most, where that can be decided.
    proposed: frozenset[str]


# Chunks


class Body(Protocol):
    """A chunk that was received whole."""

    @property
    def length(self) -> int:
        """Its length in bytes."""

    def pieces(self) -> Iterable[memoryview]:
        """Its bytes in order, from a thread; may be asked for again."""

    def keep(self) -> None:
        """Keep its bytes for one `close` more."""

    def close(self) -> None:
        """Give its bytes up."""


class PresentChunks(Protocol):
    """Which chunks of an upload are stored."""

    @property
    def present(self) -> bytearray:
        """For each chunk 1 or 0."""

    @property
    def complete(self) -> bool: ...

    @property
    def tail(self) -> Tail | None:
        """What appends have brought of the first chunk that is not stored."""

    @property
    def received_bytes(self) -> int:
        """All that is stored."""

    @property
    def leading_bytes(self) -> int:
        """What is stored before the first gap: where the next append begins."""

    @property
    def written_at(self) -> float:
        """When a chunk last arrived, in seconds since the epoch."""

    @property
    def settled(self) -> bool:
        """False where the length is known, and the bytes are still those of an upload of which it is not."""

    @property
    def defect(self) -> Defect | None:
        """Where there is any, chunks count only once their bytes were compared with their checksums."""


class HeldChunk(Protocol):
    """A chunk that is stored, or the first bytes of one, its record locked until `release`."""

    @property
    def written(self) -> bool:
        """Whether it was stored just now."""

    def release(self) -> None: ...


class Appender(Protocol):
    """The right to append to an upload."""

    @property
    def is_claimed(self) -> bool:
        """Whether somebody else wants it: whoever has it ends soon."""

    async def read_map(self) -> PresentChunks:
        """Which chunks are stored; those before the first gap are durable, and so is the tail. Raises Gone, Unverified."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A content that came whole, and where its storing stands. It belongs to one store."""

    body: Body
    # What it was claimed to be; None: anything.
    md5: str | None
    sha256: str | None
    # What it is.
    digests: Digests | None = None
    # Why it is not stored: it is something else than was claimed, or there is no room.
    error: UploaderError | None = None
    # Where it was stored, in a word of the store's own.
    place: object = None

    @property
    def sha256_of_bytes(self) -> str:
        """What it is, once it was digested."""
        assert self.digests is not None
        return self.digests.sha256

    def compare(self) -> bool:
        """Whether it is what it was claimed to be, once it was digested; else it has the error."""
        assert self.digests is not None
        if self.md5 not in (None, self.digests.md5):
            self.error = Md5Mismatch(expected=self.md5, actual=self.digests.md5)
        elif self.sha256 not in (None, self.digests.sha256):
            self.error = Sha256Mismatch(expected=self.sha256, actual=self.digests.sha256)
        return self.error is None


class Closer(Protocol):
    """An upload whose every chunk is locked: nothing is written or recorded while this is held."""

    async def read_map(self, *, verified: bool = True) -> PresentChunks:
        """Raises Unverified, unless it may be one that is not `verified`."""

    async def settle_length(self, upload: Upload) -> bool:
        """Let the bytes be those of this upload, as its row is now, if they are still those of one whose length is not
        known; whether they were. Durable and repeatable. All that is stored lies within that length."""

    async def place_blob(self, sha256: str) -> str | None:
        """Make the upload's bytes, which were just verified, the blob `sha256`, durably. Repeatable. Others that are there
        already go to the trash: by the caller, who is told where the blob is now, if the store has locations."""

    async def unlink(self) -> bool:
        """Remove the upload's bytes; whether this call did it. Repeatable."""


class WithdrawingCloser(Closer, Protocol):
    """A closer that can tell bad chunks and take them back."""

    async def find_bad_chunks(self) -> list[int]:
        """As `Withdrawing.find_bad_chunks`."""

    async def find_lost(self) -> list[int] | None:
        """The chunks that are written down, if nothing can be stored for this upload any more until they are withdrawn;
        else None."""

    async def withdraw(self, numbers: list[int], *, generation: int, verified: bool = False) -> None:
        """Take chunks off the map, durably, with the tail if it is of one of them or comes after one, and forget the
        digests; from here on they are of `generation`. `verified`: all others are whole, and what else is damaged is made
        anew. Repeatable."""


# The capabilities of a store


class UploadBytes(Protocol):
    """Keeps the bytes of open uploads."""

    async def check(self) -> None:
        """Make a byte durable and forget it. Raises StorageFailed; a full disk is no failure."""

    def place_of(self, upload_id: str, opened_at: datetime) -> str:
        """Where a new upload is to lie."""

    async def create(self, upload: Upload) -> float:
        """Make room for a new upload, durably, before its row commits. Returns when, as `last_write` would."""

    async def discard(self, upload: Upload) -> bool:
        """Remove an upload's bytes without its locks: its row did not commit, or its map is gone. Repeatable.

        Returns whether this call did it.
        """

    async def hold_chunk(self, upload: Upload, number: int, body: Body | None, *, start: int = 0) -> HeldChunk:
        """Store a chunk unless it is there, and keep its record locked; without a body it has to be there.

        Whoever appends gives the bytes from `start` on, where the tail ends; if they do not reach the end of the chunk, they
        are of the tail from now on, and the chunk has to be the first that is not stored. A whole chunk that comes where
        there is a tail has to begin with its bytes.

        The digests follow, as far as there is no gap; a body may be kept until then.
        Raises Gone, also where the tail is another one, BytesConflict, StorageFull, Unverified, Unavailable.
        """

    async def keep_pace(self, upload: Upload, number: int) -> None:
        """Wait while the digests are far behind a chunk that was stored, and come nearer."""

    def appending(self, upload: Upload) -> AbstractAsyncContextManager[Appender]:
        """Have the right to append to an upload, as soon as whoever has it lets go. It locks no chunk. Raises Gone,
        UploadBusy."""

    def closing(self, upload: Upload) -> AbstractAsyncContextManager[Closer]:
        """Lock all chunks of an upload. Raises Gone, Unavailable."""

    async def read_map(self, upload: Upload) -> PresentChunks:
        """Which chunks are stored. Raises Gone, Unverified."""

    async def last_write(self, upload: Upload) -> float:
        """When a chunk last arrived, in seconds since the epoch. Raises Gone."""

    async def digest(self, upload: Upload) -> Digests:
        """The digests of a complete upload, with the MD5 if it needs that, durable like its bytes. Raises Gone, Busy,
        Stopping."""

    def follow(self, upload: Upload) -> None:
        """Bring the digests up with the chunks, unasked: it has been told what they have to be."""

    async def digested_bytes(self, upload: Upload) -> int:
        """How far its digests have come, whoever computes them. Raises Gone."""

    async def hash(self, compute: Callable[[], bytes]) -> bytes:
        """Compute in a thread of those that hash what takes long."""


class Arrivals(Protocol):
    """Takes contents that come whole, without an upload."""

    async def store(self, arrivals: Sequence[Arrival]) -> None:
        """Digest them, compare, and make their bytes durable, before there is a row: what a crash leaves, housekeeping
        finds. An error of one is its own. Raises StorageFailed, and then none is stored."""

    def place_blobs(self, arrivals: Sequence[Arrival]) -> Mapping[str, str]:
        """Make them the blobs that they are, durably, if they are not any more. The caller has the rows locked, and a
        thread. Returns by SHA-256 where they are now, if the store has locations. Raises StorageFull, StorageFailed."""


class Withdrawing(UploadBytes, Protocol):
    """Can read stored chunks of open uploads again, tell those that went bad, and take them back."""

    def closing(self, upload: Upload) -> AbstractAsyncContextManager[WithdrawingCloser]:
        """As `UploadBytes.closing`."""

    async def find_bad_chunks(self, upload: Upload) -> list[int]:
        """The chunks whose bytes, as they are read from the disk now, do not have the checksum they were stored with, or
        can't be read; that of the tail, too. Raises Gone, Stopping, StorageFailed."""

    async def check_lost(self, upload: Upload) -> None:
        """Nothing, where bytes that are not found are lost. Raises StorageFailed if it may be the store that is not there,
        Gone if no bytes are ever lost so."""

    async def begin_anew(self, upload: Upload) -> None:
        """Make room for an open upload whose bytes are gone, as for a new one, durably; nothing happens if it is there by
        now. Its generation was renewed before. Repeatable. Raises as `check_lost`, and StorageFull."""

    async def forget_digests(self, upload: Upload) -> None:
        """Let the digests be computed anew from the bytes that are stored, none of which is bad. Raises Gone, Busy."""


class Housekeeping(Protocol):
    """Tells what a store holds, whatever the rows say, and removes it."""

    def list_uploads(self, opened_before: datetime) -> AsyncIterator[list[Found]]:
        """Uploads by the time of their opening, earlier than `opened_before` as exactly as the store knows, the oldest
        first, in batches. Raises Stopping."""

    def list_blobs(self) -> AsyncIterator[list[Found]]:
        """All blobs, in batches, with what `place_blob` has left where it was interrupted. Raises Stopping."""

    async def remaining(self, uploads: list[Upload]) -> list[Upload]:
        """Those of which any bytes are left, or of which the store does not tell."""

    async def holds_chunks(self, found: Found) -> bool:
        """Whether an upload that a list met has chunks, also where its map is damaged."""

    async def remove(self, found: Found) -> bool:
        """Remove what a list met, unless it changed since; whether this call did it."""

    async def remove_emptied(self, opened_before: datetime) -> None:
        """Remove what held nothing but uploads of that time and is empty now; safe while uploads are created."""


class Bounded(Protocol):
    """May have no more room than a disk."""

    async def space(self) -> Space | None:
        """The room there is now; None if the store has no bound that anybody here knows."""


@dataclass(frozen=True, slots=True)
class StoreName:
    """What a store is called in messages to those who run the server."""

    # After "the".
    name: str
    # The setting that says where it is.
    setting: str
    # What to ask first where it should have something to say, and has not.
    question: str


class Marked(Protocol):
    """Where a store says of which installation it is. May be asked before the store is prepared; all raise
    ConfigurationError if there is no place to say it, or a newer version has been here."""

    @property
    def store(self) -> StoreName:
        """What the store is called."""

    async def read(self) -> Marks:
        """What it says now."""

    async def propose(self, installation: str) -> str:
        """Propose to be of an installation, durably, unless it is of one, or another one is proposed; returns which."""

    async def settle(self, installation: str) -> None:
        """Be of an installation, durably, if it is of none yet; nothing is proposed any more. Repeatable."""

    async def replace(self, installation: str) -> None:
        """Be of an installation, durably, whatever it says now."""
