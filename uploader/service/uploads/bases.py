"""Finished files of a caller that others are to be made from: their signatures, and their bytes while a chunk is made."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from uploader.domain.delta.signature import Pieces
from uploader.domain.upload import File
from uploader.errors import BaseUnusable, ContentDamaged, FileNotFound, StorageAway, StorageFailed, Unavailable
from uploader.service.contents.healing import Healing
from uploader.service.files import Files
from uploader.service.ids import ID
from uploader.storage.base import Gone, Stopping
from uploader.storage.contents import BlobBytes, OpenBlob, OpenSignature
from uploader.tasks import uninterrupted


class Base:
    """A file, open to be copied from, for one chunk; its bytes stay readable when it is deleted meanwhile.

    What rotted is told before it is copied: of each piece that is met, once.
    """

    def __init__(self, content: OpenBlob, size: int, pieces: Pieces, examine: Callable[[], Awaitable[None]]) -> None:
        self.content = content
        self.size = size
        # What to do once it was unusable: look why.
        self.examine = examine
        self._pieces = pieces
        self._compared: set[int] = set()
        # The piece that was compared last.
        self._start, self._piece = 0, b""

    async def read(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """The bytes of some ranges, each an offset and a length. Raises BaseUnusable, StorageAway."""
        try:
            return [b"".join([part async for part in self._parts(*extent)]) for extent in ranges]
        except StorageAway:
            raise
        except (Gone, StorageFailed) as error:
            raise BaseUnusable() from error

    async def _parts(self, offset: int, length: int) -> AsyncIterator[bytes]:
        end = offset + length
        while offset < end:
            number = self._pieces.at(offset)
            start, piece_length = self._pieces.extent(number)
            until = min(end, start + piece_length)
            if number not in self._compared:
                await self._compare(number)
            if self._start == start:
                yield self._piece[offset - start : until - start]
            else:  # it was compared before others
                yield (await self.content.read_all([(offset, until - offset)]))[0]
            offset = until

    async def _compare(self, number: int) -> None:
        start, length = self._pieces.extent(number)
        (piece,) = await self.content.read_all([(start, length)])
        if not await asyncio.to_thread(self._pieces.fits, number, piece):
            raise BaseUnusable()
        self._compared.add(number)
        self._start, self._piece = start, piece


class Bases:
    """Refuses what is not whole. A store that is away says nothing of that: a base is not refused for it."""

    def __init__(self, files: Files, storage: BlobBytes, healing: Healing) -> None:
        self._files = files
        self._storage = storage
        self._healing = healing

    async def open(self, user_id: str, file_id: str) -> Base:
        """A base to copy from; the caller closes its content. Takes as long as reading it where its signature is not kept.
        Raises FileNotFound, BaseUnusable, StorageFull, Unavailable."""
        file = await self._find(user_id, file_id)
        try:
            content = await self._files.open(file)
        except StorageAway:
            raise
        except (ContentDamaged, StorageFailed) as error:
            raise BaseUnusable() from error
        try:
            pieces = await self._pieces(file)
        except BaseException:
            await uninterrupted(content.close())
            raise
        return Base(content, file.size, pieces, partial(self._examine, file.sha256))

    async def _pieces(self, file: File) -> Pieces:
        opened = await self._open_signature(file)
        try:
            signature = await opened.blob.read(opened.length, opened.offset)
        except StorageAway:
            raise
        except StorageFailed as error:
            raise BaseUnusable() from error
        finally:
            await uninterrupted(opened.blob.close())
        return await asyncio.to_thread(Pieces, signature)

    async def open_signature(self, user_id: str, file_id: str) -> OpenSignature:
        """To read; the caller closes it. Raises FileNotFound, BaseUnusable, StorageFull, Unavailable."""
        file = await self._find(user_id, file_id)
        if file.damaged:
            raise BaseUnusable()
        return await self._open_signature(file)

    async def _open_signature(self, file: File) -> OpenSignature:
        try:
            return await self._storage.open_signature(file.sha256, file.size)
        except StorageAway:
            raise
        except StorageFailed as error:
            raise BaseUnusable() from error
        except Stopping as error:
            raise Unavailable() from error
        except Gone as error:
            await self._find(file.user_id, file.id)  # the file may have been deleted at this moment
            await self._examine(file.sha256)
            raise BaseUnusable() from error

    async def _examine(self, sha256: str) -> None:
        try:
            await self._healing.examine(sha256)
        except Stopping as error:
            raise Unavailable() from error

    async def _find(self, user_id: str, file_id: str) -> File:
        if not ID.fullmatch(file_id):
            raise FileNotFound()
        return await self._files.get(user_id, file_id)
