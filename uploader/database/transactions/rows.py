"""What several transactions do with single rows, and what they raise where a row is not as they need it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

from sqlalchemy import CursorResult, Executable
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import queries
from uploader.database.transactions import batches, statements
from uploader.domain.upload import TRANSITIONS, File, State, Upload
from uploader.errors import QuotaExceeded


class NotOpen(Exception):
    """The upload was closed meanwhile."""


class ClaimsChanged(Exception):
    """The digests that the client claims are not those that are about to be stored."""


class BlobLost(Exception):
    """The blob was on its way out, or the row had gone, when it was to be used."""


async def changed(connection: AsyncConnection, statement: Executable, **values: object) -> int:
    """Execute a statement that changes rows; returns how many it found."""
    result = await connection.execute(statement, values)
    return int(cast("CursorResult[Any]", result).rowcount)


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
    return QuotaExceeded(
        total_space=usage.total_space,
        use_space_finished=usage.use_space_finished,
        use_space_unfinished=usage.use_space_unfinished,
        reserved=usage.reserved,
        requested=requested,
    )


async def insert_files(connection: AsyncConnection, files: Sequence[File]) -> None:
    rows = [{name: getattr(file, name) for name in queries.FILE_COLUMNS} for file in files]
    await connection.execute(statements.INSERT_FILE, rows)


async def add_refs(connection: AsyncConnection, files: Sequence[File], now: datetime) -> None:
    """Insert the row of the blob of each file or lock it, with one ref more, for bytes that the caller is about to place.
    The rows are locked in the order of `files`."""
    if len(files) > 1 and connection.dialect.name != "sqlite":
        await batches.add_refs(connection, ((file.sha256, file.md5, file.size) for file in files), now)
        return
    placed = {"refs": 1, "created_at": now, "placed_at": now}
    values = [{"sha256": file.sha256, "md5": file.md5, "size": file.size, **placed} for file in files]
    await connection.execute(statements.ADD_REF[connection.dialect.name], values)


async def drop_ref(connection: AsyncConnection, sha256: str) -> None:
    await connection.execute(statements.DROP_REFS, {"dropped": sha256, "fewer": 1})


async def add_finished(connection: AsyncConnection, user_id: str, more_bytes: int) -> None:
    if more_bytes:
        await connection.execute(statements.ADD_FINISHED, {"of_user": user_id, "more": more_bytes})
