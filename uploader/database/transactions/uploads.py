"""The transactions, one function each: every change of uploads, files and blobs, and of the accounts by them.

Rows are locked in one order everywhere: upload, blob, file, user. Each function runs inside `Database.transact`, so it
may be run again from its start; what it raises rolls everything back.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, cast

from sqlalchemy import CursorResult, Executable, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.crashpoints import crash_point
from uploader.database import models, queries
from uploader.database.transactions import batches, statements
from uploader.domain.upload import STATE_OF_REASON, TRANSITIONS, File, Reason, State, Upload
from uploader.errors import QuotaExceeded, TooManyUploads


class NotOpen(Exception):
    """The upload was closed meanwhile."""


class ClaimsChanged(Exception):
    """The digests that the client claims are not those that are about to be stored."""


class BlobLost(Exception):
    """The blob was on its way out, or the row had gone, when it was to be used."""


class Received(NamedTuple):
    """What a flush writes: the absolute bytes received of an upload in a generation."""

    upload_id: str
    generation: int
    received: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """How many rows a flush changed, and which uploads of the batch are open, in the generation that the batch knows."""

    changed: int
    open_ids: frozenset[str]


async def changed(connection: AsyncConnection, statement: Executable, **values: object) -> int:
    """Execute a statement that changes rows; returns how many it found."""
    result = await connection.execute(statement, values)
    return int(cast("CursorResult[Any]", result).rowcount)


# Uploads


async def open_upload(connection: AsyncConnection, upload: Upload, *, max_open_uploads: int) -> None:
    """Insert an upload and reserve its size. Raises Duplicate (from the engine), QuotaExceeded, TooManyUploads."""
    values = {name: getattr(upload, name) for name in Upload.__dataclass_fields__}
    values[queries.PLACE_COLUMN] = values.pop("place")
    await connection.execute(statements.INSERT_UPLOAD, values | {"open_flag": 1})
    if await changed(connection, statements.RESERVE, of_user=upload.user_id, more=upload.size) == 0:
        raise await _quota_refusal(connection, upload.user_id, upload.size)
    # The user's row is locked by now, so racing callers count one after the other.
    if await queries.count_open_uploads(connection, upload.user_id) > max_open_uploads:
        raise TooManyUploads(limit=max_open_uploads)


async def _quota_refusal(connection: AsyncConnection, user_id: str, requested: int) -> QuotaExceeded:
    usage = await queries.usage(connection, user_id)
    if usage is None:
        raise BlobLost(user_id)
    return QuotaExceeded(
        total_space=usage.total_space,
        use_space_finished=usage.use_space_finished,
        use_space_unfinished=usage.use_space_unfinished,
        reserved=usage.reserved,
        requested=requested,
    )


async def tell_digests(connection: AsyncConnection, upload_id: str, md5: str | None, sha256: str | None) -> Upload:
    """Store the digests a client claims, where none were claimed before. Raises NotOpen, Duplicate (from the engine).

    Returns the row as it is now; what it holds was claimed first and stands.
    """
    upload = await queries.upload_by_id(connection, upload_id, lock=True)
    if upload is None or upload.state is not State.OPEN:
        raise NotOpen(upload_id)
    values = {}
    if md5 is not None and upload.md5 is None:
        values["md5"] = md5
    if sha256 is not None and upload.sha256 is None:
        values["sha256"] = sha256
    if values:
        await connection.execute(update(models.upload).where(models.upload.c.id == upload_id).values(**values))
    told = await queries.upload_by_id(connection, upload_id)
    assert told is not None
    return told


async def flush(connection: AsyncConnection, batch: Sequence[Received], now: datetime) -> Flushed:
    """Write the absolute bytes received of a batch of uploads, and the differences to their users' accounts.

    A replay, a late worker and a stale generation change nothing.
    """
    newest = {item.upload_id: item for item in batch}
    table = models.upload.c
    query = (
        select(table.id, table.user_id, table.flushed_generation, table.flushed_bytes)
        .where(table.id.in_(sorted(newest)), table.state == State.OPEN.value)
        .order_by(table.id)
        .with_for_update()
    )
    rows = (await connection.execute(query)).all()
    changes: list[Received] = []
    added: dict[str, int] = {}
    open_ids = []
    for upload_id, user_id, flushed_generation, flushed_bytes in rows:
        item = newest[upload_id]
        if item.generation >= flushed_generation:
            open_ids.append(upload_id)
        if (item.generation, item.received) <= (flushed_generation, flushed_bytes):
            continue
        changes.append(item)
        added[user_id] = added.get(user_id, 0) + item.received - flushed_bytes
    if not changes:
        return Flushed(0, frozenset(open_ids))
    await batches.set_flushed(connection, changes, now)
    await batches.add_unfinished(connection, added)
    return Flushed(len(changes), frozenset(open_ids))


async def close_upload(connection: AsyncConnection, upload_id: str, reason: Reason, now: datetime) -> Upload:
    """End an upload without a file: what it held in the quota is given back, by the row's own figures. Raises NotOpen.

    The row is left without its MD5's uniqueness, so the same content can be opened anew.
    """
    upload = await lock_open(connection, upload_id)
    await _close_row(connection, upload, STATE_OF_REASON[reason], now, close_reason=reason.value)
    await _settle_user(connection, upload, finished=0)
    return upload


async def withdraw(connection: AsyncConnection, upload_id: str, received: int, now: datetime) -> None:
    """Mint a new generation, because of chunks that went bad `received` bytes are left. Raises NotOpen.

    From here on every flush and ack of the old generation is a no-op, so what was accounted can go down.
    """
    upload = await lock_open(connection, upload_id)
    flushed = min(upload.flushed_bytes, received)
    generation = upload.generation + 1
    await connection.execute(
        update(models.upload)
        .where(models.upload.c.id == upload_id)
        .values(generation=generation, flushed_generation=generation, flushed_bytes=flushed, updated_at=now)
    )
    users = models.user_info.c
    await connection.execute(
        update(models.user_info)
        .where(users.user_id == upload.user_id)
        .values(use_space_unfinished=users.use_space_unfinished - (upload.flushed_bytes - flushed))
    )


async def lock_open(connection: AsyncConnection, upload_id: str) -> Upload:
    """An open upload, its row locked. Raises NotOpen."""
    upload = await queries.upload_by_id(connection, upload_id, lock=True)
    if upload is None or upload.state is not State.OPEN:
        raise NotOpen(upload_id)
    return upload


async def _close_row(
    connection: AsyncConnection,
    upload: Upload,
    state: State,
    now: datetime,
    *,
    close_reason: str | None = None,
    file_id: str | None = None,
    md5: str | None = None,
) -> None:
    assert state in TRANSITIONS[upload.state], (upload.state, state)
    values = {
        "of_upload": upload.id,
        "new_state": state.value,
        "new_close_reason": close_reason,
        "new_file_id": file_id,
        "new_md5": md5 or upload.md5,
        "new_closed_at": now,
    }
    await connection.execute(statements.CLOSE_UPLOAD, values)


async def _settle_user(connection: AsyncConnection, upload: Upload, finished: int) -> None:
    """Take an upload out of its user's account (the compensation, by the row's own figure) and add `finished` bytes."""
    values = {"flushed": upload.flushed_bytes, "size": upload.size, "finished": finished}
    await connection.execute(statements.SETTLE_USER, values | {"of_user": upload.user_id})


async def merge(
    connection: AsyncConnection,
    *,
    upload_id: str,
    file_id: str,
    md5: str,
    sha256: str,
    place_blob: Callable[[bool], Awaitable[None]],
    now: datetime,
) -> File:
    """Turn an upload into a file. `place_blob(keep_existing)` makes its bytes the blob while the blob's row is locked.

    Raises NotOpen, and ClaimsChanged if other digests were claimed while these were computed.
    """
    upload = await lock_open(connection, upload_id)
    if upload.md5 not in (None, md5) or upload.sha256 not in (None, sha256):
        raise ClaimsChanged(upload_id)
    refs = await _add_ref(connection, sha256, md5, upload.size, now)
    await place_blob(refs > 1)
    present = await queries.file_by_content(connection, upload.user_id, sha256, upload.name)
    if present is None:
        file = File(
            id=file_id,
            user_id=upload.user_id,
            md5=md5,
            sha256=sha256,
            name=upload.name,
            size=upload.size,
            instant=False,
            created_at=now,
        )
        await _insert_file(connection, file)
    else:
        file = present
        await _drop_ref(connection, sha256)
    await _close_row(connection, upload, State.DONE, now, file_id=file.id, md5=md5)
    await _settle_user(connection, upload, finished=upload.size if present is None else 0)
    return file


async def _add_ref(connection: AsyncConnection, sha256: str, md5: str, size: int, now: datetime) -> int:
    """Insert a blob's row or lock it, with one ref more; returns the refs it has now."""
    values = {"sha256": sha256, "md5": md5, "size": size, "refs": 1, "created_at": now}
    await connection.execute(statements.ADD_REF[connection.dialect.name], values)
    return int((await connection.execute(statements.REFS, {"sha256": sha256})).scalar_one())


async def _drop_ref(connection: AsyncConnection, sha256: str) -> None:
    blobs = models.blob.c
    await connection.execute(update(models.blob).where(blobs.sha256 == sha256).values(refs=blobs.refs - 1))


async def _insert_file(connection: AsyncConnection, file: File) -> None:
    values = {name: getattr(file, name) for name in File.__dataclass_fields__}
    await connection.execute(statements.INSERT_FILE, values)


# Files


async def add_instant_file(
    connection: AsyncConnection, file: File, *, replaced_upload_id: str | None
) -> tuple[File, bool]:
    """Give a user a file of content that is there already; returns it and whether it is new.

    An open upload of the same content is closed as done in the same transaction and its reservation exchanged, so that
    it fits at the edge of the quota. Raises BlobLost if the blob has no refs (any more), NotOpen, QuotaExceeded, Duplicate.
    """
    replaced = None if replaced_upload_id is None else await lock_open(connection, replaced_upload_id)
    blobs = models.blob.c
    take = update(models.blob).where(blobs.sha256 == file.sha256, blobs.refs > 0).values(refs=blobs.refs + 1)
    if await changed(connection, take) == 0:
        raise BlobLost(file.sha256)
    present = await queries.file_by_content(connection, file.user_id, file.sha256, file.name)
    if present is None:
        await _insert_file(connection, file)
    else:
        await _drop_ref(connection, file.sha256)
    result = present or file
    if replaced is not None:
        await _close_row(connection, replaced, State.DONE, file.created_at, file_id=result.id, md5=file.md5)
        await _settle_user(connection, replaced, finished=0)
    if present is None and await changed(connection, statements.CHARGE, of_user=file.user_id, more=file.size) == 0:
        raise await _quota_refusal(connection, file.user_id, file.size)
    return result, present is None


async def rename_file(connection: AsyncConnection, user_id: str, file_id: str, name: str) -> bool:
    """Whether there was such a file. Raises Duplicate (from the engine) if the same content has this name already."""
    table = models.file.c
    rename = update(models.file).where(table.id == file_id, table.user_id == user_id).values(name=name)
    return await changed(connection, rename) == 1


async def delete_file(connection: AsyncConnection, file: File) -> bool:
    """Delete a file that was read before; False if somebody else was faster. The blob stays, perhaps without refs."""
    blobs, users = models.blob.c, models.user_info.c
    lock = select(blobs.sha256).where(blobs.sha256 == file.sha256).with_for_update()
    await connection.execute(lock)
    if await changed(connection, delete(models.file).where(models.file.c.id == file.id)) == 0:
        return False
    await _drop_ref(connection, file.sha256)
    await connection.execute(
        update(models.user_info)
        .where(users.user_id == file.user_id)
        .values(use_space_finished=users.use_space_finished - file.size)
    )
    return True


async def collect_blob(
    connection: AsyncConnection,
    sha256: str,
    *,
    prepare: Callable[[], Awaitable[None]],
    remove: Callable[[], Awaitable[None]],
) -> bool:
    """Remove a blob without refs, its bytes before the commit: a row without bytes is mended by the next merge, bytes
    without a row by nobody. False if it is in use or gone.

    `prepare` makes durable that it has no refs. If the database crashed meanwhile, this connection is gone and the
    statement after it fails.
    """
    blobs = models.blob.c
    query = select(blobs.refs).where(blobs.sha256 == sha256).with_for_update()
    if (await connection.execute(query)).scalar() != 0:
        return False
    await prepare()
    await connection.execute(delete(models.blob).where(blobs.sha256 == sha256))
    await remove()
    crash_point("collect.after_unlink")
    return True


async def remove_stray_blob(
    connection: AsyncConnection, sha256: str, remove: Callable[[], Awaitable[bool]], now: datetime
) -> bool:
    """Remove bytes that have no row; whether `remove` did. Raises Duplicate (from the engine) if they have one.

    There is no row to lock, and READ COMMITTED locks no gap. So one is inserted that nobody ever sees: a merge of this
    content waits for it, and then places its own bytes.
    """
    await connection.execute(insert(models.blob).values(sha256=sha256, md5="", size=0, refs=0, created_at=now))
    removed = await remove()
    crash_point("stray.after_unlink")
    await connection.execute(delete(models.blob).where(models.blob.c.sha256 == sha256))
    return removed


async def purge_uploads(connection: AsyncConnection, upload_ids: list[str]) -> int:
    """Forget what became of uploads that are closed; returns how many."""
    table = models.upload.c
    return await changed(connection, delete(models.upload).where(table.id.in_(upload_ids), table.open_flag.is_(None)))
