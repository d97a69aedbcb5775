"""The connections to a MySQL or MariaDB, and how to tell a server that hangs from a server that works for long."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import NullPool, event, make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError, InvalidatePoolError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from uploader.addresses import TLS_OPTIONS, parse_mysql_url
from uploader.database.connection import AsyncConnection, AsyncEngine
from uploader.runtime.breaker import MOMENT_SECONDS, Breaker, Silent
from uploader.runtime.meter import ROW_SECONDS, STATEMENT_SECONDS, Kind, charge
from uploader.runtime.tasks import ended
from uploader.runtime.wait_budget import LEAST, WaitBudget, wait_budget

if TYPE_CHECKING:
    from asyncmy.connection import Connection

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECTIONS = 22
TIMEOUT_SECONDS = 5.0
# Together with the least time that a server then gets to answer, a request takes at most 10 s.
POOL_TIMEOUT_SECONDS = 8
# The longest wait for a statement that the server works on: a report over millions of rows takes its time.
READ_TIMEOUT_SECONDS = 60.0
# The most that UPLOADER_DATABASE_CONNECTIONS may be.
MAX_CONNECTIONS = 1000
# Connections reserved for syncs. A sync in the middle of a transaction must not wait for a connection that another such
# transaction has.
SYNCING_CONNECTIONS = 2
# The code of a lost connection, and the codes of a server, or a user, without free connections.
_LOST = 2013
_TOO_MANY = frozenset({(1040,), (1203,), (1226,)})
# The identity of the server. Servers that replicate have different ids.
_WHO = "SELECT CONCAT_WS(' ', @@hostname, @@port, @@server_id), CONNECTION_ID(), @@sql_mode"
_READ_ONLY = "SELECT @@global.read_only, @@sql_mode"

# The SQL mode of each connection, for every server. The mode is strict: a value that does not fit is an error. Modes that
# give quotes, backslashes and bars another meaning are missing. MySQL and MariaDB know all of these.
SQL_MODE = ",".join(
    (
        *("STRICT_TRANS_TABLES", "STRICT_ALL_TABLES", "NO_ZERO_IN_DATE", "NO_ZERO_DATE"),
        *("ERROR_FOR_DIVISION_BY_ZERO", "NO_ENGINE_SUBSTITUTION"),
    )
)


class PoolFull(OSError):
    """All connections are in use. The message says what helps."""


@dataclass(frozen=True)
class Session:
    """A connection, as the server knows it."""

    server: str
    number: int
    made_at: float


class WrongSqlMode(OSError):
    """A new connection lost the SQL mode that was set: something on the way to the database changes the mode."""


@dataclass(frozen=True)
class Hello:
    """A server's answer: its name, and the numbers of this user's connections."""

    server: str
    numbers: frozenset[int]
    asked_at: float

    def knows(self, session: Session) -> bool:
        """Return whether the server still has a connection. A connection that is newer than the question counts as known."""
        return session.made_at > self.asked_at or (session.server == self.server and session.number in self.numbers)


@dataclass
class _Wait:
    """The connection on which a task waits; None until the task has a connection."""

    session: Session | None = None


_waits: ContextVar[_Wait] = ContextVar("waits")


class Mysql:
    """One server by its URL; the URL may lead to another server later.

    A report or a migration takes as long as it takes. So another connection asks a silent server for a hello. The silent
    connection is given up only without an answer, or if the answer does not list that connection: then the address leads to
    another server, or the server has restarted.

    A wait for a row ends after the same time as a wait for an answer. With the 50 s of InnoDB a planned failover would hang
    as long: `SET GLOBAL read_only` waits for a statement that waits for a row, and the transaction with that row waits for
    `read_only`.
    """

    def __init__(self, url: str, read_timeout_seconds: float | None, connections: int, timeout_seconds: float) -> None:
        tls = parse_mysql_url(url)
        self.speaks_tls = tls is not None
        self._url = make_url(url).difference_update_query(TLS_OPTIONS)
        self._context = None if tls is None else tls.context()
        self._read_timeout_seconds = read_timeout_seconds
        self._timeout_seconds = timeout_seconds
        self.lock_wait_seconds = max(1, math.ceil(timeout_seconds))
        # The difference between the SQL mode of the last new connection and SQL_MODE.
        self.odd_modes = ""
        self._stale_before = 0.0
        self._connections = connections
        # The number of callers with a connection for statements, or waiting for one.
        self._callers = 0
        self.engine = self._create_engine(connections - SYNCING_CONNECTIONS)
        self._syncing = self._create_engine(SYNCING_CONNECTIONS)
        logging.getLogger("asyncmy").addFilter(_is_news)
        self._asking = self._create_engine(0)
        self._breaker = Breaker("database")
        self._hello: asyncio.Task[Hello | None] | None = None
        self._given_up: set[asyncio.Task[Any]] = set()

    async def write(
        self, work: Callable[[AsyncConnection], Awaitable[T]], *, alone: bool = False, syncs: bool = False
    ) -> T:
        """Run `work` in a transaction. `alone` changes nothing here: no transaction sees uncommitted writes. Raises OSError
        if the server hangs."""
        engine = self._syncing if syncs else self.engine

        async def run() -> T:
            async with engine.begin() as connection:
                return await work(connection)

        return await self._answered(run, counts=not syncs)

    async def read(
        self, work: Callable[[AsyncConnection], Awaitable[T]], *, snapshot: bool = False, brief: bool = False
    ) -> T:
        """Run `work`, which writes nothing. `snapshot`: all reads are of one moment. Raises as `write`."""

        async def run() -> T:
            async with self.engine.connect() as connection:
                if snapshot:
                    # For one transaction. An execution option would let the driver's own errors through.
                    await connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                return await work(connection)

        return await self._answered(run)

    def drop_connections(self) -> None:
        """Close the present connections instead of using them again."""
        self._stale_before = time.monotonic()

    async def close(self) -> None:
        for task in [*self._given_up, *([self._hello] if self._hello else [])]:
            await ended(task)
        for engine in (self.engine, self._syncing, self._asking):
            await engine.dispose()

    # A server that hangs

    async def _answered(self, attempt: Callable[[], Coroutine[Any, Any, T]], *, counts: bool = True) -> T:
        self._callers += counts
        try:
            return await self._answered_in_time(attempt)
        except PoolTimeoutError as error:
            raise PoolFull(self._advice()) from error
        finally:
            self._callers -= counts

    def crowd(self, error: Exception) -> str | None:
        """Return advice if the error says that all connections are in use; else None."""
        if isinstance(error, PoolFull):
            return str(error)
        if isinstance(error, DBAPIError) and getattr(error.orig, "args", ())[:1] in _TOO_MANY:
            return (
                f"raise its max_connections, or lower UPLOADER_DATABASE_CONNECTIONS ({self._connections}): {error.orig}"
            )
        return None

    def _advice(self) -> str:
        """Say how many connections the present callers need, with some to spare."""
        wanted = min(math.ceil((self._callers + SYNCING_CONNECTIONS) * 1.25), MAX_CONNECTIONS)
        return (
            f"{self._callers} callers want the {self._connections - SYNCING_CONNECTIONS} connections for statements: set"
            f" UPLOADER_DATABASE_CONNECTIONS to {wanted} (now {self._connections}); the server's max_connections must"
            " allow so many to each process"
        )

    async def _answered_in_time(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        own = wait_budget()
        if not own.left("database", self._timeout_seconds):
            raise OSError("it did not answer this request before")
        await self.check_answers()
        began, left_in_all = time.monotonic(), own.left_in_all()
        deadline = math.inf if left_in_all is None else began + left_in_all
        wait = _Wait()
        token = _waits.set(wait)
        task = asyncio.create_task(attempt())
        _waits.reset(token)
        try:
            while not await self._waited_for(task, wait, own, deadline):
                pass
        except asyncio.CancelledError:
            self._give_up(task)  # keep the task, if a second cancellation ends this wait
            await ended(task)
            raise
        own.note(began, self._timeout_seconds * LEAST, worked="database")
        result = task.result()
        if self._breaker.unanswered_calls:
            self._breaker.answered()
        return result

    async def check_answers(self) -> None:
        """Raises OSError if the server is known to be silent, and does not answer a hello at once. Such a hello is sent now
        and then."""
        if not self._breaker.is_open:
            return
        try:
            if self._hello is None or self._hello.done():
                self._breaker.check()
                self._hello = asyncio.create_task(self._try(), name="asking a silent database")
            await asyncio.wait({self._hello}, timeout=MOMENT_SECONDS)
            if self._breaker.is_open:
                raise self._breaker.silent()
        except Silent as silent:
            raise OSError(f"it {silent}") from None

    async def _try(self) -> Hello | None:
        with suppress(Silent), self._breaker.trying():
            hello = await self._says_hello()
            if hello is None:
                raise self._breaker.silent()
            return hello
        return None

    async def _waited_for(self, task: asyncio.Task[Any], wait: _Wait, own: WaitBudget, deadline: float) -> bool:
        """Wait for the task. Return False if the server answered a hello meanwhile, and works on this task or for the tasks
        that have the connections. Raises OSError if the server hangs, or the time of the request is over."""
        seconds = own.left("database", self._timeout_seconds)
        began, half_seconds = time.monotonic(), seconds / 2
        await asyncio.wait({task}, timeout=min(half_seconds, max(deadline - began, 0)))
        if task.done():
            return True
        if time.monotonic() >= deadline:
            self._give_up(task)
            if wait.session is None and not self._breaker.unanswered_calls:
                raise PoolFull(self._advice())
            raise OSError("no answer in time for a request that has waited for others, too")
        if self._hello is None or self._hello.done():
            self._hello = asyncio.create_task(self._says_hello(), name="asking a silent database")
        asked = time.monotonic()
        await asyncio.wait({task, self._hello}, timeout=half_seconds, return_when=asyncio.FIRST_COMPLETED)
        if time.monotonic() - asked > self._timeout_seconds * LEAST:  # a shorter wait means that the server worked
            own.note(began, 0)
        if task.done():
            return True
        hello = self._hello.result() if self._hello.done() else None
        if hello is None:
            self._give_up(task)
            own.give_up("database")
            self._breaker.unanswered(f"no answer within {seconds:.3g} s")
            raise OSError(f"no answer within {seconds:.3g} s")
        if wait.session is not None and not hello.knows(wait.session):
            self._give_up(task)
            self.drop_connections()
            raise OSError("no answer, and by its address another server is reached, or it was started anew")
        if wait.session is None:
            own.note(began, 0)  # the task still waits for a connection
        return False

    async def _says_hello(self) -> Hello | None:
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_seconds), self._asking.connect() as connection:
                who: Session = connection.info["session"]
                listed = await connection.exec_driver_sql("SHOW PROCESSLIST")
                return Hello(who.server, frozenset(int(row[0]) for row in listed), asked_at)
        except (DBAPIError, OSError):
            return None

    def _give_up(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task without waiting for the close of its connection: over TLS the close waits for an answer, too."""
        self._given_up.add(task)
        task.add_done_callback(self._forget)
        task.cancel()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._given_up.discard(task)
        if not task.cancelled():
            task.exception()  # marks the error as seen

    # How to connect

    def _create_engine(self, connections: int) -> AsyncEngine:
        """Make an engine with at most so many `connections`, and keep half of them open. 0: make a connection for each
        use."""
        pool: dict[str, Any] = {
            "pool_size": (connections + 1) // 2,
            "max_overflow": connections // 2,
            "pool_timeout": POOL_TIMEOUT_SECONDS,
            "pool_recycle": 1800,
        }
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(
            self._url,
            isolation_level="READ COMMITTED",
            connect_args={
                "connect_timeout": self._timeout_seconds,
                "read_timeout": self._read_timeout_seconds,
                "init_command": f"SET SESSION innodb_lock_wait_timeout = {self.lock_wait_seconds}, sql_mode = '{SQL_MODE}'",
                "ssl": self._context,
                "async_creator_fn": _connect_in_hex,
            },
            hide_parameters=True,  # names and token hashes do not belong into logs
            **(pool if connections else {"poolclass": NullPool}),
        )
        event.listen(engine.sync_engine, "do_connect", _connect)
        event.listen(engine.sync_engine, "connect", self._note_session)
        event.listen(engine.sync_engine, "checkout", self._check_out)
        event.listen(engine.sync_engine, "after_cursor_execute", _charge)
        return engine

    def _note_session(self, connection: Any, record: Any) -> None:
        try:
            server, number, mode = _asked(connection, _WHO)
            self.odd_modes = _odd_modes(mode)
            if self.odd_modes:
                raise WrongSqlMode(self.odd_modes)
        except BaseException:
            connection.terminate()  # no pool has this connection yet
            raise
        record.info["session"] = Session(str(server), int(number), time.monotonic())
        record.info["is_new"] = True

    def _check_out(self, connection: Any, record: Any, _proxy: Any) -> None:
        """Use a connection again only if the server answers, nobody has changed the SQL mode, and the server still takes
        writes. A server that takes none is a replica, and may have old data."""
        session: Session = record.info["session"]
        if session.made_at < self._stale_before:
            raise DisconnectionError("it leads to a server that is the one no more")
        _waits.get(_Wait()).session = session
        if record.info.pop("is_new", False):
            return
        try:
            read_only, mode = _asked(connection, _READ_ONLY)
        except self.engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError() from error
        if _is_on(read_only):
            raise DisconnectionError("it leads to a server that takes no writes")
        if odd := _odd_modes(mode):
            logger.warning("a connection to the database is closed, as its SQL mode was changed", extra={"reason": odd})
            raise DisconnectionError(odd)


def _charge(_connection: Any, cursor: Any, *_: Any) -> None:
    """Charge a statement and its rows to the waiting request."""
    charge(Kind.ROWS, STATEMENT_SECONDS + max(0, cursor.rowcount) * ROW_SECONDS)


async def is_read_only(connection: AsyncConnection) -> bool:
    """Return whether the server takes no writes, as a replica or a demoted primary does; super_read_only implies
    read_only."""
    return _is_on((await connection.exec_driver_sql(_READ_ONLY)).scalar_one())


def _is_news(record: logging.LogRecord) -> bool:
    """Drop MySQL's warning that the statement of a hello is deprecated. The table that MySQL recommends may be empty."""
    return "PROCESSLIST' is deprecated" not in str(record.msg)


def _is_on(value: object) -> bool:
    return str(value).upper() not in ("0", "OFF")


def _asked(connection: Any, query: str) -> Any:
    cursor = connection.cursor()
    try:
        cursor.execute(query)
        return cursor.fetchone()
    finally:
        cursor.close()


def _odd_modes(mode: str) -> str:
    """Describe the difference between an SQL mode and SQL_MODE; empty if there is none. Servers list the modes in different
    orders."""
    ours, theirs = set(SQL_MODE.split(",")), set(filter(None, mode.split(",")))
    found = {"without": ours - theirs, "with": theirs - ours}
    return ", ".join(f"{word} {' and '.join(sorted(modes))}" for word, modes in found.items() if modes)


async def _connect_in_hex(**options: Any) -> "Connection":
    connection = _hex_connection()(**options)
    await connection.connect()
    return connection


@cache
def _hex_connection() -> "type[Connection]":
    from asyncmy.connection import Connection

    class HexConnection(Connection):
        """Sends texts and bytes as hexadecimal digits (decision 0047): asyncmy escapes them by backslashes, which some SQL
        modes take literally. Each parameter of each statement passes here."""

        def escape(self, obj: object, mapping: object = None) -> str:
            """Return a parameter as SQL with the same meaning in every SQL mode and character set. Raises TypeError."""
            if isinstance(obj, (bytes, bytearray)):
                return f"X'{obj.hex()}'"
            if isinstance(obj, str):
                return f"_utf8mb4 X'{obj.encode().hex()}'"
            if obj is None or type(obj) in _WITHOUT_QUOTES:
                literal: str = super().escape(obj, mapping)  # type: ignore[no-untyped-call]
                return literal
            raise TypeError(f"no statement takes a {type(obj).__name__}")

        literal = escape

    return HexConnection


# asyncmy writes these types with digits, signs and a few letters. The only quotes are around a time.
_WITHOUT_QUOTES = frozenset({bool, int, float, Decimal, datetime, date, timedelta})


def _connect(dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
    """Connect. asyncmy raises RuntimeError if the server goes away during a connect."""
    try:
        return dialect.connect(*arguments, **options)
    except RuntimeError as error:
        raise dialect.loaded_dbapi.OperationalError(_LOST, str(error)) from error
