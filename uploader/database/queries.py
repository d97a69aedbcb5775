"""Queries, on the caller's connection. `lock`: lock the found rows until the transaction ends.

Statements that run for every file are built once: building a statement takes several times longer than running it.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from uploader.database import models
from uploader.database.connection import AsyncConnection
from uploader.domain.bulk import beyond
from uploader.domain.links import Caller
from uploader.domain.upload import Concatenation, File, TrashReason, Upload, Usage, if_exists_of, kind_of, state_of

T = TypeVar("T")
Columns = ReadOnlyColumnCollection[str, sa.Column[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One row of `token`. The token itself is not stored."""

    token_sha256: str
    user_id: str
    admin: bool
    created_at: datetime
    revoked_at: datetime | None
    scope: str | None = None
    made_by: str | None = None

    @property
    def token_id(self) -> str:
        return self.token_sha256[:16]


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token with facts about its user. `has_user`: the user has a row. `admin`: the user is an administrator."""

    token: Token
    has_user: bool
    admin: bool


def _are_given(table: Columns, *columns: str) -> list[sa.ColumnElement[bool]]:
    """Return conditions that compare columns with parameters of the same names."""
    return [table[column] == sa.bindparam(column) for column in columns]


def _is(table: Columns, caller: Caller) -> list[sa.ColumnElement[bool]]:
    return [table.user_id == caller.user_id, table.session == caller.session]


def _key(caller: Caller) -> dict[str, Any]:
    return {"user_id": caller.user_id, "session": caller.session}


_UPLOADS, _FILES, _BLOBS = models.upload.c, models.file.c, models.blob.c
_FOLDERS = models.folder.c
_USERS, _TOKENS = models.user_info.c, models.token.c
_PLANS, _PARTS = models.concatenation.c, models.concatenation_part.c
# The column of `Upload.place`, named when the local store was the only store.
PLACE_COLUMN = "temp_path"
UPLOAD_COLUMNS = [
    _UPLOADS[PLACE_COLUMN if field.name == "place" else field.name].label(field.name) for field in fields(Upload)
]
FILE_COLUMNS = [field.name for field in fields(File) if field.name not in ("damaged", "held")]
USAGE = sa.select(*(_USERS[field.name] for field in fields(Usage)))
_TOKEN = sa.select(*(_TOKENS[field.name] for field in fields(Token)))


_UPLOAD = sa.select(*UPLOAD_COLUMNS)
FILE = sa.select(
    *(_FILES[name] for name in FILE_COLUMNS),
    sa.func.coalesce(_BLOBS.damaged, _BLOBS.sha256.is_(None)).label("damaged"),
).outerjoin_from(models.file, models.blob, _FILES.sha256 == _BLOBS.sha256)
_HELD = models.held_file.c
HELD_FILE = sa.select(
    *(_HELD[name] for name in FILE_COLUMNS),
    sa.func.coalesce(_BLOBS.damaged, _BLOBS.sha256.is_(None)).label("damaged"),
    sa.true().label("held"),
).outerjoin_from(models.held_file, models.blob, _HELD.sha256 == _BLOBS.sha256)
_TRASHED = models.trashed_file.c
# Files of visitors that a gate refused. A visitor sees them as complete, like held files.
_REFUSED = sa.select(
    *(_TRASHED[name] for name in FILE_COLUMNS), sa.false().label("damaged"), sa.true().label("held")
).where(_TRASHED.reason == TrashReason.REFUSED.value)
_REFUSED_BY_ID = _REFUSED.where(*_are_given(_TRASHED, "id", "user_id", "session")).limit(1)
_UPLOAD_BY_ID = _UPLOAD.where(_UPLOADS.id == sa.bindparam("upload_id")).limit(1)
_LOCKED_UPLOAD_BY_ID = _UPLOAD_BY_ID.with_for_update()
_OPEN_UPLOADS_OF_CALLER = (*_are_given(_UPLOADS, "user_id", "session"), _UPLOADS.open_flag == 1)
_OPEN_UPLOAD_BY_MD5 = _UPLOAD.where(*_OPEN_UPLOADS_OF_CALLER, _UPLOADS.md5 == sa.bindparam("md5")).limit(1)
_NEWEST_CLOSED_UPLOAD = (
    _UPLOAD.where(*_are_given(_UPLOADS, "user_id", "session", "md5"))
    .where(_UPLOADS.open_flag.is_(None))
    .order_by(_UPLOADS.id.desc())
    .limit(1)
)


def _along(index: str, table: sa.Table = models.upload) -> tuple[sa.Table, str, str]:
    """Return a hint to use an index. Without it, MySQL and MariaDB scan all closed uploads, and MySQL sometimes sorts all
    files for one page."""
    return table, f"FORCE INDEX ({index})", "mysql"


_CLOSED_OF_CALLER = (*_are_given(_UPLOADS, "user_id", "session"), _UPLOADS.open_flag.is_(None))
# The end of the oldest of the `newest` closed uploads; NULL if there are fewer.
_OLDEST_OF_NEWEST = (
    sa.select(_UPLOADS.closed_at)
    .with_hint(*_along("ix_upload_caller"))
    .where(*_CLOSED_OF_CALLER)
    .order_by(_UPLOADS.closed_at.desc())
    .limit(1)
    .offset(sa.bindparam("newest", type_=sa.Integer))
    .scalar_subquery()
)
_CLOSED_BEFORE_NEWEST = (
    _UPLOAD.with_hint(*_along("ix_upload_caller"))
    .where(*_CLOSED_OF_CALLER, _UPLOADS.closed_at < _OLDEST_OF_NEWEST)
    .limit(sa.bindparam("most", type_=sa.Integer))
)
_UPLOAD_BY_IDEMPOTENCY_KEY = _UPLOAD.where(*_are_given(_UPLOADS, "user_id", "session", "idempotency_key")).limit(1)
_OPEN_UPLOADS = _UPLOAD.where(*_OPEN_UPLOADS_OF_CALLER).order_by(_UPLOADS.id.desc())
_COUNT_OF_OPEN_UPLOADS = sa.select(sa.func.count()).select_from(models.upload).where(*_OPEN_UPLOADS_OF_CALLER)
_FILES_OF_USER = FILE.where(_FILES.user_id == sa.bindparam("user_id"))
_FILES_OF_NAMES = _FILES_OF_USER.where(_FILES.name.in_(sa.bindparam("names", expanding=True)))
_FILE_BY_ID = FILE.where(*_are_given(_FILES, "id", "user_id")).limit(1)
_HELD_BY_ID = HELD_FILE.where(*_are_given(_HELD, "id", "user_id")).limit(1)
_TOKEN_BY_HASH = (
    _TOKEN.add_columns(_USERS.user_id.is_not(None).label("has_user"), _USERS.admin.label("user_admin"))
    .outerjoin_from(models.token, models.user_info, _USERS.user_id == _TOKENS.user_id)
    .where(_TOKENS.token_sha256 == sa.bindparam("token_sha256"))
    .limit(1)
)
_USAGE = USAGE.where(_USERS.user_id == sa.bindparam("user_id")).limit(1)
_LOCKED_USAGE = _USAGE.with_for_update()


def upload_of(**row: Any) -> Upload:
    state = state_of(row["state"], is_closed=row["closed_at"] is not None)
    return Upload(**{**row, "state": state, "if_exists": if_exists_of(row["if_exists"]), "kind": kind_of(row["kind"])})


async def first_of(
    connection: AsyncConnection, make: Callable[..., T], query: sa.Executable, **values: object
) -> T | None:
    row = (await connection.execute(query, values)).mappings().first()
    return None if row is None else make(**row)


async def all_of(
    connection: AsyncConnection, make: Callable[..., T], query: sa.Executable, **values: object
) -> list[T]:
    found = await connection.execute(query, values)
    names = tuple(found.keys())  # a mapping of each row would look each of them up
    return [make(**dict(zip(names, row, strict=True))) for row in found.all()]


async def count(connection: AsyncConnection, *conditions: sa.ColumnElement[bool]) -> int:
    """Count the rows of a table that fulfil all conditions."""
    return int((await connection.execute(sa.select(sa.func.count()).where(*conditions))).scalar_one())


def _after(query: "sa.Select[Any]", key: sa.ColumnElement[str], after: str, limit: int) -> "sa.Select[Any]":
    return query.where(key > after).order_by(key).limit(limit)


async def upload_by_id(connection: AsyncConnection, upload_id: str, *, lock: bool = False) -> Upload | None:
    return await first_of(connection, upload_of, _LOCKED_UPLOAD_BY_ID if lock else _UPLOAD_BY_ID, upload_id=upload_id)


async def is_inserted(connection: AsyncConnection, upload_id: str) -> bool:
    """Return whether an upload has a row. While another transaction inserts the row, this raises an error that
    `Database.transact` retries."""
    query = sa.select(_UPLOADS.id).where(_UPLOADS.id == upload_id).with_for_update(nowait=True)
    return (await connection.execute(query)).first() is not None


async def uploads_by_id(connection: AsyncConnection, upload_ids: list[str]) -> dict[str, Upload]:
    query = _UPLOAD.where(_UPLOADS.id.in_(upload_ids))
    return {upload.id: upload for upload in await all_of(connection, upload_of, query)}


async def closed_uploads(connection: AsyncConnection, closed_before: datetime, limit: int) -> list[Upload]:
    query = _UPLOAD.where(_UPLOADS.closed_at < closed_before).limit(limit)
    return await all_of(connection, upload_of, query)


async def uploads_closed_between(
    connection: AsyncConnection, after: datetime, until: datetime, limit: int
) -> list[Upload]:
    """Return uploads in the order of their ends."""
    query = _UPLOAD.with_hint(*_along("ix_upload_closed"))
    query = query.where(_UPLOADS.closed_at > after, _UPLOADS.closed_at <= until)
    return await all_of(connection, upload_of, query.order_by(_UPLOADS.closed_at).limit(limit))


async def ends_of_uploads(
    connection: AsyncConnection, after: datetime, until: datetime, limit: int
) -> list[tuple[datetime, Caller]]:
    """Return the times when uploads were closed, with their callers, earliest first."""
    query = sa.select(_UPLOADS.closed_at, _UPLOADS.user_id, _UPLOADS.session).with_hint(*_along("ix_upload_closed"))
    query = query.where(_UPLOADS.closed_at > after, _UPLOADS.closed_at <= until)
    query = query.order_by(_UPLOADS.closed_at).limit(limit)
    return [(closed_at, Caller(*of)) for closed_at, *of in await connection.execute(query)]


async def closed_before_newest(
    connection: AsyncConnection, callers: Sequence[Caller], newest: int, limit: int
) -> list[Upload]:
    """Return closed uploads beyond the `newest` ones of each caller, at most `limit` in all."""
    found: list[Upload] = []
    for caller in callers:
        if len(found) < limit:
            asked = {**_key(caller), "newest": newest - 1, "most": limit - len(found)}
            found += await all_of(connection, upload_of, _CLOSED_BEFORE_NEWEST, **asked)
    return found


async def open_upload_by_md5(connection: AsyncConnection, caller: Caller, md5: str) -> Upload | None:
    return await first_of(connection, upload_of, _OPEN_UPLOAD_BY_MD5, **_key(caller), md5=md5)


async def newest_closed_upload(connection: AsyncConnection, caller: Caller, md5: str) -> Upload | None:
    """Return the last opened of the closed uploads. Servers with different clocks closed them."""
    return await first_of(connection, upload_of, _NEWEST_CLOSED_UPLOAD, **_key(caller), md5=md5)


async def upload_by_idempotency_key(connection: AsyncConnection, caller: Caller, key: str) -> Upload | None:
    return await first_of(connection, upload_of, _UPLOAD_BY_IDEMPOTENCY_KEY, **_key(caller), idempotency_key=key)


async def open_uploads(connection: AsyncConnection, caller: Caller) -> list[Upload]:
    """Newest first."""
    return await all_of(connection, upload_of, _OPEN_UPLOADS, **_key(caller))


async def open_uploads_of_user(connection: AsyncConnection, user_id: str) -> list[Upload]:
    """Return the open uploads of a user and of the visitors of their links, newest first."""
    query = _UPLOAD.where(_UPLOADS.user_id == user_id, _UPLOADS.open_flag == 1).order_by(_UPLOADS.id.desc())
    return await all_of(connection, upload_of, query)


async def count_open_uploads(connection: AsyncConnection, caller: Caller) -> int:
    return int((await connection.execute(_COUNT_OF_OPEN_UPLOADS, _key(caller))).scalar_one())


async def count_all_open_uploads(connection: AsyncConnection) -> int:
    return await count(connection, _UPLOADS.open_flag == 1)


async def open_md5s(connection: AsyncConnection, caller: Caller, md5s: list[str]) -> dict[str, Upload]:
    """Return the open uploads of a caller with these MD5s, by MD5."""
    query = _UPLOAD.where(*_OPEN_UPLOADS_OF_CALLER, _UPLOADS.md5.in_(md5s))
    uploads = await all_of(connection, upload_of, query, **_key(caller))
    return {upload.md5: upload for upload in uploads if upload.md5 is not None}


async def all_open_uploads(
    connection: AsyncConnection, after: str, limit: int, updated_before: datetime | None = None
) -> list[Upload]:
    """Return open uploads of all users in the order of ids, after the id `after`. `updated_before`: only uploads idle since
    then."""
    query = _UPLOAD.where(_UPLOADS.open_flag == 1)
    if updated_before is not None:
        query = query.where(_UPLOADS.updated_at < updated_before)
    return await all_of(connection, upload_of, _after(query, _UPLOADS.id, after, limit))


async def promised_bytes(connection: AsyncConnection) -> int:
    """Return the bytes that open uploads may still write. Sum over users, because uploads are far more, and all writers
    would wait for the row of a global counter."""
    query = sa.select(sa.func.coalesce(sa.func.sum(_USERS.reserved - _USERS.use_space_unfinished), 0))
    return int((await connection.execute(query)).scalar_one())


@cache
def _newest_file(sound: bool, *facts: str) -> "sa.Select[Any]":
    of_sound = [~_BLOBS.damaged, _BLOBS.reread_at.is_(None)] if sound else []
    return FILE.where(*_are_given(_FILES, *facts), *of_sound).order_by(_FILES.id.desc()).limit(1)


async def newest_file(
    connection: AsyncConnection,
    caller: Caller,
    md5: str,
    *,
    size: int | None = None,
    sha256: str | None = None,
    name: str | None = None,
    sound: bool = False,
) -> File | None:
    """Return the newest file of a caller with these facts. `sound`: skip damaged and unreadable contents."""
    asked = {"user_id": caller.user_id, "md5": md5, "size": size, "sha256": sha256}
    # The owner's files include files that visitors sent.
    asked |= {"session": caller.session, "asked_name": name} if caller.session else {"name": name}
    given = {fact: value for fact, value in asked.items() if value is not None}
    return await first_of(connection, File, _newest_file(sound, *given), **given)


async def file_by_id(connection: AsyncConnection, user_id: str, file_id: str) -> File | None:
    return await first_of(connection, File, _FILE_BY_ID, id=file_id, user_id=user_id)


async def held_by_id(connection: AsyncConnection, user_id: str, file_id: str) -> File | None:
    return await first_of(connection, File, _HELD_BY_ID, id=file_id, user_id=user_id)


async def file_or_held(connection: AsyncConnection, user_id: str, file_id: str) -> File | None:
    """Return a finished or a held file."""
    found = await file_by_id(connection, user_id, file_id)
    return found or await held_by_id(connection, user_id, file_id)


async def file_of_upload(connection: AsyncConnection, upload: Upload) -> File | None:
    """Return the file of a finished upload. For a visitor, include refused files: a visitor does not learn the verdict of a
    gate."""
    found = await file_or_held(connection, upload.user_id, upload.file_id or "")
    if found is None and upload.session:
        refused = {"id": upload.file_id or "", **_key(upload.caller)}
        found = await first_of(connection, File, _REFUSED_BY_ID, **refused)
    return found


@cache
def _newest_held(*facts: str) -> "sa.Select[Any]":
    return HELD_FILE.where(*_are_given(_HELD, *facts)).order_by(_HELD.id.desc()).limit(1)


@cache
def _newest_refused(*facts: str) -> "sa.Select[Any]":
    return _REFUSED.where(*_are_given(_TRASHED, *facts)).order_by(_TRASHED.id.desc()).limit(1)


async def newest_held(
    connection: AsyncConnection,
    caller: Caller,
    *,
    md5: str | None = None,
    size: int | None = None,
    sha256: str | None = None,
    name: str | None = None,
) -> File | None:
    """Return the newest held file of a caller with these facts. For a visitor, include refused files. `name`: the name that
    the caller asked for."""
    asked = {**_key(caller), "md5": md5, "size": size, "sha256": sha256}
    asked |= {"asked_name" if caller.session else "name": name}
    given = {fact: value for fact, value in asked.items() if value is not None}
    found = await first_of(connection, File, _newest_held(*given), **given)
    if found is None and caller.session:
        found = await first_of(connection, File, _newest_refused(*given), **given)
    return found


async def newest_sent(connection: AsyncConnection, caller: Caller, md5: str) -> tuple[File, bool] | None:
    """Return the newest finished, held or refused file of a caller with an MD5. The second value is true if a gate refused
    the file."""
    given = {**_key(caller), "md5": md5}
    file = await newest_file(connection, caller, md5)
    held = await first_of(connection, File, _newest_held(*given), **given)
    refused = await first_of(connection, File, _newest_refused(*given), **given)
    found = [(each, each is refused) for each in (file, held, refused) if each is not None]
    return max(found, key=lambda sent: sent[0].id, default=None)


async def held_md5s(connection: AsyncConnection, caller: Caller, md5s: list[str]) -> set[str]:
    """Return the MD5s whose newest file of the caller is held. For a visitor, include refused files."""
    found = set[str]()
    for table, conditions in ((_HELD, ()), (_TRASHED, (_TRASHED.reason == TrashReason.REFUSED.value,))):
        if table is _HELD or caller.session:
            newer = [_FILES.user_id == caller.user_id, _FILES.md5 == table.md5, _FILES.id > table.id]
            newer += [_FILES.session == caller.session] if caller.session else []
            query = sa.select(table.md5).where(*_is(table, caller), table.md5.in_(md5s), *conditions)
            query = query.where(~sa.exists().where(*newer)).distinct()
            found |= set((await connection.execute(query)).scalars())
    return found


async def held_files(
    connection: AsyncConnection,
    user_id: str,
    *,
    limit: int,
    after: str | None = None,
    prefix: str | None = None,
    part: str | None = None,
) -> list[File]:
    """Return a user's held files, newest first, after the id `after`."""
    query = HELD_FILE.where(*below(user_id, prefix or "", models.held_file))
    if after is not None:
        query = query.where(_HELD.id < after)
    if part:
        query = query.where(sa.func.instr(_HELD.name, part.encode()) > 0)
    return await all_of(connection, File, query.order_by(_HELD.id.desc()).limit(limit))


async def held_by_ids(connection: AsyncConnection, user_id: str, ids: Sequence[str]) -> list[File]:
    query = HELD_FILE.where(_HELD.user_id == user_id, _HELD.id.in_(ids)).order_by(_HELD.id)
    return await all_of(connection, File, query)


async def file_of_anybody(connection: AsyncConnection, file_id: str) -> File | None:
    found = await first_of(connection, File, FILE.where(_FILES.id == file_id).limit(1))
    return found or await first_of(connection, File, HELD_FILE.where(_HELD.id == file_id).limit(1))


async def files_of_names(connection: AsyncConnection, user_id: str, names: list[str]) -> list[File]:
    """Return the files of these names."""
    return await all_of(connection, File, _FILES_OF_NAMES, user_id=user_id, names=names)


async def files_of_content_below(
    connection: AsyncConnection, user_id: str, sha256: str, prefix: str, limit: int = 100
) -> list[File]:
    """Return files of one content below a prefix. The prefix is not empty."""
    query = FILE.where(*below(user_id, prefix), _FILES.sha256 == sha256).order_by(_FILES.name).limit(limit)
    return await all_of(connection, File, query)


async def folder_rows(connection: AsyncConnection, user_id: str, names: Sequence[str]) -> list[str]:
    """Return the empty folders among `names`."""
    query = sa.select(_FOLDERS.name).where(_FOLDERS.user_id == user_id, _FOLDERS.name.in_(names))
    return list((await connection.execute(query)).scalars())


async def left_folders(connection: AsyncConnection, user_id: str, limit: int) -> list[str]:
    """Return folders that remained after their last files, oldest first. Leave out folders at or below a link, because the
    link would lose its folder."""
    links = models.link.c
    is_above = sa.func.substr(_FOLDERS.name, 1, sa.func.length(links.name)) == links.name
    linked = sa.exists().where(links.user_id == user_id, links.file_id.is_(None), links.end_reason.is_(None), is_above)
    query = sa.select(_FOLDERS.name).where(_FOLDERS.user_id == user_id, ~_FOLDERS.made, ~linked)
    return list((await connection.execute(query.order_by(_FOLDERS.created_at, _FOLDERS.name).limit(limit))).scalars())


async def folder_rows_below(
    connection: AsyncConnection, user_id: str, prefix: str, after: str, limit: int
) -> list[str]:
    """Return empty folders below a prefix, by name, after the name `after`."""
    query = sa.select(_FOLDERS.name).where(*below(user_id, prefix, models.folder), _FOLDERS.name > after)
    return list((await connection.execute(query.order_by(_FOLDERS.name).limit(limit))).scalars())


async def files_by_sha256(connection: AsyncConnection, sha256: str, limit: int | None = None) -> list[File]:
    """Return the files of all users with this content, oldest first."""
    query = FILE.where(_FILES.sha256 == sha256).order_by(_FILES.id).limit(limit)
    return await all_of(connection, File, query)


async def usage(connection: AsyncConnection, user_id: str, *, lock: bool = False) -> Usage | None:
    return await first_of(connection, Usage, _LOCKED_USAGE if lock else _USAGE, user_id=user_id)


async def token_by_hash(connection: AsyncConnection, token_sha256: str) -> ShownToken | None:
    return await first_of(connection, _shown_token, _TOKEN_BY_HASH, token_sha256=token_sha256)


def _shown_token(has_user: bool, user_admin: bool | None, **token: Any) -> ShownToken:
    return ShownToken(Token(**token), bool(has_user), bool(user_admin))


async def tokens_by_id(connection: AsyncConnection, prefix: str) -> list[Token]:
    """`prefix`: the first hexadecimal digits of the SHA-256."""
    column = _TOKENS.token_sha256
    return await all_of(connection, Token, _TOKEN.where(column >= prefix, column < f"{prefix}g"))


async def tokens(connection: AsyncConnection, user_id: str | None) -> list[Token]:
    """Return the tokens of a user, or of everybody, the oldest first."""
    query = _TOKEN.order_by(_TOKENS.created_at)
    if user_id is not None:
        query = query.where(_TOKENS.user_id == user_id)
    return await all_of(connection, Token, query)


@dataclass(frozen=True, slots=True)
class Blob:
    """One row of `blob`."""

    sha256: str
    md5: str | None
    size: int
    refs: int
    damaged: bool
    # When the bytes were last read back, with or without success.
    scrubbed_at: datetime | None
    # When to read again, after a failure.
    reread_at: datetime | None
    # Names of gates that passed the content.
    passed: str | None

    def has_passed(self, gates: Collection[str]) -> bool:
        return set(gates) <= set((self.passed or "").split())

    @property
    def is_sound(self) -> bool:
        """The bytes are not known to be damaged or unreadable."""
        return not self.damaged and self.reread_at is None


_BLOB_COLUMNS = [_BLOBS[field.name] for field in fields(Blob)]

_BLOB = sa.select(*_BLOB_COLUMNS)
_BLOBS_BY_MD5 = (
    _BLOB.where(*_are_given(_BLOBS, "md5", "size"))
    .where(sa.exists().where(_FILES.sha256 == _BLOBS.sha256))
    .order_by(_BLOBS.sha256)
)
# A list of MD5s becomes a table, as in `transactions/rows.py`. With IN, MariaDB scans all files of the user.
_OF_USER_SQLITE = """
SELECT DISTINCT {columns} FROM json_each(:md5s) AS asked
CROSS JOIN file ON file.user_id = :user_id AND file.md5 = CAST(asked.value AS BLOB){also}
CROSS JOIN `blob` ON `blob`.sha256 = file.sha256
"""
_OF_USER_MYSQL = """
SELECT DISTINCT {columns} FROM JSON_TABLE(:md5s, '$[*]' COLUMNS (
  md5 VARCHAR(32) CHARACTER SET utf8mb4 PATH '$'
)) AS asked
STRAIGHT_JOIN file FORCE INDEX (ix_file_user_md5) ON file.user_id = :user_id AND file.md5 = CAST(asked.md5 AS BINARY){also}
STRAIGHT_JOIN `blob` ON `blob`.sha256 = file.sha256
"""


def _of_user(statement: str, *columns: str) -> sa.TextualSelect:
    selected = ", ".join(f"`blob`.{column.name}" for column in _BLOB_COLUMNS)
    also = "".join(f" AND file.{column} = :{column}" for column in columns)
    bound = [sa.bindparam(column, type_=_FILES[column].type) for column in ("user_id", *columns)]
    return sa.text(statement.format(columns=selected, also=also)).bindparams(*bound).columns(*_BLOB_COLUMNS)


_OF_USER = {"sqlite": _of_user(_OF_USER_SQLITE), "mysql": _of_user(_OF_USER_MYSQL)}
_OF_SESSION = {"sqlite": _of_user(_OF_USER_SQLITE, "session"), "mysql": _of_user(_OF_USER_MYSQL, "session")}
_BLOB_BY_SHA256 = _BLOB.where(_BLOBS.sha256 == sa.bindparam("sha256")).limit(1)
_MD5_OF_BLOB = sa.select(_BLOBS.md5).where(_BLOBS.sha256 == sa.bindparam("of_blob"))
_LOCKED_BLOB_BY_SHA256 = _BLOB_BY_SHA256.with_for_update()


async def contents_by_md5(connection: AsyncConnection, caller: Caller, md5s: list[str]) -> list[Blob]:
    """Return the sound contents of a caller's files with these MD5s."""
    query = (_OF_SESSION if caller.session else _OF_USER)[connection.dialect.name]
    asked = _key(caller) if caller.session else {"user_id": caller.user_id}
    found = await all_of(connection, Blob, query, **asked, md5s=json.dumps(md5s))
    return [blob for blob in found if blob.is_sound]


async def blobs_by_md5(connection: AsyncConnection, md5: str, size: int) -> list[Blob]:
    """Return the sound blobs of visible files with this MD5 and size. Different contents may share an MD5."""
    found = await all_of(connection, Blob, _BLOBS_BY_MD5, md5=md5, size=size)
    # Filtered here: with a condition on `damaged`, SQLite would scan the index of `damaged`.
    return [blob for blob in found if blob.refs > 0 and blob.is_sound]


async def md5_of(connection: AsyncConnection, sha256: str) -> str | None:
    """Return the MD5 of a blob, or None if unknown."""
    md5: str | None = (await connection.execute(_MD5_OF_BLOB, {"of_blob": sha256})).scalar()
    return md5


async def blobs_by_sha256(connection: AsyncConnection, sha256s: list[str]) -> dict[str, Blob]:
    query = _BLOB.where(_BLOBS.sha256.in_(sha256s))
    return {blob.sha256: blob for blob in await all_of(connection, Blob, query)}


async def known_blobs(connection: AsyncConnection, sha256s: list[str], *, lock: bool = False) -> set[str]:
    """Return the SHA-256s that have a row. `lock` also waits for rows that other transactions insert."""
    query = sa.select(_BLOBS.sha256).where(_BLOBS.sha256.in_(sha256s)).order_by(_BLOBS.sha256)
    return set((await connection.execute(query.with_for_update() if lock else query)).scalars())


async def blobs_to_scrub(
    connection: AsyncConnection, *, placed_before: datetime, scrubbed_before: datetime, limit: int
) -> list[Blob]:
    """Return blobs in use: first those placed before `placed_before` and never read back, then those last read back before
    `scrubbed_before`; oldest first."""
    in_use = _BLOB.where(_BLOBS.refs > 0)
    first = in_use.where(_BLOBS.scrubbed_at.is_(None), _BLOBS.created_at < placed_before).order_by(_BLOBS.created_at)
    again = in_use.where(_BLOBS.scrubbed_at < scrubbed_before).order_by(_BLOBS.scrubbed_at)
    found: list[Blob] = []
    for query in (first, again):
        found += await all_of(connection, Blob, query.limit(limit - len(found)))
        if len(found) == limit:
            break
    return found


async def blobs_to_reread(connection: AsyncConnection, now: datetime, limit: int) -> list[Blob]:
    """Return unreadable blobs in use that are due to be read again, longest waiting first."""
    query = _BLOB.where(_BLOBS.refs > 0, _BLOBS.reread_at <= now).order_by(_BLOBS.reread_at).limit(limit)
    return await all_of(connection, Blob, query)


async def unscrubbed_since(connection: AsyncConnection) -> tuple[datetime | None, datetime | None]:
    """Return when the oldest blob that was never read back was placed, and the earliest last reading of the others; blobs in
    use."""
    placed = sa.select(sa.func.min(_BLOBS.created_at)).where(_BLOBS.refs > 0, _BLOBS.scrubbed_at.is_(None))
    scrubbed = sa.select(sa.func.min(_BLOBS.scrubbed_at)).where(_BLOBS.refs > 0, _BLOBS.scrubbed_at.is_not(None))
    return (await connection.execute(placed)).scalar(), (await connection.execute(scrubbed)).scalar()


async def count_damaged_blobs(connection: AsyncConnection) -> int:
    return await count(connection, _BLOBS.damaged, _BLOBS.refs > 0)


async def count_unreadable_blobs(connection: AsyncConnection) -> int:
    """Count blobs in use that cannot be read and are not known to be damaged."""
    return await count(connection, _BLOBS.reread_at.is_not(None), ~_BLOBS.damaged, _BLOBS.refs > 0)


async def blobs_without_refs(connection: AsyncConnection, limit: int) -> list[str]:
    query = sa.select(_BLOBS.sha256).where(_BLOBS.refs == 0).limit(limit)
    return list((await connection.execute(query)).scalars())


async def blobs_in_use(connection: AsyncConnection, after: str, limit: int) -> list[Blob]:
    """Return blobs in the order of SHA-256."""
    return await all_of(connection, Blob, _after(_BLOB.where(_BLOBS.refs > 0), _BLOBS.sha256, after, limit))


async def blobs_in_stretch(
    connection: AsyncConnection, after: str, until: str | None, limit: int, *, by_location: bool
) -> list[tuple[str, str, int]]:
    """Return key, SHA-256 and size of blobs in use with keys after `after` and up to `until`, in order. The key is the
    location or the SHA-256."""
    key = _BLOBS.location if by_location else _BLOBS.sha256
    query = sa.select(key.label("key"), _BLOBS.sha256.label("sha256"), _BLOBS.size).where(_BLOBS.refs > 0)
    if until is not None:
        query = query.where(key <= until)
    return [tuple(row) for row in await connection.execute(_after(query, key, after, limit))]


async def blobs_without_location(connection: AsyncConnection, after: str, limit: int) -> list[str]:
    """Return the SHA-256s of blobs in use without a location."""
    query = sa.select(_BLOBS.sha256).where(_BLOBS.refs > 0, _BLOBS.location.is_(None))
    return list((await connection.execute(_after(query, _BLOBS.sha256, after, limit))).scalars())


async def blob_by_sha256(connection: AsyncConnection, sha256: str, *, lock: bool = False) -> Blob | None:
    query = _LOCKED_BLOB_BY_SHA256 if lock else _BLOB_BY_SHA256
    return await first_of(connection, Blob, query, sha256=sha256)


_COLUMNS = [_PLANS[name] for name in ("id", "user_id", "session", "name", "metadata", "ordered", "created_at")]


async def concatenation_by_id(
    connection: AsyncConnection, concatenation_id: str, *, lock: bool = False
) -> Concatenation | None:
    return await _first_concatenation(connection, _PLANS.id == concatenation_id, lock=lock)


async def concatenation_by_parts(
    connection: AsyncConnection, caller: Caller, parts_sha256: str
) -> Concatenation | None:
    return await _first_concatenation(connection, sa.and_(*_is(_PLANS, caller), _PLANS.parts_sha256 == parts_sha256))


async def _first_concatenation(
    connection: AsyncConnection, condition: sa.ColumnElement[bool], *, lock: bool = False
) -> Concatenation | None:
    query = sa.select(*_COLUMNS).where(condition)
    row = (await connection.execute(query.with_for_update() if lock else query)).mappings().first()
    if row is None:
        return None
    parts = sa.select(_PARTS.part_id).where(_PARTS.concatenation_id == row["id"]).order_by(_PARTS.position)
    return Concatenation(**row, part_ids=tuple((await connection.execute(parts)).scalars()))


async def is_concatenation(connection: AsyncConnection, caller: Caller, concatenation_id: str) -> bool:
    """Return whether a caller has a concatenation with this id, open or closed."""
    query = sa.select(_PLANS.id).where(_PLANS.id == concatenation_id, *_is(_PLANS, caller))
    return (await connection.execute(query)).first() is not None


async def concatenations_waiting_for(connection: AsyncConnection, part_id: str) -> list[str]:
    """Return the ids of open concatenations with this part."""
    query = (
        sa.select(_PLANS.id)
        .join_from(models.concatenation_part, models.concatenation, _PLANS.id == _PARTS.concatenation_id)
        .where(_PARTS.part_id == part_id, _PLANS.open_flag == 1)
    )
    return sorted(set((await connection.execute(query)).scalars()))


async def has_concatenations(connection: AsyncConnection) -> bool:
    """Return whether any concatenation is open."""
    query = sa.select(_PLANS.id).where(_PLANS.open_flag == 1).limit(1)
    return (await connection.execute(query)).first() is not None


async def due_concatenations(connection: AsyncConnection, after: str, limit: int) -> list[str]:
    """Return the ids of open concatenations that have an upload already, that have lost a part, or whose parts are all
    complete by the accounted bytes."""
    own_part = _PARTS.concatenation_id == _PLANS.id
    is_open = sa.and_(_UPLOADS.id == _PARTS.part_id, _UPLOADS.open_flag == 1)
    is_joined = sa.exists().where(_UPLOADS.id == _PLANS.id)
    has_lost_a_part = sa.exists().where(own_part, ~sa.exists().where(is_open))
    has_all = sa.and_(_UPLOADS.length_known, _UPLOADS.flushed_bytes >= _UPLOADS.size)
    is_under_way = sa.exists().where(own_part, is_open, ~has_all)
    query = sa.select(_PLANS.id).where(_PLANS.open_flag == 1, sa.or_(is_joined, has_lost_a_part, ~is_under_way))
    return list((await connection.execute(_after(query, _PLANS.id, after, limit))).scalars())


async def count_waiting_concatenations(connection: AsyncConnection, caller: Caller) -> int:
    is_joined = sa.exists().where(_UPLOADS.id == _PLANS.id)
    return await count(connection, *_is(_PLANS, caller), _PLANS.open_flag == 1, ~is_joined)


# Up to this number of names below a prefix are read by the index of names and sorted. If there are more, scan from the
# newest file.
MOST_SORTED = 2000


async def files(
    connection: AsyncConnection, user_id: str, *, limit: int, after: str | None, prefix: str | None, part: str | None
) -> list[File]:
    """Return files newest first, after the id `after`, with names that start with `prefix` and contain `part`, byte by
    byte."""
    ids = await _few_below(connection, user_id, prefix) if prefix and not part else None
    if ids is not None:
        page = sorted((each for each in ids if after is None or each < after), reverse=True)[:limit]
        return (await files_by_ids(connection, user_id, page))[::-1]
    query = FILE.order_by(_FILES.id.desc())
    if part:
        query = query.where(_FILES.id.in_(_ids_by_part_of_name(user_id, limit, after, prefix, part)))
    else:
        query = query.with_hint(*_along("ix_file_user", models.file)).where(_FILES.user_id == user_id)
        if after is not None:
            query = query.where(_FILES.id < after)
        if prefix:
            # substr works on bytes here: the column is binary in every database.
            query = query.where(sa.func.substr(_FILES.name, 1, len(prefix.encode())) == prefix.encode())
        query = query.limit(limit)
    return await all_of(connection, File, query)


async def _few_below(connection: AsyncConnection, user_id: str, prefix: str) -> list[str] | None:
    """Return the ids of files below a prefix; None if there are more than `MOST_SORTED`."""
    query = sa.select(_FILES.id).with_hint(*_along("uq_file_name", models.file)).where(*below(user_id, prefix))
    ids = list((await connection.execute(query.limit(MOST_SORTED + 1))).scalars())
    return ids if len(ids) <= MOST_SORTED else None


def _ids_by_part_of_name(user_id: str, limit: int, after: str | None, prefix: str | None, part: str) -> Any:
    """Scan only the index of names, which is much smaller than the table, and read the rows of matching names."""
    # Not the column itself, or SQLite would scan the rows in the order of ids.
    key = sa.func.substr(_FILES.id, 1, type_=_FILES.id.type)
    conditions = [*below(user_id, prefix or ""), sa.func.instr(_FILES.name, part.encode()) > 0]
    if after is not None:
        conditions.append(key < after)
    found = sa.select(_FILES.id).with_hint(*_along("uq_file_name", models.file)).where(*conditions)
    return sa.select(found.order_by(key.desc()).limit(limit).subquery().c.id)


async def files_below(
    connection: AsyncConnection, user_id: str, prefix: str, *, limit: int, after: File | None
) -> list[File]:
    """Return files below a prefix in the order of ids, after the file `after`."""
    query = FILE.where(*below(user_id, prefix)).order_by(_FILES.id).limit(limit)
    if after is not None:
        query = query.where(_FILES.id > after.id)
    return await all_of(connection, File, query)


_FILES_FROM = (
    _FILES_OF_USER.where(_FILES.name >= sa.bindparam("prefix"))
    .where(_FILES.name < sa.bindparam("beyond", type_=sa.LargeBinary))
    .order_by(_FILES.name)
    .limit(sa.bindparam("most", type_=sa.Integer))
)


async def files_from(connection: AsyncConnection, user_id: str, prefix: str, limit: int) -> list[File]:
    """Return the first files below a prefix by name. The prefix is not empty."""
    asked = {"user_id": user_id, "prefix": prefix, "beyond": beyond(prefix.encode()), "most": limit}
    return await all_of(connection, File, _FILES_FROM, **asked)


async def held_below(connection: AsyncConnection, user_id: str, prefix: str, limit: int) -> list[File]:
    """Return held files that ask for names below a prefix."""
    query = HELD_FILE.where(*below(user_id, prefix, models.held_file)).order_by(_HELD.name).limit(limit)
    return await all_of(connection, File, query)


async def names_by_ids(connection: AsyncConnection, user_id: str, ids: Sequence[str]) -> list[str]:
    query = sa.select(_FILES.name).where(_FILES.user_id == user_id, _FILES.id.in_(ids))
    return list((await connection.execute(query)).scalars().all())


async def files_by_ids(connection: AsyncConnection, user_id: str, ids: Sequence[str]) -> list[File]:
    query = FILE.where(_FILES.user_id == user_id, _FILES.id.in_(ids)).order_by(_FILES.id)
    return await all_of(connection, File, query)


def below(user_id: str, prefix: str, table: sa.Table = models.file) -> list[sa.ColumnElement[bool]]:
    """Return conditions for the names below a prefix, which the database looks up in the index of names."""
    if not prefix:
        return [table.c.user_id == user_id]
    last = sa.literal(beyond(prefix.encode()), sa.LargeBinary)
    return [table.c.user_id == user_id, table.c.name >= prefix, table.c.name < last]
