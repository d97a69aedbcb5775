"""Wrong tokens of an address: so many at once, then as many in a minute, and each beyond takes its time."""

import asyncio
import time

import pytest

from tests.support.clock import ManualClock
from uploader.errors import TooManyRequests
from uploader.http.auth import authenticator
from uploader.http.auth.authenticator import WrongTokens


@pytest.fixture
def clock(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    return clock


def passes(tokens: WrongTokens, party: str = "a") -> bool:
    """Whether one may come at once; it is wrong."""
    may = not tokens.are_too_many(party)
    if may:
        tokens.count(party)
    return may


@pytest.mark.parametrize("most", [1, 2, 7, 10, 1000])
def test_so_many_at_once_then_one_after_the_other(clock: ManualClock, most: int) -> None:
    tokens = WrongTokens(most)
    assert [passes(tokens) for _ in range(most + 3)] == [True] * most + [False] * 3
    clock.advance(60 / most + 0.001)
    assert [passes(tokens) for _ in range(3)] == [True, False, False]
    clock.advance(60)
    assert sum(passes(tokens) for _ in range(2 * most)) == most
    for _ in range(1000):
        tokens.count("a")
    clock.advance(60)
    assert sum(passes(tokens) for _ in range(2 * most)) == most, "however many come beyond, a minute is enough"


async def test_a_few_of_a_party_wait_and_the_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = WrongTokens(1)
    tokens.count("a")
    monkeypatch.setattr(authenticator, "_WAIT_SECONDS", 600.0)
    waiting = [asyncio.create_task(tokens.slow_down("a")) for _ in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):
        await tokens.slow_down("a")
    await tokens.slow_down("b")
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert not any(task.done() and not task.cancelled() for task in waiting)
    monkeypatch.setattr(authenticator, "_WAIT_SECONDS", 0.0)
    await tokens.slow_down("a")


@pytest.mark.usefixtures("clock")
def test_no_flood_of_addresses_is_remembered_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "_MAX_PARTIES", 2)
    tokens = WrongTokens(1)
    for party in ("a", "b", "c"):
        tokens.count(party)
    assert [passes(tokens, party) for party in ("c", "b")] == [False, False]
    assert passes(tokens, "a")
