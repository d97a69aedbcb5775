"""The trash of each user: rows of deleted or replaced files, written in the transaction that deletes or replaces a file.

A row holds no bytes: it names a content of other files or in the trash of the store. The rows count among the files of the
user, and make room for new names: the oldest rows go first. Each change of these rows happens under the lock of their user's
row.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import Engine, event

from uploader.database import models, queries
from uploader.database.connection import AsyncConnection
from uploader.domain.upload import File, TrashedFile, TrashReason, Usage

# A key of a connection's `info`.
_TRASH = "trash"
_ROWS, _BLOBS = models.trashed_file.c, models.blob.c
_COLUMNS = [field.name for field in fields(TrashedFile) if field.name not in ("damaged", "held")]
_ROWS_AT_ONCE = 1000

_INSERT = sa.insert(models.trashed_file)
_TRASHED = sa.select(
    *(_ROWS[name] for name in _COLUMNS), sa.func.coalesce(_BLOBS.damaged, sa.false()).label("damaged")
).outerjoin_from(models.trashed_file, models.blob, _ROWS.sha256 == _BLOBS.sha256)
_OF_USER = _ROWS.user_id == sa.bindparam("user_id")
_OLDEST = (
    sa.select(_ROWS.id)
    .where(_OF_USER)
    .order_by(_ROWS.deleted_at, _ROWS.id)
    .limit(sa.bindparam("most", type_=sa.Integer))
)


@dataclass(frozen=True, slots=True)
class TrashPolicy:
    """Says whether deleted files are kept, and how many files a user may have."""

    keeps: bool
    max_files: int
    now: Callable[[], datetime]

    def attach(self, engine: Engine) -> None:
        event.listen(engine, "connect", lambda _connection, record: record.info.update({_TRASH: self}))


def keeps(connection: AsyncConnection) -> bool:
    policy: TrashPolicy | None = connection.info.get(_TRASH)
    return policy is not None and policy.keeps


async def throw_away(
    connection: AsyncConnection, files: Sequence[File], reason: str | None, detail: str | None = None
) -> int:
    """Put files that were just deleted into the trash of their owner; return how many were put there. `reason`: None if the
    owner deleted them. `detail`: the reason of a gate that refused them."""
    policy: TrashPolicy | None = connection.info.get(_TRASH)
    if policy is None or not keeps(connection) or not files:
        return 0
    of_all = {"deleted_at": policy.now(), "reason": reason or TrashReason.DELETED.value, "detail": detail}
    values = [
        {name: getattr(file, name) for name in queries.FILE_COLUMNS} | of_all | {"passed": not file.held}
        for file in files
    ]
    await connection.execute(_INSERT, values)
    return len(values)


async def excess(connection: AsyncConnection, user_id: str, files: int, more: int) -> int:
    """Make room for `more` names if a user with these `files` has too many: delete the oldest rows in the trash, then
    folders that were left. Return how many were deleted, at most `more`: a lower limit alone deletes nothing."""
    policy: TrashPolicy | None = connection.info.get(_TRASH)
    if policy is None or (most := min(files + more - policy.max_files, more)) <= 0:
        return 0
    forgotten = await forget_oldest(connection, user_id, most)
    return forgotten + len(await forget_left_folders(connection, user_id, most - forgotten))


async def forget_left_folders(
    connection: AsyncConnection, user_id: str, most: int, spared: Collection[str] = ()
) -> list[str]:
    """Delete folders that were left when their last files went, the oldest first, except spared ones; return their names.
    The user's row is locked."""
    left = await queries.left_folders(connection, user_id, most + len(spared)) if most > 0 else []
    gone = [name for name in left if name not in spared][:most]
    if gone:
        folders = models.folder.c
        await connection.execute(sa.delete(models.folder).where(folders.user_id == user_id, folders.name.in_(gone)))
    return gone


async def forget_oldest(connection: AsyncConnection, user_id: str, most: int) -> int:
    """Delete the oldest rows from the trash of a user, at most `most`; return how many. The user's row is locked."""
    removed = 0
    while removed < most:
        ids = await _oldest(connection, user_id, min(most - removed, _ROWS_AT_ONCE))
        if not ids:
            break
        removed += await take_out(connection, user_id, ids)
    return removed


async def _oldest(connection: AsyncConnection, user_id: str, most: int) -> list[str]:
    return list((await connection.execute(_OLDEST, {"user_id": user_id, "most": most})).scalars())


async def take_out(connection: AsyncConnection, user_id: str, ids: Collection[str]) -> int:
    """Delete rows from the trash of a user; return how many were still there."""
    delete = sa.delete(models.trashed_file).where(_ROWS.user_id == user_id, _ROWS.id.in_(ids))
    return int(cast("sa.CursorResult[Any]", await connection.execute(delete)).rowcount)


async def without_spare(connection: AsyncConnection, usage: Usage, more_files: int, max_files: int) -> Usage:
    """Return an account without the files in the trash that would make room for `more_files` more."""
    most = usage.files + more_files - max_files
    if most <= 0:
        return usage
    spare = sa.select(_ROWS.id).where(_ROWS.user_id == usage.user_id).limit(most).subquery()
    count = (await connection.execute(sa.select(sa.func.count()).select_from(spare))).scalar_one()
    return replace(usage, files=usage.files - int(count))


# Reads


async def page(
    connection: AsyncConnection, user_id: str, *, limit: int, after: tuple[datetime, str] | None, name: str | None
) -> list[TrashedFile]:
    """Return the deleted files of a user, or the earlier versions of one name, the latest deletion first."""
    query = _TRASHED.where(_ROWS.user_id == user_id)
    if name is not None:
        query = query.where(_ROWS.name == name)
    if after is not None:
        deleted_at, file_id = after
        query = query.where(_ROWS.deleted_at <= deleted_at, sa.or_(_ROWS.deleted_at < deleted_at, _ROWS.id < file_id))
    query = query.order_by(_ROWS.deleted_at.desc(), _ROWS.id.desc()).limit(limit)
    return await queries.all_of(connection, TrashedFile, query)


async def by_ids(connection: AsyncConnection, user_id: str, ids: Sequence[str]) -> dict[str, TrashedFile]:
    query = _TRASHED.where(_ROWS.user_id == user_id, _ROWS.id.in_(ids))
    return {file.id: file for file in await queries.all_of(connection, TrashedFile, query)}


async def owner_of(connection: AsyncConnection, file_id: str) -> str | None:
    owner: str | None = (await connection.execute(sa.select(_ROWS.user_id).where(_ROWS.id == file_id))).scalar()
    return owner


async def deleted_before(connection: AsyncConnection, moment: datetime, limit: int) -> list[tuple[str, str]]:
    """Return users and ids of files that were deleted before a moment, the oldest first."""
    query = sa.select(_ROWS.user_id, _ROWS.id).where(_ROWS.deleted_at < moment)
    return [tuple(row) for row in await connection.execute(query.order_by(_ROWS.deleted_at).limit(limit))]


async def named_since(connection: AsyncConnection, sha256s: Sequence[str], moment: datetime) -> set[str]:
    """Return the contents of files in the trash that were deleted since a moment."""
    query = sa.select(_ROWS.sha256).where(_ROWS.sha256.in_(sha256s), _ROWS.deleted_at >= moment).distinct()
    return set((await connection.execute(query)).scalars())


async def bytes_by_user(connection: AsyncConnection) -> dict[str, int]:
    query = sa.select(_ROWS.user_id, sa.func.sum(_ROWS.size)).group_by(_ROWS.user_id)
    return {user_id: int(size) for user_id, size in await connection.execute(query)}


async def oldest_of(
    connection: AsyncConnection, user_id: str, after: tuple[datetime, str] | None, limit: int
) -> list[TrashedFile]:
    """Return the files in the trash of a user after a position, the earliest deletion first."""
    query = _TRASHED.where(_ROWS.user_id == user_id)
    if after is not None:
        deleted_at, file_id = after
        query = query.where(_ROWS.deleted_at >= deleted_at, sa.or_(_ROWS.deleted_at > deleted_at, _ROWS.id > file_id))
    return await queries.all_of(connection, TrashedFile, query.order_by(_ROWS.deleted_at, _ROWS.id).limit(limit))
