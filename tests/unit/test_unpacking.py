"""The files of an archive as bodies of their own: within the budget, in order, and none of them left behind."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect
from starlette.types import Message

from tests.support.archives import END, Entry, archive, header, in_pieces, padded
from tests.support.content import KIB, MIB, Content
from tests.support.faults import open_files_under, paused_call
from uploader.errors import BodyTimeout, FileTooLarge, InvalidArchive, InvalidRequest, UploaderError
from uploader.http.bodies import archive as unpacking_module
from uploader.http.bodies.archive import Member, Unpacking
from uploader.http.bodies.intake import Intake, MessageBody
from uploader.settings import Settings
from uploader.storage.base import Body
from uploader.storage.spool import Spool

LIMIT_BYTES = 2 * MIB
GOOD = archive(Entry("a", b"1"), Entry("b", bytes(5000)))


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    made = Spool(tmp_path)
    await made.prepare()
    yield made
    made.close()


class Messages:
    """An ASGI `receive` that gives these pieces, and then ends as it is told."""

    def __init__(self, *pieces: bytes, then: str = "end") -> None:
        self._pieces = list(pieces)
        self._then = then

    async def receive(self) -> Message:
        if self._pieces:
            more = len(self._pieces) > 1 or self._then != "end"
            return {"type": "http.request", "body": self._pieces.pop(0), "more_body": more}
        if self._then == "silence":
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}


def admit(member: Member) -> str:
    if member.refused:
        raise InvalidRequest(member.refused)
    if member.size > LIMIT_BYTES:
        raise FileTooLarge(limit=LIMIT_BYTES)
    return member.path.decode()


def unpacking_of(intake: Intake, *pieces: bytes, then: str = "end") -> Unpacking[str]:
    return Unpacking(intake, MessageBody(Messages(*pieces, then=then).receive), "alice", admit)


async def unpacked(unpacking: Unpacking[str]) -> list[tuple[str, bytes] | str]:
    """Each file by its name with its bytes, or the code of what is wrong with it."""
    found: list[tuple[str, bytes] | str] = []
    async with aclosing(unpacking.entries()) as entries:
        async for entry in entries:
            found.append(_taken(entry))
    return found


def _taken(entry: tuple[str, Body] | UploaderError) -> tuple[str, bytes] | str:
    if isinstance(entry, UploaderError):
        return entry.code
    name, body = entry
    data = b"".join(body.pieces())
    assert len(data) == body.length
    body.close()
    return name, data


def charged(intake: Intake) -> int:
    return sum(intake._budget._charged.values())


def an_intake(spool: Spool, **of_settings: Any) -> Intake:
    return Intake(Settings(**of_settings), spool)


async def test_files_come_in_order_with_their_bytes(spool: Spool) -> None:
    contents = [Content(size, name=f"{size}") for size in (0, 1, 256 * KIB - 1, LIMIT_BYTES, 4 * KIB)]
    data = archive(*(Entry(content.name, content.data) for content in contents))
    intake = an_intake(spool)
    for pieces in ([data], in_pieces(data, range(0, len(data), 70_001))):
        unpacking = unpacking_of(intake, *pieces)
        assert await unpacked(unpacking) == [(content.name, content.data) for content in contents]
        assert unpacking.failure is None
        assert charged(intake) == 0


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 3000), max_size=20), st.lists(st.integers(0, 40_000), max_size=20), st.integers(4, 10_000)
)
def test_budget_and_cuts_change_nothing(sizes: list[int], cuts: list[int], budget_bytes: int) -> None:
    contents = [Content(size, seed=number, name=f"{number}") for number, size in enumerate(sizes)]
    data = archive(*(Entry(content.name, content.data) for content in contents))

    async def check(directory: Path) -> None:
        spool = Spool(directory)
        await spool.prepare()
        intake = an_intake(spool, body_budget_bytes=budget_bytes)
        assert await unpacked(unpacking_of(intake, *in_pieces(data, cuts))) == [
            (content.name, content.data) for content in contents
        ]
        assert charged(intake) == 0
        assert open_files_under(directory) == []
        spool.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(check(Path(directory)))


async def test_what_is_taken_is_charged_until_it_is_closed_and_nothing_else(spool: Spool, tmp_path: Path) -> None:
    intake = an_intake(spool, body_budget_bytes=4 * 10 * KIB)
    data = archive(Entry("a", bytes(6 * KIB)), Entry("b", bytes(6 * KIB)), Entry("c", bytes(4 * KIB)))
    bodies: list[Body] = []
    async with aclosing(unpacking_of(intake, data).entries()) as entries:
        async for entry in entries:
            assert isinstance(entry, tuple)
            bodies.append(entry[1])
    assert charged(intake) == 10 * KIB, "a and c in memory"
    assert len(open_files_under(tmp_path / "spool")) == 1, "b in the spool"
    for body in bodies:
        body.close()
    assert charged(intake) == 0
    assert open_files_under(tmp_path) == []


async def test_what_is_refused_is_never_held(spool: Spool, tmp_path: Path) -> None:
    intake = an_intake(spool)
    most = 0

    class Watched(Messages):
        async def receive(self) -> Message:
            nonlocal most
            most = max(most, charged(intake), len(open_files_under(tmp_path)))
            return await super().receive()

    data = archive(Entry("large", bytes(LIMIT_BYTES + 1)), Entry("good", b"1"))
    receive = Watched(*in_pieces(data, range(0, len(data), 50_000))).receive
    unpacking = Unpacking(intake, MessageBody(receive), "alice", admit)
    assert await unpacked(unpacking) == ["file-too-large", ("good", b"1")]
    assert most == 0


async def test_a_stream_that_breaks_off_leaves_what_came_before_and_nothing_else(spool: Spool, tmp_path: Path) -> None:
    data = archive(Entry("a", b"1"), Entry("b", bytes(MIB)))[: 800 * KIB]
    for budget_bytes in (4, 512 * MIB):
        for then, failure in (("end", InvalidArchive), ("disconnect", ClientDisconnect), ("silence", BodyTimeout)):
            intake = an_intake(spool, body_budget_bytes=budget_bytes, body_idle_timeout_seconds=0.05)
            unpacking = unpacking_of(intake, data, then=then)
            assert await unpacked(unpacking) == [("a", b"1")]
            assert isinstance(unpacking.failure, failure)
            assert charged(intake) == 0
            assert open_files_under(tmp_path) == []


async def test_whoever_stops_early_leaves_nothing(spool: Spool, tmp_path: Path) -> None:
    intake = an_intake(spool)
    unpacking = unpacking_of(intake, GOOD, header(b"c", MIB) + bytes(500 * KIB), then="silence")
    async with aclosing(unpacking.entries()) as entries:
        _taken(await anext(entries))
    assert charged(intake) == 0
    assert open_files_under(tmp_path) == []


async def test_the_time_that_files_take_to_be_stored_is_not_the_clients(spool: Spool) -> None:
    intake = an_intake(spool, body_idle_timeout_seconds=0.2, body_budget_bytes=4)
    unpacking = unpacking_of(intake, header(b"a", 300 * KIB) + bytes(280 * KIB), bytes(20 * KIB) + END)
    with paused_call("pwrite") as pause:
        reading = asyncio.create_task(unpacked(unpacking))
        assert await asyncio.to_thread(pause.reached.wait, 10)
        await asyncio.sleep(0.4)
        pause.go_on.set()
        assert await reading == [("a", bytes(300 * KIB))]
    assert unpacking.failure is None


async def test_a_slow_file_moves_out_of_memory(spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking_module, "GRACE_SECONDS", 0.0)
    data = padded(header(b"a", 600 * KIB) + bytes(600 * KIB))
    found: list[Body] = []
    async with aclosing(unpacking_of(an_intake(spool), data, END).entries()) as entries:
        async for entry in entries:
            assert isinstance(entry, tuple)
            found.append(entry[1])
    assert len(open_files_under(tmp_path / "spool")) == 1
    found[0].close()


async def test_others_have_their_turn_while_a_piece_is_looked_at(spool: Spool) -> None:
    data = header(b"a") * 400 + END
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    assert len(await unpacked(unpacking_of(an_intake(spool), data))) == 400
    task.cancel()
    assert turns >= 10
