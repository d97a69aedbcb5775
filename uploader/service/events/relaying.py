"""Tells a sink of events: takes what is due, tells it, and notes what became of it.

The rows are the truth. Any number of relays may do the same: each claims rows for itself, with a lease. What is told and not
noted is told again, so an event comes at least once, and in no order.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from uploader.clock import Clock
from uploader.database.engine import Connection, Database
from uploader.database.events import deliveries
from uploader.database.events.deliveries import Due, Failure
from uploader.domain.events import Message
from uploader.observability import EVENT_DELIVERIES, EVENT_DELIVERY_SECONDS
from uploader.service.events import switching
from uploader.service.events.breaker import Breaker
from uploader.sinks.base import Envelope, EventSink, NotTaken, Outcomes, envelope_of, not_taken
from uploader.tasks import uninterrupted

logger = logging.getLogger(__name__)

# How long after each failure the next attempt is; after the last of them there is none.
RETRY_SECONDS = (5.0, 300.0, 1800.0, 2 * 3600.0, 5 * 3600.0, 10 * 3600.0, 14 * 3600.0)
# Longer than a sink is waited for: a batch is told at once.
_LEASE = timedelta(seconds=60)
# A worker looks at least this often: what another process writes wakes nobody here.
POLL_SECONDS = 5.0
# What is written within this time after a batch that was not full is told together.
_REST_SECONDS = 0.2
_JITTER = 0.1


class Relay:
    """Tells one sink."""

    def __init__(self, name: str, sink: EventSink, database: Database, clock: Clock, source: Callable[[], str]) -> None:
        """`source`: who says it, as CloudEvents wants to know."""
        self.name = name
        self._sink = sink
        self._database = database
        self._clock = clock
        self._source = source
        self._breaker = Breaker(clock.monotonic)

    async def relay_due(self) -> float:
        """Tell of at most one batch; how long to sleep then, in seconds. Raises Unavailable."""
        pause = self._breaker.pause_seconds()
        if pause:
            return min(pause, POLL_SECONDS)
        wait = await self._wait_seconds()
        if wait > 0:
            return min(wait, POLL_SECONDS)
        limit = self._sink.batch if self._breaker.is_closed else 1
        told = await uninterrupted(self._relay(limit))
        if told < limit:
            await asyncio.sleep(_REST_SECONDS)
        return 0.0

    async def _wait_seconds(self) -> float:
        """Until anything is due; a sink that wants no more is asked about again and again, because somebody may put it in
        force again."""

        async def look(connection: Connection) -> datetime | None:
            due_at = await deliveries.next_due(connection, self.name)
            if due_at is None or due_at > self._clock.now():
                return due_at
            return None if await switching.is_off(connection, self.name) else due_at

        due_at = await self._database.read(look, brief=True)
        return POLL_SECONDS if due_at is None else (due_at - self._clock.now()).total_seconds()

    async def _relay(self, limit: int) -> int:
        now = self._clock.now()
        due = await self._database.transact(
            lambda connection: deliveries.claim(connection, self.name, limit, now=now, until=now + _LEASE)
        )
        if due:
            await self._tell(due)
        return len(due)

    async def _tell(self, due: Sequence[Due]) -> None:
        source = self._source()
        with EVENT_DELIVERY_SECONDS.labels(self.name).time():
            outcomes = await self._deliver([envelope_of(each.message, source) for each in due])
        pairs = list(zip(due, outcomes, strict=True))
        taken = [each.message.id for each, outcome in pairs if outcome is None]
        failures = [self._failure(each, outcome) for each, outcome in pairs if outcome is not None]
        gone = any(outcome is not None and outcome.gone for outcome in outcomes)
        unanswered = [outcome for outcome in outcomes if outcome is not None and not outcome.answered]
        self._breaker.note(answered=len(due) - len(unanswered), failed=len(unanswered))
        self._count(len(taken), failures)

        async def settle(connection: Connection) -> None:
            await deliveries.settle(connection, self.name, taken, failures, self._clock.now())
            if gone:
                await switching.switch_off(connection, self.name, self._clock.now())

        await self._database.transact(settle)
        if gone:
            logger.error("a sink wants no more events", extra={"sink": self.name})

    async def _deliver(self, envelopes: Sequence[Envelope]) -> Outcomes:
        """What a sink raises all the same is a failure as any other, or the events would be due again for ever."""
        try:
            return await self._sink.deliver(envelopes)
        except Exception as error:
            logger.exception("a sink failed in a way that it should not", extra={"sink": self.name})
            return [not_taken(error)] * len(envelopes)

    async def tell_once(self, message: Message) -> NotTaken | None:
        """Tell of something that is in no row; why it was not taken."""
        (outcome,) = await self._deliver([envelope_of(message, self._source())])
        return outcome

    def _failure(self, due: Due, outcome: NotTaken) -> Failure:
        """What is gone is no failure of the event: it waits until its sink is put in force again."""
        now = self._clock.now()
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
            logger.error(
                "an event was not taken, and is dead",
                extra={"sink": self.name, "event_id": failure.event_id, "reason": failure.error},
            )

    async def close(self) -> None:
        await self._sink.close()
