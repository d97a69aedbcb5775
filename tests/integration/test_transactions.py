"""Each transaction on each kind of database; after each the accounts are computed anew from their definitions."""

import asyncio
import re
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from sqlalchemy import select

from tests.conftest import MakeStack
from tests.support.content import KIB
from tests.support.invariants import Account, checked_accounts
from tests.support.rows import NOW, Transactions, digests, file_row, upload_row
from tests.support.statements import statements
from uploader.database import models, queries, transactions
from uploader.database.engine import Database, Duplicate
from uploader.database.transactions import users
from uploader.database.transactions.rows import BlobLost, ClaimsChanged, NotOpen
from uploader.domain.links import owner
from uploader.domain.upload import STATE_OF_REASON, Reason, State, Upload
from uploader.errors import NameTaken, QuotaExceeded, TooManyUploads, UploaderError
from uploader.service.results import Opening, UploadStatus


@pytest.fixture
async def act(database: Database) -> Transactions:
    """The transactions on a database where `alice` has 10,000 bytes."""
    made = Transactions(database)
    await made.create_user()
    return made


async def account_of(act: Transactions, user_id: str = "alice") -> Account:
    """The checked account of a user."""
    return (await checked_accounts(act.database))[user_id]


async def row_of(act: Transactions, upload: Upload) -> Upload:
    row = await act.database.read(lambda connection: queries.upload_by_id(connection, upload.id))
    assert row is not None
    return row


async def refs_of(act: Transactions, seed: str = "content") -> int | None:
    query = select(models.blob.c.refs).where(models.blob.c.sha256 == digests(seed)["sha256"])

    async with act.database.engine.connect() as connection:
        refs: int | None = (await connection.execute(query)).scalar()
    return refs


# Opening


async def test_the_last_byte_of_a_quota_can_be_reserved_and_not_one_more(act: Transactions) -> None:
    await act.upload_and_merge(size=2_000)
    upload = await act.open(upload_row(size=7_999))
    assert await row_of(act, upload) == upload
    refused_upload = upload_row(size=2)
    with pytest.raises(QuotaExceeded) as refused:
        await act.open(refused_upload)
    assert refused.value.fields == {
        "total_space": 10_000,
        "use_space_finished": 2_000,
        "use_space_unfinished": 0,
        "reserved": 7_999,
        "requested": 2,
    }
    assert await act.database.read(lambda connection: queries.upload_by_id(connection, refused_upload.id)) is None
    await act.open(upload_row(size=1))
    assert await account_of(act) == Account(finished=2_000, reserved=8_000)


async def test_a_lowered_quota_refuses_and_takes_nothing(act: Transactions) -> None:
    upload = await act.open(upload_row(size=5_000))
    assert await act.database.transact(lambda connection: users.set_total_space(connection, "alice", 10))
    with pytest.raises(QuotaExceeded):
        await act.open(upload_row(size=1))
    await act.flush((upload, 0, 5_000))
    await act.merge(upload, upload.id)
    assert (await checked_accounts(act.database, lowered=True))["alice"] == Account(finished=5_000)


async def test_opening_for_nobody_is_refused(act: Transactions) -> None:
    with pytest.raises(BlobLost):
        await act.open(upload_row("nobody"))
    assert list(await checked_accounts(act.database)) == ["alice"]


async def test_the_number_of_open_uploads_is_limited(act: Transactions) -> None:
    first = await act.open(upload_row(size=1), max_open_uploads=2)
    await act.open(upload_row(size=1), max_open_uploads=2)
    with pytest.raises(TooManyUploads):
        await act.open(upload_row(size=1), max_open_uploads=2)
    await act.close(first)
    await act.open(upload_row(size=1), max_open_uploads=2)
    assert await account_of(act) == Account(reserved=2)


async def test_a_user_has_one_open_upload_of_an_md5_and_of_a_key(act: Transactions) -> None:
    await act.create_user("bob")
    await act.open(upload_row(seed="same"))
    with pytest.raises(Duplicate):
        await act.open(upload_row(seed="same"))
    await act.open(upload_row("bob", seed="same"))
    for key in ("one", "two", None, None):
        await act.open(upload_row(md5=None, idempotency_key=key))
    with pytest.raises(Duplicate):
        await act.open(upload_row(md5=None, idempotency_key="one"))
    assert await checked_accounts(act.database) == {"alice": Account(reserved=5000), "bob": Account(reserved=1000)}


async def test_a_hundred_openings_at_once_do_not_reserve_one_byte_too_many(act: Transactions) -> None:
    uploads = [upload_row(size=149) for _ in range(100)]
    results = await asyncio.gather(*(act.open(upload) for upload in uploads), return_exceptions=True)
    assert Counter(type(result) for result in results) == {Upload: 10_000 // 149, QuotaExceeded: 100 - 10_000 // 149}
    assert await account_of(act) == Account(reserved=10_000 // 149 * 149)


async def test_fifty_openings_through_the_service_leave_no_directory_but_their_own(
    make_stack_on: MakeStack,
) -> None:
    fitting, size = 20, 100 * KIB
    async with make_stack_on(max_open_uploads=1000) as stack:
        services = stack.services
        await services.accounts.set_total_space("alice", fitting * size + size - 1)

        async def open_one(number: int) -> UploadStatus:
            md5 = digests(f"{number}")["md5"]
            opening = Opening(
                caller=owner("alice"), md5=md5, sha256=None, name="a", size=size, chunk_size=None, instant=True
            )
            opened = await services.openings.open(opening)
            assert isinstance(opened, UploadStatus)
            return opened

        results = await asyncio.gather(*(open_one(number) for number in range(50)), return_exceptions=True)
        assert Counter(type(result) for result in results) == {UploadStatus: fitting, QuotaExceeded: 50 - fitting}
        assert (await checked_accounts(services.database))["alice"] == Account(reserved=fitting * size)
        directories = {path.parent.name for path in stack.bytes_on_disk()}
        assert directories == {result.upload.id for result in results if isinstance(result, UploadStatus)}


async def test_told_digests_are_stored_once_and_stand(act: Transactions) -> None:
    await act.open(upload_row(seed="same"))
    upload = await act.open(upload_row(md5=None))

    async def tell(seed: str) -> Upload:
        md5, sha256 = digests(seed).values()
        return await act.database.transact(
            lambda connection: transactions.uploads.tell_digests(connection, upload.id, md5, sha256)
        )

    with pytest.raises(Duplicate):
        await tell("same")
    assert (await row_of(act, upload)).md5 is None
    for seed in ("first", "second"):
        told = await tell(seed)
        assert {"md5": told.md5, "sha256": told.sha256} == digests("first")
    await act.close(upload)
    with pytest.raises(NotOpen):
        await tell("first")


# Flushing


async def test_a_flush_sets_the_absolute_figure_unless_it_is_replayed_late_or_of_an_older_generation(
    act: Transactions,
) -> None:
    upload = await act.open(upload_row())
    steps = [
        *((0, 300, 300), (0, 900, 900)),
        *((0, 900, None), (0, 300, None), (0, 0, None)),
        *((1, 400, 400), (0, 500, None), (0, 1000, None)),
    ]
    flushed_bytes = 0
    for generation, received, expected in steps:
        flushed = await act.flush((upload, generation, received))
        assert flushed.changed == (expected is not None)
        assert (upload.id in flushed.open_ids) == (generation == 1 or flushed_bytes != 400)
        flushed_bytes = flushed_bytes if expected is None else expected
        assert await account_of(act) == Account(unfinished=flushed_bytes, reserved=1000)
    row = await row_of(act, upload)
    assert (row.flushed_bytes, row.flushed_generation, row.updated_at) == (400, 1, NOW)


async def test_what_is_flushed_when_it_is_whole_has_to_be_looked_at(act: Transactions) -> None:
    """Redis would have it merged, if it had heard of its length. While that is not known, nothing is whole."""
    whole, growing = await act.open(upload_row()), await act.open(upload_row(length_known=False))
    flushed = await act.flush((whole, 0, 1000), (growing, 0, 1000))
    assert (flushed.changed, flushed.open_ids) == (2, frozenset({growing.id}))
    assert await account_of(act) == Account(unfinished=2000, reserved=2000)


async def test_a_flush_of_closed_and_unknown_uploads_changes_nothing_and_says_so(act: Transactions) -> None:
    cancelled, merged, unknown = upload_row(), upload_row(), upload_row()
    await act.close(await act.open(cancelled))
    await act.merge(await act.open(merged), merged.id)
    flushed = await act.flush((cancelled, 0, 500), (merged, 0, 500), (unknown, 5, 500))
    assert (flushed.changed, flushed.open_ids) == (0, frozenset())
    assert await account_of(act) == Account(finished=1000)


async def test_one_flush_serves_several_users_and_uploads_each_with_its_own_figure(act: Transactions) -> None:
    await act.create_user("bob")
    await act.create_user("idle")
    first, second = await act.open(upload_row()), await act.open(upload_row())
    bobs, behind = await act.open(upload_row("bob")), await act.open(upload_row("bob"))
    closed = await act.close(await act.open(upload_row("bob")))
    await act.flush((first, 0, 100), (behind, 1, 50))
    flushed = await act.flush((first, 0, 250), (second, 0, 30), (bobs, 0, 7), (behind, 0, 900), (closed, 0, 900))
    assert flushed.changed == 3
    # One of them was of an older generation, and one is closed.
    assert flushed.open_ids == {first.id, second.id, bobs.id}
    assert await checked_accounts(act.database) == {
        "alice": Account(unfinished=280, reserved=2000),
        "bob": Account(unfinished=57, reserved=2000),
        "idle": Account(),
    }
    assert [(await row_of(act, upload)).flushed_bytes for upload in (first, second, bobs, behind)] == [250, 30, 7, 50]


async def test_a_flush_finds_users_whatever_their_ids_are_made_of(act: Transactions) -> None:
    user_ids = ['a"b', "a\\b", "a\\\\u0041", "it's", "%s:batch", "ALICE", "Älice", "用户", "😀", "[1,2]", "x" * 255]
    for user_id in user_ids:
        await act.create_user(user_id)
    uploads = [await act.open(upload_row(user_id)) for user_id in user_ids]
    await act.flush(*((upload, 0, number + 1) for number, upload in enumerate(uploads)))
    accounts = await checked_accounts(act.database)
    assert [accounts[user_id].unfinished for user_id in user_ids] == list(range(1, len(user_ids) + 1))
    assert accounts["alice"] == Account()


async def test_flushers_that_race_in_any_order_leave_the_newest_figures(act: Transactions) -> None:
    uploads = [await act.open(upload_row()) for _ in range(5)]
    batches = [[(upload, 0, 100 * step) for upload in uploads[:: 1 if step % 2 else -1]] for step in range(1, 11)]
    results = await asyncio.gather(*(act.flush(*batch) for batch in batches))
    assert sum(flushed.changed for flushed in results) >= len(uploads)
    assert await account_of(act) == Account(unfinished=5000, reserved=5000)


# Ending without a file


async def test_closing_gives_back_by_the_rows_own_figure_and_frees_the_md5(act: Transactions) -> None:
    other = await act.open(upload_row(size=77))
    await act.flush((other, 0, 11))
    for reason, flushed_bytes in product(Reason, (0, 400, 1000)):
        upload = await act.open(upload_row(seed="same"))
        await act.flush((upload, 0, flushed_bytes))
        await act.close(upload, reason)
        assert await account_of(act) == Account(unfinished=11, reserved=77)
        row = await row_of(act, upload)
        assert (row.state, row.close_reason, row.closed_at) == (STATE_OF_REASON[reason], reason.value, NOW)


async def test_an_upload_is_closed_once(act: Transactions) -> None:
    upload = await act.open(upload_row())
    await act.close(upload)
    for again in (act.close(upload), act.merge(upload, upload.id), act.close(upload_row())):
        with pytest.raises(NotOpen):
            await again
    assert await account_of(act) == Account()


async def test_of_a_cancel_and_a_merge_that_race_one_wins(act: Transactions) -> None:
    for _ in range(5):
        upload = await act.open(upload_row())
        results = await asyncio.gather(act.close(upload), act.merge(upload, upload.id), return_exceptions=True)
        assert [type(result) for result in results].count(NotOpen) == 1
        await checked_accounts(act.database)
    assert (await account_of(act)).reserved == 0


# Merging


async def test_a_merge_compensates_by_the_rows_own_figure(act: Transactions) -> None:
    other = await act.open(upload_row(size=77))
    await act.flush((other, 0, 11))
    for number, flushed_bytes in enumerate((0, 400, 1000), start=1):
        upload = await act.open(upload_row(seed="content", name=f"file-{number}"))
        await act.flush((upload, 0, flushed_bytes))
        file = await act.merge(upload, "content")
        assert await account_of(act) == Account(finished=number * 1000, unfinished=11, reserved=77)
        sha256 = digests("content")["sha256"]
        assert (file.name, file.size, file.instant, file.sha256) == (upload.name, 1000, False, sha256)
        row = await row_of(act, upload)
        assert (row.state, row.file_id, row.close_reason, row.closed_at) == (State.DONE, file.id, None, NOW)
        assert await refs_of(act) == number


async def test_a_merge_of_what_the_user_has_under_this_name_gives_that_file_and_adds_nothing(act: Transactions) -> None:
    file = await act.upload_and_merge()
    again = await act.open(upload_row(seed="content"))
    await act.flush((again, 0, 1000))
    assert await act.merge(again, "content") == file
    assert await refs_of(act) == 1
    assert await account_of(act) == Account(finished=1000)
    assert (await row_of(act, again)).file_id == file.id


async def test_a_merge_that_is_refused_leaves_everything_as_it_was(act: Transactions) -> None:
    """Because of what the row claims, and because the bytes can't be placed."""
    refused = []
    for claim in ("md5", "sha256"):
        claims: dict[str, Any] = {"md5": None, "sha256": None, claim: digests("something else")[claim]}
        refused.append(await act.open(upload_row(**claims)))
        with pytest.raises(ClaimsChanged):
            await act.merge(refused[-1], "content")
    refused.append(await act.open(upload_row(seed="content")))

    async def fail() -> None:
        raise OSError("the disk is full")

    with pytest.raises(UploaderError):
        await act.database.transact(
            lambda connection: transactions.uploads.merge(
                connection, upload_id=refused[-1].id, file_id="f", place_blob=fail, now=NOW, **digests("content")
            )
        )
    assert {(await row_of(act, upload)).state for upload in refused} == {State.OPEN}
    assert await account_of(act) == Account(reserved=3000)
    assert await refs_of(act) is None


async def test_merges_of_the_same_content_that_race_share_one_blob(act: Transactions) -> None:
    users = [f"user-{number}" for number in range(8)]
    for user_id in users:
        await act.create_user(user_id)
    uploads = [await act.open(upload_row(user_id, seed="content")) for user_id in users]
    await asyncio.gather(*(act.merge(upload, "content") for upload in uploads))
    assert await refs_of(act) == len(users)
    accounts = await checked_accounts(act.database)
    assert [accounts[user_id] for user_id in users] == [Account(finished=1000)] * len(users)


async def test_merges_of_one_user_and_name_that_race_make_one_file(act: Transactions) -> None:
    uploads = [await act.open(upload_row(md5=None)) for _ in range(5)]
    files = await asyncio.gather(*(act.merge(upload, "content") for upload in uploads))
    assert len({file.id for file in files}) == 1
    assert {(await row_of(act, upload)).md5 for upload in uploads} == {digests("content")["md5"]}, "they had none"
    assert await refs_of(act) == 1
    assert await account_of(act) == Account(finished=1000)


# Instant files


async def test_an_instant_file_takes_a_ref_and_is_charged_once(act: Transactions) -> None:
    await act.create_user("bob", total_space=1000)
    original = await act.upload_and_merge()
    file, is_new = await act.instant(file_row("bob"))
    assert (is_new, file.instant) == (True, True)
    assert await act.instant(file_row()) == (original, False)
    with pytest.raises(QuotaExceeded):
        await act.instant(file_row("bob", name="other"))
    assert await refs_of(act) == 2
    assert await checked_accounts(act.database) == {"alice": Account(finished=1000), "bob": Account(finished=1000)}


async def test_an_instant_file_fits_at_the_edge_by_the_reservation_of_the_upload_it_ends(act: Transactions) -> None:
    await act.create_user("bob", total_space=1000)
    await act.upload_and_merge()
    upload = await act.open(upload_row("bob", seed="content"))
    await act.flush((upload, 0, 600))
    with pytest.raises(QuotaExceeded):
        await act.instant(file_row("bob"))
    file, is_new = await act.instant(file_row("bob"), replaced=upload)
    assert is_new
    assert await account_of(act, "bob") == Account(finished=1000)
    row = await row_of(act, upload)
    assert (row.state, row.file_id) == (State.DONE, file.id)


async def test_an_instant_file_does_not_end_an_upload_that_is_closed(act: Transactions) -> None:
    await act.upload_and_merge()
    upload = await act.open(upload_row(seed="content", name="other"))
    await act.close(upload)
    with pytest.raises(NotOpen):
        await act.instant(file_row(name="other"), replaced=upload)
    assert await refs_of(act) == 1
    assert await account_of(act) == Account(finished=1000)


# Deleting and collecting


async def test_a_file_is_deleted_once_and_gives_back_a_ref_and_the_size(act: Transactions) -> None:
    file = await act.upload_and_merge()
    other, _ = await act.instant(file_row(name="other"))
    assert (await asyncio.gather(*(act.delete(file) for _ in range(5)))).count(True) == 1
    assert await refs_of(act) == 1
    assert await account_of(act) == Account(finished=1000)
    assert await act.delete(other)
    assert await refs_of(act) == 0
    assert await account_of(act) == Account()


async def test_a_blob_is_collected_once_when_nobody_uses_it_and_its_bytes_can_be_removed(act: Transactions) -> None:
    file = await act.upload_and_merge()
    removed: list[str] = []
    assert not await act.collect(file.sha256, removed)
    await act.delete(file)

    async def fail() -> None:
        raise OSError("the disk is away")

    with pytest.raises(UploaderError):
        await act.database.transact(
            lambda connection: transactions.files.collect_blob(
                connection, file.sha256, prepare=act.database.sync, remove=fail, now=NOW
            )
        )
    assert await act.database.read(lambda connection: queries.blobs_without_refs(connection, 10)) == [file.sha256]
    assert await act.collect(file.sha256, removed)
    assert not await act.collect(file.sha256, removed)
    assert removed == [file.sha256]
    assert await refs_of(act) is None


async def test_of_a_tombstone_no_instant_file_is_made_and_a_merge_takes_its_row(act: Transactions) -> None:
    await act.delete(await act.upload_and_merge())
    for seed in ("content", "unknown"):
        with pytest.raises(BlobLost):
            await act.instant(file_row(seed=seed))
    assert await refs_of(act) == 0
    assert await account_of(act) == Account()
    await act.merge(await act.open(upload_row(seed="content")), "content")
    assert await refs_of(act) == 1
    assert await account_of(act) == Account(finished=1000)


async def test_merges_deletes_and_collections_of_one_content_that_race_keep_the_refs(act: Transactions) -> None:
    file = await act.upload_and_merge()
    uploads = [await act.open(upload_row(md5=None, name=f"file-{number}")) for number in range(4)]
    await asyncio.gather(
        act.delete(file),
        *(act.merge(upload, "content") for upload in uploads),
        *(act.collect(file.sha256) for _ in range(4)),
    )
    assert await refs_of(act) == len(uploads)
    assert await account_of(act) == Account(finished=4000)


async def test_a_name_that_a_file_has_already_can_not_be_taken(act: Transactions) -> None:
    file = await act.upload_and_merge()
    other, _ = await act.instant(file_row(name="other"))
    with pytest.raises(NameTaken):
        await act.rename(file, other.name)
    assert not await act.rename(replace(file, id="another"), "free")
    assert await act.rename(file, "free")


# Byte by byte


async def test_users_differ_by_every_byte(act: Transactions) -> None:
    users = ["A", "a", "a ", "a\0", "á", "a\u0301", "ß", "ss", "ä" * 127 + "b"]
    for user_id in users:
        await act.create_user(user_id)
    await act.open(upload_row("a ", size=5))
    accounts = await checked_accounts(act.database)
    assert set(accounts) == {*users, "alice"}
    assert {user_id for user_id, account in accounts.items() if account.reserved} == {"a "}
    assert await act.database.read(lambda connection: queries.usage(connection, "á")) is not None
    assert await act.database.read(lambda connection: queries.usage(connection, "Á")) is None


async def test_names_and_idempotency_keys_differ_by_every_byte(act: Transactions) -> None:
    names = ["A", "a", "a ", "a  ", "á", "a\u0301", "ä" * 512]
    sha256 = (await act.upload_and_merge()).sha256
    for name in names:
        assert (await act.instant(file_row(name=name, size=1)))[1]
    assert await refs_of(act) == 1 + len(names)
    for name in names:
        (found,) = await act.database.read(queries.files_of_names, "alice", [name])
        assert (found.name, found.sha256) == (name, sha256)
    for key in ("K", "k", "k ", "k  "):
        await act.open(upload_row(md5=None, size=1, idempotency_key=key))
    assert (await account_of(act)).reserved == 4


# The rest


async def test_only_uploads_closed_long_ago_are_purged(act: Transactions) -> None:
    is_open = await act.open(upload_row())
    closed = [await act.close(await act.open(upload_row())) for _ in range(3)]

    async def purge(limit: int) -> int:
        later = NOW.replace(year=2031)
        found = await act.database.read(lambda connection: queries.closed_uploads(connection, later, limit))
        ids = [upload.id for upload in found] + [is_open.id]
        return await act.database.transact(lambda connection: transactions.uploads.purge_uploads(connection, ids))

    assert await act.database.read(lambda connection: queries.closed_uploads(connection, NOW, 10)) == []
    assert [await purge(2) for _ in range(3)] == [2, 1, 0]
    assert (await row_of(act, is_open)).state is State.OPEN
    assert await act.database.read(lambda connection: queries.upload_by_id(connection, closed[0].id)) is None
    assert await account_of(act) == Account(reserved=1000)


async def test_the_contents_of_a_users_own_files_are_found_by_md5(act: Transactions) -> None:
    await act.create_user("bob")
    own, foreign = await act.upload_and_merge(seed="own"), await act.upload_and_merge("bob", seed="foreign")
    await act.instant(file_row(seed="own", name="the same again"))
    md5s = [own.md5 or "", foreign.md5 or "", "0" * 32, "é'\\", own.md5 or ""]
    found = await act.database.read(lambda connection: queries.contents_by_md5(connection, owner("alice"), md5s))
    assert [(blob.sha256, blob.md5, blob.size, blob.refs) for blob in found] == [(own.sha256, own.md5, own.size, 2)]
    assert await act.database.read(lambda connection: queries.contents_by_md5(connection, owner("alice"), [])) == []


async def test_what_was_promised_is_known_without_a_look_at_each_upload(database: Database) -> None:
    with statements(database) as sent:
        assert await database.read(queries.promised_bytes) == 0
    asked = " ".join(sent)
    assert re.search(r"\buser_info\b", asked)
    assert not re.search(r"\bupload\b", asked)
