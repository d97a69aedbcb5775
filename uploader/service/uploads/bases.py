"""Finished files of a caller that others are to be made from: their signatures, and their bytes while a chunk is made."""

from dataclasses import dataclass

from uploader.domain.upload import File
from uploader.errors import BaseUnusable, ContentDamaged, FileNotFound, StorageAway, StorageFailed, Unavailable
from uploader.service.contents.healing import Healing
from uploader.service.files import Files
from uploader.service.ids import ID
from uploader.storage.base import Gone, Stopping
from uploader.storage.contents import BlobBytes, OpenBlob, OpenSignature


@dataclass(frozen=True, slots=True)
class Base:
    """A file, open to be copied from; its bytes stay readable when it is deleted meanwhile."""

    content: OpenBlob
    size: int

    async def read(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """The bytes of some ranges, each an offset and a length. Raises BaseUnusable, StorageAway."""
        try:
            return await self.content.read_all(ranges)
        except StorageAway:
            raise
        except (Gone, StorageFailed) as error:
            raise BaseUnusable() from error


class Bases:
    """Refuses what is not whole. A store that is away says nothing of that: a base is not refused for it."""

    def __init__(self, files: Files, storage: BlobBytes, healing: Healing) -> None:
        self._files = files
        self._storage = storage
        self._healing = healing

    async def open(self, user_id: str, file_id: str) -> Base:
        """A base to copy from; the caller closes its content. Raises FileNotFound, BaseUnusable, Unavailable."""
        file = await self._find(user_id, file_id)
        try:
            return Base(await self._files.open(file), file.size)
        except StorageAway:
            raise
        except (ContentDamaged, StorageFailed) as error:
            raise BaseUnusable() from error

    async def open_signature(self, user_id: str, file_id: str) -> OpenSignature:
        """To read; the caller closes it. Raises FileNotFound, BaseUnusable, StorageFull, Unavailable."""
        file = await self._find(user_id, file_id)
        if file.damaged:
            raise BaseUnusable()
        try:
            return await self._storage.open_signature(file.sha256, file.size)
        except StorageAway:
            raise
        except StorageFailed as error:
            raise BaseUnusable() from error
        except Stopping as error:
            raise Unavailable() from error
        except Gone as error:
            await self._find(user_id, file_id)  # the file may have been deleted at this moment
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
