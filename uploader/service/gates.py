"""Gates: decide on files that nobody sees until all their gates have let them pass.

A gate is a queue, whose workers decide. If no worker decides before the task is dead, the task's `on_failure` decides.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from uploader.database import deliveries, work
from uploader.database.engine import Connection, Database, Duplicate
from uploader.database.outbox import DEAD, WAITING
from uploader.database.transactions import gates
from uploader.database.transactions.rows import BlobLost
from uploader.errors import Unavailable
from uploader.runtime.clock import Clock
from uploader.service.leases import Interruption, length_of
from uploader.service.status import ATTEMPTS, PAUSE_SECONDS

T = TypeVar("T")
# A worker's verdict on a file.
Verdict = Literal["pass", "refuse"]

_KEEPING_SECONDS = 60.0
# How soon to look again while a lease has to end before its file is decided on.
_HELD_SECONDS = 5.0
# Of a gate that the events file lacks now.
_DEFAULT_LEASE_SECONDS = 600.0
_AT_ONCE = 100
_IS_GONE = "UPLOADER_EVENTS has no such gate any more"


@dataclass(eq=False, repr=False)
class Gates:
    database: Database
    # All queues in the events file.
    queues: tuple[str, ...]
    interruption: Interruption
    clock: Clock

    async def end(
        self,
        task_id: str,
        verdict: Verdict,
        reason: str | None,
        ack: Callable[[Connection], Awaitable[None]],
    ) -> None:
        """End the task of a gate and decide on its file, in one transaction. Raises Unavailable, and as `ack`."""

        async def end(connection: Connection) -> None:
            waiting = await gates.lock_waiting(connection, task_id)
            await ack(connection)
            if waiting is not None and verdict == "refuse":
                await gates.refuse(connection, waiting, reason, self.clock.now())
            elif waiting is not None:
                await gates.decide(connection, waiting, self.clock.now())

        await self._transact(end)

    async def fail(self, task_id: str, give_up: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `give_up`, after which the task of a gate may be dead, and decide on the file in the same transaction.
        Return the result of `give_up`. Raises Unavailable, and what `give_up` raises."""

        async def fail(connection: Connection) -> T:
            waiting = await gates.lock_waiting(connection, task_id)
            is_dead = await give_up(connection)
            if waiting is not None and is_dead:
                await gates.decide(connection, waiting, self.clock.now())
            return is_dead

        return await self._transact(fail)

    async def decide(self, event_ids: Iterable[str]) -> None:
        """Decide on the files of dead tasks. `keep` repeats a failed decision."""

        async def settle(connection: Connection, event_id: str) -> None:
            waiting = await gates.lock_waiting(connection, event_id)
            if waiting is not None:
                await gates.decide(connection, waiting, self.clock.now())

        with suppress(Unavailable):
            for event_id in event_ids:
                await self._transact(partial(settle, event_id=event_id))

    async def keep(self) -> float:
        """Decide on files that a crash left waiting, and on files whose gates are gone from the events file. Return the
        seconds until the next look. Raises Unavailable."""
        asked_at = self.clock.monotonic()
        try:
            is_any = await self.database.read(gates.hold_any)
        except Unavailable:
            self.interruption.note()
            raise
        if not is_any:
            return _KEEPING_SECONDS
        failed, are_held = await self.database.transact(self._failed, asked_at)
        await self.decide(failed)
        if len(failed) == _AT_ONCE:
            return 1.0
        return _HELD_SECONDS if are_held else _KEEPING_SECONDS

    async def _failed(self, connection: Connection, asked_at: float) -> tuple[list[str], bool]:
        """Return the events whose dead tasks decide on a file, and whether workers hold tasks of removed gates."""
        now, are_held = await work.now_of(connection, self.clock), False
        self.interruption.look(now, asked_at)
        for gate in await deliveries.sinks_of(connection, WAITING):
            if gate not in self.queues:
                are_held = await gates.give_up(connection, gate, _IS_GONE, now, _AT_ONCE, self._is_over) or are_held
        failed: list[str] = []
        for gate in await deliveries.sinks_of(connection, DEAD):
            failed += await gates.failed(connection, gate, _AT_ONCE - len(failed))
        return failed, are_held

    def _is_over(self, lease: str | None) -> bool:
        return self.interruption.seconds_until_over(length_of(lease, _DEFAULT_LEASE_SECONDS)) == 0.0

    async def _transact(self, change: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a transaction, again if names change meanwhile. Raises Unavailable."""
        for _ in range(ATTEMPTS):
            with suppress(Duplicate, BlobLost):
                return await self.database.transact(change)
            await asyncio.sleep(PAUSE_SECONDS)
        raise Unavailable("Files of these names are changing too fast; try again.")
