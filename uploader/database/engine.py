"""Connections and transactions: how a statement reaches the database, and what is tried again.

Every transaction is a function of a connection, so that it can be run again whole after a deadlock.
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
# The name under which the services know it.
Connection = AsyncConnection
# Run on a connection that it is given, with what else it is to know.
Work = Callable[[AsyncConnection, *Ts], Awaitable[T]]

# Lock wait timeout and deadlock of MySQL and MariaDB, and what MySQL says to NOWAIT (MariaDB: the first): the whole
# transaction is to be run again.
_MYSQL_LOCK_WAIT_TIMEOUT = 1205
_MYSQL_RETRIED = frozenset({_MYSQL_LOCK_WAIT_TIMEOUT, 1213, 3572})
_MYSQL_DUPLICATE = 1062
# What one that takes no writes says to them.
_MYSQL_READ_ONLY = frozenset({1290, 1836})
# ER_DISK_FULL, ER_RECORD_FILE_FULL; and ER_GET_ERRNO with one of the operating system (ENOSPC, EDQUOT).
_MYSQL_FULL = frozenset({1021, 1114})
_MYSQL_ENGINE_ERROR, _NO_ROOM = 1030, re.compile(rf"error ({errno.ENOSPC}|{errno.EDQUOT})\b")
# A value out of range, and a failed CHECK of MySQL and of MariaDB: the driver calls them operational, but waiting helps
# none of them.
_MYSQL_BAD_FIGURES = frozenset({1690, 3819, 4025})
# The answer of a server to a client that speaks without TLS and should not: that, or no more than to a wrong password.
_MYSQL_WANTS_TLS: dict[object, str] = {
    3159: "it wants TLS: add ssl_ca=… to the URL",
    1045: "or it wants TLS: ssl_ca=… in the URL",
}
# The answer of a server to a user whom it does not let in, or not to this database.
_MYSQL_REFUSALS = frozenset({1044, 1045, 1049, 1130, 1142, 1251, 1698, 3118, 3159, 3955})
_ATTEMPTS = 10
# After so long it is looked whether a SQLite is damaged still, then less and less often: for a small part of the time.
_RECHECK_SECONDS, _MAX_RECHECK_SECONDS, _PAUSES = 1.0, 3600.0, 20
_MYSQL_PORT = 3306
_FAILS = "a store fails"


class Duplicate(Exception):
    """A unique key is taken; somebody else was faster."""


class Database:
    # Of a SQLite: its file was not the one that was opened when somebody last looked. What is acknowledged meanwhile is
    # lost. An attribute: each chunk asks.
    is_lost = False
    # Of a SQLite: what it said when a statement met a damaged page, until it finds nothing wrong any more.
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
        """For MySQL, `read_timeout_seconds`: how long an answer may take at the most; `connections`: how many at most;
        `timeout_seconds`: after how much silence one that hangs is given up. `creates`: the file of a SQLite may be made;
        without, one that is missing is away. `outbox`: where transactions tell what they do. `trash`: what becomes of
        deleted files; without, nothing is kept of them. `make_room`: called in a
        thread where a SQLite may have no room on its disk, with whether it says so; returns whether to try once more."""
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
        # What keeps everything from working, and what keeps writes; whether it is too busy.
        self._trouble, self._write_trouble = Trouble("database"), Trouble("database, writes")
        self._crowd, self._crowded = Trouble("database, busy"), ""

    def _tell_lost(self, lost: bool) -> None:
        self.is_lost = lost

    @property
    def odd_modes(self) -> str:
        """Name what the SQL mode of new connections to a MySQL has more, and less, than this server sets."""
        return self._kind.odd_modes if isinstance(self._kind, Mysql) else ""

    async def look(self) -> None:
        """Raises Unavailable if the file of a SQLite is not the one that was opened. Each commit looks; who acknowledges
        without one relies on others to do so."""
        if isinstance(self._kind, Sqlite):
            try:
                await self._kind.look()
            except FileLost as error:
                raise self._translated(error) from error

    async def transact(self, work: "Work[*Ts, T]", *of: *Ts, alone: bool = False) -> T:
        """Run `work` of these in one transaction, again after a deadlock. Raises Duplicate, Unavailable, and what `work`
        raises.

        It waits for the database and nothing else, but for what it was given by `outside`. `alone`: what others have
        written and not committed is not to be seen, because `work` does what can't be rolled back. If the context has an
        authority, the rows of its caller are read at the end. Then the revocations of the transaction are counted.
        """
        if self.is_lost:
            await self.look()
        # Here, because a thread of SQLite has another context.
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
        """Run `work` of these in a transaction that writes nothing. Raises Unavailable, and what `work` raises.

        `snapshot`: all it reads is of one moment (on SQLite it always is). `brief`: a few rows by their keys, for which
        SQLite takes less than a hop to a thread does.
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
            except DBAPIError as error:  # to read in WAL mode takes room, too: a file of shared memory
                if not await self._has_made_room(error):
                    raise
                return await ask(brief=False)
        except (DBAPIError, PoolTimeoutError, OSError, FileLost) as error:
            raise self._translated(error) from error

    async def read_durably(self, work: "Work[*Ts, T]", *of: *Ts) -> T:
        """Run `work` of these, which reads; return only once all it read would survive a crash of the database server, too.

        InnoDB lets others read a commit before the log of it is on the disk (decision 0012). But it acknowledges no
        commit whose log, and all before it, is not. So this one writes. SQLite lets nobody read what is not durable.
        Raises as `transact`.
        """
        if isinstance(self._kind, Sqlite):
            return await self.read(work, *of)

        async def read_and_write(connection: AsyncConnection) -> T:
            found = await work(connection, *of)
            await _write_something(connection)
            return found

        return await self.transact(read_and_write)

    async def sync(self) -> None:
        """Return once all that anybody could read when this began would survive a crash of the database server. May be
        called in the middle of a transaction. Raises Unavailable."""
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
        """Raises Unavailable if a MySQL is no primary any more, or was set to take no writes."""
        if isinstance(self._kind, Mysql) and await self.read(is_read_only):
            raise self._demoted("read_only is set")

    def outside(self, work: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        """Let a transaction call `work`, which waits for something else. What it writes here is a transaction of its
        own; on SQLite a part of its caller's."""
        return on_the_loop(work) if isinstance(self._kind, Sqlite) else work

    def in_thread(self, work: Callable[..., T]) -> Callable[..., Awaitable[T]]:
        """Let a transaction call `work`, which blocks: one of SQLite is in a thread already."""
        if isinstance(self._kind, Mysql):
            return partial(asyncio.to_thread, work)

        async def run(*arguments: object) -> T:
            return work(*arguments)

        return run

    def drop_connections(self) -> None:
        """Close idle connections, or use none of now again. Blocks for a SQLite."""
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
        """Tell whether a row was waited for as long as anybody waits; not so if it was asked for without waiting."""
        if not isinstance(self._kind, Mysql) or _code(error) != _MYSQL_LOCK_WAIT_TIMEOUT:
            return False
        return seconds >= self._kind.lock_wait_seconds / 2  # InnoDB looks at its clock once a second

    def _worked(self, *more: Trouble) -> None:
        for trouble in (self._trouble, self._crowd, *more):
            if trouble.is_open:
                trouble.worked()

    @property
    def crowd(self) -> str | None:
        """Return what would help, if callers were refused lately because there are too many; else None."""
        return self._crowded if self._crowd.is_open else None

    @property
    def lacks_room(self) -> str | None:
        """Return the words of a MySQL that has refused writes lately because it has no room; else None."""
        return self._full if self._write_trouble.is_open else None

    def _busy(self, how: str, kind: object) -> ServerBusy:
        """Return the error of a database that is there, and has too much to do."""
        inside = f"{self._place} is busy: {how}"
        error, self._crowded = ServerBusy(inside=inside), how
        error.is_told = self._crowd.note("the database is busy", kind=str(kind), reason=inside)
        return error

    def _translated(self, error: Exception) -> Exception:
        """Return the error of this server that the database's own is. The log has a fault that lasts once."""
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
            # A figure that is too large stays wrong.
            is_page = code_of(getattr(error, "orig", None)) == sqlite3.SQLITE_CORRUPT
            if is_page and (self._rechecking is None or self._rechecking.done()):
                self._rechecking = asyncio.create_task(self._recheck())
            return DatabaseDamaged()
        if code_of(getattr(error, "orig", None)) == sqlite3.SQLITE_FULL or _is_full(error):
            return DatabaseFull(inside=f"{self._place} has no room: {_said(error)}")
        if code_of(getattr(error, "orig", None)) == sqlite3.SQLITE_NOTADB:
            self.damage = _said(error)  # its header; of a file that never was one the start tells
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
        """Look again and again whether a SQLite is damaged. It says the same of a page that the disk can't read for now
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
        """Return the error of a database that takes no writes. By its address the next connections may find its
        successor."""
        if isinstance(self._kind, Mysql):
            self._kind.drop_connections()
        inside = f"{self._place} is read-only, as after a failover: {said}"
        return Unavailable("The database is read-only, as after a failover; nothing was acknowledged.", inside=inside)


async def _write_something(connection: AsyncConnection) -> None:
    """Write for the commit's sake: a row that nobody sees, and that nobody waits for."""
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
    """Return whether a MySQL is there and refuses the connection, or is not the one that was meant: waiting does not
    help."""
    if _code(error) in _MYSQL_REFUSALS or isinstance(error, WrongSqlMode):
        return True
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = getattr(error, "orig", None) or error.__cause__ or error.__context__
    return error is not None


def unfitness(error: BaseException | None) -> str | None:
    """Return SQLite's words for a file that can't be opened or written, or is no database: waiting does not help."""
    original = getattr(error, "orig", None)
    return str(original) if code_of(original) in UNFIT else None


def damage_of_file(error: BaseException | None) -> str | None:
    """Return SQLite's words for a file that is damaged or no database: waiting does not help."""
    original = getattr(error, "orig", None)
    damage = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_NOTADB)
    return str(original) if code_of(original) in damage else None


def _is_damage(error: Exception) -> bool:
    """Return whether SQLite can't read a page or a row, or finds another row than an index says."""
    original = getattr(error, "orig", None)
    # The sum of right figures has one.
    return str(original) == "integer overflow" or code_of(original) == sqlite3.SQLITE_CORRUPT


# Without room SQLite says that it is full; of a file of shared memory, of one that it makes, and of a disk quota, that it
# could not write.
_MAY_BE_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})


def _place_of(url: str) -> str:
    """Name the database for administrators; without its password."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return f"the database {parsed.database}"
    address = parsed.query.get("unix_socket") or f"{parsed.host}:{parsed.port or _MYSQL_PORT}"
    return f"the database at {address} (UPLOADER_DATABASE_URL)"


def _said(error: Exception) -> str:
    """Return the reason without the statement."""
    told = getattr(error, "orig", error)
    return str(told.args[-1] if told.args else told) or type(told).__name__
