"""Writes many rows with one statement: a batch travels as one JSON text, and the database makes a table of it.

So each row costs one look-up by its key, where a CASE would compare it with the whole batch. Only what is documented for
MySQL and for MariaDB is used here; the keys are VARBINARY, so what comes out of the text is made bytes before a comparison.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Result, Table, bindparam, case, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models
from uploader.database.columns.types import UtcDateTime
from uploader.domain.upload import State, UploadKind

# The order of the text is the order of the locks: STRAIGHT_JOIN has the rows of the text looked up one after the other.
_LOCK_OPEN_MYSQL = """
SELECT upload.id, upload.user_id, upload.flushed_generation, upload.flushed_bytes,
  CASE WHEN upload.length_known AND COALESCE(upload.kind, '') <> 'part' THEN upload.size END
FROM JSON_TABLE(:ids, '$[*]' COLUMNS (id VARCHAR(32) CHARACTER SET utf8mb4 PATH '$')) AS item
  STRAIGHT_JOIN upload ON upload.id = CAST(item.id AS BINARY)
WHERE upload.state = 'OPEN' FOR UPDATE"""
_SET_FLUSHED_MYSQL = """
UPDATE JSON_TABLE(:batch, '$[*]' COLUMNS (
  id VARCHAR(32) CHARACTER SET utf8mb4 PATH '$[0]',
  generation BIGINT PATH '$[1]',
  received BIGINT PATH '$[2]'
)) AS item STRAIGHT_JOIN upload ON upload.id = CAST(item.id AS BINARY)
SET upload.flushed_generation = item.generation, upload.flushed_bytes = item.received, upload.updated_at = :now
"""
_SET_FLUSHED_SQLITE = """
UPDATE upload SET flushed_generation = item.generation, flushed_bytes = item.received, updated_at = :now
FROM (
  SELECT CAST(value ->> 0 AS BLOB) AS id, value ->> 1 AS generation, value ->> 2 AS received FROM json_each(:batch)
) AS item WHERE upload.id = item.id
"""
_ADD_UNFINISHED_MYSQL = """
UPDATE JSON_TABLE(:batch, '$[*]' COLUMNS (
  id VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[0]',
  more BIGINT PATH '$[1]'
)) AS item STRAIGHT_JOIN user_info ON user_info.user_id = CAST(item.id AS BINARY)
SET user_info.use_space_unfinished = user_info.use_space_unfinished + item.more
"""
_ADD_UNFINISHED_SQLITE = """
UPDATE user_info SET use_space_unfinished = use_space_unfinished + item.more
FROM (SELECT CAST(value ->> 0 AS BLOB) AS id, value ->> 1 AS more FROM json_each(:batch)) AS item
WHERE user_info.user_id = item.id
"""
# The driver sends many rows at once only where what follows VALUES has no parameters.
_ADD_REFS_MYSQL = """
INSERT INTO `blob` (sha256, md5, size, refs, created_at)
SELECT CAST(item.sha256 AS BINARY), CAST(item.md5 AS BINARY), item.size, 1, :now FROM JSON_TABLE(:batch, '$[*]' COLUMNS (
  sha256 VARCHAR(64) CHARACTER SET utf8mb4 PATH '$[0]',
  md5 VARCHAR(32) CHARACTER SET utf8mb4 PATH '$[1]',
  size BIGINT PATH '$[2]'
)) AS item
ON DUPLICATE KEY UPDATE refs = `blob`.refs + 1, damaged = 0, scrubbed_at = NULL, reread_at = NULL, created_at = :now
"""
# By the key of the content: the rows without an MD5 may be very many.
_SET_MD5S_MYSQL = """
UPDATE JSON_TABLE(:batch, '$[*]' COLUMNS (
  sha256 VARCHAR(64) CHARACTER SET utf8mb4 PATH '$[0]',
  md5 VARCHAR(32) CHARACTER SET utf8mb4 PATH '$[1]'
)) AS item STRAIGHT_JOIN `{table}` AS content ON content.sha256 = CAST(item.sha256 AS BINARY)
SET content.md5 = CAST(item.md5 AS BINARY) WHERE content.md5 IS NULL
"""
_SET_LOCATIONS_MYSQL = """
UPDATE JSON_TABLE(:batch, '$[*]' COLUMNS (
  sha256 VARCHAR(64) CHARACTER SET utf8mb4 PATH '$[0]',
  location VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]'
)) AS item STRAIGHT_JOIN `blob` ON `blob`.sha256 = CAST(item.sha256 AS BINARY)
SET `blob`.location = CAST(item.location AS BINARY)
"""
_NOW = bindparam("now", type_=UtcDateTime)
_SET_FLUSHED = {
    "mysql": text(_SET_FLUSHED_MYSQL).bindparams(_NOW),
    "sqlite": text(_SET_FLUSHED_SQLITE).bindparams(_NOW),
}
_ADD_REFS = text(_ADD_REFS_MYSQL).bindparams(_NOW)
_SET_LOCATIONS = text(_SET_LOCATIONS_MYSQL)
_ADD_UNFINISHED = {"mysql": text(_ADD_UNFINISHED_MYSQL), "sqlite": text(_ADD_UNFINISHED_SQLITE)}


async def lock_batch(
    connection: AsyncConnection, ids: Iterable[str]
) -> Iterable[tuple[str, str, int, int, int | None]]:
    """The uploads of these that are OPEN, locked in the order of their ids: id, user, generation and bytes accounted, and
    the length with which one is to be merged, if it is known."""
    dialect: Any = connection.dialect
    if dialect.name != "sqlite":
        # MySQL wants to be told that no row of the text is to be locked, MariaDB can't be.
        statement = _LOCK_OPEN_MYSQL if dialect.is_mariadb else f"{_LOCK_OPEN_MYSQL} OF upload"
        rows = await connection.execute(text(statement), {"ids": json.dumps(sorted(ids))})
        return [(upload_id.decode(), user_id.decode(), *accounted) for upload_id, user_id, *accounted in rows]
    table = models.upload.c
    length = case((table.length_known & (func.coalesce(table.kind, "") != UploadKind.PART.value), table.size))
    columns = (table.id, table.user_id, table.flushed_generation, table.flushed_bytes, length)
    query = select(*columns).where(table.id.in_(sorted(ids)), table.state == State.OPEN.value)
    return (await connection.execute(query)).all()


async def set_flushed(connection: AsyncConnection, items: Iterable[tuple[str, int, int]], now: datetime) -> None:
    """Set what is accounted of uploads: id, generation, bytes received."""
    values = {"batch": json.dumps(list(items)), "now": now}
    await connection.execute(_SET_FLUSHED[connection.dialect.name], values)


async def add_unfinished(connection: AsyncConnection, more: Mapping[str, int]) -> None:
    """Add to `use_space_unfinished` of users. The rows are locked in the order of their ids."""
    # As it is, not as \u escapes: what becomes of those is each database's own affair.
    batch = json.dumps(sorted(more.items()), ensure_ascii=False)
    await connection.execute(_ADD_UNFINISHED[connection.dialect.name], {"batch": batch})


async def add_refs(
    connection: AsyncConnection, items: Iterable[tuple[str, str | None, int]], now: datetime
) -> "Result[Any]":
    """`statements.ADD_REF` of many contents on MySQL and MariaDB: SHA-256, MD5, size."""
    return await connection.execute(_ADD_REFS, {"batch": json.dumps(list(items)), "now": now})


async def set_md5s(connection: AsyncConnection, table: Table, md5s: Mapping[str, str]) -> "Result[Any]":
    """`statements.FILL_MD5` of many contents on MySQL and MariaDB, by SHA-256."""
    statement = text(_SET_MD5S_MYSQL.format(table=table.name))
    return await connection.execute(statement, {"batch": json.dumps(sorted(md5s.items()))})


async def set_locations(connection: AsyncConnection, locations: Mapping[str, str]) -> None:
    """`statements.RELOCATE` of many contents on MySQL and MariaDB, by SHA-256."""
    await connection.execute(_SET_LOCATIONS, {"batch": json.dumps(sorted(locations.items()))})
