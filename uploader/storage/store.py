"""The base class of all stores, and their shared code: the mark of the installation, thread pools, signatures, the spool."""

import hashlib
import json
import math
import os
import re
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import TypeVar

from isal.isal_zlib import crc32

from uploader.domain import delta
from uploader.domain.diagnosis import Diagnosis
from uploader.errors import StorageFailed
from uploader.lanes.kernel import in_force
from uploader.runtime.cores import run_anywhere
from uploader.runtime.observability import MD5_LANES, SHA256_LANES
from uploader.runtime.tasks import OnePerKey, Pool, give_way, give_way_anywhere, give_way_to_all
from uploader.storage import disk
from uploader.storage.ballast import Ballast
from uploader.storage.base import BlobBytes, Digests, Found, Gone, Housekeeping, Pace, Piece, Stopping, UploadBytes
from uploader.storage.hashes import BlockChecksums, gather_here, most_threads

# The CRC-32 at the end of a stored signature.
_CHECKSUM = Struct(">I")


@dataclass(frozen=True)
class BytesBlob:
    """An open blob whose bytes are in memory."""

    _content: bytes

    async def read(self, length_bytes: int, offset: int) -> bytes:
        return self._content[offset : offset + length_bytes]

    async def read_all(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self._content[offset : offset + length] for offset, length in ranges]

    async def close(self) -> None:
        """Do nothing: the memory goes with the object."""


@dataclass(eq=False)
class _Reading:
    """A blob as a file to read from. Computes the SHA-256 on the way."""

    _pieces: Generator[Piece]
    _check_stopping: Callable[[], None]
    _waiting: memoryview = memoryview(b"")
    position: int = 0

    def __post_init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def readinto(self, buffer: memoryview, /) -> int:
        if not self._waiting:
            self._check_stopping()
            self._waiting = memoryview(next(self._pieces, b""))
        count = min(len(buffer), len(self._waiting))
        buffer[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        self.sha256.update(buffer[:count])
        self.position += count
        return count


# The mark of a store: the id of the installation to which the store belongs.
#
# Several processes may start at once, and each may die at any line. So a first start proposes an id, the database decides
# between the proposals, and the store then gets the winning id as its mark.


T = TypeVar("T")

MAX_MARK_BYTES = 4096
INSTALLATION_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Marks:
    """The installation ids that were found in a store."""

    installation: str | None
    # Ids that first starts proposed; they are still running, or were interrupted. A local store holds at most one.
    proposed: frozenset[str]
    # True if an older version wrote the mark. An older program would still accept the store.
    is_outdated: bool = False
    # True if bytes of the mark changed after the mark was written. Only the database knows the installation then.
    is_damaged: bool = False


@dataclass(frozen=True, slots=True)
class StoreName:
    """The words for a store in messages to the operator."""

    # Follows "the".
    name: str
    # The setting that says where the store is.
    setting: str
    # A question to the operator of a store without a mark.
    question: str


class MarkFiles(ABC):
    """The files or objects with the mark and the proposals of a store. Methods run in threads."""

    store: StoreName

    @abstractmethod
    def read(self, known: str | None = None) -> Marks:
        """Read the proposals, then the mark: proposals are removed after the mark is written, so one of the two is always
        found. `known`: the database's installation, to recognise a damaged mark. Raises ConfigurationError."""

    @abstractmethod
    def propose(self, installation: str, marks: Marks) -> None:
        """Write a proposal, durably, unless `marks` (just read) already contain one."""

    @abstractmethod
    def write(self, installation: str, *, replace: bool) -> None:
        """Write the mark, durably. Without `replace`, an existing mark stays, if the store can check that."""

    @abstractmethod
    def forget_proposals(self, *, is_durable: bool = True) -> None:
        """Remove all proposals. Unless the mark `is_durable`, make the mark durable first: its writer may have died."""


@dataclass(frozen=True)
class InstallationMark:
    """The id of the installation, kept in a store. Works before the store is prepared. All methods raise ConfigurationError
    if a newer version has written to the store, StorageFailed, StorageFull."""

    _files: MarkFiles
    _pool: Pool

    @property
    def store(self) -> StoreName:
        return self._files.store

    async def read(self, known: str | None = None) -> Marks:
        return await self._run(lambda: self._files.read(known))

    async def propose(self, installation: str) -> str:
        """Propose an installation, durably, unless a mark or a proposal exists. Return the id in the store."""
        return await self._run(self._propose, installation)

    async def settle(self, installation: str) -> None:
        """Write a missing mark, renew an outdated or damaged one, durably, and remove all proposals. Repeatable."""
        await self._run(self._settle, installation)

    async def replace(self, installation: str) -> None:
        """Write the mark, durably, in place of any other mark."""
        await self._run(self._replace, installation)

    async def _run(self, work: Callable[..., T], *arguments: str) -> T:
        """Run `work` in a thread. Add the name of the setting to a StorageFailed."""
        try:
            return await self._pool.run(work, *arguments)
        except StorageFailed as error:
            if error.inside is None:
                raise
            raise type(error)(inside=f"{self.store.setting}: {error.inside}") from error

    def _propose(self, installation: str) -> str:
        marks = self._files.read()
        if marks.installation is None:
            self._files.propose(installation, marks)
            marks = self._files.read()
            if marks.installation is not None and marks.proposed:  # another first start has just ended
                self._files.forget_proposals()
        return marks.installation or min(marks.proposed, default=installation)

    def _settle(self, installation: str) -> None:
        marks = self._files.read(installation)
        if marks.installation is None:
            self._files.write(installation, replace=False)
        if marks.installation is None or marks.proposed:
            self._files.forget_proposals(is_durable=marks.installation is None)
        elif marks.is_outdated or marks.is_damaged:
            self._replace(marks.installation)

    def _replace(self, installation: str) -> None:
        self._files.write(installation, replace=True)
        self._files.forget_proposals()


@dataclass(frozen=True, slots=True)
class Mark:
    """The content of a mark: the version of the store's format, and the installation."""

    version: int
    installation: str
    # False if an older version wrote the mark, without a checksum.
    is_checked: bool = True
    is_damaged: bool = False


# A damaged mark with a checksum may have this many wrong bytes. The mark of a foreign installation differs in about 38
# bytes: the digits of the id and of the checksum, less one digit in 16 that is equal by chance.
_MOST_DAMAGED_BYTES = 8


def mark_of(version: int, installation: str) -> bytes:
    facts = {"format": version, "id": installation}
    return json.dumps({**facts, "checksum": _checksum(version, installation)}).encode()


def _checksum(version: int, installation: str) -> str:
    return f"{crc32(f'{version} {installation}'.encode()):08x}"


def parse_mark(content: bytes, newest_version: int, known: str | None = None) -> Mark | None:
    """Parse a mark; return None if the mark is damaged.

    `known`: the installation to which the store should belong. A damaged mark counts as the mark of this installation if
    nearly all of its bytes agree. A sound mark of a foreign installation never does. The id of a newer version may be of
    any form.
    """
    mark = None
    with suppress(ValueError, TypeError, KeyError):
        facts = json.loads(content)
        mark = Mark(int(facts["format"]), str(facts["id"]), is_checked="checksum" in facts)
        if mark.is_checked and facts["checksum"] == _checksum(mark.version, mark.installation):
            return mark
    if known is not None and (mark is None or mark.is_checked or mark.installation != known):
        for version in range(1, newest_version + 1):
            checked = mark_of(version, known)
            unchecked = json.dumps({"format": version, "id": known}).encode()
            # Without a checksum, one wrong byte at most: an id with more may be the id of another installation.
            if _differ(content, unchecked) <= 1 or _differ(content, checked) <= _MOST_DAMAGED_BYTES:
                return Mark(version, known, is_damaged=True)
    return None if mark is None or mark.is_checked else mark


def _differ(content: bytes, expected: bytes) -> float:
    """Count the bytes that differ. Return infinity if the lengths differ."""
    if len(content) != len(expected):
        return math.inf
    return sum(one != other for one, other in zip(content, expected, strict=True))


def _gather() -> None:
    give_way_anywhere()
    gather_here()


class Threads:
    """The thread pools of a store. Short work shares a core with the event loop (`uploader/runtime/cores.py`). Work on many
    bytes or files is long and runs on any core."""

    def __init__(self) -> None:
        cores = os.cpu_count() or 1
        for gauge, (kind, lanes) in ((MD5_LANES, in_force("md5")), (SHA256_LANES, in_force("sha256"))):
            gauge.labels(kind).set(lanes)
        self.disk = Pool(16, "disk", translate=disk.refusal)
        self.long = Pool(16, "disk, long", translate=disk.refusal, initializer=run_anywhere)
        # A separate pool: downloads wait neither for syncs nor for long work.
        self.reading = Pool(8, "reading", translate=disk.refusal)
        self.hashing = Pool(cores, "hashing", translate=disk.refusal, initializer=give_way)
        self.long_hashing = Pool(cores, "hashing, long", translate=disk.refusal, initializer=give_way_anywhere)
        # These threads wait for each other, and only as many compute at once as there are cores.
        self.digesting = Pool(most_threads(), "digests", translate=disk.refusal, initializer=_gather)
        # A separate pool: signatures of large files do not delay merges.
        self.signing = Pool(2, "signing", translate=disk.refusal, initializer=give_way_anywhere)
        # A separate pool: a reader with a pace sleeps in its thread.
        self.scrubbing = Pool(1, "scrubbing", translate=disk.refusal, initializer=give_way_to_all)

    def shutdown(self) -> None:
        short = (self.disk, self.reading, self.hashing)
        for pool in (*short, self.long, self.long_hashing, self.digesting, self.signing, self.scrubbing):
            pool.shutdown()


class Store(UploadBytes, BlobBytes, Housekeeping):
    """The complete store of a process, to be used between `prepare` and `close`."""

    # True if blobs are files in the layout of the local store, so backups can link and copy them.
    keeps_files: bool
    marks: InstallationMark
    # A risk for the data that `prepare` found although everything works.
    doubt: str | None = None
    # Result of the last `check`.
    is_full = False
    # The ballast on the filesystem of the data directory, or of the database.
    ballast: Ballast | None = None

    def __init__(self, reading: Pool | None = None) -> None:
        """`reading`: the threads that read blobs; by default those of this store."""
        self.threads = Threads()
        self._stopping = threading.Event()
        self._reading = reading or self.threads.reading
        # A process computes each signature only once at a time.
        self._signing = OnePerKey[bytes]()

    @abstractmethod
    async def prepare(self) -> None:
        """Make the store ready. Raises ConfigurationError if the place is unfit."""

    async def diagnoses(self, *, upload_expiry_seconds: float) -> list[Diagnosis]:
        """Ask a few questions about the place of the bytes, and return its problems. Writes nothing. Raises
        StorageFailed."""
        return []

    def stop(self) -> None:
        """Make long work end with Stopping."""
        self._stopping.set()

    def check_stopping(self) -> None:
        """Raises Stopping after `stop`."""
        if self._stopping.is_set():
            raise Stopping

    async def read_signature(self, sha256: str, size: int) -> bytes:
        """Return the signature of a blob. If none is stored, compute it, which takes as long as reading the blob. Raises
        Gone if the blob is missing or has other bytes; StorageFull, StorageFailed, Stopping.

        The signature is stored beside the blob, with a checksum. It is not synced: a lost signature is computed again. A
        stored signature is used only if its checksum and its first line are right. A signature fits into memory.
        """
        found = await self.find_blob(sha256)
        if found is None or found.size != size:
            raise Gone(sha256)
        kept = await self._reading.run(self._kept_signature, found)
        return kept or await self._signing.run(
            found.place, lambda: self.threads.signing.run(self._make_signature, found)
        )

    def _kept_signature(self, found: Found) -> bytes | None:
        """Return the stored signature; None if there is none, or if it is damaged or outdated."""
        stored = self.read_beside(found) or b""
        content, checksum = stored[: -_CHECKSUM.size], stored[-_CHECKSUM.size :]
        is_wanted = content.startswith(delta.head_of(found.size, found.name))
        return content if is_wanted and _CHECKSUM.pack(crc32(content)) == checksum else None

    def _make_signature(self, found: Found) -> bytes:
        """Compute the signature and store it. Raises Gone if the blob has other bytes than it should."""
        if kept := self._kept_signature(found):
            return kept  # made by others since the first look
        content = bytearray(delta.head_of(found.size, found.name))
        with closing(self.pieces(found)) as pieces:
            reading = _Reading(pieces, self.check_stopping)
            for length, hashed in delta.pieces_of(reading, delta.cuts_for(found.size)):
                content += delta.RECORD.pack(length, hashed)
        if reading.position != found.size or reading.sha256.hexdigest() != found.name:
            raise Gone(found.name)
        self.keep_beside(found, bytes(content) + _CHECKSUM.pack(crc32(content)))
        return bytes(content)

    async def hash_blob(self, found: Found, pace: Pace | None, *, with_md5: bool) -> Digests | None:
        """Return the digests of a blob, in the trash or not, as the disk gives its bytes back now; None if the blob is
        missing. With a `pace`, give way to all other work. Raises StorageFailed, Stopping."""
        pool = self.threads.long_hashing if pace is None else self.threads.scrubbing
        return await pool.run(self._hash, found, pace, with_md5)

    def _hash(self, found: Found, pace: Pace | None, with_md5: bool) -> Digests | None:
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False) if with_md5 else None
        blocks = self.blocks_of(found)
        with closing(self.pieces(found, cold=True)) as pieces, suppress(Gone):
            for piece in pieces:
                sha256.update(piece)
                if md5 is not None:
                    md5.update(piece)
                if blocks is not None:
                    blocks.update(memoryview(piece))
                if pace is not None:
                    pace(len(piece))
                self.check_stopping()
            digests = Digests(md5=None if md5 is None else md5.hexdigest(), sha256=sha256.hexdigest())
            if blocks is not None and digests.sha256 == found.name:
                self.keep_checksums(found, blocks.end())
            return digests
        return None

    def blocks_of(self, found: Found) -> BlockChecksums | None:
        """Begin the checksums of a blob's blocks; None if this store keeps none for the blob."""
        return None

    def keep_checksums(self, found: Found, checksums: bytes) -> None:
        """Store the block checksums of a blob that was just verified; in a thread. A blob is valid without them."""

    async def in_batches(self, pool: Pool, batches: Iterator[list[T]]) -> AsyncIterator[list[T]]:
        """Yield the batches of an iterator, each taken in a thread. Raises Stopping."""
        while True:
            self.check_stopping()
            batch = await pool.run(lambda: next(batches, None))
            if batch is None:
                return
            yield batch

    async def drain(self) -> None:
        """Wait until the digests have caught up with the stored chunks."""

    def close(self) -> None:
        """End the threads. Nothing can be stored afterwards."""
        self.threads.shutdown()


# The spool: unlinked files on this node for bodies that are not kept in memory. Every kind of store uses it.


_THREADS = 4
_PIECE_BYTES = 1 << 20


class SpooledBytes:
    """A file without a name. Its descriptor is closed with its last user, and then the file is gone."""

    def __init__(self, pool: Pool, descriptor: int) -> None:
        self._pool = pool
        self._descriptor = descriptor
        self._length = 0
        self.close = weakref.finalize(self, disk.close, descriptor)

    async def append(self, content: memoryview) -> None:
        """Raises StorageFull."""
        await self._pool.run(disk.write, self._descriptor, content, self._length)
        self._length += len(content)

    def pieces(self, start: int, length: int) -> Iterator[memoryview]:
        """Yield `length` bytes from `start` on, in order; in a thread."""
        end = start + length
        for offset in range(start, end, _PIECE_BYTES):
            yield memoryview(disk.read(self._descriptor, min(_PIECE_BYTES, end - offset), offset))


class Spool:
    """The directory `spool` of a node."""

    def __init__(self, root: Path, ballast: Ballast | None = None) -> None:
        self._ballast = ballast
        self._path = root.absolute()
        self._root = disk.Root(self._path)
        self._pool = Pool(_THREADS, "spool", translate=disk.refusal, initializer=run_anywhere)

    async def prepare(self) -> None:
        """Raises ConfigurationError if the directory can't be written, StorageFailed if the error may pass."""
        await self._pool.run(self._prepare)

    def _prepare(self) -> None:
        try:
            self._root.open()
            with suppress(FileExistsError):
                self._root.make_directory("spool")  # need not survive a power cut
            with self._root.enter("spool") as directory:  # fails if the entry is a link
                disk.check_unnamed(directory)
        except OSError as error:
            raise disk.unfit(self._path, error) from error

    async def open(self) -> SpooledBytes:
        """Return a new file for a body. Raises StorageFull."""
        if self._ballast is not None:
            disk.check_room(self._ballast.reserve)
        return await self._pool.run(self._open)

    def _open(self) -> SpooledBytes:
        with self._root.enter("spool") as directory:
            return SpooledBytes(self._pool, directory.open_unnamed())

    def close(self) -> None:
        self._pool.shutdown()
