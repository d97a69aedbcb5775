"""How fast a client's bytes move, by a clock that a test turns: never more than the rate, evenly, and in small pieces."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from uploader.client.pace import Pace

KIB = 1 << 10


class Clock:
    """Time that passes when somebody waits for it, in the order of waking; each waits `late_seconds` too long."""

    def __init__(self, late_seconds: float = 0.0) -> None:
        self.now = 0.0
        self.late_seconds = late_seconds
        self._waiting: list[tuple[float, asyncio.Event]] = []

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._waiting.append((self.now + seconds + self.late_seconds, woken))
        await woken.wait()

    async def run(self, *tasks: "asyncio.Task[None]") -> None:
        """Turn the clock until these are over."""
        while not all(task.done() for task in tasks):
            for _ in range(10):  # whoever can go on without waiting does
                await asyncio.sleep(0)
            if self._waiting:
                self._waiting.sort(key=lambda each: each[0])
                self.now, woken = self._waiting.pop(0)
                woken.set()
        await asyncio.gather(*tasks)


async def pieces_of(length: int, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield bytes(length)


async def test_without_a_limit_nothing_waits_and_nothing_is_cut() -> None:
    pace, source = Pace(None), pieces_of(1, 1)
    await pace.take(1 << 60)
    assert pace.paced(source) is source
    assert (pace.piece_bytes(256 * KIB), pace.connections(4)) == (256 * KIB, 4)
    assert [piece async for piece in source] == [b"\0"]


@pytest.mark.parametrize("late_seconds", [0.0, 0.004])
@pytest.mark.parametrize("rate", [8 * KIB, 100 * KIB, 10_000 * KIB])
async def test_all_connections_together_never_move_more_than_the_rate(rate: int, late_seconds: float) -> None:
    clock = Clock(late_seconds)
    pace = Pace(rate, lambda: clock.now, clock.sleep)
    moved: list[tuple[float, int, int]] = []

    async def connection(number: int) -> None:
        async for part in pace.paced(pieces_of(128 * KIB, 8 * rate // (256 * KIB) + 1)):
            moved.append((clock.now, number, len(part)))

    tasks = [asyncio.create_task(connection(number)) for number in range(4)]
    await clock.run(*tasks)
    total = sum(length for _, _, length in moved)
    # From any moment on: what may be made up for, and one piece that was begun before.
    slack = 0.1 * rate + pace.piece_bytes(1 << 30)
    for since in range(0, len(moved), max(1, len(moved) // 20)):
        so_far = 0
        for at, _, length in moved[since:]:
            so_far += length
            assert so_far <= rate * (at - moved[since][0]) + slack
    # And not less: timers that are late cost nothing, as long as somebody waits.
    assert total / clock.now == pytest.approx(rate, rel=0.05)
    # No silence: a piece at once, and then the next one.
    longest = max(after[0] - before[0] for before, after in pairwise(moved))
    assert longest <= 0.13 + late_seconds
    # Fair: at half time each has had the same, but for a piece.
    half = Counter[int]()
    for _, number, length in moved[: len(moved) // 2]:
        half[number] += length
    assert max(half.values()) - min(half.values()) <= 2 * pace.piece_bytes(1 << 30)


async def test_what_was_not_used_is_not_saved_up() -> None:
    clock = Clock()
    pace = Pace(1000, lambda: clock.now, clock.sleep)
    clock.now = 1e6
    task = asyncio.create_task(pace.take(1000))
    await clock.run(task)
    clock.now += 3600
    began_at = clock.now
    task = asyncio.create_task(pace.take(1000))
    await clock.run(task)
    assert clock.now - began_at == pytest.approx(0.9)


def test_a_low_rate_is_for_fewer_connections_and_more_than_nothing() -> None:
    for rate in (0, -1):
        with pytest.raises(ValueError, match="more than 0"):
            Pace(rate)
    assert [Pace(rate).connections(4) for rate in (1, 20 * KIB, 40 * KIB, 1 << 20)] == [1, 1, 2, 4]
