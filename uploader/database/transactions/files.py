"""Transactions of files and contents: add whole files, rename, delete, collect.

A transaction changes the bytes of a content only while it holds the lock of the content's row.
"""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

from sqlalchemy import delete, insert, update

from uploader.database import links as link_rows
from uploader.database import models, queries
from uploader.database.audit_log import note
from uploader.database.connection import AsyncConnection
from uploader.database.engine import Duplicate
from uploader.database.outbox import ask_gates, gates, listens, tell, tell_all
from uploader.database.transactions import links, rows
from uploader.database.transactions.names import Found, Names, fill, leave
from uploader.database.trash import excess, take_out, throw_away, without_spare
from uploader.domain import events
from uploader.domain.audit_log import Act
from uploader.domain.creations import FILE, PASS, RESTORE, Creation
from uploader.domain.events import EventType
from uploader.domain.links import Link
from uploader.domain.names import MAX_NAME_BYTES
from uploader.domain.upload import SUPERSEDED, File, IfExists, State, TrashReason, Upload, Usage
from uploader.errors import LinkExhausted, NameTaken, QuotaExceeded, TooManyFiles
from uploader.runtime.crashpoints import crash_point

T = TypeVar("T")
# Places the bytes of a blob while the row is locked. Returns the location, if the store has locations.
PlaceBlob = Callable[[], Awaitable[str | None]]
# Places several blobs; returns locations by SHA-256.
PlaceBlobs = Callable[[Collection[str]], Awaitable[Mapping[str, str]]]


async def relocate(connection: AsyncConnection, locations: Mapping[str, str], now: datetime) -> None:
    """Store new locations of contents, by SHA-256, and put the former objects away. The caller has locked the rows.
    `locations` is empty for a store without locations."""
    if not locations:
        return
    former = await connection.execute(rows.LOCATED, {"of_contents": sorted(locations)})
    left = [(sha256, size, key) for sha256, size, key in former if key != locations[sha256]]
    await _put_away(connection, left, now)
    if len(locations) > 1 and connection.dialect.name != "sqlite":
        await connection.execute(rows.SET_LOCATIONS, {"batch": json.dumps(sorted(locations.items()))})
    else:
        values = [{"of_content": sha256, "new_location": key} for sha256, key in sorted(locations.items())]
        await connection.execute(rows.RELOCATE, values)
    # At the end: see `_put_away` of the ledger.
    await connection.execute(rows.BRING_BACK, {"keys": sorted(locations.values())})


async def _put_away(connection: AsyncConnection, left: Sequence[tuple[str, int, str]], now: datetime) -> None:
    """`left`: SHA-256, size and former key of each content."""
    if left:
        values = [{"object_key": key, "name": sha256, "size": size, "created_at": now} for sha256, size, key in left]
        await connection.execute(rows.PUT_AWAY[connection.dialect.name], values)


async def collect_blob(
    connection: AsyncConnection,
    sha256: str,
    *,
    prepare: Callable[[], Awaitable[None]],
    remove: Callable[[], Awaitable[None]],
    now: datetime,
) -> bool:
    """Remove a blob without refs; return False if the blob is in use or gone. The bytes go before the commit: the next merge
    repairs a row without bytes, but nothing repairs bytes without a row. A blob with a location is put away by a row,
    without `prepare` and `remove`.

    `prepare` makes sure that the database durably has no refs of the blob. If the database crashes during `prepare`, the
    connection is lost and the next statement fails.
    """
    row = (await connection.execute(rows.LOCK_REFS, {"of_blob": sha256})).mappings().first()
    if row is None or row["refs"] != 0:
        return False
    location = row["location"]
    if location is None:
        await prepare()
    await connection.execute(rows.DELETE_BLOB, {"of_blob": sha256})
    if location is None:
        await remove()
        crash_point("collect.after_unlink")
    else:
        await _put_away(connection, [(sha256, row["size"], location)], now)
    return True


async def with_blob_locked(
    connection: AsyncConnection, sha256: str, work: Callable[[queries.Blob | None], Awaitable[T]], now: datetime
) -> T:
    """Let `work` change the bytes of a content while its row is locked. `work` gets the row, or None if there is no row.

    READ COMMITTED locks no gap, so a missing row is inserted and deleted again before the commit. A merge of this content
    waits for the row and then places its own bytes. Raises Duplicate (from the engine) if another transaction inserted the
    row at the same time.
    """
    blob = await queries.blob_by_sha256(connection, sha256, lock=True)
    if blob is not None:
        return await work(blob)
    await connection.execute(insert(models.blob).values(sha256=sha256, size=0, refs=0, created_at=now))
    result = await work(None)
    crash_point("stray.after_unlink")
    await connection.execute(delete(models.blob).where(models.blob.c.sha256 == sha256))
    return result


async def note_scrub(
    connection: AsyncConnection,
    sha256: str,
    *,
    damaged: bool,
    now: datetime,
    restored: bool = False,
    reread_at: datetime | None = None,
    md5: str | None = None,
) -> None:
    """Store the result of reading a blob back. The caller has locked the row. `restored`: the bytes were bad and have been
    replaced. `reread_at`: when to read again, if the error may be temporary."""
    kind = EventType.CONTENT_DAMAGED if damaged else EventType.CONTENT_HEALED
    before = await queries.blob_by_sha256(connection, sha256) if listens(connection, kind) else None
    await _note_reading(connection, sha256, damaged=damaged, scrubbed_at=now, reread_at=reread_at)
    if md5 is not None:
        await rows.fill_md5s(connection, {sha256: md5})
    if before is not None and (restored or damaged != before.damaged):
        await rows.tell_of_content(connection, kind, sha256)


async def note_unreadable(connection: AsyncConnection, sha256: str, now: datetime, reread_at: datetime) -> None:
    """Store that a blob could not be read. The bytes may still be good."""
    await _note_reading(connection, sha256, scrubbed_at=now, reread_at=reread_at)


async def _note_reading(connection: AsyncConnection, sha256: str, **found: object) -> None:
    await connection.execute(update(models.blob).where(models.blob.c.sha256 == sha256).values(**found))


class NamesChanged(Duplicate):
    """A concurrent transaction changed a name, and the content of its file is not locked here."""


@dataclass(frozen=True, slots=True)
class Added:
    """A new file, or an existing file with the same name and content."""

    file: File
    is_new: bool


# The outcome of a request to make a file.
Refusal = NameTaken | QuotaExceeded | TooManyFiles | LinkExhausted
Verdict = Added | Refusal


@dataclass(frozen=True, slots=True)
class Room:
    """The limit of files of a user, and the open upload that the new file closes."""

    max_files: int = 0
    closed: Upload | None = None

    def refusal(
        self, creation: Creation, usage: Usage, more_bytes: int, more_files: int, size: int
    ) -> QuotaExceeded | TooManyFiles | None:
        freed_bytes, freed_files = (0, 0) if self.closed is None else (self.closed.size, 1)
        # A file that replaces a file of at least its own size is allowed, even if an administrator lowered the total space
        # below the used space.
        is_less = more_bytes <= 0 < size
        if creation.counts_bytes and not is_less and not usage.fits(more_bytes - freed_bytes):
            return QuotaExceeded(**usage.figures(size))
        if creation.counts_files and not usage.takes_files(more_files - freed_files, self.max_files):
            return TooManyFiles(limit=self.max_files)
        return None


@dataclass(slots=True)
class Changes:
    """Decisions on new files, in order, and the resulting changes. Each decision takes the earlier ones into account."""

    names: Names
    if_exists: IfExists
    # Without the deleted files that are removed to make room.
    usage: Usage
    room: Room
    creation: Creation
    # The link by which the files come.
    link: Link | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    # Change of `use_space_finished`.
    finished_bytes: int = 0
    made: list[File] = field(default_factory=list)
    removed: list[File] = field(default_factory=list)
    # Refs to drop, by SHA-256, besides the refs of `removed`.
    dropped: Counter[str] = field(default_factory=Counter)
    # Change of the number of files in the trash.
    trashed: int = 0

    @property
    def are_in_trash(self) -> bool:
        return self.creation is RESTORE

    @property
    def more_files(self) -> int:
        return len(self.made) - len(self.removed) - len(self.names.filled) + self.trashed

    def only(self) -> Added:
        """Raises NameTaken, QuotaExceeded, TooManyFiles."""
        (verdict,) = self.verdicts
        if isinstance(verdict, Added):
            return verdict
        raise verdict

    async def decide(self, file: File) -> None:
        try:
            sha256 = file.sha256 if self.creation.merges and self.link is None else None
            same = await self._held_before(file) or await self._sent_before(file)
            found = same or await self._place(file, sha256)
        except NameTaken as error:
            self._refuse(file, error)
            return
        if found.same is not None:
            self.dropped[file.sha256] += 1
            self.verdicts.append(Added(found.same, is_new=False))
            return
        # A held file replaces nothing until it passes.
        replaced = [] if found.replaced is None or file.held else [found.replaced]
        more = file.size - sum(other.size for other in replaced)
        refusal = self._refusal(more, 1 - len(replaced), file.size)
        if isinstance(refusal, TooManyFiles) and (gone := await self._give_way(file.user_id)):
            self.names.forget(gone)
            self.usage = replace(self.usage, files=self.usage.files - len(gone))
            refusal = self._refusal(more, 1 - len(replaced), file.size)
        if refusal is not None:
            self._refuse(file, refusal)
            return
        made = file if file.held else replace(file, name=found.name)
        if not made.held:
            self.names.take(made.name, made)
        self.removed += replaced
        self.made.append(made)
        self.finished_bytes += more
        self.verdicts.append(Added(made, is_new=True))

    async def _held_before(self, file: File) -> Found | None:
        """Find a held file of the same caller with the same name and content."""
        if not file.held or self.are_in_trash:
            return None
        name = file.asked_name if file.session else file.name
        connection = self.names.connection
        same = await queries.newest_held(connection, file.caller, sha256=file.sha256, name=name)
        return None if same is None else Found(same.name, same=same)

    async def _place(self, file: File, sha256: str | None) -> Found:
        """Find a name. If a visitor's file can get no number, use the file's id as its name in the folder of the link: a
        refusal would reveal names in the folder. Raises NameTaken."""
        try:
            return await self.names.find(file.name, self.if_exists, sha256)
        except NameTaken:
            if self.link is None:
                raise
            return await self.names.find(self.link.name + file.id, IfExists.KEEP)

    async def _sent_before(self, file: File) -> Found | None:
        """Find the file with this content that the same visitor has sent under this name. Files of others do not count."""
        if self.link is None:
            return None
        connection, asked_name = self.names.connection, file.asked_name or ""
        file_id = await link_rows.file_of_visitor(connection, file.caller, file.sha256, asked_name)
        same = None if file_id is None else await queries.file_by_id(connection, file.user_id, file_id)
        return None if same is None else Found(same.name, same=same)

    async def _give_way(self, user_id: str) -> list[str]:
        return await rows.give_way(self.names.connection, user_id, 1, self.names.filled)

    def _refuse(self, file: File, refusal: Refusal) -> None:
        self.dropped[file.sha256] += 1
        self.verdicts.append(refusal)

    def _refusal(self, more: int, more_files: int, size: int) -> QuotaExceeded | TooManyFiles | LinkExhausted | None:
        if not (self.creation.counts_bytes or self.creation.counts_files):
            return None
        if self.link is not None:
            closed = 0 if self.room.closed is None else self.room.closed.size
            files = len(self.made) + more_files - (self.room.closed is not None)
            if not self.link.takes(self.finished_bytes + more - closed, files):
                return LinkExhausted()
        finished, files = self.usage.use_space_finished + self.finished_bytes, self.usage.files + self.more_files
        usage = replace(self.usage, use_space_finished=finished, files=files)
        return self.room.refusal(self.creation, usage, more, more_files, size)


async def lock_contents(
    connection: AsyncConnection, files: Sequence[File], if_exists: IfExists, now: datetime, *, brings_bytes: bool = True
) -> set[str]:
    """Lock the contents of new files and of files that these may replace, and the links of the replaced files. Add a ref for
    each new file. Return the locked SHA-256s and link ids.

    First read the names without locks. Then lock all contents in the order of SHA-256, and then the links. `add_files` locks
    the user's row, reads the names again and decides. If a name now belongs to a file whose content is not locked, the whole
    transaction runs again.

    `brings_bytes`: the caller places the bytes. Otherwise raises BlobLost if a content has no refs. Raises NameTaken early
    for a single file, before its bytes are placed in vain.
    """
    own = sorted(file.sha256 for file in files)
    locked, standing = set(own), list[File]()
    if if_exists is IfExists.REPLACE or (if_exists is IfExists.FAIL and len(files) == 1):
        names = Names(connection, files[0].user_id)
        await names.read(file.name for file in files)
        if len(files) == 1:
            await names.find(files[0].name, if_exists, files[0].sha256)
        if if_exists is IfExists.REPLACE:
            standing = names.standing(file.name for file in files)
            locked.update(other.sha256 for other in standing)
    if len(locked) > len(set(own)):
        await queries.known_blobs(connection, sorted(locked), lock=True)
    if brings_bytes:
        by_content = {file.sha256: file for file in files}
        await rows.add_refs(connection, [by_content[sha256] for sha256 in own], now)
    for sha256 in () if brings_bytes else own:
        if await rows.changed(connection, rows.TAKE_REF, taken=sha256) == 0:
            raise rows.BlobLost(sha256)
    return locked | await links.lock_of(connection, standing)


async def add_files(
    connection: AsyncConnection,
    files: Sequence[File],
    if_exists: IfExists,
    locked: set[str],
    *,
    room: Room,
    creation: Creation,
    passed: Collection[str] = (),
) -> Changes:
    """Make files of one user with different names, after `lock_contents`. The caller accounts for `finished_bytes` and
    `more_files`. `passed`: ids of files that skip the gates. Files of a visitor get names below the folder of the link.
    Raises NamesChanged, LinkGone, BlobLost if the user's row is gone.
    """
    user_id = files[0].user_id
    if creation.is_gated and gates(connection):
        files = [replace(file, held=file.id not in passed) for file in files]
    link = None
    if files[0].session and creation is not RESTORE:
        link = await links.lock_for(connection, files[0].caller, files[0].created_at)
    if link is not None:
        files = [replace(file, name=_name_below(link, file.name, file.id), asked_name=file.name) for file in files]
    usage, names = await rows.lock_user(connection, user_id), Names(connection, user_id)
    await names.read(file.name for file in files)
    spared = usage
    if creation.counts_files:
        spared = await without_spare(connection, usage, len(files), room.max_files)
    changes = Changes(names, if_exists, spared, room, creation, link)
    for file in files:
        await changes.decide(file)
    _expect_locked(changes.removed, locked)
    await _carry_out(connection, user_id, changes)
    # The upload that a file closes counted as a file.
    closed = int(room.closed is not None)
    stored = usage.files + changes.usage.files - spared.files  # without the folders that gave way
    changes.trashed -= await excess(connection, user_id, stored, changes.more_files - closed)
    return changes


async def close_by(
    connection: AsyncConnection, upload: Upload, added: Added, now: datetime, *, is_superseded: bool = False
) -> None:
    """Close an upload as done with a file. `is_superseded`: the bytes came in another way."""
    reason = SUPERSEDED if is_superseded else None
    file = added.file
    await rows.close_row(connection, upload, State.DONE, now, close_reason=reason, file_id=file.id, md5=file.md5)
    if not added.is_new and not file.held:
        await tell(connection, events.file_finished, added.file)


def _expect_locked(removed: Sequence[File], locked: set[str]) -> None:
    """Raises NamesChanged if the content or the link of a file is not locked."""
    if not {file.sha256 for file in removed} | links.ids_of(removed) <= locked:
        raise NamesChanged


async def _carry_out(connection: AsyncConnection, user_id: str, changes: Changes) -> None:
    await _delete(connection, changes.removed)
    seen = [file for file in changes.made if not file.held]
    if seen:
        await rows.insert_files(connection, seen)
    if held := [file for file in changes.made if file.held]:
        events_of = await ask_gates(connection, [events.file_finished(file) for file in held])
        await rows.insert_held(connection, zip(held, events_of, strict=True), changes.if_exists)
    if changes.are_in_trash:
        changes.trashed -= len(changes.made)
        if await take_out(connection, user_id, [file.id for file in changes.made]) != len(changes.made):
            raise NamesChanged
    changes.trashed += await _let_go(connection, changes.removed, events.REPLACED, changes.dropped)
    await fill(connection, changes.names, user_id)
    await _tell_named(connection, changes.creation, seen)
    await tell_all(connection, events.file_deleted, changes.removed, events.REPLACED)


async def _tell_named(connection: AsyncConnection, creation: Creation, files: Sequence[File]) -> None:
    """Write the events of files with new names, if the operation has an event."""
    if creation.event is not None:
        await tell_all(connection, events.file_named, files, creation.event)


async def add_file(
    connection: AsyncConnection,
    file: File,
    if_exists: IfExists,
    replaced_upload_id: str | None,
    place_blob: PlaceBlob | None = None,
    *,
    max_files: int,
    is_proven: bool = False,
) -> Added:
    """Add a whole file, or, without `place_blob`, a file of stored content. `is_proven`: the user has proved to hold the
    content, so earlier verdicts of gates count.

    The transaction also closes the open upload `replaced_upload_id` of the same content as done and uses its reservation, so
    that the file fits even if the quota is full. Raises NotOpen, QuotaExceeded, TooManyFiles, NameTaken, Duplicate, and
    BlobLost if the stored content has no refs.
    """
    replaced = None if replaced_upload_id is None else await rows.lock_open(connection, replaced_upload_id)
    is_whole = place_blob is not None
    locked = await lock_contents(connection, [file], if_exists, file.created_at, brings_bytes=is_whole)
    if place_blob is not None and (location := await place_blob()) is not None:
        await relocate(connection, {file.sha256: location}, file.created_at)
    passed = [file.id] if is_proven and await _has_passed(connection, file.sha256) else []
    room = Room(max_files, replaced)
    changes = await add_files(connection, [file], if_exists, locked, room=room, creation=FILE, passed=passed)
    added = changes.only()
    if replaced is None:
        if file.session:
            await links.add(connection, file.caller, changes.made)
        await rows.add_finished(connection, file.user_id, changes.finished_bytes, changes.more_files)
    else:
        await close_by(connection, replaced, added, file.created_at, is_superseded=True)
        await links.give_back(connection, replaced, changes.made)
        await rows.settle_user(connection, replaced, finished=changes.finished_bytes, files=changes.more_files)
    return added


async def _has_passed(connection: AsyncConnection, sha256: str) -> bool:
    blob = await queries.blob_by_sha256(connection, sha256)
    return blob is not None and blob.has_passed(gates(connection))


async def add_whole_files(
    connection: AsyncConnection,
    files: Sequence[File],
    if_exists: IfExists,
    *,
    place_blobs: PlaceBlobs,
    max_files: int,
) -> list[Verdict | None]:
    """Add whole files of one user with different names. The verdict None means that an upload with this MD5 is open; this
    function closes no uploads.

    `place_blobs` gets SHA-256s whose rows are locked and returns locations by SHA-256, if the store has locations. A refused
    file leaves a blob without refs for the collector. Raises Duplicate, BlobLost.
    """
    caller, md5s = files[0].caller, sorted({file.md5 for file in files if file.md5 is not None})
    uploads: Collection[str]
    if len(md5s) > 1:
        uploads = await queries.open_md5s(connection, caller, md5s)
    else:
        uploads = [] if await queries.open_upload_by_md5(connection, caller, md5s[0]) is None else md5s
    taken = [file for file in files if file.md5 not in uploads]
    room = Room(max_files)
    verdicts = iter(await _add_files(connection, taken, if_exists, place_blobs, room) if taken else ())
    return [None if file.md5 in uploads else next(verdicts) for file in files]


async def _add_files(
    connection: AsyncConnection,
    files: Sequence[File],
    if_exists: IfExists,
    place_blobs: PlaceBlobs,
    room: Room,
) -> list[Verdict]:
    try:
        locked = await lock_contents(connection, files, if_exists, files[0].created_at)
    except NameTaken as error:  # of a single file: nothing is written yet
        return [error]
    await relocate(connection, await place_blobs({file.sha256 for file in files}), files[0].created_at)
    changes = await add_files(connection, files, if_exists, locked, room=room, creation=FILE)
    if files[0].session:
        await links.add(connection, files[0].caller, changes.made)
    await rows.add_finished(connection, files[0].user_id, changes.finished_bytes, changes.more_files)
    return changes.verdicts


async def delete_file(connection: AsyncConnection, file: File, now: datetime) -> bool:
    """Delete a file; return False if the file is gone or renamed. The blob stays, perhaps without refs."""
    delete = delete_held if file.held else delete_files
    return await delete(connection, [file], now) == 1


async def remove_file(connection: AsyncConnection, file: File, now: datetime, act: Act) -> bool:
    """Delete a file as an administrator, with an act in the audit log; return False if the file is gone or renamed."""
    delete = delete_held if file.held else delete_files
    if not await delete(connection, [file], now, TrashReason.ADMIN.value):
        return False
    await note(connection, act)
    return True


async def delete_files(
    connection: AsyncConnection,
    files: Sequence[File],
    now: datetime,
    reason: str | None = None,
    *,
    left: str | None = None,
) -> int:
    """Delete files of one user and return the number deleted; skip files that are gone or renamed. Blobs stay, perhaps
    without refs. `reason`: why, unless the user asked. `left`: the prefix that is deleted as a whole; without it, folders
    that become empty stay."""
    if not files:
        return 0
    user_id = files[0].user_id
    await rows.lock_blobs(connection, {file.sha256 for file in files})
    await links.lock_of(connection, files)
    usage = await rows.lock_user(connection, user_id)
    gone = await rows.delete_named(connection, files)
    if gone:
        kept = await leave(connection, user_id, [file.name for file in gone] if left is None else [left], now)
        kept += await _let_go(connection, gone, reason)
        more = kept - len(gone)
        more -= await excess(connection, user_id, usage.files, more)
        await rows.add_finished(connection, user_id, -sum(file.size for file in gone), more)
        await tell_all(connection, events.file_deleted, gone, reason)
    return len(gone)


async def delete_held(
    connection: AsyncConnection,
    files: Sequence[File],
    now: datetime,
    reason: str | None = None,
    detail: str | None = None,
) -> int:
    """Delete held files of one user, end the tasks of their gates, and return the number deleted. There is no event, because
    held files were never announced. `reason`: why, unless the user asked. `detail`: the reason of the gate that refused."""
    if not files:
        return 0
    user_id = files[0].user_id
    await rows.lock_blobs(connection, {file.sha256 for file in files})
    gone = [file for file in files if await rows.take_held(connection, file.id, now)]
    await links.lock_of(connection, gone)
    usage = await rows.lock_user(connection, user_id)
    if gone:
        more = await _let_go(connection, gone, reason, detail=detail) - len(gone)
        more -= await excess(connection, user_id, usage.files, more)
        await rows.add_finished(connection, user_id, -sum(file.size for file in gone), more)
    return len(gone)


async def let_pass(
    connection: AsyncConnection, held: File, if_exists: IfExists, locked: set[str], now: datetime
) -> File:
    """Turn a held file into a file, with the name that it asked for. If the name is taken and not replaced, add a number.
    `locked`: the locked SHA-256s and link ids. Raises NamesChanged, BlobLost."""
    await rows.take_held(connection, held.id, now)
    usage, names = await rows.lock_user(connection, held.user_id), Names(connection, held.user_id)
    # The folder of the link, for a visitor's file.
    folder = held.name.removesuffix(held.asked_name) if held.asked_name else ""
    folder = folder if folder.endswith("/") else ""
    found = await _place_of(names, held.name, if_exists) or await names.find(folder + held.id, IfExists.KEEP)
    file = replace(held, name=found.name, held=False, md5=await queries.md5_of(connection, held.sha256) or held.md5)
    changes = Changes(names, if_exists, usage, Room(), PASS)
    changes.made.append(file)
    names.take(file.name, file)
    if found.replaced is not None:
        changes.removed.append(found.replaced)
    _expect_locked(changes.removed, locked)
    await _carry_out(connection, held.user_id, changes)
    more = changes.more_files - 1  # it counted already
    more -= await excess(connection, held.user_id, usage.files, more)
    replaced_bytes = sum(other.size for other in changes.removed)
    await rows.add_finished(connection, held.user_id, -replaced_bytes, more)
    return file


async def _place_of(names: Names, name: str, if_exists: IfExists) -> Found | None:
    """Find a name for a file that passed, without asking a user; None if no number is free."""
    with suppress(NameTaken):
        if if_exists is IfExists.REPLACE:
            return await names.find(name, if_exists)
    with suppress(NameTaken):
        return await names.find(name, PASS.if_exists)
    return None


def _name_below(link: Link, name: str, file_id: str) -> str:
    """Return the owner's name of a visitor's file. Only uploads opened by an earlier version can be too long; they get the
    file's id."""
    full = link.name + name
    return full if len(full.encode()) <= MAX_NAME_BYTES else link.name + file_id


async def _delete(connection: AsyncConnection, files: Sequence[File]) -> None:
    """Delete files that were read under the lock of the user's row."""
    if files:
        await connection.execute(rows.DELETE_FILE, [{"removed": file.id} for file in files])


async def _let_go(
    connection: AsyncConnection,
    gone: Sequence[File],
    reason: str | None,
    dropped: Mapping[str, int] | None = None,
    detail: str | None = None,
) -> int:
    """Drop the refs of removed files and the refs in `dropped`, return room to the links, and put the files into the trash.
    Return the number of files added to the trash."""
    await rows.drop_refs(connection, Counter(file.sha256 for file in gone) + Counter(dropped))
    await links.count(connection, gone=gone)
    return await throw_away(connection, gone, reason, detail)


async def move_files(
    connection: AsyncConnection,
    files: Sequence[File],
    targets: Mapping[str, str],
    if_exists: IfExists,
    now: datetime,
    creation: Creation,
    *,
    prefix: str | None = None,
) -> int:
    """Rename files of one user to `targets`, by id. Skip files that are gone or were renamed meanwhile, and return the
    number of the others. `prefix`: everything below it moves, with the folders. If the operation merges, a file moved onto a
    file with the same content becomes that file, except with KEEP. Raises NameTaken, NamesChanged."""
    if not files:
        return 0
    user_id = files[0].user_id
    wanted = Counter(targets[file.id] for file in files)
    standing = await queries.files_of_names(connection, user_id, sorted(wanted))
    # If several files want the same name, a file may replace another of them.
    standing += [file for file in files if wanted[targets[file.id]] > 1]
    locked = {file.sha256 for file in standing} if creation.merges or if_exists is IfExists.REPLACE else set[str]()
    if locked:
        await queries.known_blobs(connection, sorted(locked), lock=True)
        locked |= await links.lock_of(connection, standing + (list(files) if creation.merges else []))
    usage = await rows.lock_user(connection, user_id)
    there = {file.id: file for file in await queries.files_by_ids(connection, user_id, [file.id for file in files])}
    moving = [file for file in files if file.id in there and there[file.id].name == file.name]
    await rows.give_up_names(connection, user_id, [file.id for file in moving])
    kept = await leave(connection, user_id, [file.name for file in moving] if prefix is None else [prefix], now)
    names = Names(connection, user_id)
    await names.read(name for file in moving for name in (file.name, targets[file.id]))
    found: dict[str, Found] = {}
    removed = list[File]()
    for file in moving:
        sha256 = file.sha256 if creation.merges and if_exists is not IfExists.KEEP else None
        place = await names.find(targets[file.id], if_exists, sha256)
        if place.same is not None:
            removed.append(file)
            continue
        names.take(place.name, replace(file, name=place.name))
        found[file.id] = place
    removed += [place.replaced for place in found.values() if place.replaced is not None]
    _expect_locked(removed, locked)
    await _delete(connection, removed)
    await rows.set_names(connection, {file_id: place.name for file_id, place in found.items()})
    filled = await fill(connection, names, user_id)
    kept += await _let_go(connection, removed, events.REPLACED)
    more = kept - filled - len(removed)
    more -= await excess(connection, user_id, usage.files, more)
    await rows.add_finished(connection, user_id, -sum(file.size for file in removed), more)
    await tell_all(connection, events.file_deleted, removed, events.REPLACED)
    moved = [replace(file, name=found[file.id].name) for file in moving if file.id in found]
    await _tell_named(connection, creation, moved)
    return len(moving)
