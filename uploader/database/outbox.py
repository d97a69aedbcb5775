"""The outbox: events are written in the transaction that they describe. After a rollback nobody hears of the event; after a
commit each of its sinks does.

A transaction calls `tell` for each event. Without sinks this is one lookup in a dict. Otherwise each event costs a row, and
another row for each sink.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Engine, event, insert

from uploader.database import models
from uploader.database.connection import AsyncConnection
from uploader.domain.events import EventType, News, OnFailure

# The states of a delivery: the sink is still to be told, was told, or could not be told.
WAITING, DELIVERED, DEAD = "waiting", "delivered", "dead"
# Longer errors are cut.
MAX_ERROR_BYTES = 1024

# Keys of a connection's `info`.
_OUTBOX, _TOLD = "outbox", "told"
_INSERT_EVENT = insert(models.outbox)
_INSERT_DELIVERY = insert(models.delivery)
_encode = msgspec.json.Encoder().encode


class Told(NamedTuple):
    """An event, and the sink or queue to tell."""

    event_id: str
    sink: str


@dataclass(eq=False, repr=False)
class Outbox:
    """Writes events for the sinks that want their types."""

    sinks_of: InitVar[Callable[[EventType], tuple[str, ...]]]
    # Returns ids that grow with time.
    new_id: Callable[[], str]
    now: Callable[[], datetime]
    # Called after a commit that told a sink, and after a commit with an unknown outcome.
    wake: Callable[[Sequence[Told]], Awaitable[None]]
    # Gates that have to let a file pass before others are told of the file.
    gates: Mapping[str, OnFailure] = field(default_factory=dict)

    def __post_init__(self, sinks_of: Callable[[EventType], tuple[str, ...]]) -> None:
        self._sinks = {kind: sinks_of(kind) for kind in EventType}

    def attach(self, engine: Engine) -> None:
        event.listen(engine, "connect", lambda _connection, record: record.info.update({_OUTBOX: self}))

    def listens(self, kind: EventType) -> bool:
        return bool(self._sinks[kind])

    async def write(self, connection: AsyncConnection, news: Iterable[News]) -> None:
        await self._write(connection, [(each, self._sinks[each.type]) for each in news])

    async def ask(self, connection: AsyncConnection, news: Sequence[News]) -> list[str]:
        """Write events for the gates alone; return the ids of the events."""
        return await self._write(connection, [(each, tuple(self.gates)) for each in news])

    async def _write(self, connection: AsyncConnection, told_to: Iterable[tuple[News, tuple[str, ...]]]) -> list[str]:
        events: list[dict[str, Any]] = []
        deliveries: list[dict[str, Any]] = []
        now = self.now()
        for each, sinks in told_to:
            if not sinks:
                continue
            of = {"id": self.new_id(), "type": each.type.value, "subject": each.subject, "user_id": each.user_id}
            events.append({**of, "created_at": now, "data": _encode(each.data)})
            deliveries += [delivery_row(of["id"], sink, now, self.gates.get(sink)) for sink in sinks]
        if events:
            await connection.execute(_INSERT_EVENT, _one_or_many(events))
            await connection.execute(_INSERT_DELIVERY, _one_or_many(deliveries))
            told: list[Told] | None = connection.info.get(_TOLD)
            if told is not None:
                told += [Told(each["outbox_id"], each["sink"]) for each in deliveries]
        return [each["id"] for each in events]


@contextmanager
def noting(connection: AsyncConnection, told: list[Told]) -> Iterator[None]:
    """Collect the deliveries that a transaction writes. The list begins empty, because an earlier attempt was rolled
    back."""
    told.clear()
    info = connection.info  # kept, because a lost connection has no `info`
    before, info[_TOLD] = info.get(_TOLD), told
    try:
        yield
    finally:
        info[_TOLD] = before


def delivery_row(event_id: str, sink: str, due_at: datetime, on_failure: OnFailure | None = None) -> dict[str, Any]:
    row = {"outbox_id": event_id, "sink": sink, "attempt": 0, "due_at": due_at, "state": WAITING, "last_error": None}
    return row | {"on_failure": on_failure and on_failure.value}


async def tell(connection: AsyncConnection, make: Callable[..., News], *of: object) -> None:
    """Write the event of an action, in the transaction of the action."""
    await tell_all(connection, make, of[:1], *of[1:])


async def tell_all(
    connection: AsyncConnection, make: Callable[..., News], things: Iterable[object], *more: object
) -> None:
    outbox: Outbox | None = connection.info.get(_OUTBOX)
    if outbox is not None:
        await outbox.write(connection, [make(each, *more) for each in things])


def gates(connection: AsyncConnection) -> tuple[str, ...]:
    outbox: Outbox | None = connection.info.get(_OUTBOX)
    return () if outbox is None else tuple(outbox.gates)


async def ask_gates(connection: AsyncConnection, news: Sequence[News]) -> list[str]:
    """Ask the gates about files, in this transaction; return the ids of the events."""
    outbox: Outbox = connection.info[_OUTBOX]
    return await outbox.ask(connection, news)


def listens(connection: AsyncConnection, kind: EventType) -> bool:
    """Return whether any sink is told of a type. A caller asks before costly work for `tell`."""
    outbox: Outbox | None = connection.info.get(_OUTBOX)
    return outbox is not None and outbox.listens(kind)


def _one_or_many(rows: list[dict[str, Any]]) -> Any:
    return rows[0] if len(rows) == 1 else rows
