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

from tests.support.chosen import PLACES, places
from tests.support.process import environment, run_cli, run_to_end
from tests.support.servers import PrivateDatabase
from tests.support.waiting import SERVER_SECONDS
from uploader.database import migrate, models
from uploader.database.engine import Database
from uploader.errors import Unavailable

ROOT = Path(__file__).parents[3]
ARMED = "migrate.after_statement"
# Tables, each with its indexes and columns in the order of the migrations.
STATEMENTS = 118
# Tables go with their indexes.
DOWN_STATEMENTS = len(models.metadata.tables) + 59
SECRET = "a secret of the installation, long enough"
WHOLE = ({"alembic_version", *models.metadata.tables}, list[Any]())


@pytest.fixture(params=["mariadb", "mysql"])
def blank_url(request: pytest.FixtureRequest) -> str:
    """A database without tables on a server that commits with every statement."""
    url: str = request.getfixturevalue(f"blank_{request.param}_url")
    return url


def upgrade(settings: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return run_cli(settings | {"SECRET": SECRET}, "db", "upgrade")


def downgrade(settings: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """As a developer does."""
    alembic = ("-m", "alembic")
    return run_to_end(
        ("downgrade", "base"), environment(settings), cwd=ROOT, program=alembic, timeout_seconds=SERVER_SECONDS
    )


def die_again_and_again(run: Any, settings: dict[str, str], statements: int) -> None:
    """After some of the statements that change something, each time further on, and after the last; then there is nothing
    left to be done."""
    done = 0
    for place in (*places(range(1, statements), run.__name__), statements):
        died = run(settings | {"TEST_CRASH_AT": f"{ARMED}:{place - done}"})
        assert died.returncode == -signal.SIGKILL, f"{place}: {died.stderr}"
        done = place
    ended = run(settings | {"TEST_CRASH_AT": ARMED})
    assert ended.returncode == 0, ended.stderr


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


async def test_a_migration_that_is_killed_after_a_statement_goes_on(blank_url: str, tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": blank_url}
    die_again_and_again(upgrade, settings, STATEMENTS)
    assert await schema_of(blank_url) == WHOLE
    die_again_and_again(downgrade, settings, DOWN_STATEMENTS)
    assert (await schema_of(blank_url))[0] == {"alembic_version"}
    assert upgrade(settings).returncode == 0
    assert await schema_of(blank_url) == WHOLE


@pytest.mark.parametrize("nth", [8, STATEMENTS])
async def test_on_sqlite_a_migration_that_is_killed_leaves_nothing(nth: int, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": url}
    assert upgrade(settings | {"TEST_CRASH_AT": f"{ARMED}:{nth}"}).returncode == -signal.SIGKILL
    assert (await schema_of(url))[0] == set()
    assert upgrade(settings).returncode == 0
    assert await schema_of(url) == WHOLE


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
    assert await schema_of(url) == WHOLE


async def test_going_up_after_an_interrupted_way_down_is_whole_or_refused(blank_url: str, tmp_path: Path) -> None:
    """The revision changes after the statements of its step, so it may say more than there is."""
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": blank_url}
    assert upgrade(settings).returncode == 0
    refused, ways = 0, range(1, len(models.metadata.tables) + 4)
    for nth in places(ways, "down and up"):
        died = downgrade(settings | {"TEST_CRASH_AT": f"{ARMED}:{nth}"})
        assert died.returncode == -signal.SIGKILL, died.stderr
        up = upgrade(settings)
        if up.returncode != 0:
            refused += 1
            assert (up.returncode, len(up.stderr.splitlines())) == (2, 1), up.stderr
            assert "the migration down that was interrupted" in up.stderr
            assert downgrade(settings).returncode == 0
            assert upgrade(settings).returncode == 0
        assert await schema_of(blank_url) == WHOLE, nth
    assert refused or len(ways) > PLACES


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
    assert [ended.returncode for ended in second] == [0], second
    assert await schema_of(blank_url) == WHOLE


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
