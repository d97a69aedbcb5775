"""The use cases of finished files: list, rename, delete, download; and the caller's accounts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from uploader.clock import Clock
from uploader.crashpoints import crash_point
from uploader.database import contents, listing, queries, transactions
from uploader.database.engine import Database, Duplicate
from uploader.domain.quota import Usage
from uploader.domain.upload import File
from uploader.errors import (
    ContentDamaged,
    FileNotFound,
    InvalidRequest,
    NameTaken,
    StorageAway,
    StorageFailed,
    StorageFull,
    UploaderError,
)
from uploader.service.contents.healing import Healing
from uploader.service.ids import ID
from uploader.storage.base import Gone
from uploader.storage.contents import BlobBytes, Found, OpenBlob, Trash
from uploader.tasks import uninterrupted


class Files:
    """All that can be done to files."""

    def __init__(self, database: Database, storage: BlobBytes, trash: Trash, healing: Healing, clock: Clock) -> None:
        self._database = database
        self._storage = storage
        self._trash = trash
        self._healing = healing
        self._clock = clock

    async def list(
        self, user_id: str, *, limit: int, after: str | None, prefix: str | None, part: str | None = None
    ) -> tuple[list[File], str | None]:
        """A page of files with names that start with `prefix` and contain `part`, newest first, and the cursor of the next
        one. Raises InvalidRequest for an unknown cursor."""
        if after is not None and not ID.fullmatch(after):
            raise InvalidRequest.field("after", "is not a cursor of this list")
        found = await self._database.read(
            lambda connection: listing.files(
                connection, user_id, limit=limit + 1, after=after, prefix=prefix, part=part
            )
        )
        page = found[:limit]
        return page, page[-1].id if len(found) > limit else None

    async def get(self, user_id: str, file_id: str) -> File:
        """Raises FileNotFound."""
        file = await self._database.read(lambda connection: queries.file_by_id(connection, user_id, file_id))
        if file is None:
            raise FileNotFound()
        return file

    async def open(self, file: File) -> OpenBlob:
        """The content of a file, to read; the caller closes it. Raises FileNotFound, ContentDamaged, Unavailable."""
        if file.damaged:
            raise ContentDamaged()
        async with self._noting(file):
            with suppress(Gone):
                return await self._storage.open_blob(file.sha256, file.size)
            await self.get(file.user_id, file.id)  # the file may have been deleted at this moment
            if await self._healing.is_whole(file.sha256, file.size):
                with suppress(Gone):
                    return await self._storage.open_blob(file.sha256, file.size)
        if not (await self.get(file.user_id, file.id)).damaged:
            raise StorageFailed()  # it could only not be looked at
        raise ContentDamaged()

    async def read_first(self, file: File, content: OpenBlob, length_bytes: int, offset: int) -> bytes:
        """The first bytes of what is to be read of an open file, which is closed where they can't be read: then nothing
        else of it is. Raises StorageFailed."""
        async with self._noting(file):
            try:
                return await content.read(length_bytes, offset)
            except BaseException:
                await uninterrupted(content.close())
                raise

    @asynccontextmanager
    async def _noting(self, file: File) -> AsyncIterator[None]:
        """A content that can't be read now is looked at soon."""
        try:
            yield
        except StorageAway:
            raise
        except StorageFailed:
            await self._healing.note_unreadable(file.sha256)
            raise

    async def rename(self, user_id: str, file_id: str, name: str) -> File:
        """Raises FileNotFound, NameTaken."""
        try:
            found = await self._database.transact(
                lambda connection: transactions.rename_file(connection, user_id, file_id, name)
            )
        except Duplicate as error:
            raise NameTaken() from error
        if not found:
            raise FileNotFound()
        return await self.get(user_id, file_id)

    async def delete(self, user_id: str, file_id: str) -> None:
        """Delete a file, and its content if this was the last file of it. Raises FileNotFound."""
        file = await self.get(user_id, file_id)
        if not await self._database.transact(lambda connection: transactions.delete_file(connection, file)):
            raise FileNotFound()
        crash_point("delete.after_commit")
        try:
            await self.collect(file.sha256)
        except UploaderError:
            return  # the file is deleted; the collector comes back to its content

    async def collect(self, sha256: str) -> bool:
        """Put a blob away that has no refs; False if it is in use."""
        return await uninterrupted(self._collect(sha256))

    async def _collect(self, sha256: str) -> bool:
        found: Found | None = None

        async def prepare() -> None:
            nonlocal found
            await self._database.sync()
            found = await self._storage.find_blob(sha256)

        async def remove() -> None:
            # If the lock of the row was lost since, these may be the bytes of a merge by now; then they have changed.
            if found is not None:
                await self._trash.put_away(found)

        steps = {"prepare": self._database.outside(prepare), "remove": self._database.outside(remove)}
        return await self._database.transact(
            lambda connection: transactions.collect_blob(connection, sha256, **steps, now=self._clock.now()),
            alone=True,
        )

    async def collect_all(self, limit: int = 1000) -> int:
        """Put blobs without refs away; returns how many."""
        found = await self._database.read(lambda connection: contents.blobs_without_refs(connection, limit))
        collected = 0
        for sha256 in found:
            try:
                collected += await self.collect(sha256)
            except (StorageFailed, StorageFull):
                continue  # the disk's error is in the log; it must not hold up the others
        return collected

    async def usage(self, user_id: str) -> Usage:
        """The accounts of a user; nothing but zeros for one who is unknown."""
        usage = await self._database.read(lambda connection: queries.usage(connection, user_id))
        return usage or Usage(user_id=user_id, total_space=0, use_space_finished=0, use_space_unfinished=0, reserved=0)
