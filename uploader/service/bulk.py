"""Moves and deletions of many names: check all names, store a row with the work, then work range by range.

Each range is a short transaction (`database/transactions/bulk.py`); other users wait for at most one range. The work
continues after its request ends. After a crash, a repeated call or the job `resume_left` finishes the operation. An
operation waits for the end of a contradicting one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from uploader import errors
from uploader.database import levels, models, queries, transactions
from uploader.database.engine import Connection, Database, Duplicate
from uploader.database.transactions import bulk
from uploader.database.transactions.bulk import Contradiction, NamesTaken, NotAskedAbout, Operation
from uploader.database.transactions.links import LinksBelow
from uploader.database.transactions.rows import BlobLost, NotOpen
from uploader.domain.bulk import Part, Verb, Work, beyond
from uploader.domain.creations import MOVE
from uploader.domain.names import Selection, folder_of
from uploader.domain.upload import File, IfExists, Reason
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.tasks import OnePerKey
from uploader.service.close import Closers
from uploader.service.ids import ID, new_id
from uploader.service.precreate import Permission, PreCreateHook

logger = logging.getLogger(__name__)

_ATTEMPTS = 10
_PAUSE_SECONDS = 0.05
# A live worker finishes a range within this time.
_STALLED_SECONDS = 5.0
_CHECKED_AT_ONCE = 1000
_RESUMED_AT_ONCE = 100
_STOP_SECONDS = 10.0
_CHANGING = "Files of these names are changing too fast; try again."


@dataclass(eq=False, repr=False)
class BulkOperations:
    database: Database
    closers: Closers
    pre_create_hook: PreCreateHook
    clock: Clock
    _under_way: OnePerKey[int] = field(default_factory=OnePerKey, init=False)
    _running: set["asyncio.Future[int]"] = field(default_factory=set, init=False)
    # Operations as the job last saw them.
    _seen: dict[str, Operation] = field(default_factory=dict, init=False)
    _is_stopping: bool = field(default=False, init=False)

    async def delete(self, user_id: str, selection: Selection, *, cancels: bool = False) -> int:
        """Delete files and everything below prefixes; return the number of files. `cancels`: also held files and open
        uploads below the prefixes. Raises Unavailable."""
        parts = tuple(Part(prefix) for prefix in selection.prefixes)
        return await self._run(user_id, Work(Verb.DELETE, parts, _ids(selection), cancels=cancels))

    async def move(self, user_id: str, prefix: str, new_prefix: str, if_exists: IfExists = MOVE.if_exists) -> int:
        """Move all files and folders below a prefix to another prefix; return the number of files. The prefix is not empty.
        Raises InvalidRequest, NotAllowed, Unavailable. Raises NameTaken before any move if a new name is taken, or later,
        with the number of moved files, if a name was taken meanwhile."""
        if new_prefix.startswith(prefix):
            raise errors.InvalidRequest.field("prefix", "lies below the one that is to be replaced")
        return await self._run(user_id, Work(Verb.MOVE, (Part(prefix, new_prefix),), if_exists=if_exists))

    async def move_into(
        self, user_id: str, selection: Selection, folder: str, if_exists: IfExists = MOVE.if_exists
    ) -> int:
        """Move the selected files and prefixes into a folder (empty: the top), each under its last segment; return the
        number of files. Raises InvalidRequest, NotAllowed, Unavailable and NameTaken, as `move`."""
        parts = [Part(prefix, folder + prefix.removeprefix(folder_of(prefix))) for prefix in selection.prefixes]
        moving = tuple(part for part in parts if part.target != part.source)
        if any(str(part.target).startswith(part.source) for part in moving):
            raise errors.InvalidRequest.field("to", "lies below what is to be moved there")
        work = Work(Verb.MOVE, moving, _ids(selection), folder=folder, if_exists=if_exists)
        return await self._run(user_id, work)

    async def resume_left(self) -> None:
        """Finish operations without progress since the last call of this function."""
        found = await self.database.read(bulk.under_way, _RESUMED_AT_ONCE)
        left = [operation for operation in found if self._seen.get(operation.id) == operation]
        self._seen = {operation.id: operation for operation in found}
        failure: errors.Unavailable | None = None
        for operation in left:
            try:
                await self._resume(operation)
            except errors.Unavailable as error:  # the other operations may work
                failure = error
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Stop between two ranges."""
        self._is_stopping = True
        if self._running:
            await asyncio.wait(self._running, timeout=_STOP_SECONDS)

    # The whole

    async def _run(self, user_id: str, work: Work) -> int:
        """Run a call. An identical call of the user joins the one under way."""
        permission = Permission(self.pre_create_hook, MOVE, user_id)
        return await self._start(user_id, work, lambda: self._perform(user_id, work, permission))

    async def _resume(self, operation: Operation) -> None:
        """Finish the operation of another caller, without asking the hook again."""
        try:
            await self._start(operation.user_id, operation.work, lambda: self._finish(operation, None))
        except errors.Unavailable:
            raise
        except errors.UploaderError as error:
            facts = {"user_id": operation.user_id, "files": operation.files, "reason": error.reason}
            logger.info("a bulk operation ended before its time", extra=facts)

    async def _start(self, user_id: str, work: Work, begin: Callable[[], Awaitable[int]]) -> int:
        running = self._under_way.start(f"{user_id}/{work.digest}", begin)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await asyncio.shield(running)

    async def _perform(self, user_id: str, work: Work, permission: Permission) -> int:
        for _ in range(_ATTEMPTS):
            operation = await self.database.read(bulk.of_call, user_id, work)
            try:
                if operation is None:
                    await self.database.read(bulk.expect_no_contradiction, user_id, work)
                    if not await self._check(user_id, work, permission):
                        return 0
                    await permission.ask()
                    operation = Operation(new_id(), user_id, work)
                    operation = await self.database.transact(bulk.begin, operation, self.clock.now())
                    crash_point("bulk.after_begin")
            except Contradiction as error:
                await self._wait_for(error.other)
                continue
            except Duplicate:
                continue  # another process inserted the same call
            return await self._finish(operation, permission)
        raise errors.Unavailable(_CHANGING)

    async def _wait_for(self, other: Operation) -> None:
        """Wait for the end of an operation; resume the operation if it stalls."""
        since = self.clock.monotonic()
        while (found := await self.database.read(bulk.by_id, other.id)) is not None:
            if found != other:
                other, since = found, self.clock.monotonic()
            elif self.clock.monotonic() - since > _STALLED_SECONDS:
                await self._resume(other)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _finish(self, operation: Operation, permission: Permission | None) -> int:
        try:
            while not operation.has_ended:
                if self._is_stopping:
                    raise errors.Unavailable("The server is about to stop; try again.")
                operation = await self._go_on(operation, permission)
                crash_point("bulk.after_range")
        except (errors.NameTaken, errors.NotAllowed) as error:
            await self.database.transact(bulk.end, operation.id)
            raise type(error)(error.detail, **(error.fields | {"files": operation.files})) from error
        except errors.InvalidRequest:
            await self.database.transact(bulk.end, operation.id)
            raise
        return operation.files

    async def _go_on(self, operation: Operation, permission: Permission | None) -> Operation:
        if operation.work.cancels and operation.current is not None:
            await self._cancel_open(operation.user_id, operation.current.source)
        note = None
        if permission is not None and permission.hook.is_on:
            note = partial(_note, permission, operation.current)
        step = bulk.go_on
        for _ in range(_ATTEMPTS):
            now = self.clock.now()
            try:
                return await self.database.transact(step, operation, now, note)
            except NamesTaken:
                step = bulk.move_taken
            except NotAskedAbout:
                assert permission is not None
                await permission.ask()
            except LinksBelow as error:
                await self.database.transact(transactions.links.end_all, error.args, now)
            except (Duplicate, BlobLost):
                await asyncio.sleep(_PAUSE_SECONDS)  # a name was just taken: the next attempt sees it
        raise errors.Unavailable(_CHANGING)

    async def _cancel_open(self, user_id: str, prefix: str) -> None:
        for table, upload_id, _ in await self.database.read(bulk.coming, user_id, prefix):
            if table is models.concatenation:
                await self.database.transact(transactions.uploads.drop_waiting, upload_id)
            upload = await self.database.read(queries.upload_by_id, upload_id)
            if upload is not None:
                try:
                    await self.closers.close(upload, Reason.CANCELLED)
                except NotOpen:
                    continue  # it ended by itself

    # Before the first range

    async def _check(self, user_id: str, work: Work, permission: Permission) -> bool:
        """Check all names and note those for the pre-create hook; return whether there is anything to do. Raises
        InvalidRequest, NameTaken."""
        prefixes = [part.source for part in work.parts]
        in_use = await self.database.read(partial(levels.prefixes_in_use, unseen=True), user_id, prefixes)
        for part in work.parts:
            if part.source in in_use and part.target is not None:
                await self._check_part(user_id, part, work.if_exists, permission)
        has_ids = False
        for first in range(0, len(work.ids), _CHECKED_AT_ONCE):
            ids = work.ids[first : first + _CHECKED_AT_ONCE]
            files = await self.database.read(queries.files_by_ids, user_id, ids)
            has_ids = has_ids or bool(files)
            if work.verb is Verb.DELETE:
                has_ids = has_ids or bool(await self.database.read(queries.held_by_ids, user_id, ids))
                continue
            targets = bulk.targets_of(files, work.folder)
            moving = {targets[file.id]: file for file in files if file.id in targets}
            await self.database.read(_refuse_taken, user_id, moving, work.if_exists)
            _note(permission, None, {targets[file.id]: file for file in files if file.id in targets})
        return bool(in_use) or has_ids

    async def _check_part(self, user_id: str, part: Part, if_exists: IfExists, permission: Permission) -> None:
        read, target = self.database.read, str(part.target)
        await read(transactions.links.check_move_below, user_id, part.source, target)
        for _, _, name in await read(bulk.coming, user_id, part.source):
            part.moved(name)
        for table in (models.file, models.folder, models.held_file):
            first, last = part.source.encode(), beyond(part.source.encode())
            while found := await read(bulk.names_within, table, user_id, [(first, last)], _CHECKED_AT_ONCE):
                first = found[-1] + b"\0"
                names = list(map(bulk.text_of, found))
                if table is models.folder:
                    targets = dict.fromkeys(filter(None, map(part.moved_folder, names)))
                else:
                    targets = dict.fromkeys(map(part.moved, names))
                if table is not models.held_file:
                    targets = await read(_checked, user_id, part, names, targets, if_exists, permission.hook.is_on)
                    _note(permission, part, targets)


def _ids(selection: Selection) -> tuple[str, ...]:
    return tuple(each for each in selection.ids if ID.fullmatch(each))


async def _checked(
    connection: Connection,
    user_id: str,
    part: Part,
    names: Sequence[str],
    targets: dict[str, File | None],
    if_exists: IfExists,
    wants_files: bool,
) -> dict[str, File | None]:
    """Check that all targets are free or will become free. Return the targets, with their files if `wants_files` or if the
    check read them. Raises NameTaken."""
    is_free = if_exists is IfExists.KEEP
    if not is_free and targets and not any(target.endswith("/") for target in targets):
        with suppress(NamesTaken):
            await bulk.filled_by(connection, user_id, sorted(targets, key=str.encode))
            is_free = True
    if is_free and not wants_files:
        return targets
    files = await queries.files_of_names(connection, user_id, [*names])
    targets |= {part.moved(file.name): file for file in files}
    if not is_free:
        await _refuse_taken(connection, user_id, targets, if_exists, part)
    return targets


async def _refuse_taken(
    connection: Connection,
    user_id: str,
    targets: Mapping[str, File | None],
    if_exists: IfExists,
    part: Part | None = None,
) -> None:
    """Raises NameTaken for the first taken target, unless the file or folder in the way moves, too."""
    if if_exists is IfExists.KEEP:
        return
    names = transactions.names.Names(connection, user_id)
    await names.read(targets)
    for target, file in targets.items():
        try:
            if file is None:
                await names.find_folder(target, if_exists)
            else:
                await names.find(target, if_exists, file.sha256)
        except errors.NameTaken as error:
            taken = str(error.fields["taken"])
            if part is None or not (
                taken.startswith(part.source) or await _goes_with(connection, user_id, part, f"{taken}/")
            ):
                raise


async def _goes_with(connection: Connection, user_id: str, part: Part, folder: str) -> bool:
    """Return whether everything in a folder moves with the prefix. Then the name of the folder becomes free."""
    if not part.source.startswith(folder):
        return False
    source, above = part.source.encode(), folder.encode()
    around = [(above, source), (beyond(source), beyond(above))]
    return not any([await bulk.has_names(connection, user_id, span) for span in around])


def _note(permission: Permission, part: Part | None, targets: Mapping[str, File | None]) -> bool:
    """Note the names for the pre-create hook; return whether the hook must be asked. For a moved prefix, note the new folder
    if both prefixes are folders, else the files and folders right below the new prefix."""
    for target, file in targets.items():
        end = 0
        if part is not None:
            new_prefix = str(part.target)
            is_folder = part.source.endswith("/") and new_prefix.endswith("/")
            end = len(new_prefix) if is_folder else target.find("/", len(new_prefix)) + 1
        permission.note(target[:end] or target, None if end else file)
    return permission.is_to_ask
