"""A whole and the bytes of its parts: each part is completed to an object, and the whole has rows that name those objects.

So parts can end as every upload does, and nothing of a whole rests on them: what a whole names, its part does not delete.
Each chunk of it is read from those objects by ranges.
"""

import secrets
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload, chunk_length
from uploader.storage.base import Busy, BytesBody, Gone, PartDamaged, ReadPart
from uploader.storage.s3.bucket import Bucket
from uploader.storage.s3.ledger import Ledger
from uploader.storage.s3.parts import Parts
from uploader.tasks import Pool


@dataclass(frozen=True)
class S3Wholes:
    """Makes wholes, and reads the parts of them."""

    _bucket: Bucket
    _ledger: Ledger
    _parts: Parts
    # Completes a part, and gives the key of its object.
    _complete: Callable[[Upload], Awaitable[str]]
    _pool: Pool
    _check_stopping: Callable[[], None]

    async def create(self, whole: Upload, parts: Sequence[Upload]) -> float:
        """An attempt that did not commit has left what this one would make: the same objects."""
        pieces = []
        for part in parts:
            pieces.append((await self._complete(part), part.size))
            crash_point("join.after_complete")
        made_at = await self._parts.create(whole)
        await self._ledger.set_pieces(whole.id, pieces)
        crash_point("join.after_pieces")
        return made_at

    @asynccontextmanager
    async def filling(self, whole: Upload) -> AsyncIterator[ReadPart]:
        """Whoever came last has the right, as of those who append: the one before ends with Busy. Where two fill all the
        same, rows decide whose chunks count. Raises Gone."""
        token = secrets.token_hex(16)
        pieces = await self._ledger.pieces(whole.id)
        if (not pieces and whole.size) or not await self._ledger.claim(whole.id, token):
            raise Gone(whole.id)

        async def check() -> None:
            if await self._ledger.appender(whole.id) != token:
                raise Busy(whole.id)

        yield S3PartBytes(self._bucket, self._pool, whole, pieces, check, self._check_stopping).chunk


@dataclass
class S3PartBytes:
    """The parts of one whole."""

    _bucket: Bucket
    _pool: Pool
    _whole: Upload
    _pieces: Sequence[tuple[str, int]]
    # Raises Busy if somebody else has the right by now.
    _check_right: Callable[[], Awaitable[None]]
    _check_stopping: Callable[[], None]

    def __post_init__(self) -> None:
        self._starts = [sum(size for _, size in self._pieces[:number]) for number in range(len(self._pieces))]

    async def chunk(self, number: int) -> BytesBody:
        await self._check_right()
        return await self._pool.run(self._read, number)

    def _read(self, number: int) -> BytesBody:
        self._check_stopping()
        start = number * self._whole.chunk_size
        end = start + chunk_length(number, self._whole.size, self._whole.chunk_size)
        content = bytearray()
        for position in range(max(bisect_right(self._starts, start) - 1, 0), len(self._pieces)):
            key, size = self._pieces[position]
            first = start + len(content) - self._starts[position]
            length = min(end - self._starts[position], size) - first
            if length > 0:
                content += self._range(key, first, length)
            if start + len(content) == end:
                break
        return BytesBody(bytes(content))

    def _range(self, key: str, offset: int, length: int) -> bytes:
        try:
            return self._bucket.get(key, offset, length)
        except Gone as error:
            raise PartDamaged(f"object {key} is not there") from error
