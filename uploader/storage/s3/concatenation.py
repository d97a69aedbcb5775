"""A whole and the bytes of its parts: each part is completed to an object, and the whole has rows that name those objects.

So parts can end as every upload does, and nothing of a whole rests on them: what a whole names, its part does not delete.
Each chunk of it is read from those objects by ranges.
"""

import secrets
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload, chunk_length
from uploader.storage.base import Busy, BytesBody, Gone, PartDamaged, ReadPart
from uploader.storage.s3.multipart import S3Endings


class S3Wholes(S3Endings):
    """Makes wholes, and reads the parts of them."""

    async def create(self, upload: Upload, parts: Sequence[Upload] | None = None) -> float:
        """An attempt that did not commit has left what this one would make: the same objects."""
        if parts is None:
            return await self._create(upload)
        pieces = []
        for part in parts:
            key, _ = await self._complete(part, await self._freeze(part))
            pieces.append((key, part.size))
            crash_point("join.after_complete")
        made_at = await self._create(upload)
        await self._ledger.set_pieces(upload.id, pieces)
        crash_point("join.after_pieces")
        return made_at

    @asynccontextmanager
    async def filling(self, whole: Upload) -> AsyncIterator[ReadPart]:
        """Whoever came last has the right, as of those who append: the one before ends with Busy. Where two fill all the
        same, rows decide whose chunks count."""
        token = secrets.token_hex(16)
        pieces = await self._ledger.pieces(whole.id)
        if (not pieces and whole.size) or not await self._ledger.claim(whole.id, token):
            raise Gone(whole.id)

        async def read(number: int) -> BytesBody:
            if await self._ledger.appender(whole.id) != token:
                raise Busy(whole.id)
            return await self._requests.run(self._read_chunk, whole, pieces, number)

        yield read

    def _read_chunk(self, whole: Upload, pieces: Sequence[tuple[str, int]], number: int) -> BytesBody:
        self.check_stopping()
        starts = list(accumulate((size for _, size in pieces), initial=0))
        start = number * whole.chunk_size
        end = start + chunk_length(number, whole.size, whole.chunk_size)
        content = bytearray()
        for position in range(max(bisect_right(starts, start, hi=len(pieces)) - 1, 0), len(pieces)):
            key, size = pieces[position]
            first = start + len(content) - starts[position]
            length = min(end - starts[position], size) - first
            if length > 0:
                try:
                    content += self._bucket.get(key, first, length)
                except Gone as error:
                    raise PartDamaged(f"object {key} is not there") from error
            if start + len(content) == end:
                break
        return BytesBody(bytes(content))
