"""The transactions that remove blobs: bytes and row go together."""

from collections.abc import Awaitable, Callable
from datetime import datetime

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.crashpoints import crash_point
from uploader.database import models


async def collect_blob(
    connection: AsyncConnection,
    sha256: str,
    *,
    prepare: Callable[[], Awaitable[None]],
    remove: Callable[[], Awaitable[None]],
) -> bool:
    """Remove a blob without refs, its bytes before the commit: a row without bytes is mended by the next merge, bytes
    without a row by nobody. False if it is in use or gone.

    `prepare` makes durable that it has no refs. If the database crashed meanwhile, this connection is gone and the
    statement after it fails.
    """
    blobs = models.blob.c
    query = select(blobs.refs).where(blobs.sha256 == sha256).with_for_update()
    if (await connection.execute(query)).scalar() != 0:
        return False
    await prepare()
    await connection.execute(delete(models.blob).where(blobs.sha256 == sha256))
    await remove()
    crash_point("collect.after_unlink")
    return True


async def remove_stray_blob(
    connection: AsyncConnection, sha256: str, remove: Callable[[], Awaitable[bool]], now: datetime
) -> bool:
    """Remove bytes that have no row; whether `remove` did. Raises Duplicate (from the engine) if they have one.

    There is no row to lock, and READ COMMITTED locks no gap. So one is inserted that nobody ever sees: a merge of this
    content waits for it, and then places its own bytes.
    """
    await connection.execute(insert(models.blob).values(sha256=sha256, md5="", size=0, refs=0, created_at=now))
    removed = await remove()
    crash_point("stray.after_unlink")
    await connection.execute(delete(models.blob).where(models.blob.c.sha256 == sha256))
    return removed
