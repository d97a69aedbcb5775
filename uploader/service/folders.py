"""The use cases of folders: what lies below a prefix of names is listed, deleted, moved, or read as a whole.

There are no folders but in names. What concerns many files is done in bounded transactions, and may be asked for again.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from heapq import merge
from itertools import islice

from uploader.database import listing, transactions
from uploader.database.engine import Connection, Database, Duplicate
from uploader.domain.folder import Folder, Place, place_of
from uploader.domain.names import normalise_name
from uploader.domain.upload import File
from uploader.errors import ContentDamaged, InvalidRequest, Unavailable

# Of one transaction: other writers of SQLite wait for it.
_FILES_AT_ONCE = 200
_ATTEMPTS = 10
_PAUSE_SECONDS = 0.05


class Folders:
    """All that can be done to folders."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def level(
        self, user_id: str, prefix: str, *, limit: int, after: Place | None
    ) -> tuple[list[Folder | File], Place | None]:
        """A page of one level, by name: the folders and the files right below a prefix; and where the next page begins."""

        async def look(connection: Connection) -> list[Folder | File]:
            folders = await listing.folders(connection, user_id, prefix, limit=limit + 1, after=after)
            files = await listing.files_of_folder(connection, user_id, prefix, limit=limit + 1, after=after)
            return list(islice(merge(folders, files, key=_key), limit + 1))

        found = await self._database.read(look)
        page = found[:limit]
        return page, place_of(page[-1]) if len(found) > limit else None

    async def delete(self, user_id: str, prefix: str) -> int:
        """Delete all files below a prefix that is not empty; returns how many."""
        deleted = 0
        async for files in self._below(user_id, prefix):
            deleted += await self._database.transact(partial(transactions.folders.delete_files, files=files))
        return deleted

    async def move(self, user_id: str, prefix: str, new_prefix: str) -> int:
        """Give all files below a prefix, which is not empty, another one; returns how many. Raises InvalidRequest if not all
        of the new names could be, and then none is moved."""
        if new_prefix.startswith(prefix):
            raise InvalidRequest.field("prefix", "lies below the one it is to take the place of")
        async for files in self._below(user_id, prefix):
            for file in files:
                _moved(file, prefix, new_prefix)
        moved = 0
        # Where names become shorter, one may be that of another file below the prefix: that one goes first.
        async for files in self._below(user_id, prefix, shortest=prefix.startswith(new_prefix)):
            names = {file.id: _moved(file, prefix, new_prefix) for file in files}
            moved += await self._move(files, names)
        return moved

    async def _move(self, files: list[File], names: dict[str, str]) -> int:
        for _ in range(_ATTEMPTS):
            try:
                return await self._database.transact(partial(transactions.folders.move_files, files=files, names=names))
            except Duplicate:
                await asyncio.sleep(_PAUSE_SECONDS)  # a twin came at this moment: next time it is there
        raise Unavailable("Files of these names are changing too fast; try again.")

    async def check(self, user_id: str, prefix: str) -> None:
        """Raises ContentDamaged if a file below a prefix is known to be damaged."""
        damaged = await self._database.read(partial(listing.damaged_below, user_id=user_id, prefix=prefix))
        if damaged is not None:
            raise ContentDamaged(
                f"The stored bytes of {damaged.name} went bad. Send them again, or fetch the others alone."
            )

    async def read(self, user_id: str, prefix: str) -> AsyncIterator[File]:
        """All files below a prefix, each once, in the order in which they came."""
        async for files in self._below(user_id, prefix):
            for file in files:
                yield file

    async def _below(self, user_id: str, prefix: str, *, shortest: bool = False) -> AsyncIterator[list[File]]:
        """In batches, in an order that a move does not change, so that each is met once."""
        ask = partial(listing.files_below, user_id=user_id, prefix=prefix, limit=_FILES_AT_ONCE, shortest=shortest)
        after: File | None = None
        while files := await self._database.read(partial(ask, after=after)):
            yield files
            after = files[-1]


def _key(found: object) -> tuple[bytes, str]:
    assert isinstance(found, (Folder, File))
    name, file_id = place_of(found)
    return name.encode(), file_id


def _moved(file: File, prefix: str, new_prefix: str) -> str:
    """Raises InvalidRequest."""
    try:
        return normalise_name(new_prefix + file.name.removeprefix(prefix))
    except ValueError as error:
        raise InvalidRequest.field("prefix", f"makes a name that {error}") from error
