"""Delta bases: signatures of a caller's finished files, and their bytes while a chunk is made from them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from uploader import errors
from uploader.domain.delta import Pieces, cuts_for
from uploader.domain.links import Caller
from uploader.domain.upload import File
from uploader.runtime.tasks import uninterrupted
from uploader.service.files import Files
from uploader.service.heal import Healing
from uploader.service.ids import ID
from uploader.storage.base import Gone, OpenBlob, Stopping
from uploader.storage.store import Store

# A part of a piece: the number of the piece, an offset in the base, and a length.
_Part = tuple[int, int, int]

# Bytes to compare at a time; the last piece may exceed the limit.
_BATCH_BYTES = 1 << 20
# The largest piece that stays in memory until the next copy, which a slow client may delay.
_KEPT_BYTES = 256 << 10
# How much of a base is compared for a chunk: this many times the chunk plus one of the largest pieces. A copy of whole
# pieces, as our client makes it, needs the chunk and two pieces more. A copy of blocks at any offset needs the pieces
# around the blocks: if all blocks moved, about twelve times the chunk for blocks of 8 KiB, which rsync takes for 64
# MiB. Larger files have larger blocks, and smaller files have less to compare.
_MOST_TIMES = 16


def most_compared(size: int, chunk_bytes: int) -> int:
    return _MOST_TIMES * (chunk_bytes + cuts_for(size).max)


@dataclass(eq=False, repr=False)
class DeltaBase:
    """A file, open for copying into one chunk. The bytes stay readable if the file is deleted meanwhile. Each piece is
    compared once before copying, to notice rotten bytes."""

    # `most`: how many bytes may be compared. `examine`: finds out why the base was unusable.
    content: OpenBlob
    size: int
    pieces: Pieces
    most: int
    examine: Callable[[], Awaitable[None]]
    _compared: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._left = self.most
        # The last piece. A client that copies a run goes on in this piece.
        self._kept, self._piece = -1, b""

    def check(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Raises InvalidDelta if these ranges (offset, length) touch more pieces than may be compared."""
        numbers = {number for extent in ranges for number, _, _ in self.pieces.split(*extent)}
        self._bounded(sum(self.pieces.extent(number)[1] for number in numbers - self._compared))

    async def read(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Read ranges (offset, length), which together fit into memory. Raises InvalidDelta, BaseUnusable, StorageAway."""
        split = [self.pieces.split(*extent) for extent in ranges]
        try:
            found = await self._find(dict.fromkeys(chain.from_iterable(split)))
        except errors.StorageAway:
            raise
        except (Gone, errors.StorageFailed) as error:
            raise errors.BaseUnusable() from error
        return [b"".join([found[part] for part in parts]) for parts in split]

    async def _find(self, parts: Iterable[_Part]) -> dict[_Part, bytes]:
        """Return the bytes of parts, given in the order of copying: cut from a piece in memory, or read."""
        wanted: dict[int, list[_Part]] = {}
        for part in parts:
            wanted.setdefault(part[0], []).append(part)
        last = next(reversed(wanted), -1)
        found = self._cut(self._kept, self._piece, wanted)
        for numbers in self._batches(self._to_compare(wanted)):
            for number, piece in zip(numbers, await uninterrupted(self._compare(numbers)), strict=True):
                found |= self._cut(number, piece, wanted)
                if number == last and len(piece) <= _KEPT_BYTES:
                    self._kept, self._piece = number, bytes(piece)
        rest = list(chain.from_iterable(wanted.values()))
        if rest:
            read = await uninterrupted(self.content.read_all([(offset, length) for _, offset, length in rest]))
            found |= zip(rest, read, strict=True)
        return found

    def _cut(self, number: int, piece: bytes | memoryview, wanted: dict[int, list[_Part]]) -> dict[_Part, bytes]:
        parts = wanted.pop(number, None)
        if parts is None:
            return {}
        start, _ = self.pieces.extent(number)
        return {part: bytes(piece[part[1] - start : part[1] - start + part[2]]) for part in parts}

    def _to_compare(self, numbers: Iterable[int]) -> list[int]:
        """Return the pieces that were not compared yet, in order. Raises InvalidDelta if there are too many."""
        new = sorted(number for number in numbers if number not in self._compared)
        self._left = self._bounded(sum(self.pieces.extent(number)[1] for number in new))
        return new

    def _bounded(self, more_bytes: int) -> int:
        """Return how many bytes may be compared after these. Raises InvalidDelta if these are too many."""
        if more_bytes > self._left:
            raise errors.InvalidDelta(
                f"The instructions copy from so many places that more than {self.most} bytes of the base would have to be "
                f"looked at: {_MOST_TIMES} times the chunk, and {_MOST_TIMES} of the largest pieces."
            )
        return self._left - more_bytes

    def _batches(self, numbers: list[int]) -> Iterator[list[int]]:
        batch: list[int] = []
        length = 0
        for number in numbers:
            batch.append(number)
            length += self.pieces.extent(number)[1]
            if length >= _BATCH_BYTES:
                yield batch
                batch, length = [], 0
        if batch:
            yield batch

    async def _compare(self, numbers: list[int]) -> list[memoryview]:
        """Read and compare pieces. Neighbours are read together, because the store compares whole blocks, and two
        neighbours share a block. Raises BaseUnusable."""
        runs = self.pieces.runs_of(numbers)
        read = await self.content.read_all([self.pieces.extent(*run) for run in runs])
        pieces = [
            piece
            for run, content in zip(runs, read, strict=True)
            for piece in self.pieces.cut(*run, memoryview(content))
        ]
        if not await asyncio.to_thread(self.pieces.fit, numbers, pieces):
            raise errors.BaseUnusable()
        self._compared.update(numbers)
        return pieces


@dataclass(eq=False, repr=False)
class DeltaBases:
    """Opens delta bases. Refuses damaged ones. A store that does not answer raises StorageAway, and proves no damage."""

    files: Files
    storage: Store
    healing: Healing

    async def open(self, caller: Caller, file_id: str, chunk_bytes: int) -> DeltaBase:
        """Open a base; the caller closes its content. Raises FileNotFound, BaseUnusable, StorageFull, Unavailable."""
        if caller.session:
            raise errors.FileNotFound()
        file = await self._find(caller.user_id, file_id)
        try:
            content = await self.files.open(file)
        except errors.StorageAway:
            raise
        except (errors.ContentDamaged, errors.StorageFailed) as error:
            raise errors.BaseUnusable() from error
        try:
            pieces = await asyncio.to_thread(Pieces, await self._read_signature(file))
        except BaseException:
            await uninterrupted(content.close())
            raise
        most = most_compared(file.size, chunk_bytes)
        return DeltaBase(content, file.size, pieces, most, partial(self._examine, file.sha256))

    async def read_signature(self, user_id: str, file_id: str) -> bytes:
        """Return the signature of a file. Raises FileNotFound, BaseUnusable, StorageFull, Unavailable."""
        file = await self._find(user_id, file_id)
        if file.damaged:
            raise errors.BaseUnusable()
        return await self._read_signature(file)

    async def _read_signature(self, file: File) -> bytes:
        try:
            return await self.storage.read_signature(file.sha256, file.size)
        except errors.StorageAway:
            raise
        except errors.StorageFailed as error:
            raise errors.BaseUnusable() from error
        except Stopping as error:
            raise errors.Unavailable() from error
        except Gone as error:
            await self._find(file.user_id, file.id)  # the file may have been deleted at this moment
            await self._examine(file.sha256)
            raise errors.BaseUnusable() from error

    async def _examine(self, sha256: str) -> None:
        try:
            await asyncio.shield(self.healing.examine_once(sha256))
        except Stopping as error:
            raise errors.Unavailable() from error

    async def _find(self, user_id: str, file_id: str) -> File:
        if not ID.fullmatch(file_id):
            raise errors.FileNotFound()
        return await self.files.get(user_id, file_id)
