"""Keeps rolling copies of a SQLite, and brings the newest good one back where the database is damaged.

What was done since that copy was made is lost: names of files, uploads, tokens, quotas. The contents are there still, and
nothing removes those that the copy does not name until somebody says so (`meta.held_contents`).
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from pathlib import Path

from uploader.accounting.pending import Pending
from uploader.accounting.redis import RedisMark
from uploader.clock import Clock
from uploader.crashpoints import crash_point
from uploader.database import copies, meta, migrate
from uploader.database.audit_log import note
from uploader.database.copies import Copies, Copy, CopyDamaged
from uploader.database.engine import Connection, Database
from uploader.domain import reasons
from uploader.domain.audit_log import Action
from uploader.domain.diagnosis import Diagnosis
from uploader.errors import ConfigurationError, DatabaseDamaged, StorageFailed, Unavailable
from uploader.service.audit_log import act
from uploader.service.installation import FACT, difference
from uploader.service.secret import InstallationSecret
from uploader.storage.backups import BackupRefused
from uploader.storage.store import Store
from uploader.units import format_ago

logger = logging.getLogger(__name__)

EVERY = timedelta(hours=1)
_LATE = timedelta(hours=3)
# Until a start says nothing of damage that it has not found by then.
_START_SECONDS = 5.0


@dataclass(eq=False, repr=False)
class CopyKeeping:
    """Keeps the copies young. Without `copies`, the database is another server's to keep."""

    copies: Copies | None
    clock: Clock
    _: KW_ONLY
    check_stopping: Callable[[], None] = lambda: None
    # Why the last attempt failed: the database is damaged.
    _damage: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._since = self.clock.now()

    async def keep(self) -> Copy | None:
        """Make a copy if the newest is an hour old. Raises as `make`."""
        newest = await self.newest()
        if newest is not None and timedelta(0) <= self.clock.now() - newest.made_at < EVERY:
            return None
        return await self.make()

    async def newest(self) -> Copy | None:
        found = [] if self.copies is None else await asyncio.to_thread(self.copies.listed)
        return found[0] if found else None

    async def make(self) -> Copy | None:
        """Make a copy; None if another process makes one, or there is nothing to copy. Raises DatabaseDamaged,
        StorageFailed, Unavailable, Stopping."""
        if self.copies is None:
            return None
        path = self.copies.database
        try:
            made = await asyncio.to_thread(self._make, self.copies)
        except CopyDamaged as error:
            self._damage = str(error)
            raise DatabaseDamaged(inside=f"{path} is damaged: {error}") from error
        except OSError as error:
            raise StorageFailed(inside=f"{error.filename or path} can't be written: {error.strerror}") from error
        except sqlite3.Error as error:
            raise Unavailable("The database can't be copied.", inside=f"{path} can't be copied: {error}") from error
        self._damage = None
        return made

    def _make(self, kept: Copies) -> Copy | None:
        if (error := copies.lacks_room(kept.database, kept.size_bytes())) is not None:
            raise error
        return kept.make(self.clock.now(), self.check_stopping)

    async def diagnoses(self) -> list[Diagnosis]:
        if self._damage is not None:
            return [reasons.DATABASE_DAMAGED(how=self._damage)]
        newest = await self.newest()
        since = max(self._since, newest.made_at) if newest else self._since
        if self.copies is None or self.clock.now() - since < _LATE:
            return []
        return [reasons.COPY_OLD(ago=format_ago(self.clock.now() - newest.made_at) if newest else "never")]


def refuse_damaged(kept: Copies, *, quick: bool = False, gives_up: Callable[[], bool] | None = None) -> None:
    """Look at a database that is to be used, by default for a few seconds, otherwise until `gives_up` does. `quick`: without
    comparing indexes with rows, which takes a dozen times as long. Raises ConfigurationError if it is damaged."""
    path, until = kept.database, time.monotonic() + _START_SECONDS
    gives_up = gives_up or (lambda: time.monotonic() > until)
    try:
        told = copies.damage_of(path, quick=quick, gives_up=gives_up) if path.exists() else []
    except sqlite3.Error:
        return  # who opens it says why
    if told:
        raise ConfigurationError(f"the database {path} can't be used: {'; '.join(told)}. {offer_of(kept)}")


def offer_of(kept: Copies) -> str:
    found = kept.listed()
    if not found:
        return "There is no copy of it: restore a backup, or save what can be read"
    return (
        f"Its newest copy is of {found[0].made_at:%Y-%m-%d %H:%M:%S} UTC: `uploader restore-backup --last` brings that "
        "back, and says what is lost"
    )


@dataclass(frozen=True, slots=True)
class LastCopy:
    """The newest good copy; with those that are newer, and damaged: how, by their names."""

    copy: Copy
    installation: str
    damaged: dict[str, str]


@dataclass(eq=False, repr=False)
class RestoringLast:
    """Nothing else uses the stores meanwhile."""

    copies: Copies | None
    storage: Store
    pending: Pending
    redis: RedisMark
    secret: InstallationSecret
    clock: Clock

    async def look(self) -> LastCopy:
        """Find the copy to bring back; changes nothing. Raises BackupRefused, ConfigurationError, Unavailable."""
        if self.copies is None:
            raise BackupRefused("only a SQLite in a file has copies: restore a backup")
        if await asyncio.to_thread(copies.is_in_use, self.copies.database):
            raise BackupRefused(f"{self.copies.database} is in use: stop all servers and workers first")
        last = await asyncio.to_thread(self._newest_good, self.copies)
        marks = await self.storage.marks.read(last.installation)
        if marks.installation != last.installation:
            raise ConfigurationError(difference(self.storage.marks.store, marks.installation, last.installation))
        return last

    def _newest_good(self, kept: Copies) -> LastCopy:
        damaged: dict[str, str] = {}
        for copy in kept.listed():
            try:
                told = copies.damage_of(copy.path)
                if not told:
                    return LastCopy(copy, copies.fact_in(copy.path, FACT) or "none", damaged)
            except sqlite3.Error as error:
                told = [str(error)]
            damaged[copy.path.name] = told[0]
        found = "".join(f"; {name}: {told}" for name, told in damaged.items())
        raise BackupRefused(f"there is no good copy of {kept.database}{found}: restore a backup (docs/repair.md)")

    async def restore(self, last: LastCopy) -> Path | None:
        """Put the copy in the place of the database, all at once; return what the database is called from now on. May be
        begun again after a crash. Raises ConfigurationError, Unavailable, OSError."""
        assert self.copies is not None
        path = self.copies.database
        if (in_redis := await self.redis.read()) not in (None, last.installation):
            raise ConfigurationError(
                f"Redis belongs to installation {in_redis}, the copy to {last.installation}: correct UPLOADER_REDIS_URL"
            )
        await self.pending.reset()  # it knows more than the copy
        draft = path.with_name(f"{path.name}.new")
        await asyncio.to_thread(copies.copy_file, last.copy.path, draft)
        await self._mark(draft, last)
        crash_point("restore.after_draft")
        return await asyncio.to_thread(copies.replace, path, draft, self.clock.now())

    async def _mark(self, draft: Path, last: LastCopy) -> None:
        """Bring it to the schema of this version, and let it say from when on contents stay."""
        details = {"copy": last.copy.path.name, "made_at": last.copy.made_at.isoformat()}
        told = act(Action.INSTALLATION_RESTORED, self.clock.now(), subject=last.installation, details=details)

        held = meta.Held(last.copy.made_at, self.clock.now())

        async def mark(connection: Connection) -> None:
            await meta.hold_contents(connection, held)
            await note(connection, told)

        database = Database(f"sqlite:///{draft}")
        try:
            secret = await self.secret.obtain_anew()
            await migrate.upgrade(database, secret=secret)
            await self.secret.settle(secret, database)
            await database.transact(mark)
        finally:
            await database.close()
