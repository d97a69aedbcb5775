"""The leases of jobs that one worker of an installation does at a time, because each of them looks at all there is: rows
of the database, which every machine has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from uploader.clock import Clock
from uploader.database import meta
from uploader.database.engine import Database, Duplicate
from uploader.errors import Unavailable
from uploader.service.ids import new_id
from uploader.tasks import ended

_LEASE_SECONDS = 60.0
_RENEW_SECONDS = 20.0


@dataclass(eq=False, repr=False)
class Lease:
    """The right to do a job. Of a worker that dies, another one has it a minute later. It is no lock: two do the job at
    once where clocks differ by more than a lease, or where one of them was asleep, and no job may rest on it."""

    database: Database
    clock: Clock
    job: str
    _worker: str = field(default_factory=new_id, init=False)
    _taken_at: float = field(default=float("-inf"), init=False)

    async def take(self) -> bool:
        """Return whether this worker has it, at least for a while from now on. Raises Unavailable."""
        if self.clock.monotonic() - self._taken_at < _RENEW_SECONDS:
            return True
        now, steady = self.clock.now(), self.clock.monotonic()
        lease = partial(meta.lease, now=now, until=now + timedelta(seconds=_LEASE_SECONDS))
        try:
            taken = await self.database.transact(lease, self.job, self._worker)
        except Duplicate:
            taken = False  # another one was the first by a moment
        if taken:
            self._taken_at = steady
        return taken

    @asynccontextmanager
    async def held(self) -> AsyncIterator[bool]:
        """Yield whether this worker has it: then it is renewed until this ends. Raises Unavailable."""
        if not await self.take():
            yield False
            return
        renewing = asyncio.create_task(self._renew(), name=f"lease of the {self.job}")
        try:
            yield True
        finally:
            await ended(renewing)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            with suppress(Unavailable):  # what the job does next says so
                await self.take()
