"""Work queues: the events of a queue are tasks. A worker comes for a task, and holds it alone.

Rows decide who holds a task (`database/work.py`). The delay queue in Redis only proposes: the queue names due tasks,
and wakes waiting workers. Outdated or lost proposals never give a task to two workers. A keeper proposes tasks again
that Redis lacks.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from msgspec import Struct

from uploader.accounting.queue import MAX_CLAIM, DelayQueue, Task
from uploader.database import deliveries, work
from uploader.database.engine import Connection, Database
from uploader.database.outbox import DEAD, WAITING, Told
from uploader.database.work import Claimed, Figures, Holding, TaskClaim
from uploader.domain.events import Message
from uploader.domain.upload import File
from uploader.errors import FileNotFound, InvalidRequest, LeaseLost, NotFound, Unavailable
from uploader.runtime.bell import Bell
from uploader.runtime.clock import Clock
from uploader.runtime.observability import TASKS
from uploader.runtime.tasks import Rounds, ended, uninterrupted
from uploader.service.files import Files
from uploader.service.gates import Gates, Verdict
from uploader.service.ids import ID
from uploader.service.leases import Interruption, length_of, new_lease
from uploader.sinks.base import envelope_of
from uploader.sinks.configuration import QueueSettings

logger = logging.getLogger(__name__)

# How often a keeper compares the rows with the proposals, and how many at a time.
KEEPING_SECONDS = 5.0
_KEPT = 100
# How long a commit waits for the proposals of its tasks: a caller who hears of the commit can then claim the tasks.
_PATIENCE_SECONDS = 1.0
_NO_TASK = "This queue has no such task: events are kept for a week."
# Why an acknowledgement alone does not end a task: the end also decides on a file.
_OF_GATE = Exception("the task is of a gate")
# How many holders, and how many dead tasks, a report shows.
_SHOWN = 100
# A claim may commit this much later than the moment from which its lease counts.
_OVERLAP = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Handed:
    """A task in the hands of a worker. `event`: a CloudEvent as JSON."""

    id: str
    lease: str
    fence: int
    lease_until: datetime
    attempt: int
    event: bytes


@dataclass(eq=False, repr=False)
class WorkQueue:
    """One queue. `source`: the CloudEvents source of its events."""

    name: str
    settings: QueueSettings
    proposals: DelayQueue
    database: Database
    files: Files
    gates: Gates
    interruption: Interruption
    clock: Clock
    source: Callable[[], str]
    # Rung when a task may be due.
    bell: Bell = field(default_factory=Bell, init=False)
    # The requests that wait for a task, in this process. The first one looks.
    _line: "OrderedDict[asyncio.Future[None], None]" = field(default_factory=OrderedDict, init=False)
    _acks: "Rounds[TaskClaim, Exception | None]" = field(init=False)
    # Leases that ended before this place were handled. `_prolonged`: tasks with a lease prolonged by an interruption,
    # and the new end.
    _looked_until: work.Place = field(default=work.BEFORE_ALL, init=False)
    _prolonged: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._acks = Rounds(self._end_all, MAX_CLAIM)

    async def claim(
        self,
        worker: str,
        most: int,
        *,
        lease_seconds: float | None = None,
        wait_seconds: float = 0.0,
        gone: "asyncio.Future[Any] | None" = None,
    ) -> list[Handed]:
        """Claim at most `most` due tasks, oldest first. Wait for one, but stop when the client is `gone`. Raises
        Unavailable."""
        look = partial(self._claim, worker, most, lease_seconds or self.settings.lease_seconds)
        if not wait_seconds:
            return await look()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        gone = gone or loop.create_future()
        async with self._turn() as turn:
            await asyncio.wait({turn, gone}, timeout=wait_seconds, return_when=asyncio.FIRST_COMPLETED)
            while turn.done() and not gone.done():
                rings = self.bell.rings  # before the look: a later proposal ends the sleep
                handed = await look()
                if handed or loop.time() >= deadline:
                    return handed
                until = min(deadline, loop.time() + await self.proposals.pause_seconds())
                rung = asyncio.ensure_future(self.bell.listen(rings, until))
                try:
                    await asyncio.wait({rung, gone}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await ended(rung)
        return []

    @asynccontextmanager
    async def _turn(self) -> "AsyncIterator[asyncio.Future[None]]":
        """Stand in line. The yielded future is done when this request is first."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line[turn] = None
        self._call_first()
        try:
            yield turn
        finally:
            del self._line[turn]
            self._call_first()

    def _call_first(self) -> None:
        first = next(iter(self._line), None)
        if first is not None and not first.done():
            first.set_result(None)

    async def _claim(self, worker: str, most: int, lease_seconds: float) -> list[Handed]:
        """Look until tasks are claimed, or none is proposed."""
        while True:
            lease = new_lease(lease_seconds)
            ids = [task.id for task in await self.proposals.claim(most, lease_seconds=lease_seconds, token=lease)]
            if not ids:
                return []
            asked_at = self.clock.monotonic()
            try:
                now, claimed = await uninterrupted(
                    self.database.transact(self._take, ids, lease, worker, timedelta(seconds=lease_seconds))
                )
            except BaseException:
                with suppress(Unavailable):  # otherwise the keeper proposes them
                    await self.proposals.schedule(dict.fromkeys(ids, 0.0))
                raise
            await self._correct(claimed, now)
            if claimed.spent:
                with suppress(Unavailable):  # otherwise the keeper ends them
                    self.interruption.look(now, asked_at)
                    await self._bury(claimed.spent, now)
            if claimed.tasks:
                TASKS.labels(self.name, "claimed").inc(len(claimed.tasks))
                return [self._handed(task, message) for task, message in claimed.tasks]

    async def _take(
        self, connection: Connection, ids: Sequence[str], lease: str, worker: str, lasting: timedelta
    ) -> tuple[datetime, Claimed]:
        now = await work.now_of(connection, self.clock)
        most = self.settings.max_attempts
        taken = partial(work.claim, lease=lease, worker=worker, now=now, until=now + lasting, max_attempts=most)
        return now, await taken(connection, self.name, ids)

    async def _correct(self, claimed: Claimed, now: datetime) -> None:
        """Correct Redis: reschedule tasks proposed too early, and remove ended tasks."""
        with suppress(Unavailable):  # Redis proposes them again, in vain
            if claimed.later:
                delays = {task_id: _seconds(due_at - now) for task_id, due_at in claimed.later.items()}
                await self.proposals.schedule(delays)
            if claimed.ended:
                await self.proposals.cancel(*claimed.ended)

    def _handed(self, task: work.Task, message: Message) -> Handed:
        assert task.lease is not None
        event = envelope_of(message, self.source()).body
        return Handed(task.id, task.lease, task.fence, task.due_at, task.attempt, event)

    async def extend(self, task_id: str, lease: str, lease_seconds: float) -> Handed:
        """Let a lease end `lease_seconds` from now. Raises LeaseLost, NotFound, Unavailable."""

        async def extend(connection: Connection) -> Handed:
            until = await work.now_of(connection, self.clock) + timedelta(seconds=lease_seconds)
            if not await work.extend(connection, self.name, task_id, lease, until):
                raise await self._loss(connection, task_id)
            return await self._held(connection, task_id)

        handed = await self.database.transact(extend)
        with suppress(Unavailable):
            await self.proposals.extend(Task(task_id, lease), lease_seconds)
        return handed

    async def ack(self, task_id: str, lease: str, verdict: Verdict | None = None, reason: str | None = None) -> None:
        """End a task that is done. `verdict`: of a gate, the decision on the file, by default `pass`; `reason`: why the
        file is refused. Raises InvalidRequest, LeaseLost, NotFound, Unavailable."""
        if self.settings.gate is None and verdict is not None:
            raise InvalidRequest.field("verdict", "is of the tasks of a gate, and this queue is none")

        async def end(connection: Connection) -> None:
            now = await work.now_of(connection, self.clock)
            if not await work.ack(connection, self.name, task_id, lease, now):
                raise await self._loss(connection, task_id)

        loss = _OF_GATE if self.settings.gate is not None else await self._acks.run((task_id, lease))
        if loss is _OF_GATE:
            await self.gates.end(task_id, verdict or "pass", reason, end)
        elif loss is not None:
            raise loss
        TASKS.labels(self.name, "acknowledged").inc()
        with suppress(Unavailable):  # Redis proposes the task once more, in vain
            await self.proposals.ack(Task(task_id, lease))

    async def _end_all(self, claims: Sequence[TaskClaim]) -> list[Exception | None]:
        """End many tasks in one transaction, to save commits. Return for each why it has not ended, or None."""

        async def end(connection: Connection) -> list[Exception | None]:
            now = await work.now_of(connection, self.clock)
            ended = await work.ack_all(connection, self.name, claims, now)
            return [None if claim in ended else await self._obstacle(connection, claim[0]) for claim in claims]

        return await self.database.transact(end)

    async def _obstacle(self, connection: Connection, task_id: str) -> Exception:
        task = await work.task_of(connection, self.name, task_id)
        return _OF_GATE if task is not None and task.on_failure is not None else await self._loss(connection, task_id)

    async def release(self, task_id: str, lease: str, delay_seconds: float, error: str | None) -> None:
        """Give a task back; it is due again after a delay. Raises LeaseLost, NotFound, Unavailable."""

        async def give_back(connection: Connection) -> bool:
            until = await work.now_of(connection, self.clock) + timedelta(seconds=delay_seconds)
            most = self.settings.max_attempts
            release = partial(work.release, until=until, error=error, max_attempts=most)
            task = await release(connection, self.name, task_id, lease)
            if task is None:
                raise await self._loss(connection, task_id)
            return task.state == DEAD

        if self.settings.gate is None:
            is_dead = await self.database.transact(give_back)
        else:
            is_dead = await self.gates.fail(task_id, give_back)
        TASKS.labels(self.name, "dead" if is_dead else "released").inc()
        if is_dead:
            logger.error("a task is dead", extra={"queue": self.name, "event_id": task_id, "reason": error})
            if self.settings.gate is None:  # the queue was a gate earlier
                await self.gates.decide([task_id])
        with suppress(Unavailable):  # otherwise it is proposed in vain, or by the keeper
            await (self.proposals.cancel(task_id) if is_dead else self.proposals.push_back(task_id, delay_seconds))

    async def file_of(self, task_id: str, lease: str) -> File:
        """Return the file of a held task's event. Raises LeaseLost, NotFound, FileNotFound, Unavailable."""
        _check_id(task_id)

        async def look(connection: Connection) -> Message:
            task = await work.task_of(connection, self.name, task_id)
            if task is None or not task.held or not task.is_of(lease):
                raise await self._loss(connection, task_id)
            return await self._message(connection, task_id)

        message = await self.database.read(look)
        if not ID.fullmatch(message.subject):
            raise FileNotFound()
        return await self.files.get(message.user_id, message.subject, held=True)

    async def _held(self, connection: Connection, task_id: str) -> Handed:
        task = await work.task_of(connection, self.name, task_id)
        assert task is not None
        return self._handed(task, await self._message(connection, task_id))

    async def _message(self, connection: Connection, task_id: str) -> Message:
        messages = await deliveries.messages_of(connection, [task_id])
        if task_id not in messages:
            raise NotFound(_NO_TASK)
        return messages[task_id]

    async def _loss(self, connection: Connection, task_id: str) -> LeaseLost | NotFound:
        task = await work.task_of(connection, self.name, task_id)
        return NotFound(_NO_TASK) if task is None else LeaseLost()

    async def close(self) -> None:
        await self._acks.close()

    async def keep(self) -> float:
        """End the tasks whose last lease has ended. Propose tasks that are not proposed, or too late: after a loss of
        Redis, or after a process died between a commit and its proposals. Return the seconds until the next look.
        Raises Unavailable."""
        pause_seconds = await self._end_spent()
        place = work.BEFORE_ALL
        while True:
            now, places = await self.database.read(self._after, place)
            delays = {
                task_id: _seconds(due_at - now) if was_claimed else 0.0 for (due_at, task_id), was_claimed in places
            }
            # Redis and the rows have the same order, so the rest is known, too.
            if not await self.proposals.schedule(delays, sooner=True) or len(places) < _KEPT:
                return pause_seconds
            place = places[-1][0]

    async def _end_spent(self) -> float:
        """End the tasks whose last lease has ended. Return the seconds to sleep. Raises Unavailable."""
        place, looks_again = self._looked_until, [*self._prolonged]
        while True:
            asked_at = self.clock.monotonic()
            try:
                now, found = await self.database.read(self._spent, place, looks_again)
            except Unavailable:
                self.interruption.note()
                raise
            self.interruption.look(now, asked_at)
            if place[0] > now:  # the clock was set back: all later leases end before this place
                place = work.BEFORE_ALL
                continue
            over = [task for task in found if task.due_at <= now]
            await self._bury(over, now)
            if len(found) < _KEPT or len(over) < len(found):
                break
            place, looks_again = (over[-1].due_at, over[-1].id), []
        self._looked_until = (now - _OVERLAP, "")
        ends = [_seconds(task.due_at - now) for task in found if task.due_at > now]
        ends += [until - self.clock.monotonic() for until in self._prolonged.values()]
        return max(0.0, min([KEEPING_SECONDS, *ends]))

    async def _spent(
        self, connection: Connection, place: work.Place, looks_again: Sequence[str]
    ) -> tuple[datetime, list[work.Task]]:
        """Return the time, and the waiting tasks in their last attempt: of `looks_again`, then after a place."""
        now, most = await work.now_of(connection, self.clock), self.settings.max_attempts
        known = await work.tasks_of(connection, self.name, looks_again) if looks_again else []
        known = [task for task in known if task.state == WAITING and task.attempt >= most]
        return now, known + await work.spent_after(connection, self.name, place, _KEPT, max_attempts=most)

    async def _bury(self, over: Sequence[work.Task], now: datetime) -> None:
        """Mark tasks as dead whose last lease has ended by `now`, and decide on the files of gates. If an interruption
        has prolonged a lease, do so later. Raises Unavailable."""
        dying: list[work.Task] = []
        for task in over:
            length = length_of(task.lease, self.settings.lease_seconds) if task.held else 0.0
            seconds = self.interruption.seconds_until_over(length)
            self._prolonged.pop(task.id, None)
            if seconds:
                self._prolonged[task.id] = self.clock.monotonic() + seconds
            else:
                dying.append(task)
        ordinary = [task.id for task in dying if task.on_failure is None]
        end = partial(work.bury, queue=self.name, now=now, max_attempts=self.settings.max_attempts)
        count = await self.database.transact(partial(end, ids=ordinary)) if ordinary else 0
        for task in dying:
            if task.on_failure is not None:
                try:
                    count += await self.gates.fail(task.id, partial(end, ids=[task.id]))
                except Unavailable:
                    self._prolonged[task.id] = self.clock.monotonic() + KEEPING_SECONDS
        if count:
            TASKS.labels(self.name, "dead").inc(count)
            shown = [task.id for task in dying[:10]]
            logger.error("tasks are dead", extra={"queue": self.name, "tasks": count, "event_ids": shown})
        with suppress(Unavailable):  # otherwise it is proposed in vain
            await self.proposals.cancel(*(task.id for task in dying))

    async def _after(self, connection: Connection, place: work.Place) -> tuple[datetime, list[tuple[work.Place, bool]]]:
        now = await work.now_of(connection, self.clock)
        most = self.settings.max_attempts
        return now, await work.due_after(connection, self.name, place, _KEPT, max_attempts=most)


def _check_id(task_id: str) -> None:
    if not ID.fullmatch(task_id):
        raise NotFound(_NO_TASK)


def _seconds(delay: timedelta) -> float:
    return max(0.0, delay.total_seconds())


class QueueFigures(Struct):
    """The figures of a queue. `waiting` counts tasks that wait or are held, `held` held tasks, `dead` dead tasks, each
    up to 10,000. `lag_seconds` is the age of the oldest waiting task, `attempts` the most claims of one task. `holders`
    are the held tasks with their workers, `given_up` the dead tasks with their errors."""

    queue: str
    waiting: int
    held: int
    dead: int
    lag_seconds: float
    attempts: int
    holders: list[Holding]
    given_up: list[Holding]


class WorkReport(Struct):
    """All queues, at one moment."""

    queues: list[QueueFigures]
    as_of: datetime


@dataclass(eq=False, repr=False)
class Work:
    """All queues."""

    queues: Mapping[str, WorkQueue]
    database: Database
    clock: Clock
    _proposing: "set[asyncio.Task[None]]" = field(default_factory=set, init=False)

    def queue(self, name: str) -> WorkQueue:
        """Raises NotFound."""
        queue = self.queues.get(name)
        if queue is None:
            raise NotFound("UPLOADER_EVENTS has no queue of this name.")
        return queue

    @property
    def bells(self) -> dict[str, Bell]:
        """Return the bell that each channel of Redis rings."""
        return {channel: queue.bell for queue in self.queues.values() for channel in queue.proposals.wake_channels}

    async def propose(self, told: Sequence[Told]) -> None:
        """Propose the tasks among new deliveries; in the background if Redis is slow, by a keeper if Redis fails."""
        by_queue: dict[str, dict[str, float]] = {}
        for event_id, name in told:
            if name in self.queues:
                by_queue.setdefault(name, {})[event_id] = 0.0
        if by_queue:
            task = asyncio.get_running_loop().create_task(self._propose(by_queue), name="proposing")
            self._proposing.add(task)
            task.add_done_callback(self._proposing.discard)
            await asyncio.wait({task}, timeout=_PATIENCE_SECONDS)

    async def _propose(self, by_queue: Mapping[str, Mapping[str, float]]) -> None:
        with suppress(Unavailable):
            for name, delays in by_queue.items():
                await self.queues[name].proposals.schedule(delays, sooner=True)

    async def report(self) -> WorkReport:
        """Raises Unavailable."""

        async def look(connection: Connection) -> WorkReport:
            now = await work.now_of(connection, self.clock)
            return WorkReport([await self._figures(connection, name, now) for name in self.queues], now)

        return await self.database.read(look)

    async def _figures(self, connection: Connection, name: str, now: datetime) -> QueueFigures:
        of: Figures = await work.figures(connection, name, now)
        lag = 0.0 if of.oldest is None else _seconds(now - of.oldest)
        holders = await work.held(connection, name, _SHOWN, now) if of.held else []
        dead = await work.given_up(connection, name, _SHOWN) if of.dead else []
        return QueueFigures(name, of.waiting, of.held, of.dead, lag, of.attempts, holders, dead)

    async def close(self) -> None:
        for queue in self.queues.values():
            await queue.close()
        if self._proposing:
            await asyncio.wait(self._proposing)
