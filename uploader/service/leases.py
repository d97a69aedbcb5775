"""Leases of jobs that one worker of an installation does at a time, because each job looks at all data; rows of the
database, which all machines share. Also the leases of tasks, whose names tell their length. And the marks of processes:
a free mark shows a dead process, and ends the leases of that process at once."""

import asyncio
import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from uploader.database import meta
from uploader.database.engine import Database, Duplicate
from uploader.errors import Unavailable
from uploader.runtime.clock import Clock
from uploader.runtime.tasks import ended, in_thread
from uploader.service.ids import new_id
from uploader.storage.base import Stopping
from uploader.storage.disk import boot_id

_LEASE_SECONDS = 60.0
_RENEW_SECONDS = 20.0


@dataclass(eq=False, repr=False)
class Lease:
    """The right to do a job. If a worker dies, another one gets the lease a minute later. A lease is no lock: two
    workers do the job at once if their clocks differ by more than a lease, or if one of them was asleep. No job may
    rely on exclusion."""

    database: Database
    clock: Clock
    job: str
    _worker: str = field(default_factory=new_id, init=False)
    _taken_at: float = field(default=float("-inf"), init=False)

    async def take(self) -> bool:
        """Return whether this worker has the lease, at least for a while. Raises Unavailable."""
        if self.clock.monotonic() - self._taken_at < _RENEW_SECONDS:
            return True
        now, steady = self.clock.now(), self.clock.monotonic()
        lease = partial(meta.lease, now=now, until=now + timedelta(seconds=_LEASE_SECONDS))
        try:
            taken = await self.database.transact(lease, self.job, self._worker)
        except Duplicate:
            taken = False  # another worker was first by a moment
        if taken:
            self._taken_at = steady
        return taken

    @asynccontextmanager
    async def held(self) -> AsyncIterator[bool]:
        """Yield whether this worker has the lease. If so, renew it until this ends. Raises Unavailable."""
        if not await self.take():
            yield False
            return
        renewing = asyncio.create_task(self._renew(), name=f"lease of the {self.job}")
        try:
            yield True
        finally:
            await ended(renewing)

    async def do_once(self, is_due: Callable[[], Awaitable[bool]], work: Callable[[], Awaitable[None]]) -> None:
        """Do a due job, unless another worker is doing it or has done it meanwhile. Raises Unavailable."""
        if await is_due():
            async with self.held() as is_ours:
                if is_ours and await is_due():
                    with suppress(Stopping):
                        await work()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            with suppress(Unavailable):  # the next step of the job will raise
                await self.take()


_MARK = "-"


def new_lease(seconds: float) -> str:
    """Return a name for the lease of a task; the name, of at most 32 characters, tells the length."""
    return f"{secrets.token_hex(11)}{_MARK}{round(seconds * 1000):x}"


def length_of(lease: str | None, default_seconds: float) -> float:
    """Return the length of a lease in seconds. Names of version 0.2 do not tell it: then return `default_seconds`."""
    _, mark, length = (lease or "").partition(_MARK)
    return int(length, 16) / 1000 if mark else default_seconds


# A clock is corrected by less than this between two looks. Drift: how much two clocks differ, as a part of the time
# between looks.
_JUMP_SECONDS, _DRIFT = 1.0, 0.001
# A job that looks every few seconds was stopped if its last look is older than this.
_OUTAGE_SECONDS = 30.0


@dataclass(eq=False, repr=False)
class Interruption:
    """The last moment when workers could not extend their leases, as far as this process knows: the process started, the
    database was away, or the clock of the leases jumped. A lease that had ended by then runs once more, from that moment."""

    clock: Clock
    _at: float = field(init=False)
    # The time of the database, and the earliest and latest moment when it was read.
    _last: tuple[datetime, float, float] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._at = self.clock.monotonic()

    def note(self) -> None:
        """Note that the database is away."""
        self._at = self.clock.monotonic()

    def look(self, now: datetime, asked_at: float) -> None:
        """Compare the time of the database with the steady clock. Note a jump, or a long time without a look."""
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
        """Return the seconds that an ended lease of this length still has to run, after the last interruption."""
        return max(0.0, self._at + length_seconds - self.clock.monotonic())


@dataclass(eq=False, repr=False)
class ProcessMark:
    """A locked file of this process; the lock ends with the process. Other processes with the same directory learn from
    the lock that a process of their machine is dead. Only processes of the same boot count: another machine may not see
    the lock."""

    directory: Path
    name: str = field(default_factory=new_id, init=False)
    _descriptor: int | None = field(default=None, init=False)
    _taking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def take(self) -> str | None:
        """Return the name of this process; None if there can be no mark, and others will not learn of the end of this
        process."""
        async with self._taking:
            if self._descriptor is None:
                with suppress(OSError):
                    await in_thread(self._take)
        return None if self._descriptor is None else self.name

    def _take(self) -> None:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        draft, path = self.directory / f"{self.name}.draft", self._path(boot_id(), self.name)
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            draft.rename(path)  # nobody sees the file without its lock
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    async def dead(self) -> list[str]:
        """Return the names of processes of this machine that are dead."""
        try:
            return await in_thread(self._dead)
        except OSError:
            return []

    def _dead(self) -> list[str]:
        boot, found = boot_id(), []
        for path in self.directory.glob("*.process"):
            marked_boot, _, name = path.stem.partition(".")
            if name != self.name and _is_free(path):
                if marked_boot == boot:
                    found.append(name)
                else:
                    path.unlink(missing_ok=True)
        return found

    async def forget(self, names: Collection[str]) -> None:
        for name in names:
            with suppress(OSError):
                await in_thread(self._path(boot_id(), name).unlink, True)

    def _path(self, boot: str, name: str) -> Path:
        return self.directory / f"{boot}.{name}.process"

    def close(self) -> None:
        """Remove the mark: this process has ended its work."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                self._path(boot_id(), self.name).unlink(missing_ok=True)
            os.close(descriptor)


def _is_free(path: Path) -> bool:
    """Return whether nobody has the lock of a file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
