"""Connections and transactions: how a statement reaches the database, and which failures are tried again.

Each transaction is a function of a connection, so that the whole transaction can run again after a deadlock.
"""

import asyncio
import errno
import logging
import random
import re
import sqlite3
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar, TypeVarTuple
from uuid import uuid4

from sqlalchemy import delete, insert, make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from uploader.database import models
from uploader.database.connection import AsyncConnection, AsyncEngine
from uploader.database.damage import damage_of
from uploader.database.mysql import (
    CONNECTIONS,
    READ_TIMEOUT_SECONDS,
    TIMEOUT_SECONDS,
    Mysql,
    WrongSqlMode,
    is_read_only,
)
from uploader.database.outbox import Outbox, Told, noting
from uploader.database.rights import authority_of_context, whole_transaction
from uploader.database.sqlite import UNFIT, FileLost, Sqlite, SqliteEngine, code_of, on_the_loop
from uploader.database.trash import TrashPolicy
from uploader.domain.reasons import SQL_MODE_CHANGED
from uploader.errors import DatabaseDamaged, DatabaseFull, ServerBusy, Unavailable
from uploader.runtime.observability import Trouble

logger = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
# The name that services use.
Connection = AsyncConnection
# A function of a connection and of further arguments.
Work = Callable[[AsyncConnection, *Ts], Awaitable[T]]

# The codes of a lock wait timeout and a deadlock (MySQL and MariaDB), and MySQL's answer to NOWAIT (MariaDB: the first
# code). After these the whole transaction runs again.
_MYSQL_LOCK_WAIT_TIMEOUT = 1205
_MYSQL_RETRIED = frozenset({_MYSQL_LOCK_WAIT_TIMEOUT, 1213, 3572})
_MYSQL_DUPLICATE = 1062
# The codes of a server that takes no writes.
_MYSQL_READ_ONLY = frozenset({1290, 1836})
# ER_DISK_FULL, ER_RECORD_FILE_FULL; and ER_GET_ERRNO with ENOSPC or EDQUOT of the operating system.
_MYSQL_FULL = frozenset({1021, 1114})
_MYSQL_ENGINE_ERROR, _NO_ROOM = 1030, re.compile(rf"error ({errno.ENOSPC}|{errno.EDQUOT})\b")
# A value out of range, and a failed CHECK of MySQL and of MariaDB. The driver calls these errors operational, but waiting
# does not help.
_MYSQL_BAD_FIGURES = frozenset({1690, 3819, 4025})
# Hints for a server that wants TLS, and a client without TLS. Some servers answer as to a wrong password.
_MYSQL_WANTS_TLS: dict[object, str] = {
    3159: "it wants TLS: add ssl_ca=… to the URL",
    1045: "or it wants TLS: ssl_ca=… in the URL",
}
# The codes of a server that refuses the user, or keeps the user out of this database.
_MYSQL_REFUSALS = frozenset({1044, 1045, 1049, 1130, 1142, 1251, 1698, 3118, 3159, 3955})
_ATTEMPTS = 10
# Pauses between checks of a damaged SQLite. The pauses grow, to leave only a small part of the time for checks.
_RECHECK_SECONDS, _MAX_RECHECK_SECONDS, _PAUSES = 1.0, 3600.0, 20
_MYSQL_PORT = 3306
_FAILS = "a store fails"


class Duplicate(Exception):
    """A unique key is taken: somebody else was faster."""


class Database:
    # For SQLite: the last look found that the database's file was removed or replaced. Commits would be lost. This is an
    # attribute, because each chunk reads it.
    is_lost = False
    # For SQLite: the message of a statement that met a damaged page; None again when a check finds no damage.
    damage: str | None = None
    _rechecking: asyncio.Task[None] | None = None
    _is_closed = False
    _full: str | None = None

    def __init__(
        self,
        url: str,
        *,
        read_timeout_seconds: float | None = READ_TIMEOUT_SECONDS,
        connections: int = CONNECTIONS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        creates: bool = False,
        outbox: Outbox | None = None,
        trash: TrashPolicy | None = None,
        make_room: Callable[[bool], bool] = lambda _: False,
    ) -> None:
        """For MySQL: `read_timeout_seconds` is the longest wait for an answer, `connections` the most connections,
        `timeout_seconds` the silence after which a hanging server is given up. `creates`: make the file of a SQLite if it is
        missing; otherwise a missing file is Unavailable. `outbox`: where transactions tell their events. `trash`: the policy
        for deleted files; None keeps none. `make_room`: called in a thread when the disk of a SQLite may be full, with True
        if SQLite said so; returns whether to try once more."""
        self._kind = (
            Sqlite(url, self._tell_lost, creates=creates)
            if url.startswith("sqlite")
            else Mysql(url, read_timeout_seconds, connections, timeout_seconds)
        )
        self.engine: AsyncEngine | SqliteEngine = self._kind.engine
        self._outbox = outbox
        self._make_room = make_room
        if outbox is not None:
            outbox.attach(self.engine.sync_engine)
        if trash is not None:
            trash.attach(self.engine.sync_engine)
        self._place = _place_of(url)
        # Faults of everything, faults of writes, and overload.
        self._trouble, self._write_trouble = Trouble("database"), Trouble("database, writes")
        self._crowd, self._crowded = Trouble("database, busy"), ""

    def _tell_lost(self, lost: bool) -> None:
        self.is_lost = lost

    @property
    def odd_modes(self) -> str:
        """Describe how the SQL mode of new MySQL connections differs from the mode that this server sets."""
        return self._kind.odd_modes if isinstance(self._kind, Mysql) else ""

    async def look(self) -> None:
        """Raises Unavailable if the file of a SQLite was removed or replaced. Each commit looks. Code that acknowledges
        without a commit relies on the looks of others."""
        if isinstance(self._kind, Sqlite):
            try:
                await self._kind.look()
            except FileLost as error:
                raise self._translated(error) from error

    async def transact(self, work: "Work[*Ts, T]", *of: *Ts, alone: bool = False) -> T:
        """Run `work` with the arguments `of` in one transaction, again after a deadlock. Raises Duplicate, Unavailable, and
        the errors of `work`.

        `work` must wait for nothing but the database, except through `outside`. `alone`: `work` must not see uncommitted
        writes of other transactions, because `work` does something that can't be rolled back. If the context has an
        authority, the rows of its caller are read at the end. Then the revocations of the transaction are counted.
        """
        if self.is_lost:
            await self.look()
        # Read here, because a thread of SQLite has another context.
        authority = authority_of_context.get()

        def whole(connection: AsyncConnection) -> Awaitable[T]:
            return whole_transaction(connection, authority, lambda: work(connection, *of))

        if self._outbox is None:
            return await self._tried_again(lambda: self._kind.write(whole, alone=alone))
        told: list[Told] = []

        async def noted(connection: AsyncConnection) -> T:
            with noting(connection, told):
                return await whole(connection)

        try:
            return await self._tried_again(lambda: self._kind.write(noted, alone=alone))
        finally:
            if told:
                await self._outbox.wake(told)

    async def read(self, work: "Work[*Ts, T]", *of: *Ts, snapshot: bool = False, brief: bool = False) -> T:
        """Run `work` with the arguments `of` in a transaction that writes nothing. Raises Unavailable, and the errors of
        `work`.

        `snapshot`: all reads are of one moment (on SQLite they always are). `brief`: `work` reads a few rows by their keys,
        for which SQLite needs less time than a hop to a thread takes.
        """
        if self.is_lost:
            await self.look()

        async def ask(brief: bool) -> T:
            return await self._kind.read(lambda connection: work(connection, *of), snapshot=snapshot, brief=brief)

        try:
            try:
                found = await ask(brief)
                self._worked()
                return found
            except DBAPIError as error:  # a read in WAL mode needs space, too: for the shared memory
                if not await self._has_made_room(error):
                    raise
                return await ask(brief=False)
        except (DBAPIError, PoolTimeoutError, OSError, FileLost) as error:
            raise self._translated(error) from error

    async def read_durably(self, work: "Work[*Ts, T]", *of: *Ts) -> T:
        """Run `work`, which only reads. Return when all that `work` read would survive a crash of the database server.

        InnoDB shows a commit to others before the commit's log is on the disk (decision 0012). But InnoDB acknowledges no
        commit before that commit's log, and all earlier log, is on the disk. So this transaction writes something. SQLite
        shows only durable commits. Raises as `transact`.
        """
        if isinstance(self._kind, Sqlite):
            return await self.read(work, *of)

        async def read_and_write(connection: AsyncConnection) -> T:
            found = await work(connection, *of)
            await _write_something(connection)
            return found

        return await self.transact(read_and_write)

    async def sync(self) -> None:
        """Return when all that was readable at the call would survive a crash of the database server. May be called in the
        middle of a transaction. Raises Unavailable."""
        if isinstance(mysql := self._kind, Mysql):
            await self._tried_again(lambda: mysql.write(_write_something, syncs=True))

    async def check_answers(self) -> None:
        """Raises Unavailable if a MySQL is known to be silent; a SQLite never is."""
        if isinstance(self._kind, Mysql):
            try:
                await self._kind.check_answers()
            except OSError as error:
                raise self._translated(error) from error

    async def check_writable(self) -> None:
        """Raises Unavailable if a MySQL is no primary any more, or takes no writes."""
        if isinstance(self._kind, Mysql) and await self.read(is_read_only):
            raise self._demoted("read_only is set")

    def outside(self, work: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        """Let a transaction call `work`, a coroutine that waits for something else than the database. The writes of `work`
        to the database are a transaction of their own; on SQLite a part of the calling transaction."""
        return on_the_loop(work) if isinstance(self._kind, Sqlite) else work

    def in_thread(self, work: Callable[..., T]) -> Callable[..., Awaitable[T]]:
        """Let a transaction call the blocking function `work`. A transaction of SQLite is in a thread already."""
        if isinstance(self._kind, Mysql):
            return partial(asyncio.to_thread, work)

        async def run(*arguments: object) -> T:
            return work(*arguments)

        return run

    def drop_connections(self) -> None:
        """Close idle connections, or stop using the present ones. Blocks for a SQLite."""
        self._kind.drop_connections()

    async def close(self) -> None:
        self._is_closed = True
        if self._rechecking is not None:
            self._rechecking.cancel()
        await self._kind.close()

    async def _has_made_room(self, error: Exception) -> bool:
        code = code_of(getattr(error, "orig", None))
        return code in _MAY_BE_FULL and await asyncio.to_thread(self._make_room, code == sqlite3.SQLITE_FULL)

    async def _tried_again(self, attempt: Callable[[], Awaitable[T]]) -> T:
        made_room = False
        for number in range(1, _ATTEMPTS + 1):
            began = time.monotonic()
            try:
                result = await attempt()
                self._worked(self._write_trouble)
                return result
            except IntegrityError as error:
                if _code(error) == _MYSQL_DUPLICATE or "UNIQUE constraint failed" in str(error.orig):
                    raise Duplicate(str(error.orig)) from error
                raise
            except (DBAPIError, PoolTimeoutError, OSError, FileLost) as error:
                if not made_room and await self._has_made_room(error):
                    made_room = True
                    continue
                if not is_retried(error):
                    raise self._translated(error) from error
                if number == _ATTEMPTS or self._has_waited(error, time.monotonic() - began):
                    raise self._busy(_said(error), _code(error)) from error
                await asyncio.sleep(random.uniform(0, 0.02 * number))  # noqa: S311 (jitter)
        raise AssertionError("unreachable")

    def _has_waited(self, error: Exception, seconds: float) -> bool:
        """Return whether the statement waited for a row until the lock wait timeout. With NOWAIT it has not waited."""
        if not isinstance(self._kind, Mysql) or _code(error) != _MYSQL_LOCK_WAIT_TIMEOUT:
            return False
        return seconds >= self._kind.lock_wait_seconds / 2  # InnoDB looks at its clock only once a second

    def _worked(self, *more: Trouble) -> None:
        for trouble in (self._trouble, self._crowd, *more):
            if trouble.is_open:
                trouble.worked()

    @property
    def crowd(self) -> str | None:
        """Return advice if callers were refused lately because the database was too busy; else None."""
        return self._crowded if self._crowd.is_open else None

    @property
    def lacks_room(self) -> str | None:
        """Return the message of a MySQL that lately refused writes for lack of space; else None."""
        return self._full if self._write_trouble.is_open else None

    def _busy(self, how: str, kind: object) -> ServerBusy:
        """Return the error of a database that answers, but has too much to do."""
        inside = f"{self._place} is busy: {how}"
        error, self._crowded = ServerBusy(inside=inside), how
        error.is_told = self._crowd.note("the database is busy", kind=str(kind), reason=inside)
        return error

    def _translated(self, error: Exception) -> Exception:
        """Translate an error of the database to an error of this server. A fault that lasts is logged once."""
        if (crowd := self._kind.crowd(error)) is not None:
            return self._busy(crowd, type(error).__name__)
        meant = self._meaning(error)
        if isinstance(meant, Unavailable):
            code = _code(error)
            kind = f"{type(meant).__name__} {code if isinstance(code, int) else type(error).__name__}"
            is_of_writes = isinstance(meant, DatabaseFull) or _code(error) in _MYSQL_READ_ONLY
            trouble = self._write_trouble if is_of_writes else self._trouble
            is_damaged = isinstance(meant, DatabaseDamaged)
            message, level = ("the database is damaged", logging.ERROR) if is_damaged else (_FAILS, logging.WARNING)
            reason = self.damage if is_damaged else meant.reason
            if _is_full(error):
                self._full = _said(error)
            meant.is_told = trouble.note(message, kind=kind, level=level, reason=reason)
        return meant

    def _meaning(self, error: Exception) -> Exception:
        if isinstance(error, FileLost):
            return Unavailable(
                "The database's file was removed or replaced while the server runs; nothing is acknowledged.",
                inside=f"{self._place} was removed or replaced while the server runs; nothing is acknowledged",
            )
        if isinstance(error, WrongSqlMode):
            return Unavailable(
                "The database has another SQL mode than this server sets; nothing was acknowledged.",
                inside=f"{self._place} has another SQL mode than this server sets, {error}: {SQL_MODE_CHANGED.do}",
            )
        if _is_damage(error):
            self.damage = str(getattr(error, "orig", error))
            # Checks find damaged pages. They can't find a wrong figure.
            is_page = code_of(getattr(error, "orig", None)) == sqlite3.SQLITE_CORRUPT
            if is_page and (self._rechecking is None or self._rechecking.done()):
                self._rechecking = asyncio.create_task(self._recheck())
            return DatabaseDamaged()
        if code_of(getattr(error, "orig", None)) == sqlite3.SQLITE_FULL or _is_full(error):
            return DatabaseFull(inside=f"{self._place} has no room: {_said(error)}")
        if code_of(getattr(error, "orig", None)) == sqlite3.SQLITE_NOTADB:
            self.damage = _said(error)  # the header is damaged: a start refuses files that never were databases
        if _code(error) in _MYSQL_BAD_FIGURES and not unfitness(error):
            return error
        if _code(error) in _MYSQL_READ_ONLY:
            return self._demoted(_said(error))
        lost = isinstance(error, DBAPIError) and error.connection_invalidated
        if lost or unfitness(error) or isinstance(error, (OperationalError, InterfaceError, OSError)):
            speaks_plainly = isinstance(self._kind, Mysql) and not self._kind.speaks_tls
            hint = _MYSQL_WANTS_TLS.get(_code(error)) if speaks_plainly else None
            inside = f"{self._place} is away: {_said(error)}" + (f" ({hint})" if hint else "")
            return Unavailable("The database is away; nothing was acknowledged.", inside=inside)
        return error

    async def _recheck(self) -> None:
        """Check a SQLite until no damage is left. SQLite reports a temporary read error of the disk like a damaged page
        (https://sqlite.org/rescode.html#ioerr_corruptfs)."""
        path, pause_seconds = Path(self.engine.url.database or ""), _RECHECK_SECONDS
        while self.damage is not None:
            await asyncio.sleep(pause_seconds)
            began = time.monotonic()
            with suppress(sqlite3.Error):
                if not await asyncio.to_thread(damage_of, path, gives_up=lambda: self._is_closed):
                    self.damage = None
                    logger.info("the database is damaged no more")
            pause_seconds = max(2 * pause_seconds, _PAUSES * (time.monotonic() - began))
            pause_seconds = min(pause_seconds, _MAX_RECHECK_SECONDS)

    def _demoted(self, said: str) -> Unavailable:
        """Return the error of a database that takes no writes, and drop its connections: new connections may find its
        successor at the same address."""
        if isinstance(self._kind, Mysql):
            self._kind.drop_connections()
        inside = f"{self._place} is read-only, as after a failover: {said}"
        return Unavailable("The database is read-only, as after a failover; nothing was acknowledged.", inside=inside)


async def _write_something(connection: AsyncConnection) -> None:
    """Write a row for the sake of the commit. Nobody sees the row or waits for it."""
    name = f"written {uuid4().hex}"
    await connection.execute(insert(models.meta).values(name=name, value=""))
    await connection.execute(delete(models.meta).where(models.meta.c.name == name))


def _code(error: BaseException | None) -> object:
    original = getattr(error, "orig", None)
    return original.args[0] if original is not None and original.args else None


def _is_full(error: BaseException | None) -> bool:
    code = _code(error)
    return code in _MYSQL_FULL or (code == _MYSQL_ENGINE_ERROR and _NO_ROOM.search(str(error)) is not None)


def is_retried(error: Exception) -> bool:
    return _code(error) in _MYSQL_RETRIED


def is_refusal(error: BaseException | None) -> bool:
    """Return whether a MySQL refuses the connection, or is not the intended server: waiting does not help."""
    if _code(error) in _MYSQL_REFUSALS or isinstance(error, WrongSqlMode):
        return True
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = getattr(error, "orig", None) or error.__cause__ or error.__context__
    return error is not None


def unfitness(error: BaseException | None) -> str | None:
    """Return SQLite's message for a file that can't be opened or written, or is no database: waiting does not help."""
    original = getattr(error, "orig", None)
    return str(original) if code_of(original) in UNFIT else None


def damage_of_file(error: BaseException | None) -> str | None:
    """Return SQLite's message for a file that is damaged or no database: waiting does not help."""
    original = getattr(error, "orig", None)
    damage = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_NOTADB)
    return str(original) if code_of(original) in damage else None


def _is_damage(error: Exception) -> bool:
    """Return whether SQLite can't read a page or a row, or finds a row that differs from an index."""
    original = getattr(error, "orig", None)
    # The sum of right figures does not overflow.
    return str(original) == "integer overflow" or code_of(original) == sqlite3.SQLITE_CORRUPT


# Without space SQLite reports FULL. For the shared memory, for a new file, and over a disk quota SQLite reports that it
# could not write.
_MAY_BE_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})


def _place_of(url: str) -> str:
    """Name the database for administrators, without its password."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return f"the database {parsed.database}"
    address = parsed.query.get("unix_socket") or f"{parsed.host}:{parsed.port or _MYSQL_PORT}"
    return f"the database at {address} (UPLOADER_DATABASE_URL)"


def _said(error: Exception) -> str:
    """Return the message of an error, without the statement."""
    told = getattr(error, "orig", error)
    return str(told.args[-1] if told.args else told) or type(told).__name__
