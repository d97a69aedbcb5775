"""What a database is told: its statements, and how its transactions end."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import AsyncMock, patch

from sqlalchemy import event, text

from uploader.database.engine import Connection, Database
from uploader.service.revocations import Revocations


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """Every statement that is sent meanwhile; COMMIT and ROLLBACK stand where a transaction ends. Nobody looks for
    revocations, as processes do once a second."""
    sent: list[str] = []
    told = _told_by_sqlite if database.engine.dialect.name == "sqlite" else _told_by_sqlalchemy
    with told(database.engine.sync_engine, sent), patch.object(Revocations, "_look", AsyncMock()):
        yield sent


@contextmanager
def _watching(engine: Any, watch: Callable[[Any], None], leave: Callable[[Any], None]) -> Iterator[None]:
    """Have each connection of a SQLite that is taken meanwhile watched."""
    watched = set()

    def begin(connection: Any, *_: Any) -> None:
        watched.add(connection)
        watch(connection)

    event.listen(engine, "checkout", begin)
    try:
        yield
    finally:
        event.remove(engine, "checkout", begin)
        for connection in watched:
            with suppress(sqlite3.ProgrammingError):  # closed
                leave(connection)


def _told_by_sqlite(engine: Any, sent: list[str]) -> AbstractContextManager[None]:
    """Whoever runs them: SQLite itself says what it is about to run."""
    return _watching(
        engine, lambda each: each.set_trace_callback(sent.append), lambda each: each.set_trace_callback(None)
    )


@contextmanager
def _told_by_sqlalchemy(engine: Any, sent: list[str]) -> Iterator[None]:
    listeners: dict[str, Callable[..., None]] = {
        "before_cursor_execute": lambda _connection, _cursor, statement, *_: sent.append(statement),
        "commit": lambda _connection: sent.append("COMMIT"),
        "rollback": lambda _connection: sent.append("ROLLBACK"),
    }
    for name, listener in listeners.items():
        event.listen(engine, name, listener)
    try:
        yield
    finally:
        for name, listener in listeners.items():
            event.remove(engine, name, listener)


@dataclass
class Steps:
    """How many instructions SQLite has run, to the ten."""

    count: int = 0

    def add(self) -> None:
        self.count += 10


@contextmanager
def sqlite_steps(database: Database) -> Iterator[Steps]:
    """The work of a SQLite meanwhile, which is the same each time it is asked the same of the same rows."""
    steps = Steps()

    def watch(connection: Any) -> None:
        connection.set_progress_handler(steps.add, 10)

    with _watching(database.engine.sync_engine, watch, lambda each: each.set_progress_handler(None, 10)):
        yield steps


async def rows_read(connection: Connection) -> int:
    """By this connection so far, as its server counts them; SQLite counts none."""
    if connection.dialect.name == "sqlite":
        return 0
    status = await connection.execute(text("SHOW SESSION STATUS LIKE 'Handler_read%'"))
    return sum(int(count) for _, count in status)
