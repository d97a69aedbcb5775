"""Each transaction tells what it did, in itself: no event without its effect, and no effect without its event."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import delete, make_url, select, text, update
from sqlalchemy.exc import DBAPIError

from tests.support.lost_commits import LostCommit
from tests.support.rows import NOW, Transactions, digests, file_row, upload_row
from tests.support.statements import statements
from tests.support.telling import Woken, Written, outbox_of, written
from tests.support.waiting import SERVER_SECONDS
from uploader.database import models, queries, recount, transactions
from uploader.database.engine import Connection, Database
from uploader.database.transactions import rows
from uploader.database.transactions.files import delete_files, move_files, note_scrub
from uploader.database.transactions.rows import BlobLost, NotOpen
from uploader.domain.creations import RENAME
from uploader.domain.events import EventType
from uploader.domain.upload import File, IfExists, Reason, Upload
from uploader.errors import NameTaken, QuotaExceeded, TooManyUploads, Unavailable

ALL = {"all": tuple(EventType)}


@pytest.fixture
def woken() -> Woken:
    return Woken()


@pytest.fixture
async def act(stack_url: str, woken: Woken) -> AsyncIterator[Transactions]:
    """The transactions on a database where `alice` has 10,000 bytes, and one sink is told of everything."""
    async with transactions_on(stack_url, woken) as made:
        yield made


@pytest.fixture
async def act_on(database_url: str, woken: Woken) -> AsyncIterator[Transactions]:
    """The same once on each kind of database."""
    async with transactions_on(database_url, woken) as made:
        yield made


@asynccontextmanager
async def transactions_on(url: str, woken: Woken) -> AsyncIterator[Transactions]:
    database = Database(url, outbox=outbox_of(ALL, woken), timeout_seconds=SERVER_SECONDS)
    made = Transactions(database)
    await made.create_user()
    yield made
    await database.close()


async def told(act: Transactions) -> list[tuple[str, str]]:
    """The types and subjects of all events."""
    return [(event.type, event.subject) for event in await written(act.database)]


def moment(when: datetime) -> str:
    return when.isoformat().replace("+00:00", "Z")


def as_told(file: File, **more: Any) -> dict[str, Any]:
    fields = {name: getattr(file, name) for name in ("id", "name", "md5", "sha256", "size", "instant")}
    return {**fields, "created_at": moment(file.created_at), "modified_at": None, **more}


async def test_an_upload_is_told_of_from_its_opening_to_its_file(act_on: Transactions, woken: Woken) -> None:
    upload = await act_on.open(upload_row(size=1000, seed="content"))
    await act_on.flush((upload, 0, 1000))
    assert woken.times == 1
    file = await act_on.merge(upload, "content")
    assert woken.times == 2
    created, finished = await written(act_on.database)
    said = {
        **{name: getattr(upload, name) for name in ("id", "md5", "name", "size", "chunk_size")},
        "chunk_count": 1,
        "received_bytes": 0,
        "missing": [[0, 0]],
        "state": "uploading",
        "created_at": moment(NOW),
        "expires_at": moment(NOW),
    }
    assert created == Written(
        "upload.created", upload.id, "alice", {"user_id": "alice", "upload": said}, frozenset({"all"})
    )
    assert finished == Written(
        "file.finished", file.id, "alice", {"user_id": "alice", "file": as_told(file)}, frozenset({"all"})
    )


async def test_an_upload_that_ends_without_a_file_is_told_of_with_its_reason(act: Transactions) -> None:
    ends = {
        Reason.CANCELLED: ("upload.cancelled", "cancelled"),
        Reason.EXPIRED: ("upload.expired", "expired"),
        Reason.MD5_MISMATCH: ("upload.failed", "failed"),
        Reason.SHA256_MISMATCH: ("upload.failed", "failed"),
        Reason.NAME_TAKEN: ("upload.failed", "failed"),
    }
    for reason, (kind, state) in ends.items():
        upload = await act.open(upload_row(size=1000))
        await act.flush((upload, 0, 700))
        await act.close(upload, reason)
        with pytest.raises(NotOpen):
            await act.close(upload, reason)
        created, closed = [event for event in await written(act.database) if event.subject == upload.id]
        assert (created.type, closed.type, closed.data["reason"]) == ("upload.created", kind, reason.value)
        assert (closed.data["upload"]["state"], closed.data["upload"]["received_bytes"]) == (state, 700)


async def test_files_that_come_at_once_replace_and_go_are_told_of(act: Transactions) -> None:
    first = (await act.whole(file_row(seed="one"))).file
    again = await act.whole(file_row(seed="one"))
    assert not again.is_new  # nothing happened, and nothing is told
    instant, _ = await act.instant(file_row(seed="one", name="two"))
    second = (await act.whole(file_row(seed="other", size=10), IfExists.REPLACE)).file
    assert await act.delete(second)
    assert not await act.delete(second)
    events = await written(act.database)
    assert [(event.type, event.subject, event.data.get("reason")) for event in events] == [
        ("file.finished", first.id, None),
        ("file.finished", instant.id, None),
        ("file.finished", second.id, None),
        ("file.deleted", first.id, "replaced"),
        ("file.deleted", second.id, None),
    ]
    assert [event.data["file"]["instant"] for event in events] == [True, True, True, True, True]
    assert events[3].data["file"] == as_told(first)


@pytest.mark.parametrize("how", ["merge", "instant", "whole"])
async def test_an_upload_that_ends_in_a_file_that_is_there_is_told_of_as_finished_by_it(
    act: Transactions, how: str
) -> None:
    there = (await act.whole(file_row(seed="content"))).file
    upload = await act.open(upload_row(seed="content"))
    match how:
        case "merge":
            await act.merge(upload, "content")
        case "instant":
            await act.instant(file_row(seed="content"), upload)
        case "whole":
            await act.whole(file_row(seed="content"), replaced=upload)
    assert (await told(act))[1:] == [("upload.created", upload.id), ("file.finished", there.id)]


async def test_of_a_batch_what_was_made_is_told_of(act_on: Transactions) -> None:
    taken = (await act_on.whole(file_row(seed="taken", name="taken"))).file
    files = [
        file_row(seed="a", name="a"),
        file_row(seed="b", name="taken"),
        file_row(seed="c", name="c", size=20_000),
        file_row(seed="d", name="d"),
    ]
    verdicts = await act_on.batch(files, IfExists.FAIL)
    assert [type(verdict) for verdict in verdicts] == [
        *(transactions.files.Added, NameTaken, QuotaExceeded, transactions.files.Added)
    ]
    assert await told(act_on) == [("file.finished", file.id) for file in (taken, files[0], files[3])]


async def test_folders_that_go_and_move_are_told_of_file_by_file(act_on: Transactions) -> None:
    files = [(await act_on.whole(file_row(seed=name, name=f"from/{name}", size=1))).file for name in "ab"]
    twin = (await act_on.whole(file_row(seed="a", name="to/a", size=1))).file
    names = {file.id: file.name.replace("from/", "to/") for file in files}
    transact = act_on.database.transact
    assert await transact(move_files, files, names, IfExists.REPLACE, NOW, RENAME) == 2
    moved = [replace(file, name=names[file.id]) for file in files]
    assert await transact(delete_files, [twin, *moved], NOW) == 2
    events = (await written(act_on.database))[3:]
    assert [(event.type, event.subject, event.data.get("reason")) for event in events] == [
        ("file.deleted", twin.id, "replaced"),
        ("file.deleted", files[0].id, None),
        ("file.deleted", files[1].id, None),
    ]


@pytest.mark.parametrize("healed_by", ["scrub", "upload", "batch"])
async def test_damage_is_told_of_to_each_who_has_the_content_once(act: Transactions, healed_by: str) -> None:
    await act.create_user("bob")
    files = [(await act.whole(file_row(user_id, seed="content"))).file for user_id in ("alice", "bob")]
    sha256 = digests("content")["sha256"]

    async def note(damaged: bool) -> None:
        await act.database.transact(lambda c: transactions.files.note_scrub(c, sha256, damaged=damaged, now=NOW))

    for damaged in (False, True, True):
        await note(damaged)
    match healed_by:
        case "scrub":
            await note(False)
        case "upload":
            await act.whole(file_row("alice", seed="content"))
        case "batch":
            await act.batch([file_row("alice", seed="content"), file_row("alice", seed="new", name="new")])
    events = (await written(act.database))[2:]
    about = [(event.type, event.user_id, event.subject, event.data["file"].get("damaged")) for event in events[:4]]
    assert about == [
        *(("content.damaged", file.user_id, file.id, True) for file in files),
        *(("content.healed", file.user_id, file.id, None) for file in files),
    ]
    assert len(events) == (5 if healed_by == "batch" else 4)


async def test_of_a_content_that_very_many_have_not_all_are_told(
    act_on: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_MOST_TOLD", 2)
    files = [(await act_on.whole(file_row(seed="content", name=name))).file for name in "abc"]
    sha256 = digests("content")["sha256"]
    for damaged in (True, False):
        await act_on.database.transact(partial(note_scrub, sha256=sha256, damaged=damaged, now=NOW))
    events = (await written(act_on.database))[len(files) :]
    assert [(event.type, event.subject, event.data["more_files"]) for event in events] == [
        (kind, file.id, True) for kind in ("content.damaged", "content.healed") for file in files[:2]
    ]


async def test_what_is_rolled_back_is_not_told_of(act_on: Transactions) -> None:
    """Openings that race for one quota: of those that are committed together some fail, and go without the others."""
    upload = await act_on.open(upload_row(size=1, seed="content"))
    file = (await act_on.whole(file_row(seed="taken", size=1, name="taken"))).file
    before = await told(act_on)
    with pytest.raises(QuotaExceeded):
        await act_on.whole(file_row(seed="huge", size=20_000))
    with pytest.raises(TooManyUploads):
        await act_on.open(upload_row(size=1), max_open_uploads=1)
    with pytest.raises(NameTaken):
        await act_on.whole(file_row(seed="other", name="taken"), IfExists.FAIL)
    with pytest.raises(BlobLost):
        await act_on.instant(file_row(seed="none"))
    with pytest.raises(ZeroDivisionError):
        await act_on.whole(replace(file, md5="0" * 32, sha256="0" * 64), place=failing)
    assert await told(act_on) == before
    uploads = [upload_row(size=1_500) for _ in range(10)]
    results = await asyncio.gather(*(act_on.open(each) for each in uploads), return_exceptions=True)
    opened = {result.id for result in results if isinstance(result, Upload)}
    assert len(opened) == 6
    assert {subject for _, subject in (await told(act_on))[len(before) :]} == opened
    assert upload.id not in opened


async def failing() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("comes", [True, False])
async def test_of_a_commit_whose_answer_is_lost_the_event_came_if_the_effect_did(mariadb_url: str, comes: bool) -> None:
    plain = Transactions(Database(mariadb_url))
    await plain.create_user()
    lost = LostCommit(make_url(mariadb_url), comes=comes)
    upload, woken = upload_row(), Woken()
    async with lost.listening() as url:
        act = Transactions(Database(url, outbox=outbox_of(ALL, woken)))
        await act.create_user("bob")  # which connects
        lost.arm()
        with pytest.raises(Unavailable):
            await act.open(upload)
        assert woken.times == 1  # it may have come
        await act.database.close()
        lost.arrives.set()
        found = await plain.database.transact(lambda connection: queries.is_inserted(connection, upload.id))
    assert found == comes
    assert [event.subject for event in await written(plain.database)] == ([upload.id] if comes else [])
    await plain.database.close()


async def test_a_row_of_an_event_that_is_whole_is_called_so_and_one_that_is_not_is_named(sqlite_url: str) -> None:
    database = Database(sqlite_url, outbox=outbox_of(ALL))
    act = Transactions(database)
    await act.create_user()
    await act.upload_and_merge()
    assert await database.read(recount.malformed) == []
    broken = update(models.outbox).values(data=models.outbox.c.data.concat(b"}"))
    await database.transact(
        lambda connection: connection.execute(broken.where(models.outbox.c.type == "file.finished"))
    )
    assert [(each.table, each.column) for each in await database.read(recount.malformed)] == [("outbox", "data")]
    await database.close()


async def test_each_sink_is_told_of_its_own_types(database_url: str) -> None:
    database = Database(
        database_url, outbox=outbox_of({"files": (EventType.FILE_FINISHED, EventType.FILE_DELETED), **ALL, "none": ()})
    )
    act = Transactions(database)
    await act.create_user()
    await act.upload_and_merge()
    assert [event.sinks for event in await written(database)] == [frozenset({"all"}), frozenset({"files", "all"})]
    await database.close()


@pytest.mark.parametrize("types", [None, (EventType.CONTENT_DAMAGED,)])
async def test_what_nobody_is_told_of_costs_no_statement(stack_url: str, types: tuple[EventType, ...] | None) -> None:
    async def run(database: Database) -> list[str]:
        act = Transactions(database)
        user_id = f"user {database is silent}"
        await act.create_user(user_id)
        with statements(database) as sent:
            await act.upload_and_merge(user_id, 1000, user_id)
            await act.close(await act.open(upload_row(user_id)))
            await act.delete((await act.whole(file_row(user_id, seed=f"other of {user_id}"))).file)
        return [each.split(" ")[0] for each in sent]

    silent = Database(stack_url)
    other = silent if types is None else Database(stack_url, outbox=outbox_of({"one": types}))
    counted = len(await run(silent))
    if types is not None:
        assert len(await run(other)) == counted
    assert await written(silent) == []
    for each in {silent, other}:
        await each.close()


async def test_a_database_that_goes_within_a_transaction_that_tells_is_away(mysql_url: str, woken: Woken) -> None:
    async with transactions_on(mysql_url, woken) as act:

        async def lose(connection: Connection) -> None:
            await connection.execute(delete(models.outbox))
            with suppress(DBAPIError):
                await connection.execute(text("KILL CONNECTION_ID()"))
            await connection.execute(select(models.outbox.c.id))

        with pytest.raises(Unavailable):
            await act.database.transact(lose)
