"""Events on their way to the sinks: delivers them, reports how far each sink is, and repeats deliveries on request.

The rows are the truth. Several relays may run: each claims rows with a lease. A delivery that was not noted is
repeated, so an event arrives at least once, and in no order.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

import msgspec
from msgspec import Struct

from uploader.database import deliveries, meta, work
from uploader.database.audit_log import note
from uploader.database.deliveries import Delivery, Due, Failure, SinkState
from uploader.database.engine import Connection, Database
from uploader.domain import reasons
from uploader.domain.audit_log import Action
from uploader.domain.diagnosis import Diagnosis
from uploader.domain.events import Message
from uploader.errors import NotFound
from uploader.runtime.clock import Clock
from uploader.runtime.observability import EVENT_DELIVERIES, EVENT_DELIVERY_SECONDS, Trouble
from uploader.runtime.tasks import uninterrupted
from uploader.service.audit_log import act, actor
from uploader.service.ids import new_id
from uploader.service.leases import ProcessMark
from uploader.sinks.base import Envelope, EventSink, NotTaken, Outcomes, envelope_of, not_taken

__all__ = ["TEST_TYPE", "Delivery", "Message", "Reviewing", "Told"]


# Prefix of a name in `meta`, where names have at most 64 bytes; sinks have names of at most 48.
_PREFIX = "sink off "


async def is_off(connection: Connection, sink: str) -> bool:
    """Return whether a sink has refused all further events (410), until an administrator enables it again."""
    return await meta.fact(connection, f"{_PREFIX}{sink}") is not None


async def switch_off(connection: Connection, sink: str, now: datetime) -> None:
    await meta.replace_fact(connection, f"{_PREFIX}{sink}", now.isoformat())


async def switch_on(connection: Connection, sink: str) -> None:
    await meta.forget_fact(connection, f"{_PREFIX}{sink}")


# How long events are kept, delivered or not.
RETENTION = timedelta(days=7)
# A lag beyond this is worth a warning.
_LATE_SECONDS = 300.0
_NOTHING = SinkState()

# The condition of a sink: it gets events; it is behind; it refused all further events; the settings lack its name.
Condition = Literal["in-force", "late", "off", "unnamed"]


class SinkFigures(Struct):
    """The figures of a sink: waiting and dead deliveries (counted up to 10,000), and the age of the oldest waiting
    event. `last_error`: the reason why an event was not taken."""

    sink: str
    condition: Condition
    waiting: int
    dead: int
    lag_seconds: float
    last_error: str | None


@dataclass(eq=False, repr=False)
class Watching:
    names: tuple[str, ...]
    # Queues, whose tasks belong to no sink.
    queues: tuple[str, ...]
    database: Database
    clock: Clock

    @property
    def listeners(self) -> tuple[str, ...]:
        return (*self.names, *self.queues)

    async def states(self) -> Mapping[str, SinkState]:
        """Return the states of all sinks and queues. Raises Unavailable."""
        if not self.listeners:
            return {}
        found = await self.database.read(deliveries.states)
        return {name: found.get(name, _NOTHING) for name in self.listeners}

    def lag_seconds(self, state: SinkState) -> float:
        return 0.0 if state.oldest is None else max(0.0, (self.clock.now() - state.oldest).total_seconds())

    async def sinks(self) -> list[SinkFigures]:
        """Return the sinks of the settings, then removed sinks that still have deliveries. Raises Unavailable."""

        async def look(connection: Connection) -> list[SinkFigures]:
            found = await deliveries.states(connection)
            names = [*self.names, *sorted(set(found) - set(self.names) - set(self.queues))]
            return [await self._figures(connection, name, found.get(name, _NOTHING)) for name in names]

        return await self.database.read(look)

    async def _figures(self, connection: Connection, name: str, state: SinkState) -> SinkFigures:
        lag = self.lag_seconds(state)
        condition: Condition = "late" if lag > _LATE_SECONDS else "in-force"
        if name not in self.names:
            condition = "unnamed"
        elif await is_off(connection, name):
            condition = "off"
        error = await deliveries.last_error(connection, name) if state.waiting or state.dead else None
        return SinkFigures(name, condition, state.waiting, state.dead, lag, error)

    async def diagnoses(self) -> list[Diagnosis]:
        """Raises Unavailable."""
        said = [diagnosis for each in await self.sinks() for diagnosis in _said_of(each)]
        states = await self.states() if self.queues else {}
        dead = {name: states[name].dead for name in self.queues if states[name].dead}
        return [*said, *(reasons.EVENTS_DEAD(sink=name, dead=count) for name, count in dead.items())]

    async def forget_old(self, limit: int) -> tuple[int, int]:
        """Delete old events. Return how many, and how many of their deliveries were never taken. Raises Unavailable."""
        before = self.clock.now() - RETENTION
        return await self.database.transact(deliveries.forget_events, before, limit)


def _said_of(sink: SinkFigures) -> Iterator[Diagnosis]:
    match sink.condition:
        case "unnamed" if sink.waiting:
            yield reasons.EVENTS_UNNAMED(waiting=sink.waiting, sink=sink.sink)
        case "off":
            yield reasons.EVENTS_OFF(sink=sink.sink)
        case "late":
            yield reasons.EVENTS_LATE(sink=sink.sink, seconds=f"{sink.lag_seconds:.0f}")
    if sink.dead and sink.condition != "unnamed":
        yield reasons.EVENTS_DEAD(sink=sink.sink, dead=sink.dead)


logger = logging.getLogger(__name__)

# After this many failures in a row a sink gets a pause.
_PATIENCE = 5
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
# The delay before the next attempt, after each failure. After the last one the delivery is dead.
RETRY_SECONDS = (5.0, 300.0, 1800.0, 2 * 3600.0, 5 * 3600.0, 10 * 3600.0, 14 * 3600.0)
# Longer than any wait for a sink, since the events of a batch are delivered together.
_LEASE = timedelta(seconds=60)
# A worker looks at least this often: writes of other processes wake nobody here.
POLL_SECONDS = 5.0
# After a batch that was not full, wait this long for more events to deliver together.
_REST_SECONDS = 0.2
_JITTER = 0.1
_INTERRUPTED = "the worker was ended while it waited for the answer"


@dataclass(eq=False, repr=False)
class Relay:
    # `source`: the CloudEvents source of the events.
    name: str
    sink: EventSink
    database: Database
    mark: ProcessMark
    clock: Clock
    source: Callable[[], str]

    def __post_init__(self) -> None:
        self._failures, self._pause_seconds, self._goes_on_at = 0, 0.0, 0.0
        self._trouble = Trouble(f"sink {self.name}")

    async def relay_due(self) -> float:
        """Deliver at most one batch. Return the seconds to sleep afterwards. Raises Unavailable."""
        pause = self._goes_on_at - self.clock.monotonic()
        if pause > 0:
            return min(pause, POLL_SECONDS)
        wait = await self._wait_seconds()
        if wait > 0:
            return min(wait, POLL_SECONDS)
        limit = 1 if self._pause_seconds else self.sink.batch
        told = await self._relay(limit)
        if told < limit:
            await asyncio.sleep(_REST_SECONDS)
        return 0.0

    async def _wait_seconds(self) -> float:
        """Return the seconds until a delivery is due. A sink that refused events may be enabled again meanwhile."""

        async def look(connection: Connection) -> datetime | None:
            due_at = await deliveries.next_due(connection, self.name)
            if due_at is None or due_at > self.clock.now():
                return due_at
            return None if await is_off(connection, self.name) else due_at

        due_at = await self.database.read(look, brief=True)
        return POLL_SECONDS if due_at is None else (due_at - self.clock.now()).total_seconds()

    async def _relay(self, limit: int) -> int:
        """Deliver one batch. After a cancellation, other relays may deliver the batch at once, perhaps a second time."""
        claiming = asyncio.ensure_future(self._claim(limit))
        try:
            due = await uninterrupted(claiming)
            if not due:
                return 0
            source = self.source()
            with EVENT_DELIVERY_SECONDS.labels(self.name).time():
                outcomes = await self._deliver([envelope_of(each.message, source) for each in due])
        except asyncio.CancelledError:
            now = self.clock.now()
            given_back = [Failure(each.message.id, each.attempt, now, _INTERRUPTED) for each in claiming.result()]
            await uninterrupted(self.database.transact(deliveries.settle, self.name, [], given_back, now))
            raise
        await uninterrupted(self._settle(due, outcomes))
        return len(due)

    async def _claim(self, limit: int) -> Sequence[Due]:
        owner = await self.mark.take()
        now = self.clock.now()
        claim = partial(deliveries.claim, now=now, until=now + _LEASE, owner=owner)
        return await self.database.transact(claim, self.name, limit)

    async def _settle(self, due: Sequence[Due], outcomes: Outcomes) -> None:
        pairs = list(zip(due, outcomes, strict=True))
        taken = [each.message.id for each, outcome in pairs if outcome is None]
        failures = [self._failure(each, outcome) for each, outcome in pairs if outcome is not None]
        gone = any(outcome is not None and outcome.gone for outcome in outcomes)
        unanswered = [outcome for outcome in outcomes if outcome is not None and not outcome.answered]
        self._keep_off(answered=len(due) - len(unanswered), failed=len(unanswered))
        if unanswered:
            self._trouble.note("a sink does not answer", kind="silence", reason=unanswered[0].error)
        if taken and self._trouble.is_open:
            self._trouble.worked()
        self._count(len(taken), failures)

        async def settle(connection: Connection) -> None:
            await deliveries.settle(connection, self.name, taken, failures, self.clock.now())
            if gone:
                await switch_off(connection, self.name, self.clock.now())

        await self.database.transact(settle)
        if gone:
            logger.error("a sink wants no more events", extra={"sink": self.name})

    def _keep_off(self, *, answered: int, failed: int) -> None:
        """Pause a sink that does not answer; its events wait in their rows. The pause doubles each time, and then one
        attempt decides. An event that is taken, or refused for its content, shows a working sink."""
        self._failures = 0 if answered else self._failures + failed
        if self._failures < _PATIENCE:
            self._pause_seconds = 0.0
            return
        self._pause_seconds = min(2 * self._pause_seconds or _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        self._goes_on_at = self.clock.monotonic() + self._pause_seconds

    async def _deliver(self, envelopes: Sequence[Envelope]) -> Outcomes:
        """Deliver a batch. Any error of a sink counts as a failure; otherwise the events would be due for ever."""
        try:
            return await self.sink.deliver(envelopes)
        except Exception as error:
            message, level = "a sink failed in a way that it should not", logging.ERROR
            self._trouble.note(message, kind=type(error).__name__, level=level, trace=error, sink=self.name)
            return [not_taken(error)] * len(envelopes)

    async def tell_once(self, message: Message) -> NotTaken | None:
        """Deliver a message that has no row. Return why it was not taken; None if it was."""
        (outcome,) = await self._deliver([envelope_of(message, self.source())])
        return outcome

    def _failure(self, due: Due, outcome: NotTaken) -> Failure:
        """Make the failure of a delivery. If the sink is gone, the event waits until the sink is enabled again."""
        now = self.clock.now()
        if outcome.gone:
            return Failure(due.message.id, due.attempt, now, outcome.error)
        attempt = due.attempt + 1
        if attempt > len(RETRY_SECONDS):
            return Failure(due.message.id, attempt, None, outcome.error)
        delay = RETRY_SECONDS[attempt - 1] * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 (jitter)
        return Failure(due.message.id, attempt, now + timedelta(seconds=delay), outcome.error)

    def _count(self, taken: int, failures: Sequence[Failure]) -> None:
        dead = [failure for failure in failures if failure.next_at is None]
        for outcome, count in (("delivered", taken), ("failed", len(failures) - len(dead)), ("dead", len(dead))):
            EVENT_DELIVERIES.labels(self.name, outcome).inc(count)
        for failure in dead:
            note = partial(self._trouble.note, sink=self.name, event_id=failure.event_id, reason=failure.error)
            note("an event was not taken, and is dead", kind="dead", level=logging.ERROR)

    async def close(self) -> None:
        await self.sink.close()


@dataclass(eq=False, repr=False)
class Takeover:
    """Takes over deliveries that other processes of this node had claimed, when they died before noting the outcome."""

    sinks: tuple[str, ...]
    database: Database
    mark: ProcessMark
    clock: Clock

    async def take_over(self) -> int:
        """Return how many deliveries are due at once. Raises Unavailable."""
        dead = await self.mark.dead()
        count = 0
        for sink in self.sinks if dead else ():
            now = self.clock.now()
            again = partial(deliveries.take_over, now=now, until=now + _LEASE)
            count += await self.database.transact(again, sink, dead)
        await self.mark.forget(dead)
        return count


# An event, and its deliveries.
Told = tuple[Message, list[Delivery]]

# The type of test events; no other event has it.
TEST_TYPE = "test"
_AT_ONCE = 1000


@dataclass(eq=False, repr=False)
class Reviewing:
    """Events by hand: list deliveries, repeat them, and test a sink."""

    relays: Mapping[str, Relay]
    # Queues, whose tasks are handed out once more.
    queues: tuple[str, ...]
    database: Database
    clock: Clock

    async def newest(self, *, limit: int, since: datetime | None, dead: bool) -> list[Told]:
        """Return events, newest first, with their deliveries. Raises Unavailable."""
        return await self.database.read(partial(deliveries.newest, limit=limit, since=since, dead=dead))

    async def one(self, event_id: str) -> Told:
        """Return an event with its deliveries. Raises NotFound, Unavailable."""
        found = await self.database.read(deliveries.one, event_id)
        if found is None:
            raise NotFound(f"There is no event {event_id}: events are kept for a week.")
        return found

    async def replay(self, *, sink: str | None, event_id: str | None, since: datetime | None, dead: bool) -> int:
        """Repeat all deliveries that match. Return how many. Raises NotFound, Unavailable."""
        sinks = [*self.relays, *self.queues] if sink is None else [self._name(sink)]
        if event_id is not None:
            await self.one(event_id)
        now, by = self.clock.now(), actor()
        again = partial(deliveries.renew, sinks=sinks, event_id=event_id, since=since, dead=dead)

        async def renew(connection: Connection, limit: int | None = None) -> int:
            # The lease of a task ends by the clock of `now_of`, which therefore decides whether the task is held.
            renewed = await again(connection, await work.now_of(connection, self.clock), limit=limit)
            if renewed:
                await note(
                    connection, act(Action.EVENTS_REPLAYED, now, subject=sink or "all sinks", by=by), deliveries=renewed
                )
            return renewed

        if not dead:
            return await self.database.transact(renew)
        # There may be very many dead deliveries, and others write meanwhile.
        count = 0
        while renewed := await self.database.transact(partial(renew, limit=_AT_ONCE)):
            count += renewed
        return count

    async def test(self, sink: str) -> str | None:
        """Send a test event. Return the sink's refusal, or enable the sink. Raises NotFound, Unavailable."""
        relay = self._relay(sink)
        event_id = new_id()
        data = msgspec.json.encode({"sink": sink})
        message = Message(event_id, TEST_TYPE, event_id, "", self.clock.now(), data)
        refusal = await relay.tell_once(message)
        if refusal is not None:
            return refusal.error

        told = act(Action.SINK_ENABLED, self.clock.now(), subject=sink)

        async def put_in_force(connection: Connection) -> None:
            if await is_off(connection, sink):
                await switch_on(connection, sink)
                await note(connection, told)

        await self.database.transact(put_in_force)
        return None

    def _name(self, name: str) -> str:
        """Return the name of a sink or a queue. Raises NotFound."""
        return name if name in self.queues else self._relay(name).name

    def _relay(self, sink: str) -> Relay:
        relay = self.relays.get(sink)
        if relay is None:
            raise NotFound(f"UPLOADER_EVENTS has no sink {sink}; it has: {', '.join(self.relays) or 'none'}")
        return relay
