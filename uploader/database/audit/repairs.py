"""The transactions of `uploader reconcile --repair`: figures are set to what a recount makes them."""

from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import contents, models
from uploader.database.audit import recounts
from uploader.database.transactions.rows import lock_open


async def repair_user(connection: AsyncConnection, user_id: str) -> bool:
    """Set a user's figures to what their definitions make them; False if the user has no row.

    Whoever changes an upload or a file locks the user's row last, before the commit. So while it is held here, every
    change that is in the figures can be seen, and every other one can't and will still be added.
    """
    users = models.user_info.c
    lock = select(users.user_id).where(users.user_id == user_id).with_for_update()
    if (await connection.execute(lock)).first() is None:
        return False
    sums = await recounts.sums_of(connection, user_id)
    await connection.execute(
        update(models.user_info)
        .where(users.user_id == user_id)
        .values(
            use_space_finished=sums.use_space_finished,
            use_space_unfinished=sums.use_space_unfinished,
            reserved=sums.reserved,
        )
    )
    return True


async def repair_refs(connection: AsyncConnection, sha256: str) -> bool:
    """Set the refs of a blob to the number of its files, which only change under the lock of its row; False without one."""
    if await contents.blob_by_sha256(connection, sha256, lock=True) is None:
        return False
    refs = await recounts.count_files_of(connection, sha256)
    await connection.execute(update(models.blob).where(models.blob.c.sha256 == sha256).values(refs=refs))
    return True


async def repair_flushed(
    connection: AsyncConnection, upload_id: str, received: int, *, renew_generation: bool, now: datetime
) -> None:
    """Set the accounted bytes of an upload to those on disk, and its user's figures with them. Raises NotOpen.

    The caller holds the upload's locks. Within a generation figures only grow: where one has to go down, here or in
    Redis, `renew_generation` makes every late flush and ack of the old figure a no-op.
    """
    upload = await lock_open(connection, upload_id)
    generation = upload.generation + renew_generation
    await connection.execute(
        update(models.upload)
        .where(models.upload.c.id == upload_id)
        .values(flushed_bytes=received, flushed_generation=generation, generation=generation, updated_at=now)
    )
    await repair_user(connection, upload.user_id)
