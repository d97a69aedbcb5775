"""The use cases of deleted files in their owner's trash: list, read, restore, forget.

If the store still has the content, a restored file takes a ref. Otherwise the bytes come back from the trash of the store,
after they were read and compared with the SHA-256. A restored file keeps its id: a repeated request finds the file.
"""

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from uploader import errors
from uploader.database import queries, transactions, trash
from uploader.database.audit_log import note
from uploader.database.engine import Connection, Database, Duplicate
from uploader.database.transactions.files import Added, Verdict
from uploader.database.transactions.names import Names
from uploader.database.transactions.rows import BlobLost
from uploader.domain.audit_log import Action
from uploader.domain.creations import RESTORE
from uploader.domain.upload import File, IfExists, TrashedFile, TrashReason
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.tasks import OnePerKey, uninterrupted
from uploader.service.audit_log import act
from uploader.service.cleanup import is_settled
from uploader.service.files import Files
from uploader.service.ids import ID, cursor, parse_cursor
from uploader.service.precreate import Permission, PreCreateHook
from uploader.service.status import ATTEMPTS, PAUSE_SECONDS
from uploader.storage.base import Found, Gone, OpenBlob, Stopping
from uploader.storage.store import Store

logger = logging.getLogger(__name__)

_SORT = "deleted_at"
_FILES_AT_ONCE = 200
_FORGOTTEN_AT_ONCE = 1000
# Files placed in one transaction. Other writers of SQLite wait for its end.
_PLACED_AT_ONCE = 50
# Contents read back at the same time for one caller.
_AT_ONCE = 4
# Refusals kept until their callers ask again.
_MOST_UNTOLD = 1000
_CHANGING = "Files of these names are changing too fast; try again."

# The restored file or the error; None while the content is being examined.
Outcome = File | errors.UploaderError | None


@dataclass(eq=False, repr=False)
class DeletedFiles:
    database: Database
    storage: Store
    files: Files
    pre_create_hook: PreCreateHook
    clock: Clock
    _: KW_ONLY
    retention_seconds: float
    # The longest time that a request waits for the examination of a content.
    wait_seconds: float
    _restoring: OnePerKey[File] = field(default_factory=OnePerKey, init=False)
    _running: set["asyncio.Future[File]"] = field(default_factory=set, init=False)
    # Errors of restores whose callers no longer waited.
    _untold: OrderedDict[tuple[str, str], errors.UploaderError] = field(default_factory=OrderedDict, init=False)

    def expires_at(self, file: TrashedFile) -> datetime:
        return file.deleted_at + timedelta(seconds=self.retention_seconds)

    async def page(
        self, user_id: str, *, limit: int, after: str | None, name: str | None
    ) -> tuple[list[TrashedFile], str | None]:
        """Return a page of a user's deleted files, latest deletion first, and the cursor of the next page. `name`: only
        versions of this name. Raises InvalidRequest for an unknown cursor."""
        position = None if after is None else parse_cursor(after, _SORT, "moment")
        found = await self.database.read(partial(trash.page, limit=limit + 1, after=position, name=name), user_id)
        shown = found[:limit]
        return shown, cursor(_SORT, shown[-1].deleted_at, shown[-1].id) if len(found) > limit else None

    async def get(self, user_id: str, file_id: str) -> TrashedFile:
        """Raises FileNotFound."""
        found = await self.database.read(trash.by_ids, user_id, [file_id]) if ID.fullmatch(file_id) else {}
        if file_id not in found:
            raise errors.FileNotFound()
        return found[file_id]

    # Reading, like the files of a download

    async def open(self, file: File) -> OpenBlob:
        """Open the content of a deleted file for reading. The caller closes the content. Raises ContentGone, ContentDamaged,
        Unavailable."""
        if not file.damaged:
            with suppress(Gone):
                return await self.storage.open_blob(file.sha256, file.size)
        for copy in await self.storage.copies(file.sha256):
            with suppress(Gone):
                if copy.size == file.size:
                    return await self.storage.open_found(copy)
        raise errors.ContentDamaged() if file.damaged else errors.ContentGone()

    async def read_first(self, file: File, content: OpenBlob, length_bytes: int, offset: int) -> tuple[OpenBlob, bytes]:
        """Read bytes of an open content; on an error, close the content. Raises ContentDamaged, StorageFailed."""
        try:
            async with self.noting(file):
                return content, await content.read(length_bytes, offset)
        except BaseException:
            await uninterrupted(content.close())
            raise

    @asynccontextmanager
    async def noting(self, file: File) -> AsyncIterator[None]:
        """Raises ContentDamaged for altered bytes."""
        async with self.files.noting(file):
            yield

    # Back

    async def restore(
        self, user_id: str, file_id: str, name: str | None, if_exists: IfExists, *, refused: bool = False
    ) -> File | None:
        """Restore a file, under `name` if given. Return None if the examination of the content takes longer than
        `wait_seconds`; the work goes on. `refused`: restore also a file that a gate refused; the file goes through the gates
        again. Raises FileNotFound, FileHeld, NotAllowed, NameTaken, QuotaExceeded, ContentGone, Unavailable."""
        if not ID.fullmatch(file_id):
            raise errors.FileNotFound()
        if not refused:
            await self._refuse_refused(user_id, file_id)
        work = self._start(self._permission(user_id), file_id, name, if_exists)
        outcome = await self._wait_for(user_id, file_id, work, self.wait_seconds)
        if isinstance(outcome, errors.UploaderError):
            raise outcome
        return outcome

    async def restore_of_anybody(self, file_id: str) -> File | None:
        """Restore a file of any user, as an administrator. Raises as `restore`."""
        owner = await self.database.read(trash.owner_of, file_id) if ID.fullmatch(file_id) else None
        if owner is None:
            raise errors.FileNotFound("There is no such deleted file.")
        restored = await self.restore(owner, file_id, None, IfExists.KEEP, refused=True)
        if restored is not None:
            done = act(Action.FILE_RESTORED, self.clock.now(), subject=file_id, user_id=owner)
            await self.database.transact(note, done)
        return restored

    async def _refuse_refused(self, user_id: str, file_id: str) -> None:
        """Raises FileHeld."""
        found = await self.database.read(trash.by_ids, user_id, [file_id])
        if file_id in found and found[file_id].reason == TrashReason.REFUSED:
            raise errors.FileHeld()

    async def restore_many(self, user_id: str, ids: Sequence[str]) -> dict[str, Outcome]:
        """Restore many files; return outcomes by file id. Raises NotAllowed, Unavailable."""
        outcomes: dict[str, Outcome] = {each: errors.FileNotFound() for each in ids}
        asked = [each for each in outcomes if ID.fullmatch(each)]
        batches = [asked[first : first + _FILES_AT_ONCE] for first in range(0, len(asked), _FILES_AT_ONCE)]
        permission = self._permission(user_id)
        if self.pre_create_hook.is_on:
            found = [await self.database.read(trash.by_ids, user_id, some) for some in batches]
            for file in (file for some in found for file in _restorable(some)):
                permission.note(file.name, file)
            await permission.ask()
        left: list[str] = []
        for some in batches:
            wanted, done = await self._restore_in_place(permission, some)
            lacking = [file for file in wanted if file.id not in done]
            known = await self.database.read(queries.known_blobs, [file.sha256 for file in lacking]) if lacking else ()
            lacking = [file for file in lacking if file.sha256 not in known]
            for first in range(0, len(lacking), _PLACED_AT_ONCE):
                done |= await self._bring_back_many(lacking[first : first + _PLACED_AT_ONCE])
            outcomes |= done
            left += [each for each in some if each not in done]
        limit = asyncio.Semaphore(_AT_ONCE)
        works = {each: self._start(permission, each, None, RESTORE.if_exists, limit) for each in left}
        if works:
            await asyncio.wait(works.values(), timeout=self.wait_seconds)
        return outcomes | {each: await self._wait_for(user_id, each, work, 0.0) for each, work in works.items()}

    def _permission(self, user_id: str) -> Permission:
        return Permission(self.pre_create_hook, RESTORE, user_id)

    def _start(
        self,
        permission: Permission,
        file_id: str,
        name: str | None,
        if_exists: IfExists,
        limit: asyncio.Semaphore | None = None,
    ) -> "asyncio.Future[File]":
        user_id = permission.user_id

        async def restore() -> File:
            untold = self._untold.pop((user_id, file_id), None)
            if untold is not None:
                raise untold
            async with limit or nullcontext():
                return await self._restore(permission, file_id, name, if_exists)

        work = self._restoring.start(f"{user_id}/{file_id}", restore)
        self._running.add(work)
        work.add_done_callback(self._running.discard)
        return work

    async def _wait_for(self, user_id: str, file_id: str, work: "asyncio.Future[File]", seconds: float) -> Outcome:
        await asyncio.wait({work}, timeout=seconds)
        if not work.done():
            work.add_done_callback(partial(self._keep_untold, user_id, file_id))
            return None
        self._untold.pop((user_id, file_id), None)
        try:
            return work.result()
        except errors.UploaderError as error:
            return error

    def _keep_untold(self, user_id: str, file_id: str, work: "asyncio.Future[File]") -> None:
        """Keep an error until the caller asks again, because examining the content again takes as long."""
        error = None if work.cancelled() else work.exception()
        if isinstance(error, errors.UploaderError) and not error.retryable:
            self._untold[user_id, file_id] = error
            if len(self._untold) > _MOST_UNTOLD:
                self._untold.popitem(last=False)

    async def _restore_in_place(
        self, permission: Permission, ids: list[str]
    ) -> tuple[list[TrashedFile], dict[str, Outcome]]:
        """Restore the files whose contents the store has. Return all files to be restored, and the outcomes so far,
        including ids of unknown, refused and already restored files."""
        user_id = permission.user_id
        found = await self.database.read(trash.by_ids, user_id, ids)
        lacking = [each for each in ids if each not in found]
        back = list[File]()
        if lacking:
            back += await self.database.read(queries.files_by_ids, user_id, lacking)
            back += await self.database.read(queries.held_by_ids, user_id, lacking)
        outcomes: dict[str, Outcome] = {each: errors.FileNotFound() for each in ids if each not in found}
        outcomes |= {file.id: file for file in back}
        outcomes |= {file.id: errors.FileHeld() for file in found.values() if file.reason == TrashReason.REFUSED}
        wanted = _restorable(found)
        for file in wanted:
            permission.note(file.name, file)
        await permission.ask()
        wanted = [replace(file, name=permission.allowed(file.name)) for file in wanted]
        if wanted:
            # If another request was faster or the only name is taken, each file is tried alone.
            with suppress(Duplicate, BlobLost, errors.NameTaken):
                outcomes |= await self._try_in_place(wanted, RESTORE.if_exists)
        return wanted, outcomes

    async def _try_in_place(self, wanted: Sequence[TrashedFile], if_exists: IfExists) -> dict[str, Outcome]:
        # Bytes placed after the deletion may not be durable yet, and belong to an upload that has not ended.
        earliest = {file.sha256: file for file in sorted(wanted, key=lambda file: file.deleted_at, reverse=True)}

        @self.database.outside
        async def are_there(sha256s: Sequence[str]) -> set[str]:
            found = [await self.storage.find_blob(sha256) for sha256 in sha256s]
            return {each.name for each in found if each is not None and _is_unchanged(each, earliest[each.name])}

        restore = partial(transactions.trash.restore_files, are_there=are_there)
        verdicts = await self.database.transact(restore, wanted, if_exists, self.clock.now(), alone=True)
        return {file_id: _outcome_of(verdict) for file_id, verdict in verdicts.items()}

    async def _restore(self, permission: Permission, file_id: str, name: str | None, if_exists: IfExists) -> File:
        user_id = permission.user_id
        for _ in range(ATTEMPTS):
            found = await self.database.read(trash.by_ids, user_id, [file_id])
            if file_id not in found:
                return await self.files.get(user_id, file_id, held=True)  # already restored
            trashed = found[file_id]
            asked_name = name or trashed.name
            permission.note(asked_name, trashed)
            await permission.ask()
            wanted = replace(trashed, name=permission.allowed(asked_name))
            try:
                done: Outcome = None
                if await self.database.read(queries.known_blobs, [trashed.sha256]):
                    done = (await self._try_in_place([wanted], if_exists)).get(file_id)
                    if done is None:
                        await self.files.collect(
                            trashed.sha256
                        )  # a content without refs goes to the trash of the store
                if done is None:
                    return await self._bring_back(wanted, if_exists)
            except (Duplicate, BlobLost):
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            except Stopping as error:
                raise errors.Unavailable("The server is about to stop; try again.") from error
            if isinstance(done, errors.UploaderError):
                raise done
            return done
        raise errors.Unavailable(_CHANGING)

    async def _bring_back(self, trashed: TrashedFile, if_exists: IfExists) -> File:
        """Restore a file with bytes from the trash of the store. Raises ContentGone, and as `restore`."""
        await self._refuse_early(trashed, if_exists)
        unreadable: errors.StorageFailed | None = None
        for copy in await self._copies(trashed):
            try:
                good = await self.storage.hash_blob(copy, None, with_md5=False)
                if good is not None and good.sha256 == trashed.sha256:
                    return await self._place_copy(trashed, if_exists, copy)
            except errors.StorageAway:
                raise
            except errors.StorageFailed as error:
                unreadable = error
            except Gone:
                continue  # just purged
        if unreadable is not None:
            raise unreadable
        if await self.storage.find_blob(trashed.sha256) is not None:
            raise BlobLost(trashed.sha256)  # just restored
        raise errors.ContentGone()

    async def _bring_back_many(self, wanted: Sequence[TrashedFile]) -> Mapping[str, Outcome]:
        """Restore small files together, with bytes from the trash of the store; return the outcomes. The caller restores the
        other files one by one."""
        # If another request was faster, the only name is taken, or the disk fails, each file is tried alone.
        with suppress(Duplicate, BlobLost, Gone, errors.NameTaken, errors.StorageFailed, errors.StorageFull):
            copies = await self.storage.good_copies([(file.sha256, file.size) for file in wanted])
            wanted = [file for file in wanted if file.sha256 in copies]
            if not wanted:
                return {}
            return await self._place(wanted, RESTORE.if_exists, partial(self.storage.restore_blobs, [*copies.values()]))
        return {}

    async def _copies(self, trashed: TrashedFile) -> list[Found]:
        """Return candidates for the content from before the deletion: copies in the trash of the store, and bytes in place
        that an older, restored copy of the database does not know."""
        copies = await self.storage.copies(trashed.sha256)
        placed = await self.storage.find_blob(trashed.sha256)
        if placed is not None and (_is_unchanged(placed, trashed) or is_settled(placed, self.clock.now())):
            copies.append(placed)
        return [copy for copy in copies if copy.size == trashed.size]

    async def _refuse_early(self, trashed: TrashedFile, if_exists: IfExists) -> None:
        """Refuse early, before the content is read. The transaction decides. Raises NameTaken, QuotaExceeded."""

        async def look(connection: Connection) -> None:
            names = Names(connection, trashed.user_id)
            replaced = (await names.find(trashed.name, if_exists)).replaced
            more = trashed.size - (0 if replaced is None else replaced.size)
            usage = await queries.usage(connection, trashed.user_id)
            if usage is not None and more > 0 and not usage.fits(more):
                raise errors.QuotaExceeded(**usage.figures(trashed.size))

        await self.database.read(look)

    async def _place_copy(self, trashed: TrashedFile, if_exists: IfExists, copy: Found) -> File:
        """Raises Gone, NameTaken, QuotaExceeded, Duplicate, BlobLost."""

        async def place() -> str | None:
            if copy.in_trash:
                return await self.storage.restore_blob(copy)
            if await self.storage.find_blob(copy.name) != copy:
                raise Gone(copy.name)
            return None

        outcome = (await self._place([trashed], if_exists, place))[trashed.id]
        if isinstance(outcome, errors.UploaderError):
            raise outcome
        return outcome

    async def _place(
        self, wanted: Sequence[TrashedFile], if_exists: IfExists, place: Callable[[], Awaitable[str | None]]
    ) -> dict[str, File | errors.UploaderError]:
        """Restore files with bytes that `place` places; return outcomes by file id. Raises as `place`, Duplicate, BlobLost,
        and NameTaken for a single file."""
        now = self.clock.now()
        with suppress(Duplicate):
            await self.database.transact(transactions.trash.expect_contents, wanted, now)
        crash_point("undelete.after_row")

        @self.database.outside
        async def placed() -> str | None:
            location = await place()
            crash_point("undelete.after_place")
            return location

        restore = partial(transactions.trash.restore_placed, place_blobs=placed)
        verdicts = await uninterrupted(self.database.transact(restore, wanted, if_exists, now, alone=True))
        crash_point("undelete.after_commit")
        return {file_id: _outcome_of(verdict) for file_id, verdict in verdicts.items()}

    # For good

    async def forget(self, user_id: str, file_id: str) -> None:
        """Raises FileNotFound."""
        if not await self.database.transact(transactions.trash.forget_files, user_id, [file_id]):
            raise errors.FileNotFound()

    async def forget_all(self, user_id: str) -> int:
        """Empty the trash of a user; return the number of files removed."""
        forgotten = 0
        while done := await self.database.transact(transactions.trash.empty, user_id, _FORGOTTEN_AT_ONCE):
            forgotten += done
        return forgotten

    async def forget_old(self) -> int:
        """Forget files deleted before the retention; return the number. Several workers may run this at once."""
        forgotten = 0
        before = self.clock.now() - timedelta(seconds=self.retention_seconds)
        while found := await self.database.read(trash.deleted_before, before, _FORGOTTEN_AT_ONCE):
            done = 0
            for user_id, ids in _by_user(found).items():
                done += await self.database.transact(transactions.trash.forget_files, user_id, ids)
            forgotten += done
            if not done:  # gone meanwhile, or damaged rows
                break
        return forgotten

    async def close(self) -> None:
        """Wait up to 10 s for restores in this process. When the storage stops, reading ends with Stopping."""
        if self._running:
            await asyncio.wait(self._running, timeout=10)


def _outcome_of(verdict: Verdict) -> File | errors.UploaderError:
    return verdict.file if isinstance(verdict, Added) else verdict


def _restorable(found: Mapping[str, TrashedFile]) -> list[TrashedFile]:
    """Return the files that the user may restore: all except refused ones."""
    return [file for file in found.values() if file.reason != TrashReason.REFUSED]


def _is_unchanged(found: Found, trashed: TrashedFile) -> bool:
    """Return whether bytes in place are unchanged since the deletion of a file."""
    return found.size == trashed.size and found.changed_at < trashed.deleted_at.timestamp()


def _by_user(found: Collection[tuple[str, str]]) -> dict[str, list[str]]:
    by_user: dict[str, list[str]] = defaultdict(list)
    for user_id, file_id in found:
        by_user[user_id].append(file_id)
    return by_user
