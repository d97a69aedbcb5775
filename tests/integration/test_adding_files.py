"""The transactions that make files of contents that come whole, and what becomes of others of their names: on each kind of
database, alone and racing. After each the accounts are computed anew from their definitions."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest
from sqlalchemy import select, text

from tests.support.invariants import Account, checked_accounts
from tests.support.rows import NOW, Transactions, digests, file_row, upload_row
from tests.support.stack import patient
from tests.support.waiting import eventually
from uploader.database import models, queries, transactions
from uploader.database.engine import Database, Duplicate
from uploader.database.transactions import files, users
from uploader.database.transactions.files import Added, NamesChanged, delete_files, move_files
from uploader.database.transactions.rows import BlobLost, NotOpen
from uploader.domain.creations import RENAME
from uploader.domain.upload import File, IfExists, Reason, State
from uploader.errors import NameTaken, QuotaExceeded

T = TypeVar("T")


@pytest.fixture
async def act(database: Database) -> Transactions:
    """The transactions on a database where `alice` has 10,000 bytes."""
    made = Transactions(database)
    await made.create_user()
    return made


@pytest.fixture
async def act_beside(served_url: str) -> AsyncIterator[Transactions]:
    """The same where others write in the middle of a transaction."""
    made = Transactions(patient(served_url))
    await made.create_user()
    yield made
    await made.database.close()


async def until_it_holds(attempt: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """As the services do: again, while somebody else was faster."""
    for _ in range(50):
        try:
            return await attempt(*arguments)
        except (Duplicate, BlobLost):
            await asyncio.sleep(0.01)
    raise AssertionError("somebody else was always faster")


async def files_of(act: Transactions, user_id: str = "alice") -> list[tuple[str, str]]:
    """Names and contents, by name."""
    table = models.file.c
    async with act.database.engine.connect() as connection:
        rows = await connection.execute(select(table.name, table.sha256).where(table.user_id == user_id))
        return sorted((row.name, row.sha256) for row in rows)


async def refs(act: Transactions) -> dict[str, int]:
    async with act.database.engine.connect() as connection:
        return {row.sha256: row.refs for row in await connection.execute(select(models.blob))}


def sha256(seed: str) -> str:
    return str(digests(seed)["sha256"])


@pytest.mark.parametrize("together", [False, True])
async def test_replacements_that_race_leave_one_file(act: Transactions, together: bool) -> None:
    await act.whole(file_row(seed="old", size=500))
    files = [file_row(seed=f"new-{number}", size=100 + number) for number in range(8)]

    async def replace_by(file: File) -> object:
        if together:
            return await act.batch([file, replace(file, id=file.id[::-1], name="beside")], IfExists.REPLACE)
        return await act.whole(file, IfExists.REPLACE)

    await asyncio.gather(*(until_it_holds(replace_by, file) for file in files))
    left = await files_of(act)
    assert [name for name, _ in left] == (["beside"] if together else []) + ["file.bin"]
    kept = {content for _, content in left}
    assert {content for content, count in (await refs(act)).items() if count} == kept
    sizes = {file.sha256: file.size for file in files}
    assert (await checked_accounts(act.database))["alice"].finished == sum(sizes[content] for _, content in left)


async def test_a_file_that_takes_the_name_meanwhile_is_replaced_as_well(act_beside: Transactions) -> None:
    act = act_beside
    old = (await act.whole(file_row(seed="old"))).file
    attempts = 0

    async def be_faster() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await act.rename(old, "away")
            await act.whole(file_row(seed="kept", size=7))

    file = file_row(seed="new", size=20)
    with pytest.raises(NamesChanged):
        await act.whole(file, IfExists.REPLACE, place=be_faster)
    assert await files_of(act) == [("away", old.sha256), (file.name, sha256("kept"))]
    assert (await act.whole(file, IfExists.REPLACE, place=be_faster)).is_new
    assert await files_of(act) == [("away", old.sha256), (file.name, file.sha256)]
    assert (await checked_accounts(act.database))["alice"] == Account(finished=1020)
    assert await refs(act) == {sha256("old"): 1, sha256("kept"): 0, sha256("new"): 1}


async def test_whether_a_name_is_free_is_decided_under_the_lock(act_beside: Transactions) -> None:
    act = act_beside
    other = file_row(seed="other")

    async def be_faster() -> None:
        await act.whole(other)

    with pytest.raises(NameTaken):
        await act.whole(file_row(seed="mine"), IfExists.FAIL, place=be_faster)
    assert await files_of(act) == [(other.name, other.sha256)]
    assert await refs(act) == {sha256("other"): 1}
    upload = await act.open(upload_row(name="elsewhere", if_exists=IfExists.FAIL))

    async def be_faster_again() -> None:
        await act.whole(replace(other, id=upload.id, name="elsewhere"))

    with pytest.raises(NameTaken):
        await act.database.transact(
            lambda connection: transactions.uploads.merge(
                connection, upload_id=upload.id, file_id="f", place_blob=be_faster_again, now=NOW, **digests(upload.id)
            )
        )
    assert (await checked_accounts(act.database))["alice"] == Account(finished=2000, reserved=1000)
    await act.close(upload, Reason.NAME_TAKEN)
    row = await act.database.read(lambda connection: queries.upload_by_id(connection, upload.id))
    assert row is not None
    assert (row.state, row.close_reason) == (State.FAILED, "name-taken")


async def test_a_file_that_is_renamed_meanwhile_is_not_replaced(act_beside: Transactions) -> None:
    act = act_beside
    old = (await act.whole(file_row(seed="old", size=30))).file
    renamed, go_on = asyncio.Event(), asyncio.Event()

    async def rename() -> None:
        async with act.database.engine.begin() as connection:
            await move_files(connection, [old], {old.id: "away"}, IfExists.FAIL, NOW, RENAME)
            renamed.set()
            await go_on.wait()

    async def somebody_waits() -> bool:
        query = text("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
        async with act.database.engine.connect() as connection:
            return str((await connection.execute(query)).one()[1]) != "0"

    renaming = asyncio.create_task(rename())
    await renamed.wait()
    new = file_row(seed="new", size=4)
    replacing = asyncio.create_task(until_it_holds(act.whole, new, IfExists.REPLACE))
    await eventually(somebody_waits)
    go_on.set()
    await renaming
    assert (await replacing).is_new
    assert await files_of(act) == [("away", old.sha256), (new.name, new.sha256)]
    assert (await checked_accounts(act.database))["alice"] == Account(finished=34)


async def test_a_file_that_is_renamed_meanwhile_does_not_go_with_its_folder(act: Transactions) -> None:
    away, there = [(await act.whole(file_row(seed=seed, name=f"folder/{seed}", size=5))).file for seed in "ab"]
    await act.rename(away, "away")
    gone = await act.database.transact(lambda connection: delete_files(connection, [away, there], NOW))
    assert gone == 1
    assert await files_of(act) == [("away", away.sha256)]
    assert (await checked_accounts(act.database))["alice"] == Account(finished=5)


@pytest.mark.parametrize("if_exists", IfExists)
async def test_of_twenty_that_want_one_name_at_once_each_is_answered_as_it_asked(
    act: Transactions, if_exists: IfExists
) -> None:
    files = [file_row(seed=f"{number}", size=10) for number in range(20)]
    racing = [until_it_holds(act.whole, file, if_exists) for file in files]
    results = await asyncio.gather(*racing, return_exceptions=True)
    refused = 19 if if_exists is IfExists.FAIL else 0
    assert Counter(type(result) for result in results) == Counter({Added: 20 - refused, NameTaken: refused})
    numbered = [f"file ({number}).bin" for number in range(2, 21)] if if_exists is IfExists.KEEP else []
    names = [name for name, _ in await files_of(act)]
    assert names == sorted(["file.bin", *numbered])
    assert (await checked_accounts(act.database))["alice"].finished == 10 * len(names)


async def test_of_all_that_want_a_free_name_in_a_batch_one_gets_it(act: Transactions) -> None:
    files = [file_row(seed=f"{number}", size=10) for number in range(6)]
    batches = [[file_row(seed=f"{n}", size=10, name=name) for name in ("other", f"{n}")] for n in range(len(files))]
    verdicts = await asyncio.gather(*(until_it_holds(act.batch, batch, IfExists.FAIL) for batch in batches))
    assert Counter(type(first) for first, _ in verdicts) == {Added: 1, NameTaken: 5}
    assert (await checked_accounts(act.database))["alice"].finished == 10 * (1 + 6)


async def test_one_content_many_times_is_one_blob(act: Transactions) -> None:
    names = [f"{number}-ü😀" for number in range(60)]
    files = [file_row(seed=f"{number % 3}", size=10, name=name) for number, name in enumerate(names)]
    verdicts = await act.batch(files)
    assert verdicts == [Added(file, is_new=True) for file in files]
    assert await refs(act) == {sha256(f"{seed}"): 20 for seed in range(3)}
    assert (await checked_accounts(act.database))["alice"] == Account(finished=600)
    again = await act.batch([replace(file, id=file.id[::-1]) for file in files])
    assert [isinstance(each, Added) and (each.file.id, each.is_new) for each in again] == [
        (file.id, False) for file in files
    ]
    assert await refs(act) == {sha256(f"{seed}"): 20 for seed in range(3)}
    assert (await checked_accounts(act.database))["alice"] == Account(finished=600)


async def test_a_batch_takes_tombstones_and_what_was_damaged_as_its_own(act: Transactions) -> None:
    gone, there = await act.batch([file_row(seed=seed, name=seed, size=5) for seed in ("gone", "there")])
    assert isinstance(gone, Added)
    assert isinstance(there, Added)
    await act.delete(gone.file)
    for content in ("gone", "there"):
        note = partial(files.note_scrub, sha256=sha256(content), damaged=True, now=NOW)
        await act.database.transact(note)
    seeds = ("there", "gone", "fresh")
    await act.batch([file_row(seed=seed, name=f"new-{seed}", size=5) for seed in seeds])
    assert await refs(act) == {sha256("there"): 2, sha256("gone"): 1, sha256("fresh"): 1}
    async with act.database.engine.connect() as connection:
        rows = (await connection.execute(select(models.blob))).all()
    expected = [(*reversed(digests(seed).values()), 5, False, None) for seed in seeds]
    assert sorted((row.sha256, row.md5, row.size, row.damaged, row.scrubbed_at) for row in rows) == sorted(expected)
    await checked_accounts(act.database)


async def test_a_member_of_which_an_upload_is_open_is_left_out(act: Transactions) -> None:
    upload = await act.open(upload_row(seed="open", size=300))
    files = [file_row(seed=seed, name=seed, size=300) for seed in ("one", "open", "two")]
    verdicts = await act.batch(files)
    assert verdicts == [Added(files[0], is_new=True), None, Added(files[2], is_new=True)]
    assert sha256("open") not in await refs(act)
    added = await act.whole(files[1], replaced=upload)
    assert added.is_new
    assert (await checked_accounts(act.database))["alice"] == Account(finished=900)
    with pytest.raises(NotOpen):
        await act.whole(replace(files[1], id="x", name="x"), replaced=upload)


async def test_what_is_refused_gives_its_ref_back(act: Transactions) -> None:
    files = [file_row(seed=f"{number}", name=f"{number}", size=4_000) for number in range(4)]
    verdicts = await act.batch([*files, file_row(seed="0", name="again", size=2_000)])
    assert [type(verdict) for verdict in verdicts] == [Added, Added, QuotaExceeded, QuotaExceeded, Added]
    assert await refs(act) == {sha256("0"): 2, sha256("1"): 1, sha256("2"): 0, sha256("3"): 0}
    assert (await checked_accounts(act.database))["alice"] == Account(finished=10_000)
    assert await act.collect(sha256("2"))


async def test_batches_that_race_at_the_edge_of_the_quota_take_not_one_byte_too_many(act: Transactions) -> None:
    batches = [
        [file_row(seed=f"{racer}-{number}", name=f"{racer}-{number}", size=149) for number in range(20)]
        for racer in range(8)
    ]
    verdicts = await asyncio.gather(*(until_it_holds(act.batch, batch) for batch in batches))
    taken = 10_000 // 149
    counted = Counter(type(verdict) for each in verdicts for verdict in each)
    assert counted == {Added: taken, QuotaExceeded: 160 - taken}
    assert (await checked_accounts(act.database))["alice"] == Account(finished=taken * 149)


@pytest.mark.parametrize("if_exists", [IfExists.KEEP, IfExists.REPLACE])
async def test_batches_of_the_same_contents_in_other_orders_all_end(act: Transactions, if_exists: IfExists) -> None:
    """Of two users, whose contents are the same, and who replace their own files."""
    user_ids, chance = ("alice", "bob"), random.Random(17)
    await act.create_user("bob", 1_000_000)
    await act.database.transact(lambda connection: users.set_total_space(connection, "alice", 1_000_000))
    racers = []
    for number in range(8):
        seeds = chance.sample(range(60), 40)
        names = chance.sample(range(60), 40)
        racers.append([
            file_row(user_ids[number % 2], seed=f"{seed}", name=f"{name}", size=1 + seed)
            for seed, name in zip(seeds, names, strict=True)
        ])  # fmt: skip
    verdicts = await asyncio.gather(*(until_it_holds(act.batch, batch, if_exists) for batch in racers))
    assert all(isinstance(verdict, Added) for each in verdicts for verdict in each)
    await checked_accounts(act.database)
    for user_id in user_ids:
        names_of = Counter(name for name, _ in await files_of(act, user_id))
        assert set(names_of.values()) == {1}


async def test_whole_files_deletes_and_collections_of_one_content_that_race_keep_the_refs(act: Transactions) -> None:
    first = (await act.whole(file_row(name="first"))).file
    files = [file_row(name=f"file-{number}") for number in range(4)]
    beside = [file_row(name=f"beside-{number}", seed=f"{number % 2}", size=10) for number in range(4)]
    await asyncio.gather(
        act.delete(first),
        *(until_it_holds(act.whole, file) for file in files),
        until_it_holds(act.batch, [*beside, file_row(name="together")]),
        *(act.collect(first.sha256) for _ in range(4)),
    )
    assert (await refs(act))[first.sha256] == 5
    assert (await checked_accounts(act.database))["alice"] == Account(finished=5040)


async def test_whatever_is_done_to_the_same_names_at_once_the_accounts_are_right(act: Transactions) -> None:
    """Replacing, keeping, renaming, deleting, merging and collecting lock the same rows, in one order."""
    chance = random.Random(5)
    await act.database.transact(lambda connection: users.set_total_space(connection, "alice", 1_000_000))
    standing = [(await act.whole(file_row(seed=f"{n % 5}", name=f"{n}", size=10 + n % 5))).file for n in range(12)]

    def some(count: int) -> list[File]:
        chosen = chance.sample(range(12), count)
        seeds = [chance.randrange(5) for _ in chosen]
        return [file_row(seed=f"{s}", name=f"{n}", size=10 + s) for n, s in zip(chosen, seeds, strict=True)]

    async def rename(file: File) -> None:
        with suppress(NameTaken):
            await act.rename(file, f"{chance.randrange(12)}")

    async def merge(number: int) -> None:
        seed = number % 5
        upload = await act.open(
            upload_row(seed=None, size=10 + seed, name=f"{number}", if_exists=IfExists.REPLACE, md5=None)
        )
        await until_it_holds(act.merge, upload, f"{seed}")

    deeds: list[Awaitable[object]] = []
    for number in range(6):
        if_exists = list(IfExists)[number % 3]
        batch = some(6)
        deeds += [
            until_it_holds(act.batch, batch, if_exists),
            until_it_holds(act.whole, some(1)[0], IfExists.REPLACE),
            act.delete(standing[number]),
            rename(standing[number + 6]),
            merge(number),
            act.collect(sha256(f"{number % 5}")),
        ]
    await asyncio.gather(*deeds)
    await checked_accounts(act.database)
