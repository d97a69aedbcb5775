"""The whole store of a process, and what every store does alike."""

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

# Of a signature.
_CHECKSUM = Struct(">I")


@dataclass(frozen=True)
class BytesBlob:
    """Bytes in memory, open to be read."""

    _content: bytes

    async def read(self, length_bytes: int, offset: int) -> bytes:
        return self._content[offset : offset + length_bytes]

    async def read_all(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self._content[offset : offset + length] for offset, length in ranges]

    async def close(self) -> None:
        """They go with their last user."""


@dataclass(eq=False)
class _Reading:
    """The bytes of a blob in order, of which the SHA-256 is computed on the way."""

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


# Of which installation a store says that it is: how it comes to say so, in an order that a crash may break off
# anywhere.
#
# Several processes may start at once, and each may die at any line. So a first start proposes, the database decides,
# and what it has decided is settled in the store.


T = TypeVar("T")

MAX_MARK_BYTES = 4096
INSTALLATION_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Marks:
    """The installation to which a store says that it belongs."""

    installation: str | None
    # By first starts that are under way, or were interrupted: by one at the most, where that can be decided.
    proposed: frozenset[str]
    # Whether an older version has made the mark, which an older program would believe.
    is_outdated: bool = False
    # Whether bytes of the mark changed since the mark was written; its installation is known from the database alone.
    is_damaged: bool = False


@dataclass(frozen=True, slots=True)
class StoreName:
    """The names of a store in messages to those who run the server."""

    # After "the".
    name: str
    # The setting that says where it is.
    setting: str
    # What to ask first where it should have something to say, and has not.
    question: str


class MarkFiles(ABC):
    """The files in which a store keeps its marks. In threads."""

    store: StoreName

    @abstractmethod
    def read(self, known: str | None = None) -> Marks:
        """Read the proposals first: one goes once the mark is there, so one of the two is always seen. `known`: the
        installation of the database, by which a damaged mark is recognised. Raises ConfigurationError."""

    @abstractmethod
    def propose(self, installation: str, marks: Marks) -> None:
        """Propose to be of an installation, durably; unless `marks`, which were just read, have a proposal that stands."""

    @abstractmethod
    def write(self, installation: str, *, replace: bool) -> None:
        """Be of an installation, durably; unless `replace`, only if it is of none yet, where a store can tell."""

    @abstractmethod
    def forget_proposals(self, *, is_durable: bool = True) -> None:
        """Propose nothing any more. Unless the mark `is_durable`, it is made so before: its writer may have died."""


@dataclass(frozen=True)
class InstallationMark:
    """The id of the installation in a store. May be asked before the store is prepared. All raise ConfigurationError if a
    newer version has been here, StorageFailed, StorageFull."""

    _files: MarkFiles
    _pool: Pool

    @property
    def store(self) -> StoreName:
        return self._files.store

    async def read(self, known: str | None = None) -> Marks:
        return await self._run(lambda: self._files.read(known))

    async def propose(self, installation: str) -> str:
        """Propose to be of an installation, durably, unless it is of one, or another one is proposed; returns which."""
        return await self._run(self._propose, installation)

    async def settle(self, installation: str) -> None:
        """Be of an installation, durably, if it is of none yet; nothing is proposed any more. Repeatable."""
        await self._run(self._settle, installation)

    async def replace(self, installation: str) -> None:
        """Be of an installation, durably, whatever it says now."""
        await self._run(self._replace, installation)

    async def _run(self, work: Callable[..., T], *arguments: str) -> T:
        """Raises StorageFailed, which names the setting to look at."""
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
            if marks.installation is not None and marks.proposed:  # another first start ended at this moment
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
    """The version of what is in a store, and its installation."""

    version: int
    installation: str
    # Whether the mark has a checksum, which an older version did not write.
    is_checked: bool = True
    is_damaged: bool = False


# A damaged mark with a checksum may have so many other bytes. The mark of a foreign installation has about 38: the digits of
# the id, of which one in 16 is equal by chance, and those of the checksum.
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
            # Without a checksum one byte at most: an id that differs in more may be another installation's.
            if _differ(content, unchecked) <= 1 or _differ(content, checked) <= _MOST_DAMAGED_BYTES:
                return Mark(version, known, is_damaged=True)
    return None if mark is None or mark.is_checked else mark


def _differ(content: bytes, expected: bytes) -> float:
    """Count the bytes that differ; infinitely many if the lengths do."""
    if len(content) != len(expected):
        return math.inf
    return sum(one != other for one, other in zip(content, expected, strict=True))


def _gather() -> None:
    give_way_anywhere()
    gather_here()


class Threads:
    """Threads for the store. Short work shares a core with the event loop (`uploader/runtime/cores.py`); long work, by the
    number of bytes or of files, runs anywhere."""

    def __init__(self) -> None:
        cores = os.cpu_count() or 1
        for gauge, (kind, lanes) in ((MD5_LANES, in_force("md5")), (SHA256_LANES, in_force("sha256"))):
            gauge.labels(kind).set(lanes)
        self.disk = Pool(16, "disk", translate=disk.refusal)
        self.long = Pool(16, "disk, long", translate=disk.refusal, initializer=run_anywhere)
        # Of their own, so that downloads do not wait for writes to be synced, nor either for long work.
        self.reading = Pool(8, "reading", translate=disk.refusal)
        self.hashing = Pool(cores, "hashing", translate=disk.refusal, initializer=give_way)
        self.long_hashing = Pool(cores, "hashing, long", translate=disk.refusal, initializer=give_way_anywhere)
        # They wait for each other, and only as many compute as there are cores.
        self.digesting = Pool(most_threads(), "digests", translate=disk.refusal, initializer=_gather)
        # Of their own, so that signatures of large files hold up no merge.
        self.signing = Pool(2, "signing", translate=disk.refusal, initializer=give_way_anywhere)
        # Of its own, because a reader at a pace sleeps in its thread.
        self.scrubbing = Pool(1, "scrubbing", translate=disk.refusal, initializer=give_way_to_all)

    def shutdown(self) -> None:
        short = (self.disk, self.reading, self.hashing)
        for pool in (*short, self.long, self.long_hashing, self.digesting, self.signing, self.scrubbing):
            pool.shutdown()


class Store(UploadBytes, BlobBytes, Housekeeping):
    """All that the store of a process can do, from `prepare` to `close`."""

    # Whether its blobs are files where the local store has them, which backups link and copy.
    keeps_files: bool
    marks: InstallationMark
    # What could lose data here though all works, once it was prepared.
    doubt: str | None = None
    # When it was checked last.
    is_full = False
    # Of the filesystem of the data directory, or of the database.
    ballast: Ballast | None = None

    def __init__(self, reading: Pool | None = None) -> None:
        """`reading`: the threads that wait for where blobs are read from."""
        self.threads = Threads()
        self._stopping = threading.Event()
        self._reading = reading or self.threads.reading
        # Each is computed once at a time in this process.
        self._signing = OnePerKey[bytes]()

    @abstractmethod
    async def prepare(self) -> None:
        """Make ready to store. Raises ConfigurationError if this place is unfit."""

    async def diagnoses(self, *, upload_expiry_seconds: float) -> list[Diagnosis]:
        """Tell what is wrong with the place where the bytes are, by a few questions; nothing is written. Raises
        StorageFailed."""
        return []

    def stop(self) -> None:
        """Let long work end with Stopping."""
        self._stopping.set()

    def check_stopping(self) -> None:
        """Raises Stopping."""
        if self._stopping.is_set():
            raise Stopping

    async def read_signature(self, sha256: str, size: int) -> bytes:
        """Read the signature of a blob; computed where it is not kept, which takes as long as reading the blob. Raises
        Gone if the blob is not there, or is something else; StorageFull, StorageFailed, Stopping.

        It is kept beside the blob, with a checksum, wherever that lies. Nothing is lost with one: it is believed only if its
        checksum is right and its first line is what it would be now; else it is made anew. It is small enough to be in
        memory. Nobody makes it durable.
        """
        found = await self.find_blob(sha256)
        if found is None or found.size != size:
            raise Gone(sha256)
        kept = await self._reading.run(self._kept_signature, found)
        return kept or await self._signing.run(
            found.place, lambda: self.threads.signing.run(self._make_signature, found)
        )

    def _kept_signature(self, found: Found) -> bytes | None:
        """Return the kept signature; None if there is none that is whole, and what is wanted now."""
        stored = self.read_beside(found) or b""
        content, checksum = stored[: -_CHECKSUM.size], stored[-_CHECKSUM.size :]
        is_wanted = content.startswith(delta.head_of(found.size, found.name))
        return content if is_wanted and _CHECKSUM.pack(crc32(content)) == checksum else None

    def _make_signature(self, found: Found) -> bytes:
        """Raises Gone if the bytes are others than they should be."""
        if kept := self._kept_signature(found):
            return kept  # made by others since it was looked for
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
        """Return the digests of bytes of a blob, in the trash or not, as they are read from the disk now; None if there
        are none. With a `pace` it gives way to everything else. Raises StorageFailed, Stopping."""
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
        """Begin the checksums of the blocks of a blob; None: this store keeps none of it."""
        return None

    def keep_checksums(self, found: Found, checksums: bytes) -> None:
        """Keep them beside a blob that was found whole; in a thread. Without them it is as whole."""

    async def in_batches(self, pool: Pool, batches: Iterator[list[T]]) -> AsyncIterator[list[T]]:
        """Yield the items of an iterator, each taken in a thread. Raises Stopping."""
        while True:
            self.check_stopping()
            batch = await pool.run(lambda: next(batches, None))
            if batch is None:
                return
            yield batch

    async def drain(self) -> None:
        """Wait until the digests have followed what was stored."""

    def close(self) -> None:
        """Give up the threads; nothing is stored after this."""
        self.threads.shutdown()


# The spool: unlinked files of this node for bodies that are not kept in memory, wherever a store has its bytes.


_THREADS = 4
_PIECE_BYTES = 1 << 20


class SpooledBytes:
    """A file without a name: its descriptor is closed with its last user, and then nothing is left of it."""

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
        """Yield so much from there on, in order, read from a thread."""
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
        """Raises ConfigurationError if it can't be written."""
        await self._pool.run(self._prepare)

    def _prepare(self) -> None:
        try:
            self._root.open()
            with suppress(FileExistsError):
                self._root.make_directory("spool")  # whether it outlives a power cut does not matter
            with self._root.enter("spool") as directory:  # it is one, and no link
                disk.check_unnamed(directory)
        except OSError as error:
            raise disk.unfit(self._path, error) from error

    async def open(self) -> SpooledBytes:
        """Return a place for a body. Raises StorageFull."""
        if self._ballast is not None:
            disk.check_room(self._ballast.reserve)
        return await self._pool.run(self._open)

    def _open(self) -> SpooledBytes:
        with self._root.enter("spool") as directory:
            return SpooledBytes(self._pool, directory.open_unnamed())

    def close(self) -> None:
        """Give up the threads."""
        self._pool.shutdown()
