"""Statements as text, for SQLite's own driver.

SQLAlchemy takes several times as long to run a statement as SQLite does: it looks for the form that it compiled before, and
makes objects for each run. A statement that is executed with values was put together before there were any, and once. So it
is compiled when it is first run, with what its types do to values on their way in and out; from then on it is a text.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect, Engine, Executable, PoolProxiedConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler

# For one run, or for each of many.
Values = Mapping[str, Any] | Sequence[Mapping[str, Any]]

T = TypeVar("T")


class Rows:
    """What a statement has found or changed: of SQLAlchemy's results what is used here."""

    def __init__(self, rows: list[Any], names: Sequence[str] = (), rowcount: int = -1) -> None:
        self._rows = rows
        self._names = names
        self.rowcount = rowcount

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def all(self) -> list[Any]:
        return self._rows

    def first(self) -> Any:
        return self._rows[0] if self._rows else None

    def one(self) -> Any:
        (row,) = self._rows
        return row

    def scalar(self) -> Any:
        return self._rows[0][0] if self._rows else None

    def scalar_one(self) -> Any:
        return self.one()[0]

    def scalars(self) -> "Rows":
        return Rows([row[0] for row in self._rows])

    def mappings(self) -> "Rows":
        return Rows([dict(zip(self._names, row, strict=True)) for row in self._rows])


class _Text:
    """One statement."""

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
    """The statements of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        # By the statement itself, and by the names of its values: those of an INSERT are its columns.
        self._known: WeakKeyDictionary[Executable, dict[tuple[object, ...], _Text | None]] = WeakKeyDictionary()

    def of(self, statement: Executable, values: Values) -> _Text | None:
        """None if it has no text that stays the same, as where a list of values is expanded."""
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

    def _compiled(self, statement: Executable, names: tuple[str, ...], many: bool) -> _Text | None:
        compile_ = cast(Any, statement).compile
        compiled: SQLCompiler = compile_(dialect=self._dialect, column_keys=list(names), for_executemany=many)
        changes = compiled.literal_execute_params or compiled.post_compile_params
        computes = compiled.insert_prefetch or compiled.update_prefetch
        return None if changes or computes else _Text(compiled)


@cache
def texts() -> Texts:
    """Those of this process: a statement is compiled once, however many databases it is for."""
    from sqlalchemy.dialects import sqlite  # which servers on MySQL need not load

    return Texts(sqlite.dialect(dbapi=sqlite3))


class Statements:
    """The part of an `AsyncConnection` that transactions use: nothing in it waits."""

    def __init__(self, engine: Engine, pooled: PoolProxiedConnection, texts: Texts) -> None:
        self.dialect = engine.dialect
        self._engine = engine
        self._pooled = pooled
        self.texts = texts
        self.driver = cast(sqlite3.Connection, pooled.dbapi_connection)

    async def execute(self, statement: Executable, values: Values | None = None) -> Any:
        text = self.texts.of(statement, values) if values else None
        return self._plain.execute(statement, values) if text is None else text.run(self.driver, values or {})

    @property
    def info(self) -> dict[Any, Any]:
        """What is noted of the driver's connection, as long as there is one."""
        return self._pooled.info

    async def run_sync(self, work: Callable[..., T], *arguments: Any) -> T:
        return work(self._plain, *arguments)

    def run(self, text: str) -> None:
        """What begins or ends a transaction. Raises DBAPIError."""
        try:
            self.driver.execute(text)
        except sqlite3.Error as error:
            raise wrapped(error, text) from error

    @property
    def in_transaction(self) -> bool:
        return self.driver.in_transaction

    @cached_property
    def _plain(self) -> Connection:
        """SQLAlchemy's own, in the transaction that is under way: it neither begins nor ends one."""
        plain = Connection(self._engine, self._pooled)
        plain.begin()
        return plain

    def close(self) -> None:
        """What has not been committed is rolled back."""
        if "_plain" in vars(self):
            self._plain.close()
        else:
            self._pooled.close()


def wrapped(error: sqlite3.Error, text: str | None) -> BaseException:
    """The error as SQLAlchemy raises it; without the values, which do not belong into logs."""
    return DBAPIError.instance(text, None, error, sqlite3.Error, hide_parameters=True)
