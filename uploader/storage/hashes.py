"""Hashes of a prefix that grows: SHA-256, and MD5 where it is needed. Another process can go on from a saved state.

hashlib does not give its state away. The low-level functions of OpenSSL, in the same library that hashlib uses, keep their
state in a structure of the caller, and the layout of that structure has never changed. This module calls them through
ctypes, without the GIL (docs/decisions/0007). If a library lacks these functions or fails the test below, hashlib computes,
and no other process can go on.
"""

import _hashlib
import asyncio
import ctypes
import hashlib
import os
import struct
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Protocol, TypeVar

from isal.isal_zlib import crc32

from uploader.domain.upload import Upload
from uploader.lanes.kernel import LAYOUTS, Algorithm, Context, Kernel, kernel
from uploader.runtime import cores
from uploader.runtime.tasks import give_way_anywhere
from uploader.storage.base import Arrival, Body, Digests
from uploader.storage.disk import room_for

# Some distributions of an older OpenSSL abort a process that calls these functions in FIPS mode.
_OLDEST_OPENSSL = 0x3_00_00_00_0
# From this length on, two threads are faster than one. This matters for the last chunk: its sender waits for the digests.
_SIDE_BY_SIDE_BYTES = 256 << 10
# A blob is divided into blocks of this size. Some stores keep a checksum of each block. The last block may be shorter.
BLOCK_BYTES = 64 << 10
BLOCK_CHECKSUM = struct.Struct("<I")
# Bytes to read from a blob at one go. A blob of no more bytes has no list of checksums: it is compared with its name.
VIEW_BYTES = 256 << 10
# Bytes to read from the chunks of an upload at one go.
READ_BYTES = 512 << 10

T = TypeVar("T")


class _Updated(Protocol):
    def update(self, piece: memoryview, /) -> None: ...


class _Hash(_Updated, Protocol):
    def hexdigest(self) -> str: ...
    def copy(self) -> "_Hash": ...


@dataclass(frozen=True, slots=True)
class _Algorithm:
    """A hash function of OpenSSL, with the layout of its context (md5.h, sha.h): two counters of hashed bits, and one of the
    bytes that wait for a full block of 64."""

    name: str
    context_bytes: int
    digest_bytes: int
    bits_offset: int
    waiting_offset: int


_MD5 = _Algorithm("MD5", context_bytes=92, digest_bytes=16, bits_offset=16, waiting_offset=88)
_SHA256 = _Algorithm("SHA256", context_bytes=112, digest_bytes=32, bits_offset=32, waiting_offset=104)
STATE_BYTES = _MD5.context_bytes + _SHA256.context_bytes


class _OpenSslHash:
    """A hash with its whole state in `context`."""

    def __init__(self, library: ctypes.CDLL, algorithm: _Algorithm, state: bytes | None = None) -> None:
        self._library = library
        self._algorithm = algorithm
        self.context = ctypes.create_string_buffer(algorithm.context_bytes)
        if state is None:
            self._call("Init", self.context)
        else:
            self.context.raw = state

    def update(self, piece: memoryview) -> None:
        # ctypes can't borrow read-only memory: copy it.
        lent = bytes(piece) if piece.readonly else ctypes.byref(ctypes.c_char.from_buffer(piece))
        self._call("Update", self.context, lent, ctypes.c_size_t(len(piece)))

    def hexdigest(self) -> str:
        digest = ctypes.create_string_buffer(self._algorithm.digest_bytes)
        context = ctypes.create_string_buffer(self.context.raw, self._algorithm.context_bytes)
        self._call("Final", digest, context)
        return digest.raw.hex()

    def copy(self) -> "_OpenSslHash":
        return _OpenSslHash(self._library, self._algorithm, self.context.raw)

    def _call(self, verb: str, *arguments: object) -> None:
        if not self._library[f"{self._algorithm.name}_{verb}"](*arguments):
            raise RuntimeError(f"OpenSSL refused {self._algorithm.name}_{verb}")


@cache
def _library() -> ctypes.CDLL | None:
    """Return the OpenSSL library of hashlib, if it has these functions and the documented layout of their states."""
    try:
        library = ctypes.CDLL(getattr(_hashlib, "__file__", None))
        version: int = library.OpenSSL_version_num()
        if version >= _OLDEST_OPENSSL and all(_is_as_documented(library, each) for each in (_MD5, _SHA256)):
            return library
    except (OSError, AttributeError, RuntimeError):
        pass
    return None


def _is_as_documented(library: ctypes.CDLL, algorithm: _Algorithm) -> bool:
    """Hash known bytes in two parts, the second from the saved state of the first."""
    content, first_bytes, block_bytes = bytes(range(256)), 131, 64
    first = _OpenSslHash(library, algorithm)
    first.update(memoryview(content)[:first_bytes])
    state = first.context.raw
    bits, more_bits = struct.unpack_from("=II", state, algorithm.bits_offset)
    (waiting,) = struct.unpack_from("=I", state, algorithm.waiting_offset)
    second = _OpenSslHash(library, algorithm, state)
    second.update(memoryview(content)[first_bytes:])
    counted = (bits, more_bits, waiting) == (first_bytes * 8, 0, first_bytes % block_bytes)
    known = hashlib.new(algorithm.name.lower(), content, usedforsecurity=False).hexdigest()
    return counted and second.hexdigest() == known


def is_without_md5(state: bytes) -> bool:
    return len(state) == _SHA256.context_bytes


def digests_of(body: Body, blocks: "BlockChecksums | None" = None) -> Digests:
    if blocks is None and body.length < _SIDE_BY_SIDE_BYTES:
        md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
        for piece in body.pieces():
            md5.update(piece)
            sha256.update(piece)
        return Digests(md5=md5.hexdigest(), sha256=sha256.hexdigest())
    hashes = PrefixHashes(blocks=blocks)
    hashes.update_by(body.pieces, body.length)
    return hashes.digests()


def identify(arrival: Arrival, *, with_blocks: bool = False) -> bool:
    """Compute the digests of an arrival and, `with_blocks`, the checksums of its blocks, unless they are known. Return
    whether the digests equal the claimed digests."""
    if arrival.digests is None:
        blocks = BlockChecksums() if with_blocks else None
        arrival.digests = digests_of(arrival.body, blocks)
        arrival.checksums = b"" if blocks is None else blocks.end()
    return arrival.compare()


def states_are_portable() -> bool:
    """Return whether another process can go on from a state of this process."""
    return _library() is not None


@cache
def _beside() -> ThreadPoolExecutor:
    """Return the threads that compute a SHA-256 while the caller computes the MD5.

    They do not belong to the pool for hashing: if all threads of that pool were busy, each would wait for another one.
    """
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="sha256", initializer=give_way_anywhere)


def _nothing() -> None:
    pass


def _update_by(computing: _Updated, pieces: Iterable[memoryview]) -> None:
    for piece in pieces:
        computing.update(piece)


def _update_side_by_side(md5: _Updated, named: _Updated, pieces: Callable[[], Iterable[memoryview]]) -> None:
    sha256 = _beside().submit(_update_by, named, pieces())
    try:
        _update_by(md5, pieces())
    finally:
        sha256.result()  # even after an error: until then the thread reads bytes that the caller may free


# This many threads fill the lanes of any processor.
MOST_CALLERS = 16

_here = threading.local()


def room(number: int = 0) -> memoryview:
    """Return a buffer of this thread. It is never freed: getting fresh memory costs more than reading into it."""
    rooms: list[memoryview] = _here.__dict__.setdefault("rooms", [])
    while len(rooms) <= number:
        rooms.append(room_for(READ_BYTES))
    return rooms[number]


@dataclass(eq=False)
class Job:
    """A hash to be advanced by `pieces`: by a kernel, through `context`, or by a call of `alone`."""

    algorithm: Algorithm
    context: Context
    pieces: Sequence[memoryview]
    alone: Callable[[], None]
    error: BaseException | None = field(default=None, init=False)
    done: threading.Event = field(default_factory=threading.Event, init=False)


class Gathering:
    """Hashes for many threads at once: one call of a kernel advances the same hash of many contents.

    Each caller is a thread with bytes of one content, for one hash or two. The thread adds its jobs to the waiting jobs. As
    soon as a core is free, it takes each of its jobs that no other thread has done, and does the job together with all
    waiting jobs of the same algorithm. So no thread waits for others to come, and the more there is to hash, the fuller the
    lanes are: threads come back with new jobs while others still compute. Only as many threads compute as there are cores. A
    thread with enough cores for itself hashes alone.
    """

    def __init__(self, kernels: Mapping[Algorithm, Kernel], core_count: int) -> None:
        self._kernels = kernels
        self._cores = core_count
        self._lock = threading.Lock()
        self._callers = 0
        self._waiting: list[Job] = []
        self._free_cores = threading.BoundedSemaphore(core_count)

    def advance(self, jobs: Sequence[Job], beside: Callable[[], None], alone: Callable[[], None]) -> None:
        """Do the jobs of one content in this order, and `beside`. `alone` does all of it in two threads."""
        with self._lock:
            self._callers += 1
            is_alone = len(jobs) > 1 and len(jobs) * self._callers <= self._cores
            if not is_alone:
                self._waiting += jobs
        try:
            if is_alone:
                alone()
            else:
                self._advance_in_company(jobs, beside)
        finally:
            with self._lock:
                self._callers -= 1

    def compute(self, work: Callable[[], None]) -> None:
        """Do other work that needs a core."""
        with self._free_cores:
            work()

    def _advance_in_company(self, jobs: Sequence[Job], beside: Callable[[], None]) -> None:
        try:
            with self._free_cores:
                for job in jobs:
                    self._lead(job)
                beside()
        finally:
            for job in jobs:
                self._leave(job)
        for job in jobs:
            if job.error is not None:
                raise RuntimeError(f"the {job.algorithm} of many contents failed") from job.error

    def _lead(self, job: Job) -> None:
        """Do a job together with the waiting jobs of the same algorithm, unless another thread has taken it."""
        kernel = self._kernels.get(job.algorithm)
        with self._lock:
            if job not in self._waiting:
                return
            alike = [each for each in self._waiting if each.algorithm == job.algorithm and each is not job]
            batch = [job, *alike[: kernel.lanes - 1 if kernel else 0]]
            self._waiting = [each for each in self._waiting if each not in batch]
        try:
            if kernel is None or len(batch) == 1:
                job.alone()
            else:
                kernel.update([(each.context, each.pieces) for each in batch])
        except BaseException as error:
            for each in batch:
                each.error = error
            raise
        finally:
            for each in batch:
                each.done.set()

    def _leave(self, job: Job) -> None:
        """Return only when no thread reads the bytes of the job any more: the caller may free them then."""
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)
                return
        job.done.wait()


@cache
def _gathering() -> Gathering | None:
    found = {algorithm: each for algorithm in LAYOUTS if (each := kernel(algorithm)) is not None}
    return Gathering(found, cores.count()) if found else None


# In the child of a fork, nobody releases a lock that another thread of the parent held.
os.register_at_fork(after_in_child=_gathering.cache_clear)


def gather_here() -> None:
    """Let this thread hash together with others. Its pool has more threads than there are cores."""
    _here.gathers = True


def gathering() -> Gathering | None:
    """Return where this thread hashes with others; None: it hashes alone, for lack of a kernel or because it may not
    wait."""
    return _gathering() if getattr(_here, "gathers", False) else None


def most_threads() -> int:
    """Return how many threads a pool needs if its threads call `gather_here`."""
    core_count = os.cpu_count() or 1
    return core_count if _gathering() is None else max(MOST_CALLERS, core_count)


class BlockChecksums:
    """Computes the CRC-32 of each block, from the same bytes as the SHA-256. The last block may be incomplete."""

    def __init__(self, position: int = 0, partial: int = 0) -> None:
        """`partial`: the checksum of the first bytes of the block at `position`."""
        self.partial = partial
        self._position = position
        # Of whole blocks, since the last `take`.
        self._checksums = bytearray()

    def update(self, piece: memoryview) -> None:
        while length := len(piece):
            count = min(BLOCK_BYTES - self._position % BLOCK_BYTES, length)
            self.partial = crc32(piece[:count], self.partial)
            self._position += count
            piece = piece[count:]
            if self._position % BLOCK_BYTES == 0:
                self._checksums += BLOCK_CHECKSUM.pack(self.partial)
                self.partial = 0

    def take(self) -> tuple[int, bytes]:
        """Return the number of the first block since the last call, and the checksums of whole blocks from there on."""
        taken, self._checksums = bytes(self._checksums), bytearray()
        return self._position // BLOCK_BYTES - len(taken) // BLOCK_CHECKSUM.size, taken

    def end(self) -> bytes:
        """Return the remaining checksums, with the checksum of an incomplete last block. No bytes may come afterwards."""
        _, taken = self.take()
        return taken + BLOCK_CHECKSUM.pack(self.partial) if self._position % BLOCK_BYTES else taken


# The list of a blob's block checksums: `header | page | page …`. The header ends with its own checksum. A page holds 1,023
# checksums (the last page the rest), then a checksum of the page. Nothing here touches a disk.

LIST_MAGIC = b"UPSUMS\x00\x01"
_LIST_HEADER = struct.Struct("<8sI4xQ32s")
_PAGE_NUMBER = struct.Struct("<Q")
LIST_HEADER_LENGTH = _LIST_HEADER.size + BLOCK_CHECKSUM.size
LIST_PAGE_CHECKSUMS = 1023
LIST_PAGE_BYTES = (LIST_PAGE_CHECKSUMS + 1) * BLOCK_CHECKSUM.size


def are_blocks_listed(size: int) -> bool:
    """Return whether a blob of this size has a list of block checksums."""
    return size > VIEW_BYTES


def list_header(sha256: str, size: int) -> bytes:
    header = _LIST_HEADER.pack(LIST_MAGIC, BLOCK_BYTES, size, bytes.fromhex(sha256))
    return header + BLOCK_CHECKSUM.pack(crc32(header))


def list_offset(block: int) -> int:
    """Return the offset of a block's checksum in the list."""
    page, number = divmod(block, LIST_PAGE_CHECKSUMS)
    return LIST_HEADER_LENGTH + page * LIST_PAGE_BYTES + number * BLOCK_CHECKSUM.size


def checksum_of_page(header: bytes, number: int, checksums: bytes) -> bytes:
    """Return the checksum of a page. It depends on the blob and on the number of the page, so a misplaced page shows."""
    begun = crc32(
        header[: _LIST_HEADER.size]
    )  # without its checksum: a CRC-32 over both would be the same for all headers
    return BLOCK_CHECKSUM.pack(crc32(checksums, crc32(_PAGE_NUMBER.pack(number), begun)))


def list_of(sha256: str, size: int, checksums: bytes) -> bytes:
    """Return the list of a blob, from the checksums of all of its blocks."""
    header, length = list_header(sha256, size), LIST_PAGE_CHECKSUMS * BLOCK_CHECKSUM.size
    made = bytearray(header)
    for number, start in enumerate(range(0, len(checksums), length)):
        page = checksums[start : start + length]
        made += page + checksum_of_page(header, number, page)
    return bytes(made)


@dataclass(frozen=True, slots=True)
class _NamedBytes:
    """Advances a SHA-256 and the block checksums together, so that each piece is read once."""

    sha256: _Hash
    blocks: BlockChecksums

    def update(self, piece: memoryview) -> None:
        self.sha256.update(piece)
        self.blocks.update(piece)


class PrefixHashes:
    """The hashes of the first `position` bytes: SHA-256, and MD5 if it is needed."""

    def __init__(self, *, with_md5: bool = True, blocks: BlockChecksums | None = None) -> None:
        """`blocks`: block checksums to compute from the same bytes."""
        self.position = 0
        self.blocks = blocks
        # True if the hashes go on from a saved state.
        self.is_restored = False
        self._md5: _Hash | None = None
        self._sha256: _Hash
        library = _library()
        if library is None:
            self._sha256 = hashlib.sha256()
            if with_md5:
                self._md5 = hashlib.md5(usedforsecurity=False)
        else:
            self._sha256 = _OpenSslHash(library, _SHA256)
            if with_md5:
                self._md5 = _OpenSslHash(library, _MD5)

    @classmethod
    def restore(cls, position: int, state: bytes, *, needs_md5: bool = False) -> "PrefixHashes | None":
        """Return the hashes whose state was saved at `position`. None if this process can't go on from it, or if it lacks a
        needed MD5."""
        library = _library()
        if library is None or len(state) not in (STATE_BYTES, _SHA256.context_bytes):
            return None
        md5, sha256 = state[: -_SHA256.context_bytes], state[-_SHA256.context_bytes :]
        if needs_md5 and not md5:
            return None
        restored = cls(with_md5=bool(md5))
        restored.position, restored.is_restored = position, True
        restored._sha256 = _OpenSslHash(library, _SHA256, sha256)
        if md5:
            restored._md5 = _OpenSslHash(library, _MD5, md5)
        return restored

    @property
    def has_md5(self) -> bool:
        return self._md5 is not None

    def copy(self) -> "PrefixHashes":
        copied = copy(self)
        copied._md5, copied._sha256 = self._md5 and self._md5.copy(), self._sha256.copy()
        return copied

    def state(self) -> bytes:
        """Return the state for `restore`; empty if hashlib computes, because hashlib does not give its state away."""
        hashes = (self._md5, self._sha256)
        return b"".join(each.context.raw for each in hashes if isinstance(each, _OpenSslHash))

    def update(self, content: memoryview) -> None:
        self.update_by(lambda: (content,), len(content))

    def update_by(self, pieces: Callable[[], Iterable[memoryview]], length_bytes: int) -> None:
        """Advance by `length_bytes`. For a long body two threads call `pieces`, each for its own iterator; or the hashes are
        computed together with those of other threads."""
        if not length_bytes:
            return
        named = self._sha256 if self.blocks is None else _NamedBytes(self._sha256, self.blocks)
        lanes, md5 = gathering(), self._md5
        if md5 is not None and length_bytes < _SIDE_BY_SIDE_BYTES:
            for piece in pieces():
                md5.update(piece)
                named.update(piece)
        else:
            given = pieces()
            alone = (
                partial(_update_by, named, given) if md5 is None else partial(_update_side_by_side, md5, named, pieces)
            )
            if lanes is None:
                alone()
            elif isinstance(given, Sequence) and (jobs := self._jobs(given)):
                beside = _nothing if self.blocks is None else partial(_update_by, self.blocks, given)
                lanes.advance(jobs, beside, alone)
            else:  # bytes that are read from a file on the way are not in memory together
                lanes.compute(alone)
        self.position += length_bytes

    def _jobs(self, pieces: Sequence[memoryview]) -> Sequence[Job]:
        """Return the jobs for `Gathering`; none if hashlib computes."""
        hashes: Sequence[tuple[Algorithm, _Hash | None]] = (("sha256", self._sha256), ("md5", self._md5))
        return [
            Job(algorithm, each.context, pieces, partial(_update_by, each, pieces))
            for algorithm, each in hashes
            if isinstance(each, _OpenSslHash)
        ]

    def digests(self) -> Digests:
        return Digests(md5=self._md5.hexdigest() if self._md5 else None, sha256=self._sha256.hexdigest())


# Yields the next bytes to hash. Returns when the turn is over.
Turn = Generator[tuple[PrefixHashes, memoryview], None, T]


def take(turn: Turn[T]) -> T:
    """Take one turn alone."""
    try:
        while True:
            hashes, piece = next(turn)
            hashes.update(piece)
    except StopIteration as end:
        outcome: T = end.value
        return outcome
    finally:
        turn.close()


def take_together(turns: Sequence[Turn[T]]) -> list[tuple[T | Exception, int]]:
    """Take turns together, step by step. Return the outcome of each turn and the number of bytes that it hashed. If a turn
    raises an exception, the exception is its outcome, and the other turns go on."""
    outcomes: dict[int, T | Exception] = {}
    lengths = [0] * len(turns)
    try:
        while len(outcomes) < len(turns):
            steps = []
            for number, turn in enumerate(turns):
                if number not in outcomes:
                    try:
                        step = next(turn)
                        steps.append(step)
                        lengths[number] += len(step[1])
                    except StopIteration as end:
                        outcomes[number] = end.value
                    except Exception as error:
                        outcomes[number] = error
            update_together(steps)
    finally:
        for turn in turns:
            turn.close()
    return [(outcomes[number], length) for number, length in enumerate(lengths)]


def update_together(updates: Sequence[tuple[PrefixHashes, memoryview]]) -> None:
    """Advance each prefix by its piece, in this thread: the same hash of all of them at once, if there are lanes."""
    hashes = [each for prefix, _ in updates for each in (prefix._sha256, prefix._md5) if each is not None]
    if len(updates) < 2 or not all(isinstance(each, _OpenSslHash) for each in hashes):
        for prefix, piece in updates:
            prefix.update(piece)
        return
    jobs = [job for prefix, piece in updates for job in prefix._jobs((piece,))]
    for algorithm in LAYOUTS:
        alike, found = [job for job in jobs if job.algorithm == algorithm], kernel(algorithm)
        if found is None:
            for job in alike:
                job.alone()
        else:
            found.update([(job.context, job.pieces) for job in alike])
    for prefix, piece in updates:
        if prefix.blocks is not None:
            prefix.blocks.update(piece)
        prefix.position += len(piece)


# Bodies and senders that wait for the hashes of a prefix

# Bytes of chunks that count, which a process keeps beyond their requests: two chunks of 8 MiB for each of 16 uploads.
MAX_KEPT_BYTES = 256 << 20
# The longest time that a sender waits for the digests.
_PATIENCE_SECONDS = 5.0


@dataclass(eq=False)
class Bodies:
    """The bodies that a process keeps beyond their requests, within a limit."""

    _kept_bytes: int = 0

    def keep(self, body: Body, most_bytes: int) -> bool:
        """Keep a body, unless all kept bodies would then have more than `most_bytes`. Return whether it is kept."""
        if not self.has_room(body, most_bytes):
            return False
        body.keep()
        self._kept_bytes += body.length
        return True

    def has_room(self, body: Body, most_bytes: int) -> bool:
        return self._kept_bytes + body.length <= most_bytes

    def hand_over(self, body: Body, others: "Bodies") -> "Bodies":
        """Move a kept body to `others`, even beyond the limit."""
        self._kept_bytes -= body.length
        others._kept_bytes += body.length
        return others

    def close(self, body: Body) -> None:
        self._kept_bytes -= body.length
        body.close()


@dataclass(eq=False)
class Following:
    """An upload whose digests follow the chunks in this process, and the senders that wait for the digests."""

    upload: Upload
    task: asyncio.Task[None] | None = field(default=None, init=False)
    _moved: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def tell_senders(self) -> None:
        """Wake the waiting senders. Each of them checks again whether to wait."""
        self._moved.set()
        self._moved = asyncio.Event()

    async def wait_while(self, is_far: Callable[[], bool]) -> None:
        """Wait while the digests are far behind, but 5 s at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while is_far():
                    await self._moved.wait()

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()

    async def ended(self) -> None:
        while self.task is not None and not self.task.done():
            await asyncio.wait({self.task})
