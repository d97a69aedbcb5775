"""Pages of a user's files: newest first, or as folders."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, LargeBinary, and_, func, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models
from uploader.database.queries import FILE
from uploader.domain.folder import Folder, Place
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


# Folders: names are paths, and what they have in common up to a slash is a folder

_SLASH = b"/"


async def folders(
    connection: AsyncConnection, user_id: str, prefix: str, *, limit: int, after: Place | None
) -> list[Folder]:
    """The folders right below a prefix, by name, with all that is in them."""
    table = models.file.c
    name, slash = _name_and_slash(prefix)
    folder = func.substr(table.name, 1, len(prefix.encode()) + slash, type_=name.type).label("name")
    query = (
        select(folder, func.count().label("files"), func.sum(table.size, type_=table.size.type).label("bytes"))
        .where(*_below(user_id, prefix), slash > 0)
        .group_by(folder)
        .order_by(folder)
        .limit(limit)
    )
    if after is not None:
        query = query.where(folder > after[0])
    return [Folder(**row) for row in (await connection.execute(query)).mappings()]


async def files_of_folder(
    connection: AsyncConnection, user_id: str, prefix: str, *, limit: int, after: Place | None
) -> list[File]:
    """The files right below a prefix, and in no folder there, by name."""
    table = models.file.c
    _, slash = _name_and_slash(prefix)
    query = FILE.where(*_below(user_id, prefix), slash == 0).order_by(table.name, table.id).limit(limit)
    if after is not None:
        name, file_id = after
        query = query.where(or_(table.name > name, and_(table.name == name, table.id > file_id)))
    return [File(**row) for row in (await connection.execute(query)).mappings()]


async def files_below(
    connection: AsyncConnection, user_id: str, prefix: str, *, limit: int, after: File | None, shortest: bool = False
) -> list[File]:
    """Files whose names start with a prefix, after a file, in the order of their ids; or those with the shortest names
    first."""
    table = models.file.c
    length = func.length(table.name)
    query = (
        FILE.where(*_below(user_id, prefix)).order_by(*((length, table.id) if shortest else (table.id,))).limit(limit)
    )
    if after is not None:
        later = table.id > after.id
        reached = len(after.name.encode())
        query = query.where(or_(length > reached, and_(length == reached, later)) if shortest else later)
    return [File(**row) for row in (await connection.execute(query)).mappings()]


async def files_by_ids(connection: AsyncConnection, user_id: str, ids: Sequence[str]) -> list[File]:
    """Those of the files with these ids that are a user's."""
    table = models.file.c
    query = FILE.where(table.user_id == user_id, table.id.in_(ids)).order_by(table.id)
    return [File(**row) for row in (await connection.execute(query)).mappings()]


async def damaged_below(connection: AsyncConnection, user_id: str, prefix: str) -> File | None:
    """A file whose name starts with a prefix and whose content is known to be damaged."""
    query = FILE.where(*_below(user_id, prefix), or_(models.blob.c.damaged, models.blob.c.sha256.is_(None))).limit(1)
    row = (await connection.execute(query)).mappings().first()
    return None if row is None else File(**row)


def _below(user_id: str, prefix: str) -> list[ColumnElement[bool]]:
    """By the index of names, so that what lies elsewhere costs nothing."""
    table = models.file.c
    if not prefix:
        return [table.user_id == user_id]
    raw = prefix.encode()
    # In UTF-8 no byte is the largest one.
    beyond = literal(raw[:-1] + bytes([raw[-1] + 1]), LargeBinary)
    return [table.user_id == user_id, table.name >= prefix, table.name < beyond]


def _name_and_slash(prefix: str) -> tuple[ColumnElement[str], ColumnElement[int]]:
    """The name, and where after the prefix it has its first slash, counted from 1; 0: nowhere."""
    name = models.file.c.name
    return name, func.instr(func.substr(name, len(prefix.encode()) + 1), _SLASH)
