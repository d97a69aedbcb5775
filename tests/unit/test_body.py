"""The body of a chunk: in memory within the budget, else in an unlinked file, and never more than it may be."""

import asyncio
import errno
import mmap
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request

from tests.support.content import KIB, MIB, Content
from tests.support.faults import failing_call, open_files_under, paused_call, short_writes
from tests.support.messages import Sender
from tests.support.waiting import PATIENCE_SECONDS
from uploader.domain.links import owner
from uploader.errors import BodyTimeout, ChunkLengthMismatch, FileTooLarge, StorageFull
from uploader.http.bodies import intake as intake_module
from uploader.http.bodies.body import BodyBudget, ReceivedBody, Segments
from uploader.http.bodies.intake import Incoming, Intake, MessageBody
from uploader.settings import Settings
from uploader.storage.base import Body
from uploader.storage.store import Spool


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    made = Spool(tmp_path)
    await made.prepare()
    yield made
    made.close()


def received(
    spool: Spool, size: int, *, budget: BodyBudget | None = None, segments: Segments | None = None
) -> ReceivedBody:
    """A body of alice's, of which nothing has come; without a budget it has no memory."""
    return ReceivedBody(budget or BodyBudget(0), segments or Segments(4 * MIB), spool, owner("alice"), size)


def content_of(body: Body) -> bytes:
    return b"".join(body.pieces())


def charged(budget: BodyBudget) -> int:
    """What bodies hold now, in bytes."""
    return sum(budget._charged.values())


def is_whole(budget: BodyBudget, total_bytes: int) -> bool:
    """Whether nothing is charged: four users can have a quarter each, and then nobody a byte more."""
    users = [f"user {number}" for number in range(4)]
    taken = [budget.charge(owner(user), total_bytes // 4) for user in users]
    more = budget.charge(owner("one more"), 1)
    for user in users:
        budget.release(owner(user), total_bytes // 4)
    return all(taken) and not more


async def fill(body: ReceivedBody, data: bytes, piece_bytes: int, *, slow_from: int | None = None) -> None:
    while body.length < len(data):
        slow = slow_from is not None and body.length >= slow_from
        await append(body, data[body.length : body.length + piece_bytes], slow=slow)
    await body.end()


async def append(body: ReceivedBody, piece: bytes, *, slow: bool = False) -> None:
    """What of a piece there is room for at one go."""
    await body.make_room(slow=slow)
    room = body.room()
    count = min(len(room), len(piece))
    room[:count] = piece[:count]
    body.advance(count)


def test_a_user_gets_a_quarter_of_the_budget_and_all_together_no_more_than_it() -> None:
    budget = BodyBudget(400)
    assert budget.charge(owner("alice"), 100)
    assert not budget.charge(owner("alice"), 1)
    assert all(budget.charge(owner(user), 99) for user in ("b", "c", "d"))
    assert budget.charge(owner("e"), 3)
    assert not budget.charge(owner("e"), 1)
    budget.release(owner("b"), 99)
    assert budget.charge(owner("e"), 97)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 120)), max_size=50))
def test_what_is_charged_and_given_back_leaves_the_budget_whole(charges: list[tuple[str, int]]) -> None:
    budget = BodyBudget(400)
    held = [(user, length) for user, length in charges if budget.charge(owner(user), length)]
    assert sum(length for _, length in held) <= 400
    for user, length in held:
        budget.release(owner(user), length)
    assert is_whole(budget, 400)


@pytest.mark.parametrize(
    ("size", "budget_bytes", "piece_bytes", "slow_from", "spooled"),
    [
        (300 * KIB, 4 * MIB, 64 * KIB, None, False),
        *((2 * MIB + 123, 400 * KIB, piece_bytes, None, True) for piece_bytes in (1000, 64 * KIB, 300 * KIB, 3 * MIB)),
        (500 * KIB, 4 * MIB, 100 * KIB, 200 * KIB, True),
    ],
)
async def test_a_body_beyond_the_budget_or_too_slow_moves_from_memory_to_an_unlinked_file(
    spool: Spool, tmp_path: Path, size: int, budget_bytes: int, piece_bytes: int, slow_from: int | None, spooled: bool
) -> None:
    content, budget = Content(size), BodyBudget(budget_bytes)
    body = received(spool, size, budget=budget)
    await fill(body, content.data, piece_bytes, slow_from=slow_from)
    assert len(open_files_under(tmp_path / "spool")) == spooled
    assert list((tmp_path / "spool").iterdir()) == []
    assert (charged(budget) == 0) is spooled, "who spools holds no memory"
    assert body.length == size
    assert content_of(body) == content_of(body) == content.data, "the pieces may be asked for again"
    body.close()
    assert is_whole(budget, budget_bytes)
    assert open_files_under(tmp_path) == []


async def test_without_memory_a_body_is_spooled(spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, budget = Content(300 * KIB), BodyBudget(4 * MIB)
    body = received(spool, content.size, budget=budget)
    await append(body, content.data[: 10 * KIB])

    def refuse(*_arguments: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    await fill(body, content.data, 64 * KIB)
    assert len(open_files_under(tmp_path / "spool")) == 1
    assert is_whole(budget, 4 * MIB)
    assert content_of(body) == content.data
    body.close()


async def test_a_spooled_body_is_written_whole_though_each_write_stops_short(spool: Spool) -> None:
    content = Content(600 * KIB)
    body = received(spool, content.size)
    with short_writes(7777) as fault:
        await fill(body, content.data, 100 * KIB)
    assert fault.hits > 0
    assert content_of(body) == content.data
    body.close()


@pytest.mark.parametrize("call", ["open", "pwrite"])
async def test_a_full_disk_under_the_spool_is_told_as_such(spool: Spool, tmp_path: Path, call: str) -> None:
    body = received(spool, 600 * KIB)
    with failing_call(call, errno.ENOSPC) as fault, pytest.raises(StorageFull):
        await fill(body, bytes(600 * KIB), 100 * KIB)
    assert fault.hits == 1
    body.close()
    assert open_files_under(tmp_path) == []


async def test_closing_twice_gives_back_once(spool: Spool) -> None:
    budget, segments = BodyBudget(4 * 2 * 16 * KIB), Segments(MIB)
    body, other = (received(spool, 50, budget=budget, segments=segments) for _ in range(2))
    await append(body, bytes(50))
    await append(other, bytes(50))
    body.close()
    body.close()
    assert budget.charge(owner("alice"), segments.small_bytes)
    assert not budget.charge(owner("alice"), 1)
    taken = [segments.take(segments.small_bytes).obj for _ in range(2)]
    assert taken[0] is not taken[1], "one body, one segment given back once"
    other.close()


@pytest.mark.parametrize("size", [1, 16 * KIB, 16 * KIB + 1, 64 * KIB, 64 * KIB + 1, 200 * KIB])
async def test_a_body_is_charged_for_the_segments_it_needs_which_are_used_again(spool: Spool, size: int) -> None:
    content, budget, segments = Content(size), BodyBudget(MIB), Segments(MIB)
    assert (segments.small_bytes, segments.large_bytes) == (16 * KIB, 64 * KIB)
    used = []
    for _ in range(2):
        body = received(spool, size, budget=budget, segments=segments)
        await fill(body, content.data, 10 * KIB)
        assert content_of(body) == content.data
        assert charged(budget) == (16 * KIB if size <= 16 * KIB else -(-size // (64 * KIB)) * 64 * KIB)
        used.append({id(piece.obj) for piece in body.pieces()})
        body.close()
    assert used[0] == used[1]
    assert is_whole(budget, MIB)


def test_segments_of_both_sizes_together_are_no_more_than_the_budget() -> None:
    segments = Segments(MIB)
    seen: weakref.WeakSet[Any] = weakref.WeakSet()
    for size, count in [(segments.small_bytes, 64), (segments.large_bytes, 10), (segments.small_bytes, 64)]:
        taken = [segments.take(size) for _ in range(count)]
        seen.update(segment.obj for segment in taken)
        assert MIB - segments.large_bytes < sum(map(len, seen)) <= MIB
        while taken:
            segments.give_back([taken.pop()])


async def test_a_body_cancelled_while_its_file_opens_leaves_no_descriptor(spool: Spool, tmp_path: Path) -> None:
    body = received(spool, 10)
    with paused_call("open", only=lambda path: path == tmp_path / "spool") as pause:
        task = asyncio.create_task(append(body, b"0123456789"))
        await asyncio.to_thread(pause.reached.wait, PATIENCE_SECONDS)
        task.cancel()
        await asyncio.sleep(0)
        pause.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(pause.ended.wait, PATIENCE_SECONDS)
    body.close()
    assert open_files_under(tmp_path) == []


def an_intake(spool: Spool, **settings: Any) -> Intake:
    return Intake(Settings(**settings), spool)


def incoming(spool: Spool, sender: Sender, **settings: Any) -> Incoming:
    return Incoming(an_intake(spool, **settings), MessageBody(sender.receive))


@pytest.mark.parametrize("told", [True, False])
async def test_a_body_is_received_whole(spool: Spool, told: bool) -> None:
    sender = Sender(b"ab", b"", b"cd")
    request = Request({"type": "http", "headers": [(b"content-length", b"4")]}, sender.receive)
    receiving = an_intake(spool).body_of(request).receive_up_to if told else incoming(spool, sender).receive
    body = await receiving(owner("alice"), 4)
    assert (body.length, content_of(body)) == (4, b"abcd")
    body.close()


@pytest.mark.parametrize(("pieces", "received_bytes", "asked"), [((b"abcd", b"e", b"f"), 5, 2), ((b"abc",), 3, 1)])
async def test_another_length_is_refused(
    spool: Spool, pieces: tuple[bytes, ...], received_bytes: int, asked: int
) -> None:
    sender = Sender(*pieces)
    with pytest.raises(ChunkLengthMismatch) as caught:
        await incoming(spool, sender).receive(owner("alice"), 4)
    assert caught.value.fields == {"expected": 4, "received": received_bytes}
    assert sender.asked == asked


IN_EACH = pytest.mark.parametrize("budget_bytes", [4, 512 * MIB], ids=["spooled", "in memory"])


@IN_EACH
@pytest.mark.parametrize("size", [0, 3, 4, 64 * KIB, 100 * KIB, MIB, 2 * MIB])
async def test_a_body_without_a_length_may_have_any_up_to_the_limit(spool: Spool, size: int, budget_bytes: int) -> None:
    data = Content(size).data
    sender = Sender(data[:3], b"", data[3:], b"")
    body = await incoming(spool, sender, body_budget_bytes=budget_bytes).receive_up_to(owner("alice"), max(size, 4))
    assert all(len(piece) for piece in body.pieces()), "also where it ends where its memory does"
    assert (body.length, content_of(body)) == (size, data)
    body.close()


@IN_EACH
@pytest.mark.parametrize(
    ("pieces", "told", "limit", "error", "asked"),
    [
        ((b"abcd", b"e", b"f"), None, 4, FileTooLarge, 2),
        ((b"abcd",), b"5", 4, FileTooLarge, 0),
        ((b"abcd",), b"5", 5, ChunkLengthMismatch, 1),
    ],
    ids=["untold", "told", "short"],
)
async def test_a_body_is_cut_off_at_the_limit(
    spool: Spool, tmp_path: Path, budget_bytes: int, pieces: Any, told: bytes | None, limit: int, error: Any, asked: int
) -> None:
    intake, sender = an_intake(spool, body_budget_bytes=budget_bytes), Sender(*pieces)
    headers = [] if told is None else [(b"content-length", told)]
    with pytest.raises(error) as caught:
        await intake.body_of(Request({"type": "http", "headers": headers}, sender.receive)).receive_up_to(
            owner("alice"), limit
        )
    assert caught.value.fields == ({"limit": 4} if error is FileTooLarge else {"expected": 5, "received": 4})
    assert sender.asked == asked
    assert charged(intake._budget) == 0
    assert open_files_under(tmp_path) == []


@pytest.mark.parametrize("gone", [True, False])
async def test_a_client_that_goes_away_or_stands_still_leaves_nothing(spool: Spool, tmp_path: Path, gone: bool) -> None:
    sender = Sender(b"ab", then="disconnect" if gone else "silence")
    settings = {"body_budget_bytes": 4, "body_idle_timeout_seconds": 60.0 if gone else 0.02}
    with pytest.raises(ClientDisconnect if gone else BodyTimeout):
        await incoming(spool, sender, **settings).receive(owner("alice"), 4)
    assert open_files_under(tmp_path) == []


async def test_a_client_is_not_to_blame_for_a_still_disk(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time
    receiving = incoming(spool, Sender(b"a" * 256 * KIB, b"b" * 8), body_idle_timeout_seconds=60.0, body_budget_bytes=4)
    with paused_call("pwrite") as pause:
        task = asyncio.create_task(receiving.receive(owner("alice"), 256 * KIB + 8))
        assert await asyncio.to_thread(pause.reached.wait, PATIENCE_SECONDS)
        monkeypatch.setattr(loop, "time", lambda: now() + 70)
        pause.go_on.set()
        body = await task
    assert body.length == 256 * KIB + 8
    body.close()


async def test_a_body_that_takes_long_is_spooled(spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "GRACE_SECONDS", 0.02)
    sender = Sender(b"x" * 60, b"y" * 4, delay_seconds=0.05)
    body = await incoming(spool, sender, min_body_rate_bytes=1).receive(owner("alice"), 64)
    assert len(open_files_under(tmp_path / "spool")) == 1
    assert content_of(body) == b"x" * 60 + b"y" * 4
    body.close()


class Waiting(MessageBody):
    """A body that came with its head."""

    def __init__(self, content: bytes) -> None:
        super().__init__(Sender(content).receive)
        self._rest, self._more = memoryview(content), False

    is_whole = True


async def test_a_body_that_is_there_is_charged_until_the_last_who_keeps_it_closes_it(spool: Spool) -> None:
    intake = an_intake(spool, body_budget_bytes=16)
    body = await Incoming(intake, Waiting(b"abcd")).receive(owner("alice"), 4)
    body.keep()
    assert (body.length, content_of(body), content_of(body)) == (4, b"abcd", b"abcd")
    body.close()
    assert charged(intake._budget) == 4
    body.close()
    assert charged(intake._budget) == 0


async def test_a_body_that_is_there_moves_to_a_file_where_there_is_no_budget(spool: Spool, tmp_path: Path) -> None:
    body = await Incoming(an_intake(spool, body_budget_bytes=4), Waiting(b"abcd")).receive(owner("alice"), 4)
    assert len(open_files_under(tmp_path / "spool")) == 1
    assert content_of(body) == b"abcd"
    body.close()


@pytest.mark.parametrize("content", [b"abc", b"abcde"])
async def test_a_body_that_is_there_in_another_length_is_refused(spool: Spool, content: bytes) -> None:
    intake = an_intake(spool, body_budget_bytes=32)
    with pytest.raises(ChunkLengthMismatch) as caught:
        await Incoming(intake, Waiting(content)).receive(owner("alice"), 4)
    assert caught.value.fields == {"expected": 4, "received": len(content)}
    assert charged(intake._budget) == 0


@pytest.mark.parametrize("given_back", [True, False])
async def test_a_part_of_a_stream_waits_for_memory_that_others_give_back_but_not_for_long(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_back: bool
) -> None:
    monkeypatch.setattr(intake_module, "_PATIENCE_SECONDS", 60.0 if given_back else 0.01)
    receiving = incoming(spool, Sender(b"abcd"), body_budget_bytes=64)
    assert receiving.intake._budget.charge(owner("alice"), 16)
    task = asyncio.create_task(receiving.receive_part(owner("alice"), 4, lambda: True))
    if given_back:
        await asyncio.sleep(0.01)
        assert not task.done()
        receiving.intake._budget.release(owner("alice"), 16)
    part = await task
    assert (content_of(part.body), part.error) == (b"abcd", None)
    assert len(open_files_under(tmp_path / "spool")) == (not given_back)
    part.body.close()
