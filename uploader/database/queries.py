"""Reads: each function is one question, asked on a connection that the caller holds.

Those that every file asks are put together once: to build a statement costs several times what it costs to run it.
"""

import json
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    LargeBinary,
    RowMapping,
    Select,
    and_,
    bindparam,
    cast,
    func,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models
from uploader.domain.quota import Usage
from uploader.domain.upload import File, Upload, if_exists_of, kind_of, state_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One row of `token`; the token itself is nowhere."""

    token_sha256: str
    user_id: str
    admin: bool
    created_at: datetime
    revoked_at: datetime | None
    scope: str | None = None
    made_by: str | None = None

    @property
    def token_id(self) -> str:
        """What a person names it by."""
        return self.token_sha256[:16]


# Of the store's word for where an upload lies the column has the name that it had when there was one store.
PLACE_COLUMN = "temp_path"
UPLOAD_COLUMNS = [
    models.upload.c[PLACE_COLUMN if field.name == "place" else field.name].label(field.name) for field in fields(Upload)
]
FILE_COLUMNS = [field.name for field in fields(File) if field.name != "damaged"]
_USAGE_COLUMNS = [models.user_info.c[field.name] for field in fields(Usage)]
_TOKEN_COLUMNS = [models.token.c[field.name] for field in fields(Token)]


_UPLOAD = select(*UPLOAD_COLUMNS)
FILE = select(
    *(models.file.c[name] for name in FILE_COLUMNS),
    func.coalesce(models.blob.c.damaged, models.blob.c.sha256.is_(None)).label("damaged"),
).outerjoin_from(models.file, models.blob, models.file.c.sha256 == models.blob.c.sha256)
_UPLOAD_BY_ID = _UPLOAD.where(models.upload.c.id == bindparam("upload_id")).limit(1)
_LOCKED_UPLOAD_BY_ID = _UPLOAD_BY_ID.with_for_update()
_OPEN_UPLOADS_OF_USER = (models.upload.c.user_id == bindparam("user_id"), models.upload.c.open_flag == 1)
_OPEN_UPLOAD_BY_MD5 = _UPLOAD.where(*_OPEN_UPLOADS_OF_USER, models.upload.c.md5 == bindparam("md5")).limit(1)
_NEWEST_CLOSED_UPLOAD = (
    _UPLOAD.where(*(models.upload.c[name] == bindparam(name) for name in ("user_id", "md5")))
    .where(models.upload.c.closed_at > bindparam("closed_after"))
    .order_by(models.upload.c.closed_at.desc(), models.upload.c.id.desc())
    .limit(1)
)
_UPLOAD_BY_IDEMPOTENCY_KEY = _UPLOAD.where(
    *(models.upload.c[name] == bindparam(name) for name in ("user_id", "idempotency_key"))
).limit(1)
_OPEN_UPLOADS = _UPLOAD.where(*_OPEN_UPLOADS_OF_USER).order_by(models.upload.c.id.desc())
_COUNT_OF_OPEN_UPLOADS = select(func.count()).select_from(models.upload).where(*_OPEN_UPLOADS_OF_USER)
_FILE_BY_CONTENT = FILE.where(
    *(models.file.c[name] == bindparam(name) for name in ("user_id", "sha256", "name")),
).limit(1)
_FILES_OF_USER = FILE.where(models.file.c.user_id == bindparam("user_id"))
_FILES_OF_NAMES = _FILES_OF_USER.where(models.file.c.name.in_(bindparam("names", expanding=True))).order_by(
    models.file.c.id
)
_FILES_BY_CONTENTS = _FILES_OF_USER.where(
    tuple_(models.file.c.sha256, models.file.c.name).in_(bindparam("contents", expanding=True))
)
# SQLite uses no index for a list of tuples, but it does for a table that it is joined with. The user is in that, too: it
# would begin with a condition on the user, and look at all files.
_ITEM = func.json_each(bindparam("contents")).table_valued("value", name="item")
_FILES_IN_JSON = FILE.join(
    _ITEM,
    and_(
        *(
            models.file.c[name] == cast(_ITEM.c.value.op("->>")(literal_column(str(place))), LargeBinary)
            for place, name in enumerate(("user_id", "sha256", "name"))
        )
    ),
)
_FILE_BY_ID = FILE.where(*(models.file.c[name] == bindparam(name) for name in ("id", "user_id"))).limit(1)
_TOKEN_BY_HASH = select(*_TOKEN_COLUMNS).where(models.token.c.token_sha256 == bindparam("token_sha256")).limit(1)
_USAGE = select(*_USAGE_COLUMNS).where(models.user_info.c.user_id == bindparam("user_id")).limit(1)
_LOCKED_USAGE = _USAGE.with_for_update()


def upload_of(row: RowMapping) -> Upload:
    state = state_of(row["state"], is_closed=row["closed_at"] is not None)
    words = {"state": state, "if_exists": if_exists_of(row["if_exists"]), "kind": kind_of(row["kind"])}
    return Upload(**{**row, **words})


async def _first(connection: AsyncConnection, query: "Select[Any]", **values: object) -> RowMapping | None:
    row: RowMapping | None = (await connection.execute(query, values)).mappings().first()
    return row


# Uploads


async def upload_by_id(connection: AsyncConnection, upload_id: str, *, lock: bool = False) -> Upload | None:
    """An upload; `lock` keeps its row until the transaction ends."""
    row = await _first(connection, _LOCKED_UPLOAD_BY_ID if lock else _UPLOAD_BY_ID, upload_id=upload_id)
    return None if row is None else upload_of(row)


async def is_inserted(connection: AsyncConnection, upload_id: str) -> bool:
    """Whether an upload has a row; an error that is retried while a transaction that inserts one has not ended."""
    query = select(models.upload.c.id).where(models.upload.c.id == upload_id).with_for_update(nowait=True)
    return (await connection.execute(query)).first() is not None


async def uploads_by_id(connection: AsyncConnection, upload_ids: list[str]) -> dict[str, Upload]:
    """Those of `upload_ids` that have a row."""
    query = _UPLOAD.where(models.upload.c.id.in_(upload_ids))
    return {row["id"]: upload_of(row) for row in (await connection.execute(query)).mappings()}


async def closed_uploads(connection: AsyncConnection, closed_before: datetime, limit: int) -> list[Upload]:
    query = _UPLOAD.where(models.upload.c.closed_at < closed_before).limit(limit)
    return [upload_of(row) for row in (await connection.execute(query)).mappings()]


async def open_upload_by_md5(connection: AsyncConnection, user_id: str, md5: str) -> Upload | None:
    row = await _first(connection, _OPEN_UPLOAD_BY_MD5, user_id=user_id, md5=md5)
    return None if row is None else upload_of(row)


async def newest_closed_upload(
    connection: AsyncConnection, user_id: str, md5: str, closed_after: datetime
) -> Upload | None:
    asked = {"user_id": user_id, "md5": md5, "closed_after": closed_after}
    row = await _first(connection, _NEWEST_CLOSED_UPLOAD, **asked)
    return None if row is None else upload_of(row)


async def upload_by_idempotency_key(connection: AsyncConnection, user_id: str, key: str) -> Upload | None:
    row = await _first(connection, _UPLOAD_BY_IDEMPOTENCY_KEY, user_id=user_id, idempotency_key=key)
    return None if row is None else upload_of(row)


async def open_uploads(connection: AsyncConnection, user_id: str) -> list[Upload]:
    """The open uploads of a user, newest first."""
    return [upload_of(row) for row in (await connection.execute(_OPEN_UPLOADS, {"user_id": user_id})).mappings()]


async def count_open_uploads(connection: AsyncConnection, user_id: str) -> int:
    return int((await connection.execute(_COUNT_OF_OPEN_UPLOADS, {"user_id": user_id})).scalar_one())


async def count_all_open_uploads(connection: AsyncConnection) -> int:
    query = select(func.count()).select_from(models.upload).where(models.upload.c.open_flag == 1)
    return int((await connection.execute(query)).scalar_one())


async def open_md5s(connection: AsyncConnection, user_id: str, md5s: list[str]) -> dict[str, Upload]:
    """Those of `md5s` that the user has an open upload of."""
    table = models.upload.c
    query = _UPLOAD.where(table.user_id == user_id, table.md5.in_(md5s), table.open_flag == 1)
    uploads = [upload_of(row) for row in (await connection.execute(query)).mappings()]
    return {upload.md5: upload for upload in uploads if upload.md5 is not None}


async def idle_uploads(connection: AsyncConnection, updated_before: datetime, after: str, limit: int) -> list[Upload]:
    """Open uploads that nothing was accounted for since `updated_before`, by id, after the id `after`."""
    table = models.upload.c
    query = (
        _UPLOAD.where(table.open_flag == 1, table.updated_at < updated_before, table.id > after)
        .order_by(table.id)
        .limit(limit)
    )
    return [upload_of(row) for row in (await connection.execute(query)).mappings()]


async def all_open_uploads(connection: AsyncConnection, *, after: str, limit: int) -> list[Upload]:
    """Open uploads of everybody, by id, after the id `after`."""
    table = models.upload.c
    query = _UPLOAD.where(table.open_flag == 1, table.id > after).order_by(table.id).limit(limit)
    return [upload_of(row) for row in (await connection.execute(query)).mappings()]


async def promised_bytes(connection: AsyncConnection) -> int:
    """What open uploads of everybody may still write, by the counters of the users: the uploads are far more, and a counter
    of all would be a row that everybody waits for."""
    table = models.user_info.c
    query = select(func.coalesce(func.sum(table.reserved - table.use_space_unfinished), 0))
    return int((await connection.execute(query)).scalar_one())


# Files


@cache
def _newest_file(sound: bool, *facts: str) -> "Select[Any]":
    conditions: list[ColumnElement[bool]] = [models.file.c[fact] == bindparam(fact) for fact in facts]
    if sound:
        conditions += [~models.blob.c.damaged, models.blob.c.reread_at.is_(None)]
    return FILE.where(*conditions).order_by(models.file.c.id.desc()).limit(1)


async def newest_file(
    connection: AsyncConnection,
    user_id: str,
    md5: str,
    *,
    size: int | None = None,
    sha256: str | None = None,
    name: str | None = None,
    sound: bool = False,
) -> File | None:
    """The newest file of a user with this MD5 and, where given, this size, SHA-256 and name. `sound`: not of
    content that is damaged, or could not be read."""
    asked = {"user_id": user_id, "md5": md5, "size": size, "sha256": sha256, "name": name}
    given = {fact: value for fact, value in asked.items() if value is not None}
    row = await _first(connection, _newest_file(sound, *given), **given)
    return None if row is None else File(**row)


async def file_by_id(connection: AsyncConnection, user_id: str, file_id: str) -> File | None:
    row = await _first(connection, _FILE_BY_ID, id=file_id, user_id=user_id)
    return None if row is None else File(**row)


async def file_by_content(connection: AsyncConnection, user_id: str, sha256: str, name: str) -> File | None:
    row = await _first(connection, _FILE_BY_CONTENT, user_id=user_id, sha256=sha256, name=name)
    return None if row is None else File(**row)


async def files_of_names(connection: AsyncConnection, user_id: str, names: list[str]) -> list[File]:
    """The files of a user that have one of `names`, the oldest first."""
    rows = await connection.execute(_FILES_OF_NAMES, {"user_id": user_id, "names": names})
    return [File(**row) for row in rows.mappings()]


async def files_by_contents(connection: AsyncConnection, user_id: str, contents: list[tuple[str, str]]) -> list[File]:
    """The files of a user that have one of `contents`, each a SHA-256 and a name."""
    if connection.dialect.name == "sqlite":
        items = json.dumps([(user_id, *content) for content in contents])
        rows = await connection.execute(_FILES_IN_JSON, {"contents": items})
    else:
        rows = await connection.execute(_FILES_BY_CONTENTS, {"user_id": user_id, "contents": contents})
    return [File(**row) for row in rows.mappings()]


async def files_by_sha256(connection: AsyncConnection, sha256: str, limit: int | None = None) -> list[File]:
    """The files of all users that have this content, the oldest first."""
    query = FILE.where(models.file.c.sha256 == sha256).order_by(models.file.c.id).limit(limit)
    return [File(**row) for row in (await connection.execute(query)).mappings()]


# Users and tokens


async def usage(connection: AsyncConnection, user_id: str, *, lock: bool = False) -> Usage | None:
    """The accounts of a user; `lock` keeps them until the transaction ends."""
    row = await _first(connection, _LOCKED_USAGE if lock else _USAGE, user_id=user_id)
    return None if row is None else Usage(**row)


async def token_by_hash(connection: AsyncConnection, token_sha256: str) -> Token | None:
    row = await _first(connection, _TOKEN_BY_HASH, token_sha256=token_sha256)
    return None if row is None else Token(**row)


async def tokens_by_id(connection: AsyncConnection, prefix: str) -> list[Token]:
    """Those whose SHA-256 begins with `prefix`, in hexadecimal digits."""
    column = models.token.c.token_sha256
    query = select(*_TOKEN_COLUMNS).where(column >= prefix, column < f"{prefix}g")
    return [Token(**row) for row in (await connection.execute(query)).mappings()]


async def tokens(connection: AsyncConnection, user_id: str | None) -> list[Token]:
    """The tokens of a user, or of everybody, the oldest first."""
    query = select(*_TOKEN_COLUMNS).order_by(models.token.c.created_at)
    if user_id is not None:
        query = query.where(models.token.c.user_id == user_id)
    return [Token(**row) for row in (await connection.execute(query)).mappings()]
