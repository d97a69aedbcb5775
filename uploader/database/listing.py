"""Pages of a user's files."""

from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models
from uploader.database.queries import FILE
from uploader.domain.upload import File


async def files(
    connection: AsyncConnection, user_id: str, *, limit: int, after: str | None, prefix: str | None, part: str | None
) -> list[File]:
    """Files of a user, newest first, after the id `after`, with names that start with `prefix` and contain `part`, byte by
    byte."""
    table = models.file.c
    query = FILE.order_by(table.id.desc())
    if part:
        query = query.where(table.id.in_(_ids_by_part_of_name(user_id, limit, after, prefix, part)))
    else:
        query = query.where(*_conditions(user_id, table.id, after, prefix)).limit(limit)
    return [File(**row) for row in (await connection.execute(query)).mappings()]


def _ids_by_part_of_name(user_id: str, limit: int, after: str | None, prefix: str | None, part: str) -> Any:
    """By a scan of the index of names alone, which is a fraction of the table: rows are looked at where a name matches."""
    table = models.file.c
    # Not the column itself, or SQLite would rather walk the rows in the order of their ids.
    key = func.substr(table.id, 1, type_=table.id.type)
    conditions = [*_conditions(user_id, key, after, prefix), func.instr(table.name, part.encode()) > 0]
    found = select(table.id).where(*conditions).order_by(key.desc()).limit(limit).subquery()
    return select(found.c.id)


def _conditions(
    user_id: str, key: ColumnElement[str], after: str | None, prefix: str | None
) -> list[ColumnElement[bool]]:
    table = models.file.c
    conditions = [table.user_id == user_id]
    if after is not None:
        conditions.append(key < after)
    if prefix:
        # substr works on bytes here: the column is binary in every database.
        conditions.append(func.substr(table.name, 1, len(prefix.encode())) == prefix.encode())
    return conditions
