"""Migrations that are killed at any statement go on when they are run again, on each database as it is."""

import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, event, inspect, text

from tests.support.process import environment, run_cli, run_to_end
from tests.support.servers import PrivateDatabase
from uploader.database import migrate, models
from uploader.database.engine import Database
from uploader.errors import Unavailable

ROOT = Path(__file__).parents[3]
ARMED = "migrate.after_statement"
# Tables and their indexes, `usage_daily` twice, and once it is dropped; then columns, two that may be NULL, indexes, and
# a column.
LATER_STATEMENTS = 6 + 2 + 4 + 1
# Five tables, and four indexes, which go with their tables.
TABLES_STATEMENTS = 5 + 4
# One each, of four steps, and three of another.
COLUMNS_STATEMENTS = 4 + 3
# Four tables, and five indexes, which go with their tables.
OBJECTS_STATEMENTS = 4 + 5
# Indexes of tables that stay.
INDEX_STATEMENTS = 2
_TABLES = 8 + 9 + 1 + TABLES_STATEMENTS + OBJECTS_STATEMENTS
STATEMENTS = _TABLES + LATER_STATEMENTS + COLUMNS_STATEMENTS + INDEX_STATEMENTS


@pytest.fixture(params=["mariadb", "mysql"])
def blank_url(request: pytest.FixtureRequest) -> str:
    """A database without tables on a server that commits with every statement."""
    url: str = request.getfixturevalue(f"blank_{request.param}_url")
    return url


def upgrade(settings: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return run_cli(settings, "db", "upgrade")


def downgrade(settings: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """As a developer does."""
    alembic = ("-m", "alembic")
    return run_to_end(("downgrade", "base"), environment(settings), cwd=ROOT, program=alembic, timeout_seconds=60)


def deaths_of(run: Any, settings: dict[str, str]) -> int:
    """Run again and again what dies after the first thing that it changes; how often that was, until it came to its end."""
    deaths = 0
    while (ended := run(settings | {"TEST_CRASH_AT": ARMED})).returncode == -signal.SIGKILL:
        deaths += 1
        assert deaths <= 2 * STATEMENTS, "it does not come forward"
    assert ended.returncode == 0, ended.stderr
    return deaths


async def schema_of(url: str) -> tuple[set[str], list[Any]]:
    """The tables, and what would have to be changed to make them those of the models."""

    def look(connection: Connection) -> tuple[set[str], list[Any]]:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return set(inspect(connection).get_table_names()), compare_metadata(context, models.metadata)

    database = Database(url)
    try:
        return await database.read(lambda connection: connection.run_sync(look))
    finally:
        await database.close()


async def test_a_migration_that_is_killed_after_each_statement_goes_on(blank_url: str, tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": blank_url}
    assert deaths_of(upgrade, settings) == STATEMENTS
    assert await schema_of(blank_url) == ({"alembic_version", *models.metadata.tables}, [])

    tables = len(models.metadata.tables)
    assert deaths_of(downgrade, settings) == tables + 3 + LATER_STATEMENTS + COLUMNS_STATEMENTS + INDEX_STATEMENTS
    assert (await schema_of(blank_url))[0] == {"alembic_version"}

    assert upgrade(settings).returncode == 0
    assert await schema_of(blank_url) == ({"alembic_version", *models.metadata.tables}, [])


@pytest.mark.parametrize("nth", [1, 8, STATEMENTS])
async def test_on_sqlite_a_migration_that_is_killed_leaves_nothing(nth: int, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": url}
    assert upgrade(settings | {"TEST_CRASH_AT": f"{ARMED}:{nth}"}).returncode == -signal.SIGKILL
    assert (await schema_of(url))[0] == set()
    assert upgrade(settings).returncode == 0
    assert await schema_of(url) == ({"alembic_version", *models.metadata.tables}, [])


async def test_a_migration_goes_on_when_the_database_is_killed_in_its_statements(own_server: PrivateDatabase) -> None:
    """Each time one statement later, while the server has it: it is done or not, and nothing in between."""
    url = own_server.url("interrupted")
    server = Database(own_server.url("mysql"))
    async with server.engine.connect() as connection:
        await connection.execute(text("CREATE DATABASE interrupted"))
    await server.close()
    for nth in (1, 3, 6):
        database = Database(url)
        kills = threading.Timer(0.001, own_server.kill)
        changes = 0

        def kill(
            _connection: Any, _cursor: Any, statement: str, *_: Any, at: int = nth, kills: threading.Timer = kills
        ) -> None:
            nonlocal changes
            changes += statement.lstrip().startswith(("CREATE", "DROP"))
            if changes == at:
                changes += 1
                kills.start()

        event.listen(database.engine.sync_engine, "before_cursor_execute", kill)
        with pytest.raises(Unavailable):
            await migrate.upgrade(database)
        await database.close()
        kills.join()
        own_server.start()
    database = Database(url)
    await migrate.upgrade(database)
    await database.close()
    assert await schema_of(url) == ({"alembic_version", *models.metadata.tables}, [])


async def test_going_up_after_an_interrupted_way_down_is_whole_or_refused(blank_url: str, tmp_path: Path) -> None:
    """The revision changes after the statements of its step, so it may say more than there is."""
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": blank_url}
    assert upgrade(settings).returncode == 0
    refused = 0
    for nth in range(1, len(models.metadata.tables) + 4):
        died = downgrade(settings | {"TEST_CRASH_AT": f"{ARMED}:{nth}"})
        assert died.returncode == -signal.SIGKILL, died.stderr
        up = upgrade(settings)
        if up.returncode != 0:
            refused += 1
            assert (up.returncode, len(up.stderr.splitlines())) == (2, 1), up.stderr
            assert "the migration down that was interrupted" in up.stderr
            assert downgrade(settings).returncode == 0
            assert upgrade(settings).returncode == 0
        assert await schema_of(blank_url) == ({"alembic_version", *models.metadata.tables}, []), nth
    assert refused > 0


async def test_who_waits_for_a_migration_finds_all_of_it(blank_url: str, tmp_path: Path) -> None:
    """The first one stands still once it has let go of the lock; the second one has it by then."""
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": blank_url}
    database = Database(blank_url)
    second: list[subprocess.CompletedProcess[str]] = []
    waiting = threading.Thread(target=lambda: second.append(upgrade(settings)))

    def stand_still(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "GET_LOCK" in statement:
            waiting.start()
        elif "RELEASE_LOCK" in statement:
            waiting.join(timeout=3)

    event.listen(database.engine.sync_engine, "after_cursor_execute", stand_still)
    await migrate.upgrade(database)
    await database.close()
    waiting.join()
    assert [(ended.returncode, ended.stderr) for ended in second] == [(0, "")]
    assert await schema_of(blank_url) == ({"alembic_version", *models.metadata.tables}, [])


async def test_the_table_of_another_program_is_not_taken_for_ours(blank_url: str, tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": blank_url}
    database = Database(blank_url)
    async with database.engine.begin() as connection:
        await connection.execute(text("CREATE TABLE file (id BIGINT PRIMARY KEY, path VARCHAR(255))"))
    refused = upgrade(settings)
    assert refused.returncode == 2
    assert refused.stderr == (
        "uploader: the database has a table `file` that is not this program's: give it a database of its own\n"
    )
    async with database.engine.begin() as connection:
        await connection.execute(text("DROP TABLE file"))
    await database.close()
    assert upgrade(settings).returncode == 0


async def test_what_the_database_refuses_is_told_in_one_line(blank_url: str, tmp_path: Path) -> None:
    """A user who may not make tables: the database is not away."""
    base, _, rest = blank_url.partition("://")
    address = rest.rpartition("@")[2]
    name = address.partition("?")[0].rpartition("/")[2]
    database = Database(blank_url)
    async with database.engine.begin() as connection:
        await connection.execute(text("CREATE USER reader@'%' IDENTIFIED BY 'reads'"))
        await connection.execute(text(f"GRANT SELECT ON {name}.* TO reader@'%'"))
    try:
        refused = upgrade({"DATA": str(tmp_path / "data"), "DATABASE_URL": f"{base}://reader:reads@{address}"})
    finally:
        async with database.engine.begin() as connection:
            await connection.execute(text("DROP USER reader@'%'"))
        await database.close()
    assert refused.returncode == 2
    assert refused.stderr.startswith(
        'uploader: the database refuses a migration: (1142, "CREATE command denied to user'
    )
    assert len(refused.stderr.splitlines()) == 1
