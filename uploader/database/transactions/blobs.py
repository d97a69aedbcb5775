"""The transactions of blobs as such: what is done to their bytes is done while nobody else has their rows."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from sqlalchemy import delete, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.crashpoints import crash_point
from uploader.database import models, queries
from uploader.database.outbox import listens
from uploader.database.transactions import rows
from uploader.database.transactions.rows import fill_md5s, tell_of_content
from uploader.domain.events import EventType

T = TypeVar("T")


async def relocate(connection: AsyncConnection, locations: Mapping[str, str], now: datetime) -> None:
    """Say where contents lie from now on, by SHA-256; the caller has their rows locked. Where they were before is put away.
    None of a store that has no locations."""
    if not locations:
        return
    former = await connection.execute(rows.LOCATED, {"of_contents": sorted(locations)})
    left = [(sha256, size, key) for sha256, size, key in former if key != locations[sha256]]
    await _put_away(connection, left, now)
    if len(locations) > 1 and connection.dialect.name != "sqlite":
        await rows.set_locations(connection, locations)
    else:
        values = [{"of_content": sha256, "new_location": key} for sha256, key in sorted(locations.items())]
        await connection.execute(rows.RELOCATE, values)
    # The last of it: see `objects/contents.py`.
    await connection.execute(rows.BRING_BACK, {"keys": sorted(locations.values())})


async def _put_away(connection: AsyncConnection, left: Sequence[tuple[str, int, str]], now: datetime) -> None:
    """`left`: contents, their sizes, and the keys at which they do not lie any more."""
    if not left:
        return
    values = [{"object_key": key, "name": sha256, "size": size, "created_at": now} for sha256, size, key in left]
    await connection.execute(rows.PUT_AWAY[connection.dialect.name], values)


async def collect_blob(
    connection: AsyncConnection,
    sha256: str,
    *,
    prepare: Callable[[], Awaitable[None]],
    remove: Callable[[], Awaitable[None]],
    now: datetime,
) -> bool:
    """Remove a blob without refs, its bytes before the commit: a row without bytes is mended by the next merge, bytes
    without a row by nobody. False if it is in use or gone. One that has a location is put away by a row of this transaction,
    and `prepare` and `remove` are not called.

    `prepare` makes durable that it has no refs. If the database crashed meanwhile, this connection is gone and the
    statement after it fails.
    """
    row = (await connection.execute(rows.LOCK_REFS, {"of_blob": sha256})).mappings().first()
    if row is None or row["refs"] != 0:
        return False
    location = row["location"]
    if location is None:
        await prepare()
    await connection.execute(rows.DELETE_BLOB, {"of_blob": sha256})
    if location is None:
        await remove()
        crash_point("collect.after_unlink")
    else:
        await _put_away(connection, [(sha256, row["size"], location)], now)
    return True


async def with_blob_locked(
    connection: AsyncConnection, sha256: str, work: Callable[[queries.Blob | None], Awaitable[T]], now: datetime
) -> T:
    """What `work` does to the bytes of a content; it is given their row, or None if they have none.

    Then there is no row to lock, and READ COMMITTED locks no gap. So one is inserted that nobody ever sees: a merge of this
    content waits for it, and then places its own bytes. Raises Duplicate (from the engine) if one came at this moment.
    """
    blob = await queries.blob_by_sha256(connection, sha256, lock=True)
    if blob is not None:
        return await work(blob)
    await connection.execute(insert(models.blob).values(sha256=sha256, size=0, refs=0, created_at=now))
    result = await work(None)
    crash_point("stray.after_unlink")
    await connection.execute(delete(models.blob).where(models.blob.c.sha256 == sha256))
    return result


async def note_scrub(
    connection: AsyncConnection,
    sha256: str,
    *,
    damaged: bool,
    now: datetime,
    restored: bool = False,
    md5: str | None = None,
) -> None:
    """Say of a blob what reading it back found. The caller has its row locked. `restored`: it was bad, known or not, and
    other bytes are in its place now. `md5`: where it was computed at that."""
    kind = EventType.CONTENT_DAMAGED if damaged else EventType.CONTENT_HEALED
    before = await queries.blob_by_sha256(connection, sha256) if listens(connection, kind) else None
    found = update(models.blob).where(models.blob.c.sha256 == sha256)
    await connection.execute(found.values(damaged=damaged, scrubbed_at=now, reread_at=None))
    if md5 is not None:
        await fill_md5s(connection, {sha256: md5})
    if before is not None and (restored or damaged != before.damaged):
        await tell_of_content(connection, kind, sha256)


async def note_unreadable(connection: AsyncConnection, sha256: str, *, now: datetime, reread_at: datetime) -> None:
    """Say of a blob that it could not be read, which says nothing of its bytes, and when that is tried again."""
    found = update(models.blob).where(models.blob.c.sha256 == sha256)
    await connection.execute(found.values(scrubbed_at=now, reread_at=reread_at))
