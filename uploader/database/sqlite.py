"""SQLite: a transaction runs in one thread from beginning to end, and writers that wait commit together.

Transactions are written for a driver that waits on the event loop. With SQLite no call in a transaction waits, so a thread
runs the functions as they are. A transaction costs one hop to a thread; a driver behind the event loop needs one for each
statement.

Transactions begin and end by the driver itself, and run statements as text (`Texts`). SQLAlchemy provides the pool of
connections, and runs statements that have no text.
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

# The values for one run of a statement, or for each of many runs.
Values = Mapping[str, Any] | Sequence[Mapping[str, Any]]

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class Rows:
    """The part of SQLAlchemy's results that transactions use."""

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

    SQLAlchemy takes several times as long as SQLite to run a statement: SQLAlchemy looks for the compiled form, and makes
    objects for each run. A statement that is executed with values stays the same. Its text and the conversions of its types
    are compiled at the first run.
    """

    def __init__(self, dialect: sa.Dialect) -> None:
        self._dialect = dialect
        # By the statement, and by the names of its values: an INSERT has these columns.
        self._known: WeakKeyDictionary[sa.Executable, dict[tuple[object, ...], _Text | None]] = WeakKeyDictionary()

    def of(self, statement: sa.Executable, values: Values) -> _Text | None:
        """Return None if a statement has no fixed text, such as a statement that expands a list of values."""
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
    """Return the texts of this process: a statement is compiled once for all databases."""
    from sqlalchemy.dialects import sqlite  # servers on MySQL need not load this

    return Texts(sqlite.dialect(dbapi=sqlite3))


@dataclass(eq=False, repr=False)
class Statements:
    """The part of an `AsyncConnection` that transactions use. Nothing here waits."""

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
        """SQLAlchemy's own connection, in the present transaction. It neither begins nor ends a transaction."""
        plain = sa.Connection(self.engine, self.pooled)
        plain.begin()
        return plain

    def close(self) -> None:
        if "_plain" in vars(self):
            self._plain.close()
        else:
            self.pooled.close()


def wrapped(error: sqlite3.Error, text: str | None) -> BaseException:
    """Return the error as SQLAlchemy raises it, without the values: these do not belong into logs."""
    return DBAPIError.instance(text, None, error, sqlite3.Error, hide_parameters=True)


Work = Callable[[AsyncConnection], Awaitable[T]]


@dataclass(eq=False, repr=False)
class CallingTransaction:
    """A transaction that writes, and whose thread waits for a call on the event loop.

    The call may write, too, such as to the ledger of a store on S3. Another transaction could begin only after the end of
    this one: both would wait for ever. Therefore the writes of the call are a part of this transaction. On MySQL these
    writes are a transaction of their own, which has to be repeatable anyway, because the calling transaction may run again.
    """

    connection: Statements
    # True during a call. Tasks that go on after the call are no part of this transaction.
    waits: bool = False


_caller: ContextVar[CallingTransaction | None] = ContextVar("caller", default=None)


def on_the_loop(work: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """Let a transaction call `work` from its thread, and wait there for the result."""
    loop = asyncio.get_running_loop()

    async def called(*arguments: Any) -> T:
        async def call() -> T:
            caller = _caller.get()  # the context of the thread comes along
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
    """Run a transaction as a part of a larger one, which goes on if the part fails."""
    connection.run("SAVEPOINT part")
    try:
        result = run_to_its_end(work, connection)
    except Exception:
        # Some errors end the whole transaction (https://sqlite.org/lang_transaction.html), and its savepoints with it.
        if connection.in_transaction:
            connection.run("ROLLBACK TO part")
            connection.run("RELEASE part")
        raise
    connection.run("RELEASE part")
    return result


def run_to_its_end(work: "Work[T]", connection: Statements) -> T:
    """Return the result of a coroutine that never waits."""
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
# Transactions in one commit: each of them waits for all.
_MAX_TOGETHER = 64
# Codes for which waiting does not help: the file can't be opened or written, or is no database.
UNFIT = frozenset(
    {
        *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CORRUPT),
        *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_NOTADB),
    }
)


class FileLost(Exception):
    """The file of the database was removed or replaced since it was opened."""


class _File:
    """The file of a database, as it was when first opened.

    Connections to a removed or replaced file go on working, but all their writes are lost.
    """

    def __init__(self, path: str | None, tell: Callable[[bool], None], *, creates: bool) -> None:
        """`tell` hears after each look whether the file is lost. `creates`: a missing file may be made."""
        self._tell = tell
        self._creates = creates
        self._path = None if path in (None, "", ":memory:") else path
        self._opened: os.stat_result | None = None

    @property
    def address(self) -> str | None:
        """Return a URI to open instead of the path, so that SQLite makes no file; None: open the path."""
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
    """The part of an `AsyncEngine` that callers use, over a synchronous engine. Nothing here waits."""

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
        """Return whether the pool has an idle connection."""
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
        # Take the write lock at once: the upgrade of a read lock may fail later (https://sqlite.org/isolation.html).
        with self._beginning("BEGIN IMMEDIATE") as connection:
            yield connection
            connection.run("COMMIT")

    def reading(self) -> AbstractContextManager[Statements]:
        return self._beginning("BEGIN")

    @contextmanager
    def _beginning(self, begin: str) -> Iterator[Statements]:
        """Yield a transaction. Without a commit it is rolled back."""
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
        """Close idle connections. A file that was opened on a read-only disk stays read-only for all connections of the
        process until the last one closes: they share the mapped index of the log."""
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
    # The request that pays, and its CPU seconds, without a share of the commit.
    cost: Cost | None = field(default_factory=cost_of_request.get)
    spent_seconds: float = 0.0


class Sqlite:
    """Runs transactions in threads: several readers and one writer."""

    def __init__(self, url: str, tell: Callable[[bool], None], *, creates: bool) -> None:
        self.engine = SqliteEngine(url, tell, creates=creates)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="reading database")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="writing database")
        self._lock = threading.Lock()
        self._waiting: deque[_Write] = deque()
        self._writing = False
        self._cold_until = 0.0

    async def read(self, work: "Work[T]", *, snapshot: bool = False, brief: bool = False) -> T:
        """`snapshot` changes nothing: a read always sees one moment. `brief`: read on the event loop, which takes less time
        than a hop to a thread, unless the disk has to be read."""
        if brief and self.engine.is_open and time.monotonic() >= self._cold_until:
            return self._glance(work)
        return await run_in(self._readers, self._read, work)

    def _read(self, work: "Work[T]") -> T:
        with self.engine.reading() as connection:
            return run_to_its_end(work, connection)

    def _glance(self, work: "Work[T]") -> T:
        """Read in the thread of the event loop. If this read the disk, other pages may not be in memory either, so reads go
        to threads for a moment."""
        before = getrusage(RUSAGE_THREAD).ru_inblock
        try:
            return self._read(work)
        finally:
            if getrusage(RUSAGE_THREAD).ru_inblock > before:
                self._cold_until = time.monotonic() + _COLD_SECONDS

    def crowd(self, error: Exception) -> str | None:
        """Return advice if the error says that the database is too busy; else None."""
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
        """`alone`: share the commit with no other transaction, except the transaction that has called this one."""
        caller = _caller.get()
        if caller is not None and caller.waits and caller.connection.engine is self.engine.sync_engine:
            return run_part(caller.connection, work)  # the caller waits meanwhile, and leaves its connection alone
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append(_Write(work, alone, outcome))
            idle, self._writing = not self._writing, True
        if idle:
            self._writer.submit(self._write_all)
        return await outcome

    async def close(self) -> None:
        """Close the connections. The threads end by themselves."""
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
        """Take the waiting transactions that may share a commit, in their order."""
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
        """Raises FileLost, also after the commit: then the commit went to a removed or replaced file."""
        if batch[0].alone:
            self.engine.file.look()  # before `work` does something that can't be rolled back
        with self.engine.writing() as connection:
            _caller.set(CallingTransaction(connection))  # this thread runs only transactions
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
    """Return SQLite's result code without its extension (https://sqlite.org/rescode.html)."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _configure(connection: Any, _record: Any) -> None:
    # The driver begins nothing by itself; `_beginning` does.
    connection.isolation_level = None
    # Bytes that are not UTF-8 must not fail the whole query: see `models.py`.
    connection.text_factory = partial(bytes.decode, errors="replace")
    for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={_BUSY_TIMEOUT_MS}"):
        connection.execute(f"PRAGMA {pragma}").close()
