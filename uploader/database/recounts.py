"""Recounts: what the definitions make of the figures that are kept. Users are recounted a range of ids at a time."""

from dataclasses import dataclass, fields

from sqlalchemy import ColumnElement, Subquery, func, or_, select, union
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models
from uploader.domain.quota import Usage
from uploader.domain.upload import State


@dataclass(frozen=True, slots=True)
class Sums:
    """The figures of a user as their definitions make them."""

    use_space_finished: int
    use_space_unfinished: int
    reserved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Ids of users after `after`, up to and with `until`; None: to the end."""

    after: str
    until: str | None

    def holds(self, user_id: ColumnElement[str]) -> list[ColumnElement[bool]]:
        return [user_id > self.after, *([] if self.until is None else [user_id <= self.until])]


_FIGURES = [models.user_info.c[field.name] for field in fields(Usage)][1:]


async def range_of_users(connection: AsyncConnection, after: str, count: int) -> Range:
    """The range of the next `count` users that have a row; the last range holds all ids that follow."""
    users = models.user_info.c
    query = select(users.user_id).where(users.user_id > after).order_by(users.user_id).offset(count - 1).limit(1)
    return Range(after=after, until=(await connection.execute(query)).scalar())


async def count_range(connection: AsyncConnection, within: Range) -> int:
    users = models.user_info.c
    query = select(func.count()).where(*within.holds(users.user_id))
    return int((await connection.execute(query)).scalar_one())


async def recounted_users(connection: AsyncConnection, within: Range) -> list[tuple[str, Usage | None, Sums]]:
    """Users whose stored figures are not what their definitions make them, or break a bound; without a row: None."""
    users, uploads, files = models.user_info.c, _open_sums(within), _file_sums(within)
    ids = union(
        select(users.user_id).where(*within.holds(users.user_id)),
        select(uploads.c.user_id),
        select(files.c.user_id),
    ).subquery()
    finished = func.coalesce(files.c.size, 0)
    unfinished, reserved = func.coalesce(uploads.c.flushed_bytes, 0), func.coalesce(uploads.c.size, 0)
    query = (
        select(ids.c.user_id, users.user_id.is_not(None), *_FIGURES, finished, unfinished, reserved)
        .select_from(ids)
        .outerjoin(models.user_info, users.user_id == ids.c.user_id)
        .outerjoin(uploads, uploads.c.user_id == ids.c.user_id)
        .outerjoin(files, files.c.user_id == ids.c.user_id)
        .where(
            or_(
                users.user_id.is_(None),
                users.use_space_finished != finished,
                users.use_space_unfinished != unfinished,
                users.reserved != reserved,
                users.use_space_unfinished > users.reserved,
                users.use_space_finished + users.reserved > users.total_space,
            )
        )
        .order_by(ids.c.user_id)
    )
    found = []
    for user_id, has_row, *figures in await connection.execute(query):
        names = [field.name for field in fields(Usage)]
        stored = Usage(**dict(zip(names, [user_id, *figures[:4]], strict=True))) if has_row else None
        found.append((user_id, stored, Sums(*map(int, figures[4:]))))
    return found


def _open_sums(within: Range) -> Subquery:
    table = models.upload.c
    sums = func.sum(table.flushed_bytes).label("flushed_bytes"), func.sum(table.size).label("size")
    query = select(table.user_id, *sums).where(table.state == State.OPEN.value, *within.holds(table.user_id))
    return query.group_by(table.user_id).subquery()


def _file_sums(within: Range) -> Subquery:
    table = models.file.c
    query = select(table.user_id, func.sum(table.size).label("size")).where(*within.holds(table.user_id))
    return query.group_by(table.user_id).subquery()


async def sums_of(connection: AsyncConnection, user_id: str) -> Sums:
    """The figures of one user, recounted."""
    uploads, files = models.upload.c, models.file.c
    sums = func.coalesce(func.sum(uploads.flushed_bytes), 0), func.coalesce(func.sum(uploads.size), 0)
    open_sums = select(*sums).where(uploads.user_id == user_id, uploads.state == State.OPEN.value)
    unfinished, reserved = (await connection.execute(open_sums)).one()
    finished = select(func.coalesce(func.sum(files.size), 0)).where(files.user_id == user_id)
    return Sums(int((await connection.execute(finished)).scalar_one()), int(unfinished), int(reserved))


async def recounted_refs(connection: AsyncConnection) -> list[tuple[str, int | None, int]]:
    """Contents whose stored refs are not the number of their files: both figures; without a row of the blob: None."""
    blobs, files = models.blob.c, models.file.c
    counts = select(files.sha256, func.count().label("refs")).group_by(files.sha256).subquery()
    ids = union(select(blobs.sha256), select(counts.c.sha256)).subquery()
    counted = func.coalesce(counts.c.refs, 0)
    query = (
        select(ids.c.sha256, blobs.refs, counted)
        .select_from(ids)
        .outerjoin(models.blob, blobs.sha256 == ids.c.sha256)
        .outerjoin(counts, counts.c.sha256 == ids.c.sha256)
        .where(or_(blobs.refs.is_(None), blobs.refs != counted))
        .order_by(ids.c.sha256)
    )
    return [(sha256, stored, int(count)) for sha256, stored, count in await connection.execute(query)]


async def count_files_of(connection: AsyncConnection, sha256: str) -> int:
    query = select(func.count()).select_from(models.file).where(models.file.c.sha256 == sha256)
    return int((await connection.execute(query)).scalar_one())
