"""A third store behind the seam of `uploader/storage/base.py`, the example to begin another one from: in memory.

What a root has all stores on it share, as processes do a disk; it goes with the last of them. Nothing waits between what is
looked at and what is done about it, but for locks, so there is no more to be locked than the seam asks for. Refuses to be
durable, and to be fast: digests come with the merge, and nothing is hashed before.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple
from weakref import WeakValueDictionary

from isal.isal_zlib import crc32

from uploader import errors
from uploader.domain.upload import UNBOUNDED_CHUNK_COUNT, Tail, Upload, chunk_count, chunk_length
from uploader.storage import base
from uploader.storage.base import Arrival, Body, Busy, BytesBody, Digests, Found, Gone, Lost, PresentChunks, Stretch
from uploader.storage.hashes import PrefixHashes, identify
from uploader.storage.store import BytesBlob, InstallationMark, MarkFiles, Marks, Store, StoreName

_UPLOADS, _BLOBS, _TRASH = "uploads/", "blobs/", "trash/"
# What is locked beside single chunks: of who keeps writers out, who appends or fills, and who digests.
_GATE, _APPEND, _DIGEST = "gate", "append", "digest"
_STAMP = "%Y%m%dT%H%M%S"
_PIECE_BYTES, _LIST_BATCH = 1 << 20, 250


class Chunk(NamedTuple):
    """The bytes of a chunk, or its first ones: a tail; and the CRC-32 of what came."""

    content: bytes = b""
    checksum: int = 0

    def check(self) -> bool:
        return crc32(self.content) == self.checksum


@dataclass(eq=False)
class _Kept:
    """What lies at a place: a blob, or an open upload."""

    content: bytes = b""  # of an upload: all of it, once it was digested
    digests: Digests | None = None
    chunks: dict[int, Chunk] = field(default_factory=dict)
    parts: Sequence[Chunk] = ()  # of a whole: the chunks of its parts
    is_deferred: bool = False  # what came did so while its length was not known
    changed_at: float = field(default_factory=time.time)
    inode: int = field(default_factory=partial(secrets.randbits, 60))
    locks: set[Hashable] = field(default_factory=set)
    claims: int = 0  # of who waits to append

    @property
    def bytes(self) -> int:
        return len(self.content) + sum(len(chunk.content) for chunk in self.chunks.values())

    def read_map(self, upload: Upload, *, verified: bool = True) -> PresentChunks:
        size, chunk_size = upload.extent, upload.chunk_size
        is_settled = not (upload.length_known and self.is_deferred)
        if verified and not is_settled:
            raise errors.Unverified()
        present = bytearray(chunk_count(size, chunk_size))
        for number, chunk in self.chunks.items():
            present[number] = len(chunk.content) == chunk_length(number, size, chunk_size)
        first = present.find(0)
        tail = Tail(first, len(self.chunks[first].content)) if first in self.chunks else None
        return PresentChunks(present, tail, size, chunk_size, self.changed_at, is_settled)

    def put(self, upload: Upload, number: int, body: Body | None, start: int) -> bool:
        """Whether it was not there. What was acknowledged is not touched: what follows begins with it."""
        before, length = (
            self.chunks.get(number, Chunk()).content,
            chunk_length(number, upload.extent, upload.chunk_size),
        )
        if self.is_deferred == upload.length_known:
            raise errors.Unverified()
        if len(before) == length:
            return False
        if body is None or (start and start != len(before)):
            raise Gone(upload.id)
        sent = b"".join(body.pieces())
        content = before[:start] + sent
        if len(content) != length and (start != len(before) or 0 in self.read_map(upload).present[:number]):
            raise Gone(upload.id)  # chunks, or the tail, were withdrawn
        if not content.startswith(before):
            raise errors.BytesConflict()
        self.chunks[number] = Chunk(content, crc32(content))
        self.changed_at = time.time()
        return True


class _Disk(dict[str, _Kept]):
    """What lies where; and of which installation it is."""

    of_roots: ClassVar[WeakValueDictionary[Path, "_Disk"]] = WeakValueDictionary()

    def __init__(self) -> None:
        self.marks: dict[str, str] = {}


class _Held(base.HeldChunk):
    def __init__(self, kept: _Kept, number: int) -> None:
        super().__init__(written=False)
        self._kept, self._number = kept, number

    def release(self) -> None:
        self._kept.locks.discard(self._number)


class _Appender(NamedTuple):
    kept: _Kept
    read_map: Callable[[], Coroutine[None, None, PresentChunks]]

    @property
    def is_claimed(self) -> bool:
        return self.kept.claims > 0


@dataclass(frozen=True)
class PlainMarks(MarkFiles):
    """Of several first starts that one counts which has come first."""

    _marks: dict[str, str]
    store = StoreName("memory", "UPLOADER_DATA", "is it another process?")

    def read(self, known: str | None = None) -> Marks:
        return Marks(self._marks.get("own"), frozenset({self._marks["proposed"]} if "proposed" in self._marks else ()))

    def propose(self, installation: str, marks: Marks) -> None:
        self._marks.setdefault("proposed", installation)

    def write(self, installation: str, *, replace: bool) -> None:
        if replace:
            self._marks["own"] = installation
        self._marks.setdefault("own", installation)

    def forget_proposals(self, *, is_durable: bool = True) -> None:
        self._marks.pop("proposed", None)


class PlainStore(Store):
    """In the memory of this process."""

    keeps_files = False
    keeps_trash = True

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.disk = _Disk.of_roots.setdefault(root.absolute(), _Disk())
        self.marks = InstallationMark(PlainMarks(self.disk.marks), self.threads.long)

    async def prepare(self) -> None:
        """There is nothing to be made."""

    async def check(self) -> None:
        """It always works."""

    # Open uploads

    def _kept(self, upload: Upload) -> _Kept:
        try:
            return self.disk[upload.place]
        except KeyError:
            raise Gone(upload.id) from None

    async def _free(
        self,
        upload: Upload,
        is_locked: Callable[[set[Hashable]], bool],
        seconds: float = 30,
        busy: type[Exception] = errors.Unavailable,
    ) -> _Kept:
        """Wait while something is locked. Raises `busy` if others keep it, and Gone."""
        deadline = time.monotonic() + seconds
        while is_locked((kept := self._kept(upload)).locks):
            if time.monotonic() >= deadline:
                raise busy("This upload is busy; try again.")
            await asyncio.sleep(0.002)
        return kept

    @contextmanager
    def _locked(self, kept: _Kept, what: Hashable) -> Generator[_Kept]:
        kept.locks.add(what)
        try:
            yield kept
        finally:
            kept.locks.discard(what)

    def place_of(self, upload_id: str, opened_at: datetime) -> str:
        return f"{_UPLOADS}{upload_id}.{opened_at.astimezone(UTC).strftime(_STAMP)}"

    async def create(self, upload: Upload, parts: Sequence[Upload] | None = None) -> float:
        chunks = [chunk for part in parts or () for _, chunk in sorted(self._kept(part).chunks.items())]
        self.disk[upload.place] = made = _Kept(parts=chunks, is_deferred=not upload.length_known)
        return made.changed_at

    async def discard(self, upload: Upload, placed_at: str | None = None) -> bool:
        return self.disk.pop(upload.place, None) is not None

    async def hold_chunk(self, upload: Upload, number: int, body: Body | None, *, start: int = 0) -> _Held:
        """By the gate, so that whoever has that waits for those who write by now, and for no others."""
        kept = await self._free(upload, lambda locks: not locks.isdisjoint({_GATE, number}))
        kept.locks.add(number)
        held = _Held(kept, number)
        try:
            held.written = kept.put(upload, number, body, start)
        except BaseException:
            held.release()
            raise
        return held

    async def read_map(self, upload: Upload, *, verified: bool = True) -> PresentChunks:
        return self._kept(upload).read_map(upload, verified=verified)

    @asynccontextmanager
    async def appending(self, upload: Upload) -> AsyncIterator[_Appender]:
        kept = self._kept(upload)
        kept.claims += 1
        try:
            kept = await self._free(upload, lambda locks: _APPEND in locks, 8, errors.UploadBusy)
        finally:
            kept.claims -= 1
        with self._locked(kept, _APPEND):
            yield _Appender(kept, partial(self.read_map, upload))

    @asynccontextmanager
    async def filling(self, whole: Upload) -> AsyncIterator[base.ReadPart]:
        with self._locked(await self._free(whole, lambda locks: _APPEND in locks, 0, Busy), _APPEND) as kept:
            yield partial(self._read_part, kept, whole)

    async def _read_part(self, kept: _Kept, whole: Upload, number: int) -> BytesBody:
        start, length = number * whole.chunk_size, chunk_length(number, whole.size, whole.chunk_size)
        content = b"".join(part.content for part in kept.parts)[start : start + length]
        if len(content) != length or not all(part.check() for part in kept.parts):
            raise base.PartDamaged(f"of chunk {number} not all bytes are what came")
        return BytesBody(content)

    # Under all its locks

    @asynccontextmanager
    async def locked(self, upload: Upload) -> AsyncIterator[None]:
        with self._locked(await self._free(upload, lambda locks: _GATE in locks), _GATE):
            await self._free(upload, lambda locks: any(isinstance(each, int) for each in locks))
            yield

    async def settle_length(self, upload: Upload) -> bool:
        kept = self._kept(upload)
        was_deferred, kept.is_deferred = kept.is_deferred, kept.is_deferred and not upload.length_known
        return was_deferred and not kept.is_deferred

    async def withdraw(
        self, upload: Upload, numbers: list[int], *, generation: int, verified: bool = False, lost: Lost | None = None
    ) -> None:
        """With a tail that comes after one, which would count again."""
        kept, first = (
            await self._free(upload, lambda locks: _DIGEST in locks),
            min(numbers, default=UNBOUNDED_CHUNK_COUNT),
        )
        kept.digests = None
        for number, chunk in list(kept.chunks.items()):
            is_tail = len(chunk.content) != chunk_length(number, upload.extent, upload.chunk_size)
            if number in numbers or (is_tail and number > first):
                del kept.chunks[number]

    async def find_bad_chunks(self, upload: Upload) -> list[int]:
        self.check_stopping()
        return [number for number, chunk in sorted(self._kept(upload).chunks.items()) if not chunk.check()]

    async def digest(self, upload: Upload) -> Digests:
        with self._locked(await self._free(upload, lambda locks: _DIGEST in locks, 0, Busy), _DIGEST) as kept:
            if kept.digests is not None and (kept.digests.md5 is not None or not upload.needs_md5):
                return kept.digests
            if not kept.read_map(upload).complete:
                raise Busy(upload.id)  # chunks were withdrawn
            if bad := await self.find_bad_chunks(upload):
                raise errors.StorageFailed(inside=f"chunks {bad} of upload {upload.id} are not what came")
            kept.content = b"".join(chunk.content for _, chunk in sorted(kept.chunks.items()))
            hashes = PrefixHashes(with_md5=upload.needs_md5)
            hashes.update(memoryview(kept.content))
            kept.digests = hashes.digests()
            return kept.digests

    async def place_blob(self, upload: Upload, sha256: str) -> None:
        kept = self._kept(upload)
        if kept.digests is None or kept.digests.sha256 != sha256:
            raise Busy(upload.id)  # chunks were withdrawn since
        self._make_blob(sha256, kept.content)

    # Blobs

    def _make_blob(self, sha256: str, content: bytes) -> None:
        """Others at its place go to the trash."""
        there = self._look(f"{_BLOBS}{sha256}")
        if there is not None and self.disk[there.place].content is content:
            return
        if there is not None:
            self._move_away(there)
        self.disk[f"{_BLOBS}{sha256}"] = _Kept(content)

    def _move_away(self, found: Found) -> None:
        kept = self.disk.pop(found.place)
        self.disk[f"{_TRASH}{found.name}.{secrets.token_hex(16)}"] = replace(kept, changed_at=time.time())

    async def store_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        """Their rows are not locked yet: what has their names stays."""
        for arrival in filter(identify, arrivals):
            content = b"".join(arrival.body.pieces())
            self.disk.setdefault(f"{_BLOBS}{arrival.sha256_of_bytes}", _Kept(content))

    def place_arrivals(self, arrivals: Sequence[Arrival]) -> Mapping[str, str]:
        for arrival in arrivals:
            sha256 = arrival.sha256_of_bytes
            found = self._look(f"{_BLOBS}{sha256}")
            if found is None or self._hash(found, None, with_md5=False) != Digests(None, sha256):
                self._make_blob(sha256, b"".join(arrival.body.pieces()))
        return {}

    def _content(self, found: Found) -> bytes:
        if self._look(found.place) is None:
            raise Gone(found.name)
        return self.disk[found.place].content

    async def open_found(self, found: Found) -> BytesBlob:
        return BytesBlob(self._content(found))

    async def find_blob(self, sha256: str) -> Found | None:
        return self._look(f"{_BLOBS}{sha256}")

    def pieces(self, found: Found, *, cold: bool = False) -> Generator[bytes]:
        content = self._content(found)
        for start in range(0, len(content), _PIECE_BYTES):
            yield content[start : start + _PIECE_BYTES]

    # The trash

    async def put_away(self, found: Found) -> bool:
        if self._look(found.place) != found:
            return False
        self._move_away(found)
        return True

    def list_trash(self, name: str | None = None) -> AsyncIterator[list[Found]]:
        return self._list(_TRASH, lambda found: name in (None, found.name))

    async def restore_blob(self, found: Found) -> None:
        self._make_blob(found.name, self._content(found))
        del self.disk[found.place]

    # Housekeeping

    def _look(self, place: str) -> Found | None:
        """What is there now."""
        kept, name = self.disk.get(place), place.partition("/")[2].partition(".")[0]
        if kept is None:
            return None
        in_trash = place.startswith(_TRASH)
        return Found(name, place, kept.inode, kept.changed_at, kept.bytes, in_trash=in_trash, size=kept.bytes)

    def list_uploads(self, opened_before: datetime) -> AsyncIterator[list[Found]]:
        stamp = opened_before.astimezone(UTC).strftime(_STAMP)
        return self._list(_UPLOADS, lambda found: found.place.partition(".")[2] < stamp)

    async def list_blobs(self, after: str = "") -> AsyncIterator[Stretch]:
        async for batch in self._list(_BLOBS, lambda found: found.name > after):
            yield Stretch(batch, max(found.name for found in batch))
        yield Stretch([], None)

    async def _list(self, parent: str, is_wanted: Callable[[Found], bool]) -> AsyncIterator[list[Found]]:
        """Ordered by what follows the dots, uploads by their opening, and then by their names."""
        places = sorted(
            filter(lambda place: place.startswith(parent), self.disk),
            key=lambda place: (place.partition(".")[2], place),
        )
        found = [each for place in places if (each := self._look(place)) and is_wanted(each)]
        for first in range(0, len(found), _LIST_BATCH):
            self.check_stopping()
            yield found[first : first + _LIST_BATCH]

    async def remaining(self, uploads: list[Upload]) -> list[Upload]:
        return [upload for upload in uploads if upload.place in self.disk]

    async def holds_chunks(self, found: Found) -> bool:
        return self._look(found.place) is not None and bool(self.disk[found.place].chunks)

    async def remove(self, found: Found) -> bool:
        return self._look(found.place) == found and self.disk.pop(found.place, None) is not None
