"""The transactions of files and of their contents: what comes at once, without chunks, and what users do with one file
or with many.

What is done to the bytes of a content is done while nobody else has its row.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

from sqlalchemy import bindparam, delete, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.crashpoints import crash_point
from uploader.database import models, queries
from uploader.database.engine import Duplicate
from uploader.database.outbox import listens, tell, tell_all
from uploader.database.transactions import rows
from uploader.domain import events
from uploader.domain.events import EventType
from uploader.domain.upload import SUPERSEDED, File, IfExists, State, Upload, Usage
from uploader.errors import NameTaken, QuotaExceeded, TooManyFiles

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
    """A name was taken by a file whose content is not locked."""


@dataclass(frozen=True, slots=True)
class Added:
    """A file that was made, or that is the same and was there already."""

    file: File
    is_new: bool


# What became of a file that was to be made.
Refusal = NameTaken | QuotaExceeded | TooManyFiles
Verdict = Added | Refusal


@dataclass(frozen=True, slots=True)
class Room:
    """The bounds of a user's account, beyond the quota in it, and an open upload that is closed by a file."""

    max_files: int
    closed: Upload | None = None

    def refusal(self, usage: Usage, more_bytes: int, more_files: int, size: int) -> QuotaExceeded | TooManyFiles | None:
        freed_bytes, freed_files = (0, 0) if self.closed is None else (self.closed.size, 1)
        # What replaces more than it takes is let in, also where an administrator lowered the total below what is used.
        if not usage.fits(more_bytes - freed_bytes) and not more_bytes <= 0 < size:
            return QuotaExceeded(**usage.figures(size))
        if not usage.takes_files(more_files - freed_files, self.max_files):
            return TooManyFiles(limit=self.max_files)
        return None


@dataclass(slots=True)
class Changes:
    """The decisions on files that are to be made, each after those before it, and the changes that follow."""

    if_exists: IfExists
    # By name, the files there are.
    standing: dict[str, list[File]]
    # None if all that is needed was reserved.
    room: Room | None
    usage: Usage | None
    verdicts: list[Verdict] = field(default_factory=list)
    # To be added to `use_space_finished`.
    finished_bytes: int = 0
    made: list[File] = field(default_factory=list)
    removed: list[File] = field(default_factory=list)
    # Of contents, how many refs are too many.
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def more_files(self) -> int:
        return len(self.made) - len(self.removed)

    def only(self) -> Added:
        """Raises NameTaken, QuotaExceeded, TooManyFiles."""
        (verdict,) = self.verdicts
        if isinstance(verdict, Added):
            return verdict
        raise verdict

    def decide(self, file: File) -> None:
        of_name = self.standing[file.name]
        same = next((other for other in of_name if other.sha256 == file.sha256), None)
        replaced = [other for other in of_name if other is not same] if self.if_exists is IfExists.REPLACE else []
        more = (0 if same else file.size) - sum(other.size for other in replaced)
        refusal = None if same else self._refusal(file, of_name, more, 1 - len(replaced))
        if same or refusal:
            self.dropped[file.sha256] += 1
        if refusal:
            self.verdicts.append(refusal)
            return
        for other in replaced:
            self.dropped[other.sha256] += 1
        self.removed += replaced
        if same is None:
            self.made.append(file)
        self.finished_bytes += more
        self.verdicts.append(Added(same or file, is_new=same is None))

    def _refusal(self, file: File, of_name: Sequence[File], more: int, more_files: int) -> Refusal | None:
        try:
            _refuse_taken(file, of_name, self.if_exists)
        except NameTaken as error:
            return error
        if self.room is None or self.usage is None:
            return None
        finished, files = self.usage.use_space_finished + self.finished_bytes, self.usage.files + self.more_files
        usage = replace(self.usage, use_space_finished=finished, files=files)
        return self.room.refusal(usage, more, more_files, file.size)


async def lock_contents(
    connection: AsyncConnection, files: Sequence[File], if_exists: IfExists, now: datetime, *, brings_bytes: bool = True
) -> set[str]:
    """Lock the contents of files that are to be made, and of those that they may replace; count a ref for each of the
    former.

    Names are read before anything is locked. Then all contents concerned are locked, in the order of their SHA-256; then
    the user's row, if a name or the quota is to be decided on; and then (`add_files`) the names are read again. A file
    that came by meanwhile, whose content is not locked, has the whole transaction run again.

    `brings_bytes`: the caller places them; without, raises BlobLost where there are none. Raises NameTaken for a single
    file that is sure to be refused, so that its bytes are not placed for nothing.
    """
    own = sorted(file.sha256 for file in files)
    locked = set(own)
    if if_exists is not IfExists.KEEP:
        standing = await _read_names(connection, files, if_exists)
        if len(files) == 1:
            _refuse_taken(files[0], standing[files[0].name], if_exists)
        if if_exists is IfExists.REPLACE:
            locked.update(other.sha256 for others in standing.values() for other in others)
    if len(locked) > len(set(own)):
        await queries.known_blobs(connection, sorted(locked), lock=True)
    if brings_bytes:
        by_content = {file.sha256: file for file in files}
        await rows.add_refs(connection, [by_content[sha256] for sha256 in own], now)
        return locked
    for sha256 in own:
        if await rows.changed(connection, rows.TAKE_REF, taken=sha256) == 0:
            raise rows.BlobLost(sha256)
    return locked


async def add_files(
    connection: AsyncConnection,
    files: Sequence[File],
    if_exists: IfExists,
    locked: set[str],
    *,
    room: Room | None,
) -> Changes:
    """Make files of one user and of different names, after `lock_contents`; the caller accounts for `finished_bytes` and
    `more_files`. `room`: None if all that is needed was reserved. Raises NamesChanged, BlobLost if the user's row has
    gone.
    """
    usage = None
    if room is not None or if_exists is not IfExists.KEEP:
        usage = await queries.usage(connection, files[0].user_id, lock=True)
        if usage is None:
            raise rows.BlobLost(files[0].user_id)
    standing = await _read_names(connection, files, if_exists)
    changes = Changes(if_exists, standing, room, usage)
    for file in files:
        changes.decide(file)
    if not {file.sha256 for file in changes.removed} <= locked:
        raise NamesChanged
    await _carry_out(connection, changes)
    return changes


async def close_by(
    connection: AsyncConnection, upload: Upload, added: Added, now: datetime, *, is_superseded: bool = False
) -> None:
    """End an upload in a file; `is_superseded`: its bytes came in another way."""
    reason = SUPERSEDED if is_superseded else None
    file = added.file
    await rows.close_row(connection, upload, State.DONE, now, close_reason=reason, file_id=file.id, md5=file.md5)
    if not added.is_new:
        await tell(connection, events.file_finished, added.file)


def _refuse_taken(file: File, of_name: Sequence[File], if_exists: IfExists) -> None:
    """Raises NameTaken. The same content is no other file."""
    if if_exists is IfExists.FAIL and of_name and all(other.sha256 != file.sha256 for other in of_name):
        raise NameTaken("You have another file of this name.")


async def _carry_out(connection: AsyncConnection, changes: Changes) -> None:
    if changes.made:
        await rows.insert_files(connection, changes.made)
    for file in sorted(changes.removed, key=lambda file: file.id):
        if not await _is_deleted(connection, file):
            raise NamesChanged
    await _drop_refs(connection, changes.dropped)
    await tell_all(connection, events.file_finished, changes.made)
    await tell_all(connection, events.file_deleted, changes.removed, events.REPLACED)


async def _read_names(connection: AsyncConnection, files: Sequence[File], if_exists: IfExists) -> dict[str, list[File]]:
    """Read, by name, the files that could be replaced or in the way, and always those that are the same."""
    user_id = files[0].user_id
    if if_exists is not IfExists.KEEP:
        found = await queries.files_of_names(connection, user_id, sorted({file.name for file in files}))
    elif len(files) == 1:
        same = await queries.file_by_content(connection, user_id, files[0].sha256, files[0].name)
        found = [] if same is None else [same]
    else:
        equals = sorted({(file.sha256, file.name) for file in files})
        found = await queries.files_by_contents(connection, user_id, equals)
    standing: dict[str, list[File]] = defaultdict(list)
    for file in found:
        standing[file.name].append(file)
    return standing


async def add_file(
    connection: AsyncConnection,
    file: File,
    if_exists: IfExists,
    replaced_upload_id: str | None,
    place_blob: PlaceBlob | None = None,
    *,
    max_files: int,
) -> Added:
    """Give a user a file of bytes that came whole, or, without `place_blob`, of content that is there already.

    An open upload of the same content is closed as done in the same transaction and its reservation exchanged, so that
    it fits at the edge of the quota. Raises NotOpen, QuotaExceeded, TooManyFiles, NameTaken, Duplicate, and BlobLost if
    the blob of an instant file has no refs (any more).
    """
    replaced = None if replaced_upload_id is None else await rows.lock_open(connection, replaced_upload_id)
    is_whole = place_blob is not None
    locked = await lock_contents(connection, [file], if_exists, file.created_at, brings_bytes=is_whole)
    if place_blob is not None and (location := await place_blob()) is not None:
        await relocate(connection, {file.sha256: location}, file.created_at)
    changes = await add_files(connection, [file], if_exists, locked, room=Room(max_files, replaced))
    added = changes.only()
    if replaced is None:
        await rows.add_finished(connection, file.user_id, changes.finished_bytes, changes.more_files)
    else:
        await close_by(connection, replaced, added, file.created_at, is_superseded=True)
        await rows.settle_user(connection, replaced, finished=changes.finished_bytes, files=changes.more_files)
    return added


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
    user_id, md5s = files[0].user_id, sorted({file.md5 for file in files if file.md5 is not None})
    uploads: Collection[str]
    if len(md5s) > 1:
        uploads = await queries.open_md5s(connection, user_id, md5s)
    else:
        uploads = [] if await queries.open_upload_by_md5(connection, user_id, md5s[0]) is None else md5s
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
    changes = await add_files(connection, files, if_exists, locked, room=room)
    await rows.add_finished(connection, files[0].user_id, changes.finished_bytes, changes.more_files)
    return changes.verdicts


async def rename_file(connection: AsyncConnection, user_id: str, file_id: str, name: str) -> bool:
    """Return whether there is such a file. Raises Duplicate (from the engine) if the same content has this name
    already."""
    table = models.file.c
    rename = update(models.file).where(table.id == file_id, table.user_id == user_id).values(name=name)
    return await rows.changed(connection, rename) == 1


async def delete_file(connection: AsyncConnection, file: File) -> bool:
    """Delete a file that was read before; False if somebody else was faster. The blob stays, perhaps without refs."""
    await connection.execute(rows.LOCK_BLOB, {"of_blob": file.sha256})
    if await rows.changed(connection, rows.DELETE_FILE, removed=file.id) == 0:
        return False
    await connection.execute(rows.DROP_REFS, {"dropped": file.sha256, "fewer": 1})
    await rows.add_finished(connection, file.user_id, -file.size, -1)
    await tell(connection, events.file_deleted, file)
    return True


_FILES = models.file.c
_RENAME = (
    update(models.file)
    .where(_FILES.id == bindparam("renamed"), _FILES.name == bindparam("former"))
    .values(name=bindparam("new_name"))
)


async def delete_files(connection: AsyncConnection, files: Sequence[File], reason: str | None = None) -> int:
    """Delete files of one user that were read before; return how many were still there. Their blobs stay, perhaps
    without refs. `reason`: if not that the user wanted it."""
    if not files:
        return 0
    await queries.known_blobs(connection, sorted({file.sha256 for file in files}), lock=True)
    gone = [file for file in files if await _is_deleted(connection, file)]
    if gone:
        await _drop_refs(connection, Counter(file.sha256 for file in gone))
        await rows.add_finished(connection, gone[0].user_id, -sum(file.size for file in gone), -len(gone))
        await tell_all(connection, events.file_deleted, gone, reason)
    return len(gone)


async def _is_deleted(connection: AsyncConnection, file: File) -> bool:
    """Delete a file, unless it went, or was renamed, meanwhile."""
    return await rows.changed(connection, rows.DELETE_NAMED_FILE, removed=file.id, of_name=file.name) == 1


async def _drop_refs(connection: AsyncConnection, fewer: Mapping[str, int]) -> None:
    if fewer:
        values = [{"dropped": sha256, "fewer": refs} for sha256, refs in sorted(fewer.items())]
        await connection.execute(rows.DROP_REFS, values)


async def move_files(connection: AsyncConnection, files: Sequence[File], names: Mapping[str, str]) -> int:
    """Rename files of one user that were read before, one after the other; return how many were still there.

    A file whose content has the new name already goes: it would be a twin, unless that one is to be moved itself, which
    then has to come first. Raises Duplicate (from the engine) if one came at this moment.
    """
    equals = [(file.sha256, names[file.id]) for file in files]
    there = await queries.files_by_contents(connection, files[0].user_id, equals)
    taken = {(file.sha256, file.name) for file in there if file.id not in names}
    twins = [file for file in files if (file.sha256, names[file.id]) in taken]
    moved = await delete_files(connection, twins, events.REPLACED)
    for file in files:
        if file not in twins:
            values = {"renamed": file.id, "former": file.name, "new_name": names[file.id]}
            moved += await rows.changed(connection, _RENAME, **values)
    return moved
