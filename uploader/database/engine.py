"""Connections and transactions: how a statement reaches the database, and what is tried again.

Every transaction is a function of a connection, so that it can be run again whole after a deadlock.
"""

import asyncio
import logging
import random
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy import delete, event, insert
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from uploader.database import models
from uploader.database.sqlite import FileLost, Sqlite, SqliteEngine, is_unfit, on_the_loop
from uploader.errors import DatabaseDamaged, Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")
# The name under which the services know it.
Connection = AsyncConnection
Work = Callable[[AsyncConnection], Awaitable[T]]

# Lock wait timeout and deadlock of MySQL and MariaDB, and what MySQL says to NOWAIT (MariaDB: the first): the whole
# transaction is to be run again.
_MYSQL_RETRIED = frozenset({1205, 1213, 3572})
_MYSQL_DUPLICATE = 1062
# A value out of range, and a failed CHECK of MySQL and of MariaDB: the driver calls them operational, but waiting helps
# none of them.
_MYSQL_BAD_FIGURES = frozenset({1690, 3819, 4025})
# The code of a connection that was lost.
_MYSQL_LOST = 2013
_SQLITE_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT})
_ATTEMPTS = 10
_CONNECTIONS = 20
_SYNCING_CONNECTIONS = 2
# Longer than a lock wait of InnoDB (50 s), which has an error of its own.
_READ_TIMEOUT_SECONDS = 60.0


class Duplicate(Exception):
    """A unique key is taken; somebody else was faster."""


class Database:
    """The engine of one URL."""

    # Of a SQLite: whether its file was not the one that was opened when somebody last looked. What is acknowledged meanwhile
    # is lost.
    is_lost = False

    def __init__(
        self, url: str, *, read_timeout_seconds: float | None = _READ_TIMEOUT_SECONDS, creates: bool = False
    ) -> None:
        """`read_timeout_seconds`: how long an answer may take, so that a server that hangs is given up. `creates`: the file
        of a SQLite may be made; without, one that is missing is away."""
        self._sqlite = Sqlite(url, self._tell_lost, creates=creates) if url.startswith("sqlite") else None
        self.engine: AsyncEngine | SqliteEngine = (
            self._sqlite.engine if self._sqlite else _create_mysql_engine(url, read_timeout_seconds, _CONNECTIONS)
        )
        # Of its own: who syncs in the middle of a transaction must not wait for a connection that such another one has.
        self._syncing = None if self._sqlite else _create_mysql_engine(url, read_timeout_seconds, _SYNCING_CONNECTIONS)

    def _tell_lost(self, lost: bool) -> None:
        self.is_lost = lost

    async def look(self) -> None:
        """Whether the file of a SQLite still is the one that was opened: each commit looks, and whoever acknowledges without
        one relies on others to do so. Raises Unavailable."""
        if self._sqlite is None:
            return
        try:
            await self._sqlite.look()
        except FileLost as error:
            raise _translated(error) from error

    async def transact(self, work: "Work[T]", *, alone: bool = False) -> T:
        """Run `work` in one transaction, again after a deadlock. Raises Duplicate, Unavailable, and what `work` raises.

        It waits for the database and nothing else, but for what it was given by `outside`. `alone`: what others have
        written and not committed is not to be seen, because `work` does what can't be rolled back.
        """
        if self.is_lost:
            await self.look()
        return await _tried_again(lambda: self._write(work, alone))

    async def _write(self, work: "Work[T]", alone: bool) -> T:
        if self._sqlite is not None:
            return await self._sqlite.write(work, alone=alone)
        async with self.engine.begin() as connection:
            return await work(connection)

    async def read(self, work: "Work[T]", *, snapshot: bool = False, brief: bool = False) -> T:
        """Run `work` in a transaction that writes nothing. Raises Unavailable, and what `work` raises.

        `snapshot`: all it reads is of one moment (on SQLite it always is). `brief`: a few rows by their keys, for which
        SQLite takes less than a hop to a thread does.
        """
        if self.is_lost:
            await self.look()
        try:
            if self._sqlite is not None:
                return await self._sqlite.read(work, brief=brief)
            async with self.engine.connect() as connection:
                if snapshot:
                    # For one transaction; an execution option would let the driver's own errors through.
                    await connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                return await work(connection)
        except (DBAPIError, PoolTimeoutError, OSError, FileLost) as error:
            raise _translated(error) from error

    async def read_durably(self, work: "Work[T]") -> T:
        """Run `work`, which reads, and return only once all it read would survive a crash of the database server, too.

        InnoDB lets others read a commit before the log of it is on the disk (decision 0012). But it acknowledges no
        commit whose log, and all before it, is not. So this one writes. SQLite lets nobody read what is not durable.
        Raises as `transact`.
        """
        if self._sqlite is not None:
            return await self.read(work)

        async def read_and_write(connection: AsyncConnection) -> T:
            found = await work(connection)
            await _write_something(connection)
            return found

        return await self.transact(read_and_write)

    async def sync(self) -> None:
        """Return once all that anybody could read when this began would survive a crash of the database server.

        May be called in the middle of a transaction. Raises Unavailable.
        """
        if self._syncing is None:
            return
        syncing = self._syncing

        async def write() -> None:
            async with syncing.begin() as connection:
                await _write_something(connection)

        await _tried_again(write)

    def outside(self, work: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        """`work`, which waits for something else, as a transaction may call it."""
        return work if self._sqlite is None else on_the_loop(work)

    def in_thread(self, work: Callable[..., T]) -> Callable[..., Awaitable[T]]:
        """`work`, which blocks, as a transaction may call it: one of SQLite is in a thread already."""
        if self._sqlite is None:
            return partial(asyncio.to_thread, work)

        async def run(*arguments: object) -> T:
            return work(*arguments)

        return run

    async def close(self) -> None:
        if self._sqlite is not None:
            await self._sqlite.close()
        else:
            await self.engine.dispose()
        if self._syncing is not None:
            await self._syncing.dispose()


async def _tried_again(attempt: Callable[[], Awaitable[T]]) -> T:
    """A transaction, again after a deadlock."""
    for number in range(1, _ATTEMPTS + 1):
        try:
            return await attempt()
        except IntegrityError as error:
            if _is_duplicate(error):
                raise Duplicate(str(error.orig)) from error
            raise
        except (DBAPIError, PoolTimeoutError, OSError, FileLost) as error:
            if not is_retried(error):
                raise _translated(error) from error
            if number == _ATTEMPTS:
                raise Unavailable("The database is busy; nothing was acknowledged.") from error
            await asyncio.sleep(random.uniform(0, 0.02 * number))  # noqa: S311 (jitter)
    raise AssertionError("unreachable")


async def _write_something(connection: AsyncConnection) -> None:
    """For what its commit makes durable: a row that nobody sees, and that nobody waits for."""
    name = f"written {uuid4().hex}"
    await connection.execute(insert(models.meta).values(name=name, value=""))
    await connection.execute(delete(models.meta).where(models.meta.c.name == name))


def _create_mysql_engine(url: str, read_timeout_seconds: float | None, connections: int) -> AsyncEngine:
    """`connections`: how many at most; half of them are kept."""
    engine = create_async_engine(
        url,
        isolation_level="READ COMMITTED",
        pool_size=connections // 2,
        max_overflow=connections // 2,
        pool_timeout=10,
        pool_pre_ping=True,
        pool_recycle=1800,
        connect_args={"connect_timeout": 5, "read_timeout": read_timeout_seconds},
        hide_parameters=True,  # names and token hashes do not belong into logs
    )
    event.listen(engine.sync_engine, "do_connect", _connect_mysql)
    return engine


def _connect_mysql(dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
    """asyncmy raises RuntimeError where the server goes away in the middle of a connect."""
    try:
        return dialect.connect(*arguments, **options)
    except RuntimeError as error:
        raise dialect.loaded_dbapi.OperationalError(_MYSQL_LOST, str(error)) from error


def _code(error: Exception) -> object:
    original = getattr(error, "orig", None)
    return original.args[0] if original is not None and original.args else None


def _is_duplicate(error: IntegrityError) -> bool:
    return _code(error) == _MYSQL_DUPLICATE or "UNIQUE constraint failed" in str(error.orig)


def is_retried(error: Exception) -> bool:
    """Whether its whole transaction is to be run again."""
    return _code(error) in _MYSQL_RETRIED


def unfitness(error: BaseException | None) -> str | None:
    """What SQLite says of a file that can't be opened or written, or is no database: waiting does not help."""
    original = getattr(error, "orig", None)
    return str(original) if original is not None and is_unfit(original) else None


def _is_damage(error: Exception) -> bool:
    """Whether SQLite can't read a page or a row, or finds another row than an index says."""
    original = getattr(error, "orig", None)
    code = getattr(original, "sqlite_errorcode", None)
    if str(original) == "integer overflow":  # of a sum that is one of right figures only
        return True
    # Of an extended code the lower byte is the kind (https://sqlite.org/rescode.html).
    return code is not None and code & 0xFF in _SQLITE_DAMAGED


def _translated(error: Exception) -> Exception:
    """What the database's own troubles are to the rest of the server."""
    if isinstance(error, FileLost):
        return Unavailable(
            "The database's file was removed or replaced while the server runs; nothing is acknowledged."
        )
    if _is_damage(error):
        logger.error("the database is damaged", extra={"reason": str(getattr(error, "orig", error))})
        return DatabaseDamaged()
    if unfitness(error):
        return Unavailable("The database is away; nothing was acknowledged.")
    if _code(error) in _MYSQL_BAD_FIGURES:
        return error
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if lost or isinstance(error, (OperationalError, InterfaceError, PoolTimeoutError, OSError)):
        return Unavailable("The database is away; nothing was acknowledged.")
    return error
