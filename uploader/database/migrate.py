"""Brings a database to the schema of this version, and tells whether it is there. Refuses to take somebody else's table
for its own.

The migrations lie at the top level of a checkout and inside the package of an installed wheel. Each of their statements
may be run again: MySQL and MariaDB commit with every statement that changes the schema, so a kill leaves a migration
half done, and the next start runs it from its beginning. MySQL has no `IF NOT EXISTS` for an index. So each function
looks first whether its work is done.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alembic import op
from sqlalchemy import Column, Connection, inspect, text
from sqlalchemy.exc import DBAPIError, NoSuchTableError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

import uploader
from uploader.crashpoints import crash_point
from uploader.database import models
from uploader.database.engine import Database, is_retried
from uploader.errors import ConfigurationError, Unavailable

_LOCK_TIMEOUT_SECONDS = 120


def migrations_directory() -> Path:
    package = Path(uploader.__file__).parent
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def head_revision() -> str:
    """Return the newest revision: the files are named by their revisions, in order."""
    return max(path.stem.split("_")[0] for path in (migrations_directory() / "versions").glob("[0-9]*.py"))


async def current_revision(database: Database) -> str | None:
    """Return the revision that the database is at, or None if it is empty. Raises Unavailable."""
    return await database.read(_current_revision)


async def _current_revision(connection: AsyncConnection) -> str | None:
    if not await connection.run_sync(lambda sync: inspect(sync).has_table("alembic_version")):
        return None
    revision: str | None = (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar()
    return revision


async def check(database: Database) -> None:
    """Raises ConfigurationError if the database is not at this version's schema, Unavailable if it is away."""
    current, head = await current_revision(database), head_revision()
    _refuse_newer(current, head)
    if current != head:
        raise ConfigurationError(
            f"the database is at revision {current or 'none'}, not {head}: run `uploader db upgrade`"
        )


def _refuse_newer(current: str | None, head: str) -> None:
    if current is not None and current > head:
        raise ConfigurationError(
            f"the database is at revision {current}, newer than this version's {head}: install the newer version"
        )


async def upgrade(database: Database, revision: str = "head") -> None:
    """Migrate to `revision`. Two at once wait for each other. Raises ConfigurationError, Unavailable."""
    current, head = await current_revision(database), head_revision()
    if current == head and revision == "head" and database.engine.dialect.name == "sqlite":
        return  # its migrations are whole or not at all
    _refuse_newer(current, head)
    await database.transact(_migrate, "upgrade", revision)


async def downgrade(database: Database, revision: str) -> None:
    """Migrate down to `revision`; `base` is an empty database. One that was interrupted has to be run again. Raises
    ConfigurationError, Unavailable."""
    await database.transact(_migrate, "downgrade", revision)


async def _migrate(connection: AsyncConnection, direction: str, revision: str) -> None:
    await connection.run_sync(_run_alembic, direction, revision)


def _run_alembic(connection: Connection, direction: str, revision: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_directory()).replace("%", "%%"))
    config.attributes["connection"] = connection
    # MySQL ignores the name that alembic gives its primary key, and the driver makes a warning of that.
    logging.getLogger("asyncmy").setLevel(logging.ERROR)
    # MySQL commits with every DDL statement, so a lock of its own keeps a second migration out; SQLite's transaction does.
    locks = connection.dialect.name != "sqlite"
    if locks:
        wait = text("SELECT GET_LOCK('uploader_migrate', :seconds)")
        if connection.execute(wait, {"seconds": _LOCK_TIMEOUT_SECONDS}).scalar() != 1:
            raise Unavailable("Another migration is running.")
    try:
        getattr(command, direction)(config, revision)
        if (direction, revision) == ("upgrade", "head"):
            _refuse_gaps(connection)
        if locks:
            # The revision, too, while the lock is held: who gets it next goes on from there.
            connection.exec_driver_sql("COMMIT")
    except NoSuchTableError as error:
        raise _lacking([str(error)]) from error
    except DBAPIError as error:
        if connection.invalidated or is_retried(error):
            raise  # the engine knows what to do
        raise ConfigurationError(f"the database refuses a migration: {error.orig}") from error
    finally:
        # With the connection the lock is lost.
        if locks and not connection.invalidated:
            connection.execute(text("SELECT RELEASE_LOCK('uploader_migrate')"))


def _refuse_gaps(connection: Connection) -> None:
    """Raises ConfigurationError if tables, columns or indexes are missing: going down is many statements, and the revision
    changes after them."""
    inspector, gaps = inspect(connection), []
    for table in models.metadata.sorted_tables:
        if not inspector.has_table(table.name):
            gaps.append(table.name)
            continue
        there = {column["name"] for column in inspector.get_columns(table.name)}
        there |= {str(index["name"]) for index in inspector.get_indexes(table.name)}
        wanted = [*(column.name for column in table.columns), *(str(index.name) for index in table.indexes)]
        gaps += [f"{table.name}.{name}" for name in wanted if name not in there]
    if gaps:
        raise _lacking(gaps)


def _lacking(gaps: list[str]) -> ConfigurationError:
    return ConfigurationError(
        f"the database lacks {', '.join(gaps)}: end the migration down that was interrupted, or restore the backup"
    )


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
    if columns(name):
        _change(op.drop_table, name)


def columns(table: str) -> set[str]:
    """Return no names if there is no such table."""
    return {column["name"] for column in _columns(table)}


def _columns(table: str) -> list[Any]:
    inspector = inspect(op.get_bind())
    return inspector.get_columns(table) if inspector.has_table(table) else []


def create_index(name: str, table: str, *column_names: str) -> None:
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
    renamed = re.sub(rf'^CREATE TABLE "?{table}"?', f"CREATE TABLE {table}_new", made_by)
    rule = "" if nullable else " NOT NULL"
    made_anew = re.sub(rf"(\b{column} \w+(\(\d+\))?)( NOT NULL)?", rf"\1{rule}", renamed, count=1)
    copy = f"INSERT INTO {table}_new SELECT * FROM {table}"  # noqa: S608 (a migration's own word)
    for statement in (made_anew, copy, f"DROP TABLE {table}", f"ALTER TABLE {table}_new RENAME TO {table}", *indexes):
        op.execute(text(statement))


def _texts(table: str, kind: str) -> list[str]:
    query = text("SELECT sql FROM sqlite_master WHERE tbl_name = :table AND type = :kind AND sql IS NOT NULL")
    return list(op.get_bind().execute(query, {"table": table, "kind": kind}).scalars())


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in inspect(op.get_bind()).get_indexes(table)}


def _change(statement: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    statement(*arguments, **options)
    crash_point("migrate.after_statement")
