"""The transactions of files and of their contents: what comes at once, without chunks, and what users do with one file
or with many.

What is done to the bytes of a content is done while nobody else has its row.
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
# Makes bytes the blob while its row is locked, and returns where they are now, if the store has locations.
PlaceBlob = Callable[[], Awaitable[str | None]]
# Of those with these SHA-256s, by SHA-256.
PlaceBlobs = Callable[[Collection[str]], Awaitable[Mapping[str, str]]]


async def relocate(connection: AsyncConnection, locations: Mapping[str, str], now: datetime) -> None:
    """Say where contents lie from now on, by SHA-256; the caller has their rows locked. Where they were before is put away.
    None of a store that has no locations."""
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
    # The last of it: see `_put_away` of the ledger.
    await connection.execute(rows.BRING_BACK, {"keys": sorted(locations.values())})


async def _put_away(connection: AsyncConnection, left: Sequence[tuple[str, int, str]], now: datetime) -> None:
    """`left`: contents, their sizes, and the keys at which they do not lie any more."""
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
    """Remove a blob without refs, its bytes before the commit: a row without bytes is mended by the next merge, bytes
    without a row by nobody. False if it is in use or gone. One that has a location is put away by a row instead, without
    `prepare` and `remove`.

    `prepare` makes durable that it has no refs. If the database crashed meanwhile, this connection is gone and the
    statement after it fails.
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
    """Let `work` change the bytes of a content; it is given their row, or None if they have none.

    Then there is no row to lock, and READ COMMITTED locks no gap. So one is inserted that nobody ever sees: a merge of
    this content waits for it, and then places its own bytes. Raises Duplicate (from the engine) if one came at this
    moment.
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
    """Note what reading a blob back found. The caller has its row locked. `restored`: it was bad, known or not, and
    other bytes are in its place now. `reread_at`: when it is tried again, if it may get well by itself."""
    kind = EventType.CONTENT_DAMAGED if damaged else EventType.CONTENT_HEALED
    before = await queries.blob_by_sha256(connection, sha256) if listens(connection, kind) else None
    await _note_reading(connection, sha256, damaged=damaged, scrubbed_at=now, reread_at=reread_at)
    if md5 is not None:
        await rows.fill_md5s(connection, {sha256: md5})
    if before is not None and (restored or damaged != before.damaged):
        await rows.tell_of_content(connection, kind, sha256)


async def note_unreadable(connection: AsyncConnection, sha256: str, now: datetime, reread_at: datetime) -> None:
    """Note that a blob could not be read, which says nothing of its bytes."""
    await _note_reading(connection, sha256, scrubbed_at=now, reread_at=reread_at)


async def _note_reading(connection: AsyncConnection, sha256: str, **found: object) -> None:
    await connection.execute(update(models.blob).where(models.blob.c.sha256 == sha256).values(**found))


class NamesChanged(Duplicate):
    """A name was taken, or given up, by a file whose content is not locked."""


@dataclass(frozen=True, slots=True)
class Added:
    """A file that was made, or that is the same and was there already."""

    file: File
    is_new: bool


# What became of a file that was to be made.
Refusal = NameTaken | QuotaExceeded | TooManyFiles | LinkExhausted
Verdict = Added | Refusal


@dataclass(frozen=True, slots=True)
class Room:
    """The bounds of a user's account, beyond the quota in it, and an open upload that is closed by a file."""

    max_files: int = 0
    closed: Upload | None = None

    def refusal(
        self, creation: Creation, usage: Usage, more_bytes: int, more_files: int, size: int
    ) -> QuotaExceeded | TooManyFiles | None:
        freed_bytes, freed_files = (0, 0) if self.closed is None else (self.closed.size, 1)
        # What replaces more than it takes is let in, also where an administrator lowered the total below what is used.
        is_less = more_bytes <= 0 < size
        if creation.counts_bytes and not is_less and not usage.fits(more_bytes - freed_bytes):
            return QuotaExceeded(**usage.figures(size))
        if creation.counts_files and not usage.takes_files(more_files - freed_files, self.max_files):
            return TooManyFiles(limit=self.max_files)
        return None


@dataclass(slots=True)
class Changes:
    """The decisions on files that are to be made, each after those before it, and the changes that follow."""

    names: Names
    if_exists: IfExists
    # Without those files in the trash that give way.
    usage: Usage
    room: Room
    creation: Creation
    # By which they come.
    link: Link | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    # To be added to `use_space_finished`.
    finished_bytes: int = 0
    made: list[File] = field(default_factory=list)
    removed: list[File] = field(default_factory=list)
    # Of contents, how many refs are too many, without those of the files that are removed.
    dropped: Counter[str] = field(default_factory=Counter)
    # How many more files are in the trash.
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
        # What a gate holds replaces nothing before it passes.
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
        """Find the same file of the same caller, which waits for a gate."""
        if not file.held or self.are_in_trash:
            return None
        name = file.asked_name if file.session else file.name
        connection = self.names.connection
        same = await queries.newest_held(connection, file.caller, sha256=file.sha256, name=name)
        return None if same is None else Found(same.name, same=same)

    async def _place(self, file: File, sha256: str | None) -> Found:
        """Find a name. A visitor's file whose name has no number left, or no room for one, is called by its id in the folder
        of the link: a refusal would tell of that folder. Raises NameTaken."""
        try:
            return await self.names.find(file.name, self.if_exists, sha256)
        except NameTaken:
            if self.link is None:
                raise
            return await self.names.find(self.link.name + file.id, IfExists.KEEP)

    async def _sent_before(self, file: File) -> Found | None:
        """Find the file that the same visitor has sent under the name that is asked for: nobody else's is theirs."""
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
    """Lock the contents of files that are to be made, and of those that they may replace, with the links by which the latter
    came; count a ref for each of the former. Returns SHA-256s and ids of links.

    Names are read before anything is locked. Then all contents concerned are locked, in the order of their SHA-256; then
    the links; then the user's row; and then (`add_files`) the names are read again, and decided on. A file that came by
    meanwhile, whose content is not locked, has the whole transaction run again.

    `brings_bytes`: the caller places them; without, raises BlobLost where there are none. Raises NameTaken for a single
    file that is sure to be refused, so that its bytes are not placed for nothing.
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
    """Make files of one user and of different names, after `lock_contents`; the caller accounts for `finished_bytes` and
    `more_files`. `passed`: the ids of those that no gate holds. Raises NamesChanged, LinkGone, BlobLost if the user's row
    has gone. What comes by a link has its name below the folder of that.
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
    # An upload that is closed by this is a file less.
    closed = int(room.closed is not None)
    stored = usage.files + changes.usage.files - spared.files  # without the folders that gave way
    changes.trashed -= await excess(connection, user_id, stored, changes.more_files - closed)
    return changes


async def close_by(
    connection: AsyncConnection, upload: Upload, added: Added, now: datetime, *, is_superseded: bool = False
) -> None:
    """End an upload in a file; `is_superseded`: its bytes came in another way."""
    reason = SUPERSEDED if is_superseded else None
    file = added.file
    await rows.close_row(connection, upload, State.DONE, now, close_reason=reason, file_id=file.id, md5=file.md5)
    if not added.is_new and not file.held:
        await tell(connection, events.file_finished, added.file)


def _expect_locked(removed: Sequence[File], locked: set[str]) -> None:
    """Raises NamesChanged for a file whose content, or the link by which the file came, is not locked."""
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
    """Tell of files that got names, if an event tells of the operation."""
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
    """Give a user a file of bytes that came whole, or, without `place_blob`, of content that is there already. `is_proven`:
    that they hold it, so what gates said of it before counts.

    An open upload of the same content is closed as done in the same transaction and its reservation exchanged, so that
    it fits at the edge of the quota. Raises NotOpen, QuotaExceeded, TooManyFiles, NameTaken, Duplicate, and BlobLost if
    the blob of an instant file has no refs (any more).
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
    """Add files of one user and of different names, of bytes that came whole. None: an upload of this MD5 is open, and
    closing one is not for here.

    `place_blobs` is given SHA-256s whose rows are locked, and returns by SHA-256 where the bytes are now, if the store
    has locations. Those that are refused leave a blob without refs, for the collector. Raises Duplicate, BlobLost.
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
    except NameTaken as error:  # of the only one: nothing is written yet
        return [error]
    await relocate(connection, await place_blobs({file.sha256 for file in files}), files[0].created_at)
    changes = await add_files(connection, files, if_exists, locked, room=room, creation=FILE)
    if files[0].session:
        await links.add(connection, files[0].caller, changes.made)
    await rows.add_finished(connection, files[0].user_id, changes.finished_bytes, changes.more_files)
    return changes.verdicts


async def delete_file(connection: AsyncConnection, file: File, now: datetime) -> bool:
    """Delete a file that was read before; False if somebody else was faster. The blob stays, perhaps without refs."""
    delete = delete_held if file.held else delete_files
    return await delete(connection, [file], now) == 1


async def remove_file(connection: AsyncConnection, file: File, now: datetime, act: Act) -> bool:
    """Delete a file that was read before, as an administrator; False if somebody else was faster."""
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
    """Delete files of one user that were read before; return how many were still there. Their blobs stay, perhaps
    without refs. `reason`: if not that the user wanted it. `left`: the prefix that all of them go with; without it, the
    folders stay in which they were."""
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
    """Delete files of one user that gates hold, and end the tasks of these; return how many were still there. Nobody is
    told: nobody knows of them. `reason`: if not that the user wanted it; `detail`: why, if a gate refused them."""
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
    """Give a file that its gates held the name that it asked for, or a number of that where it is taken and is not to be
    replaced; `locked`: the contents whose rows are. Raises NamesChanged, BlobLost."""
    await rows.take_held(connection, held.id, now)
    usage, names = await rows.lock_user(connection, held.user_id), Names(connection, held.user_id)
    # Of a visitor's the folder of the link: the name follows that folder.
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
    """Find a name for a file that nobody can be asked about any more; None: no number of it is left."""
    with suppress(NameTaken):
        if if_exists is IfExists.REPLACE:
            return await names.find(name, if_exists)
    with suppress(NameTaken):
        return await names.find(name, PASS.if_exists)
    return None


def _name_below(link: Link, name: str, file_id: str) -> str:
    """Return the name of a visitor's file for its owner. Only uploads that an earlier version opened have too long names."""
    full = link.name + name
    return full if len(full.encode()) <= MAX_NAME_BYTES else link.name + file_id


async def _delete(connection: AsyncConnection, files: Sequence[File]) -> None:
    """Delete files that were read under the lock of their user's row."""
    if files:
        await connection.execute(rows.DELETE_FILE, [{"removed": file.id} for file in files])


async def _let_go(
    connection: AsyncConnection,
    gone: Sequence[File],
    reason: str | None,
    dropped: Mapping[str, int] | None = None,
    detail: str | None = None,
) -> int:
    """Drop the refs of files that their owner has no more, with others that are too many; give the room of the files back to
    the links by which they came; put them into the trash, and return how many are there now."""
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
    """Rename files of one user that were read before, by their ids; those that went, or were renamed, meanwhile are passed
    over. Return how many files were renamed. `prefix`: all below it moves, and its folders with it. Where the operation
    merges, one that has the name of another one of the same content becomes that, unless both are to be kept. Raises
    NameTaken, NamesChanged."""
    if not files:
        return 0
    user_id = files[0].user_id
    wanted = Counter(targets[file.id] for file in files)
    standing = await queries.files_of_names(connection, user_id, sorted(wanted))
    # Of several that want one name, one may take the place of another.
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
