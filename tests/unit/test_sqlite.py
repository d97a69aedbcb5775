"""SQLite: transactions run in threads, and those that wait for their turn to write commit together."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.support.statements import statements
from uploader.database.engine import Database, Duplicate


class Scene:
    """A database with one table of words, and a writer that holds up all others until it is let go on."""

    def __init__(self, database: Database, sent: list[str]) -> None:
        """`sent`: the statements, as they are sent to it."""
        self.database = database
        self.go_on = asyncio.Event()
        self._sent = sent

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

    async def words(self) -> set[str]:
        async def read(connection: AsyncConnection) -> set[str]:
            return set((await connection.execute(text("SELECT word FROM word"))).scalars())

        return await self.database.read(read)


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
    await asyncio.sleep(0)
    scene.go_on.set()
    assert await asyncio.gather(first, *others) == [None, "a", "b", "c"]
    assert scene.commits == 2
    assert await scene.words() == {"a", "b", "c"}


async def test_one_that_fails_takes_no_other_with_it(scene: Scene) -> None:
    async def fail(connection: AsyncConnection) -> None:
        await scene.writer("lost")(connection)
        raise KeyError("no such thing")

    await scene.hold_up()
    before, twin, failing, after = (
        scene.later(work) for work in (scene.writer("a"), scene.writer("a"), fail, scene.writer("b"))
    )
    await asyncio.sleep(0)
    scene.go_on.set()
    assert await before == "a"
    with pytest.raises(Duplicate):
        await twin
    with pytest.raises(KeyError):
        await failing
    assert await after == "b"
    assert await scene.words() == {"a", "b"}


async def test_what_ends_the_whole_transaction_fails_all_that_were_in_it(scene: Scene) -> None:
    async def end_all(connection: AsyncConnection) -> None:
        await connection.execute(text("ROLLBACK"))
        raise KeyError("as a full disk does")

    await scene.hold_up()
    tasks = [scene.later(work) for work in (scene.writer("a"), end_all, scene.writer("b"))]
    await asyncio.sleep(0)
    scene.go_on.set()
    assert all(isinstance(error, Exception) for error in await asyncio.gather(*tasks, return_exceptions=True))
    assert await scene.words() == set()
    assert await scene.later(scene.writer("c")) == "c"


async def test_one_that_is_to_be_alone_sees_nothing_that_is_not_committed(scene: Scene) -> None:
    await scene.hold_up()
    seen: list[int] = []

    async def look(_connection: AsyncConnection) -> None:
        seen.append(scene.commits)

    tasks = [scene.later(scene.writer("a")), scene.later(look, alone=True), scene.later(scene.writer("b"))]
    await asyncio.sleep(0)
    scene.go_on.set()
    await asyncio.gather(*tasks)
    assert seen == [2], "that of the first one, and that of `a`"
    assert scene.commits == 4


async def test_one_whose_caller_is_gone_before_its_turn_is_left_undone(scene: Scene) -> None:
    first = await scene.hold_up()
    gone, stays = scene.later(scene.writer("a")), scene.later(scene.writer("b"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait({gone})
    scene.go_on.set()
    await asyncio.gather(first, stays)
    assert await scene.words() == {"b"}


async def test_one_whose_caller_goes_in_the_middle_ends_as_if_nothing_was(scene: Scene) -> None:
    first = await scene.hold_up()
    first.cancel()
    await asyncio.wait({first})
    scene.go_on.set()
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


# Brief reads


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
