"""Reads of concatenations: each function is one question, asked on a connection that the caller holds."""

from sqlalchemy import ColumnElement, and_, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models
from uploader.domain.concatenation import Concatenation

_PLANS, _PARTS, _UPLOADS = models.concatenation.c, models.concatenation_part.c, models.upload.c
_COLUMNS = [_PLANS[name] for name in ("id", "user_id", "name", "metadata", "ordered", "created_at")]


async def by_id(connection: AsyncConnection, concatenation_id: str, *, lock: bool = False) -> Concatenation | None:
    """A concatenation; `lock` keeps its row until the transaction ends."""
    return await _first(connection, _PLANS.id == concatenation_id, lock=lock)


async def by_parts(connection: AsyncConnection, user_id: str, parts_sha256: str) -> Concatenation | None:
    """The one of a user that has these parts in this order."""
    return await _first(connection, and_(_PLANS.user_id == user_id, _PLANS.parts_sha256 == parts_sha256))


async def _first(
    connection: AsyncConnection, condition: ColumnElement[bool], *, lock: bool = False
) -> Concatenation | None:
    query = select(*_COLUMNS).where(condition)
    row = (await connection.execute(query.with_for_update() if lock else query)).mappings().first()
    if row is None:
        return None
    parts = select(_PARTS.part_id).where(_PARTS.concatenation_id == row["id"]).order_by(_PARTS.position)
    return Concatenation(**row, part_ids=tuple((await connection.execute(parts)).scalars()))


async def is_whole(connection: AsyncConnection, user_id: str, concatenation_id: str) -> bool:
    """Whether there is, or was, such a concatenation of a user."""
    query = select(_PLANS.id).where(_PLANS.id == concatenation_id, _PLANS.user_id == user_id)
    return (await connection.execute(query)).first() is not None


async def waiting_for(connection: AsyncConnection, part_id: str) -> list[str]:
    """The ids of those that are open and name a part."""
    query = (
        select(_PLANS.id)
        .join_from(models.concatenation_part, models.concatenation, _PLANS.id == _PARTS.concatenation_id)
        .where(_PARTS.part_id == part_id, _PLANS.open_flag == 1)
    )
    return sorted(set((await connection.execute(query)).scalars()))


async def due(connection: AsyncConnection, after: str, limit: int) -> list[str]:
    """The ids, after the id `after`, of those that something is to be done for: they have an upload already; or a part of
    them has ended otherwise; or all parts are complete, as far as that was accounted for."""
    own_part = _PARTS.concatenation_id == _PLANS.id
    is_open = and_(_UPLOADS.id == _PARTS.part_id, _UPLOADS.open_flag == 1)
    is_joined = exists().where(_UPLOADS.id == _PLANS.id)
    has_lost_a_part = exists().where(own_part, ~exists().where(is_open))
    has_all = and_(_UPLOADS.length_known, _UPLOADS.flushed_bytes >= _UPLOADS.size)
    is_under_way = exists().where(own_part, is_open, ~has_all)
    query = (
        select(_PLANS.id)
        .where(_PLANS.open_flag == 1, _PLANS.id > after, or_(is_joined, has_lost_a_part, ~is_under_way))
        .order_by(_PLANS.id)
        .limit(limit)
    )
    return list((await connection.execute(query)).scalars())


async def count_waiting(connection: AsyncConnection, user_id: str) -> int:
    """How many of a user wait for their parts."""
    query = select(func.count()).where(
        _PLANS.user_id == user_id, _PLANS.open_flag == 1, ~exists().where(_UPLOADS.id == _PLANS.id)
    )
    return int((await connection.execute(query)).scalar_one())
