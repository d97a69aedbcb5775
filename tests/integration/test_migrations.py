"""The migrations on every kind of database: up, down, twice at once, and against the models."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Connection, Index, UniqueConstraint, insert, inspect, text
from sqlalchemy.exc import DBAPIError

from tests.support.process import run_cli
from tests.support.rows import NOW, Transactions, digests, upload_row
from uploader.database import migrate, models
from uploader.database.engine import Database, Duplicate
from uploader.errors import ConfigurationError

BYTE_COLUMNS = [
    (table.name, column.name)
    for table in models.metadata.sorted_tables
    for column in table.columns
    if any(isinstance(constraint, CheckConstraint) for constraint in column.constraints)
]


@pytest.fixture(params=["sqlite", "mariadb", "mysql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    url: str = request.getfixturevalue(f"blank_{request.param}_url")
    return url


@pytest.fixture
async def empty(empty_url: str) -> AsyncIterator[Database]:
    database = Database(empty_url, creates=True)
    yield database
    await database.close()


async def ask(database: Database, question: Any) -> Any:
    """The answer of a function of a plain connection."""
    return await database.read(lambda connection: connection.run_sync(question))


def tables_of(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


def differences(connection: Connection) -> list[Any]:
    """What alembic would change to make the database as the models say."""
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    found: list[Any] = compare_metadata(context, models.metadata)
    return found


async def test_up_makes_every_table_and_down_leaves_none(empty: Database) -> None:
    for _ in range(2):
        assert await migrate.current_revision(empty) is None
        await migrate.upgrade(empty)
        assert await migrate.current_revision(empty) == migrate.head_revision()
        assert await ask(empty, tables_of) == {"alembic_version", *models.metadata.tables}
        await migrate.check(empty)
        await migrate.downgrade(empty, "base")
        assert await ask(empty, tables_of) == {"alembic_version"}


async def test_a_token_for_the_metrics_does_not_become_one_for_everything(empty: Database) -> None:
    await migrate.upgrade(empty)
    async with empty.engine.begin() as connection:
        await connection.execute(insert(models.user_info).values(user_id="u"))
        for name, scope in (("whole", None), ("metrics", "metrics")):
            row = {"token_sha256": name, "user_id": "u", "admin": False, "created_at": NOW, "scope": scope}
            await connection.execute(insert(models.token).values(row))
    await migrate.downgrade(empty, "0011")
    async with empty.engine.connect() as connection:
        assert (await connection.execute(text("SELECT user_id, admin FROM token"))).all() == [(b"u", 0)]


async def test_the_migrated_schema_is_that_of_the_models(empty: Database) -> None:
    await migrate.upgrade(empty)
    assert await ask(empty, differences) == []


async def test_the_comparison_with_the_models_sees_a_difference(empty: Database) -> None:
    await migrate.upgrade(empty)
    async with empty.engine.begin() as connection:
        await connection.execute(text("ALTER TABLE meta ADD COLUMN extra BIGINT"))
    assert [difference[0] for difference in await ask(empty, differences)] == ["remove_column"]


async def test_the_unique_keys_and_indexes_are_there(empty: Database) -> None:
    await migrate.upgrade(empty)

    def names(connection: Connection) -> dict[str, set[tuple[str, ...]]]:
        found = {}
        for table in models.metadata.tables:
            keys = inspect(connection).get_unique_constraints(table) + inspect(connection).get_indexes(table)
            found[table] = {(str(key["name"]), *map(str, key["column_names"])) for key in keys}
        return found

    found = await ask(empty, names)
    for table in models.metadata.sorted_tables:
        keys: list[Index | UniqueConstraint] = list(table.indexes)
        keys += [constraint for constraint in table.constraints if isinstance(constraint, UniqueConstraint)]
        for key in keys:
            assert (key.name, *(column.name for column in key.columns)) in found[table.name]


def test_every_figure_is_checked_by_the_models() -> None:
    assert ("user_info", "reserved") in BYTE_COLUMNS
    assert len(BYTE_COLUMNS) == 21


@pytest.mark.parametrize(("table", "column"), BYTE_COLUMNS)
async def test_no_figure_becomes_negative(database: Database, table: str, column: str) -> None:
    rows: dict[str, dict[str, Any]] = {
        "user_info": {"user_id": "u"},
        "upload": {"id": "i", "user_id": "u", "name": "n", "state": "OPEN", "temp_path": "t"},
        "blob": {"created_at": NOW, **digests("")},
        "file": {"id": "i", "user_id": "u", "name": "n", "instant": False, "created_at": NOW, **digests("")},
        "usage_daily": {"day": NOW.date(), "taken_at": NOW},
    }
    values = rows[table] | ({"created_at": NOW, "updated_at": NOW} if table == "upload" else {})
    with pytest.raises(DBAPIError, match=r"(?i)check|constraint"):
        async with database.engine.begin() as connection:
            await connection.execute(insert(models.metadata.tables[table]).values(**values, **{column: -1}))
    async with database.engine.begin() as connection:
        await connection.execute(insert(models.metadata.tables[table]).values(**values, **{column: 2**63 - 1}))


async def test_times_come_back_in_utc_to_the_microsecond(database: Database) -> None:
    act = Transactions(database)
    await act.create_user()
    closed = await act.close(await act.open(upload_row()))
    async with database.engine.connect() as connection:
        row = (await connection.execute(models.upload.select())).mappings().one()
    assert row["id"] == closed.id
    assert (row["created_at"], row["closed_at"]) == (NOW, NOW)


async def test_a_unique_key_that_is_taken_is_a_duplicate(database: Database) -> None:
    act = Transactions(database)
    await act.create_user()
    with pytest.raises(Duplicate):
        await act.create_user()


# Twice at once, too new, from elsewhere


async def test_upgrading_several_times_at_once_is_safe(empty_url: str) -> None:
    databases = [Database(empty_url, creates=True) for _ in range(5)]
    await asyncio.gather(*(migrate.upgrade(database) for database in databases))
    for database in databases:
        await migrate.check(database)
    assert await ask(databases[0], differences) == []
    for database in databases:
        await database.close()


async def test_two_upgrade_commands_at_once_are_safe(empty_url: str, tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": empty_url}
    results = await asyncio.gather(*(asyncio.to_thread(run_cli, settings, "db", "upgrade") for _ in range(2)))
    for result in results:
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout == f"the database is at revision {migrate.head_revision()}\n"


async def test_upgrading_what_is_up_to_date_changes_nothing(database: Database) -> None:
    act = Transactions(database)
    await act.create_user("somebody")
    await migrate.upgrade(database)
    async with database.engine.connect() as connection:
        assert (await connection.execute(models.user_info.select())).mappings().one()["user_id"] == "somebody"


async def test_a_database_that_was_not_migrated_is_refused(empty: Database) -> None:
    with pytest.raises(ConfigurationError, match="run `uploader db upgrade`"):
        await migrate.check(empty)
    assert await ask(empty, tables_of) == set()


async def test_a_database_newer_than_the_code_is_refused(empty: Database) -> None:
    await migrate.upgrade(empty)
    async with empty.engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for look in (migrate.upgrade, migrate.check):
        with pytest.raises(ConfigurationError, match=r"9999, newer than this version's .*: install the newer version"):
            await look(empty)
    assert await migrate.current_revision(empty) == "9999"


async def test_the_command_upgrades_from_any_directory(empty_url: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": empty_url}
    for _ in range(2):
        result = await asyncio.to_thread(run_cli, settings, "db", "upgrade", cwd=elsewhere)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout == f"the database is at revision {migrate.head_revision()}\n"
    database = Database(empty_url, creates=True)
    await migrate.check(database)
    await database.close()
    assert list(elsewhere.iterdir()) == []


async def test_the_command_makes_the_embedded_database(tmp_path: Path) -> None:
    result = await asyncio.to_thread(run_cli, {"DATA": str(tmp_path / "data")}, "db", "upgrade", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    database = Database(f"sqlite:///{tmp_path / 'data' / 'uploader.db'}")
    await migrate.check(database)
    await database.close()


async def test_the_command_says_in_one_line_that_the_database_is_too_new(empty_url: str, tmp_path: Path) -> None:
    database = Database(empty_url, creates=True)
    await migrate.upgrade(database)
    async with database.engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await database.close()
    for file in tmp_path.glob("empty.db"):
        file.chmod(0o600)  # as our commands make it
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": empty_url}
    head = migrate.head_revision()
    for command in (("db", "upgrade"), ("token", "list"), ("serve",)):
        result = await asyncio.to_thread(run_cli, settings, *command)
        assert (result.returncode, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        assert line == (
            f"uploader: the database is at revision 9999, newer than this version's {head}: install the newer version"
        )
