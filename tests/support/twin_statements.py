"""Each statement that is run as text is run by SQLAlchemy before it, too, and what they find, change and raise compared."""

import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Executable, Select
from sqlalchemy.exc import DBAPIError

from uploader.database import models, sqlite
from uploader.database.sqlite import Statements, Values


class TwinStatements(Statements):
    """What the first one did is undone for the second one."""

    compared: list[Executable]

    async def execute(self, statement: Executable, values: Values | None = None) -> Any:
        if not values or self.texts.of(statement, values) is None:
            return await super().execute(statement, values)
        plain = await self.run_sync(lambda connection: connection)

        async def by_sqlalchemy() -> Any:
            return plain.execute(statement, values)

        async def as_text() -> Any:
            return await super(TwinStatements, self).execute(statement, values)

        self.run("SAVEPOINT twin")
        expected, _ = await _outcome(plain, statement, by_sqlalchemy)
        self.run("ROLLBACK TO twin")
        found, result = await _outcome(plain, statement, as_text)
        self.run("RELEASE twin")
        assert found == expected
        self.compared.append(statement)
        if isinstance(result, Exception):
            raise result
        return result


def compare_statements(monkeypatch: pytest.MonkeyPatch) -> list[Executable]:
    """From now on, of all that a SQLite is asked. Returns those that were compared."""
    compared: list[Executable] = []
    monkeypatch.setattr(TwinStatements, "compared", compared, raising=False)
    monkeypatch.setattr(sqlite, "Statements", TwinStatements)
    return compared


async def _outcome(plain: Connection, statement: Executable, run: Callable[[], Awaitable[Any]]) -> tuple[Any, Any]:
    """What to compare, and the result. It is all that was found; or how many rows were changed, and all rows there are
    then; or the error."""
    try:
        result = await run()
    except DBAPIError as error:
        original = error.orig
        assert isinstance(original, sqlite3.Error)
        return (type(error), error.statement, type(original), original.args, original.sqlite_errorcode), error
    if isinstance(statement, Select):
        return [[(name, type(value), value) for name, value in row.items()] for row in result.mappings()], result
    rows = [plain.execute(table.select()).all() for table in models.metadata.sorted_tables]
    return (result.rowcount, rows), result
