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
from starlette.types import Message

from tests.support.content import KIB, MIB, Content
from tests.support.faults import failing_call, open_files_under, paused_call, short_writes
from uploader.errors import BodyTimeout, ChunkLengthMismatch, FileTooLarge, StorageFull, TooManyRequests
from uploader.http.bodies import intake as intake_module
from uploader.http.bodies import intake as pace_module
from uploader.http.bodies.body import BodyBudget, ReceivedBody, Segments
from uploader.http.bodies.intake import Incoming, Intake, MessageBody
from uploader.service.chunk import ConcurrentBodies
from uploader.settings import Settings
from uploader.storage.base import Body
from uploader.storage.store import Spool


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    made = Spool(tmp_path)
    await made.prepare()
    yield made
    made.close()


def content_of(body: Body) -> bytes:
    return b"".join(body.pieces())


def charged(budget: BodyBudget) -> int:
    """What bodies hold now, in bytes."""
    return sum(budget._charged.values())


def is_whole(budget: BodyBudget, total_bytes: int) -> bool:
    """Whether nothing is charged: four users can have a quarter each, and then nobody a byte more."""
    users = [f"user {number}" for number in range(4)]
    taken = [budget.charge(user, total_bytes // 4) for user in users]
    more = budget.charge("one more", 1)
    for user in users:
        budget.release(user, total_bytes // 4)
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


# The budget


def test_a_user_gets_a_quarter_of_the_budget() -> None:
    budget = BodyBudget(400)
    assert budget.charge("alice", 100)
    assert not budget.charge("alice", 1)
    assert budget.charge("bob", 100)


def test_the_process_never_takes_more_than_its_budget() -> None:
    budget = BodyBudget(400)
    assert all(budget.charge(user, 99) for user in ("a", "b", "c", "d"))
    assert budget.charge("e", 4)
    assert not budget.charge("e", 1)
    budget.release("a", 99)
    assert budget.charge("e", 96)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 120)), max_size=50))
def test_what_is_charged_and_given_back_leaves_the_budget_whole(charges: list[tuple[str, int]]) -> None:
    budget = BodyBudget(400)
    held = [(user, length) for user, length in charges if budget.charge(user, length)]
    assert sum(length for _, length in held) <= 400
    for user, length in held:
        budget.release(user, length)
    assert is_whole(budget, 400)


# A received body


async def test_a_body_within_the_budget_stays_in_memory(spool: Spool, tmp_path: Path) -> None:
    content, budget = Content(300 * KIB), BodyBudget(4 * MIB)
    body = ReceivedBody(budget, Segments(4 * MIB), spool, "alice", content.size)
    await fill(body, content.data, 64 * KIB)
    assert open_files_under(tmp_path) == []
    assert body.length == content.size
    assert content_of(body) == content.data
    assert content_of(body) == content.data, "the pieces may be asked for again"
    body.close()
    assert is_whole(budget, 4 * MIB)


@pytest.mark.parametrize("piece_bytes", [1000, 64 * KIB, 300 * KIB, 3 * MIB])
async def test_a_body_beyond_the_budget_moves_to_an_unlinked_file(
    spool: Spool, tmp_path: Path, piece_bytes: int
) -> None:
    content, budget = Content(2 * MIB + 123), BodyBudget(400 * KIB)
    body = ReceivedBody(budget, Segments(4 * MIB), spool, "alice", content.size)
    await fill(body, content.data, piece_bytes)
    assert len(open_files_under(tmp_path / "spool")) == 1
    assert list((tmp_path / "spool").iterdir()) == []
    assert is_whole(budget, 400 * KIB), "who spools holds no memory"
    assert content_of(body) == content_of(body) == content.data
    body.close()
    assert open_files_under(tmp_path) == []


async def test_a_body_that_the_system_has_no_memory_for_moves_to_an_unlinked_file(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, budget = Content(300 * KIB), BodyBudget(4 * MIB)
    body = ReceivedBody(budget, Segments(4 * MIB), spool, "alice", content.size)
    await append(body, content.data[: 10 * KIB])

    def refuse(*_arguments: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    await fill(body, content.data, 64 * KIB)
    assert len(open_files_under(tmp_path / "spool")) == 1
    assert is_whole(budget, 4 * MIB)
    assert content_of(body) == content.data
    body.close()


async def test_a_slow_body_gives_its_memory_back(spool: Spool, tmp_path: Path) -> None:
    content, budget = Content(500 * KIB), BodyBudget(4 * MIB)
    body = ReceivedBody(budget, Segments(4 * MIB), spool, "alice", content.size)
    await fill(body, content.data, 100 * KIB, slow_from=200 * KIB)
    assert is_whole(budget, 4 * MIB)
    assert content_of(body) == content.data
    body.close()
    assert open_files_under(tmp_path) == []


async def test_a_spooled_body_is_written_whole_though_each_write_stops_short(
    spool: Spool,
) -> None:
    content = Content(600 * KIB)
    body = ReceivedBody(BodyBudget(0), Segments(4 * MIB), spool, "alice", content.size)
    with short_writes(7777) as fault:
        await fill(body, content.data, 100 * KIB)
    assert fault.hits > 0
    assert content_of(body) == content.data
    body.close()


async def test_a_full_disk_under_the_spool_is_told_as_such(spool: Spool, tmp_path: Path) -> None:
    body = ReceivedBody(BodyBudget(0), Segments(4 * MIB), spool, "alice", 600 * KIB)
    with failing_call("pwrite", errno.ENOSPC) as fault, pytest.raises(StorageFull):
        await fill(body, bytes(600 * KIB), 100 * KIB)
    assert fault.hits == 1
    body.close()
    assert open_files_under(tmp_path) == []


async def test_a_spool_that_cannot_be_opened_for_lack_of_room_is_a_full_disk(spool: Spool) -> None:
    body = ReceivedBody(BodyBudget(0), Segments(4 * MIB), spool, "alice", 10)
    with failing_call("open", errno.ENOSPC), pytest.raises(StorageFull):
        await append(body, b"0123456789")
    body.close()


async def test_closing_twice_gives_back_once(spool: Spool) -> None:
    budget, segments = BodyBudget(4 * 2 * 16 * KIB), Segments(MIB)
    body, other = (ReceivedBody(budget, segments, spool, "alice", 50) for _ in range(2))
    await append(body, bytes(50))
    await append(other, bytes(50))
    body.close()
    body.close()
    assert budget.charge("alice", segments.small_bytes)
    assert not budget.charge("alice", 1)
    taken = [segments.take(segments.small_bytes).obj for _ in range(2)]
    assert taken[0] is not taken[1], "one body, one segment given back once"
    other.close()


@pytest.mark.parametrize("size", [1, 16 * KIB, 16 * KIB + 1, 64 * KIB, 64 * KIB + 1, 200 * KIB])
async def test_a_body_is_charged_for_the_segments_it_needs(spool: Spool, size: int) -> None:
    content, budget, segments = Content(size), BodyBudget(MIB), Segments(MIB)
    assert (segments.small_bytes, segments.large_bytes) == (16 * KIB, 64 * KIB)
    body = ReceivedBody(budget, segments, spool, "alice", size)
    await fill(body, content.data, 10 * KIB)
    assert content_of(body) == content.data
    assert charged(budget) == (16 * KIB if size <= 16 * KIB else -(-size // (64 * KIB)) * 64 * KIB)
    body.close()
    assert is_whole(budget, MIB)


async def test_the_memory_of_a_body_is_used_again(spool: Spool) -> None:
    content, segments = Content(190 * KIB), Segments(MIB)
    used = []
    for _ in range(2):
        body = ReceivedBody(BodyBudget(MIB), segments, spool, "alice", content.size)
        await fill(body, content.data, 100 * KIB)
        assert content_of(body) == content.data
        used.append({id(piece.obj) for piece in body.pieces()})
        body.close()
    assert used[0] == used[1]


def test_segments_of_both_sizes_together_are_no_more_than_the_budget() -> None:
    segments = Segments(MIB)
    seen: weakref.WeakSet[Any] = weakref.WeakSet()
    for size, count in [(segments.small_bytes, 64), (segments.large_bytes, 10), (segments.small_bytes, 64)]:
        taken = [segments.take(size) for _ in range(count)]
        seen.update(segment.obj for segment in taken)
        assert MIB - segments.large_bytes < sum(map(len, seen)) <= MIB
        while taken:
            segments.give_back(taken.pop())


async def test_a_body_that_is_cancelled_while_its_file_is_opened_leaves_no_descriptor(
    spool: Spool, tmp_path: Path
) -> None:
    body = ReceivedBody(BodyBudget(0), Segments(4 * MIB), spool, "alice", 10)
    with paused_call("open", only=lambda path: path == tmp_path / "spool") as pause:
        task = asyncio.create_task(append(body, b"0123456789"))
        await asyncio.to_thread(pause.reached.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        pause.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(pause.ended.wait, 10)
    body.close()
    assert open_files_under(tmp_path) == []


# Taking in


class Sender:
    """An ASGI `receive` that gives these messages and then nothing more."""

    def __init__(self, *pieces: bytes, last: bool = True, delay_seconds: float = 0) -> None:
        more = [True] * (len(pieces) - 1) + [not last]
        self.messages: list[Message] = [
            {"type": "http.request", "body": piece, "more_body": flag} for piece, flag in zip(pieces, more, strict=True)
        ]
        self.delay_seconds = delay_seconds
        self.asked = 0

    async def receive(self) -> Message:
        if self.asked > 0:
            await asyncio.sleep(self.delay_seconds)
        self.asked += 1
        if self.asked > len(self.messages):
            await asyncio.Event().wait()
        return self.messages[self.asked - 1]


def an_intake(spool: Spool, **settings: Any) -> Intake:
    return Intake(Settings(**settings), spool)


async def test_a_body_is_received_whole(spool: Spool) -> None:
    body = await Incoming(an_intake(spool), MessageBody(Sender(b"ab", b"", b"cd").receive)).receive("alice", 4)
    assert (body.length, content_of(body)) == (4, b"abcd")
    body.close()


async def test_a_body_that_is_too_long_is_cut_off_at_the_limit(spool: Spool) -> None:
    sender = Sender(b"abcd", b"e", b"f")
    with pytest.raises(ChunkLengthMismatch) as caught:
        await Incoming(an_intake(spool), MessageBody(sender.receive)).receive("alice", 4)
    assert caught.value.fields == {"expected": 4, "received": 5}
    assert sender.asked == 2


async def test_a_body_that_is_too_short_is_refused(spool: Spool) -> None:
    with pytest.raises(ChunkLengthMismatch) as caught:
        await Incoming(an_intake(spool), MessageBody(Sender(b"abc").receive)).receive("alice", 4)
    assert caught.value.fields == {"expected": 4, "received": 3}


@pytest.mark.parametrize("content", [b"", b"abc", b"abcd", b"x" * 100 * KIB])
async def test_a_body_without_a_length_may_have_any_up_to_the_limit(spool: Spool, content: bytes) -> None:
    for budget_bytes in (4, 512 * MIB):
        source = MessageBody(Sender(content[:3], b"", content[3:]).receive)
        body = await Incoming(an_intake(spool, body_budget_bytes=budget_bytes), source).receive_up_to(
            "alice", max(len(content), 4)
        )
        assert (body.length, content_of(body)) == (len(content), content)
        body.close()


@pytest.mark.parametrize("size", [0, 64 * KIB, MIB, 2 * MIB])
async def test_a_body_that_ends_where_its_memory_does_has_no_empty_pieces(spool: Spool, size: int) -> None:
    for budget_bytes in (4, 512 * MIB):
        source = MessageBody(Sender(Content(size).data, b"").receive)
        body = await Incoming(an_intake(spool, body_budget_bytes=budget_bytes), source).receive_up_to("alice", 4 * MIB)
        assert all(len(piece) for piece in body.pieces())
        assert content_of(body) == Content(size).data
        body.close()


async def test_a_body_without_a_length_is_cut_off_at_the_limit(spool: Spool, tmp_path: Path) -> None:
    for budget_bytes in (4, 512 * MIB):
        sender = Sender(b"abcd", b"e", b"f")
        intake = an_intake(spool, body_budget_bytes=budget_bytes)
        with pytest.raises(FileTooLarge) as caught:
            await Incoming(intake, MessageBody(sender.receive)).receive_up_to("alice", 4)
        assert caught.value.fields == {"limit": 4}
        assert sender.asked == 2
        assert charged(intake._budget) == 0
    assert open_files_under(tmp_path) == []


def _request(receive: Any, *headers: tuple[bytes, bytes]) -> Request:
    return Request({"type": "http", "headers": list(headers)}, receive)


async def test_a_body_of_a_length_that_was_told_has_that_and_no_more_than_the_limit(spool: Spool) -> None:
    intake = an_intake(spool)
    told = intake.body_of(_request(Sender(b"ab", b"cd").receive, (b"content-length", b"4")))
    body = await told.receive_up_to("alice", 4)
    assert content_of(body) == b"abcd"
    body.close()
    for length, limit_bytes, error in ((b"5", 4, FileTooLarge), (b"5", 5, ChunkLengthMismatch)):
        sender = Sender(b"abcd")
        with pytest.raises(error):
            await intake.body_of(_request(sender.receive, (b"content-length", length))).receive_up_to(
                "alice", limit_bytes
            )
        assert sender.asked == (error is ChunkLengthMismatch)


async def test_a_client_that_goes_away_leaves_nothing(spool: Spool, tmp_path: Path) -> None:
    sender = Sender(b"ab", b"cd", last=False)
    sender.messages[1] = {"type": "http.disconnect"}
    with pytest.raises(ClientDisconnect):
        await Incoming(an_intake(spool, body_budget_bytes=4), MessageBody(sender.receive)).receive("alice", 4)
    assert open_files_under(tmp_path) == []


async def test_a_body_that_stands_still_is_given_up(spool: Spool, tmp_path: Path) -> None:
    intake = an_intake(spool, body_idle_timeout_seconds=0.02, body_budget_bytes=4)
    with pytest.raises(BodyTimeout):
        await Incoming(intake, MessageBody(Sender(b"ab", last=False).receive)).receive("alice", 4)
    assert open_files_under(tmp_path) == []


async def test_a_client_is_not_to_blame_for_a_disk_that_stands_still(spool: Spool) -> None:
    intake = an_intake(spool, body_idle_timeout_seconds=0.5, body_budget_bytes=4)
    sender = Sender(b"a" * 256 * KIB, b"b" * 8, delay_seconds=0.01)
    with paused_call("pwrite") as pause:
        receiving = asyncio.create_task(Incoming(intake, MessageBody(sender.receive)).receive("alice", 256 * KIB + 8))
        assert await asyncio.to_thread(pause.reached.wait, 10)
        await asyncio.sleep(0.7)
        pause.go_on.set()
        body = await receiving
    assert body.length == 256 * KIB + 8
    body.close()


async def test_a_body_below_the_minimum_rate_is_given_up_after_its_first_seconds(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace_module, "GRACE_SECONDS", 0.02)
    intake = an_intake(spool, min_body_rate_bytes=10**9)
    with pytest.raises(BodyTimeout):
        await Incoming(intake, MessageBody(Sender(b"ab", last=False).receive)).receive("alice", 4)


async def test_a_body_that_takes_longer_than_its_first_seconds_moves_out_of_memory(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace_module, "GRACE_SECONDS", 0.02)
    intake = an_intake(spool, min_body_rate_bytes=1)
    body = await Incoming(intake, MessageBody(Sender(b"x" * 60, b"y" * 4, delay_seconds=0.05).receive)).receive(
        "alice", 64
    )
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
    body = await Incoming(intake, Waiting(b"abcd")).receive("alice", 4)
    body.keep()
    assert (body.length, content_of(body), content_of(body)) == (4, b"abcd", b"abcd")
    body.close()
    assert charged(intake._budget) == 4
    body.close()
    assert charged(intake._budget) == 0


async def test_a_body_that_is_there_moves_to_a_file_where_there_is_no_budget(spool: Spool, tmp_path: Path) -> None:
    body = await Incoming(an_intake(spool, body_budget_bytes=4), Waiting(b"abcd")).receive("alice", 4)
    assert len(open_files_under(tmp_path / "spool")) == 1
    assert content_of(body) == b"abcd"
    body.close()


@pytest.mark.parametrize("content", [b"abc", b"abcde"])
async def test_a_body_that_is_there_in_another_length_is_refused(spool: Spool, content: bytes) -> None:
    intake = an_intake(spool, body_budget_bytes=32)
    with pytest.raises(ChunkLengthMismatch) as caught:
        await Incoming(intake, Waiting(content)).receive("alice", 4)
    assert caught.value.fields == {"expected": 4, "received": len(content)}
    assert charged(intake._budget) == 0


async def test_a_part_of_a_stream_waits_for_memory_that_others_give_back(spool: Spool, tmp_path: Path) -> None:
    intake = an_intake(spool, body_budget_bytes=64)
    assert intake._budget.charge("alice", 16)
    receiving = asyncio.create_task(
        Incoming(intake, MessageBody(Sender(b"abcd").receive)).receive_part("alice", 4, lambda: True)
    )
    await asyncio.sleep(0.01)
    assert not receiving.done()
    intake._budget.release("alice", 16)
    part = await receiving
    assert (content_of(part.body), open_files_under(tmp_path / "spool")) == (b"abcd", [])
    part.body.close()


async def test_a_part_of_a_stream_does_not_wait_for_memory_for_long(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_module, "_PATIENCE_SECONDS", 0.01)
    intake = an_intake(spool, body_budget_bytes=64)
    assert intake._budget.charge("alice", 16)
    part = await Incoming(intake, MessageBody(Sender(b"abcd").receive)).receive_part("alice", 4, lambda: True)
    assert len(open_files_under(tmp_path / "spool")) == 1
    assert (content_of(part.body), part.error) == (b"abcd", None)
    part.body.close()


async def test_a_user_sends_so_many_chunks_at_once_and_no_more() -> None:
    concurrency = ConcurrentBodies(2)
    with concurrency.counted("alice"):
        with concurrency.counted("alice"):
            with pytest.raises(TooManyRequests) as caught, concurrency.counted("alice"):
                pass
            assert caught.value.fields == {"limit": 2}
            with concurrency.counted("bob"):
                pass
        with concurrency.counted("alice"):
            pass
