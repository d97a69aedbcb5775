"""Files that come whole, as the service takes them: what becomes of each, of the accounts, and of the bytes."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable

import pytest

from tests.support.bodies import InPieces
from tests.support.content import KIB, Content
from tests.support.stack import Stack, without_database
from tests.support.waiting import eventually
from uploader.domain.digest import ClaimedDigests
from uploader.domain.upload import IfExists
from uploader.errors import (
    Md5Mismatch,
    NameTaken,
    QuotaExceeded,
    Sha256Mismatch,
    Unavailable,
    UploaderError,
)
from uploader.service.uploads.results import Complete, NewFile, Target
from uploader.storage.base import Body
from uploader.storage.local.blobs import blob_path

_NO_CLAIMS = ClaimedDigests([], [])


class Sent:
    """A body as the edge gives it."""

    def __init__(self, data: bytes, *, declared: bool = True) -> None:
        self.body = InPieces(data)
        self.declared_bytes = len(data) if declared else None
        self.asked = False

    async def receive_up_to(self, user_id: str, limit_bytes: int) -> Body:
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
    return NewFile(user_id=user_id, name=name, md5=md5, sha256=sha256, if_exists=if_exists, modified_at=None)


async def send(stack: Stack, data: bytes, name: str = "a.bin", **more: object) -> Complete:
    return await stack.services.whole.receive(new(name, **more), Sent(data), _NO_CLAIMS)  # type: ignore[arg-type]


async def send_many(
    stack: Stack, members: Iterable[tuple[str, bytes]], if_exists: IfExists = IfExists.KEEP
) -> list[Complete | UploaderError]:
    bodies: list[InPieces] = []

    async def entries() -> AsyncIterator[tuple[NewFile, Body] | UploaderError]:
        for name, data in members:
            bodies.append(InPieces(data))
            yield new(name, if_exists=if_exists), bodies[-1]

    outcomes = await stack.services.whole.receive_many("alice", entries())
    assert all(body.keepers == 0 for body in bodies)
    return outcomes


async def names(stack: Stack) -> list[tuple[str, int]]:
    files, _ = await stack.services.files.list("alice", limit=1000, after=None, prefix=None)
    return sorted((file.name, file.size) for file in files)


async def test_a_file_in_one_request_is_stored_and_counted(stack: Stack) -> None:
    data = b"whole" * 1000
    complete = await send(stack, data)
    assert complete.created
    assert (complete.file.md5, complete.file.sha256) == (
        hashlib.md5(data, usedforsecurity=False).hexdigest(),
        hashlib.sha256(data).hexdigest(),
    )
    assert not complete.file.instant
    assert (stack.data / blob_path(complete.file.sha256)).read_bytes() == data
    assert await stack.usage("alice") == {"finished": len(data), "unfinished": 0, "reserved": 0}
    again = await send(stack, data)
    assert (again.created, again.file.id) == (False, complete.file.id)
    assert (await stack.usage("alice"))["finished"] == len(data)


async def test_many_are_stored_in_order(stack: Stack) -> None:
    members = [(f"{n}.txt", str(n % 450).encode()) for n in range(500)]
    outcomes = await send_many(stack, members)
    assert [(outcome.file.name, outcome.created) for outcome in outcomes if isinstance(outcome, Complete)] == [
        (name, True) for name, _ in members
    ]
    assert (await stack.usage("alice"))["finished"] == sum(len(data) for _, data in members)
    again = await send_many(stack, members)
    assert {outcome.created for outcome in again if isinstance(outcome, Complete)} == {False}
    assert (await stack.usage("alice"))["finished"] == sum(len(data) for _, data in members)


async def test_an_open_upload_of_the_content_is_closed_by_it(stack: Stack) -> None:
    content = Content(100 * KIB)
    opened = (await stack.open(content)).json()["upload"]
    await stack.put(content, 0)
    complete = await send(stack, content.data, content.name)
    assert complete.created
    assert await stack.usage("alice") == {"finished": content.size, "unfinished": 0, "reserved": 0}
    status = await stack.services.uploads.status(Target("alice", upload_id=opened["id"]))
    assert isinstance(status, Complete) and status.file.id == complete.file.id
    assert [path.relative_to(stack.data).parts[0] for path in stack.bytes_on_disk()] == ["blobs"]


async def test_what_is_not_as_claimed_is_not_kept(stack: Stack) -> None:
    with pytest.raises(Md5Mismatch):
        await send(stack, b"x", md5="0" * 32)
    with pytest.raises(Sha256Mismatch):
        await send(stack, b"x", sha256="0" * 64)
    assert stack.bytes_on_disk() == []
    assert await names(stack) == []


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


async def test_names_are_kept_replaced_or_taken(stack: Stack) -> None:
    await send(stack, b"1", "a")
    await send(stack, b"22", "a")
    assert await names(stack) == [("a", 1), ("a", 2)]
    with pytest.raises(NameTaken):
        await send(stack, b"333", "a", if_exists=IfExists.FAIL)
    assert (await send(stack, b"22", "a", if_exists=IfExists.FAIL)).created is False
    await send(stack, b"333", "a", if_exists=IfExists.REPLACE)
    assert await names(stack) == [("a", 3)]
    assert (await stack.usage("alice"))["finished"] == 3
    outcomes = await send_many(stack, [("a", b"4444"), ("a", b"55555"), ("b", b"6")], IfExists.REPLACE)
    assert all(isinstance(outcome, Complete) and outcome.created for outcome in outcomes)
    assert await names(stack) == [("a", 5), ("b", 1)]
    assert (await stack.usage("alice"))["finished"] == 6


async def test_other_bytes_under_the_name_of_a_content_are_displaced(stack: Stack) -> None:
    data = b"right"
    path = stack.data / blob_path(hashlib.sha256(data).hexdigest())
    path.parent.mkdir(parents=True)
    path.write_bytes(b"wrong")
    await send(stack, data)
    assert path.read_bytes() == data
    (trashed,) = (path for path in (stack.data / "trash" / "blobs").rglob("*") if path.is_file())
    assert trashed.read_bytes() == b"wrong"


async def test_an_upload_may_replace_what_has_its_name(stack: Stack) -> None:
    content = Content(100 * KIB)
    await send(stack, b"old", content.name)
    response = await stack.upload(content, if_exists="replace")
    assert response.status_code == 201
    assert await names(stack) == [(content.name, content.size)]
    assert (await stack.usage("alice"))["finished"] == content.size


async def test_a_slow_batch_is_stored_while_it_comes(stack: Stack) -> None:
    body = InPieces(b"early")
    stored = asyncio.Event()

    async def entries() -> AsyncIterator[tuple[NewFile, Body] | UploaderError]:
        yield new("early"), body
        await stored.wait()
        yield new("late"), InPieces(b"late")

    receiving = asyncio.create_task(stack.services.whole.receive_many("alice", entries()))

    async def is_given_up() -> bool:
        return body.keepers == 0

    await eventually(is_given_up)
    assert await names(stack) == [("early", 5)]
    stored.set()
    assert len(await receiving) == 2
    assert await names(stack) == [("early", 5), ("late", 4)]


async def test_what_came_before_a_batch_broke_off_is_stored(stack: Stack) -> None:
    bodies = [InPieces(str(number).encode()) for number in range(450)]

    async def entries() -> AsyncIterator[tuple[NewFile, Body] | UploaderError]:
        for number, body in enumerate(bodies):
            yield new(str(number)), body
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await stack.services.whole.receive_many("alice", entries())
    assert len(await names(stack)) == 450
    assert all(body.keepers == 0 for body in bodies)


async def test_a_batch_without_a_database_keeps_no_body(stack: Stack) -> None:
    bodies: list[InPieces] = []

    async def entries() -> AsyncIterator[tuple[NewFile, Body] | UploaderError]:
        for number in range(450):
            bodies.append(InPieces(str(number).encode()))
            yield new(str(number)), bodies[-1]

    async with without_database(stack):
        with pytest.raises(Unavailable):
            await stack.services.whole.receive_many("alice", entries())
    assert bodies
    assert all(body.keepers == 0 for body in bodies)
    assert await names(stack) == []
