"""SQLite by aiosqlite with one hop to its thread and back for each statement, where a cursor of its own takes four."""

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

import aiosqlite


def connect(*arguments: Any, **options: Any) -> "_Connection":
    """As `aiosqlite.connect`; for SQLAlchemy's `async_creator_fn`."""
    (database,) = arguments
    connection = _Connection(partial(sqlite3.connect, database, **options), iter_chunk_size=64)
    connection._thread.daemon = True  # as SQLAlchemy has it with a connection that it makes
    return connection


class _Connection(aiosqlite.Connection):
    def cursor(self) -> "_Cursor":  # type: ignore[override]
        return _Cursor(self)

    async def run(self, verb: str, operation: str, parameters: Any) -> tuple[list[Any], Any, int, int | None]:
        """The rows of a statement, and what its cursor tells."""
        done: tuple[list[Any], Any, int, int | None] = await self._execute(  # type: ignore[no-untyped-call]
            _run, self._conn, verb, operation, parameters
        )
        return done


def _run(connection: sqlite3.Connection, verb: str, operation: str, parameters: Any) -> Any:
    cursor = connection.cursor()
    try:
        getattr(cursor, verb)(operation, parameters)
        rows = cursor.fetchall() if cursor.description else []
        return rows, cursor.description, cursor.rowcount, cursor.lastrowid
    finally:
        cursor.close()


class _Cursor:
    """What SQLAlchemy asks of a cursor that does not stream."""

    arraysize = 1

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._rows: list[Any] = []
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None

    async def __aenter__(self) -> "_Cursor":
        return self

    async def execute(self, operation: str, parameters: Any = ()) -> None:
        await self._do("execute", operation, parameters)

    async def executemany(self, operation: str, parameters: Any) -> None:
        await self._do("executemany", operation, parameters)

    async def _do(self, verb: str, operation: str, parameters: Any) -> None:
        done = await self._connection.run(verb, operation, parameters)
        self._rows, self.description, self.rowcount, self.lastrowid = done

    async def fetchall(self) -> Sequence[Any]:
        rows, self._rows = self._rows, []
        return rows

    async def close(self) -> None:
        """It was closed with its statement."""
