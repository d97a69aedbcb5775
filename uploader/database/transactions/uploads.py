"""Transactions of uploads, from the opening to the end and to the file; and of concatenations. The row of a concatenation is
locked before the rows of uploads.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import delete, insert, select, update

from uploader.database import models, queries
from uploader.database.audit_log import note
from uploader.database.connection import AsyncConnection
from uploader.database.outbox import tell
from uploader.database.transactions import links, rows
from uploader.database.transactions.files import PlaceBlob, Room, add_files, close_by, lock_contents, relocate
from uploader.domain import events
from uploader.domain.audit_log import Act
from uploader.domain.creations import UPLOAD
from uploader.domain.upload import REDIS_WORDS, STATE_OF_REASON, Concatenation, File, IfExists, Reason, State, Upload
from uploader.errors import SizeMismatch, TooManyUploads

_PLANS, _PARTS = models.concatenation.c, models.concatenation_part.c


async def order_concatenation(connection: AsyncConnection, ordered: Concatenation, max_waiting: int) -> None:
    """Store the order of a whole, to join its parts once they are complete. Raises Duplicate (from the engine), NotOpen,
    TooManyUploads."""
    await _lock_parts(connection, ordered)
    await queries.usage(connection, ordered.user_id, lock=True)  # concurrent callers count one after the other
    if await queries.count_waiting_concatenations(connection, ordered.caller) >= max_waiting:
        raise TooManyUploads(limit=max_waiting)
    names = ("id", "user_id", "session", "name", "metadata", "ordered", "parts_sha256", "created_at")
    row = {name: getattr(ordered, name) for name in names} | {"open_flag": 1}
    await connection.execute(insert(models.concatenation).values(**row))
    places = [
        {"concatenation_id": ordered.id, "position": position, "part_id": part_id}
        for position, part_id in enumerate(ordered.part_ids)
    ]
    await connection.execute(insert(models.concatenation_part), places)


async def join_concatenation(
    connection: AsyncConnection,
    whole: Upload,
    expires_at: datetime,
    make_room: Callable[[], Awaitable[object]],
) -> None:
    """Make a whole of its parts, and close the parts. The whole takes over their share of the quota, and needs more only for
    a part that is listed more than once. `make_room` makes the directory of the whole while the rows are locked.

    Raises NotOpen, QuotaExceeded, LinkGone, LinkExhausted, and Duplicate if the parts were joined before.
    """
    ordered = await queries.concatenation_by_id(connection, whole.id, lock=True)
    if ordered is None:
        raise rows.NotOpen(whole.id)
    parts = await _lock_parts(connection, ordered)
    held = sum(part.size for part in parts.values())
    more = whole.size - held
    if sum(parts[part_id].size for part_id in ordered.part_ids) != whole.size:
        raise rows.NotOpen(whole.id)  # a part's length was told after the caller had read it
    await connection.execute(rows.INSERT_UPLOAD, rows.row_of(whole))
    for part in parts.values():
        await rows.close_row(
            connection, part, State.CONSUMED, whole.created_at, close_reason=REDIS_WORDS[State.CONSUMED]
        )
    await links.exchange(connection, whole, len(parts), more, whole.created_at)
    if more:
        await rows.reserve(connection, whole.user_id, more, requested=more)
    flushed = sum(part.flushed_bytes for part in parts.values())
    # The whole replaces its parts, without a check of the limit of files.
    values = {"of_user": whole.user_id, "flushed": flushed, "size": 0, "finished": 0, "more_files": 1 - len(parts)}
    await connection.execute(rows.SETTLE_USER, values)
    await tell(connection, events.upload_created, whole, expires_at)
    await make_room()


async def _lock_parts(connection: AsyncConnection, ordered: Concatenation) -> dict[str, Upload]:
    """Raises NotOpen unless all are open parts of the caller."""
    parts = {}
    for part_id in sorted(set(ordered.part_ids)):
        part = parts[part_id] = await rows.lock_open(connection, part_id)
        if not part.is_part or part.caller != ordered.caller:
            raise rows.NotOpen(part_id)
    return parts


async def settle_concatenation(connection: AsyncConnection, concatenation_id: str) -> None:
    await connection.execute(update(models.concatenation).where(_PLANS.id == concatenation_id).values(open_flag=None))


async def drop_waiting(connection: AsyncConnection, concatenation_id: str) -> bool:
    """Delete a concatenation whose parts are incomplete. Return False if there is none, or if it is an upload already."""
    if await queries.concatenation_by_id(connection, concatenation_id, lock=True) is None:
        return False
    if await queries.upload_by_id(connection, concatenation_id) is not None:
        return False
    await _delete(connection, [concatenation_id])
    return True


async def forget_concatenations(connection: AsyncConnection, upload_ids: list[str]) -> None:
    uploads = select(models.upload.c.id).where(models.upload.c.id.in_(upload_ids))
    kept = set((await connection.execute(uploads)).scalars())
    named = select(_PLANS.id).where(_PLANS.id.in_(upload_ids))
    await _delete(connection, [each for each in (await connection.execute(named)).scalars() if each not in kept])


async def _delete(connection: AsyncConnection, ids: list[str]) -> None:
    if ids:
        await connection.execute(delete(models.concatenation_part).where(_PARTS.concatenation_id.in_(ids)))
        await connection.execute(delete(models.concatenation).where(_PLANS.id.in_(ids)))


class Received(NamedTuple):
    """The total bytes received of an upload, in a generation."""

    upload_id: str
    generation: int
    received: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """The result of a flush. `open_ids`: the uploads that are open in the generation of the batch, and not full. A full
    upload waits for its merge. Redis may still want to flush a full upload, because Redis has not heard of its length."""

    changed: int
    open_ids: frozenset[str]


async def open_upload(
    connection: AsyncConnection, upload: Upload, *, max_open_uploads: int, max_files: int, expires_at: datetime
) -> None:
    """Insert an upload and reserve its size. Raises Duplicate (from the engine), QuotaExceeded, TooManyFiles,
    TooManyUploads, LinkGone, LinkExhausted."""
    await connection.execute(rows.INSERT_UPLOAD, rows.row_of(upload))
    told = upload
    if upload.session:
        told = await links.promise(connection, upload, upload.created_at, more=upload.size, files=1)
    await rows.reserve(connection, upload.user_id, upload.size, requested=upload.size, max_files=max_files)
    # The user's row is locked: concurrent callers count one after the other.
    if await queries.count_open_uploads(connection, upload.caller) > max_open_uploads:
        raise TooManyUploads(limit=max_open_uploads)
    if not upload.is_part:  # parts have no event: their whole has one
        await tell(connection, events.upload_created, told, expires_at)


async def tell_digests(connection: AsyncConnection, upload_id: str, md5: str | None, sha256: str | None) -> Upload:
    """Store the digests that a client claims, unless the upload has claims already; return the upload with its claims.
    Raises NotOpen, Duplicate (from the engine)."""
    upload = await rows.lock_open(connection, upload_id)
    told = replace(upload, md5=upload.md5 or md5, sha256=upload.sha256 or sha256)
    values = {"of_upload": upload_id, "new_md5": told.md5, "new_sha256": told.sha256}
    await connection.execute(rows.TELL_DIGESTS, values)
    return told


async def choose(
    connection: AsyncConnection, upload_id: str, if_exists: IfExists, modified_at: datetime | None
) -> None:
    """Set the upload's choice for a taken name, and the file's time of modification. Raises NotOpen."""
    await rows.lock_open(connection, upload_id)
    await rows.set_upload(connection, upload_id, if_exists=if_exists.value, modified_at=modified_at)


class LengthTold(rows.NotOpen):
    """The length of the upload was told meanwhile: the caller's copy of the upload is out of date."""


async def grow(connection: AsyncConnection, upload_id: str, end: int, step: int, limit: int, now: datetime) -> Upload:
    """Reserve more bytes for an upload of deferred length, enough for `end` bytes in all. Reserve up to `step` bytes in
    advance, but at most half of the user's available space, and not beyond `limit` bytes in all. Raises NotOpen, LengthTold,
    QuotaExceeded."""
    upload = await rows.lock_open(connection, upload_id)
    if upload.length_known:
        raise LengthTold(upload_id)
    wanted = end - upload.size
    if wanted <= 0:
        return upload
    spare = 0
    if not upload.session:  # a visitor would learn how much space the owner has left
        usage = await queries.usage(connection, upload.user_id, lock=True)
        spare = 0 if usage is None else usage.available // 2
    return await _reserve(connection, upload, max(wanted, min(step, spare, limit - upload.size)), wanted, now)


async def tell_length(connection: AsyncConnection, upload_id: str, length: int, stored: int, now: datetime) -> Upload:
    """Set the size of an upload to the length that its client told, at least the `stored` bytes. Give back the bytes
    reserved beyond. The caller holds the locks of the upload. Raises NotOpen, SizeMismatch, QuotaExceeded."""
    upload = await rows.lock_open(connection, upload_id)
    if upload.length_known and upload.size != length:
        raise SizeMismatch("The length of this upload was told before, and is another one.", size=upload.size)
    if length < stored:
        raise SizeMismatch("More bytes are there than the length that is told.", size=stored)
    if upload.length_known:
        return upload
    more = length - upload.size
    return await _reserve(connection, replace(upload, length_known=True), more, more, now)


async def _reserve(connection: AsyncConnection, upload: Upload, more: int, wanted: int, now: datetime) -> Upload:
    """Raises QuotaExceeded, LinkGone, LinkExhausted."""
    if more > 0:
        await links.promise(connection, upload, now, more=more, files=0)
        await rows.reserve(connection, upload.user_id, more, requested=wanted)
    if more < 0:
        await links.give_back_bytes(connection, upload, -more)
        await rows.changed(connection, rows.RELEASE, of_user=upload.user_id, less=-more)
    grown = replace(upload, size=upload.size + more, updated_at=now)
    values = {"new_size": grown.size, "new_length_known": grown.length_known, "new_updated_at": now}
    await connection.execute(rows.RESIZE_UPLOAD, values | {"of_upload": upload.id})
    return grown


async def flush(connection: AsyncConnection, batch: Sequence[Received], now: datetime) -> Flushed:
    """Write the absolute figures of a batch. A repeated batch, a late worker and an old generation change nothing."""
    newest = {item.upload_id: item for item in batch}
    changes: list[Received] = []
    added: dict[str, int] = {}
    open_ids = []
    for upload_id, user_id, flushed_generation, flushed_bytes, length in await rows.lock_batch(connection, newest):
        item = newest[upload_id]
        if item.generation >= flushed_generation and item.received != length:
            open_ids.append(upload_id)
        if (item.generation, item.received) <= (flushed_generation, flushed_bytes):
            continue
        changes.append(item)
        added[user_id] = added.get(user_id, 0) + item.received - flushed_bytes
    if not changes:
        return Flushed(0, frozenset(open_ids))
    await rows.set_flushed(connection, changes, now)
    await rows.add_unfinished(connection, added)
    return Flushed(len(changes), frozenset(open_ids))


async def close_upload(
    connection: AsyncConnection, upload_id: str, reason: Reason, now: datetime, act: Act | None = None
) -> Upload:
    """End an upload without a file, and give back its share of the quota, by the row's own figures. Raises NotOpen.

    The closed row leaves the unique key of the MD5, so the same content can be opened anew.
    """
    upload = await rows.lock_open(connection, upload_id)
    await rows.close_row(connection, upload, STATE_OF_REASON[reason], now, close_reason=reason.value)
    upload = await links.give_back(connection, upload)
    await rows.settle_user(connection, upload, finished=0, files=0)
    if not upload.is_part:
        await tell(connection, events.upload_closed, upload, reason)
    await note(connection, act, name=upload.name, size=upload.size)
    return upload


async def withdraw(connection: AsyncConnection, upload_id: str, received: int, now: datetime) -> int:
    """Begin a new generation after chunks went bad, with `received` bytes left; return its number. Raises NotOpen.

    From now on each flush and ack of the old generation changes nothing, so the accounted bytes can go down.
    """
    upload = await rows.lock_open(connection, upload_id)
    flushed = min(upload.flushed_bytes, received)
    generation = upload.generation + 1
    values = {"generation": generation, "flushed_generation": generation, "flushed_bytes": flushed}
    await rows.set_upload(connection, upload_id, **values, updated_at=now)
    less = {"flushed": upload.flushed_bytes - flushed, "size": 0, "finished": 0, "more_files": 0}
    await connection.execute(rows.SETTLE_USER, less | {"of_user": upload.user_id})
    return generation


async def merge(
    connection: AsyncConnection,
    *,
    upload_id: str,
    file_id: str,
    md5: str | None,
    sha256: str,
    place_blob: PlaceBlob,
    now: datetime,
    came_at: datetime | None = None,
) -> File:
    """Turn an upload into a file. `md5`: None if nobody computed it; the file then gets the MD5 of the blob. `came_at`: the
    moment since which the bytes are there, by default now.

    Raises NotOpen, NameTaken, LinkGone, Duplicate, and ClaimsChanged if a client claimed other digests during the
    computation.
    """
    upload = await rows.lock_open(connection, upload_id)
    if upload.md5 not in (None, md5) or upload.sha256 not in (None, sha256):
        raise rows.ClaimsChanged(upload_id)
    file = File(
        id=file_id,
        user_id=upload.user_id,
        session=upload.session,
        md5=md5,
        sha256=sha256,
        name=upload.name,
        size=upload.size,
        instant=False,
        created_at=now,
        modified_at=upload.modified_at,
    )
    locked = await lock_contents(connection, [file], upload.if_exists, came_at or now)
    if md5 is None:
        file = replace(file, md5=await queries.md5_of(connection, sha256))
    if (location := await place_blob()) is not None:
        await relocate(connection, {sha256: location}, now)
    changes = await add_files(connection, [file], upload.if_exists, locked, room=Room(closed=upload), creation=UPLOAD)
    added = changes.only()
    await close_by(connection, upload, added, now)
    await links.give_back(connection, upload, changes.made)
    await rows.settle_user(connection, upload, finished=changes.finished_bytes, files=changes.more_files)
    return added.file


async def purge_uploads(connection: AsyncConnection, upload_ids: list[str]) -> int:
    table = models.upload.c
    forget = delete(models.upload).where(table.id.in_(upload_ids), table.open_flag.is_(None))
    forgotten = await rows.changed(connection, forget)
    await forget_concatenations(connection, upload_ids)
    return forgotten


async def forget_metadata(connection: AsyncConnection, upload_id: str) -> None:
    await rows.set_upload(connection, upload_id, metadata=None)
