"""The transactions of files: an instant upload adds one, its user renames and deletes it."""

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models, queries
from uploader.database.transactions import statements
from uploader.database.transactions.rows import (
    BlobLost,
    changed,
    close_row,
    drop_ref,
    insert_file,
    lock_open,
    quota_refusal,
    settle_user,
)
from uploader.domain.upload import File, State


async def add_instant_file(
    connection: AsyncConnection, file: File, *, replaced_upload_id: str | None
) -> tuple[File, bool]:
    """Give a user a file of content that is there already; returns it and whether it is new.

    An open upload of the same content is closed as done in the same transaction and its reservation exchanged, so that
    it fits at the edge of the quota. Raises BlobLost if the blob has no refs (any more), NotOpen, QuotaExceeded, Duplicate.
    """
    replaced = None if replaced_upload_id is None else await lock_open(connection, replaced_upload_id)
    if await changed(connection, statements.TAKE_REF, of_blob=file.sha256) == 0:
        raise BlobLost(file.sha256)
    present = await queries.file_by_content(connection, file.user_id, file.sha256, file.name)
    if present is None:
        await insert_file(connection, file)
    else:
        await drop_ref(connection, file.sha256)
    result = present or file
    if replaced is not None:
        await close_row(connection, replaced, State.DONE, file.created_at, file_id=result.id, md5=file.md5)
        await settle_user(connection, replaced, finished=0)
    if present is None and await changed(connection, statements.CHARGE, of_user=file.user_id, more=file.size) == 0:
        raise await quota_refusal(connection, file.user_id, file.size)
    return result, present is None


async def rename_file(connection: AsyncConnection, user_id: str, file_id: str, name: str) -> bool:
    """Whether there was such a file. Raises Duplicate (from the engine) if the same content has this name already."""
    table = models.file.c
    rename = update(models.file).where(table.id == file_id, table.user_id == user_id).values(name=name)
    return await changed(connection, rename) == 1


async def delete_file(connection: AsyncConnection, file: File) -> bool:
    """Delete a file that was read before; False if somebody else was faster. The blob stays, perhaps without refs."""
    await connection.execute(statements.LOCK_BLOB, {"of_blob": file.sha256})
    if await changed(connection, statements.DELETE_FILE, file_id=file.id) == 0:
        return False
    await drop_ref(connection, file.sha256)
    await connection.execute(statements.GIVE_BACK, {"of_user": file.user_id, "less": file.size})
    return True
