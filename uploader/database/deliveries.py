"""Deliveries of events that are due: claim them, end them, put them off, and forget them.

A claim is a lease: after its end the delivery is due again, so nothing is lost when a worker dies. Only the row counts: a
delivery that is claimed twice may be told twice. There is no cursor at the highest id, because ids commit out of order.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import ColumnElement, bindparam, case, delete, exists, func, select, update

from uploader.database import models
from uploader.database.connection import AsyncConnection
from uploader.database.models import UtcDateTime
from uploader.database.outbox import DEAD, DELIVERED, MAX_ERROR_BYTES, WAITING
from uploader.database.queries import all_of, count, first_of
from uploader.database.transactions.rows import changed, given
from uploader.domain.events import Message

_EVENTS, _DELIVERIES = models.outbox.c, models.delivery.c
_WAITING_FOR = (_DELIVERIES.state == WAITING, _DELIVERIES.sink == bindparam("of_sink"))
# Skip rows that another relay has locked. SQLite has only one writer, and ignores this.
_DUE = (
    select(_DELIVERIES.outbox_id, _DELIVERIES.attempt)
    .where(*_WAITING_FOR, _DELIVERIES.due_at <= bindparam("now", type_=UtcDateTime))
    .order_by(_DELIVERIES.due_at)
    .limit(bindparam("most"))
    .with_for_update(skip_locked=True)
)
_ALL_MESSAGES = select(*(_EVENTS[each.name] for each in fields(Message)))
_MESSAGES = _ALL_MESSAGES.where(_EVENTS.id.in_(bindparam("ids", expanding=True)))
_NEXT_DUE = select(func.min(_DELIVERIES.due_at)).where(*_WAITING_FOR)
# Counts stop here: counting millions takes seconds.
MOST_COUNTED = 10_000
_NEXT_SINK = select(func.min(_DELIVERIES.sink)).where(
    _DELIVERIES.state == bindparam("of_state"), _DELIVERIES.sink > bindparam("after")
)
_OF_STATE = (_DELIVERIES.state == bindparam("of_state"), _DELIVERIES.sink == bindparam("of_sink"))
_LONGEST_DUE = (
    select(_DELIVERIES.outbox_id).where(*_OF_STATE).order_by(_DELIVERIES.due_at).limit(bindparam("most")).subquery()
)
_COUNTED = select(func.count(), func.min(_LONGEST_DUE.c.outbox_id))
# A failed delivery is due later than a new one. The dead delivery that is due last died last.
_LATEST_DUE = (
    select(_DELIVERIES.due_at, _DELIVERIES.last_error)
    .where(*_OF_STATE)
    .order_by(_DELIVERIES.due_at.desc())
    .limit(bindparam("most"))
    .subquery()
)
_LAST_ERROR = (
    select(_LATEST_DUE.c.last_error)
    .where(_LATEST_DUE.c.last_error.is_not(None))
    .order_by(_LATEST_DUE.c.due_at.desc())
    .limit(1)
)
_OF_SINK = update(models.delivery).where(
    _DELIVERIES.outbox_id.in_(bindparam("ids", expanding=True)), _DELIVERIES.sink == bindparam("of_sink")
)
# `lease` names the owner of the claim.
_LEASE = _OF_SINK.values(due_at=bindparam("until", type_=UtcDateTime), lease=bindparam("owner"))
_CLAIMED = update(models.delivery).where(
    *_WAITING_FOR,
    _DELIVERIES.due_at > bindparam("now", type_=UtcDateTime),
    _DELIVERIES.due_at <= bindparam("until", type_=UtcDateTime),
    _DELIVERIES.lease.in_(bindparam("owners", expanding=True)),
)
_TAKE_OVER = _CLAIMED.values(due_at=bindparam("now", type_=UtcDateTime), lease=None)
_END = _OF_SINK.where(_DELIVERIES.state == WAITING).values(
    state=DELIVERED, due_at=bindparam("ended_at", type_=UtcDateTime), last_error=None
)
_PUT_OFF = (
    update(models.delivery)
    .where(*_WAITING_FOR, _DELIVERIES.outbox_id == bindparam("of_event"))
    .values({**given("attempt", "due_at", "state", "last_error"), "lease": None})
)
# A held file waits for the event.
_IS_ASKED = exists().where(models.held_file.c.event_id == _EVENTS.id)


@dataclass(frozen=True, slots=True)
class Due:
    message: Message
    attempt: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The failed attempt number `attempt`. `next_at` is the time of the next attempt; None: there is none."""

    event_id: str
    attempt: int
    next_at: datetime | None
    error: str


@dataclass(frozen=True, slots=True)
class SinkState:
    """The deliveries of a sink, each count up to 10,000. `oldest`: the time of the oldest waiting event."""

    waiting: int = 0
    dead: int = 0
    oldest: datetime | None = None


async def claim(
    connection: AsyncConnection, sink: str, limit: int, *, now: datetime, until: datetime, owner: str | None = None
) -> list[Due]:
    """Claim due deliveries, the longest due first. They are due again at `until`."""
    found = (await connection.execute(_DUE, {"of_sink": sink, "now": now, "most": limit})).all()
    if not found:
        return []
    attempts: dict[str, int] = dict(map(tuple, found))
    await connection.execute(_LEASE, {"of_sink": sink, "ids": list(attempts), "until": until, "owner": owner})
    messages = await messages_of(connection, list(attempts))
    # The id in a damaged row may belong to no event. The row must hold up no other.
    return [Due(messages[event_id], attempt) for event_id, attempt in attempts.items() if event_id in messages]


async def take_over(
    connection: AsyncConnection, sink: str, owners: Collection[str], *, now: datetime, until: datetime
) -> int:
    """Let deliveries be due at once that these owners have claimed, but not beyond `until`; return how many."""
    return await changed(connection, _TAKE_OVER, of_sink=sink, owners=sorted(owners), now=now, until=until)


async def messages_of(connection: AsyncConnection, ids: Sequence[str]) -> dict[str, Message]:
    """Return the events that exist, by their ids."""
    found = await all_of(connection, Message, _MESSAGES, ids=ids) if ids else []
    return {message.id: message for message in found}


async def next_due(connection: AsyncConnection, sink: str) -> datetime | None:
    """Return the earliest moment at which a delivery is due, or a lease ends."""
    found: datetime | None = (await connection.execute(_NEXT_DUE, {"of_sink": sink})).scalar()
    return found


async def settle(
    connection: AsyncConnection, sink: str, delivered: Sequence[str], failed: Iterable[Failure], now: datetime
) -> None:
    """Note the outcome of claimed deliveries. A delivery that somebody else has ended stays ended."""
    if delivered:
        await connection.execute(_END, {"of_sink": sink, "ids": list(delivered), "ended_at": now})
    for failure in failed:
        values = {
            "of_event": failure.event_id,
            "of_sink": sink,
            "new_attempt": failure.attempt,
            "new_due_at": failure.next_at or now,
            "new_state": DEAD if failure.next_at is None else WAITING,
            "new_last_error": failure.error.encode()[:MAX_ERROR_BYTES].decode(errors="ignore"),
        }
        await connection.execute(_PUT_OFF, values)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The delivery of an event to one sink. `due_at`: the time of the next attempt, or of the end."""

    sink: str
    state: str
    failures: int
    due_at: datetime
    last_error: str | None


async def newest(
    connection: AsyncConnection, *, limit: int, since: datetime | None = None, dead: bool = False
) -> list[tuple[Message, list[Delivery]]]:
    """Return events with their deliveries, the newest first. `dead`: only events with a dead delivery."""
    query = _ALL_MESSAGES.order_by(_EVENTS.id.desc()).limit(limit)
    if since is not None:
        query = query.where(_EVENTS.created_at >= since)
    if dead:
        query = query.where(_EVENTS.id.in_(select(_DELIVERIES.outbox_id).where(_DELIVERIES.state == DEAD)))
    messages = await all_of(connection, Message, query)
    told = await _deliveries_of(connection, [message.id for message in messages])
    return [(message, told[message.id]) for message in messages]


async def one(connection: AsyncConnection, event_id: str) -> tuple[Message, list[Delivery]] | None:
    message = await first_of(connection, Message, _ALL_MESSAGES.where(_EVENTS.id == event_id))
    if message is None:
        return None
    return message, (await _deliveries_of(connection, [event_id]))[event_id]


async def _deliveries_of(connection: AsyncConnection, event_ids: Sequence[str]) -> dict[str, list[Delivery]]:
    # A task counts an attempt when its claim begins.
    has_not_failed = (_DELIVERIES.fence > 0) & ((_DELIVERIES.state == DELIVERED) | _DELIVERIES.held)
    failures = _DELIVERIES.attempt - case((has_not_failed, 1), else_=0)
    columns = [failures if each.name == "failures" else _DELIVERIES[each.name] for each in fields(Delivery)]
    query = select(_DELIVERIES.outbox_id, *columns).where(_DELIVERIES.outbox_id.in_(event_ids))
    told: dict[str, list[Delivery]] = defaultdict(list)
    for event_id, *facts in await connection.execute(query.order_by(_DELIVERIES.sink)):
        told[event_id].append(Delivery(*facts))
    return told


async def renew(
    connection: AsyncConnection,
    now: datetime,
    *,
    sinks: Collection[str],
    event_id: str | None = None,
    since: datetime | None = None,
    dead: bool = False,
    limit: int | None = None,
) -> int:
    """Let deliveries of these sinks and queues be due now, as if they were new; return how many. All given conditions have
    to hold. A task that somebody holds stays held."""
    fits: list[ColumnElement[bool]] = [_DELIVERIES.sink.in_(sinks), ~_DELIVERIES.held | (_DELIVERIES.due_at <= now)]
    if event_id is not None:
        fits.append(_DELIVERIES.outbox_id == event_id)
    if since is not None:
        fits.append(_DELIVERIES.outbox_id.in_(select(_EVENTS.id).where(_EVENTS.created_at >= since)))
    if dead:
        fits.append(_DELIVERIES.state == DEAD)
    if limit is not None:
        some = await connection.execute(select(_DELIVERIES.outbox_id).where(*fits).limit(limit))
        fits.append(_DELIVERIES.outbox_id.in_(some.scalars().all()))
    values = {"state": WAITING, "attempt": 0, "due_at": now, "last_error": None, "held": False, "lease": None}
    return await changed(connection, update(models.delivery).where(*fits).values(**values))


async def last_error(connection: AsyncConnection, sink: str) -> str | None:
    """Return the latest error of the waiting deliveries, or else of the dead ones."""
    for state in (WAITING, DEAD):
        values = {"of_state": state, "of_sink": sink, "most": MOST_COUNTED}
        error: str | None = (await connection.execute(_LAST_ERROR, values)).scalar()
        if error is not None:
            return error
    return None


async def states(connection: AsyncConnection) -> Mapping[str, SinkState]:
    """Return the state of each sink with waiting or dead deliveries, configured or not."""
    waiting = {sink: await _counted(connection, WAITING, sink) for sink in await sinks_of(connection, WAITING)}
    dead = {sink: await _counted(connection, DEAD, sink) for sink in await sinks_of(connection, DEAD)}
    times: dict[str, datetime] = {}
    if waiting:
        query = select(_EVENTS.id, _EVENTS.created_at)
        found = await connection.execute(query.where(_EVENTS.id.in_([first for _, first in waiting.values()])))
        times = dict(map(tuple, found))
    told: dict[str, SinkState] = {}
    for sink in waiting | dead:
        (waits, first), (died, _) = waiting.get(sink, (0, "")), dead.get(sink, (0, ""))
        told[sink] = SinkState(waits, died, times.get(first))
    return told


async def sinks_of(connection: AsyncConnection, state: str) -> list[str]:
    """Return the sinks and queues with deliveries in a state, by one look into the index for each."""
    found: list[str] = []
    while True:
        values = {"of_state": state, "after": found[-1] if found else ""}
        sink = (await connection.execute(_NEXT_SINK, values)).scalar()
        if sink is None:
            return found
        found.append(sink)


async def _counted(connection: AsyncConnection, state: str, sink: str) -> tuple[int, str]:
    """Count the deliveries of a sink, and find the first event. Only the MOST_COUNTED deliveries that are due for longest
    count."""
    values = {"of_state": state, "of_sink": sink, "most": MOST_COUNTED}
    count, first = (await connection.execute(_COUNTED, values)).one()
    return count, first or ""


async def forget_events(connection: AsyncConnection, before: datetime, limit: int) -> tuple[int, int]:
    """Delete the oldest events with their deliveries, except events that ask gates. Return the number of events, and of
    deliveries that still waited."""
    oldest = select(_EVENTS.id, _EVENTS.created_at).where(~_IS_ASKED).order_by(_EVENTS.id).limit(limit)
    ids = [event_id for event_id, created_at in await connection.execute(oldest) if created_at < before]
    if not ids:
        return 0, 0
    of_them = _DELIVERIES.outbox_id.in_(ids)
    waiting = await count(connection, of_them, _DELIVERIES.state == WAITING)
    await connection.execute(delete(models.delivery).where(of_them))
    await connection.execute(delete(models.outbox).where(_EVENTS.id.in_(ids)))
    return len(ids), waiting
