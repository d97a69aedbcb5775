"""The leases of jobs that one worker of an installation does at a time, because each of them looks at all there is: rows
of the database, which every machine has. And the leases of tasks, which say how long they are."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
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


_MARK = "-"


def new_lease(seconds: float) -> str:
    """Return the name of a lease of a task, with its length: 32 characters at most."""
    return f"{secrets.token_hex(11)}{_MARK}{round(seconds * 1000):x}"


def length_of(lease: str | None, default_seconds: float) -> float:
    """Return the length of a lease, in seconds; `default_seconds` where its name does not say it, as of version 0.2."""
    _, mark, length = (lease or "").partition(_MARK)
    return int(length, 16) / 1000 if mark else default_seconds


# A clock is corrected by less between two looks. Of a long time between them, the part by which two clocks differ.
_JUMP_SECONDS, _DRIFT = 1.0, 0.001
# A job that looks every few seconds was stopped if it has not for so long.
_OUTAGE_SECONDS = 30.0


@dataclass(eq=False, repr=False)
class Interruption:
    """The last moment at which workers could not extend their leases, as far as this process knows: it started, the
    database was away, the clock by which leases end jumped. A lease that ended before runs once more from then on."""

    clock: Clock
    _at: float = field(init=False)
    # The time of the database, and the earliest and the latest moment at which it was read.
    _last: tuple[datetime, float, float] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._at = self.clock.monotonic()

    def note(self) -> None:
        """Note that the database is away."""
        self._at = self.clock.monotonic()

    def look(self, now: datetime, asked_at: float) -> None:
        """Compare the time of the database, which was asked for then, with the steady clock: note a jump, and that nobody
        has looked for long."""
        answered_at = self.clock.monotonic()
        last, self._last = self._last, (now, asked_at, answered_at)
        if last is None:
            return
        passed = (now - last[0]).total_seconds()
        least, most = asked_at - last[2], answered_at - last[1]
        tolerance = _JUMP_SECONDS + _DRIFT * most
        if not least - tolerance <= passed <= most + tolerance or most > _OUTAGE_SECONDS:
            self._at = answered_at

    def seconds_until_over(self, length_seconds: float) -> float:
        """Return for how long a lease of this length that has ended still has to run, since the last interruption."""
        return max(0.0, self._at + length_seconds - self.clock.monotonic())
