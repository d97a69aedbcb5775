"""SQLite: a transaction runs in a thread from its beginning to its end, and writers that wait commit together.

The functions of a transaction are written for a driver that waits on the event loop. Nothing they ask for waits here, so a
thread runs them as they are: one hop for a transaction, where a driver behind the event loop takes one for each statement.

They begin and end here by the driver's own hand, and run statements as text (`Texts`). Of SQLAlchemy there is the pool of
connections, and its own way to run a statement where there is no text.
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from resource import RUSAGE_THREAD, getrusage
from typing import Any, TypeVar, cast
from urllib.parse import quote
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.sql.compiler import SQLCompiler

from uploader.database.connection import AsyncConnection
from uploader.runtime.meter import Cost, Kind, cost_of_request
from uploader.runtime.tasks import run_in

# For one run, or for each of many.
Values = Mapping[str, Any] | Sequence[Mapping[str, Any]]

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class Rows:
    """The part of SQLAlchemy's results that is used here."""

    rows: list[Any]
    names: Sequence[str] = ()
    rowcount: int = -1

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def all(self) -> list[Any]:
        return self.rows

    def first(self) -> Any:
        return self.rows[0] if self.rows else None

    def one(self) -> Any:
        (row,) = self.rows
        return row

    def keys(self) -> Sequence[str]:
        return self.names

    def scalar(self) -> Any:
        return self.rows[0][0] if self.rows else None

    def scalar_one(self) -> Any:
        return self.one()[0]

    def scalars(self) -> "Rows":
        return Rows([row[0] for row in self.rows])

    def mappings(self) -> "Rows":
        return Rows([dict(zip(self.names, row, strict=True)) for row in self.rows])


class _Text:
    def __init__(self, compiled: SQLCompiler) -> None:
        dialect, asked = compiled.dialect, [compiled.binds[name] for name in compiled.positiontup or ()]
        self._text = compiled.string
        self._asked = [(bound.key, bound.type.dialect_impl(dialect).bind_processor(dialect)) for bound in asked]
        self._given = {bound.key: bound.effective_value for bound in asked if not bound.required}
        columns = getattr(compiled.statement, "exported_columns", ())
        self._processes = [column.type.dialect_impl(dialect).result_processor(dialect, None) for column in columns]

    def run(self, connection: sqlite3.Connection, values: Values) -> Rows:
        """Raises DBAPIError, as SQLAlchemy does."""
        try:
            if isinstance(values, Mapping):
                cursor = connection.execute(self._text, self._bound(values))
            else:
                cursor = connection.executemany(self._text, map(self._bound, values))
            found = cursor.fetchall()
        except sqlite3.Error as error:
            raise wrapped(error, self._text) from error
        names = [column[0] for column in cursor.description or ()]
        return Rows([self._processed(row) for row in found], names, cursor.rowcount)

    def _bound(self, values: Mapping[str, Any]) -> list[Any]:
        given = {**self._given, **values}
        return [given[name] if process is None else process(given[name]) for name, process in self._asked]

    def _processed(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self._processes:
            return row
        pairs = zip(self._processes, row, strict=True)
        return tuple([value if process is None else process(value) for process, value in pairs])


class Texts:
    """Compiles statements of one dialect to text, for SQLite's own driver.

    SQLAlchemy takes several times as long to run a statement as SQLite does: it looks for the form that it compiled
    before, and makes objects for each run. A statement that is executed with values stays the same. So it is compiled
    when it is first run, with the conversions of its types.
    """

    def __init__(self, dialect: sa.Dialect) -> None:
        self._dialect = dialect
        # By the statement itself, and by the names of its values: those of an INSERT are its columns.
        self._known: WeakKeyDictionary[sa.Executable, dict[tuple[object, ...], _Text | None]] = WeakKeyDictionary()

    def of(self, statement: sa.Executable, values: Values) -> _Text | None:
        """Return None if a statement has no text that stays the same, as where a list of values is expanded."""
        many = not isinstance(values, Mapping)
        names = tuple(values if isinstance(values, Mapping) else values[0])
        known = self._known.get(statement)
        if known is None:
            known = self._known[statement] = {}
        try:
            return known[many, *names]
        except KeyError:
            text = known[many, *names] = self._compiled(statement, names, many)
            return text

    def _compiled(self, statement: sa.Executable, names: tuple[str, ...], many: bool) -> _Text | None:
        compile_ = cast(Any, statement).compile
        compiled: SQLCompiler = compile_(dialect=self._dialect, column_keys=list(names), for_executemany=many)
        changes = compiled.literal_execute_params or compiled.post_compile_params
        computes = compiled.insert_prefetch or compiled.update_prefetch
        return None if changes or computes else _Text(compiled)


@cache
def texts() -> Texts:
    """Return those of this process: a statement is compiled once, however many databases it is for."""
    from sqlalchemy.dialects import sqlite  # which servers on MySQL need not load

    return Texts(sqlite.dialect(dbapi=sqlite3))


@dataclass(eq=False, repr=False)
class Statements:
    """The part of an `AsyncConnection` that transactions use: nothing in it waits."""

    engine: sa.Engine
    pooled: sa.PoolProxiedConnection
    texts: Texts

    def __post_init__(self) -> None:
        self.dialect = self.engine.dialect
        self.driver = cast(sqlite3.Connection, self.pooled.dbapi_connection)

    async def execute(self, statement: sa.Executable, values: Values | None = None) -> Any:
        text = self.texts.of(statement, values) if values else None
        return self._plain.execute(statement, values) if text is None else text.run(self.driver, values or {})

    @property
    def info(self) -> dict[Any, Any]:
        return self.pooled.info

    async def run_sync(self, work: Callable[..., T], *arguments: Any) -> T:
        return work(self._plain, *arguments)

    def run(self, text: str) -> None:
        """Begin or end a transaction. Raises DBAPIError."""
        try:
            self.driver.execute(text)
        except sqlite3.Error as error:
            raise wrapped(error, text) from error

    @property
    def in_transaction(self) -> bool:
        return self.driver.in_transaction

    @cached_property
    def _plain(self) -> sa.Connection:
        """SQLAlchemy's own, in the transaction that is under way: it neither begins nor ends one."""
        plain = sa.Connection(self.engine, self.pooled)
        plain.begin()
        return plain

    def close(self) -> None:
        if "_plain" in vars(self):
            self._plain.close()
        else:
            self.pooled.close()


def wrapped(error: sqlite3.Error, text: str | None) -> BaseException:
    """Return the error as SQLAlchemy raises it; without the values, which do not belong into logs."""
    return DBAPIError.instance(text, None, error, sqlite3.Error, hide_parameters=True)


Work = Callable[[AsyncConnection], Awaitable[T]]


@dataclass(eq=False, repr=False)
class CallingTransaction:
    """A transaction that writes, and waits for what it calls from its thread on the event loop.

    That may write, too, as by the rows of a store on S3. Another transaction could begin only after this one, which
    waits for it. So it is a part of this one. On MySQL, where it is one of its own, it has to be repeatable anyway,
    because its caller may be run again.
    """

    connection: Statements
    # It is in a call. What is left running after that is no part of it any more.
    waits: bool = False


_caller: ContextVar[CallingTransaction | None] = ContextVar("caller", default=None)


def on_the_loop(work: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """Let a transaction call `work` from its thread, which waits for it."""
    loop = asyncio.get_running_loop()

    async def called(*arguments: Any) -> T:
        async def call() -> T:
            caller = _caller.get()  # of the thread, whose context comes along
            if caller is None:
                return await work(*arguments)
            caller.waits = True
            try:
                return await work(*arguments)
            finally:
                caller.waits = False

        return asyncio.run_coroutine_threadsafe(call(), loop).result()

    return called


def run_part(connection: Statements, work: "Work[T]") -> T:
    """Run a transaction as a part of a larger one, which goes on without it if it fails."""
    connection.run("SAVEPOINT part")
    try:
        result = run_to_its_end(work, connection)
    except Exception:
        # Some errors end the whole transaction (https://sqlite.org/lang_transaction.html), and a savepoint would begin
        # another one.
        if connection.in_transaction:
            connection.run("ROLLBACK TO part")
            connection.run("RELEASE part")
        raise
    connection.run("RELEASE part")
    return result


def run_to_its_end(work: "Work[T]", connection: Statements) -> T:
    """Run a coroutine that never waits."""
    steps = work(cast(AsyncConnection, connection)).__await__()
    try:
        next(steps)
    except StopIteration as end:
        return cast(T, end.value)
    raise RuntimeError("a transaction waited for something else than the database")


_BUSY_TIMEOUT_MS = 30_000
_CONNECTIONS = 8
_READERS = min(4, (os.cpu_count() or 1) + 1)
_COLD_SECONDS = 1.0
# Of a commit: the last of them waits for all.
_MAX_TOGETHER = 64
# What no waiting helps: the file can't be opened or written, or is no database.
UNFIT = frozenset(
    {
        *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CORRUPT),
        *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_NOTADB),
    }
)


class FileLost(Exception):
    """The database's file is not the one that was opened: it was removed or replaced."""


class _File:
    """The file of a database, as it was when it was first opened.

    Connections to a file that was removed or replaced work on, and all that is written is gone with it.
    """

    def __init__(self, path: str | None, tell: Callable[[bool], None], *, creates: bool) -> None:
        """`tell` hears after each look whether the file is lost. `creates`: it may be made."""
        self._tell = tell
        self._creates = creates
        self._path = None if path in (None, "", ":memory:") else path
        self._opened: os.stat_result | None = None

    @property
    def address(self) -> str | None:
        """Return what to open in the place of the path, so that nothing is made; None: the path."""
        makes = self._creates and self._opened is None
        return None if self._path is None or makes else f"file:{quote(self._path)}?mode=rw"

    def look(self) -> None:
        """Raises FileLost."""
        lost = self._path is not None and not self._is_there(self._path)
        self._tell(lost)
        if lost:
            raise FileLost(self._path)

    def _is_there(self, path: str) -> bool:
        try:
            found = os.stat(path)  # noqa: PTH116 (nothing around the call: each commit makes it)
        except OSError:
            return False
        if self._opened is None:
            self._opened = found
        return os.path.samestat(found, self._opened)


class SqliteEngine:
    """The part of an `AsyncEngine` that is used, over a plain one: nothing in it waits."""

    def __init__(self, url: str, tell: Callable[[bool], None], *, creates: bool) -> None:
        self.sync_engine = sa.create_engine(
            sa.make_url(url).set(drivername="sqlite"),
            poolclass=sa.QueuePool,
            pool_size=_CONNECTIONS,
            max_overflow=0,
            hide_parameters=True,
        )
        self.url = self.sync_engine.url
        self.dialect = self.sync_engine.dialect
        self.file = _File(self.url.database, tell, creates=creates)
        self._texts = texts()
        sa.event.listen(self.sync_engine, "do_connect", self._connect)
        sa.event.listen(self.sync_engine, "connect", _configure)

    @property
    def is_open(self) -> bool:
        """A connection is there, and nobody has it."""
        return cast(sa.QueuePool, self.sync_engine.pool).checkedin() > 0

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        with self.writing() as connection:
            yield cast(AsyncConnection, connection)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        with self.reading() as connection:
            yield cast(AsyncConnection, connection)

    @contextmanager
    def writing(self) -> Iterator[Statements]:
        # It takes the lock at once: upgrading a read lock later could only fail (https://sqlite.org/isolation.html).
        with self._beginning("BEGIN IMMEDIATE") as connection:
            yield connection
            connection.run("COMMIT")

    def reading(self) -> AbstractContextManager[Statements]:
        return self._beginning("BEGIN")

    @contextmanager
    def _beginning(self, begin: str) -> Iterator[Statements]:
        """A transaction, rolled back unless it is committed."""
        try:
            pooled = self.sync_engine.raw_connection()
        except sqlite3.Error as error:
            raise wrapped(error, None) from error
        connection = Statements(self.sync_engine, pooled, self._texts)
        try:
            connection.run(begin)
            yield connection
        except sa.exc.DBAPIError as error:
            if code_of(error.orig) == sqlite3.SQLITE_READONLY:
                pooled.invalidate()
                self.drop_connections()
            raise
        finally:
            connection.close()

    async def dispose(self) -> None:
        self.sync_engine.dispose()

    def drop_connections(self) -> None:
        """Close idle connections. A file that was opened while the disk was read-only stays read-only for all connections of
        the process until the last one is closed: they share what is mapped of the log."""
        self.sync_engine.dispose()

    def _connect(self, dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
        if (address := self.file.address) is not None:
            arguments, options = [address, *arguments[1:]], {**options, "uri": True}
        connection = dialect.connect(*arguments, **options)
        try:
            self.file.look()
        except FileLost:
            connection.close()
            raise
        return connection


@dataclass(slots=True)
class _Write:
    work: "Work[Any]"
    alone: bool
    outcome: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    result: Any = None
    error: BaseException | None = None
    # Who pays for it, and how much: its part of the commit is not counted.
    cost: Cost | None = field(default_factory=cost_of_request.get)
    spent_seconds: float = 0.0


class Sqlite:
    """Runs transactions."""

    def __init__(self, url: str, tell: Callable[[bool], None], *, creates: bool) -> None:
        self.engine = SqliteEngine(url, tell, creates=creates)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="reading database")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="writing database")
        self._lock = threading.Lock()
        self._waiting: deque[_Write] = deque()
        self._writing = False
        self._cold_until = 0.0

    async def read(self, work: "Work[T]", *, snapshot: bool = False, brief: bool = False) -> T:
        """`snapshot`: as always here. `brief`: it takes less than a hop to a thread does, unless it has to wait for the
        disk."""
        if brief and self.engine.is_open and time.monotonic() >= self._cold_until:
            return self._glance(work)
        return await run_in(self._readers, self._read, work)

    def _read(self, work: "Work[T]") -> T:
        with self.engine.reading() as connection:
            return run_to_its_end(work, connection)

    def _glance(self, work: "Work[T]") -> T:
        """Read in this thread, the event loop's. If the disk had to be read, other pages may not be in memory either: for a
        moment, reads go to threads."""
        before = getrusage(RUSAGE_THREAD).ru_inblock
        try:
            return self._read(work)
        finally:
            if getrusage(RUSAGE_THREAD).ru_inblock > before:
                self._cold_until = time.monotonic() + _COLD_SECONDS

    def crowd(self, error: Exception) -> str | None:
        """Return what would help, if an error says that too much was asked for at once; else None."""
        if code_of(getattr(error, "orig", None)) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return (
                f"another process, or a backup, has kept it locked for {_BUSY_TIMEOUT_MS // 1000} s; for several busy"
                " processes use MySQL or MariaDB (UPLOADER_DATABASE_URL)"
            )
        if isinstance(error, PoolTimeoutError):
            return f"its {_CONNECTIONS} connections are in use"
        return None

    def drop_connections(self) -> None:
        self.engine.drop_connections()

    async def look(self) -> None:
        """Raises FileLost."""
        await run_in(self._readers, self.engine.file.look)

    async def write(self, work: "Work[T]", *, alone: bool) -> T:
        """`alone`: no other transaction may be in its commit, but for one that has called this one."""
        caller = _caller.get()
        if caller is not None and caller.waits and caller.connection.engine is self.engine.sync_engine:
            return run_part(caller.connection, work)  # it waits meanwhile, so nobody else uses its connection
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append(_Write(work, alone, outcome))
            idle, self._writing = not self._writing, True
        if idle:
            self._writer.submit(self._write_all)
        return await outcome

    async def close(self) -> None:
        """Leave the threads to end by themselves."""
        await asyncio.to_thread(self.engine.sync_engine.dispose)

    # In the thread that writes

    def _write_all(self) -> None:
        while batch := self._next_batch():
            try:
                self._commit(batch)
            except BaseException as error:
                for write in batch:
                    write.error = write.error or error
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                batch[0].loop.call_soon_threadsafe(_tell, batch)

    def _next_batch(self) -> list[_Write]:
        """Take those that may be in one commit, in their order."""
        batch: list[_Write] = []
        with self._lock:
            while self._waiting and len(batch) < _MAX_TOGETHER:
                write = self._waiting[0]
                if write.outcome.cancelled():
                    self._waiting.popleft()
                    continue
                if batch and (write.alone or batch[0].alone or write.loop is not batch[0].loop):
                    break
                batch.append(self._waiting.popleft())
            self._writing = bool(batch)
        return batch

    def _commit(self, batch: list[_Write]) -> None:
        """Raises FileLost, also after the commit: it went to a file that nobody finds again."""
        if batch[0].alone:
            self.engine.file.look()  # before it does what can't be rolled back
        with self.engine.writing() as connection:
            _caller.set(CallingTransaction(connection))  # in this thread nothing but transactions runs
            for write in batch:
                began = time.thread_time()
                try:
                    if len(batch) == 1:
                        write.result = run_to_its_end(write.work, connection)
                    else:
                        write.result = run_part(connection, write.work)
                except Exception as error:
                    write.error = error
                    if len(batch) == 1 or not connection.in_transaction:
                        raise
                finally:
                    write.spent_seconds = time.thread_time() - began
        self.engine.file.look()


def _tell(batch: list[_Write]) -> None:
    for write in batch:
        if write.cost is not None:
            write.cost.add(Kind.THREADS, write.spent_seconds)
        if write.outcome.done():
            continue  # its caller is gone
        if write.error is None:
            write.outcome.set_result(write.result)
        else:
            write.outcome.set_exception(write.error)


def code_of(error: BaseException | None) -> int | None:
    """Return the result code of SQLite without its extension (https://sqlite.org/rescode.html)."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _configure(connection: Any, _record: Any) -> None:
    # The driver begins nothing by itself; `_beginning` does.
    connection.isolation_level = None
    # A byte that is no UTF-8 is no error of the whole query; see `models.py`.
    connection.text_factory = partial(bytes.decode, errors="replace")
    for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={_BUSY_TIMEOUT_MS}"):
        connection.execute(f"PRAGMA {pragma}").close()
