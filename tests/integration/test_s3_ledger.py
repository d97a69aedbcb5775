"""What a store on S3 writes down, on each kind of database."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from itertools import cycle

import pytest
from sqlalchemy import select, update

from tests.support.rows import NOW, Transactions, digests, file_row, upload_row
from tests.support.statements import statements
from tests.support.waiting import PATIENCE_SECONDS
from uploader.database import models, recount, transactions
from uploader.database.engine import Connection, Database
from uploader.database.ledger import LedgerRows
from uploader.domain.ledger import Entry, PartNoted, PutAway, SavedDigest, StoredPart, TailObject
from uploader.domain.upload import IfExists
from uploader.service.ids import new_id
from uploader.storage.s3.ledger import Ledger

SECOND = timedelta(seconds=1)
ID = "0" * 31 + "1"
SHA256 = digests("content")["sha256"]
# Of a race: at least, and until each outcome was seen, at most.
_TURNS, _MOST_TURNS = 8, 400
# What no text is.
STATE = bytes(range(256))


@pytest.fixture
def ledger(database: Database) -> Ledger:
    return LedgerRows(database)


@pytest.fixture
async def another(database_url: str) -> AsyncIterator[Ledger]:
    """As another process has it."""
    opened = Database(database_url)
    yield LedgerRows(opened)
    await opened.close()


@pytest.fixture
async def act(database: Database) -> Transactions:
    made = Transactions(database)
    await made.create_user(total_space=1 << 40)
    return made


def part(number: int, key: str | None = None) -> StoredPart:
    return StoredPart(number, f"etag-{number}", key)


def tail(number: int, length: int = 100) -> TailObject:
    return TailObject(f"t/{ID}/{number}-{length}", number, length)


async def read(ledger: Ledger, upload_id: str = ID) -> Entry:
    found = await ledger.entry(upload_id)
    assert found is not None
    return found


async def add(ledger: Ledger, upload_id: str, *parts: StoredPart) -> None:
    for each in parts:
        assert await ledger.add_part(upload_id, 0, each, NOW) is PartNoted.ADDED


async def opened(ledger: Ledger, *numbers: int, multipart_id: str | None = "m") -> str:
    """An upload with those chunks."""
    upload_id = new_id()
    await ledger.open(upload_id, multipart_id, NOW)
    await add(ledger, upload_id, *map(part, numbers))
    return upload_id


# Uploads


async def test_an_upload_is_written_down_once(ledger: Ledger) -> None:
    assert await ledger.entry(ID) is None
    await ledger.open(ID, "m" * 1024, NOW)
    await ledger.open(ID, "another", NOW + SECOND)
    assert await read(ledger) == Entry(
        upload_id=ID,
        multipart_id="m" * 1024,
        fence=0,
        frozen=False,
        opened_at=NOW,
        written_at=NOW,
        tail=None,
        digest=None,
        parts={},
    )


async def test_the_first_one_of_a_chunk_counts(ledger: Ledger) -> None:
    await ledger.open(ID, None, NOW)
    assert await ledger.add_part(ID, 0, part(7, key="u/7"), NOW + SECOND) is PartNoted.ADDED
    assert await ledger.add_part(ID, 0, part(2), NOW) is PartNoted.ADDED
    assert await ledger.add_part(ID, 0, StoredPart(7, "another", None), NOW + 2 * SECOND) is PartNoted.PRESENT
    found = await read(ledger)
    assert found.parts == {2: part(2), 7: part(7, key="u/7")}
    assert list(found.parts) == [2, 7]
    # Of the clocks of two machines the later one counts; what was there already brought no bytes.
    assert found.written_at == NOW + SECOND


async def test_a_chunk_of_another_fence_or_of_nothing_is_refused(ledger: Ledger) -> None:
    assert await ledger.add_part(ID, 0, part(1), NOW) is PartNoted.REFUSED
    assert await ledger.freeze(ID) is None
    upload_id = await opened(ledger, 1, 2)
    assert await ledger.add_part(upload_id, 1, part(3), NOW) is PartNoted.REFUSED
    frozen = await ledger.freeze(upload_id)
    assert frozen == await read(ledger, upload_id)
    assert (frozen.fence, frozen.frozen, set(frozen.parts)) == (1, True, {1, 2})
    for fence in (0, 1):
        assert await ledger.add_part(upload_id, fence, part(3), NOW) is PartNoted.REFUSED
    assert not await ledger.move_tail(upload_id, 1, None, tail(3), NOW)
    assert await ledger.freeze(upload_id) == frozen
    # It is digested under its own fence.
    assert not await ledger.save_digest(upload_id, 0, SavedDigest(1, STATE))
    assert await ledger.save_digest(upload_id, 1, SavedDigest(1, STATE))


async def test_one_chunk_is_looked_at_alone(ledger: Ledger) -> None:
    assert await ledger.look(ID, 1) is None
    upload_id = await opened(ledger, 1, 2)
    assert await ledger.move_tail(upload_id, 0, None, tail(3), NOW)
    found = await read(ledger, upload_id)
    assert await ledger.look(upload_id, 2) == replace(found, parts={2: part(2)})
    assert await ledger.look(upload_id, 3) == replace(found, parts={})


async def test_a_tail_moves_from_where_it_was(ledger: Ledger) -> None:
    upload_id = await opened(ledger, 1)
    assert not await ledger.move_tail(upload_id, 0, tail(2), tail(2, 200), NOW)
    assert not await ledger.move_tail(upload_id, 1, None, tail(2), NOW)
    assert not await ledger.move_tail(upload_id, 0, None, tail(1), NOW)
    assert not await ledger.move_tail(ID, 0, None, tail(2), NOW)
    assert (await read(ledger, upload_id)).tail is None

    assert await ledger.move_tail(upload_id, 0, None, tail(2), NOW + SECOND)
    found = await read(ledger, upload_id)
    assert (found.tail, found.written_at) == (tail(2), NOW + SECOND)
    assert not await ledger.move_tail(upload_id, 0, None, tail(3), NOW)
    assert await ledger.move_tail(upload_id, 0, tail(2), tail(2, 200), NOW)
    assert await ledger.move_tail(upload_id, 0, tail(2, 200), None, NOW)
    assert (await read(ledger, upload_id)).tail is None

    assert await ledger.move_tail(upload_id, 0, None, tail(0), NOW)
    await add(ledger, upload_id, part(5))
    assert (await read(ledger, upload_id)).tail == tail(0)
    await add(ledger, upload_id, part(0))
    assert (await read(ledger, upload_id)).tail is None, "it ends with its chunk"


async def test_the_last_one_who_claims_appends(ledger: Ledger) -> None:
    assert not await ledger.claim(ID, "a" * 32)
    assert await ledger.appender(ID) is None
    await ledger.open(ID, "m", NOW)
    assert await ledger.appender(ID) is None
    for appender in ("a" * 32, "b" * 32, "b" * 32):
        assert await ledger.claim(ID, appender)
        assert await ledger.appender(ID) == appender


async def test_what_is_withdrawn_is_missing_again(ledger: Ledger) -> None:
    for at, stays in ((2, True), (3, False), (4, False)):
        upload_id = await opened(ledger, 0, 1, 3, 5)
        if at != 3:  # of which there is a chunk
            assert await ledger.move_tail(upload_id, 0, None, tail(at), NOW)
        assert await ledger.save_digest(upload_id, 0, SavedDigest(5, STATE))
        await ledger.freeze(upload_id)
        await ledger.withdraw(upload_id, [3, 5, 9], multipart_id="n")
        found = await read(ledger, upload_id)
        assert found.parts.keys() == {0, 1}
        assert (found.fence, found.frozen, found.multipart_id, found.digest) == (2, False, "n", None)
        assert found.tail == (tail(at) if stays else None)
        assert await ledger.add_part(upload_id, 1, part(3), NOW) is PartNoted.REFUSED
        assert await ledger.add_part(upload_id, 2, part(3), NOW) is PartNoted.ADDED


async def test_a_multipart_upload_that_takes_the_place_of_another_takes_all_and_nothing_that_came_since(
    ledger: Ledger,
) -> None:
    upload_id = await opened(ledger, 0, 1)
    assert await ledger.withdraw(upload_id, [0], multipart_id="n", instead_of="m")  # 1 came at that moment
    assert (await read(ledger, upload_id)).parts == {}
    assert await ledger.add_part(upload_id, 1, part(2), NOW) is PartNoted.ADDED
    assert await ledger.withdraw(upload_id, [0], multipart_id="n", instead_of="m"), "the same once more"
    assert not await ledger.withdraw(upload_id, [0, 2], multipart_id="o", instead_of="m")
    found = await read(ledger, upload_id)
    assert (set(found.parts), found.multipart_id, found.fence) == ({2}, "n", 1)
    assert await ledger.withdraw(upload_id, [2], multipart_id="n", instead_of="n")
    assert (await read(ledger, upload_id)).parts == {}
    assert not await ledger.withdraw(ID, [1], multipart_id="n", instead_of="m")


async def test_withdrawing_may_be_repeated_and_takes_none_but_those(ledger: Ledger) -> None:
    await ledger.withdraw(ID, [1], multipart_id="n")
    assert await ledger.entry(ID) is None
    upload_id, other_id = await opened(ledger, 1, 2), await opened(ledger, 1, 2)
    for _ in range(2):
        await ledger.withdraw(upload_id, [2], multipart_id=None)
    await ledger.withdraw(upload_id, [], multipart_id=None)
    found = await read(ledger, upload_id)
    assert (set(found.parts), found.fence, found.multipart_id) == ({1}, 3, None)
    assert (await read(ledger, other_id)).parts.keys() == {1, 2}


async def test_digests_come_only_forwards(ledger: Ledger) -> None:
    upload_id = await opened(ledger)
    for unknown in (ID, upload_id):
        assert await ledger.digest(unknown, 0) is None
    assert not await ledger.save_digest(ID, 0, SavedDigest(1, STATE))
    assert not await ledger.save_digest(upload_id, 1, SavedDigest(1, STATE))
    assert (await read(ledger, upload_id)).digest is None
    for position, saved in ((10, True), (9, False), (10, True), (2**40, True)):
        digest = SavedDigest(position, STATE + bytes([position % 7]))
        assert await ledger.save_digest(upload_id, 0, digest) is saved
        assert ((await read(ledger, upload_id)).digest == digest) is saved
    told = await ledger.digest(upload_id, 2**40 - 1)
    assert told is not None
    assert told.position == 2**40
    assert await ledger.digest(upload_id, 2**40) is None, "it is told where it is further"
    whole = SavedDigest(2**40, b"", (None, SHA256))
    assert await ledger.save_digest(upload_id, 0, whole)
    assert not await ledger.save_digest(upload_id, 0, replace(whole, digests=None))
    with_md5 = replace(whole, digests=(digests("content")["md5"], SHA256))
    assert await ledger.save_digest(upload_id, 0, with_md5)
    assert (await read(ledger, upload_id)).digest == with_md5
    await ledger.forget_digest(upload_id)
    assert (await read(ledger, upload_id)).digest is None
    assert await ledger.save_digest(upload_id, 0, SavedDigest(0, b""))


async def test_the_digests_of_a_chunk_come_with_its_row(ledger: Ledger) -> None:
    upload_id = await opened(ledger)
    first, second = SavedDigest(10, STATE), SavedDigest(20, STATE[::-1])
    assert await ledger.add_part(upload_id, 0, part(0), NOW, first) is PartNoted.ADDED
    assert (await read(ledger, upload_id)).digest == first
    assert await ledger.add_part(upload_id, 0, part(0), NOW, second) is PartNoted.PRESENT
    assert await ledger.add_part(upload_id, 1, part(1), NOW, second) is PartNoted.REFUSED
    await add(ledger, upload_id, part(1))
    assert (await read(ledger, upload_id)).digest == first
    assert await ledger.add_part(upload_id, 0, part(2), NOW, second) is PartNoted.ADDED
    for number, earlier in ((3, first), (4, replace(second, state=STATE))):
        assert await ledger.add_part(upload_id, 0, part(number), NOW, earlier) is PartNoted.ADDED
    assert (await read(ledger, upload_id)).digest == second


async def test_what_is_forgotten_is_gone_with_its_chunks(ledger: Ledger) -> None:
    upload_id, other_id = await opened(ledger, 1, 2), await opened(ledger, 1)
    assert (await ledger.uploads_of([upload_id, other_id, ID])).keys() == {upload_id, other_id}
    assert await ledger.forget(upload_id)
    assert not await ledger.forget(upload_id)
    assert await ledger.entry(upload_id) is None
    await ledger.open(upload_id, "m", NOW)
    assert (await read(ledger, upload_id)).parts == {}
    assert (await read(ledger, other_id)).parts == {1: part(1)}


async def test_uploads_are_listed_by_id(ledger: Ledger) -> None:
    ids = sorted(new_id() for _ in range(5))
    for age, upload_id in enumerate(ids):
        await ledger.open(upload_id, None, NOW - age * SECOND)
        await ledger.add_part(upload_id, 0, part(1), NOW)
    assert await ledger.move_tail(ids[3], 0, None, tail(3), NOW)
    first = await ledger.opened_before(NOW - SECOND, after="", limit=2)
    assert [each.upload_id for each in first] == ids[2:4]
    assert first[1] == replace(await read(ledger, ids[3]), parts={})
    rest = await ledger.opened_before(NOW - SECOND, after=ids[3], limit=2)
    assert [each.upload_id for each in rest] == ids[4:]
    assert await ledger.opened_before(NOW, after="f" * 32, limit=2) == []


async def test_the_pieces_of_a_whole_are_written_down_in_order(ledger: Ledger) -> None:
    assert await ledger.pieces(ID) == []
    await ledger.open(ID, "m", NOW)
    pieces = [(f"u/{number}", 10 + number) for number in (2, 1, 3)]
    for written in (pieces[1:], pieces, pieces):
        await ledger.set_pieces(ID, written)
        assert await ledger.pieces(ID) == written
    other_id = await opened(ledger)
    await ledger.set_pieces(other_id, pieces[:1])
    assert await ledger.forget(ID)
    assert await ledger.pieces(ID) == []
    assert await ledger.pieces(other_id) == pieces[:1]
    await ledger.set_pieces(other_id, [])
    assert await ledger.pieces(other_id) == []


# At once


async def test_of_many_at_once_one_counts(ledger: Ledger, another: Ledger) -> None:
    upload_id = await opened(ledger)
    brought = [StoredPart(1, f"etag-{number}", None) for number in range(8)]
    noted = await asyncio.gather(
        *((ledger, another)[n % 2].add_part(upload_id, 0, each, NOW) for n, each in enumerate(brought))
    )
    assert Counter(noted) == {PartNoted.ADDED: 1, PartNoted.PRESENT: 7}
    assert (await read(another, upload_id)).parts[1] == brought[noted.index(PartNoted.ADDED)]
    assert await ledger.put_away(PutAway("u/1", SHA256, 1, NOW))
    done = await asyncio.gather(*((ledger, another)[n % 2].take_out("u/1") for n in range(4)))
    assert sorted(done) == [False, False, False, True]


async def test_no_chunk_is_added_once_an_upload_is_frozen(ledger: Ledger, another: Ledger) -> None:
    """Each is counted by whoever froze it, or refused; whichever was faster."""
    outcomes: Counter[PartNoted] = Counter()
    for turn, before in zip(range(_MOST_TURNS), cycle((0, 1, 2, 3, 4, 5, 5, 5)), strict=False):
        if turn >= _TURNS and len(outcomes) == 2:
            break
        upload_id = await opened(ledger)
        adding = [ledger.add_part(upload_id, 0, part(number), NOW) for number in range(5)]
        first = asyncio.gather(*adding[:before])
        await asyncio.sleep(0.002 * (before % 2))
        frozen, last = await asyncio.gather(another.freeze(upload_id), asyncio.gather(*adding[before:]))
        assert frozen is not None
        noted = [*await first, *last]
        outcomes.update(noted)
        assert frozen.parts.keys() == {number for number, each in enumerate(noted) if each is PartNoted.ADDED}
        assert await read(another, upload_id) == frozen
        assert await ledger.add_part(upload_id, 0, part(9), NOW) is PartNoted.REFUSED
    assert outcomes.keys() == {PartNoted.ADDED, PartNoted.REFUSED}


async def test_a_tail_never_stays_beside_its_chunk(ledger: Ledger, another: Ledger) -> None:
    for turn in range(8):
        upload_id = await opened(ledger)
        adding = asyncio.ensure_future(ledger.add_part(upload_id, 0, part(1), NOW))
        await asyncio.sleep(0.001 * turn)
        await another.move_tail(upload_id, 0, None, tail(1), NOW)
        assert await adding is PartNoted.ADDED
        found = await read(ledger, upload_id)
        assert (found.tail, found.parts) == (None, {1: part(1)})


async def test_what_is_read_is_of_one_moment(ledger: Ledger, another: Ledger) -> None:
    """A tail becomes a chunk: one of them is seen at any time."""
    upload_id = await opened(ledger)

    async def fill() -> None:
        for number in range(20):
            assert await ledger.move_tail(upload_id, 0, None, tail(number), NOW)
            await add(ledger, upload_id, part(number))

    filling, before = asyncio.create_task(fill()), 0
    while not filling.done():
        found = await read(another, upload_id)
        reached = len(found.parts) + (found.tail is not None)
        assert reached >= before
        before = reached
    await filling


# Contents


async def lying_at(act: Transactions, key: str, seed: str = "content", size: int = 1000) -> str:
    """A content in use with a location; its SHA-256."""
    added = await act.whole(file_row(seed=seed, size=size, name=new_id()))
    await relocated(act, {added.file.sha256: key})
    return added.file.sha256


async def relocated(act: Transactions, locations: dict[str, str]) -> None:
    async def work(connection: Connection) -> None:
        await transactions.files.relocate(connection, locations, NOW)

    await act.database.transact(work)


async def test_a_content_is_found_where_it_lies(act: Transactions, ledger: Ledger) -> None:
    first, second = await lying_at(act, "u/1", "a"), await lying_at(act, "u/2", "b")
    without = (await act.whole(file_row(seed="c", name="c"))).file.sha256
    unknown = digests("d")["sha256"]
    assert await ledger.locations([first, second, without, unknown]) == {first: "u/1", second: "u/2"}
    assert await ledger.locations([first]) == {first: "u/1"}
    assert await ledger.contents_at(["u/2", "u/3"]) == {"u/2": second}
    assert await ledger.locations([]) == await ledger.contents_at([]) == {}


async def test_what_a_row_names_is_told(act: Transactions, ledger: Ledger) -> None:
    await lying_at(act, "u/1")
    upload_id = await opened(ledger)
    await add(ledger, upload_id, part(0, key="c/0"))
    await add(ledger, upload_id, part(1))
    assert await ledger.move_tail(upload_id, 0, None, tail(2), NOW)
    assert await ledger.put_away(PutAway("u/9", SHA256, 5, NOW))
    await ledger.set_pieces(upload_id, [("p/0", 1)])
    named = {"u/1", "c/0", tail(2).key, "u/9", "p/0"}
    assert await ledger.named([*named, "u/2", "c/1", upload_id]) == named
    assert await ledger.kept([*named, "u/2"]) == {"u/1", "u/9", "p/0"}
    assert await ledger.kept([*named, "u/2"], but_of=upload_id) == {"u/1", "u/9"}
    assert await ledger.named(["u/2"]) == await ledger.named([]) == set()
    assert await ledger.uploads_of([]) == {}


async def test_of_an_upload_that_became_a_content_nothing_else_may_be_left(act: Transactions, ledger: Ledger) -> None:
    await lying_at(act, "u/1")

    async def became(*, frozen: bool = True, key: str | None = None, other: str | None = None) -> str:
        upload_id = await opened(ledger, 0)
        await add(ledger, upload_id, part(1, key=key))
        if other == "tail":
            assert await ledger.move_tail(upload_id, 0, None, tail(2), NOW)
        if other == "piece":
            await ledger.set_pieces(upload_id, [("p/0", 1)])
        if frozen:
            await ledger.freeze(upload_id)
        return upload_id

    for upload_id in (await became(), await became(key="u/1")):
        assert not await ledger.forget_placed(upload_id, "u/2")
        assert (await read(ledger, upload_id)).parts.keys() == {0, 1}
        assert await ledger.forget_placed(upload_id, "u/1")
        assert not await ledger.forget_placed(upload_id, "u/1")
        assert await ledger.entry(upload_id) is None
    for upload_id in (
        await became(frozen=False),
        await became(key="u/3"),
        await became(other="tail"),
        await became(other="piece"),
    ):
        assert not await ledger.forget_placed(upload_id, "u/1")
        assert (await read(ledger, upload_id)).parts.keys() == {0, 1}


async def test_what_moves_is_named_all_the_while(act: Transactions, ledger: Ledger, another: Ledger) -> None:
    sha256 = await lying_at(act, "u/0")

    async def move() -> None:
        for number in range(1, 21):
            await relocated(act, {sha256: f"u/{number % 2}"})

    moving = asyncio.create_task(move())
    while not moving.done():
        assert "u/0" in await another.named(["u/0", "u/1"])
    await moving


# Where the bytes of a content are


async def test_a_merge_says_where_the_bytes_are_and_what_was_there_is_put_away(
    act: Transactions, ledger: Ledger
) -> None:
    for number in range(2):
        upload = await act.open(upload_row(md5=None, name=f"file-{number}"))

        async def place(key: str = f"u/{number}") -> str:
            return key

        await act.database.transact(
            lambda connection, upload=upload, place=place: transactions.uploads.merge(  # type: ignore[misc]
                connection, upload_id=upload.id, file_id=new_id(), place_blob=place, now=NOW, **digests("content")
            )
        )
    assert await ledger.locations([SHA256]) == {SHA256: "u/1"}
    assert await ledger.copies(SHA256) == [PutAway("u/0", SHA256, 1000, NOW)]


async def test_files_that_come_whole_say_where_their_bytes_are(act: Transactions, ledger: Ledger) -> None:
    files = [file_row(seed=f"{number}", name=f"{number}") for number in range(5)]
    for turn in range(2):
        locations = {file.sha256: f"w/{turn}/{file.name}" for file in files}

        async def place(sha256s: object, locations: dict[str, str] = locations) -> dict[str, str]:
            assert sha256s == set(locations)
            return locations

        await act.database.transact(
            lambda connection, place=place: transactions.files.add_whole_files(  # type: ignore[misc]
                connection,
                [replace(file, id=new_id()) for file in files],
                IfExists.KEEP,
                place_blobs=place,
                max_files=99,
            )
        )
        assert await ledger.locations([file.sha256 for file in files]) == locations
    assert [put.key for put in await ledger.all_put_away(after="", limit=9)] == [f"w/0/{n}" for n in range(5)]

    async def place_one() -> str:
        return "w/2/0"

    await act.database.transact(
        lambda connection: transactions.files.add_file(
            connection, replace(files[0], id=new_id()), IfExists.KEEP, None, place_one, max_files=99
        )
    )
    assert [put.key for put in await ledger.copies(files[0].sha256)] == ["w/0/0", "w/1/0"]


async def test_what_lies_where_it_lay_is_not_put_away(act: Transactions, ledger: Ledger) -> None:
    sha256 = await lying_at(act, "u/1")
    await relocated(act, {sha256: "u/1"})
    assert not await ledger.put_away(PutAway("u/1", sha256, 1000, NOW))
    assert await ledger.copies(sha256) == []
    with statements(act.database) as sent:
        await relocated(act, {})
    assert [statement for statement in sent if not statement.startswith(("BEGIN", "COMMIT"))] == []
    # Back and forth: the trash has what is not in use.
    await relocated(act, {sha256: "u/2"})
    await relocated(act, {sha256: "u/1"})
    assert [put.key for put in await ledger.copies(sha256)] == ["u/2"]
    assert await ledger.locations([sha256]) == {sha256: "u/1"}


async def test_what_is_collected_is_put_away_by_a_row(act: Transactions, ledger: Ledger) -> None:
    sha256 = await lying_at(act, "u/1")
    removed: list[str] = []
    assert not await act.collect(sha256, removed)
    async with act.database.engine.begin() as connection:
        await connection.execute(update(models.blob).values(refs=0))
    assert await act.collect(sha256, removed)
    assert removed == []
    assert await ledger.locations([sha256]) == {}
    assert await ledger.copies(sha256) == [PutAway("u/1", sha256, 1000, NOW)]
    assert not await act.collect(sha256, removed)


# The trash


async def test_what_is_put_away_is_kept_until_it_is_taken_out(ledger: Ledger) -> None:
    puts = [PutAway(f"u/{number}", SHA256, number, NOW + number * SECOND) for number in range(3)]
    other = PutAway("u/3", digests("other")["sha256"], 3, NOW)
    for put in (*puts, other):
        assert await ledger.put_away(put)
    assert await ledger.put_away(replace(puts[0], created_at=NOW + 9 * SECOND))
    assert await ledger.copies(SHA256) == puts[::-1]
    assert await ledger.all_put_away(after="", limit=2) == puts[:2]
    assert await ledger.all_put_away(after="u/1", limit=9) == [puts[2], other]
    assert await ledger.take_out("u/1")
    assert not await ledger.take_out("u/1")
    assert await ledger.copies(SHA256) == [puts[2], puts[0]]


async def test_what_comes_back_while_it_is_put_away_is_no_trash(act: Transactions, another: Ledger) -> None:
    """Whichever is faster: no content lies in the trash."""
    sha256 = await lying_at(act, "u/0")
    for number in range(1, 12):
        key = f"u/{number}"
        put = PutAway(key, sha256, 1000, NOW)
        await asyncio.gather(relocated(act, {sha256: key}), *(another.put_away(put) for _ in range(number % 3 + 1)))
        assert await another.locations([sha256]) == {sha256: key}
        kept = {each.key for each in await another.copies(sha256)}
        assert kept == {f"u/{other}" for other in range(number)}


async def test_all_that_is_written_down_is_whole(act: Transactions, ledger: Ledger) -> None:
    """As SQLite's rows are asked, which have no checksums."""
    upload_id = await opened(ledger, 1)
    await add(ledger, upload_id, part(2, key="c/2"))
    assert await ledger.move_tail(upload_id, 0, None, tail(3), NOW)
    assert await ledger.claim(upload_id, "a" * 32)
    assert await ledger.save_digest(upload_id, 0, SavedDigest(1, STATE, tuple(digests("x").values())))
    await ledger.set_pieces(upload_id, [("p/0", 1)])
    sha256 = await lying_at(act, "u/1")
    await relocated(act, {sha256: "u/2"})
    assert await act.database.read(recount.malformed) == []
    assert await act.database.read(recount.contradictions) == []


# Within other transactions


async def test_what_a_transaction_calls_may_write(database: Database, ledger: Ledger) -> None:
    """As a purge does, which has the row of the content locked meanwhile."""
    await ledger.open(ID, "m", NOW)
    left: list[asyncio.Task[None]] = []
    other_id = new_id()

    async def purge(_: object) -> bool:
        await asyncio.gather(*(ledger.put_away(PutAway(f"u/{number}", SHA256, 1, NOW)) for number in range(3)))
        await ledger.open(ID, "another", NOW)
        left.append(asyncio.create_task(open_later()))
        return await ledger.take_out("u/1")

    async def open_later() -> None:
        await asyncio.sleep(0.05)
        await ledger.open(other_id, "m", NOW)

    called = database.outside(purge)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await database.transact(
            lambda connection: transactions.files.with_blob_locked(connection, SHA256, called, NOW), alone=True
        )
        await left[0]
    assert {put.key for put in await ledger.copies(SHA256)} == {"u/0", "u/2"}
    assert (await read(ledger)).multipart_id == "m"
    assert (await ledger.uploads_of([other_id])).keys() == {other_id}


async def test_on_sqlite_what_a_transaction_calls_goes_with_it(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    ledger = LedgerRows(database)

    async def write() -> None:
        await ledger.open(ID, "m", NOW)
        raise KeyError

    called = database.outside(write)
    with pytest.raises(KeyError):
        await database.transact(lambda _: called())
    assert await ledger.entry(ID) is None
    await database.close()


async def test_no_row_of_a_chunk_stays_without_its_upload(ledger: Ledger, another: Ledger, database: Database) -> None:
    for _ in range(5):
        upload_id = await opened(ledger, 1)
        forgotten, _ = await asyncio.gather(another.forget(upload_id), ledger.add_part(upload_id, 0, part(2), NOW))
        assert forgotten
        assert await ledger.entry(upload_id) is None
    async with database.engine.connect() as connection:
        assert (await connection.execute(select(models.chunk))).all() == []
