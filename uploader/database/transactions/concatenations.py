"""The transactions of concatenations: ordered, joined to an upload, ended. A concatenation is locked before any upload."""

from collections.abc import Awaitable, Callable
from datetime import datetime

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import concatenations, models, queries
from uploader.database.events.outbox import tell
from uploader.database.transactions import statements
from uploader.database.transactions.rows import NotOpen, changed, close_row, lock_open, quota_refusal, row_of
from uploader.domain import events
from uploader.domain.concatenation import Concatenation
from uploader.domain.upload import REDIS_WORDS, State, Upload
from uploader.errors import TooManyUploads

_PLANS, _PARTS = models.concatenation.c, models.concatenation_part.c


async def order_concatenation(connection: AsyncConnection, ordered: Concatenation, *, max_waiting: int) -> None:
    """Note that parts are to become a whole once they are complete. Raises Duplicate (from the engine), NotOpen,
    TooManyUploads."""
    await _lock_parts(connection, ordered)
    await queries.usage(connection, ordered.user_id, lock=True)  # so racing callers count one after the other
    if await concatenations.count_waiting(connection, ordered.user_id) >= max_waiting:
        raise TooManyUploads(limit=max_waiting)
    names = ("id", "user_id", "name", "metadata", "ordered", "parts_sha256", "created_at")
    row = {name: getattr(ordered, name) for name in names} | {"open_flag": 1}
    await connection.execute(insert(models.concatenation).values(**row))
    places = [
        {"concatenation_id": ordered.id, "position": position, "part_id": part_id}
        for position, part_id in enumerate(ordered.part_ids)
    ]
    await connection.execute(insert(models.concatenation_part), places)


async def join_concatenation(
    connection: AsyncConnection,
    whole: Upload,
    *,
    expires_at: datetime,
    make_room: Callable[[], Awaitable[None]],
) -> None:
    """Make a whole of the parts that its concatenation names: they are closed, and what they hold of the quota is the
    whole's from now on. Only of a part that is named more than once more is needed. `make_room` makes the directory of the
    whole, which has the bytes of the parts, while their rows are locked.

    Raises NotOpen, QuotaExceeded, Duplicate if it was joined before.
    """
    ordered = await concatenations.by_id(connection, whole.id, lock=True)
    if ordered is None:
        raise NotOpen(whole.id)
    parts = await _lock_parts(connection, ordered)
    held = sum(part.size for part in parts.values())
    if sum(parts[part_id].size for part_id in ordered.part_ids) != whole.size:
        raise NotOpen(whole.id)  # the length of one was told after the caller looked
    await connection.execute(statements.INSERT_UPLOAD, row_of(whole))
    for part in parts.values():
        await close_row(connection, part, State.CONSUMED, whole.created_at, close_reason=REDIS_WORDS[State.CONSUMED])
    more = whole.size - held
    if more and await changed(connection, statements.RESERVE, of_user=whole.user_id, more=more) == 0:
        raise await quota_refusal(connection, whole.user_id, more)
    flushed = sum(part.flushed_bytes for part in parts.values())
    values = {"of_user": whole.user_id, "flushed": flushed, "size": 0, "finished": 0}
    await connection.execute(statements.SETTLE_USER, values)
    await tell(connection, events.upload_created, whole, expires_at)
    await make_room()


async def _lock_parts(connection: AsyncConnection, ordered: Concatenation) -> dict[str, Upload]:
    """The parts, their rows locked. Raises NotOpen unless all are parts of the user and open."""
    parts = {}
    for part_id in sorted(set(ordered.part_ids)):
        part = parts[part_id] = await lock_open(connection, part_id)
        if not part.is_part or part.user_id != ordered.user_id:
            raise NotOpen(part_id)
    return parts


async def settle_concatenation(connection: AsyncConnection, concatenation_id: str) -> None:
    """Nothing is to be done for it any more: its upload is closed."""
    await connection.execute(update(models.concatenation).where(_PLANS.id == concatenation_id).values(open_flag=None))


async def drop_waiting(connection: AsyncConnection, concatenation_id: str) -> bool:
    """Forget a concatenation that waits for its parts; False if there is none, or it has become an upload."""
    if await concatenations.by_id(connection, concatenation_id, lock=True) is None:
        return False
    if await queries.upload_by_id(connection, concatenation_id) is not None:
        return False
    await _delete(connection, [concatenation_id])
    return True


async def forget_concatenations(connection: AsyncConnection, upload_ids: list[str]) -> None:
    """Forget those of uploads that are forgotten."""
    uploads = select(models.upload.c.id).where(models.upload.c.id.in_(upload_ids))
    kept = set((await connection.execute(uploads)).scalars())
    named = select(_PLANS.id).where(_PLANS.id.in_(upload_ids))
    await _delete(connection, [each for each in (await connection.execute(named)).scalars() if each not in kept])


async def _delete(connection: AsyncConnection, ids: list[str]) -> None:
    if ids:
        await connection.execute(delete(models.concatenation_part).where(_PARTS.concatenation_id.in_(ids)))
        await connection.execute(delete(models.concatenation).where(_PLANS.id.in_(ids)))
