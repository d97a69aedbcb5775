"""The migrations on every kind of database: up, down, twice at once, and against the models."""

import asyncio
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import (
    CheckConstraint,
    Connection,
    Index,
    UniqueConstraint,
    event,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.support.dying import Death, dying
from tests.support.invariants import checked_accounts
from tests.support.newer import newer_version
from tests.support.process import run_cli
from tests.support.rows import NOW, Transactions, digests, file_row, upload_row
from tests.support.waiting import SERVER_SECONDS
from uploader.bootstrap import upgrade_database
from uploader.database import migrate, models, queries
from uploader.database.copies import dump
from uploader.database.engine import Database, Duplicate
from uploader.domain.secret import Secret
from uploader.errors import ConfigurationError, Unavailable
from uploader.settings import Settings

BYTE_COLUMNS = [
    (table.name, column.name)
    for table in models.metadata.sorted_tables
    for column in table.columns
    if any(isinstance(constraint, CheckConstraint) for constraint in column.constraints)
]


# What newer versions say of their migrations, and whether an older program may serve with all of them.
NEWER = [((True,), True), ((True, True), True), ((False,), False), ((True, False), False), ((False, True), False)]

SECRET = "a secret that all commands have in common"
# Its last segment has no room for a number.
LONGEST = "/".join(["d" * 255] * 3 + ["e" * 253, "ab"])


@pytest.fixture(params=["sqlite", "mariadb", "mysql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    url: str = request.getfixturevalue(f"blank_{request.param}_url")
    return url


@pytest.fixture
def blank_stack_url(request: pytest.FixtureRequest, stack_url: str, stack_kind: str, tmp_path: Path) -> str:
    """One of the kind that is chosen for a whole server."""
    if stack_kind == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    url: str = request.getfixturevalue(f"blank_{stack_kind}_url")
    return url


def patiently(url: str) -> Database:
    """A database that may have to be made, and is waited for as long as it takes."""
    return Database(url, creates=True, read_timeout_seconds=None, timeout_seconds=SERVER_SECONDS)


@pytest.fixture
async def empty(empty_url: str) -> AsyncIterator[Database]:
    """A database without tables, whose migrations leave large tables to requests."""
    database = patiently(empty_url)
    supervised(database)
    yield database
    await database.close()


# Tables that stay small.
SMALL = {"alembic_version", "meta", "usage_daily"}
# Changes of large tables beside which nobody can write, and why there is no other way.
OFFLINE = {
    "ALTER TABLE user_info ADD COLUMN files": "MySQL adds a CHECK by a copy of the table alone; its rows are short",
}
SCHEMA = re.compile(r"\s*(?:ALTER TABLE|CREATE (?:UNIQUE )?INDEX \S+ ON|DROP INDEX (\S+) ON) `?(\w+)")
ROWS = re.compile(r"\s*(?:(UPDATE|DELETE FROM|REPLACE INTO) `?(\w+)|INSERT INTO `?(\w+).*\bSELECT\b)", re.DOTALL)


def supervised(database: Database) -> None:
    """Let migrations on MySQL and MariaDB fail unless each change of a table goes on beside requests (decision 0052): the
    server can do it without a lock, or it is one range of rows, or rows by their key, in a transaction of its own."""
    engine, migrating, changed = database.engine.sync_engine, set[Any](), set[Any]()
    if engine.dialect.name == "sqlite":
        return

    def look(connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
        session = connection.connection.dbapi_connection
        if "GET_LOCK" in statement:
            migrating.add(session)
        elif "RELEASE_LOCK" in statement:
            migrating.discard(session)
        if session not in migrating:
            return statement, parameters
        if statement in ("COMMIT", "ROLLBACK"):
            changed.discard(session)
        elif (schema := SCHEMA.match(statement)) and schema[2] not in SMALL:
            changed.discard(session)
            if not any(statement.lstrip().startswith(known) for known in OFFLINE):
                statement = f"ALTER TABLE `{schema[2]}` DROP INDEX {schema[1]}" if schema[1] else statement.rstrip()
                comma = "," if "ALTER TABLE" in statement else ""
                statement = f"{statement}{comma} ALGORITHM=INPLACE{comma} LOCK=NONE"
        elif (rows := ROWS.match(statement)) and (table := rows[2] or rows[3]) not in SMALL:
            key = next(iter(models.metadata.tables[table].primary_key)).name
            is_range = rf"\b{key}`? > %s AND \S*\b{key}`? <= %s"
            assert re.search(rf"{is_range}|WHERE (\w+\.)?{key} = %s", statement), statement
            assert session not in changed, f"what is before it is not committed: {statement}"
            changed.add(session)
        return statement, parameters

    event.listen(engine, "before_cursor_execute", look, retval=True)


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


def keys_of(connection: Connection) -> dict[str, set[tuple[str, ...]]]:
    """The names and the columns of unique keys and indexes, by table."""
    found = {}
    for table in models.metadata.tables:
        keys = inspect(connection).get_unique_constraints(table) + inspect(connection).get_indexes(table)
        found[table] = {(str(key["name"]), *map(str, key["column_names"])) for key in keys}
    return found


async def test_up_makes_all_that_the_models_have_and_down_leaves_no_table(empty: Database) -> None:
    """And up again, whereupon the comparison sees a difference; that there is none is told by the upgrades below."""
    for goes_down in (True, False):
        assert await migrate.current_revision(empty) is None
        await migrate.upgrade(empty)
        assert await migrate.current_revision(empty) == migrate.head_revision()
        assert await ask(empty, tables_of) == {"alembic_version", *models.metadata.tables}
        await migrate.check(empty)
        if goes_down:
            await migrate.downgrade(empty, "base")
            assert await ask(empty, tables_of) == {"alembic_version"}
    found = await ask(empty, keys_of)
    for table in models.metadata.sorted_tables:
        keys: list[Index | UniqueConstraint] = list(table.indexes)
        keys += [constraint for constraint in table.constraints if isinstance(constraint, UniqueConstraint)]
        for key in keys:
            assert (key.name, *(column.name for column in key.columns)) in found[table.name]
    async with empty.engine.begin() as connection:
        await connection.execute(text("ALTER TABLE meta ADD COLUMN extra BIGINT"))
    assert [difference[0] for difference in await ask(empty, differences)] == ["remove_column"]


async def test_down_takes_tokens_for_the_metrics_along_and_up_counts_the_files_of_each_user(empty: Database) -> None:
    """No such token gets the scope of everything."""
    await migrate.upgrade(empty)
    act = Transactions(empty)
    for user_id in ("alice", "bob", "carol"):
        await act.create_user(user_id)
    for user_id, size in (("alice", 10), ("alice", 20), ("bob", 30)):
        await act.upload_and_merge(user_id, size, seed=f"{size}")
        await act.open(upload_row(user_id, size))
    await act.close(await act.open(upload_row("carol")))
    async with empty.engine.begin() as connection:
        for name, scope in (("whole", None), ("metrics", "metrics")):
            row = {"token_sha256": name, "user_id": "bob", "admin": False, "created_at": NOW, "scope": scope}
            await connection.execute(insert(models.token).values(row))
    await migrate.downgrade(empty, "0011")
    async with empty.engine.connect() as connection:
        assert (await connection.execute(text("SELECT user_id, admin FROM token"))).all() == [(b"bob", 0)]
    await migrate.upgrade(empty)
    await checked_accounts(empty)
    assert await ask(empty, differences) == []


async def test_users_with_an_administrator_s_token_in_force_become_administrators(empty: Database) -> None:
    await migrate.upgrade(empty)
    act = Transactions(empty)
    tokens = (("root", True, None), ("was", True, NOW), ("alice", False, None))
    async with empty.engine.begin() as connection:
        for user_id, admin, revoked_at in tokens:
            row = {"token_sha256": user_id, "user_id": user_id, "admin": admin, "created_at": NOW}
            await connection.execute(insert(models.token).values({**row, "revoked_at": revoked_at}))
    for user_id, *_ in tokens:
        await act.create_user(user_id)
    await migrate.downgrade(empty, "0019")
    await migrate.upgrade(empty)
    async with empty.engine.connect() as connection:
        found = (await connection.execute(text("SELECT user_id FROM user_info WHERE admin = 1"))).all()
    assert found == [(b"root",)]
    assert await ask(empty, differences) == []


async def test_twins_get_numbers_and_a_folder_keeps_its_name(empty: Database) -> None:
    """The oldest keeps its name; who dies on the way goes on; the accounts are as they were."""
    await migrate.upgrade(empty, "0014")
    act = Transactions(empty)
    there = [
        *[
            ("alice", name)
            for name in ("a.txt", "a.txt", "a (2).txt", "a.txt", "folder", "folder", "folder/b", "folder!")
        ],
        *[("alice", name) for name in ("deep/a", "deep/a/b", "deep/a/b/c", "l" * 255, "l" * 255, "a (3).txt/x")],
        *[("bob", name) for name in ("a.txt", "folder", "ü😀", "ü😀", LONGEST, LONGEST)],
    ]
    for user_id in ("alice", "bob"):
        await act.create_user(user_id)
    files = [
        file_row(user_id, 1, f"{number}", id=f"{number:032x}", name=name)
        for number, (user_id, name) in enumerate(there)
    ]

    async def insert_all(connection: AsyncConnection) -> None:
        for file in files:
            values = {column.name: getattr(file, column.name) for column in models.file.c}
            del values["session"], values["asked_name"]
            await connection.execute(insert(models.file).values(values))
            blob = {"sha256": file.sha256, "md5": file.md5, "size": 1, "refs": 1, "created_at": NOW}
            await connection.execute(insert(models.blob).values(blob))
        for user_id, count in Counter(user_id for user_id, _ in there).items():
            users = models.user_info
            await connection.execute(
                update(users).where(users.c.user_id == user_id).values(files=count, use_space_finished=count)
            )

    await empty.transact(insert_all)
    for dies_at in (1, 4, 9, 99):
        with suppress(Death), dying(dies_at):
            await migrate.upgrade(empty)
    async with empty.engine.connect() as connection:
        rows = await connection.execute(select(models.file.c.name).order_by(models.file.c.id))
        assert list(rows.scalars()) == [
            *("a.txt", "a (4).txt", "a (2).txt", "a (5).txt", "folder (2)", "folder (3)", "folder/b", "folder!"),
            *("deep/a (2)", "deep/a/b (2)", "deep/a/b/c", "l" * 255, "l" * 251 + " (2)", "a (3).txt/x"),
            *("a.txt", "folder", "ü😀", "ü😀 (2)", LONGEST, files[-1].id),
        ]
    await checked_accounts(empty)
    assert await ask(empty, differences) == []


async def test_up_counts_the_files_of_each_link_and_ends_those_that_outlived_their_folders(empty: Database) -> None:
    """Until 0022 deleted files counted, too, and a folder could go without its link. Until 0023 the name of a visitor's held
    file stayed as it was when the folder of the link moved."""
    await migrate.upgrade(empty, "0019")
    collecting, emptied, sharing = (character * 32 for character in "abc")
    link = {"user_id": "alice", "kind": "upload", "name": "in/", "label": "", "created_at": NOW, "expires_at": NOW}
    async with empty.engine.begin() as connection:
        for each, files in ((collecting, 9), (emptied, 9), (sharing, 0)):
            values = {**link, "id": each, "slug": each[:24], "slug_sha256": each, "files": files, "bytes": 11 * files}
            values["name"] = "gone/" if each is sharing else "in/"
            await connection.execute(insert(models.link).values(values))
        for number, table in enumerate((models.file, models.file, models.held_file)):
            session = collecting + "d" * 32
            file = file_row(
                "alice", 10 + number, f"{number}", id=f"{number:032x}", session=session, name=f"in/{number}"
            )
            values = {name: getattr(file, name) for name in queries.FILE_COLUMNS}
            held = {"if_exists": "keep", "event_id": "e", "name": "before/2", "asked_name": "2"}
            held = held if table is models.held_file else {}
            await connection.execute(insert(table).values({**values, **held}))
        own = file_row("alice", 1, "own", id="f" * 32)
        await connection.execute(
            insert(models.file).values({name: getattr(own, name) for name in queries.FILE_COLUMNS})
        )
    await migrate.upgrade(empty, secret=Secret("the secret of the installation"))
    async with empty.engine.connect() as connection:
        columns = [models.link.c[name] for name in ("files", "bytes", "end_reason")]
        found = await connection.execute(select(*columns).order_by(models.link.c.id))
        assert [tuple(row) for row in found] == [(3, 33, None), (0, 0, None), (0, 0, "deleted")]
        assert (await connection.execute(select(models.held_file.c.name))).scalars().all() == ["in/2"]


async def test_no_figure_becomes_negative(database: Database) -> None:
    assert ("user_info", "reserved") in BYTE_COLUMNS
    assert len(BYTE_COLUMNS) == 36
    rows: dict[str, dict[str, Any]] = {
        "user_info": {"user_id": "u"},
        "upload": {"id": "i", "user_id": "u", "name": "n", "state": "OPEN", "temp_path": "t"},
        "blob": {"created_at": NOW, **digests("")},
        "file": (file := {"id": "i", "user_id": "u", "name": "n", "instant": False, "created_at": NOW, **digests("")}),
        "held_file": {**file, "if_exists": "keep", "event_id": "e"},
        "trashed_file": {**file, "deleted_at": NOW, "reason": "deleted"},
        "usage_daily": {"day": NOW.date(), "taken_at": NOW},
        "bulk_operation": {"id": "i", "user_id": "u", "work": b"{}", "digest": "d", "created_at": NOW},
        "link": {
            **dict.fromkeys(("id", "user_id", "slug", "slug_sha256", "kind", "name", "label"), "l"),
            **dict.fromkeys(("created_at", "expires_at"), NOW),
        },
    }
    for name, column in BYTE_COLUMNS:
        table = models.metadata.tables[name]
        values = rows[name] | ({"created_at": NOW, "updated_at": NOW} if name == "upload" else {})
        with pytest.raises(DBAPIError, match=r"(?i)check|constraint"):
            async with database.engine.begin() as connection:
                await connection.execute(insert(table).values(**values, **{column: -1}))
        async with database.engine.begin() as connection:
            await connection.execute(insert(table).values(**values, **{column: 2**63 - 1}))
            await connection.execute(table.delete())


async def test_times_come_back_in_utc_to_the_microsecond_and_a_taken_key_is_a_duplicate(database: Database) -> None:
    act = Transactions(database)
    await act.create_user()
    closed = await act.close(await act.open(upload_row()))
    async with database.engine.connect() as connection:
        row = (await connection.execute(models.upload.select())).mappings().one()
    assert row["id"] == closed.id
    assert (row["created_at"], row["closed_at"]) == (NOW, NOW)
    with pytest.raises(Duplicate):
        await act.create_user()
    await migrate.upgrade(database)
    async with database.engine.connect() as connection:
        assert (await connection.execute(models.user_info.select())).mappings().one()["user_id"] == "alice"


# Beside others


@pytest.mark.parametrize("empty_url", ["mariadb", "mysql"], indirect=True)
async def test_upgrade_waits_for_transactions_and_migrations_of_others(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However short the time-out is, and requests go on meanwhile."""
    monkeypatch.setattr(migrate, "_PAUSE_SECONDS", 0.1)
    hasty, patient = Database(empty_url, timeout_seconds=1.0), patiently(empty_url)
    await migrate.upgrade(patient, "0013")
    add_user = text("INSERT INTO user_info (user_id, total_space) VALUES (:user_id, 1)")
    async with patient.engine.begin() as connection:
        await connection.execute(add_user, [{"user_id": name} for name in ("alice", "bob")])
    touch = "UPDATE user_info SET total_space = 2 WHERE user_id = '{}'"

    async def upgrade_beside(statement: str, waits: str, revision: str) -> None:
        caplog.clear()
        async with patient.engine.connect() as other:
            await other.execute(text(statement))
            upgrading = asyncio.create_task(migrate.upgrade(hasty, revision))
            while waits not in caplog.text:
                assert not upgrading.done(), upgrading.result()
                await asyncio.sleep(0.01)
            async with patient.engine.begin() as connection:
                await connection.execute(text(touch.format("bob")))
            assert not upgrading.done()
            await other.rollback()
            await other.execute(text("DO RELEASE_ALL_LOCKS()"))
        await upgrading

    # The table, then one of its rows, then the lock of migrations.
    await upgrade_beside(touch.format("alice"), "waits for a transaction", "0014")
    await migrate.downgrade(patient, "0013")
    async with patient.engine.begin() as connection:
        await connection.execute(text("ALTER TABLE user_info ADD COLUMN files BIGINT NOT NULL DEFAULT 0"))
    await upgrade_beside(touch.format("alice"), "waits for a transaction", "0014")
    await upgrade_beside("DO GET_LOCK('uploader_migrate', 0)", "another migration is running", "0015")
    for database in (hasty, patient):
        await database.close()


async def test_upgrade_gives_a_silent_server_up_after_the_time_out_of_the_settings(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"mysql+asyncmy://user@127.0.0.1:{listener.getsockname()[1]}/silent"
        settings = {"DATA": str(tmp_path), "DATABASE_URL": url, "DATABASE_TIMEOUT": "1.25s", "SECRET": SECRET}
        with pytest.raises(Unavailable) as raised:
            await upgrade_database(Settings.load({f"UPLOADER_{name}": value for name, value in settings.items()}))
    assert "no answer within 1.25 s" in raised.value.reason


# Twice at once, too new, from elsewhere


async def test_upgrading_several_times_at_once_is_safe(empty_url: str) -> None:
    databases = [patiently(empty_url) for _ in range(5)]
    await asyncio.gather(*(migrate.upgrade(database) for database in databases))
    for database in databases:
        await migrate.check(database)
    assert await ask(databases[0], differences) == []
    for database in databases:
        await database.close()


@pytest.mark.parametrize("embedded", [True, False])
async def test_upgrade_commands_at_once_are_safe_from_any_directory(
    blank_stack_url: str, tmp_path: Path, embedded: bool
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    more = {} if embedded else {"DATABASE_URL": blank_stack_url, "SECRET": SECRET}
    settings = {"DATA": str(tmp_path / "data"), **more}
    upgrade = partial(run_cli, settings, "db", "upgrade", cwd=elsewhere)
    results = await asyncio.gather(*(asyncio.to_thread(upgrade) for _ in range(2)))
    for result in (*results, await asyncio.to_thread(upgrade)):
        assert result.returncode == 0
        assert result.stderr in ("", "another migration is running, and this one waits for its end\n")
        assert result.stdout == f"the database is at revision {migrate.head_revision()}\n"
    database = Database(f"sqlite:///{tmp_path / 'data' / 'uploader.db'}" if embedded else blank_stack_url)
    await migrate.check(database)
    await database.close()
    assert list(elsewhere.iterdir()) == []


async def test_a_database_that_was_not_migrated_is_refused(empty: Database) -> None:
    with pytest.raises(ConfigurationError, match="run `uploader db upgrade`"):
        await migrate.check(empty)
    assert await ask(empty, tables_of) == set()


async def test_a_newer_database_is_served_if_all_that_is_new_is_compatible(empty: Database, tmp_path: Path) -> None:
    """A dump of it has all tables, or there is none."""
    await migrate.upgrade(empty)
    head, is_sqlite = migrate.head_revision(), empty.engine.dialect.name == "sqlite"
    for number, (marks, served) in enumerate(NEWER):
        newest, made = str(9000 + len(marks)), tmp_path / str(number)
        with newer_version(made, marks):
            await migrate.upgrade(empty)
            await migrate.check(empty)
        for look in (migrate.check, migrate.upgrade):
            if served:
                await look(empty)
            else:
                with pytest.raises(
                    ConfigurationError, match=f"at revision {newest}, newer than this version's {head}: install the"
                ):
                    await look(empty)
        assert await migrate.current_revision(empty) == newest
        if is_sqlite:
            assert (await dump(empty, made, lambda *_: None)).revision == newest
        else:
            with pytest.raises(ConfigurationError, match="back it up with the newer version"):
                await dump(empty, made, lambda *_: None)
        with newer_version(tmp_path / f"{number} again", marks):
            await migrate.downgrade(empty, head)
        await migrate.check(empty)

    # Who breaks with older programs says so before there is anything new.
    with newer_version(tmp_path / "broken", (True, False), then="raise RuntimeError"), pytest.raises(RuntimeError):
        await migrate.upgrade(empty)
    if is_sqlite:
        await migrate.check(empty)  # nothing of it is there
    else:
        with pytest.raises(ConfigurationError, match=r"on its way to revision 9002, newer than this version's"):
            await migrate.check(empty)
    with newer_version(tmp_path / "mended", (True, False)):
        await migrate.upgrade(empty)
        await migrate.check(empty)


def test_each_migration_says_if_older_programs_may_go_on(tmp_path: Path) -> None:
    """Those up to 0014 need not: no program before reads it."""
    for path in sorted((migrate.migrations_directory() / "versions").glob("[0-9]*.py")):
        if path.name > "0015":
            assert re.search(r"^compatible = (True|False)$", path.read_text(), re.MULTILINE), path.name


async def test_commands_say_in_one_line_that_the_database_is_too_new(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url)
    with newer_version(tmp_path / "newer", (False,)):
        await migrate.upgrade(database)
    await database.close()
    for file in tmp_path.glob("test.db*"):
        file.chmod(0o600)  # as our commands make it
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": sqlite_url}
    head = migrate.head_revision()
    for command in (("db", "upgrade"), ("token", "list"), ("serve",)):
        result = await asyncio.to_thread(run_cli, settings, *command)
        assert (result.returncode, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        assert line == (
            f"uploader: the database is at revision 9001, newer than this version's {head}: install the newer version"
        )
