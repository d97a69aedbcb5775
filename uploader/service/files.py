"""The use cases of finished files and their folders: list, rename, move, delete, download; and the accounts of a user."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TypeVar

from uploader import errors
from uploader.database import levels, meta, queries, transactions
from uploader.database.engine import Database, Duplicate
from uploader.domain.audit_log import Action
from uploader.domain.creations import RENAME
from uploader.domain.names import Folder, Place, Selection, place_of
from uploader.domain.upload import File, IfExists, Usage
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.tasks import uninterrupted
from uploader.service.audit_log import act
from uploader.service.heal import Healing
from uploader.service.ids import ID
from uploader.service.precreate import Permission, PreCreateHook, with_folder
from uploader.storage.base import BlobBytes, BytesAltered, Found, Gone, OpenBlob, Stopping

T = TypeVar("T")
_ATTEMPTS = 10
_CHANGING = "Files of these names are changing too fast; try again."
# The longest wait of a download, before the first byte, for the healing of the content.
_HEALED_SECONDS = 5.0

Contents = list[bytes | errors.UploaderError]


@dataclass(eq=False, repr=False)
class Files:
    database: Database
    storage: BlobBytes
    healing: Healing
    clock: Clock

    async def list(
        self,
        user_id: str,
        *,
        limit: int,
        after: str | None,
        prefix: str | None,
        part: str | None = None,
        held: bool = False,
    ) -> tuple[list[File], str | None]:
        """Return a page of files with names that start with `prefix` and contain `part`, newest first, and the cursor of the
        next page. `held`: list held files instead. Raises InvalidRequest for an unknown cursor."""
        if after is not None and not ID.fullmatch(after):
            raise errors.InvalidRequest.field("after", "is not a cursor of this list")
        ask = partial(
            queries.held_files if held else queries.files, limit=limit + 1, after=after, prefix=prefix, part=part
        )
        found = await self.database.read(ask, user_id)
        page = found[:limit]
        return page, page[-1].id if len(found) > limit else None

    async def get(self, user_id: str, file_id: str, *, held: bool = False) -> File:
        """`held`: return also a held file. Raises FileNotFound, FileHeld."""
        file = await self.database.read(queries.file_or_held, user_id, file_id)
        if file is None:
            raise errors.FileNotFound()
        if file.held and not held:
            raise errors.FileHeld()
        return file

    async def _again(self, file: File) -> File:
        """Read the row of a file again. Raises FileNotFound if the file is gone, or was restored and is now held."""
        again = await self.get(file.user_id, file.id, held=True)
        if again.held and not file.held:
            raise errors.FileNotFound()
        return again

    async def named(self, user_id: str, name: str) -> File | None:
        """Return the file with this name, or None."""
        found = await self.database.read(queries.files_of_names, user_id, [name])
        return max(found, key=lambda file: (file.created_at, file.id), default=None)

    async def open(self, file: File) -> OpenBlob:
        """Open the content of a file for reading. The caller closes the content. Raises FileNotFound, ContentDamaged,
        Unavailable."""
        if file.damaged:
            raise errors.ContentDamaged()
        async with self.noting(file):
            with suppress(Gone):
                return await self.storage.open_blob(file.sha256, file.size)
            await self._again(file)  # just deleted?
            if await self.healing.is_whole(file.sha256, file.size):
                with suppress(Gone):
                    return await self.storage.open_blob(file.sha256, file.size)
        if not (await self._again(file)).damaged:
            raise errors.StorageFailed()  # it could not be examined
        raise errors.ContentDamaged()

    async def read_first(self, file: File, content: OpenBlob, length_bytes: int, offset: int) -> tuple[OpenBlob, bytes]:
        """Read bytes of an open content; on an error, close the content. Return the content and the bytes. If the bytes were
        altered and the content was healed at once, the returned content is a new one. Raises ContentDamaged,
        StorageFailed."""
        try:
            return content, await self._read(file, content, length_bytes, offset)
        except errors.ContentDamaged:
            if not await self._is_healed(file):
                raise
        content = await self.open(file)
        return content, await self._read(file, content, length_bytes, offset)

    async def _read(self, file: File, content: OpenBlob, length_bytes: int, offset: int) -> bytes:
        try:
            async with self.noting(file):
                return await content.read(length_bytes, offset)
        except BaseException:
            await uninterrupted(content.close())
            raise

    async def read_contents(self, files: Sequence[File]) -> Contents:
        """Read whole contents that fit into memory together. For an unreadable content, the list has the error. Raises
        StorageAway."""
        known = [file for file in files if not file.damaged]
        found = await self.storage.read_contents([(file.sha256, file.size) for file in known])
        contents = {file.id: content for file, content in zip(known, found, strict=True)}
        read: Contents = []
        for file in files:
            content = contents.get(file.id)
            read.append(await self._read_alone(file) if content is None else content)
        return read

    async def _read_alone(self, file: File) -> bytes | errors.UploaderError:
        """Read a content alone, after a failed reading of several contents. Raises StorageAway."""
        try:
            opened, _ = await self.read_first(file, await self.open(file), 1, 0)
            try:
                async with self.noting(file):
                    (content,) = await opened.read_all([(0, file.size)])
            finally:
                await uninterrupted(opened.close())
        except errors.StorageAway:
            raise
        except errors.UploaderError as error:
            return error.with_traceback(None)
        except Gone:
            return errors.StorageFailed()
        return content

    async def _is_healed(self, file: File) -> bool:
        """Wait a few seconds for an examination of the content; return whether the content is good now."""
        with suppress(TimeoutError, Stopping, errors.Unavailable):
            async with asyncio.timeout(_HEALED_SECONDS):
                await asyncio.shield(self.healing.examine_once(file.sha256))
                return not (await self._again(file)).damaged
        return False

    @asynccontextmanager
    async def noting(self, file: File) -> AsyncIterator[None]:
        """Report errors of reading a content: schedule an examination if the content cannot be read; examine at once if
        bytes were altered. Raises ContentDamaged for altered bytes."""
        try:
            yield
        except errors.StorageAway:
            raise
        except errors.StorageFailed:
            await self.healing.note_unreadable(file.sha256)
            raise
        except BytesAltered as error:
            # The examination hashes the whole content, because the checksums themselves may be bad.
            self.healing.examine_once(file.sha256)
            raise errors.ContentDamaged() from error

    async def delete(self, user_id: str, file_id: str) -> None:
        """Delete a file, and the content if no other file has the content. Raises FileNotFound."""
        for _ in range(_ATTEMPTS):
            file = await self.get(user_id, file_id, held=True)
            if await self.database.transact(transactions.files.delete_file, file, self.clock.now()):
                return await self._deleted(file)
            # The file was just renamed or deleted.
        raise errors.Unavailable(_CHANGING)

    async def delete_any(self, file_id: str, why: str | None) -> None:
        """Delete a file of any user, as an administrator. Raises FileNotFound."""
        for _ in range(_ATTEMPTS):
            file, now = await self.database.read(queries.file_of_anybody, file_id), self.clock.now()
            if file is None:
                raise errors.FileNotFound("There is no such file.")
            details = {"name": file.name, "size": file.size} | ({} if why is None else {"reason": why})
            done = act(Action.FILE_DELETED, now, subject=file.id, user_id=file.user_id, details=details)
            if await self.database.transact(transactions.files.remove_file, file, now, done):
                return await self._deleted(file)
        raise errors.Unavailable(_CHANGING)

    async def _deleted(self, file: File) -> None:
        crash_point("delete.after_commit")
        try:
            await self.collect(file.sha256)
        except errors.UploaderError:
            return  # the file is deleted; the collector retries the content

    async def collect(self, sha256: str) -> bool:
        """Put a blob without refs away; return False if the blob is in use."""
        return await uninterrupted(self._collect(sha256))

    async def _collect(self, sha256: str) -> bool:
        found: Found | None = None

        @self.database.outside
        async def prepare() -> None:
            nonlocal found
            await self.database.sync()
            found = await self.storage.find_blob(sha256)

        @self.database.outside
        async def remove() -> None:
            # If the lock of the row was lost, a merge may have placed other bytes. Then `found` no longer matches.
            if found is None:
                return
            # Keep blobs newer than a restored copy of the database: the copy may lack their files.
            held = await self.database.read(meta.held_contents)
            if held is None or not held.holds(found.changed_at):
                await self.storage.put_away(found)

        collect = partial(transactions.files.collect_blob, prepare=prepare, remove=remove, now=self.clock.now())
        return await self.database.transact(collect, sha256, alone=True)

    async def collect_all(self, limit: int = 1000) -> int:
        found = await self.database.read(queries.blobs_without_refs, limit)
        collected = 0
        for sha256 in found:
            try:
                collected += await self.collect(sha256)
            except (errors.StorageFailed, errors.StorageFull):
                continue  # the error is in the log; continue with the other blobs
        return collected

    async def usage(self, user_id: str) -> Usage:
        """Return the accounts of a user; zeros for an unknown user."""
        usage = await self.database.read(queries.usage, user_id)
        nothing = Usage(
            user_id=user_id, total_space=0, use_space_finished=0, use_space_unfinished=0, reserved=0, files=0
        )
        return usage or nothing


# Files read at once.
_FILES_AT_ONCE = 200
_PAUSE_SECONDS = 0.05


@dataclass(eq=False, repr=False)
class Folders:
    """Lists files and folders, renames a file, makes an empty folder."""

    database: Database
    pre_create_hook: PreCreateHook
    clock: Clock
    _: KW_ONLY
    max_files: int

    async def level(
        self, user_id: str, prefix: str, *, limit: int, after: Place | None
    ) -> tuple[list[Folder | File], Place | None]:
        """Return a page of the folders and files right below a prefix, by name, and the place where the next page begins."""

        ask = partial(levels.page, limit=limit, after=after)
        page, has_more = await self.database.read(ask, user_id, prefix)
        return page, place_of(page[-1]) if has_more else None

    async def list_empty(self, user_id: str, prefix: str, *, limit: int, after: str) -> list[str]:
        """Return empty folders of all levels, by name."""
        return await self.database.read(queries.folder_rows_below, user_id, prefix, after, limit)

    async def make(self, user_id: str, name: str) -> tuple[str, bool]:
        """Make an empty folder; return its name with a slash at the end, and False if the folder existed. Raises NameTaken,
        TooManyFiles, NotAllowed, Unavailable."""
        make = partial(transactions.names.make_folder, max_files=self.max_files, now=self.clock.now())

        async def work(name: str, is_allowed: bool) -> tuple[str, bool]:
            return f"{name}/", await self.database.transact(partial(make, is_allowed=is_allowed), user_id, name)

        return await with_folder(self.pre_create_hook, user_id, name, work)

    async def rename(self, user_id: str, file_id: str, name: str, if_exists: IfExists) -> File:
        """Raises FileNotFound, NotAllowed, NameTaken, Unavailable."""
        is_renamed, wanted = False, name
        permission = Permission(self.pre_create_hook, RENAME, user_id)
        for _ in range(_ATTEMPTS):
            found = await self.database.read(queries.files_by_ids, user_id, [file_id])
            if not found:
                held = await self.database.read(queries.held_by_id, user_id, file_id)
                raise errors.FileNotFound() if held is None else errors.FileHeld()
            (file,) = found
            if is_renamed or file.name == name:
                return file
            permission.note(wanted, file)
            await permission.ask()
            name = permission.allowed(wanted)
            # False if another request has just renamed the file.
            is_renamed = file.name == name or await self._rename(file, name, if_exists) == 1
        raise errors.Unavailable(_CHANGING)

    async def _rename(self, file: File, name: str, if_exists: IfExists) -> int:
        """Rename a file; return 0 if another request has renamed or deleted the file. Raises NameTaken, Unavailable."""
        rename = partial(transactions.files.move_files, if_exists=if_exists, now=self.clock.now(), creation=RENAME)
        for _ in range(_ATTEMPTS):
            try:
                return await self.database.transact(rename, [file], {file.id: name})
            except Duplicate:
                await asyncio.sleep(_PAUSE_SECONDS)  # a name was just taken: the next attempt sees it
        raise errors.Unavailable(_CHANGING)

    async def names(self, user_id: str, selection: Selection) -> list[str]:
        """Return the selected prefixes and the names of the files selected by id. Raises FileNotFound only if no file is
        found, so that the error does not reveal ids of other users."""
        names = [
            name
            for ids in _batches(selection.ids)
            for name in await self.database.read(queries.names_by_ids, user_id, ids)
        ]
        if names:
            return [*selection.prefixes, *names]
        async for _ in self.selected(user_id, Selection(prefixes=selection.prefixes)):
            return list(selection.prefixes)
        raise errors.FileNotFound()

    async def read(self, user_id: str, selection: Selection) -> AsyncIterator[File]:
        async for files in self.selected(user_id, selection):
            for file in files:
                yield file

    async def selected(self, user_id: str, selection: Selection) -> AsyncIterator[list[File]]:
        """Yield non-empty batches of files: first files below the prefixes, then files with the ids, in order. Skip ids that
        are no files of this user."""
        for prefix in await self._in_use(user_id, selection):
            async for files in self._below(user_id, prefix):
                yield files
        for some in _batches(selection.ids):
            found = {file.id: file for file in await self.database.read(queries.files_by_ids, user_id, some)}
            in_order = (found[each] for each in some if each in found)
            # `startswith` with an empty tuple is false.
            if files := [file for file in in_order if not file.name.startswith(selection.prefixes)]:
                yield files

    async def _in_use(self, user_id: str, selection: Selection) -> Sequence[str]:
        """Return the prefixes with files, by one query. A single prefix is not checked."""
        if len(selection.prefixes) < 2:
            return selection.prefixes
        return await self.database.read(levels.prefixes_in_use, user_id, selection.prefixes)

    async def _below(self, user_id: str, prefix: str) -> AsyncIterator[list[File]]:
        """Yield batches in the order of ids. A move does not change ids, so each file comes once."""
        ask = partial(queries.files_below, user_id=user_id, prefix=prefix, limit=_FILES_AT_ONCE)
        after: File | None = None
        while files := await self.database.read(partial(ask, after=after)):
            yield files
            after = files[-1]


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield batches of well-formed ids."""
    known = [each for each in ids if ID.fullmatch(each)]
    for first in range(0, len(known), _FILES_AT_ONCE):
        yield known[first : first + _FILES_AT_ONCE]
