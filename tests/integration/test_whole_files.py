"""Files that come whole, as the service takes them: what becomes of each, of the accounts, and of the bytes."""

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from itertools import count as numbers
from pathlib import Path

import pytest

from tests.conftest import MakeStack
from tests.support.bodies import InPieces
from tests.support.content import KIB, Content
from tests.support.faults import Call, failing_call, intercepting, recorded_calls
from tests.support.invariants import checked_accounts
from tests.support.stack import Stack, without_database
from tests.support.waiting import eventually
from uploader.database import queries
from uploader.database.transactions import files
from uploader.domain.digest import ClaimedDigests
from uploader.domain.links import Caller, owner
from uploader.domain.upload import IfExists, State
from uploader.errors import (
    FileTooLarge,
    NameTaken,
    QuotaExceeded,
    StorageFailed,
    Unavailable,
    UploaderError,
)
from uploader.service.results import Complete, NewFile, Target
from uploader.storage.base import Arrival, Body
from uploader.storage.local.blobs import blob_path

_NO_CLAIMS = ClaimedDigests([], [])


class Sent:
    """A body as the edge gives it."""

    def __init__(self, data: bytes, *, declared: bool = True) -> None:
        self.body = InPieces(data)
        self.declared_bytes = len(data) if declared else None
        self.asked = False

    async def receive_up_to(self, caller: Caller, limit_bytes: int) -> Body:
        self.asked = True
        return self.body


def new(
    name: str = "a.bin",
    *,
    md5: str | None = None,
    sha256: str | None = None,
    if_exists: IfExists = IfExists.KEEP,
    user_id: str = "alice",
) -> NewFile:
    return NewFile(caller=owner(user_id), name=name, md5=md5, sha256=sha256, if_exists=if_exists, modified_at=None)


async def send(stack: Stack, data: bytes, name: str = "a.bin", **more: object) -> Complete:
    return await stack.services.whole.receive(new(name, **more), Sent(data), _NO_CLAIMS)  # type: ignore[arg-type]


Entries = AsyncIterator[tuple[NewFile, Body] | UploaderError]


async def received(stack: Stack, entries: Entries) -> list[Complete | UploaderError]:
    return [outcome async for outcome in stack.services.whole.receive_many(owner("alice"), entries)]


async def entries_of(
    bodies: Iterable[InPieces], names: Iterable[str] | None = None, if_exists: IfExists = IfExists.KEEP
) -> Entries:
    for name, body in zip(names or map(str, numbers()), bodies, strict=False):
        yield new(name, if_exists=if_exists), body


async def send_many(
    stack: Stack, members: Iterable[tuple[str, bytes]], if_exists: IfExists = IfExists.KEEP
) -> list[Complete | UploaderError]:
    members = list(members)
    bodies = [InPieces(data) for _, data in members]
    outcomes = await received(stack, entries_of(bodies, [name for name, _ in members], if_exists))
    assert all(body.keepers == 0 for body in bodies)
    return outcomes


async def names(stack: Stack) -> list[tuple[str, int]]:
    files, _ = await stack.services.files.list("alice", limit=1000, after=None, prefix=None)
    return sorted((file.name, file.size) for file in files)


async def test_an_open_upload_of_the_content_is_closed_by_it(stack: Stack) -> None:
    content = Content(100 * KIB)
    opened = (await stack.open(content)).json()["upload"]
    await stack.put(content, 0)
    complete = await send(stack, content.data, content.name)
    assert complete.created
    assert await stack.usage("alice") == {"finished": content.size, "unfinished": 0, "reserved": 0}
    status = await stack.services.uploads.status(Target(owner("alice"), upload_id=opened["id"]))
    assert isinstance(status, Complete) and status.file.id == complete.file.id
    assert [path.relative_to(stack.data).parts[0] for path in stack.bytes_on_disk()] == ["blobs"]


async def test_the_quota_is_decided_member_by_member(stack: Stack) -> None:
    await stack.services.accounts.set_total_space("alice", 100)
    outcomes = await send_many(stack, [("a", b"a" * 60), ("b", b"b" * 60), ("c", b"c" * 40), ("d", b""), ("e", b"e")])
    assert [type(outcome) for outcome in outcomes] == [Complete, QuotaExceeded, Complete, Complete, QuotaExceeded]
    assert await names(stack) == [("a", 60), ("c", 40), ("d", 0)]
    assert (await stack.usage("alice"))["finished"] == 100
    # What there is already, and what takes the place of as much, needs no room.
    assert (await send(stack, b"a" * 60, "a")).created is False
    assert (await send(stack, b"A" * 60, "a", if_exists=IfExists.REPLACE)).created
    with pytest.raises(QuotaExceeded):
        await send(stack, b"A" * 61, "a", if_exists=IfExists.REPLACE)
    assert await names(stack) == [("a", 60), ("c", 40), ("d", 0)]


# What is on the disk already, or goes at this moment


def fill(data: bytes, stack: Stack) -> Path:
    """Bytes under the name of a content, and no row."""
    path = stack.data / blob_path(hashlib.sha256(data).hexdigest())
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("count", [1, 5])
async def test_what_a_sync_failed_for_is_written_again(stack: Stack, count: int) -> None:
    """A disk that fails to take pages takes them off its list, and the next sync says nothing of them."""
    members = [(f"{number}", f"{number}".encode()) for number in range(count)]
    with failing_call("syncfs" if count > 1 else "fdatasync"), pytest.raises(StorageFailed):
        await send_many(stack, members) if count > 1 else await send(stack, members[0][1], members[0][0])
    assert await names(stack) == []
    with recorded_calls("pwrite", "fdatasync", "syncfs") as calls:
        await send_many(stack, members)
    written = [name for call, name in calls if call == "pwrite"]
    assert set(written) == {hashlib.sha256(data).hexdigest() for _, data in members}
    assert calls[-1][0] == ("syncfs" if count > 1 else "fdatasync")
    assert len(await names(stack)) == count


async def test_an_error_of_the_disk_is_told_to_each_whose_bytes_it_may_concern(stack: Stack) -> None:
    """The kernel tells it once for each open directory: so each group has one of its own, opened before it writes."""
    opened: dict[str, list[int]] = {"open": [], "syncfs": []}

    def around(call: Call) -> object:
        made = call.make()
        if call.name == "open" and call.path.name == "blobs":
            opened["open"].append(made)
        if call.name in ("pwrite", "syncfs"):
            opened.setdefault(call.name, []).append(call.arguments[0])
        return made

    with intercepting(around):
        await send_many(stack, [(f"{number}", f"{number}".encode()) for number in range(5)])
    assert opened["syncfs"] and set(opened["syncfs"]) <= set(opened["open"])


@pytest.mark.parametrize("error_number", [errno.EIO, errno.EUCLEAN])
async def test_bytes_that_can_not_be_read_back_are_displaced(stack: Stack, error_number: int) -> None:
    data = b"right" * 100
    path = fill(data, stack)
    inode = path.stat().st_ino
    with failing_call("pread", error_number, only=lambda read: read == path):
        assert (await send(stack, data)).created
    assert path.read_bytes() == data
    assert path.stat().st_ino != inode


async def test_a_name_that_goes_between_two_looks_is_placed_anew(stack: Stack) -> None:
    data = b"here and gone"
    path = fill(data, stack)

    def around(call: Call) -> object:
        if call.name == "open" and call.path == path and not call.arguments[1] & os.O_CREAT:
            path.unlink(missing_ok=True)
        return call.make()

    with intercepting(around):
        assert (await send(stack, data)).created
    assert path.read_bytes() == data


@pytest.mark.parametrize("count", [1, 5])
async def test_other_bytes_are_displaced_once_however_many_members_have_the_content(stack: Stack, count: int) -> None:
    data = b"right"
    path = fill(data, stack)
    path.write_bytes(b"wrong")
    outcomes = await send_many(stack, [(f"{number}", data) for number in range(count)])
    assert all(isinstance(outcome, Complete) for outcome in outcomes)
    assert path.read_bytes() == data
    (trashed,) = (path for path in (stack.data / "trash" / "blobs").rglob("*") if path.is_file())
    assert trashed.read_bytes() == b"wrong"


@contextmanager
def after_storing(stack: Stack, meanwhile: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Something happens between the writing and the transaction."""
    storage = stack.services.storage
    store = storage.store_arrivals

    async def store_and_go_on(arrivals: Sequence[Arrival]) -> None:
        await store(arrivals)
        await meanwhile()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(storage, "store_arrivals", store_and_go_on)
        yield


@pytest.mark.parametrize("count", [1, 5])
async def test_a_collector_that_is_faster_costs_a_second_write(stack: Stack, count: int) -> None:
    """The content was there, and goes with its last file."""
    members = [(f"{number}", f"{number}".encode()) for number in range(count)]
    old = [await send(stack, data, f"old-{name}") for name, data in members]

    async def collect() -> None:
        for complete in old:
            await stack.services.files.delete("alice", complete.file.id)
        old.clear()
        await stack.services.files.collect_all(100)

    with after_storing(stack, collect):
        outcomes = await send_many(stack, members)
    assert all(isinstance(outcome, Complete) and outcome.created for outcome in outcomes)
    for _, data in members:
        assert (stack.data / blob_path(hashlib.sha256(data).hexdigest())).read_bytes() == data
    await checked_accounts(stack.services.database)


async def test_another_file_of_the_same_number_is_not_taken_for_ours(stack: Stack) -> None:
    """Where nothing goes to the trash, an inode is used again at once, perhaps for bytes that are on their way."""
    data = b"ours"
    path = stack.data / blob_path(hashlib.sha256(data).hexdigest())

    async def change() -> None:
        before = path.stat().st_ctime_ns
        while path.stat().st_ctime_ns == before:  # the clock of the kernel has ticks
            path.write_bytes(b"half")

    with after_storing(stack, change):
        await send(stack, data)
    assert path.read_bytes() == data


# One path twice


async def test_one_path_twice_is_taken_in_order(stack: Stack) -> None:
    content = Content(100 * KIB)
    await stack.open(content)  # of this MD5 an upload is open: it is closed by its member, outside of the group
    members = [("a", content.data), ("a", b"second"), ("b", b"1"), ("b", b"22"), ("b", b"1")]
    for _ in range(2):
        outcomes = await send_many(stack, members, IfExists.REPLACE)
        assert all(isinstance(outcome, Complete) for outcome in outcomes)
        assert await names(stack) == [("a", 6), ("b", 1)]
    assert await stack.usage("alice") == {"finished": 7, "unfinished": 0, "reserved": 0}
    await checked_accounts(stack.services.database)


async def test_a_name_that_is_taken_is_the_only_members_own_affair(stack: Stack) -> None:
    await send(stack, b"1", "a")
    content = Content(100 * KIB)
    await stack.open(content)
    members = [("a", b"2"), ("b", content.data)]  # the other one leaves the group
    assert [type(outcome) for outcome in await send_many(stack, members, IfExists.FAIL)] == [NameTaken, Complete]
    assert [type(outcome) for outcome in await send_many(stack, members[:1], IfExists.FAIL)] == [NameTaken]
    assert await names(stack) == [("a", 1), ("b", content.size)]


class Unreadable(InPieces):
    """A spooled body whose part of the disk went bad."""

    def pieces(self) -> Iterator[memoryview]:
        raise OSError(errno.EIO, "unreadable")


async def test_a_body_that_can_not_be_read_back_harms_no_other(stack: Stack) -> None:
    bodies = [InPieces(b"one"), Unreadable(b"two"), InPieces(b"three"), InPieces(b"four"), InPieces(b"five")]
    outcomes = await received(stack, entries_of(bodies))
    assert [type(outcome) for outcome in outcomes] == [Complete, StorageFailed, Complete, Complete, Complete]
    assert all(body.keepers == 0 for body in bodies)


# Archives


async def test_a_slow_batch_is_stored_while_it_comes(stack: Stack) -> None:
    body = InPieces(b"early")
    stored = asyncio.Event()

    async def entries() -> Entries:
        yield new("early"), body
        await stored.wait()
        yield new("late"), InPieces(b"late")

    receiving = asyncio.create_task(received(stack, entries()))

    async def is_given_up() -> bool:
        return body.keepers == 0

    await eventually(is_given_up)
    assert await names(stack) == [("early", 5)]
    stored.set()
    assert len(await receiving) == 2
    assert await names(stack) == [("early", 5), ("late", 4)]


async def test_outcomes_are_told_in_their_order_as_soon_as_they_are_known(stack: Stack) -> None:
    """However many refusals come while a file waits for more of its group: they wait for it no longer than so many."""
    told = 0
    refused = FileTooLarge(limit=1)

    async def entries() -> Entries:
        yield refused
        for name in ("first", "second"):
            yield new(name), InPieces(name.encode())
            for number in range(2000):
                if number == 601:
                    assert told > number
                yield refused

    outcomes: list[str] = []
    async with aclosing(stack.services.whole.receive_many(owner("alice"), entries())) as told_of:
        async for outcome in told_of:
            told += 1
            outcomes.append(outcome.file.name if isinstance(outcome, Complete) else outcome.code)
    codes = [refused.code] * 2000
    assert outcomes == [refused.code, "first", *codes, "second", *codes]


async def test_what_came_before_a_batch_broke_off_is_stored(stack: Stack) -> None:
    bodies = [InPieces(str(number).encode()) for number in range(450)]

    async def entries() -> Entries:
        async for entry in entries_of(bodies):
            yield entry
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await received(stack, entries())
    assert len(await names(stack)) == 450
    assert all(body.keepers == 0 for body in bodies)


async def test_a_batch_without_a_database_keeps_no_body(make_stack: MakeStack, sqlite_url: str) -> None:
    bodies: list[InPieces] = []

    def more() -> Iterator[InPieces]:
        for number in range(450):
            bodies.append(InPieces(str(number).encode()))
            yield bodies[-1]

    async with make_stack(database_url=sqlite_url) as stack:
        async with without_database(stack):
            with pytest.raises(Unavailable):
                await received(stack, entries_of(more()))
        assert bodies
        assert all(body.keepers == 0 for body in bodies)
        assert await names(stack) == []


async def test_an_upload_its_content_and_its_cancellation_that_race_end_it_once(make_stack_on: MakeStack) -> None:
    """Its last chunk comes, and so does all of it in one request, alone and in a batch, while it is cancelled."""
    async with make_stack_on() as stack:
        for seed in range(4):
            content = Content(100 * KIB, seed, name=f"{seed}.bin")
            opened = (await stack.open(content)).json()["upload"]
            await stack.put(content, 0)
            deeds = [
                stack.put(content, 1),
                send(stack, content.data, content.name),
                send_many(stack, [("beside", b"1"), (content.name, content.data)]),
                stack.client.delete(f"/files/{content.md5}"),
            ]
            order = deeds[seed:] + deeds[:seed]
            await asyncio.gather(*order)
            await checked_accounts(stack.services.database)
            assert await names(stack) == sorted([("beside", 1), *((f"{n}.bin", content.size) for n in range(seed + 1))])
            row = await stack.services.database.read(partial(queries.upload_by_id, upload_id=opened["id"]))
            assert row is not None
            assert row.state is not State.OPEN
        assert (await stack.usage("alice"))["reserved"] == 0
        assert not [path for path in (stack.data / "temp").rglob("*") if path.is_file()]


async def test_a_damaged_content_may_come_again_under_a_name_that_is_to_be_free(stack: Stack) -> None:
    content = Content(100 * KIB)
    file = (await send(stack, content.data, content.name)).file
    note = partial(files.note_scrub, sha256=file.sha256, damaged=True, now=file.created_at)
    await stack.services.database.transact(note)
    response = await stack.upload(content, if_exists="fail")
    assert response.json()["file"]["id"] == file.id
    other = Content(100 * KIB, seed=1)
    assert (await stack.open(other, if_exists="fail")).status_code == 409
    assert await names(stack) == [(content.name, content.size)]
