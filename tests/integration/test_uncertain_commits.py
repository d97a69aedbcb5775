"""Commits that were read by others and then undone by a crash of the database (decision 0012), and one that was taken for
lost and came after all. No bytes may go for the word of either."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Table, make_url, select, text, update

from tests.conftest import MakeStack
from tests.support.archives import Entry, archive
from tests.support.background import flush_due, open_with_chunks, reached
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.faults import paused_call
from tests.support.invariants import Account, checked_accounts
from tests.support.lost_commits import LostCommit
from tests.support.rows import Transactions
from tests.support.servers import PrivateDatabase
from tests.support.stack import Stack
from uploader.database import meta, models, queries
from uploader.database.engine import Connection, Database
from uploader.domain.upload import State, Upload
from uploader.errors import Unavailable
from uploader.service.flush import FlushedBatch

CHUNK = 64 * KIB
CONTENT = Content(3 * CHUNK - 7)
# A background thread of InnoDB may write the log just before the crash; hardly this often in a row.
_ATTEMPTS = 8
# So much later nothing is on its way any more, by the rules of the cleanup.
_SETTLED_SECONDS = 2 * 3600.0


@asynccontextmanager
async def commits_under_way(database: Database) -> AsyncIterator[None]:
    """Commits within stay where every commit is for a moment: others read them, and their log is not on the disk."""
    await _set(database, innodb_flush_log_at_timeout=2700, innodb_flush_log_at_trx_commit=0)
    try:
        yield
    finally:
        await _set(database, innodb_flush_log_at_trx_commit=1)


async def _set(database: Database, **variables: int) -> None:
    async with database.engine.connect() as connection:
        for name, value in variables.items():
            await connection.execute(text(f"SET GLOBAL {name} = {value}"))


def crash(server: PrivateDatabase) -> None:
    server.kill()
    server.start()


async def fact_after_a_crash(
    database: Database, server: PrivateDatabase, name: str, read: Callable[..., Awaitable[str | None]]
) -> str | None:
    """A fact whose commit is under way, which `read` sees before the crash: what is there after it."""
    async with commits_under_way(database):
        await database.transact(lambda connection: meta.replace_fact(connection, name, "there"))
    assert await read(lambda connection: meta.fact(connection, name)) == "there"
    crash(server)
    return await database.read(lambda connection: meta.fact(connection, name))


async def test_what_was_read_durably_survives_a_crash_and_what_was_read_may_not(
    own_server: PrivateDatabase, own_server_url: str
) -> None:
    """On each kind of server; that the services read so, where they have to, is tried on one."""
    database = Database(own_server_url)
    survived = await fact_after_a_crash(database, own_server, "durably", database.read_durably)
    assert survived == "there"
    for attempt in range(_ATTEMPTS):
        if await fact_after_a_crash(database, own_server, f"read {attempt}", database.read) is None:
            break
    else:
        raise AssertionError("this database undoes nothing that was read, so the test can't tell")
    await database.close()


@pytest.mark.parametrize("deleted", ["just now", "before"])
async def test_a_content_goes_only_when_no_crash_brings_its_file_back(
    make_stack: MakeStack, mortal_mariadb: PrivateDatabase, mortal_mariadb_url: str, deleted: str
) -> None:
    """The database crashes right before the bytes go, and before the last statement that comes before that."""
    async with make_stack(database_url=mortal_mariadb_url) as stack:
        services = stack.services
        file_id = (await stack.upload(CONTENT)).json()["file"]["id"]
        file = await services.files.get("alice", file_id)
        async with commits_under_way(services.database) if deleted == "just now" else nullcontext():
            assert await Transactions(services.database).delete(file)
        call = "unlink" if deleted == "just now" else "stat"
        with paused_call(call, only=lambda path: path.name == CONTENT.sha256) as pause:
            collecting = asyncio.create_task(services.files.collect(CONTENT.sha256))
            await reached(pause)
            crash(mortal_mariadb)
        with pytest.raises(Unavailable):  # from its commit, or from the statement
            await collecting
        assert bool(stack.bytes_on_disk()) == (deleted == "before")
        assert await checked_accounts(services.database) == {"alice": Account()}
        assert await services.database.read(lambda connection: queries.blobs_without_refs(connection, 10)) == [
            file.sha256
        ]
        assert await services.files.collect_all() == 1
        assert stack.bytes_on_disk() == []


async def test_forty_contents_are_collected_at_once_over_fewer_connections(make_stack_on: MakeStack) -> None:
    async with make_stack_on() as stack:
        entries = [Entry(f"{number}", b"%d" % number) for number in range(40)]
        sent = await stack.client.post("/files/batch", content=archive(*entries))
        files = [each["file"]["id"] for each in sent.json()["results"]]
        answers = await asyncio.gather(*(stack.client.delete(f"/me/files/{file_id}") for file_id in files))
        assert {answer.status_code for answer in answers} == {204}
        assert stack.bytes_on_disk() == []


async def row_of(stack: Stack, upload: Upload) -> Upload:
    row = await stack.services.database.read(lambda connection: queries.upload_by_id(connection, upload.id))
    assert row is not None
    return row


async def test_an_upload_whose_close_was_undone_keeps_its_bytes(make_stack_on: MakeStack) -> None:
    """A visitor reads that it is closed. Until the visitor has the locks, the commit of the closer has failed."""
    async with make_stack_on() as stack:
        upload, database = await open_with_chunks(stack, CONTENT, 0), stack.services.database
        before = await database.read(rows_before)
        await Transactions(database).close(upload)
        with paused_call("open", only=lambda path: path.name == "map") as pause:
            visit = asyncio.create_task(stack.services.closers.tidy(upload.id))
            await reached(pause)
            await database.transact(lambda connection: write_back(connection, before))
        assert not await visit
        assert await checked_accounts(database) == {"alice": Account(reserved=CONTENT.size)}
        assert [(await stack.put(CONTENT, number)).status_code for number in (1, 2)] == [200, 201]


async def test_the_bytes_of_an_upload_go_only_when_no_crash_opens_it_again(
    make_stack: MakeStack, mortal_mariadb: PrivateDatabase, mortal_mariadb_url: str
) -> None:
    async with make_stack(database_url=mortal_mariadb_url) as stack:
        upload, database = await open_with_chunks(stack, CONTENT, 0), stack.services.database
        async with commits_under_way(database):
            await Transactions(database).close(upload)
        with paused_call("unlink") as pause:
            visit = asyncio.create_task(stack.services.closers.tidy(upload.id))
            await reached(pause)
            crash(mortal_mariadb)
        assert await visit
        assert (await row_of(stack, upload)).state is State.CANCELLED


async def test_a_cleanup_removes_no_directory_of_an_upload_that_a_crash_opens_again(
    make_stack: MakeStack, mortal_mariadb: PrivateDatabase, mortal_mariadb_url: str
) -> None:
    clock = ManualClock()
    async with make_stack(database_url=mortal_mariadb_url, clock=clock) as stack:
        upload, database = await open_with_chunks(stack, CONTENT, 0), stack.services.database
        clock.advance(_SETTLED_SECONDS)
        async with commits_under_way(database):
            await Transactions(database).close(upload)
        with paused_call("open", only=lambda path: path.name == "map") as pause:
            cleaning = asyncio.create_task(
                stack.services.cleanup.clean(opened_before=datetime(9999, 12, 1, tzinfo=UTC))
            )
            await reached(pause)
            crash(mortal_mariadb)
        await cleaning  # which puts it off where the database takes long to come back
        assert (await row_of(stack, upload)).state is State.CANCELLED
        await stack.services.cleanup.clean(opened_before=datetime(9999, 12, 1, tzinfo=UTC))
        assert not (stack.data / upload.place).exists()


@pytest.mark.parametrize("visitor", ["flusher", "closer"])
async def test_redis_takes_for_flushed_what_no_crash_takes_back(
    make_stack: MakeStack, mortal_mariadb: PrivateDatabase, mortal_mariadb_url: str, visitor: str
) -> None:
    """One worker has flushed, and its commit is under way; another one looks what there is to flush."""
    async with make_stack(database_url=mortal_mariadb_url, max_pending_bytes=1) as stack:
        upload, services = await open_with_chunks(stack, CONTENT, 0), stack.services
        async with commits_under_way(services.database):
            await Transactions(services.database).flush((upload, 0, CHUNK))
        if visitor == "closer":
            await services.closers.hydrate(upload)
        else:
            assert await flush_due(stack) == FlushedBatch(1, more=False)
        assert await services.pending.flush_queues[0].next_due() is None
        crash(mortal_mariadb)
        assert (await row_of(stack, upload)).flushed_bytes == CHUNK


async def rows_before(connection: Connection) -> list[tuple[Table, dict[str, Any]]]:
    tables = (models.upload, models.user_info)
    return [(table, dict((await connection.execute(select(table))).mappings().one())) for table in tables]


async def write_back(connection: Connection, rows: list[tuple[Table, dict[str, Any]]]) -> None:
    for table, row in rows:
        await connection.execute(update(table).values(row))


@pytest.mark.parametrize("comes", [True, False])
async def test_an_opening_whose_commit_was_lost_has_a_place_for_its_bytes_if_it_arrives(
    make_stack: MakeStack, mariadb_url: str, comes: bool
) -> None:
    lost = LostCommit(make_url(mariadb_url), comes=comes)
    async with lost.listening() as url, make_stack(database_url=url) as stack:
        lost.arm()
        assert (await stack.open(CONTENT)).status_code == 503
        assert bool(stack.bytes_on_disk()) == comes, "made anew it would be an upload that lost its files"
        if not comes:
            assert await checked_accounts(stack.services.database) == {"alice": Account()}
        lost.arrives.set()
        # It waits for the row that is on its way.
        assert (await stack.open(CONTENT)).status_code == (200 if comes else 201)
        assert (await stack.upload(CONTENT)).status_code == 201
