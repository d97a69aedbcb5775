"""The transactions of `uploader reconcile --repair`: figures are set to what a recount makes them."""

from dataclasses import asdict
from datetime import datetime

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import contents, models, queries
from uploader.database.audit import recounts
from uploader.database.trail.acts import note
from uploader.database.transactions.rows import lock_open
from uploader.domain.trail.acts import Act


async def repair_user(connection: AsyncConnection, user_id: str, act: Act | None = None) -> bool:
    """Set a user's figures to what their definitions make them; False if the user has no row.

    Whoever changes an upload or a file locks the user's row last, before the commit. So while it is held here, every
    change that is in the figures can be seen, and every other one can't and will still be added.
    """
    users = models.user_info.c
    before = await queries.usage(connection, user_id, lock=True)
    if before is None:
        return False
    sums = asdict(await recounts.sums_of(connection, user_id))
    await connection.execute(update(models.user_info).where(users.user_id == user_id).values(**sums))
    differing = {name: _change(getattr(before, name), figure) for name, figure in sums.items()}
    if any(differing.values()):
        await note(connection, act, **{name: change for name, change in differing.items() if change})
    return True


def _change(before: int, after: int) -> dict[str, int] | None:
    return None if before == after else {"from": before, "to": after}


async def repair_refs(connection: AsyncConnection, sha256: str, act: Act | None = None) -> bool:
    """Set the refs of a blob to the number of its files, which only change under the lock of its row; False without one."""
    blob = await contents.blob_by_sha256(connection, sha256, lock=True)
    if blob is None:
        return False
    refs = await recounts.count_files_of(connection, sha256)
    await connection.execute(update(models.blob).where(models.blob.c.sha256 == sha256).values(refs=refs))
    if refs != blob.refs:
        await note(connection, act, refs=_change(blob.refs, refs))
    return True


async def repair_flushed(
    connection: AsyncConnection,
    upload_id: str,
    received: int,
    *,
    renew_generation: bool,
    now: datetime,
    act: Act | None = None,
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
    await note(connection, act, flushed_bytes={"from": upload.flushed_bytes, "to": received})
