"""Tasks: deliveries that workers come for. A claim holds a task until its lease ends, and then it is anybody's again.

Each verb is one conditional statement on the row, so that whatever raced with it, a task has one holder: Redis only says
which rows to look at. Time is the database's own, because the callers' clocks differ.
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
    """Return a value as the columns have it, which no CASE knows."""
    return literal(text, _TASKS.state.type)


_TASKS = models.delivery.c
_NOW = bindparam("now", type_=UtcDateTime)
_OF_QUEUE = _TASKS.sink == bindparam("of_queue")
_WAITING = (_OF_QUEUE, _TASKS.state == WAITING)
_IS_AMONG = _TASKS.outbox_id.in_(bindparam("ids", expanding=True))


def _that_are_due() -> Update:
    """Change those of some tasks that are to be had. One that was never claimed is, whatever the clock of the process that
    made it said."""
    is_due = or_(_TASKS.attempt == 0, _TASKS.due_at <= _NOW)
    return update(models.delivery).where(*_WAITING, _IS_AMONG, is_due)


def _that_is_held() -> Update:
    """Change a task for who holds it, also where the lease ran out, and nobody else has claimed it."""
    of_claim = (_OF_QUEUE, _TASKS.outbox_id == bindparam("of_task"), _TASKS.lease == bindparam("of_lease"))
    return update(models.delivery).where(*of_claim, _TASKS.held, _TASKS.state == WAITING)


def _that_are_held() -> Update:
    """Change those of some tasks that are of no gate, each for who holds it."""
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
# The last lease has ended. MySQL sets one column after the other, in the order of the table: the error before what it
# depends on.
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
    """A task, and the claim that holds it, or held it last. `due_at`: when the claim ends, or the task is due;
    `on_failure`: there, if a file waits for it."""

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


# A task's id, and the lease of a claim of it.
TaskClaim = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The tasks that a claim got, in the order of the ids; others by when they are due; ids that Redis must not propose
    again; and the tasks among these whose last lease has ended."""

    tasks: Sequence[tuple[Task, Message]]
    later: Mapping[str, datetime]
    ended: Sequence[str]
    spent: Sequence[Task]


async def now_of(connection: AsyncConnection, clock: Clock) -> datetime:
    """Return the time of the database. A SQLite has its machine's."""
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
    """Claim those of some tasks that are due, but none that was claimed `max_attempts` times."""
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
    """Return whether the claim holds the task, until then."""
    return await changed(connection, _EXTEND, **_of(queue, task_id, lease), until=until) == 1


async def ack(connection: AsyncConnection, queue: str, task_id: str, lease: str, now: datetime) -> bool:
    """End a task; return whether the claim has ended it, now or before."""
    if await changed(connection, _ACK, **_of(queue, task_id, lease), now=now):
        return True
    task = await task_of(connection, queue, task_id)
    return task is not None and task.was_ended_by(lease)


async def ack_all(
    connection: AsyncConnection, queue: str, claims: Collection[TaskClaim], now: datetime
) -> set[TaskClaim]:
    """End tasks of no gate, each for the claim that holds it; return the claims that have ended theirs, now or before."""
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
    """Let a task be due at `until`, or be dead after so many claims; None if the claim has not given it back, now or
    before."""
    told = None if error is None else error.encode()[:MAX_ERROR_BYTES].decode(errors="ignore")
    values = {**_of(queue, task_id, lease), "until": until, "error": told, "most": max_attempts}
    await connection.execute(_RELEASE, values)
    task = await task_of(connection, queue, task_id)
    given_back = task is not None and task.is_of(lease) and not task.held and task.state != DELIVERED
    return task if given_back else None


def _of(queue: str, task_id: str, lease: str) -> dict[str, str]:
    return {"of_queue": queue, "of_task": task_id, "of_lease": lease}


# Where a task stands among those that wait: when it is due, and its id.
Place = tuple[datetime, str]
BEFORE_ALL: Place = (datetime(1970, 1, 1, tzinfo=UTC), "")


async def due_after(
    connection: AsyncConnection, queue: str, after: Place, limit: int, *, max_attempts: int
) -> list[tuple[Place, bool]]:
    """Return the waiting tasks after a place that may be claimed again, the first due at first, and whether each was ever
    claimed; held ones are due when their lease ends."""
    values = {"of_queue": queue, "after": after[0], "after_id": after[1], "limit": limit, "most": max_attempts}
    found = await connection.execute(_DUE, values)
    return [((due_at, task_id), attempt > 0) for due_at, task_id, attempt in found]


async def spent_after(
    connection: AsyncConnection, queue: str, after: Place, limit: int, *, max_attempts: int
) -> list[Task]:
    """Return the waiting tasks after a place whose last lease has ended or runs, the first end at first."""
    values = {"of_queue": queue, "after": after[0], "after_id": after[1], "limit": limit, "most": max_attempts}
    return [Task(*facts) for facts in await connection.execute(_SPENT, values)]


async def bury(connection: AsyncConnection, queue: str, ids: Sequence[str], now: datetime, *, max_attempts: int) -> int:
    """Let tasks be dead whose last lease has ended; return how many."""
    return await changed(connection, _BURY, of_queue=queue, ids=sorted(ids), now=now, most=max_attempts)


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts of tasks, of each 10,000 at most. `waiting`: held or not; `oldest`: when the event of the oldest was told;
    `attempts`: the most claims that one of them had."""

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
    """A task, and the worker who holds it, or held it last."""

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
    """Return the tasks that workers hold, the one whose lease ends first at first."""
    values = {"of_queue": queue, "of_state": WAITING, "now": now, "limit": limit}
    return await all_of(connection, Holding, _HELD, **values)


async def given_up(connection: AsyncConnection, queue: str, limit: int) -> list[Holding]:
    """Return the dead ones, those that died last at first."""
    return await all_of(connection, Holding, _GIVEN_UP, of_queue=queue, of_state=DEAD, limit=limit)
