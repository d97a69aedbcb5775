"""Changes of rows that several transactions share, and their errors.

Statements that run for every file are built once: building a statement takes several times longer than running it. One
statement writes many rows: the batch is one JSON text, and the database turns the text into a table. So each row costs one
look-up by key, while a CASE would compare each row with the whole batch. Only features documented for both MySQL and MariaDB
are used. Keys are VARBINARY, so values from the text are cast to bytes before a comparison.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import insert as mysql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from uploader.database import models, queries
from uploader.database.connection import AsyncConnection
from uploader.database.models import UtcDateTime, blob, delivery, file, held_file, put_away, upload, user_info
from uploader.database.outbox import DEAD, DELIVERED, WAITING, listens, tell_all
from uploader.database.trash import forget_left_folders, forget_oldest
from uploader.domain.events import EventType, content_damaged, content_healed
from uploader.domain.names import MAX_NAME_BYTES
from uploader.domain.upload import REFUSED, TRANSITIONS, File, IfExists, State, Upload, UploadKind, Usage
from uploader.errors import QuotaExceeded, TooManyFiles
from uploader.runtime.crashpoints import crash_point


def given(*columns: str) -> dict[str, Any]:
    """Return values that set columns to parameters: `new_size` for `size`."""
    return {column: sa.bindparam(f"new_{column}") for column in columns}


def _bytes(name: str) -> sa.BindParameter[int]:
    return sa.bindparam(name, type_=sa.BigInteger)


_users = user_info.c
_OF_USER = sa.update(user_info).where(_users.user_id == sa.bindparam("of_user"))
_THAT_HAS_ROOM = _OF_USER.where(_users.total_space - _users.use_space_finished - _users.reserved >= _bytes("more"))
RESERVE = _THAT_HAS_ROOM.values(reserved=_users.reserved + _bytes("more"))
# For a new upload.
RESERVE_ANEW = _THAT_HAS_ROOM.where(_users.files < _bytes("max_files")).values(
    reserved=_users.reserved + _bytes("more"), files=_users.files + 1
)
RELEASE = _OF_USER.values(reserved=_users.reserved - _bytes("less"))
ADD_FINISHED = _OF_USER.values(
    use_space_finished=_users.use_space_finished + _bytes("more"), files=_users.files + _bytes("more_files")
)
SETTLE_USER = _OF_USER.values(
    use_space_unfinished=_users.use_space_unfinished - _bytes("flushed"),
    reserved=_users.reserved - _bytes("size"),
    use_space_finished=_users.use_space_finished + _bytes("finished"),
    files=_users.files + _bytes("more_files"),
)

INSERT_UPLOAD = sa.insert(upload)
_OF_UPLOAD = sa.update(upload).where(upload.c.id == sa.bindparam("of_upload"))
TELL_DIGESTS = _OF_UPLOAD.values(given("md5", "sha256"))
RESIZE_UPLOAD = _OF_UPLOAD.values(given("size", "length_known", "updated_at"))
CLOSE_UPLOAD = _OF_UPLOAD.values(
    given("state", "close_reason", "file_id", "md5", "closed_at")
    | {"open_flag": None, "updated_at": sa.bindparam("new_closed_at")}
)
# Find the upload by `closed_at`, which equals `created_at` of the file.
REFUSE_UPLOAD = (
    sa.update(upload)
    .where(
        *(upload.c[name] == sa.bindparam(f"of_{name}") for name in ("user_id", "session", "closed_at", "file_id")),
        upload.c.open_flag.is_(None),
    )
    .values(close_reason=REFUSED)
)

INSERT_FILE = sa.insert(file)
INSERT_HELD = sa.insert(held_file)
LOCK_HELD = sa.select(held_file.c.event_id).where(held_file.c.id == sa.bindparam("of_file")).with_for_update()
DELETE_HELD = sa.delete(held_file).where(held_file.c.id == sa.bindparam("removed"))
_OF_EVENT = sa.update(delivery).where(delivery.c.outbox_id == sa.bindparam("of_event"))
# A worker loses the task that it holds. Dead tasks stay dead and decide nothing.
END_TASKS = _OF_EVENT.where(delivery.c.state == WAITING).values(
    state=DELIVERED, held=False, lease=None, due_at=sa.bindparam("ended_at", type_=UtcDateTime), on_failure=None
)
FORGET_FAILURES = _OF_EVENT.where(delivery.c.state == DEAD).values(on_failure=None)
DELETE_FILE = sa.delete(file).where(file.c.id == sa.bindparam("removed"))
# Delete many files, after their names were read under the lock of the user's row.
_DELETE_FILES = {
    "mysql": """DELETE file FROM {batch} STRAIGHT_JOIN file ON file.id = CAST(item.id AS BINARY)""",
    "sqlite": "DELETE FROM file WHERE id IN (SELECT CAST(value ->> 0 AS BLOB) FROM json_each(:batch))",
}
_NAMES_OF_FILES = {
    "mysql": """SELECT file.id, file.name FROM {batch} STRAIGHT_JOIN file ON file.id = CAST(item.id AS BINARY)""",
    "sqlite": """SELECT file.id, file.name FROM json_each(:batch) AS item
CROSS JOIN file ON file.id = CAST(item.value ->> 0 AS BLOB)""",
}
_LOCK_BLOBS_MYSQL = """SELECT `blob`.sha256 FROM {batch} STRAIGHT_JOIN `blob` ON `blob`.sha256 = CAST(item.id AS BINARY)
FOR UPDATE"""
_DROP_REFS_MYSQL = """UPDATE {batch} STRAIGHT_JOIN `blob` ON `blob`.sha256 = CAST(item.id AS BINARY)
SET `blob`.refs = `blob`.refs - item.fewer"""
# Delete a file only if it still has the name: after a rename, the caller no longer means this file.
DELETE_NAMED_FILE = DELETE_FILE.where(file.c.name == sa.bindparam("of_name"))

# A temporary name: no valid name begins with a slash.
GIVE_UP_NAMES = (
    sa.update(file)
    .where(file.c.user_id == sa.bindparam("of_user"), file.c.id.in_(sa.bindparam("ids", expanding=True)))
    .values(name=sa.cast(sa.literal("/", sa.String) + sa.type_coerce(file.c.id, sa.String), sa.LargeBinary))
)

_OF_BLOB = blob.c.sha256 == sa.bindparam("of_blob")
LOCK_BLOB = sa.select(blob.c.sha256).where(_OF_BLOB).with_for_update()
LOCK_REFS = sa.select(blob.c.refs, blob.c.size, blob.c.location).where(_OF_BLOB).with_for_update()
DELETE_BLOB = sa.delete(blob).where(_OF_BLOB)
LOCK_DAMAGED = sa.select(blob.c.damaged).where(_OF_BLOB).with_for_update()
# A caller that adds a ref by these statements places new bytes.
_PLACED: dict[str, Any] = {
    "damaged": False,
    "scrubbed_at": None,
    "reread_at": None,
    "created_at": sa.bindparam("placed_at"),
}
_MORE = {"refs": blob.c.refs + 1, **_PLACED}
ADD_REF = {
    "sqlite": sqlite_insert(blob).on_conflict_do_update(index_elements=["sha256"], set_=_MORE),
    "mysql": mysql_insert(blob).on_duplicate_key_update(**_MORE),
}
# Only rows without an MD5.
FILL_MD5 = {
    table.name: sa.update(table)
    .where(table.c.sha256 == sa.bindparam("of_content"), table.c.md5.is_(None))
    .values(md5=sa.bindparam("computed"))
    for table in (blob, file)
}
TAKE_REF = sa.update(blob).where(blob.c.sha256 == sa.bindparam("taken"), blob.c.refs > 0).values(refs=blob.c.refs + 1)
# Locations of contents, in a store with locations.
LOCATED = sa.select(blob.c.sha256, blob.c.size, blob.c.location).where(
    blob.c.sha256.in_(sa.bindparam("of_contents", expanding=True)), blob.c.location.is_not(None)
)
RELOCATE = (
    sa.update(blob).where(blob.c.sha256 == sa.bindparam("of_content")).values(location=sa.bindparam("new_location"))
)
# An existing row stays as it is.
PUT_AWAY = {
    "sqlite": sqlite_insert(put_away).on_conflict_do_nothing(index_elements=["object_key"]),
    "mysql": mysql_insert(put_away).on_duplicate_key_update(object_key=put_away.c.object_key),
}
BRING_BACK = sa.delete(put_away).where(put_away.c.object_key.in_(sa.bindparam("keys", expanding=True)))
DROP_REFS = sa.update(blob).where(blob.c.sha256 == sa.bindparam("dropped")).values(refs=blob.c.refs - _bytes("fewer"))


def _of_batch(statement: str, **columns: int | None) -> sa.TextClause:
    """Replace `{batch}` in a statement for MySQL by a table. `columns`: the length of the texts in each column, or None for
    numbers."""
    types = ["BIGINT" if length is None else f"VARCHAR({length}) CHARACTER SET utf8mb4" for length in columns.values()]
    named = zip(columns, types, range(len(types)), strict=True)
    listed = ", ".join(f"{column} {of_type} PATH '$[{place}]'" for column, of_type, place in named)
    return sa.text(statement.format(batch=f"JSON_TABLE(:batch, '$[*]' COLUMNS ({listed})) AS item"))


# Rows are locked in the order of the text, because STRAIGHT_JOIN looks them up one by one.
_LOCK_OPEN_MYSQL = """
SELECT upload.id, upload.user_id, upload.flushed_generation, upload.flushed_bytes,
  CASE WHEN upload.length_known AND COALESCE(upload.kind, '') <> 'part' THEN upload.size END
FROM JSON_TABLE(:ids, '$[*]' COLUMNS (id VARCHAR(32) CHARACTER SET utf8mb4 PATH '$')) AS item
  STRAIGHT_JOIN upload ON upload.id = CAST(item.id AS BINARY)
WHERE upload.state = 'OPEN' FOR UPDATE"""
_SET_FLUSHED_MYSQL = """
UPDATE {batch} STRAIGHT_JOIN upload ON upload.id = CAST(item.id AS BINARY)
SET upload.flushed_generation = item.generation, upload.flushed_bytes = item.received, upload.updated_at = :now
"""
_SET_FLUSHED_SQLITE = """
UPDATE upload SET flushed_generation = item.generation, flushed_bytes = item.received, updated_at = :now
FROM (
  SELECT CAST(value ->> 0 AS BLOB) AS id, value ->> 1 AS generation, value ->> 2 AS received FROM json_each(:batch)
) AS item WHERE upload.id = item.id
"""
_ADD_UNFINISHED_MYSQL = """
UPDATE {batch} STRAIGHT_JOIN user_info ON user_info.user_id = CAST(item.id AS BINARY)
SET user_info.use_space_unfinished = user_info.use_space_unfinished + item.more
"""
_ADD_UNFINISHED_SQLITE = """
UPDATE user_info SET use_space_unfinished = use_space_unfinished + item.more
FROM (SELECT CAST(value ->> 0 AS BLOB) AS id, value ->> 1 AS more FROM json_each(:batch)) AS item
WHERE user_info.user_id = item.id
"""
# The driver sends many rows at once only if no parameters follow VALUES.
_ADD_REFS_MYSQL = """
INSERT INTO `blob` (sha256, md5, size, refs, created_at)
SELECT CAST(item.sha256 AS BINARY), CAST(item.md5 AS BINARY), item.size, 1, :now
FROM {batch}
ON DUPLICATE KEY UPDATE refs = `blob`.refs + 1, damaged = 0, scrubbed_at = NULL, reread_at = NULL, created_at = :now
"""
# Look up by the key of the content, because very many rows may lack an MD5.
_SET_MD5S_MYSQL = """
UPDATE {{batch}} STRAIGHT_JOIN `{table}` AS content ON content.sha256 = CAST(item.sha256 AS BINARY)
SET content.md5 = CAST(item.md5 AS BINARY) WHERE content.md5 IS NULL
"""
_SET_LOCATIONS_MYSQL = """
UPDATE {batch} STRAIGHT_JOIN `blob` ON `blob`.sha256 = CAST(item.sha256 AS BINARY)
SET `blob`.location = CAST(item.location AS BINARY)
"""
_SET_NAMES_MYSQL = """
UPDATE {batch} STRAIGHT_JOIN file ON file.id = CAST(item.id AS BINARY) SET file.name = CAST(item.name AS BINARY)
"""
_SET_NAMES_SQLITE = """
UPDATE file SET name = item.name
FROM (SELECT CAST(value ->> 0 AS BLOB) AS id, CAST(value ->> 1 AS BLOB) AS name FROM json_each(:batch)) AS item
WHERE file.id = item.id
"""
_NOW = sa.bindparam("now", type_=UtcDateTime)
_SET_FLUSHED = {
    "mysql": _of_batch(_SET_FLUSHED_MYSQL, id=32, generation=None, received=None).bindparams(_NOW),
    "sqlite": sa.text(_SET_FLUSHED_SQLITE).bindparams(_NOW),
}
_ADD_REFS = _of_batch(_ADD_REFS_MYSQL, sha256=64, md5=32, size=None).bindparams(_NOW)
_SET_MD5S = {
    table.name: _of_batch(_SET_MD5S_MYSQL.format(table=table.name), sha256=64, md5=32) for table in (blob, file)
}
_SET_NAMES = {"mysql": _of_batch(_SET_NAMES_MYSQL, id=32, name=MAX_NAME_BYTES), "sqlite": sa.text(_SET_NAMES_SQLITE)}
SET_LOCATIONS = _of_batch(_SET_LOCATIONS_MYSQL, sha256=64, location=255)
_ADD_UNFINISHED = {
    "mysql": _of_batch(_ADD_UNFINISHED_MYSQL, id=255, more=None),
    "sqlite": sa.text(_ADD_UNFINISHED_SQLITE),
}


def _of_files(statements: Mapping[str, str], *columns: sa.Column[Any]) -> dict[str, Any]:
    texts = {"sqlite": sa.text(statements["sqlite"]), "mysql": _of_batch(statements["mysql"], id=32)}
    return {dialect: text.columns(*columns) for dialect, text in texts.items()} if columns else dict(texts)


_DELETE_BATCH = _of_files(_DELETE_FILES)
_NAMES_OF_BATCH = _of_files(_NAMES_OF_FILES, file.c.id, file.c.name)
# MySQL needs OF to leave the rows of the text unlocked. MariaDB has no OF.
_LOCK_BLOBS_OF = _of_batch(f"{_LOCK_BLOBS_MYSQL} OF `blob`", id=64)
_LOCK_BLOBS, _DROP_REFS = _of_batch(_LOCK_BLOBS_MYSQL, id=64), _of_batch(_DROP_REFS_MYSQL, id=64, fewer=None)


async def lock_blobs(connection: AsyncConnection, sha256s: Collection[str]) -> None:
    """Lock the rows of contents in the order of SHA-256, to change their refs. SQLite has only one writer and needs no
    lock."""
    if connection.dialect.name == "sqlite" or not sha256s:
        return
    dialect: Any = connection.dialect
    statement = _LOCK_BLOBS if dialect.is_mariadb else _LOCK_BLOBS_OF
    await connection.execute(statement, {"batch": json.dumps([[sha256] for sha256 in sorted(sha256s)])})


async def delete_named(connection: AsyncConnection, files: Sequence[File]) -> list[File]:
    """Delete files of one user. The user's row is locked. Return the deleted files; skip files that are gone or renamed."""
    dialect = connection.dialect.name
    if len(files) == 1:
        (only,) = files
        return [*files] if await changed(connection, DELETE_NAMED_FILE, removed=only.id, of_name=only.name) else []
    batch = json.dumps([[file.id] for file in files])
    there = dict(tuple(row) for row in await connection.execute(_NAMES_OF_BATCH[dialect], {"batch": batch}))
    gone = [file for file in files if there.get(file.id) == file.name]
    await connection.execute(_DELETE_BATCH[dialect], {"batch": json.dumps([[file.id] for file in gone])})
    return gone


async def drop_refs(connection: AsyncConnection, fewer: Mapping[str, int]) -> None:
    """Drop refs of contents, by SHA-256. The rows are locked."""
    if len(fewer) > 1 and connection.dialect.name != "sqlite":
        await connection.execute(_DROP_REFS, {"batch": json.dumps(sorted(fewer.items()))})
    elif fewer:
        values = [{"dropped": sha256, "fewer": refs} for sha256, refs in sorted(fewer.items())]
        await connection.execute(DROP_REFS, values)


async def lock_batch(
    connection: AsyncConnection, ids: Iterable[str]
) -> Iterable[tuple[str, str, int, int, int | None]]:
    """Lock the OPEN uploads among `ids` in the order of ids. Return id, user, accounted generation, accounted bytes, and the
    length; the length is None if unknown or for a part."""
    dialect: Any = connection.dialect
    if dialect.name != "sqlite":
        # MySQL needs OF to leave the rows of the text unlocked. MariaDB has no OF.
        statement = _LOCK_OPEN_MYSQL if dialect.is_mariadb else f"{_LOCK_OPEN_MYSQL} OF upload"
        rows = await connection.execute(sa.text(statement), {"ids": json.dumps(sorted(ids))})
        return [(upload_id.decode(), user_id.decode(), *accounted) for upload_id, user_id, *accounted in rows]
    table = models.upload.c
    length = sa.case((table.length_known & (sa.func.coalesce(table.kind, "") != UploadKind.PART.value), table.size))
    columns = (table.id, table.user_id, table.flushed_generation, table.flushed_bytes, length)
    query = sa.select(*columns).where(table.id.in_(sorted(ids)), table.state == State.OPEN.value)
    return (await connection.execute(query)).all()


async def set_flushed(connection: AsyncConnection, items: Iterable[tuple[str, int, int]], now: datetime) -> None:
    values = {"batch": json.dumps(list(items)), "now": now}
    await connection.execute(_SET_FLUSHED[connection.dialect.name], values)


async def add_unfinished(connection: AsyncConnection, more: Mapping[str, int]) -> None:
    """Add to `use_space_unfinished` of users. The rows are locked in the order of ids."""
    # Without \u escapes, because databases decode them differently.
    batch = json.dumps(sorted(more.items()), ensure_ascii=False)
    await connection.execute(_ADD_UNFINISHED[connection.dialect.name], {"batch": batch})


# The most events for the files of one content.
_MOST_TOLD = 1000


class NotOpen(Exception):
    """The upload was closed meanwhile."""


class ClaimsChanged(Exception):
    """The digests that the client claims differ from the digests to be stored."""


class BlobLost(Exception):
    """The blob has no refs any more, or a needed row is gone."""


async def changed(connection: AsyncConnection, statement: sa.Executable, **values: object) -> int:
    """Run a statement and return the number of rows found."""
    return rows_of(await connection.execute(statement, values))


def rows_of(result: "sa.Result[Any]") -> int:
    return int(cast("sa.CursorResult[Any]", result).rowcount)


def row_of(upload: Upload) -> dict[str, object]:
    values = {name: getattr(upload, name) for name in Upload.__dataclass_fields__}
    values[queries.PLACE_COLUMN] = values.pop("place")
    return values | {"open_flag": 1}


async def set_upload(connection: AsyncConnection, upload_id: str, **values: object) -> None:
    await connection.execute(sa.update(upload).where(upload.c.id == upload_id).values(**values))


async def lock_open(connection: AsyncConnection, upload_id: str) -> Upload:
    """Raises NotOpen."""
    upload = await queries.upload_by_id(connection, upload_id, lock=True)
    if upload is None or upload.state is not State.OPEN:
        raise NotOpen(upload_id)
    return upload


async def close_row(
    connection: AsyncConnection,
    upload: Upload,
    state: State,
    now: datetime,
    *,
    close_reason: str | None = None,
    file_id: str | None = None,
    md5: str | None = None,
) -> None:
    """Close an upload in `state` and store the outcome in the row."""
    assert state in TRANSITIONS[upload.state], (upload.state, state)
    values = {
        "of_upload": upload.id,
        "new_state": state.value,
        "new_close_reason": close_reason,
        "new_file_id": file_id,
        "new_md5": md5 or upload.md5,
        "new_closed_at": now,
    }
    await connection.execute(CLOSE_UPLOAD, values)


async def settle_user(connection: AsyncConnection, upload: Upload, *, finished: int, files: int) -> None:
    """Take an upload out of its user's account (compensate by the `flushed_bytes` of the row), and add `finished` bytes and
    `files` files."""
    values = {"flushed": upload.flushed_bytes, "size": upload.size, "finished": finished, "more_files": files - 1}
    await connection.execute(SETTLE_USER, values | {"of_user": upload.user_id})


async def reserve(
    connection: AsyncConnection, user_id: str, more: int, *, requested: int, max_files: int | None = None
) -> None:
    """Reserve bytes of a user's account. `max_files`: the limit, for a new upload. Raises QuotaExceeded with `requested`
    bytes, TooManyFiles, BlobLost if the user's row is gone."""
    statement, limits = (RESERVE, {}) if max_files is None else (RESERVE_ANEW, {"max_files": max_files})
    while await changed(connection, statement, of_user=user_id, more=more, **limits) == 0:
        # With the lock, the next attempt sees room that was freed meanwhile.
        usage = await lock_user(connection, user_id)
        if not usage.fits(more):
            raise QuotaExceeded(**usage.figures(requested))
        if max_files is not None:
            await take_room(connection, usage, 1, max_files)


async def lock_user(connection: AsyncConnection, user_id: str) -> Usage:
    """Raises BlobLost if the user's row is gone."""
    usage = await queries.usage(connection, user_id, lock=True)
    if usage is None:
        raise BlobLost(user_id)
    return usage


async def take_room(
    connection: AsyncConnection, usage: Usage, more: int, max_files: int, spared: Collection[str] = ()
) -> None:
    """Make sure that a user may have `more` files, uploads or folders; if necessary, forget deleted files and left folders.
    The user's row is locked. Raises TooManyFiles."""
    lacking = 0 if usage.takes_files(more, max_files) else usage.files + more - max_files
    if lacking and (forgotten := await forget_oldest(connection, usage.user_id, lacking)):
        await add_finished(connection, usage.user_id, 0, -forgotten)
        lacking -= forgotten
    if lacking and len(await give_way(connection, usage.user_id, lacking, spared)) < lacking:
        raise TooManyFiles(limit=max_files)


async def give_way(connection: AsyncConnection, user_id: str, wanted: int, spared: Collection[str]) -> list[str]:
    """Forget up to `wanted` folders that remained after their last files, oldest first, except `spared` ones. Return them.
    The user's row is locked."""
    gone = await forget_left_folders(connection, user_id, wanted, spared)
    await add_finished(connection, user_id, 0, -len(gone))
    return gone


async def insert_files(connection: AsyncConnection, files: Sequence[File]) -> None:
    rows = [{name: getattr(file, name) for name in queries.FILE_COLUMNS} for file in files]
    await connection.execute(INSERT_FILE, rows)


async def insert_held(connection: AsyncConnection, files: Iterable[tuple[File, str]], if_exists: IfExists) -> None:
    """Insert held files, each with the id of the event for its gates."""
    rows = [
        {name: getattr(file, name) for name in queries.FILE_COLUMNS}
        | {"event_id": event_id, "if_exists": if_exists.value}
        for file, event_id in files
    ]
    await connection.execute(INSERT_HELD, rows)


async def take_held(connection: AsyncConnection, file_id: str, now: datetime) -> bool:
    """Remove the row of a held file and end the tasks of its gates; return False if the row is gone."""
    event_id = (await connection.execute(LOCK_HELD, {"of_file": file_id})).scalar()
    if event_id is None:
        return False
    await connection.execute(DELETE_HELD, {"removed": file_id})
    await connection.execute(END_TASKS, {"of_event": event_id, "ended_at": now})
    await connection.execute(FORGET_FAILURES, {"of_event": event_id})
    return True


async def give_up_names(connection: AsyncConnection, user_id: str, file_ids: Sequence[str]) -> None:
    """Give files temporary names, until `set_names` in the same transaction."""
    if file_ids:
        await connection.execute(GIVE_UP_NAMES, {"of_user": user_id, "ids": file_ids})


async def set_names(connection: AsyncConnection, names: Mapping[str, str]) -> None:
    """Rename files, by id."""
    if names:
        batch = json.dumps(sorted(names.items()), ensure_ascii=False)
        await connection.execute(_SET_NAMES[connection.dialect.name], {"batch": batch})


async def add_refs(connection: AsyncConnection, files: Sequence[File], now: datetime) -> None:
    """Insert or lock the blob of each file, in the order of `files`, and add a ref, for bytes that the caller is about to
    place. If a blob had no MD5 and the file has one, set the MD5 of the blob and all its files."""
    if listens(connection, EventType.CONTENT_HEALED):
        for sha256 in await _damaged(connection, [file.sha256 for file in files]):
            await tell_of_content(connection, EventType.CONTENT_HEALED, sha256)
    if len(files) > 1 and connection.dialect.name != "sqlite":
        batch = json.dumps([(file.sha256, file.md5, file.size) for file in files])
        found = await connection.execute(_ADD_REFS, {"batch": batch, "now": now})
    else:
        placed = {"refs": 1, "created_at": now, "placed_at": now}
        values = [{"sha256": file.sha256, "md5": file.md5, "size": file.size, **placed} for file in files]
        found = await connection.execute(ADD_REF[connection.dialect.name], values)
    # MySQL counts an updated row twice. SQLite does not, but an extra statement is cheap there.
    if connection.dialect.name == "sqlite" or rows_of(found) > len(files):
        await fill_md5s(connection, {file.sha256: file.md5 for file in files if file.md5 is not None})


async def fill_md5s(connection: AsyncConnection, md5s: Mapping[str, str]) -> None:
    """Set missing MD5s of contents, in the blobs and their files. The caller has locked the rows of the blobs."""
    if not md5s or not await _fill(connection, models.blob, md5s):
        return
    crash_point("md5.after_blob")
    await _fill(connection, models.file, md5s)


async def _fill(connection: AsyncConnection, table: sa.Table, md5s: Mapping[str, str]) -> int:
    """Return the number of rows that lacked an MD5."""
    if len(md5s) > 1 and connection.dialect.name != "sqlite":
        return await changed(connection, _SET_MD5S[table.name], batch=json.dumps(sorted(md5s.items())))
    values = [{"of_content": sha256, "computed": md5} for sha256, md5 in md5s.items()]
    return rows_of(await connection.execute(FILL_MD5[table.name], values))


async def _damaged(connection: AsyncConnection, sha256s: Sequence[str]) -> list[str]:
    """Return the SHA-256s of damaged blobs. Lock all rows: no blob becomes damaged before the commit."""
    if len(sha256s) == 1:
        damaged = (await connection.execute(LOCK_DAMAGED, {"of_blob": sha256s[0]})).scalar()
        return list(sha256s) if damaged else []
    table = models.blob.c
    query = sa.select(table.sha256, table.damaged).where(table.sha256.in_(sha256s)).order_by(table.sha256)
    return [sha256 for sha256, damaged in await connection.execute(query.with_for_update()) if damaged]


async def tell_of_content(connection: AsyncConnection, kind: EventType, sha256: str) -> None:
    """Write an event for each file of a damaged or healed content, if a sink `listens`. At most `_MOST_TOLD` files get an
    event: very many users may have the same content, such as an empty file, and the transaction locks the blob."""
    make = content_damaged if kind is EventType.CONTENT_DAMAGED else content_healed
    files = await queries.files_by_sha256(connection, sha256, limit=_MOST_TOLD + 1)
    await tell_all(connection, make, files[:_MOST_TOLD], len(files) > _MOST_TOLD)


async def add_finished(connection: AsyncConnection, user_id: str, more_bytes: int, more_files: int) -> None:
    if more_bytes or more_files:
        await connection.execute(ADD_FINISHED, {"of_user": user_id, "more": more_bytes, "more_files": more_files})
