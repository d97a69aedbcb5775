"""What several transactions do with single rows, and what they raise where a row is not as they need it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from sqlalchemy import CursorResult, Executable, Result, Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.crashpoints import crash_point
from uploader.database import models, queries
from uploader.database.events.outbox import listens, tell_all
from uploader.database.transactions import batches, statements
from uploader.domain.events import EventType, content_damaged, content_healed
from uploader.domain.upload import TRANSITIONS, File, State, Upload
from uploader.errors import QuotaExceeded

# Of the files of one content.
_MOST_TOLD = 1000


class NotOpen(Exception):
    """The upload was closed meanwhile."""


class ClaimsChanged(Exception):
    """The digests that the client claims are not those that are about to be stored."""


class BlobLost(Exception):
    """The blob was on its way out, or the row had gone, when it was to be used."""


async def changed(connection: AsyncConnection, statement: Executable, **values: object) -> int:
    """Execute a statement that changes rows; returns how many it found."""
    return rows_of(await connection.execute(statement, values))


def rows_of(result: "Result[Any]") -> int:
    """How many rows a statement has changed, or found as they were to be."""
    return int(cast("CursorResult[Any]", result).rowcount)


def row_of(upload: Upload) -> dict[str, object]:
    """The columns of a new upload's row."""
    values = {name: getattr(upload, name) for name in Upload.__dataclass_fields__}
    values[queries.PLACE_COLUMN] = values.pop("place")
    return values | {"open_flag": 1}


async def lock_open(connection: AsyncConnection, upload_id: str) -> Upload:
    """An open upload, its row locked. Raises NotOpen."""
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
    """End an upload in `state`; what became of it stays in its row."""
    assert state in TRANSITIONS[upload.state], (upload.state, state)
    values = {
        "of_upload": upload.id,
        "new_state": state.value,
        "new_close_reason": close_reason,
        "new_file_id": file_id,
        "new_md5": md5 or upload.md5,
        "new_closed_at": now,
    }
    await connection.execute(statements.CLOSE_UPLOAD, values)


async def settle_user(connection: AsyncConnection, upload: Upload, finished: int) -> None:
    """Take an upload out of its user's account (the compensation, by the row's own figure) and add `finished` bytes."""
    values = {"flushed": upload.flushed_bytes, "size": upload.size, "finished": finished}
    await connection.execute(statements.SETTLE_USER, values | {"of_user": upload.user_id})


async def quota_refusal(connection: AsyncConnection, user_id: str, requested: int) -> QuotaExceeded:
    """The error for a user who has no room for `requested` bytes. Raises BlobLost if the user's row has gone."""
    usage = await queries.usage(connection, user_id)
    if usage is None:
        raise BlobLost(user_id)
    return usage.refusal(requested)


async def insert_files(connection: AsyncConnection, files: Sequence[File]) -> None:
    rows = [{name: getattr(file, name) for name in queries.FILE_COLUMNS} for file in files]
    await connection.execute(statements.INSERT_FILE, rows)


async def add_refs(connection: AsyncConnection, files: Sequence[File], now: datetime) -> None:
    """Insert the row of the blob of each file or lock it, with one ref more, for bytes that the caller is about to place.
    The rows are locked in the order of `files`. Of a content whose MD5 was not known, all files have it from here on, if
    this one has."""
    if listens(connection, EventType.CONTENT_HEALED):
        for sha256 in await _damaged(connection, [file.sha256 for file in files]):
            await tell_of_content(connection, EventType.CONTENT_HEALED, sha256)
    if len(files) > 1 and connection.dialect.name != "sqlite":
        found = await batches.add_refs(connection, ((file.sha256, file.md5, file.size) for file in files), now)
    else:
        placed = {"refs": 1, "created_at": now, "placed_at": now}
        values = [{"sha256": file.sha256, "md5": file.md5, "size": file.size, **placed} for file in files]
        found = await connection.execute(statements.ADD_REF[connection.dialect.name], values)
    # MySQL counts a row that was there already twice. SQLite does not, and is not asked over a wire.
    if connection.dialect.name == "sqlite" or rows_of(found) > len(files):
        await fill_md5s(connection, {file.sha256: file.md5 for file in files if file.md5 is not None})


async def fill_md5s(connection: AsyncConnection, md5s: Mapping[str, str]) -> None:
    """Say the MD5 of each content, by its SHA-256, where nobody had computed it: of its blob, whose row the caller has
    locked, and of its files."""
    if not md5s or not await _fill(connection, models.blob, md5s):
        return
    crash_point("md5.after_blob")
    await _fill(connection, models.file, md5s)


async def _fill(connection: AsyncConnection, table: Table, md5s: Mapping[str, str]) -> int:
    """Returns how many rows lacked it."""
    if len(md5s) > 1 and connection.dialect.name != "sqlite":
        return rows_of(await batches.set_md5s(connection, table, md5s))
    values = [{"of_content": sha256, "computed": md5} for sha256, md5 in md5s.items()]
    return rows_of(await connection.execute(statements.FILL_MD5[table.name], values))


async def _damaged(connection: AsyncConnection, sha256s: Sequence[str]) -> list[str]:
    """Those of which it is known, and the rows of all that are there locked, so that none becomes so meanwhile."""
    if len(sha256s) == 1:
        damaged = (await connection.execute(statements.LOCK_DAMAGED, {"of_blob": sha256s[0]})).scalar()
        return list(sha256s) if damaged else []
    table = models.blob.c
    query = select(table.sha256, table.damaged).where(table.sha256.in_(sha256s)).order_by(table.sha256)
    return [sha256 for sha256, damaged in await connection.execute(query.with_for_update()) if damaged]


async def tell_of_content(connection: AsyncConnection, kind: EventType, sha256: str) -> None:
    """Tell of the files of a content how that is now; to be asked for where somebody `listens`. Of a content that very many
    have, as that of empty files, not of all: it is one transaction, which holds its blob."""
    make = content_damaged if kind is EventType.CONTENT_DAMAGED else content_healed
    files = await queries.files_by_sha256(connection, sha256, limit=_MOST_TOLD + 1)
    await tell_all(connection, make, files[:_MOST_TOLD], len(files) > _MOST_TOLD)


async def drop_ref(connection: AsyncConnection, sha256: str) -> None:
    await connection.execute(statements.DROP_REFS, {"dropped": sha256, "fewer": 1})


async def add_finished(connection: AsyncConnection, user_id: str, more_bytes: int) -> None:
    if more_bytes:
        await connection.execute(statements.ADD_FINISHED, {"of_user": user_id, "more": more_bytes})
