"""Reads of blobs: each function is one question, asked on a connection that the caller holds."""

import json
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import TextualSelect, bindparam, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models


@dataclass(frozen=True, slots=True)
class Blob:
    """One row of `blob`."""

    sha256: str
    md5: str | None
    size: int
    refs: int
    damaged: bool
    # When it was last read back, or that failed.
    scrubbed_at: datetime | None
    # When it is read again, after that failed.
    reread_at: datetime | None

    @property
    def is_sound(self) -> bool:
        """Whether nothing is known against its bytes: they are not damaged, and could be read."""
        return not self.damaged and self.reread_at is None


_BLOB_COLUMNS = [models.blob.c[field.name] for field in fields(Blob)]

_BLOB = select(*_BLOB_COLUMNS)
_BLOBS_BY_MD5 = _BLOB.where(
    *(models.blob.c[name] == bindparam(name) for name in ("md5", "size")),
).order_by(models.blob.c.sha256)
# A list of MD5s is a table, as in `batches.py`: asked with IN, MariaDB walks over all files of the user.
_OF_USER_SQLITE = """
SELECT DISTINCT {columns} FROM json_each(:md5s) AS asked
CROSS JOIN file ON file.user_id = :user_id AND file.md5 = CAST(asked.value AS BLOB)
CROSS JOIN `blob` ON `blob`.sha256 = file.sha256
"""
_OF_USER_MYSQL = """
SELECT DISTINCT {columns} FROM JSON_TABLE(:md5s, '$[*]' COLUMNS (
  md5 VARCHAR(32) CHARACTER SET utf8mb4 PATH '$'
)) AS asked
STRAIGHT_JOIN file FORCE INDEX (ix_file_user_md5) ON file.user_id = :user_id AND file.md5 = CAST(asked.md5 AS BINARY)
STRAIGHT_JOIN `blob` ON `blob`.sha256 = file.sha256
"""


def _of_user(statement: str) -> TextualSelect:
    columns = ", ".join(f"`blob`.{column.name}" for column in _BLOB_COLUMNS)
    bound = text(statement.format(columns=columns)).bindparams(bindparam("user_id", type_=models.file.c.user_id.type))
    return bound.columns(*_BLOB_COLUMNS)


_OF_USER = {"sqlite": _of_user(_OF_USER_SQLITE), "mysql": _of_user(_OF_USER_MYSQL)}
_BLOB_BY_SHA256 = _BLOB.where(models.blob.c.sha256 == bindparam("sha256")).limit(1)
_MD5_OF_BLOB = select(models.blob.c.md5).where(models.blob.c.sha256 == bindparam("of_blob"))
_LOCKED_BLOB_BY_SHA256 = _BLOB_BY_SHA256.with_for_update()


async def contents_by_md5(connection: AsyncConnection, user_id: str, md5s: list[str]) -> list[Blob]:
    """The contents, all of them sound as far as is known, that a user has files of with one of `md5s`."""
    asked = {"user_id": user_id, "md5s": json.dumps(md5s)}
    rows = (await connection.execute(_OF_USER[connection.dialect.name], asked)).mappings()
    return [blob for blob in (Blob(**row) for row in rows) if blob.is_sound]


async def blobs_by_md5(connection: AsyncConnection, md5: str, size: int) -> list[Blob]:
    """Blobs in use with this MD5 and size, all of them sound as far as is known; several if it has twins."""
    rows = (await connection.execute(_BLOBS_BY_MD5, {"md5": md5, "size": size})).mappings()
    # Asked for those that are not damaged, SQLite walks over them all, by the index of `damaged`.
    return [blob for blob in (Blob(**row) for row in rows) if blob.refs > 0 and blob.is_sound]


async def md5_of(connection: AsyncConnection, sha256: str) -> str | None:
    """The MD5 of a blob, as far as it is known."""
    md5: str | None = (await connection.execute(_MD5_OF_BLOB, {"of_blob": sha256})).scalar()
    return md5


async def blobs_by_sha256(connection: AsyncConnection, sha256s: list[str]) -> dict[str, Blob]:
    """Those of `sha256s` that have a row."""
    query = _BLOB.where(models.blob.c.sha256.in_(sha256s))
    return {row["sha256"]: Blob(**row) for row in (await connection.execute(query)).mappings()}


async def known_blobs(connection: AsyncConnection, sha256s: list[str], *, lock: bool = False) -> set[str]:
    """Those of `sha256s` that have a row; `lock` waits for rows on their way, and keeps them until the transaction ends."""
    query = select(models.blob.c.sha256).where(models.blob.c.sha256.in_(sha256s)).order_by(models.blob.c.sha256)
    return set((await connection.execute(query.with_for_update() if lock else query)).scalars())


async def blobs_to_scrub(
    connection: AsyncConnection, *, placed_before: datetime, scrubbed_before: datetime, limit: int
) -> list[Blob]:
    """Blobs in use that were not read back since they were placed, before a moment; then those that were last read back
    before another. Of each the oldest first."""
    table = models.blob.c
    in_use = _BLOB.where(table.refs > 0)
    first = in_use.where(table.scrubbed_at.is_(None), table.created_at < placed_before).order_by(table.created_at)
    again = in_use.where(table.scrubbed_at < scrubbed_before).order_by(table.scrubbed_at)
    found: list[Blob] = []
    for query in (first, again):
        rows = await connection.execute(query.limit(limit - len(found)))
        found += [Blob(**row) for row in rows.mappings()]
        if len(found) == limit:
            break
    return found


async def blobs_to_reread(connection: AsyncConnection, now: datetime, limit: int) -> list[Blob]:
    """Blobs in use that could not be read, and are to be tried again by now, those that wait longest first."""
    table = models.blob.c
    query = _BLOB.where(table.refs > 0, table.reread_at <= now).order_by(table.reread_at).limit(limit)
    return [Blob(**row) for row in (await connection.execute(query)).mappings()]


async def unscrubbed_since(connection: AsyncConnection) -> tuple[datetime | None, datetime | None]:
    """Of the blobs in use that were never read back, when the oldest was placed; and of the others, when the one that
    waits longest was. None where there are none."""
    table = models.blob.c
    placed = select(func.min(table.created_at)).where(table.refs > 0, table.scrubbed_at.is_(None))
    scrubbed = select(func.min(table.scrubbed_at)).where(table.refs > 0, table.scrubbed_at.is_not(None))
    return (await connection.execute(placed)).scalar(), (await connection.execute(scrubbed)).scalar()


async def count_damaged_blobs(connection: AsyncConnection) -> int:
    query = select(func.count()).select_from(models.blob).where(models.blob.c.damaged, models.blob.c.refs > 0)
    return int((await connection.execute(query)).scalar_one())


async def count_unreadable_blobs(connection: AsyncConnection) -> int:
    """Those that could not be read when that was last tried, and are not known to be damaged."""
    table = models.blob.c
    query = select(func.count()).select_from(models.blob)
    return int(
        (
            await connection.execute(query.where(table.reread_at.is_not(None), ~table.damaged, table.refs > 0))
        ).scalar_one()
    )


async def blobs_without_refs(connection: AsyncConnection, limit: int) -> list[str]:
    query = select(models.blob.c.sha256).where(models.blob.c.refs == 0).limit(limit)
    return list((await connection.execute(query)).scalars())


async def blobs_in_use(connection: AsyncConnection, *, after: str, limit: int) -> list[Blob]:
    """Blobs with refs, by SHA-256, after the SHA-256 `after`."""
    table = models.blob.c
    query = _BLOB.where(table.refs > 0, table.sha256 > after).order_by(table.sha256).limit(limit)
    return [Blob(**row) for row in (await connection.execute(query)).mappings()]


async def blob_by_sha256(connection: AsyncConnection, sha256: str, *, lock: bool = False) -> Blob | None:
    """A blob; `lock` keeps its row until the transaction ends."""
    query = _LOCKED_BLOB_BY_SHA256 if lock else _BLOB_BY_SHA256
    row = (await connection.execute(query, {"sha256": sha256})).mappings().first()
    return None if row is None else Blob(**row)
