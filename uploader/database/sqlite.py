"""SQLite: a transaction runs in a thread from its beginning to its end, and writers that wait commit together.

The functions of a transaction are written for a driver that waits on the event loop. Nothing they ask for waits here, so a
thread runs them as they are: one hop for a transaction, where a driver behind the event loop takes one for each statement.

They begin and end here by the driver's own hand, and run statements as text (`texts.py`). Of SQLAlchemy there is the pool of
connections, and its own way to run a statement where there is no text.
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from resource import RUSAGE_THREAD, getrusage
from typing import Any, TypeVar, cast
from urllib.parse import quote

from sqlalchemy import PoolProxiedConnection, QueuePool, create_engine, event, make_url
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database.texts import Statements, texts, wrapped
from uploader.database.within.calls import caller_on, calling, run_part, run_to_its_end

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]

_BUSY_TIMEOUT_MS = 30_000
_CONNECTIONS = 8
_READERS = min(4, (os.cpu_count() or 1) + 1)
_COLD_SECONDS = 1.0
# Of a commit: whoever is the last of them waits for all.
_MAX_TOGETHER = 64
# What no waiting helps: the file can't be opened or written, or is no database (https://sqlite.org/rescode.html).
_UNFIT = frozenset(
    {
        *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CORRUPT),
        *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_NOTADB),
    }
)


class FileLost(Exception):
    """The database's file is not the one that was opened: it was removed or replaced."""


class _File:
    """The file of a database, as it was when it was first opened.

    Whoever removes or replaces it leaves open connections to what has no name any more: they work, and all that they write
    is gone with them.
    """

    def __init__(self, path: str | None, tell: Callable[[bool], None], *, creates: bool) -> None:
        """`tell` hears after each look whether the file is lost. `creates`: it may be made."""
        self._creates = creates
        self._path = None if path in (None, "", ":memory:") else path
        self._tell = tell
        self._opened: os.stat_result | None = None

    @property
    def address(self) -> str | None:
        """What to open in the place of the path, so that nothing is made; None: the path."""
        makes = self._creates and self._opened is None
        return None if self._path is None or makes else f"file:{quote(self._path)}?mode=rw"

    def look(self) -> None:
        """Raises FileLost."""
        if self._path is None:
            return
        lost = not self._is_there(self._path)
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
        self.sync_engine = create_engine(
            make_url(url).set(drivername="sqlite"),
            poolclass=QueuePool,
            pool_size=_CONNECTIONS,
            max_overflow=0,
            hide_parameters=True,
        )
        self.url = self.sync_engine.url
        self.dialect = self.sync_engine.dialect
        self.file = _File(self.url.database, tell, creates=creates)
        self._texts = texts()
        event.listen(self.sync_engine, "do_connect", self._connect)
        event.listen(self.sync_engine, "connect", _configure)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that nobody has."""
        return cast(QueuePool, self.sync_engine.pool).checkedin() > 0

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that writes."""
        with self.writing() as connection:
            yield cast(AsyncConnection, connection)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads."""
        with self.reading() as connection:
            yield cast(AsyncConnection, connection)

    @contextmanager
    def writing(self) -> Iterator[Statements]:
        # It takes the lock at once: upgrading a read lock later could only fail (https://sqlite.org/isolation.html).
        with self._beginning("BEGIN IMMEDIATE") as connection:
            yield connection
            connection.run("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[Statements]:
        with self._beginning("BEGIN") as connection:
            yield connection

    @contextmanager
    def _beginning(self, begin: str) -> Iterator[Statements]:
        """A transaction, rolled back unless it is committed."""
        connection = Statements(self.sync_engine, self._pooled(), self._texts)
        try:
            connection.run(begin)
            yield connection
        finally:
            connection.close()

    def _pooled(self) -> PoolProxiedConnection:
        try:
            return self.sync_engine.raw_connection()
        except sqlite3.Error as error:
            raise wrapped(error, None) from error

    async def dispose(self) -> None:
        self.sync_engine.dispose()

    def _connect(self, dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
        address = self.file.address
        connection = (
            dialect.connect(*arguments, **options)
            if address is None
            else dialect.connect(address, *arguments[1:], **options, uri=True)
        )
        try:
            self.file.look()
        except FileLost:
            connection.close()
            raise
        return connection


@dataclass(slots=True)
class _Write:
    """A transaction that waits to be run, and what became of it."""

    work: "Work[Any]"
    alone: bool
    outcome: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    result: Any = None
    error: BaseException | None = None


class Sqlite:
    """Runs transactions."""

    def __init__(self, url: str, tell: Callable[[bool], None], *, creates: bool) -> None:
        """`tell` hears, after each look, whether the file is lost. `creates`: it may be made."""
        self.engine = SqliteEngine(url, tell, creates=creates)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="reading database")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="writing database")
        self._lock = threading.Lock()
        self._waiting: deque[_Write] = deque()
        self._writing = False
        self._cold_until = 0.0

    async def read(self, work: "Work[T]", *, brief: bool = False) -> T:
        """`brief`: it takes less than a hop to a thread does, unless it has to wait for the disk."""
        if brief and self.engine.is_open and time.monotonic() >= self._cold_until:
            return self._glance(work)
        return await asyncio.get_running_loop().run_in_executor(self._readers, lambda: self._read(work))

    def _read(self, work: "Work[T]") -> T:
        with self.engine.reading() as connection:
            return run_to_its_end(work, connection)

    def _glance(self, work: "Work[T]") -> T:
        """Read here and now. What was not in memory shows that others may not be, either: for a moment, threads wait."""
        before = getrusage(RUSAGE_THREAD).ru_inblock
        try:
            return self._read(work)
        finally:
            if getrusage(RUSAGE_THREAD).ru_inblock > before:
                self._cold_until = time.monotonic() + _COLD_SECONDS

    async def look(self) -> None:
        """Raises FileLost."""
        await asyncio.get_running_loop().run_in_executor(self._readers, self.engine.file.look)

    async def write(self, work: "Work[T]", *, alone: bool) -> T:
        """`alone`: no other transaction may be in its commit, but for one that has called this one."""
        if (caller := caller_on(self.engine.sync_engine)) is not None:
            return caller.run(work)
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append(_Write(work, alone, outcome))
            idle, self._writing = not self._writing, True
        if idle:
            self._writer.submit(self._write_all)
        return await outcome

    async def close(self) -> None:
        """The threads end with this, or with what they are at."""
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
        """Those that wait, in their order, as far as they may be in one commit."""
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
        self._commit_together(batch)
        self.engine.file.look()

    def _commit_together(self, batch: list[_Write]) -> None:
        with self.engine.writing() as connection, calling(connection, self.engine.sync_engine):
            for write in batch:
                if len(batch) == 1:
                    write.result = run_to_its_end(write.work, connection)
                else:
                    _run_within(connection, write)


def _run_within(connection: Statements, write: _Write) -> None:
    """Run a transaction as a part of a larger one, which goes on without it if it fails."""
    try:
        write.result = run_part(connection, write.work)
    except Exception as error:
        write.error = error
        if not connection.in_transaction:
            raise


def _tell(batch: list[_Write]) -> None:
    for write in batch:
        if write.outcome.done():
            continue  # its caller is gone
        if write.error is None:
            write.outcome.set_result(write.result)
        else:
            write.outcome.set_exception(write.error)


def is_unfit(error: BaseException) -> bool:
    """Whether SQLite says of a file that it can't be opened or written, or is no database."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _UNFIT  # the rest is the extended code


def _configure(connection: Any, _record: Any) -> None:
    # The driver begins nothing by itself; `_begin` does.
    connection.isolation_level = None
    # A byte that is no UTF-8 is no error of the whole query; see `models.py`.
    connection.text_factory = _text
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={_BUSY_TIMEOUT_MS}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
