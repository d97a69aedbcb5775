"""SQLite: transactions run in threads, and those that wait for their turn to write commit together."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage
from typing import Any

import pytest
from sqlalchemy import Executable, bindparam, event, insert, select, text, update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.conftest import MakeStack
from tests.support.content import Content
from tests.support.rows import NOW, Transactions, digests, file_row, upload_row
from tests.support.stack import patient
from tests.support.statements import statements
from tests.support.twin_statements import compare_statements
from uploader.database import models, queries, transactions
from uploader.database.engine import Database, Duplicate
from uploader.database.queries import ShownToken, Token
from uploader.database.transactions import users
from uploader.domain.links import owner
from uploader.domain.upload import File, Reason, State
from uploader.errors import DatabaseDamaged, QuotaExceeded, Unavailable


class Scene:
    """A database with one table of words, and a writer that holds up all others until it is let go on."""

    def __init__(self, database: Database, sent: list[str]) -> None:
        """`sent`: the statements, as they are sent to it."""
        self.database, self._sent = database, sent
        self.go_on = asyncio.Event()

    @property
    def commits(self) -> int:
        return self._sent.count("COMMIT")

    def writer(self, word: str) -> Callable[[AsyncConnection], Awaitable[str]]:
        async def write(connection: AsyncConnection) -> str:
            await connection.execute(text("INSERT INTO word VALUES (:word)"), {"word": word})
            return word

        return write

    async def hold_up(self) -> "asyncio.Task[None]":
        """Until `go_on`."""
        started = asyncio.Event()

        async def wait() -> None:
            started.set()
            await self.go_on.wait()

        held = self.database.outside(wait)

        async def write(_connection: AsyncConnection) -> None:
            await held()

        task = asyncio.create_task(self.database.transact(write))
        await started.wait()
        return task

    def later(self, work: Callable[[AsyncConnection], Awaitable[Any]], **how: Any) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.database.transact(work, **how))

    async def outcomes(self, *tasks: "asyncio.Task[Any]") -> list[Any]:
        """Of those that came while a writer holds them up, which goes on now."""
        await asyncio.sleep(0)
        self.go_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def words(self) -> set[str]:
        found = await self.database.read(lambda connection: connection.execute(text("SELECT word FROM word")))
        return set(found.scalars())


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    database = Database(f"sqlite:///{tmp_path}/words.db", creates=True)
    await database.transact(lambda connection: connection.execute(text("CREATE TABLE word (word TEXT UNIQUE)")))
    with statements(database) as sent:
        yield Scene(database, sent)
    await database.close()


async def test_writers_that_wait_commit_together(scene: Scene) -> None:
    first = await scene.hold_up()
    others = [scene.later(scene.writer(word)) for word in "abc"]
    assert await scene.outcomes(first, *others) == [None, "a", "b", "c"]
    assert scene.commits == 2
    assert await scene.words() == {"a", "b", "c"}


async def test_one_that_fails_takes_no_other_with_it(scene: Scene) -> None:
    async def fail(connection: AsyncConnection) -> None:
        await scene.writer("lost")(connection)
        raise KeyError("no such thing")

    await scene.hold_up()
    works = (scene.writer("a"), scene.writer("a"), fail, scene.writer("b"))
    before, twin, failing, after = await scene.outcomes(*map(scene.later, works))
    assert (before, type(twin), type(failing), after) == ("a", Duplicate, KeyError, "b")
    assert await scene.words() == {"a", "b"}


async def test_what_ends_the_whole_transaction_fails_all_that_were_in_it(scene: Scene) -> None:
    async def end_all(connection: AsyncConnection) -> None:
        await connection.execute(text("ROLLBACK"))
        raise KeyError("as a full disk does")

    await scene.hold_up()
    outcomes = await scene.outcomes(*map(scene.later, (scene.writer("a"), end_all, scene.writer("b"))))
    assert all(isinstance(error, Exception) for error in outcomes)
    assert await scene.words() == set()
    assert await scene.later(scene.writer("c")) == "c"


async def test_one_that_is_to_be_alone_sees_nothing_that_is_not_committed(scene: Scene) -> None:
    async def look(_connection: AsyncConnection) -> int:
        return scene.commits

    await scene.hold_up()
    tasks = [scene.later(scene.writer("a")), scene.later(look, alone=True), scene.later(scene.writer("b"))]
    assert await scene.outcomes(*tasks) == ["a", 2, "b"], "that of the first one, and that of `a`"
    assert scene.commits == 4


async def test_one_whose_caller_is_gone_before_its_turn_or_in_the_middle_ends_as_if_nothing_was(scene: Scene) -> None:
    first = await scene.hold_up()
    gone, stays = scene.later(scene.writer("a")), scene.later(scene.writer("b"))
    await asyncio.sleep(0)
    for task in (gone, first):
        task.cancel()
        await asyncio.wait({task})
    assert (await scene.outcomes(stays), await scene.words()) == (["b"], {"b"})
    assert await scene.later(scene.writer("a")) == "a"


async def test_a_transaction_that_waits_for_something_else_is_refused_and_undone(scene: Scene) -> None:
    async def wait(connection: AsyncConnection) -> None:
        await scene.writer("a")(connection)
        await _Never()

    with pytest.raises(RuntimeError, match="waited for something else"):
        await scene.database.transact(wait)
    assert await scene.words() == set()


class _Never:
    def __await__(self) -> Any:
        yield


async def _thread_of(database: Database, word: str = "0", **how: Any) -> int:
    """Where a read of a word runs."""

    async def read(connection: AsyncConnection) -> int:
        await connection.execute(text("SELECT * FROM word WHERE word = :word"), {"word": word})
        return threading.get_ident()

    return await database.read(read, **how)


async def test_a_brief_read_takes_no_hop_where_a_connection_is_open(scene: Scene) -> None:
    here = threading.get_ident()
    assert await _thread_of(scene.database) != here
    assert await _thread_of(scene.database, brief=True) == here
    scene.database.engine.sync_engine.dispose()
    assert await _thread_of(scene.database, brief=True) != here, "to open one takes a while"
    assert await _thread_of(scene.database, brief=True) == here


async def test_what_is_not_in_memory_is_waited_for_in_threads(scene: Scene, tmp_path: Path) -> None:
    words = [{"word": f"{number}"} for number in range(5000)]
    await scene.later(lambda connection: connection.execute(text("INSERT INTO word VALUES (:word)"), words))
    scene.database.engine.sync_engine.dispose()
    await _thread_of(scene.database)
    if not _evicted(tmp_path / "words.db"):
        pytest.skip("nothing makes this file system read from a disk")
    here = threading.get_ident()
    assert await _thread_of(scene.database, "4999", brief=True) == here
    assert await _thread_of(scene.database, "4999", brief=True) != here


def _evicted(path: Path) -> bool:
    """Whether the next one to read it waits for the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = getrusage(RUSAGE_THREAD).ru_inblock
        file.read(1)
        came_from_disk = getrusage(RUSAGE_THREAD).ru_inblock > before
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return came_from_disk


# Composed and decomposed, beyond the BMP, what SQL and formats give a meaning to, and what ends a string elsewhere.
NAMES = (
    "A\u030angstro\u0308m/\u00c5.bin",
    "\U0001f4be \U0010ffff",
    "%s %(name)s :name ? ' \" \\ --",
    "a\x01\x7f\ufffd",
)
LARGEST = 2**63 - 1
ELSEWHERE = timezone(timedelta(hours=-5, minutes=-30))

RENAME = update(models.file).where(models.file.c.id == bindparam("file_id")).values(name=bindparam("new_name"))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Executable]:
    return compare_statements(monkeypatch)


@pytest.fixture
async def act(sqlite_url: str) -> AsyncIterator[Transactions]:
    database = patient(sqlite_url)
    yield Transactions(database)
    await database.close()


@pytest.mark.parametrize("name", NAMES)
async def test_a_file_comes_and_goes_as_by_sqlalchemy(compared: list[Executable], act: Transactions, name: str) -> None:
    moment = datetime(2030, 2, 28, 23, 59, 59, 1, tzinfo=ELSEWHERE)
    opened = upload_row(
        name, LARGEST - 5, "content", name=name, idempotency_key=name, created_at=moment, updated_at=moment
    )
    md5 = opened.md5 or ""

    async def found(*queried: Callable[[AsyncConnection], Awaitable[Any]]) -> list[Any]:
        return [await act.database.read(query) for query in queried]

    await act.create_user(name, LARGEST)
    assert [usage.total_space for usage in await found(lambda c: queries.usage(c, name))] == [LARGEST]
    assert await found(lambda c: queries.open_upload_by_md5(c, owner(name), md5)) == [None]
    await act.open(opened)
    assert await found(
        lambda c: queries.open_upload_by_md5(c, owner(name), md5),
        lambda c: queries.upload_by_id(c, opened.id, lock=True),
        lambda c: queries.upload_by_idempotency_key(c, owner(name), name),
        lambda c: queries.open_uploads(c, owner(name)),
    ) == [opened, opened, opened, [opened]]
    with pytest.raises(Duplicate):
        await act.open(opened)
    with pytest.raises(QuotaExceeded):
        await act.open(upload_row(name, 6))
    assert (await act.flush((opened, 0, LARGEST - 5))).changed == 1
    file = await act.merge(opened, "content")
    assert (file.name, file.size, file.instant) == (name, LARGEST - 5, False)
    *files, blob, blobs = await found(
        lambda c: queries.file_by_id(c, name, file.id),
        lambda c: queries.newest_file(c, owner(name), md5, size=file.size, name=name, sound=True),
        lambda c: queries.blob_by_sha256(c, file.sha256),
        lambda c: queries.blobs_by_md5(c, md5, file.size),
    )
    assert files == [file] * 2
    assert blob is not None
    assert blobs == [blob]
    assert await act.delete(file)
    assert len({id(statement) for statement in compared}) >= 20


async def test_an_upload_ends_as_by_sqlalchemy(compared: list[Executable], act: Transactions) -> None:
    await act.create_user()
    by_id = await act.open(upload_row(md5=None))
    told = await act.database.transact(
        lambda c: transactions.uploads.tell_digests(c, by_id.id, digests("a")["md5"], None)
    )
    assert (told.md5, told.sha256) == (digests("a")["md5"], None)
    closed = await act.close(told, Reason.CANCELLED)
    found = await act.database.read(lambda c: queries.newest_closed_upload(c, owner("alice"), closed.md5 or ""))
    assert found is not None
    assert (found.id, found.state, found.closed_at) == (by_id.id, State.CANCELLED, NOW)
    await act.upload_and_merge(seed="b")
    again, is_new = await act.instant(file_row(seed="b", name="another"))
    assert is_new
    assert (again.instant, again.created_at) == (True, NOW)
    token = Token(token_sha256="0" * 64, user_id="alice", admin=True, created_at=NOW, revoked_at=None)
    await act.database.transact(lambda c: users.create_token(c, token))
    shown = await act.database.read(lambda c: queries.token_by_hash(c, token.token_sha256))
    assert shown == ShownToken(token, has_user=True, admin=True)
    assert compared


async def test_a_small_file_takes_nothing_of_sqlalchemy(make_stack: MakeStack, sqlite_url: str) -> None:
    async with make_stack(database_url=sqlite_url) as stack:
        await stack.upload(Content(1000, seed=1))  # so that the user, and the room of the disk, are known
        run: list[str] = []
        engine = stack.services.database.engine.sync_engine
        event.listen(engine, "before_cursor_execute", lambda _, _cursor, statement, *_more: run.append(statement))
        assert (await stack.upload(Content(1000, seed=2, name="folder/other"))).status_code == 201
        assert run == []


async def test_one_statement_with_many_and_with_other_values(compared: list[Executable], act: Transactions) -> None:
    rows = [_columns(file_row(seed=str(number), name=name)) for number, name in enumerate(NAMES)]
    counts, user = [], insert(models.user_info)

    async def write(connection: AsyncConnection) -> None:
        await connection.execute(user, {"user_id": "alice", "total_space": 5})
        await connection.execute(user, {"user_id": "bob"})
        counts.append((await connection.execute(insert(models.file), rows)).rowcount)
        named = [{"file_id": row["id"], "new_name": f"{number}"} for number, row in enumerate(rows[:3])]
        counts.append((await connection.execute(RENAME, named)).rowcount)

    await act.database.transact(write)
    assert counts == [4, 3]
    assert len(compared) == 4
    usages = [await act.database.read(lambda c, name=name: queries.usage(c, name)) for name in ("alice", "bob")]  # type: ignore[misc]
    assert [usage and usage.total_space for usage in usages] == [5, 0]
    found = await act.database.read(lambda c: queries.files(c, "alice", limit=10, after=None, prefix=None, part=None))
    assert sorted(file.name for file in found) == sorted(["0", "1", "2", NAMES[3]])


async def test_a_list_that_is_expanded_stays_with_sqlalchemy(act: Transactions) -> None:
    of = models.user_info.c.user_id
    query = select(of).where(of.in_(bindparam("names", expanding=True))).order_by(of)

    async def read(connection: AsyncConnection) -> None:
        for names in (["alice"], ["bob", "carol"], []):
            assert list((await connection.execute(query, {"names": names})).scalars()) == names

    for name in ("alice", "bob", "carol"):
        await act.create_user(name)
    await act.database.read(read)


async def test_texts_and_what_sqlalchemy_runs_are_of_one_transaction(act: Transactions) -> None:
    async def write(connection: AsyncConnection) -> None:
        await users.create_user(connection, "alice", 1)
        await connection.execute(insert(models.user_info), {"user_id": "bob"})
        assert await queries.usage(connection, "alice") is not None
        everybody = (await connection.execute(select(models.user_info.c.user_id))).scalars().all()
        assert sorted(everybody) == ["alice", "bob"]
        raise KeyError

    with pytest.raises(KeyError):
        await act.database.transact(write)
    for name in ("alice", "bob"):
        assert await act.database.read(lambda c, name=name: queries.usage(c, name)) is None  # type: ignore[misc]


async def test_a_constraint_refuses_as_by_sqlalchemy(compared: list[Executable], act: Transactions) -> None:
    await act.create_user()
    user = insert(models.user_info)

    async def write(connection: AsyncConnection) -> None:
        for values in ({"user_id": "alice"}, {"user_id": "bob", "total_space": -1}, {"user_id": None}):
            with pytest.raises(IntegrityError) as refused:
                await connection.execute(user, values)
            assert "alice" not in str(refused.value), "values do not belong into logs"

    await act.database.transact(write)
    assert len(compared) == 3
    with pytest.raises(Duplicate):
        await act.create_user()
    with pytest.raises(IntegrityError):
        await act.create_user("bob", -1)
    with pytest.raises(OverflowError):  # before SQLite sees it
        await act.create_user(total_space=LARGEST + 1)


async def test_a_database_that_another_process_locks_is_away(act: Transactions) -> None:
    sync_engine = act.database.engine.sync_engine
    event.listen(sync_engine, "checkout", lambda driver, *_: driver.execute("PRAGMA busy_timeout=1"))
    with closing(sqlite3.connect(act.database.engine.url.database or "", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable) as refused:
            await act.create_user()
        other.execute("ROLLBACK")
    assert isinstance(refused.value.__cause__, OperationalError)
    await act.create_user()


async def test_a_page_that_can_not_be_read_is_damage(act: Transactions) -> None:
    await act.create_user()
    await act.database.close()
    path = Path(act.database.engine.url.database or "")
    with closing(sqlite3.connect(path)) as connection:
        roots = connection.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = 'user_info'").fetchall()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        for (page,) in roots:
            file.seek((page - 1) * size)
            file.write(b"\xff" * size)
    with pytest.raises(DatabaseDamaged):
        await act.database.read(lambda c: queries.usage(c, "alice"))


async def test_a_commit_that_is_refused_leaves_nothing(act: Transactions) -> None:
    """As that of a foreign key which is looked at only then."""
    child = "CREATE TABLE child (parent INTEGER REFERENCES parent(id) DEFERRABLE INITIALLY DEFERRED)"
    for statement in ("CREATE TABLE parent (id INTEGER PRIMARY KEY)", child):
        await act.database.transact(lambda c, statement=statement: c.execute(text(statement)))  # type: ignore[misc]
    event.listen(
        act.database.engine.sync_engine, "checkout", lambda driver, *_: driver.execute("PRAGMA foreign_keys=ON")
    )

    async def orphan(connection: AsyncConnection) -> None:
        await users.create_user(connection, "alice", 1)
        await connection.execute(text("INSERT INTO child VALUES (:parent)"), {"parent": 1})

    with pytest.raises(IntegrityError) as refused:
        await act.database.transact(orphan)
    assert isinstance(refused.value.orig, sqlite3.IntegrityError)
    await act.create_user()


def _columns(file: File) -> dict[str, Any]:
    return {name: getattr(file, name) for name in queries.FILE_COLUMNS}
