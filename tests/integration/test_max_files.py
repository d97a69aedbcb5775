"""The number of a user's files and open uploads: bounded in every way in, given back in every way out, exact at any moment.
And of closed uploads the newest alone are remembered."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any

import httpx2
import pytest
from sqlalchemy import insert, select, text

from tests.conftest import MakeStack
from tests.support.archives import Entry, archive
from tests.support.background import collector_of
from tests.support.clock import ManualClock
from tests.support.content import KIB, MIB, Content
from tests.support.invariants import checked_accounts
from tests.support.problems import problem
from tests.support.proofs import proof_by
from tests.support.resumable import Rufh, Tus
from tests.support.rows import NOW, Transactions, digests, file_row, upload_row
from tests.support.statements import Steps, rows_read, sqlite_steps, statements
from uploader.database import models, queries, transactions
from uploader.database.engine import Connection, Database
from uploader.domain.creations import RENAME
from uploader.domain.links import owner
from uploader.domain.upload import File, IfExists, Reason, Upload
from uploader.errors import TooManyFiles
from uploader.service import cleanup
from uploader.service.ids import new_id

MOST = 20


@pytest.fixture
async def act(database: Database) -> Transactions:
    made = Transactions(database, MOST)
    await made.create_user()
    return made


async def counted(act: Transactions, user_id: str = "alice") -> int:
    """The checked number of a user's files and open uploads."""
    await checked_accounts(act.database, lowered=True)
    usage = await act.database.read(queries.usage, user_id)
    assert usage is not None
    return usage.files


# Ways in


async def _open(act: Transactions, number: int) -> list[object]:
    return [await act.open(upload_row(size=1))]


async def _whole(act: Transactions, number: int) -> list[object]:
    return [await act.whole(file_row(seed=f"{number}", name=f"{number}", size=0))]


async def _batch(act: Transactions, number: int) -> list[object]:
    members = [file_row(seed=f"{number} {member}", name=f"{number}/{member}", size=0) for member in range(3)]
    return list(await act.batch(members))


async def _instant(act: Transactions, number: int) -> list[object]:
    return [(await act.instant(file_row(name=f"{number}", size=0)))[0]]


IN = (_open, _whole, _batch, _instant)


@pytest.mark.places
@pytest.mark.parametrize("ways", [*([way] for way in IN), IN], ids=lambda ways: " ".join(way.__name__ for way in ways))
async def test_fifty_at_once_are_not_one_too_many_and_not_one_too_few(act: Transactions, ways: Any) -> None:
    await act.whole(file_row(name="there", size=0))
    racers = [ways[number % len(ways)](act, number) for number in range(50)]
    outcomes = await asyncio.gather(*racers, return_exceptions=True)
    verdicts = chain.from_iterable([each] if isinstance(each, BaseException) else each for each in outcomes)
    refused = Counter(isinstance(verdict, TooManyFiles) for verdict in verdicts)
    assert (refused[False], await counted(act)) == (MOST - 1, MOST)
    assert refused.total() >= 50


async def test_places_that_are_given_back_meanwhile_are_taken_again(act: Transactions) -> None:
    uploads = [await act.open(upload_row(size=1)) for _ in range(MOST)]
    closings = [act.close(upload) for upload in uploads[::2]]
    await asyncio.gather(*closings, *(_open(act, number) for number in range(30)), return_exceptions=True)
    assert await counted(act) <= MOST
    outcomes = await asyncio.gather(*(_open(act, number) for number in range(MOST)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {list, TooManyFiles}
    assert await counted(act) == MOST


# Ways out, of a file, and of an upload of the same content and name


async def _move_onto_a_twin(act: Transactions, file: File, upload: Upload) -> None:
    twin, _ = await act.instant(file_row(file.user_id, name="twin"))
    targets = {file.id: twin.name}
    await act.database.transact(transactions.files.move_files, [file], targets, IfExists.REPLACE, NOW, RENAME)


async def _leave_a_folder(act: Transactions, file: File, upload: Upload) -> None:
    """Its place is given back as soon as somebody needs it."""
    await act.rename(file, "left/file")
    await act.delete(replace(file, name="left/file"))


Out = Callable[[Transactions, File, Upload], Awaitable[Any]]
OUT: dict[str, Out] = {
    "cancelled": lambda act, _, upload: act.close(upload),
    "failed": lambda act, _, upload: act.close(upload, Reason.MD5_MISMATCH),
    "deleted": lambda act, file, _: act.delete(file),
    "deleted with others": lambda act, file, _: act.database.transact(transactions.files.delete_files, [file], NOW),
    "moved onto its twin": _move_onto_a_twin,
    "merged, where its file is there": lambda act, _, upload: act.merge(upload, "content"),
    "sent whole, where its file is there": lambda act, file, upload: act.whole(file_row(file.user_id), replaced=upload),
    "instant, where its file is there": lambda act, file, upload: act.instant(file_row(file.user_id), replaced=upload),
    "the last one of a folder": _leave_a_folder,
}


async def test_each_way_out_gives_one_place_back(act: Transactions) -> None:
    for way, leave in OUT.items():
        await act.create_user(way)
        act.max_files = 3  # of which one is for those ways that make a file on their way
        file, upload = await act.upload_and_merge(way), await act.open(upload_row(way, seed="content"))
        await leave(act, file, upload)
        left = way == "the last one of a folder"
        act.max_files = await counted(act, way) + 1 - left
        assert act.max_files == (3 if way == "moved onto its twin" else 2), way
        await act.open(upload_row(way, size=1))
        with pytest.raises(TooManyFiles) as refused:
            await act.open(upload_row(way, size=1))
        assert refused.value.fields == {"limit": act.max_files}, way


async def test_what_takes_a_place_that_is_there_needs_none(act: Transactions) -> None:
    """Also where the limit was lowered below what is there."""
    file = await act.upload_and_merge()
    await act.create_user("bob")
    await act.instant(file_row("bob"))
    uploads = [await act.open(upload_row(seed=seed, name=seed)) for seed in ("merged", "whole", "instant")]
    act.max_files = 1
    assert (await act.whole(file_row(seed="new"), IfExists.REPLACE)).is_new
    assert not (await act.whole(file_row(seed="new"))).is_new, "a repeated call"
    assert (await act.merge(uploads[0], "merged")).name == "merged"
    assert (await act.whole(file_row(seed="whole", name="whole"), replaced=uploads[1])).is_new
    await act.whole(file_row(seed="instant"), IfExists.REPLACE)
    assert (await act.instant(file_row(seed="instant", name="instant"), replaced=uploads[2]))[1]
    assert await counted(act) == 4
    assert not await act.delete(file)
    for way in IN:
        refused = await asyncio.gather(way(act, 1), return_exceptions=True)
        verdicts = refused[0] if isinstance(refused[0], list) else refused
        assert {type(verdict) for verdict in verdicts} == {TooManyFiles}, way


# By HTTP


async def test_every_way_in_tells_the_limit(make_stack: MakeStack) -> None:
    content, other, foreign = Content(10 * KIB), Content(KIB, seed=1), Content(MIB, seed=2)
    async with make_stack(max_files=2, max_open_uploads=1) as stack:
        alice, bob = stack.client, await stack.client_of("bob")
        await stack.upload(foreign, bob)
        await stack.upload(content)
        tus, rufh = Tus(alice), Rufh(alice)
        path = await tus.created(5)
        md5, by_id = f"/files/{other.md5}", {"name": "a", "size": 1}
        proven = {"name": "f", "size": foreign.size, "sha256": foreign.sha256}
        challenge = (await alice.post(f"/files/{foreign.md5}", json=proven)).json()["challenge"]
        proof = {"name": "f", "id": challenge["id"], "proof": proof_by(foreign.data, challenge, foreign.sha256)}
        answers: list[httpx2.Response] = [
            await stack.open(other),
            await alice.post("/uploads", json=by_id),
            await stack.open(content, name="instant"),
            await alice.post(f"/files/{foreign.md5}/proof", json=proof),
            await alice.put(md5, params={"name": "a"}, content=other.data),
            await alice.post("/me/files", params={"name": "a"}, content=b""),
            await tus.create(5),
            await tus.create(None, Upload_Defer_Length="1"),
            await tus.create(5, Upload_Concat="partial"),
            await rufh.create(5),
        ]
        document = (await alice.get("/openapi.json")).json()
        for answer in answers:
            refused = answer.json()
            assert (answer.status_code, refused["code"]) == (413, "too-many-files"), answer.text
            assert (refused["limit"], refused["retryable"]) == (2, False)
        for operation in ("/files/{md5} post", "/uploads post", "/files/{md5}/proof post", "/files/{md5} put"):
            route, method = operation.split()
            assert "too-many-files" in str(document["paths"][route][method]["responses"]["413"]), operation
        problem(await alice.post("/uploads", json={"name": "a", "size": 11 << 30}), 413, "quota-exceeded")

        member, twin = Entry("b", b"b"), Entry(content.name, content.data)
        posted = await alice.post("/files/batch", content=archive(member, twin, Entry("c")))
        assert [line["status"] for line in posted.json()["results"]] == [413, 200, 413]
        again = await alice.put(f"/files/{content.md5}", params={"name": content.name}, content=content.data)
        assert again.status_code == 200
        replaced = {"name": content.name, "if_exists": "replace"}
        assert (await alice.put(md5, params=replaced, content=other.data)).status_code == 201
        assert (await tus.patch(path, 0, b"12345")).status_code == 204, "what is open becomes a file"
        problem(await alice.post("/uploads", json=by_id), 413, "too-many-files")
        (file, *_) = (await alice.get("/me/files")).json()["files"]
        assert (await alice.delete(f"/me/files/{file['id']}")).status_code == 204
        assert (await alice.post("/uploads", json=by_id)).status_code == 201
        assert (await bob.post("/uploads", json=by_id)).status_code == 201, "nobody else is held"
        await checked_accounts(stack.services.database)


async def test_a_whole_takes_the_places_of_its_parts(make_stack_on: MakeStack) -> None:
    async with make_stack_on(max_files=2) as stack:
        tus = Tus(stack.client)
        parts = [await tus.created(3, data, Upload_Concat="partial") for data in (b"abc", b"def")]
        response = await tus.send("POST", "/resumable", Upload_Concat="final;" + " ".join(parts))
        assert response.status_code == 201
        act = Transactions(stack.services.database)
        assert await counted(act) == 1
        await tus.delete(parts[0])
        assert [file["size"] for file in (await stack.client.get("/me/files")).json()["files"]] == [6]


# Closed uploads


def _closed(number: int, user_id: str = "alice", **more: Any) -> dict[str, Any]:
    """The row of an upload that was closed so many seconds after the others began to be."""
    at = NOW + timedelta(seconds=number)
    row = {"id": new_id(), "user_id": user_id, "name": "n", "state": "CANCELLED", "temp_path": "temp/2030/01/none"}
    return row | {"created_at": NOW, "updated_at": at, "closed_at": at, "open_flag": None, **more}


async def _rows(connection: Connection) -> dict[str, int]:
    found = await connection.execute(select(models.upload.c.user_id).order_by(models.upload.c.id))
    return Counter(found.scalars())


async def test_of_closed_uploads_each_user_has_the_newest(
    make_stack_on: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "_REMEMBERED", 3)
    clock = ManualClock(NOW + timedelta(hours=1))
    async with make_stack_on(clock=clock) as stack:
        services, database = stack.services, stack.services.database
        act, collector = Transactions(database), collector_of(stack)
        upload = await act.open(upload_row(md5=None, idempotency_key="open"))
        rows = [_closed(number) for number in range(9)] + [_closed(number, "bob") for number in range(2)]
        rows[-3] |= {"idempotency_key": "newest"}
        await database.transact(lambda connection: connection.execute(insert(models.upload), rows))
        while await services.cleanup.purge_crowded(2):
            assert (await database.read(_rows))["bob"] == 2
        assert await database.read(_rows) == {"alice": 4, "bob": 2}
        kept = await database.read(queries.uploads_by_id, [upload.id, *(row["id"] for row in rows[6:9])])
        assert len(kept) == 4, "the newest, and what is open"

        later = [_closed(number, "bob") for number in range(10, 15)]
        await database.transact(lambda connection: connection.execute(insert(models.upload), later))
        for _ in range(2):
            await collector.run_once()
            assert await database.read(_rows) == {"alice": 4, "bob": 3}
        # Of a clock that was ahead: until then nobody looks, and nothing is in their way.
        ahead = [_closed(10**6 + number, "carol") for number in range(5)]
        await database.transact(lambda connection: connection.execute(insert(models.upload), [*ahead, _closed(20)]))
        await collector.run_once()
        assert await database.read(_rows) == {"alice": 4, "bob": 3, "carol": 5}
        clock.advance(2 * 10**6)
        await collector.run_once()
        assert (await database.read(_rows))["carol"] == 3


async def test_bytes_that_are_left_go_before_the_row(make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "_REMEMBERED", 1)
    async with make_stack() as stack:
        contents = [Content(KIB, seed=seed) for seed in range(3)]
        for content in contents:
            assert (await stack.open(content)).status_code == 201
            assert (await stack.client.delete(f"/files/{content.md5}")).status_code == 204
        oldest = await stack.services.database.read(queries.closed_before_newest, [owner("alice")], 1, 10)
        left = stack.data / oldest[0].place
        left.mkdir(parents=True)
        (left / "data").write_bytes(b"left")
        await stack.services.cleanup.purge_crowded(10)
        assert (left.exists(), await stack.services.database.read(_rows)) == (False, {"alice": 1})


async def test_nobody_looks_at_all_that_were_closed(database: Database) -> None:
    for user_id in ("alice", "bob", "carol"):
        rows = [_closed(number, user_id) for number in range(2000)]
        await database.transact(partial(_insert, rows=rows))
    is_sqlite = database.engine.dialect.name == "sqlite"

    async def work(connection: Connection, ask: Callable[[Connection], Awaitable[list[Any]]]) -> tuple[int, int]:
        before = await rows_read(connection)
        found = await ask(connection)
        return len(found), await rows_read(connection) - before

    for ask in (
        partial(queries.closed_before_newest, callers=[owner("alice")], newest=20, limit=30),
        partial(queries.ends_of_uploads, after=NOW, until=NOW + timedelta(days=1), limit=30),
    ):
        with sqlite_steps(database) if is_sqlite else nullcontext(Steps()) as steps:
            found, read = await database.read(work, ask)
        assert found == 30
        # Of 50 rows, and what the status costs; of each of all rows SQLite has several steps.
        assert read <= 200
        assert steps.count <= 5000


async def _insert(connection: Connection, rows: list[dict[str, Any]]) -> None:
    await connection.execute(insert(models.upload), rows)
    if connection.dialect.name != "sqlite":
        await connection.execute(text("ANALYZE TABLE upload"))


async def test_the_newest_and_the_open_of_a_user_are_found_along_an_index(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with statements(database) as asked:
        await database.read(queries.closed_before_newest, [owner("alice")], 9, 9)
        await database.read(queries.ends_of_uploads, NOW, NOW, 9)
        await database.read(queries.count_open_uploads, owner("alice"))
        await database.read(queries.newest_closed_upload, owner("alice"), digests("")["md5"])
    await database.close()
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        plans = [
            [step for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
            for statement in asked
            if "FROM upload" in statement
        ]
    newest, ends, opened, by_md5 = map(" ".join, plans)
    along = "INDEX ix_upload_caller (user_id=? AND session=? AND open_flag=?"
    assert newest.count(along) == 2 and "TEMP B-TREE" not in newest
    assert "INDEX ix_upload_closed (closed_at>? AND closed_at<?)" in ends and "TEMP B-TREE" not in ends
    assert f"{along})" in opened
    assert "(user_id=? AND session=? AND md5=? AND open_flag=?)" in by_md5
