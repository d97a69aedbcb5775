"""The statements of migrations, each of which may be run again.

MySQL and MariaDB commit with every statement that changes the schema, so a kill leaves a migration half done, and the next
start runs it from its beginning. MySQL has no `IF NOT EXISTS` for an index. So each function looks first whether its work is
done. Refuses to take somebody else's table for its own.
"""

import re
from collections.abc import Callable
from typing import Any

from alembic import op
from sqlalchemy import Column, inspect, text
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.types import TypeEngine

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
    return {column["name"] for column in _columns(table)}


def _columns(table: str) -> list[Any]:
    inspector = inspect(op.get_bind())
    return inspector.get_columns(table) if inspector.has_table(table) else []


def create_index(name: str, table: str, *column_names: str) -> None:
    """Create an index unless it is there."""
    if name not in _indexes(table):
        _change(op.create_index, name, table, column_names)


def drop_index(name: str, table: str) -> None:
    """Drop an index unless it has gone, perhaps with its table."""
    if columns(table) and name in _indexes(table):
        _change(op.drop_index, name, table)


def add_column(table: str, column: Column[Any]) -> None:
    """Add a column unless it is there. Raises NoSuchTableError."""
    found = columns(table)
    if not found:
        raise NoSuchTableError(table)
    if column.name not in found:
        _change(op.add_column, table, column)


def drop_column(table: str, name: str) -> None:
    """Drop a column unless it has gone, perhaps with its table."""
    if name in columns(table):
        _change(op.drop_column, table, name)


def set_nullable(table: str, column: str, kind: TypeEngine[Any], *, nullable: bool) -> None:
    """Let a column be NULL, or not; its NULLs become empty then. Unless that is done."""
    found = [each for each in _columns(table) if each["name"] == column and each["nullable"] is not nullable]
    if not found:
        return
    if not nullable:
        op.execute(text(f"UPDATE `{table}` SET {column} = '' WHERE {column} IS NULL"))  # noqa: S608 (a migration's own word)
    if op.get_bind().dialect.name == "sqlite":
        _change(_make_anew, table, column, nullable=nullable)
    else:
        _change(op.alter_column, table, column, existing_type=kind, nullable=nullable)


def _make_anew(table: str, column: str, *, nullable: bool) -> None:
    """SQLite changes no column (https://sqlite.org/lang_altertable.html, section 7). So the table is made anew, by the very
    text that made it, because its unnamed checks are told nowhere else."""
    indexes = _texts(table, "index")
    (made_by,) = _texts(table, "table")
    made_anew = _with_nullable(made_by, table, column, nullable=nullable)
    copy = f"INSERT INTO {table}_new SELECT * FROM {table}"  # noqa: S608 (a migration's own word)
    for statement in (made_anew, copy, f"DROP TABLE {table}", f"ALTER TABLE {table}_new RENAME TO {table}", *indexes):
        op.execute(text(statement))


def _texts(table: str, kind: str) -> list[str]:
    """The statements that made a table, or its indexes."""
    query = text("SELECT sql FROM sqlite_master WHERE tbl_name = :table AND type = :kind AND sql IS NOT NULL")
    return list(op.get_bind().execute(query, {"table": table, "kind": kind}).scalars())


def _with_nullable(made_by: str, table: str, column: str, *, nullable: bool) -> str:
    renamed = re.sub(rf'^CREATE TABLE "?{table}"?', f"CREATE TABLE {table}_new", made_by)
    rule = "" if nullable else " NOT NULL"
    return re.sub(rf"(\b{column} \w+(\(\d+\))?)( NOT NULL)?", rf"\1{rule}", renamed, count=1)


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in inspect(op.get_bind()).get_indexes(table)}


def _change(statement: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    statement(*arguments, **options)
    crash_point("migrate.after_statement")
