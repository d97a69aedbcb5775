"""Brings a database to the schema of this version, and checks the schema of a database. Refuses to take a foreign table for
its own.

The migrations lie at the top level of a checkout, and inside the package of an installed wheel. Each statement of a
migration may run again: MySQL and MariaDB commit with every change of the schema, so a kill leaves a migration half done,
and the next start runs the migration from its beginning. MySQL has no `IF NOT EXISTS` for an index. Therefore each function
here first looks for the result of an earlier run.

With MySQL and MariaDB the server goes on serving (decision 0052): a statement changes the rows of a range, and each change
is a transaction of its own. A change that waits for another transaction is tried again until success.

A migration is `compatible` if programs that know only the revision before may go on with its result. These programs lack the
file of the migration, so a fact in the database tells them.
"""

import asyncio
import logging
import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Connection, delete, insert, inspect, text
from sqlalchemy.exc import DBAPIError, NoSuchTableError
from sqlalchemy.types import TypeEngine

import uploader
from uploader.database import models
from uploader.database.connection import AsyncConnection
from uploader.database.engine import Database, is_retried
from uploader.database.meta import fact
from uploader.database.secret import REWRITE, rewrite
from uploader.domain.secret import Secret
from uploader.errors import ConfigurationError, SchemaBehind
from uploader.runtime.crashpoints import crash_point

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

logger = logging.getLogger(__name__)

# Rows that are changed in one transaction.
RANGE_ROWS = 1000
# Seconds for requests that have waited behind a change of the schema.
_PAUSE_SECONDS = 1
# A fact: the head revision of the oldest program that may serve with this schema.
_OLDEST = "oldest program"
# The prefixes of this program's indexes. Other indexes may be an operator's own.
_OUR_INDEXES = ("ix_", "uq_")
# The first revision that may leave something to rewrite.
_REWRITES = "0021"


def migrations_directory() -> Path:
    package = Path(uploader.__file__).parent
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def head_revision() -> str:
    """Return the newest revision that this program knows."""
    return _newest_in(migrations_directory())


@cache  # an upgrade may replace the files while this program runs
def _newest_in(directory: Path) -> str:
    """Return the newest revision. The names of the files begin with their revisions, in order."""
    return max(path.stem.split("_")[0] for path in (directory / "versions").glob("[0-9]*.py"))


@dataclass(frozen=True, slots=True)
class Schema:
    """`revision`: the revision of a database; None if it is empty. `oldest`: the head revision of the oldest program that
    may serve with this schema. A migration raises this value before it begins."""

    revision: str | None
    oldest: str

    @property
    def is_behind(self) -> bool:
        return (self.revision or "") < head_revision()

    @property
    def is_ahead(self) -> bool:
        return (self.revision or "") > head_revision()

    def refuse_newer(self) -> None:
        """Raises ConfigurationError unless this program may serve with the schema, perhaps after a migration."""
        head = head_revision()
        if self.oldest > head:
            at = f"at revision {self.revision}" if self.is_ahead else f"on its way to revision {self.oldest}"
            raise ConfigurationError(
                f"the database is {at}, newer than this version's {head}: install the newer version"
            )


async def schema_of(database: Database) -> Schema:
    """Raises Unavailable."""
    return await database.read(_schema)


async def _schema(connection: AsyncConnection) -> Schema:
    _refuse_old_server(connection)
    tables = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
    if "alembic_version" not in tables:
        return Schema(None, "")
    revision: str | None = (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar()
    oldest = await fact(connection, _OLDEST) if models.meta.name in tables else None
    # Without that fact a program has to know this revision.
    return Schema(revision, oldest or revision or "")


def _refuse_old_server(connection: AsyncConnection) -> None:
    """Raises ConfigurationError for a server that is too old for the statements, such as JSON_TABLE."""
    dialect: Any = connection.dialect
    if dialect.name == "sqlite":
        return
    product, needed = ("MariaDB", (10, 6)) if dialect.is_mariadb else ("MySQL", (8, 0, 16))
    version = [part for part in dialect.server_version_info if isinstance(part, int)]
    if tuple(version) < needed:
        is_there, least = (".".join(map(str, parts)) for parts in (version, needed))
        raise ConfigurationError(
            f"UPLOADER_DATABASE_URL: this is {product} {is_there}; {product} {least} or newer is needed"
        )


async def current_revision(database: Database) -> str | None:
    """Return the revision of the database; None if it is empty. Raises Unavailable."""
    return (await schema_of(database)).revision


async def check(database: Database) -> None:
    """Raises ConfigurationError unless the database has the schema of this version or a newer compatible one, Unavailable if
    the database is away."""
    schema = await schema_of(database)
    schema.refuse_newer()
    if schema.is_behind:
        raise SchemaBehind(
            f"the database is at revision {schema.revision or 'none'}, not {head_revision()}: run `uploader db upgrade`"
        )


async def upgrade(database: Database, revision: str = "head", secret: Secret | None = None) -> None:
    """Migrate to `revision`. A newer compatible schema stays as it is. Two migrations wait for each other. `secret`: the
    installation's secret, which a database of a version before 0.3.0 needs. Raises ConfigurationError, Unavailable."""
    schema = await schema_of(database)
    schema.refuse_newer()
    is_done = not schema.is_behind and revision == "head"
    if is_done and (schema.is_ahead or database.engine.dialect.name == "sqlite"):  # SQLite's migrations are atomic
        await _rewrite(database)
        return
    await database.transact(_migrate, "upgrade", revision, secret)
    await _rewrite(database)


async def _rewrite(database: Database) -> None:
    """Rewrite a SQLite whose free pages still hold the values from before a migration. Raises ConfigurationError,
    Unavailable."""
    path = database.engine.url.database
    if database.engine.dialect.name != "sqlite" or path in (None, "", ":memory:"):
        return
    schema = await schema_of(database)
    if (schema.revision or "") < _REWRITES or await database.read(fact, REWRITE) is None:
        return
    try:
        is_done = await asyncio.to_thread(rewrite, Path(path))
    except sqlite3.Error as error:
        raise ConfigurationError(f"the database {path} can't be rewritten, as the upgrade needs: {error}") from error
    if not is_done:
        logger.warning("the database is in use, and is rewritten at the next start", extra={"path": path})


async def downgrade(database: Database, revision: str) -> None:
    """Migrate down to `revision`; `base` is an empty database. After an interruption, run this again. Raises
    ConfigurationError, Unavailable."""
    await database.transact(_migrate, "downgrade", revision, None)


async def _migrate(connection: AsyncConnection, direction: str, revision: str, secret: Secret | None) -> None:
    await connection.run_sync(_run_alembic, direction, revision, secret)


def _run_alembic(connection: Connection, direction: str, revision: str, secret: Secret | None) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(migrations_directory()).replace("%", "%%"))
    config.attributes["connection"], config.attributes["secret"] = connection, secret
    # MySQL ignores alembic's name for the primary key, and the driver warns of that.
    logging.getLogger("asyncmy").setLevel(logging.ERROR)
    # MySQL commits with every DDL statement, so a named lock keeps a second migration out. For SQLite the transaction does.
    locks = connection.dialect.name != "sqlite"
    if locks:
        _take_lock(connection)
    scripts = ScriptDirectory.from_config(config)
    try:
        if direction == "upgrade":
            _note_oldest(connection, scripts, revision)
            if locks:
                # Older programs have to know before an unknown table exists.
                connection.exec_driver_sql("COMMIT")
        getattr(command, direction)(config, revision)
        _note_oldest(connection, scripts, revision)
        if (direction, revision) == ("upgrade", "head"):
            _refuse_gaps(connection)
        if locks:
            # Commit the revision while the lock is held: the next holder goes on from there.
            connection.exec_driver_sql("COMMIT")
    except NoSuchTableError as error:
        raise _lacking([str(error)]) from error
    except DBAPIError as error:
        if connection.invalidated or is_retried(error):
            raise  # the engine handles these errors
        raise ConfigurationError(f"the database refuses a migration: {error.orig}") from error
    finally:
        # The lock is lost with the connection.
        if locks and not connection.invalidated:
            connection.execute(text("SELECT RELEASE_LOCK('uploader_migrate')"))


def _take_lock(connection: Connection) -> None:
    """Wait until no other migration runs, and set the timeouts of the session. A change of the schema waits for a
    transaction no longer than for a row, because all requests on the table wait behind the change. A statement may take any
    time."""
    is_mariadb = getattr(connection.dialect, "is_mariadb", False)
    unlimited = "max_statement_time" if is_mariadb else "max_execution_time"
    waits = f"SET SESSION lock_wait_timeout = @@innodb_lock_wait_timeout, {unlimited} = 0"
    connection.exec_driver_sql(waits)
    driver: Any = connection.connection.driver_connection
    driver._read_timeout = None  # a server that hangs shows by a missing hello
    is_told = False
    while connection.exec_driver_sql("SELECT GET_LOCK('uploader_migrate', @@innodb_lock_wait_timeout)").scalar() != 1:
        if not is_told:
            logger.warning("another migration is running, and this one waits for its end")
        is_told = True


def _note_oldest(connection: Connection, scripts: "ScriptDirectory", revision: str) -> None:
    """Note which programs may serve with the schema of this revision: programs that know the latest incompatible migration
    up to here. An empty database has no table for this fact."""
    if not inspect(connection).has_table(models.meta.name):
        return
    passed = scripts.iterate_revisions(revision, "base")
    oldest = next(each.revision for each in passed if not getattr(each.module, "compatible", False))
    connection.execute(delete(models.meta).where(models.meta.c.name == _OLDEST))
    connection.execute(insert(models.meta).values(name=_OLDEST, value=oldest))


def _refuse_gaps(connection: Connection) -> None:
    """Raises ConfigurationError if tables, columns or indexes are missing, or an index of an older version is left. A
    migration down has many statements, and changes the revision after them, so an interruption leaves such gaps."""
    inspector, gaps, leftover = inspect(connection), list[str](), list[str]()
    for table in models.metadata.sorted_tables:
        if not inspector.has_table(table.name):
            gaps.append(table.name)
            continue
        there = {column["name"] for column in inspector.get_columns(table.name)}
        indexes = {str(index["name"]) for index in inspector.get_indexes(table.name)}
        known = {str(index.name) for index in table.indexes} | {str(each.name) for each in table.constraints}
        wanted = [*(column.name for column in table.columns), *(str(index.name) for index in table.indexes)]
        gaps += [f"{table.name}.{name}" for name in wanted if name not in there | indexes]
        leftover += [f"{table.name}.{name}" for name in indexes - known if name.startswith(_OUR_INDEXES)]
    if gaps:
        raise _lacking(gaps)
    if leftover:
        raise _unfinished(f"has {', '.join(sorted(leftover))} of an older version")


def _lacking(gaps: list[str]) -> ConfigurationError:
    return _unfinished(f"lacks {', '.join(gaps)}")


def _unfinished(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"the database {what}: end the migration down that was interrupted, or restore the backup"
    )


def commit(connection: Connection) -> None:
    """Commit on MySQL and MariaDB, where each change of the schema commits as well."""
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql("COMMIT")


def _operations() -> Any:
    """Return alembic's operations. The import is here, because most starts migrate nothing."""
    from alembic import op

    return op


def connection() -> Connection:
    bind: Connection = _operations().get_bind()
    return bind


def secret_in_force() -> Secret | None:
    from alembic import context

    found: Secret | None = context.config.attributes.get("secret")
    return found


def create_table(name: str, *items: Any) -> None:
    """Create a table unless it exists. Raises ConfigurationError if a table of this name has other columns."""
    found = columns(name)
    if not found:
        change(_operations().create_table, name, *items, mysql_engine="InnoDB")
        return
    wanted = {item.name for item in items if isinstance(item, Column)}
    if found != wanted:
        raise ConfigurationError(
            f"the database has a table `{name}` that is not this program's: give it a database of its own"
        )


def drop_table(name: str) -> None:
    if columns(name):
        change(_operations().drop_table, name)


def columns(table: str) -> set[str]:
    """Return the names of the columns; none if there is no such table."""
    return {column["name"] for column in _columns(table)}


def _columns(table: str) -> list[Any]:
    inspector = inspect(_operations().get_bind())
    return inspector.get_columns(table) if inspector.has_table(table) else []


def create_index(name: str, table: str, *column_names: str, unique: bool = False) -> None:
    if name not in _indexes(table):
        change(_operations().create_index, name, table, column_names, unique=unique)


def drop_index(name: str, table: str) -> None:
    """Drop an index, unless the index or its table is gone."""
    if columns(table) and name in _indexes(table):
        change(_operations().drop_index, name, table)


def add_column(table: str, column: Column[Any]) -> None:
    """Add a column unless it exists. Raises NoSuchTableError."""
    found = columns(table)
    if not found:
        raise NoSuchTableError(table)
    if column.name not in found:
        change(_operations().add_column, table, column)


def drop_column(table: str, name: str) -> None:
    """Drop a column, unless the column or its table is gone."""
    if name in columns(table):
        change(_operations().drop_column, table, name)


def set_nullable(table: str, column: str, kind: TypeEngine[Any], *, nullable: bool) -> None:
    """Let a column be NULL or not, unless this is done. If not, its NULLs become empty texts first."""
    found = [each for each in _columns(table) if each["name"] == column and each["nullable"] is not nullable]
    if not found:
        return
    if not nullable:
        change_in_ranges(table, f"UPDATE `{table}` SET {column} = '' WHERE {{range}} AND {column} IS NULL")  # noqa: S608 (a migration's own word)
    if _operations().get_bind().dialect.name == "sqlite":
        change(_make_anew, table, column, nullable=nullable)
    else:
        change(_operations().alter_column, table, column, existing_type=kind, nullable=nullable)


def _make_anew(table: str, column: str, *, nullable: bool) -> None:
    """Rebuild a table of SQLite, which can't change a column (https://sqlite.org/lang_altertable.html, section 7). The new
    table comes from the SQL text of the old one, because nothing else has its unnamed checks."""
    (made_by,) = _texts(table, "table")
    rule = "" if nullable else " NOT NULL"
    _make_of(table, re.sub(rf"(\b{column} \w+(\(\d+\))?)( NOT NULL)?", rf"\1{rule}", made_by, count=1))


def _make_of(table: str, text_of_table: str) -> None:
    indexes = _texts(table, "index")
    made_anew = re.sub(rf'^CREATE TABLE "?{table}"?', f"CREATE TABLE {table}_new", text_of_table)
    copy = f"INSERT INTO {table}_new SELECT * FROM {table}"  # noqa: S608 (a migration's own word)
    for statement in (made_anew, copy, f"DROP TABLE {table}", f"ALTER TABLE {table}_new RENAME TO {table}", *indexes):
        _operations().execute(text(statement))


def drop_unique(table: str, name: str) -> None:
    """Drop a unique constraint by name, unless there is none. SQLite's table is rebuilt from its SQL text without the
    constraint."""
    if _operations().get_bind().dialect.name != "sqlite":
        drop_index(name, table)
        return
    made_by = _texts(table, "table")
    without = [re.sub(rf",\s*CONSTRAINT {name} UNIQUE \([^)]*\)", "", text) for text in made_by]
    if without != made_by:
        change(_make_of, table, *without)


def add_unique(table: str, name: str, *column_names: str) -> None:
    """Restore a unique constraint that `drop_unique` dropped, as the last item in the SQL text of a SQLite table."""
    if _operations().get_bind().dialect.name != "sqlite":
        create_index(name, table, *column_names, unique=True)
        return
    rule = f"CONSTRAINT {name} UNIQUE ({', '.join(column_names)})"
    for made_by in _texts(table, "table"):
        if rule not in made_by:
            change(_make_of, table, f"{made_by.rstrip().removesuffix(')').rstrip()}, {rule})")


def change_rows(statement: Any, values: list[dict[str, Any]]) -> None:
    change(connection().execute, statement, values)


def change_in_ranges(table: str, statement: str) -> None:
    """Execute an UPDATE or DELETE for all rows of a table, one range after the other. `{range}` in the statement becomes the
    condition for a range."""
    bind = connection()
    key = inspect(bind).get_pk_constraint(table)["constrained_columns"][0]
    beyond = f"FROM `{table}` WHERE {key} > :after ORDER BY {key} LIMIT {RANGE_ROWS}"
    last_of_range = text(f"SELECT MAX({key}) FROM (SELECT {key} {beyond}) AS some")  # noqa: S608 (a migration's own word)
    act, after = text(statement.format(range=f"`{table}`.{key} > :after AND `{table}`.{key} <= :last")), b""
    while (last := bind.execute(last_of_range, {"after": after}).scalar()) is not None:
        change(bind.execute, act, {"after": after, "last": last})
        after = last


def _texts(table: str, kind: str) -> list[str]:
    query = text("SELECT sql FROM sqlite_master WHERE tbl_name = :table AND type = :kind AND sql IS NOT NULL")
    return list(_operations().get_bind().execute(query, {"table": table, "kind": kind}).scalars())


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in inspect(_operations().get_bind()).get_indexes(table)}


def change(statement: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Call `statement` with these arguments. On MySQL and MariaDB this is a transaction of its own, tried again as long as
    other transactions hold its locks."""
    bind, is_told = connection(), False
    while True:
        commit(bind)
        try:
            statement(*arguments, **options)
            commit(bind)
            break
        except DBAPIError as error:
            if error.connection_invalidated or not is_retried(error):
                raise
            bind.exec_driver_sql("ROLLBACK")
            if not is_told:
                logger.warning("the migration waits for a transaction of somebody else: %s", error.orig)
            is_told = True
            bind.exec_driver_sql(
                f"DO SLEEP({_PAUSE_SECONDS})"
            )  # sleep on the server: here it would stop the event loop
    crash_point("migrate.after_statement")
