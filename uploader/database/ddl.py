"""The statements of migrations, each of which may be run again.

MySQL and MariaDB commit with every statement that changes the schema, so a kill leaves a migration half done, and the next
start runs it from its beginning. MySQL has no `IF NOT EXISTS` for an index. So each function looks first whether its work is
done. Refuses to take somebody else's table for its own.
"""

from collections.abc import Callable
from typing import Any

from alembic import op
from sqlalchemy import Column, inspect

from uploader.crashpoints import crash_point
from uploader.errors import ConfigurationError


def create_table(name: str, *items: Any) -> None:
    """Create a table unless it is there. Raises ConfigurationError if one of other columns has its name."""
    found = columns(name)
    if not found:
        _change(op.create_table, name, *items, mysql_engine="InnoDB")
        return
    wanted = {item.name for item in items if isinstance(item, Column)}
    if found != wanted:
        raise ConfigurationError(
            f"the database has a table `{name}` that is not this program's: give it a database of its own"
        )


def drop_table(name: str) -> None:
    """Drop a table unless it has gone."""
    if columns(name):
        _change(op.drop_table, name)


def columns(table: str) -> set[str]:
    """The names of a table's columns; none if it is not there."""
    inspector = inspect(op.get_bind())
    return {column["name"] for column in inspector.get_columns(table)} if inspector.has_table(table) else set()


def create_index(name: str, table: str, *column_names: str) -> None:
    """Create an index unless it is there."""
    if name not in _indexes(table):
        _change(op.create_index, name, table, column_names)


def drop_index(name: str, table: str) -> None:
    """Drop an index unless it has gone, perhaps with its table."""
    if columns(table) and name in _indexes(table):
        _change(op.drop_index, name, table)


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in inspect(op.get_bind()).get_indexes(table)}


def _change(statement: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    statement(*arguments, **options)
    crash_point("migrate.after_statement")
