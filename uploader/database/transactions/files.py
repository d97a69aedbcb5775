"""The transactions of files: those that come at once, without chunks, and what their users do with them."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models, queries
from uploader.database.events.outbox import tell
from uploader.database.transactions import statements
from uploader.database.transactions.additions import Added, Verdict, add_files, close_by, lock_contents
from uploader.database.transactions.blobs import relocate
from uploader.database.transactions.rows import add_finished, changed, drop_ref, lock_open, settle_user
from uploader.domain import events
from uploader.domain.upload import File, IfExists, Upload
from uploader.errors import NameTaken


async def add_instant_file(
    connection: AsyncConnection, file: File, if_exists: IfExists, *, replaced_upload_id: str | None
) -> Added:
    """Give a user a file of content that is there already.

    An open upload of the same content is closed as done in the same transaction and its reservation exchanged, so that
    it fits at the edge of the quota. Raises BlobLost if the blob has no refs (any more), NotOpen, QuotaExceeded, NameTaken,
    Duplicate.
    """
    replaced = None if replaced_upload_id is None else await lock_open(connection, replaced_upload_id)
    locked = await lock_contents(connection, [file], if_exists, file.created_at, brings_bytes=False)
    return await _add_file(connection, file, if_exists, locked, replaced)


async def add_whole_file(
    connection: AsyncConnection,
    file: File,
    if_exists: IfExists,
    *,
    replaced_upload_id: str | None,
    place_blob: Callable[[], Awaitable[str | None]],
) -> Added:
    """As `add_instant_file`, of bytes that came whole: `place_blob` makes them the blob while its row is locked, and returns
    where they are now, if the store has locations."""
    replaced = None if replaced_upload_id is None else await lock_open(connection, replaced_upload_id)
    locked = await lock_contents(connection, [file], if_exists, file.created_at)
    if (location := await place_blob()) is not None:
        await relocate(connection, {file.sha256: location}, file.created_at)
    return await _add_file(connection, file, if_exists, locked, replaced)


async def _add_file(
    connection: AsyncConnection, file: File, if_exists: IfExists, locked: set[str], replaced: Upload | None
) -> Added:
    freed = 0 if replaced is None else replaced.size
    changes = await add_files(connection, [file], if_exists, locked, freed_bytes=freed)
    added = changes.only()
    if replaced is None:
        await add_finished(connection, file.user_id, changes.finished_bytes)
    else:
        await close_by(connection, replaced, added, file.created_at, is_superseded=True)
        await settle_user(connection, replaced, finished=changes.finished_bytes)
    return added


async def add_whole_files(
    connection: AsyncConnection,
    files: Sequence[File],
    if_exists: IfExists,
    *,
    place_blobs: Callable[[Collection[str]], Awaitable[Mapping[str, str]]],
) -> list[Verdict | None]:
    """Files of one user and of different names, of bytes that came whole; what became of each, in their order. None: an
    upload of this MD5 is open, and closing one is not for here.

    `place_blobs` is given SHA-256s whose rows are locked, and returns by SHA-256 where the bytes are now, if the store has
    locations. Those that are refused leave a blob without refs, for the
    collector. Raises Duplicate, BlobLost.
    """
    user_id = files[0].user_id
    uploads = await _open_md5s(connection, user_id, sorted({file.md5 for file in files if file.md5 is not None}))
    taken = [file for file in files if file.md5 not in uploads]
    verdicts = iter(await _add_files(connection, taken, if_exists, place_blobs) if taken else ())
    return [None if file.md5 in uploads else next(verdicts) for file in files]


async def _add_files(
    connection: AsyncConnection,
    files: Sequence[File],
    if_exists: IfExists,
    place_blobs: Callable[[Collection[str]], Awaitable[Mapping[str, str]]],
) -> list[Verdict]:
    try:
        locked = await lock_contents(connection, files, if_exists, files[0].created_at)
    except NameTaken as error:  # of the only one: nothing is written yet
        return [error]
    await relocate(connection, await place_blobs({file.sha256 for file in files}), files[0].created_at)
    changes = await add_files(connection, files, if_exists, locked, freed_bytes=0)
    await add_finished(connection, files[0].user_id, changes.finished_bytes)
    return changes.verdicts


async def _open_md5s(connection: AsyncConnection, user_id: str, md5s: list[str]) -> Collection[str]:
    """Those of which the user has an open upload."""
    if len(md5s) > 1:
        return await queries.open_md5s(connection, user_id, md5s)
    return [] if await queries.open_upload_by_md5(connection, user_id, md5s[0]) is None else md5s


async def rename_file(connection: AsyncConnection, user_id: str, file_id: str, name: str) -> bool:
    """Whether there was such a file. Raises Duplicate (from the engine) if the same content has this name already."""
    table = models.file.c
    rename = update(models.file).where(table.id == file_id, table.user_id == user_id).values(name=name)
    return await changed(connection, rename) == 1


async def delete_file(connection: AsyncConnection, file: File) -> bool:
    """Delete a file that was read before; False if somebody else was faster. The blob stays, perhaps without refs."""
    await connection.execute(statements.LOCK_BLOB, {"of_blob": file.sha256})
    if await changed(connection, statements.DELETE_FILE, removed=file.id) == 0:
        return False
    await drop_ref(connection, file.sha256)
    await add_finished(connection, file.user_id, -file.size)
    await tell(connection, events.file_deleted, file)
    return True
