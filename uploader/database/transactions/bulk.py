"""Bulk operations: move or delete many names. Each transaction takes the first remaining names.

A row of `bulk_operation` holds the progress. Each transaction locks the row, changes some names with their accounting and
events, and updates the progress; the last transaction removes the row. After a crash, a repeated call or a job continues.
Because of the lock, two callers never change a name twice. If all targets of a range are free, one statement moves the
range. Otherwise `move_taken` decides name by name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa

from uploader.database import levels, models, queries
from uploader.database.connection import AsyncConnection
from uploader.database.engine import Duplicate
from uploader.database.transactions import links, names, rows
from uploader.database.transactions.files import delete_files, delete_held, move_files
from uploader.database.trash import excess
from uploader.domain.bulk import Part, Span, Verb, Work
from uploader.domain.creations import MOVE
from uploader.domain.names import folders_of
from uploader.domain.upload import File

# Limits per transaction: other writers of SQLite wait for its end.
NAMES_AT_ONCE, FILES_AT_ONCE = 250, 100
_OPERATIONS = models.bulk_operation.c


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of `bulk_operation`. `part`: the index of the current prefix; the ids come after the last prefix. `place`: for
    a prefix, the pass, from 1 (0: not begun); for the ids, the number done."""

    id: str
    user_id: str
    work: Work
    part: int = 0
    place: int = 0
    # Files moved or deleted so far.
    files: int = 0
    # The row was removed.
    has_ended: bool = False

    @property
    def current(self) -> Part | None:
        return self.work.parts[self.part] if self.part < len(self.work.parts) else None


class Contradiction(Exception):
    """Another operation of the same user is under way, and the order of the two would change the outcome."""

    def __init__(self, other: Operation) -> None:
        super().__init__(other.id)
        self.other = other


class NamesTaken(Exception):
    """Some targets of a range are taken: `move_taken` has to decide name by name."""


class NotAskedAbout(Exception):
    """A range has new names that the pre-create hook has not seen."""


# Notes the new names of files and folders. Returns true if the pre-create hook must be asked.
Note = Callable[[Mapping[str, File | None]], bool]

_OPERATION = sa.select(*(_OPERATIONS[name] for name in ("id", "user_id", "work", "part", "place", "files")))
_BY_DIGEST = _OPERATION.where(
    _OPERATIONS.user_id == sa.bindparam("user_id"), _OPERATIONS.digest == sa.bindparam("digest")
)
_OF_USER = _OPERATION.where(_OPERATIONS.user_id == sa.bindparam("user_id"))
_BY_ID = _OPERATION.where(_OPERATIONS.id == sa.bindparam("of_operation"))
_LOCKED = _BY_ID.with_for_update()
_INSERT = sa.insert(models.bulk_operation)
_UPDATE = (
    sa.update(models.bulk_operation)
    .where(_OPERATIONS.id == sa.bindparam("of_operation"))
    .values(rows.given("part", "place", "files"))
)
_DELETE = sa.delete(models.bulk_operation).where(_OPERATIONS.id == sa.bindparam("of_operation"))

# Changes the prefix of all names from `first` to `last`, both included. `skip` counts bytes, because the columns are binary.
_SET_PREFIX = {
    "sqlite": """
UPDATE {table} SET name = CAST(:target || SUBSTR(name, :skip) AS BLOB)
WHERE user_id = :user_id AND name >= :first AND name <= :last""",
    "mysql": """
UPDATE {table} FORCE INDEX ({index}) SET name = CONCAT(:target, SUBSTR(name, :skip))
WHERE user_id = :user_id AND name >= :first AND name <= :last""",
}
_INDEXES = {"file": "uq_file_name", "held_file": "ix_held_file_name"}


@cache
def _set_prefix(dialect: str, table: str) -> sa.TextClause:
    statement = _SET_PREFIX[dialect].format(table=table, index=_INDEXES[table])
    bytewise = [sa.bindparam(name, type_=sa.LargeBinary) for name in ("target", "first", "last")]
    return sa.text(statement).bindparams(*bytewise, sa.bindparam("user_id", type_=models.file.c.user_id.type))


@cache
def _within(table: sa.Table) -> "sa.Select[Any]":
    name = sa.type_coerce(table.c.name, sa.LargeBinary)  # a damaged name stays as it is
    bounds = {bound: sa.bindparam(bound, type_=sa.LargeBinary) for bound in ("first", "beyond")}
    query = sa.select(name).where(table.c.user_id == sa.bindparam("user_id"))
    query = query.where(name >= bounds["first"], name < bounds["beyond"])
    return query.order_by(name).limit(sa.bindparam("most", type_=sa.Integer))


async def names_within(
    connection: AsyncConnection, table: sa.Table, user_id: str, spans: Sequence[Span], most: int
) -> list[bytes]:
    """Return the first names of the first span that is not empty."""
    for first, last in spans:
        asked = {"user_id": user_id, "first": first, "beyond": last, "most": most}
        if found := list((await connection.execute(_within(table), asked)).scalars()):
            return found
    return []


async def has_names(connection: AsyncConnection, user_id: str, span: Span) -> bool:
    """Return whether a file or an empty folder has a name in the span."""
    for table in (models.file, models.folder):
        if await names_within(connection, table, user_id, [span], 1):
            return True
    return False


def text_of(name: bytes) -> str:
    return name.decode(errors="replace")


# The row


async def of_call(connection: AsyncConnection, user_id: str, work: Work) -> Operation | None:
    """Return the operation of an earlier, identical call."""
    return await queries.first_of(connection, _operation_of, _BY_DIGEST, user_id=user_id, digest=work.digest)


async def by_id(connection: AsyncConnection, operation_id: str) -> Operation | None:
    return await queries.first_of(connection, _operation_of, _BY_ID, of_operation=operation_id)


async def under_way(connection: AsyncConnection, limit: int) -> list[Operation]:
    """Return operations of all users, oldest first."""
    return await queries.all_of(connection, _operation_of, _OPERATION.order_by(_OPERATIONS.id).limit(limit))


def _operation_of(**row: Any) -> Operation:
    return Operation(**{**row, "work": Work.decoded(row["work"])})


async def former_folder(connection: AsyncConnection, user_id: str, folder: str) -> str | None:
    """Return the former name of a folder that is moving: files are still below this name."""
    for operation in await queries.all_of(connection, _operation_of, _OF_USER, user_id=user_id):
        part = operation.current
        if part is None or part.target is None or operation.place == 0 or not folder.startswith(part.target):
            continue
        former = part.source + folder[len(part.target) :]
        if former.encode().startswith(part.below(operation.place - 1)):  # earlier passes gave their names up
            return former
    return None


async def begin(connection: AsyncConnection, operation: Operation, now: datetime) -> Operation:
    """Insert the row of an operation and begin with the first prefix. Raises Contradiction, InvalidRequest, Duplicate if an
    identical call was faster, BlobLost if the user's row is gone."""
    moved = await _begin_part(connection, operation, now)
    await rows.lock_user(connection, operation.user_id)  # the later of two calls sees the row of the earlier
    await expect_no_contradiction(connection, operation.user_id, operation.work)
    row = {name: getattr(operation, name) for name in ("id", "user_id", "part", "files")}
    row |= {"work": operation.work.encoded(), "digest": operation.work.digest, "created_at": now, "place": moved.place}
    await connection.execute(_INSERT, row)
    return moved


async def expect_no_contradiction(connection: AsyncConnection, user_id: str, work: Work) -> None:
    """Raises Contradiction."""
    for other in await queries.all_of(connection, _operation_of, _OF_USER, user_id=user_id):
        if other.work.contradicts(work) and other.work != work:
            raise Contradiction(other)


async def end(connection: AsyncConnection, operation_id: str) -> None:
    """Remove the row of an operation; the remaining names stay as they are."""
    await connection.execute(_DELETE, {"of_operation": operation_id})


async def _locked(connection: AsyncConnection, operation: Operation) -> Operation:
    found = await queries.first_of(connection, _operation_of, _LOCKED, of_operation=operation.id)
    return replace(operation, has_ended=True) if found is None else found


async def _advance(
    connection: AsyncConnection, operation: Operation, more: int, *, place: int, is_done: bool = False
) -> Operation:
    """Store the progress of an operation. `is_done`: the current part is finished."""
    part = operation.part + is_done
    operation = replace(operation, part=part, place=0 if is_done else place, files=operation.files + more)
    if operation.current is None and not operation.work.ids[operation.place :]:
        await end(connection, operation.id)
        return replace(operation, has_ended=True)
    new = {"new_part": operation.part, "new_place": operation.place, "new_files": operation.files}
    await connection.execute(_UPDATE, {"of_operation": operation.id, **new})
    return operation


# The next step


async def go_on(connection: AsyncConnection, operation: Operation, now: datetime, note: Note | None) -> Operation:
    """Take the next names of an operation and return the operation with its progress. `note` is None if no hook has to be
    asked. Raises NamesTaken, NotAskedAbout, LinksBelow, NamesChanged, NameTaken, InvalidRequest."""
    operation = await _locked(connection, operation)
    part = operation.current
    if operation.has_ended:
        return operation
    if part is None:
        return await _take_ids(connection, operation, now, note)
    if operation.place == 0:
        operation = await _begin_part(connection, operation, now)
        return await _advance(connection, operation, 0, place=operation.place)
    if operation.work.verb is Verb.DELETE:
        return await _delete_below(connection, operation, part, now)
    return await _move_free(connection, operation, part, now, note)


async def _begin_part(connection: AsyncConnection, operation: Operation, now: datetime) -> Operation:
    """Begin with a prefix. A move renames links to folders, open uploads and waiting concatenations below the prefix; a
    deletion ends the links."""
    part, user_id = operation.current, operation.user_id
    if part is None:
        return operation
    if part.target is None:
        await links.end_below(connection, user_id, part.source, now)
    else:
        # Uploads are locked before links. They are renamed after the links, because an upload below the new name of a link
        # would end the link.
        opened = await coming(connection, user_id, part.source, lock=True)
        await links.move_below(connection, user_id, part.source, part.target, now)
        await _move_coming(connection, opened, part)
    return replace(operation, place=1)


async def _take_ids(connection: AsyncConnection, operation: Operation, now: datetime, note: Note | None) -> Operation:
    work, user_id = operation.work, operation.user_id
    ids = work.ids[operation.place : operation.place + FILES_AT_ONCE]
    place = operation.place + len(ids)
    files = await queries.files_by_ids(connection, user_id, ids)
    if work.verb is Verb.DELETE:
        if held := await queries.held_by_ids(connection, user_id, ids):
            more = await delete_held(connection, held, now)
            return await _advance(connection, operation, more, place=operation.place)
        more = await delete_files(connection, files, now)
        return await _advance(connection, operation, more, place=place)
    targets = targets_of(files, work.folder)
    moving = [file for file in files if file.id in targets]
    _expect_asked(note, {targets[file.id]: file for file in moving})
    more = await move_files(connection, moving, targets, work.if_exists, now, MOVE)
    return await _advance(connection, operation, more, place=place)


def targets_of(files: Sequence[File], folder: str) -> dict[str, str]:
    """Return the new names of files moved into a folder, by file id. Leave out files that keep their names. Raises
    InvalidRequest."""
    targets = {file.id: Part(file.name[: file.name.rfind("/") + 1], folder).moved(file.name) for file in files}
    return {file.id: targets[file.id] for file in files if targets[file.id] != file.name}


# A prefix that goes


async def _delete_below(connection: AsyncConnection, operation: Operation, part: Part, now: datetime) -> Operation:
    user_id, spans = operation.user_id, part.spans(0)
    if operation.work.cancels:
        held = await queries.held_below(connection, user_id, part.source, FILES_AT_ONCE)
        if held:
            more = await delete_held(connection, held, now)
            return await _advance(connection, operation, more, place=1)
    files = await queries.files_from(connection, user_id, part.source, NAMES_AT_ONCE)
    more = await delete_files(connection, files, now, left=part.source)
    folders = list[bytes]()
    if len(files) < NAMES_AT_ONCE:
        folders = await names_within(connection, models.folder, user_id, spans, NAMES_AT_ONCE)
    if folders:
        await names.remove_folders(connection, user_id, list(map(text_of, folders)), part.source, now)
    await links.expect_folders_below(connection, user_id, part.source)
    is_done = len(files) < NAMES_AT_ONCE and len(folders) < NAMES_AT_ONCE
    return await _advance(connection, operation, more, place=1, is_done=is_done)


# A prefix that gets another one


async def _move_free(
    connection: AsyncConnection, operation: Operation, part: Part, now: datetime, note: Note | None
) -> Operation:
    user_id, number = operation.user_id, operation.place - 1
    if not part.goes_up:
        await _move_coming(connection, await coming(connection, user_id, part.source), part)
    spans = part.spans(number)
    held = await names_within(connection, models.held_file, user_id, spans, NAMES_AT_ONCE)
    for name in held:
        part.moved(text_of(name))
    await _set_prefix_of(connection, models.held_file, user_id, part, held)
    usage = await rows.lock_user(connection, user_id)
    found = await names_within(connection, models.file, user_id, spans, NAMES_AT_ONCE)
    if found:
        targets = [part.moved(text_of(name)) for name in found]
        if note is not None:
            files = await queries.files_of_names(connection, user_id, list(map(text_of, found)))
            _expect_asked(note, {part.moved(file.name): file for file in files})
        filled = await filled_by(connection, user_id, targets)
        if await _set_prefix_of(connection, models.file, user_id, part, found) != len(found):
            raise Duplicate(part.source)  # a flipped byte in SQLite hides a name
        more = await names.leave(connection, user_id, [part.source], now)
        more -= await names.forget_folders(connection, user_id, filled)
        more -= await excess(connection, user_id, usage.files, more)
        await rows.add_finished(connection, user_id, 0, more)
    folders = list[bytes]()
    if len(found) < NAMES_AT_ONCE:
        folders = await names_within(connection, models.folder, user_id, spans, FILES_AT_ONCE)
        await _move_folders(connection, operation, part, list(map(text_of, folders)), now, note)
    await links.expect_folders_below(connection, user_id, part.source)
    if len(found) == NAMES_AT_ONCE or len(folders) == FILES_AT_ONCE or len(held) == NAMES_AT_ONCE:
        return await _advance(connection, operation, len(found), place=operation.place)
    if found or held or folders:  # a later span of the pass may have names
        is_done = not part.goes_up
        return await _advance(connection, operation, len(found), place=operation.place, is_done=is_done)
    if part.goes_up and await _is_deeper(connection, user_id, part, number + 1):
        return await _advance(connection, operation, 0, place=operation.place + 1)
    if await queries.files_of_names(connection, user_id, part.last_names):
        raise NamesTaken
    return await _advance(connection, operation, 0, place=operation.place, is_done=True)


async def move_taken(connection: AsyncConnection, operation: Operation, now: datetime, note: Note | None) -> Operation:
    """Take the next names of a move, deciding on each name, because some targets are taken. Raises NotAskedAbout,
    LinksBelow, NamesChanged, NameTaken, InvalidRequest."""
    operation = await _locked(connection, operation)
    part, user_id = operation.current, operation.user_id
    if operation.has_ended or part is None:
        return operation
    found = await names_within(connection, models.file, user_id, part.spans(operation.place - 1), FILES_AT_ONCE)
    some = list(map(text_of, found)) or part.last_names
    files = sorted(await queries.files_of_names(connection, user_id, some), key=lambda file: file.name.encode())
    targets = {file.id: part.moved(file.name) for file in files}
    _expect_asked(note, {targets[file.id]: file for file in files})
    more = await move_files(connection, files, targets, operation.work.if_exists, now, MOVE, prefix=part.source)
    await links.expect_folders_below(connection, user_id, part.source)
    return await _advance(connection, operation, more, place=operation.place)


async def filled_by(connection: AsyncConnection, user_id: str, targets: Sequence[str]) -> list[str]:
    """Return the empty folders above the targets. Raises NamesTaken unless all targets are free.

    The targets are in order. A name in the way lies between the first target and the last name below a target, or is a file
    above a target.
    """
    first, last = targets[0].encode(), max(f"{target}0".encode() for target in targets)  # 0 is after the slash
    if await has_names(connection, user_id, (first, last)):
        raise NamesTaken
    above = sorted({folder for target in targets for folder in folders_of(target) if folder.encode() < first})
    if not above:
        return []
    found = await levels.named(connection, user_id, [], above)
    if found.files:
        raise NamesTaken
    return found.empty


async def _set_prefix_of(
    connection: AsyncConnection, table: sa.Table, user_id: str, part: Part, found: Sequence[bytes]
) -> int:
    if not found:
        return 0
    values = {"user_id": user_id, "target": str(part.target).encode(), "skip": len(part.source.encode()) + 1}
    statement = _set_prefix(connection.dialect.name, table.name)
    return await rows.changed(connection, statement, first=found[0], last=found[-1], **values)


async def _move_folders(
    connection: AsyncConnection, operation: Operation, part: Part, found: list[str], now: datetime, note: Note | None
) -> None:
    """Rename empty folders. A folder that would become the top is removed."""
    targets = {name: part.moved_folder(name) for name in found}
    _expect_asked(note, dict.fromkeys(target for target in targets.values() if target))
    if found:
        await names.move_folders(connection, operation.user_id, targets, operation.work.if_exists, now, part.source)


async def _is_deeper(connection: AsyncConnection, user_id: str, part: Part, number: int) -> bool:
    """Return whether the passes from `number` on have names."""
    (first, *_, (_, last)) = part.spans(number)
    if await has_names(connection, user_id, (first[0], last)):
        return True
    return bool(await names_within(connection, models.held_file, user_id, [(first[0], last)], 1))


def _expect_asked(note: Note | None, targets: Mapping[str, File | None]) -> None:
    if note is not None and note(targets):
        raise NotAskedAbout


# Open uploads of the user's own, and concatenations that wait for their parts

Coming = list[tuple[sa.Table, str, str]]


async def coming(connection: AsyncConnection, user_id: str, prefix: str, *, lock: bool = False) -> Coming:
    """Return waiting concatenations and open uploads below a prefix, with ids and names. Concatenations are locked before
    uploads."""
    found: Coming = []
    for table in (models.concatenation, models.upload):
        for upload_id, name in await connection.execute(levels.COMING[table.name], {"user_id": user_id}):
            if name.startswith(prefix):
                found.append((table, upload_id, name))
        if lock and (ids := sorted(upload_id for of, upload_id, _ in found if of is table)):
            locked = sa.select(table.c.id).where(table.c.id.in_(ids)).order_by(table.c.id).with_for_update()
            await connection.execute(locked)
    return found


async def _move_coming(connection: AsyncConnection, opened: Coming, part: Part) -> None:
    for table, upload_id, name in opened:
        change = sa.update(table).where(table.c.id == upload_id, table.c.name == name, table.c.open_flag == 1)
        await connection.execute(change.values(name=part.moved(name)))
