"""Tasks: deliveries that workers fetch. A claim holds a task until the lease ends; then any worker may claim the task.

Each verb is one conditional statement on the row, so a race leaves the task with only one holder. Redis only says which rows
to look at. The time is the database's own, because the callers' clocks differ.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import (
    ColumnElement,
    Integer,
    Update,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from uploader.database import models
from uploader.database.connection import AsyncConnection
from uploader.database.deliveries import MOST_COUNTED, messages_of
from uploader.database.models import UtcDateTime
from uploader.database.outbox import DEAD, DELIVERED, MAX_ERROR_BYTES, WAITING
from uploader.database.queries import all_of
from uploader.database.transactions.rows import changed
from uploader.domain.events import Message
from uploader.runtime.clock import Clock

_RAN_OUT = "the lease ended, and nobody had acknowledged the task"


def _word(text: str) -> ColumnElement[str]:
    """Return a value with the type of the column, which a CASE does not know."""
    return literal(text, _TASKS.state.type)


_TASKS = models.delivery.c
_NOW = bindparam("now", type_=UtcDateTime)
_OF_QUEUE = _TASKS.sink == bindparam("of_queue")
_WAITING = (_OF_QUEUE, _TASKS.state == WAITING)
_IS_AMONG = _TASKS.outbox_id.in_(bindparam("ids", expanding=True))


def _that_are_due() -> Update:
    """Update the tasks that can be claimed. A task without an earlier claim always can, because its `due_at` may come from a
    wrong clock."""
    is_due = or_(_TASKS.attempt == 0, _TASKS.due_at <= _NOW)
    return update(models.delivery).where(*_WAITING, _IS_AMONG, is_due)


def _that_is_held() -> Update:
    """Update a task for its holder. The lease may have run out, if nobody else has claimed the task since."""
    of_claim = (_OF_QUEUE, _TASKS.outbox_id == bindparam("of_task"), _TASKS.lease == bindparam("of_lease"))
    return update(models.delivery).where(*of_claim, _TASKS.held, _TASKS.state == WAITING)


def _that_are_held() -> Update:
    """Update tasks for their holders, except the tasks of gates."""
    of_claims = tuple_(_TASKS.outbox_id, _TASKS.lease).in_(bindparam("claims", expanding=True))
    is_free = _TASKS.on_failure.is_(None)
    return update(models.delivery).where(*_WAITING, _IS_AMONG, of_claims, _TASKS.held, is_free)


_UNTIL = bindparam("until", type_=UtcDateTime)
_CLAIM = (
    _that_are_due()
    .where(_TASKS.attempt < bindparam("most"))
    .values(
        attempt=_TASKS.attempt + 1,
        fence=_TASKS.fence + 1,
        held=True,
        lease=bindparam("new_lease"),
        worker=bindparam("new_worker"),
        due_at=_UNTIL,
    )
)
# The task had its last claim. In `_BURY` MySQL sets the columns one after the other, in the order of the table: `last_error`
# still reads the old `held`.
_IS_SPENT = _TASKS.attempt >= bindparam("most")
_BURY = (
    update(models.delivery)
    .where(*_WAITING, _IS_AMONG, _IS_SPENT, _TASKS.due_at <= _NOW)
    .values(
        last_error=case((_TASKS.held, _word(_RAN_OUT)), else_=_TASKS.last_error),
        state=DEAD,
        held=False,
        due_at=_NOW,
    )
)
_EXTEND = _that_is_held().values(due_at=_UNTIL)
_ACK = _that_is_held().values(state=DELIVERED, held=False, due_at=_NOW, last_error=None)
_ACK_ALL = _that_are_held().values(state=DELIVERED, held=False, due_at=_NOW, last_error=None)
_RELEASE = _that_is_held().values(
    state=case((_TASKS.attempt >= bindparam("most"), _word(DEAD)), else_=_word(WAITING)),
    held=False,
    due_at=_UNTIL,
    last_error=bindparam("error"),
)
_FACTS = (
    *(_TASKS.outbox_id, _TASKS.state, _TASKS.held, _TASKS.attempt),
    *(_TASKS.fence, _TASKS.due_at, _TASKS.lease, _TASKS.on_failure),
)
_LOOK = select(*_FACTS).where(_OF_QUEUE, _IS_AMONG)
_AFTER = bindparam("after", type_=UtcDateTime)
_IS_BEYOND = or_(_TASKS.due_at > _AFTER, _TASKS.outbox_id > bindparam("after_id"))
_DUE = (
    select(_TASKS.due_at, _TASKS.outbox_id, _TASKS.attempt)
    .where(*_WAITING, _TASKS.due_at >= _AFTER, _TASKS.attempt < bindparam("most"))
    .where(_IS_BEYOND)
    .order_by(_TASKS.due_at, _TASKS.outbox_id)
    .limit(bindparam("limit"))
)
_SPENT = (
    select(*_FACTS)
    .where(*_WAITING, _TASKS.due_at >= _AFTER, _IS_SPENT)
    .where(_IS_BEYOND)
    .order_by(_TASKS.due_at, _TASKS.outbox_id)
    .limit(bindparam("limit"))
)
_OLDEST = (
    select(_TASKS.outbox_id, _TASKS.attempt, _TASKS.due_at, _TASKS.held)
    .where(*_WAITING)
    .order_by(_TASKS.due_at)
    .limit(MOST_COUNTED)
    .subquery()
)
_IS_CLAIMED = and_(_OLDEST.c.held, _OLDEST.c.due_at > _NOW)
_COUNTED = select(
    func.count(),
    func.coalesce(func.sum(cast(_IS_CLAIMED, Integer)), 0),
    func.min(_OLDEST.c.outbox_id),
    func.coalesce(func.max(_OLDEST.c.attempt), 0),
)
_DEAD = select(func.count()).select_from(
    select(_TASKS.outbox_id).where(_OF_QUEUE, _TASKS.state == DEAD).limit(MOST_COUNTED).subquery()
)
_BORN = select(models.outbox.c.created_at).where(models.outbox.c.id == bindparam("of_event"))
_UTC_NOW = select(func.utc_timestamp(6, type_=UtcDateTime))


@dataclass(frozen=True, slots=True)
class Task:
    """A task, with its present or last claim. `due_at`: when the lease ends, or the task is due. `on_failure`: set if a file
    waits for the task."""

    id: str
    state: str
    held: bool
    attempt: int
    fence: int
    due_at: datetime
    lease: str | None
    on_failure: str | None

    def is_of(self, lease: str) -> bool:
        return self.lease == lease

    def was_ended_by(self, lease: str) -> bool:
        return self.is_of(lease) and not self.held and self.state == DELIVERED


# A task's id, and the lease of a claim.
TaskClaim = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The result of a claim. `tasks`: the claimed tasks, in the order of the ids. `later`: other tasks, and when each is
    due. `ended`: the ids that Redis must not propose again. `spent`: the tasks among `ended` whose last lease has ended."""

    tasks: Sequence[tuple[Task, Message]]
    later: Mapping[str, datetime]
    ended: Sequence[str]
    spent: Sequence[Task]


async def now_of(connection: AsyncConnection, clock: Clock) -> datetime:
    """Return the time of the database. For SQLite, this is the time of its machine."""
    if connection.dialect.name == "sqlite":
        return clock.now()
    moment: datetime = (await connection.execute(_UTC_NOW)).scalar_one()
    return moment


async def claim(
    connection: AsyncConnection,
    queue: str,
    ids: Sequence[str],
    *,
    lease: str,
    worker: str,
    now: datetime,
    until: datetime,
    max_attempts: int,
) -> Claimed:
    """Claim the tasks that are due, except tasks with `max_attempts` claims."""
    of = {"of_queue": queue, "ids": sorted(ids), "now": now, "most": max_attempts}
    await changed(connection, _CLAIM, **of, new_lease=lease, new_worker=worker, until=until)
    found = {task.id: task for task in await tasks_of(connection, queue, ids)}
    ours = [found[task_id] for task_id in ids if task_id in found and found[task_id].is_of(lease)]
    messages = await messages_of(connection, [task.id for task in ours])
    others = [task for task in found.values() if task.state == WAITING and not task.is_of(lease)]
    spent = [task for task in others if task.attempt >= max_attempts and task.due_at <= now]
    later = {task.id: task.due_at for task in others if task not in spent}
    tasks = [(task, messages[task.id]) for task in ours if task.id in messages]
    kept = {task.id for task, _ in tasks} | set(later)
    return Claimed(tasks, later, [task_id for task_id in ids if task_id not in kept], spent)


async def task_of(connection: AsyncConnection, queue: str, task_id: str) -> Task | None:
    return next(iter(await tasks_of(connection, queue, [task_id])), None)


async def tasks_of(connection: AsyncConnection, queue: str, ids: Sequence[str]) -> list[Task]:
    return [Task(*facts) for facts in await connection.execute(_LOOK, {"of_queue": queue, "ids": list(ids)})]


async def extend(connection: AsyncConnection, queue: str, task_id: str, lease: str, until: datetime) -> bool:
    """Let a lease end at `until`. Return whether the claim holds the task."""
    return await changed(connection, _EXTEND, **_of(queue, task_id, lease), until=until) == 1


async def ack(connection: AsyncConnection, queue: str, task_id: str, lease: str, now: datetime) -> bool:
    """End a task. Return whether this claim has ended the task, now or before."""
    if await changed(connection, _ACK, **_of(queue, task_id, lease), now=now):
        return True
    task = await task_of(connection, queue, task_id)
    return task is not None and task.was_ended_by(lease)


async def ack_all(
    connection: AsyncConnection, queue: str, claims: Collection[TaskClaim], now: datetime
) -> set[TaskClaim]:
    """End tasks, except tasks of gates, each for the claim that holds the task. Return the claims that have ended their
    tasks, now or before."""
    among = set(claims)
    ids = sorted({task_id for task_id, _ in among})
    if await changed(connection, _ACK_ALL, of_queue=queue, ids=ids, claims=sorted(among), now=now) == len(among):
        return among
    found = {task.id: task for task in await tasks_of(connection, queue, ids)}
    return {claim for claim in among if claim[0] in found and found[claim[0]].was_ended_by(claim[1])}


async def release(
    connection: AsyncConnection,
    queue: str,
    task_id: str,
    lease: str,
    *,
    until: datetime,
    error: str | None,
    max_attempts: int,
) -> Task | None:
    """Give a task back: it is due at `until`, or dead after `max_attempts` claims. Return the task; None if this claim has
    not given it back, now or before."""
    told = None if error is None else error.encode()[:MAX_ERROR_BYTES].decode(errors="ignore")
    values = {**_of(queue, task_id, lease), "until": until, "error": told, "most": max_attempts}
    await connection.execute(_RELEASE, values)
    task = await task_of(connection, queue, task_id)
    given_back = task is not None and task.is_of(lease) and not task.held and task.state != DELIVERED
    return task if given_back else None


def _of(queue: str, task_id: str, lease: str) -> dict[str, str]:
    return {"of_queue": queue, "of_task": task_id, "of_lease": lease}


# The position of a waiting task: when it is due, and its id.
Place = tuple[datetime, str]
BEFORE_ALL: Place = (datetime(1970, 1, 1, tzinfo=UTC), "")


async def due_after(
    connection: AsyncConnection, queue: str, after: Place, limit: int, *, max_attempts: int
) -> list[tuple[Place, bool]]:
    """Return the waiting tasks after a position that may be claimed again, in the order of `due_at`, and whether each was
    claimed before. A held task is due when its lease ends."""
    values = {"of_queue": queue, "after": after[0], "after_id": after[1], "limit": limit, "most": max_attempts}
    found = await connection.execute(_DUE, values)
    return [((due_at, task_id), attempt > 0) for due_at, task_id, attempt in found]


async def spent_after(
    connection: AsyncConnection, queue: str, after: Place, limit: int, *, max_attempts: int
) -> list[Task]:
    """Return the waiting tasks after a position whose last lease runs or has ended, in the order of the end."""
    values = {"of_queue": queue, "after": after[0], "after_id": after[1], "limit": limit, "most": max_attempts}
    return [Task(*facts) for facts in await connection.execute(_SPENT, values)]


async def bury(connection: AsyncConnection, queue: str, ids: Sequence[str], now: datetime, *, max_attempts: int) -> int:
    """Mark tasks as dead whose last lease has ended; return how many."""
    return await changed(connection, _BURY, of_queue=queue, ids=sorted(ids), now=now, most=max_attempts)


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts of tasks, each up to 10,000. `waiting`: includes held tasks. `oldest`: when the event of the oldest waiting
    task happened. `attempts`: the most claims of a waiting task."""

    waiting: int
    held: int
    dead: int
    oldest: datetime | None
    attempts: int


async def figures(connection: AsyncConnection, queue: str, now: datetime) -> Figures:
    waiting, held, first, attempts = (await connection.execute(_COUNTED, {"of_queue": queue, "now": now})).one()
    dead: int = (await connection.execute(_DEAD, {"of_queue": queue})).scalar_one()
    oldest = None if first is None else (await connection.execute(_BORN, {"of_event": first})).scalar()
    return Figures(waiting, int(held), dead, oldest, int(attempts))


@dataclass(frozen=True, slots=True)
class Holding:
    """A task, and its present or last worker."""

    id: str
    state: str
    held: bool
    attempt: int
    worker: str | None
    due_at: datetime
    last_error: str | None


_HOLDINGS = select(
    _TASKS.outbox_id.label("id"), *(_TASKS[name] for name in Holding.__dataclass_fields__ if name != "id")
).where(_OF_QUEUE, _TASKS.state == bindparam("of_state"))
_HELD = _HOLDINGS.where(_TASKS.held, _TASKS.due_at > _NOW).order_by(_TASKS.due_at).limit(bindparam("limit"))
_GIVEN_UP = _HOLDINGS.order_by(_TASKS.due_at.desc()).limit(bindparam("limit"))


async def held(connection: AsyncConnection, queue: str, limit: int, now: datetime) -> list[Holding]:
    """Return the tasks that workers hold, in the order in which the leases end."""
    values = {"of_queue": queue, "of_state": WAITING, "now": now, "limit": limit}
    return await all_of(connection, Holding, _HELD, **values)


async def given_up(connection: AsyncConnection, queue: str, limit: int) -> list[Holding]:
    """Return the dead tasks, the latest first."""
    return await all_of(connection, Holding, _GIVEN_UP, of_queue=queue, of_state=DEAD, limit=limit)
