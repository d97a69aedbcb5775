"""The costs of requests and their turns, with a clock that the test turns."""

import asyncio
import contextvars
import hashlib
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from uploader.runtime import meter, tasks
from uploader.runtime.meter import Cost, Kind, Meter, NotYourTurn

pytestmark = pytest.mark.anyio

T = TypeVar("T")
LISTING = "GET /me/files"
DEAR = 0.05


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metered(clock: Clock) -> Meter:
    found = Meter(clock)
    found.expected_seconds[LISTING] = DEAR
    return found


async def begin(metered: Meter, user: str) -> Cost:
    cost = metered.open(user, LISTING)
    await cost.begin()
    return cost


def spend(cost: Cost, seconds: float = DEAR) -> None:
    cost.add(Kind.THREADS, seconds)
    cost.answered(0)
    cost.end()


async def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of what waits for nobody."""
    task = asyncio.create_task(work)
    await settled()
    assert task.done()
    return task.result()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_user_with_many_requests_and_one_with_a_few_take_turns(metered: Meter) -> None:
    begun: list[tuple[str, Cost]] = []

    async def ask(user: str) -> None:
        begun.append((user, await begin(metered, user)))

    asking = [asyncio.create_task(ask(user)) for user in ["greedy"] * 30 + ["modest"] * 4]
    await settled()
    # Each has credit for a first one; then there is no room.
    assert [user for user, _ in begun] == ["greedy", "modest"]
    order = []
    while begun:
        user, cost = begun.pop(0)
        order.append(user)
        spend(cost)
        await settled()
    assert order[:8].count("modest") == 4
    assert order.count("greedy") == 30
    await asyncio.gather(*asking)


async def test_a_user_alone_waits_for_nobody_but_for_what_is_under_way(metered: Meter) -> None:
    for _ in range(10):
        spend(await at_once(begin(metered, "alone")), seconds=1.0)


async def test_idle_capacity_is_not_owed_to_who_comes_later(metered: Meter, clock: Clock) -> None:
    """Who was alone for an hour takes turns with the next one at once, and does not wait for an hour."""
    for _ in range(100):
        spend(await begin(metered, "first"), seconds=1.0)
    first, second = await at_once(begin(metered, "first")), await at_once(begin(metered, "second"))
    waiting = [asyncio.create_task(begin(metered, user)) for user in ("second", "second", "second", "first")]
    await settled()
    for begun in (first, second):
        spend(begun)
    await settled()
    spend(waiting[0].result())
    await settled()
    assert [task.done() for task in waiting] == [True, False, False, True]
    for task in waiting:
        task.cancel()


async def test_what_waits_for_its_client_keeps_nobody_waiting(metered: Meter) -> None:
    slow = [metered.open("greedy", LISTING) for _ in range(100)]
    for cost in slow:
        await at_once(cost.begin(pauses=True))
    await at_once(begin(metered, "greedy"))


async def test_what_hangs_keeps_others_waiting_for_a_second_at_the_most(metered: Meter, clock: Clock) -> None:
    await begin(metered, "greedy")
    waiting = asyncio.create_task(begin(metered, "greedy"))
    await settled()
    assert not waiting.done()
    clock.seconds += meter.CLAIM_TIMEOUT_SECONDS
    metered.serve()
    await asyncio.wait_for(waiting, 0.1)


async def test_who_waits_too_long_is_told_when_to_come_again(
    metered: Meter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "TURN_TIMEOUT_SECONDS", 0.01)
    metered.expected_seconds[LISTING] = 3.0
    first = await begin(metered, "greedy")
    waiting = [asyncio.create_task(begin(metered, "greedy")) for _ in range(4)]
    refusals = [await settling(task) for task in waiting]
    assert all(isinstance(error, NotYourTurn) for error in refusals)
    # The first one claims 3 s, and three more that wait for as long.
    assert {error.retry_after_seconds for error in refusals if isinstance(error, NotYourTurn)} == {3, 6, 9, 12}
    spend(first)
    taken = metered.take()
    assert (taken.turns, taken.refusals) == (4, 4)
    await begin(metered, "greedy")  # those who gave up left nothing behind


async def settling(task: "asyncio.Task[Cost]") -> BaseException | None:
    await asyncio.wait({task})
    return task.exception()


async def test_a_cancelled_request_leaves_its_place(metered: Meter) -> None:
    first = await begin(metered, "greedy")
    waiting = [asyncio.create_task(begin(metered, "greedy")) for _ in range(3)]
    await settled()
    for task in waiting[:2]:
        task.cancel()
    await settled()
    spend(first)
    await asyncio.wait_for(waiting[2], 0.1)


async def test_pieces_of_an_answer_take_turns_as_requests_do(metered: Meter) -> None:
    stream = await begin(metered, "greedy")
    stream.answered(0)
    others = [await begin(metered, f"user-{number}") for number in range(3)]
    stream.add(Kind.SENT, 1.0)
    going_on = asyncio.create_task(stream.go_on())
    await settled()
    assert not going_on.done()
    for other in others:
        spend(other)
    await asyncio.wait_for(going_on, 0.1)


async def test_what_threads_do_for_a_request_is_measured(metered: Meter) -> None:
    cost = metered.open("alice", LISTING)
    context = contextvars.copy_context()
    context.run(meter.cost_of_request.set, cost)
    hashing = asyncio.get_running_loop().create_task(hashed(), context=context)
    await hashing
    assert 0.001 < cost.spent_seconds < 30
    cost.end()
    taken = metered.take()
    assert set(taken.by_kind) == {Kind.THREADS}
    assert taken.by_user == {"alice": cost.spent_seconds}
    assert not metered.take().by_user


async def hashed() -> None:
    content = bytes(8 << 20)
    digest = await tasks.in_thread(lambda: hashlib.sha256(content).hexdigest())
    assert len(digest) == 64


async def test_what_a_request_begins_is_charged_to_its_user_and_leaves_no_turn(metered: Meter) -> None:
    cost = metered.open("alice", LISTING)

    async def fill() -> None:
        meter.cost_of_request.set(cost)
        with meter.charged_apart():
            await meter.go_on(Kind.MADE, 1 << 30)

    await asyncio.create_task(fill())
    cost.end()
    assert not metered.turns.claimed_seconds
    assert metered.take().by_user == {"alice": pytest.approx(meter.BYTE_SECONDS * (1 << 30))}


async def test_what_comes_by_links_has_a_share_and_is_paid_for_by_their_owner(metered: Meter) -> None:
    for party in ("alice", "alice/links", "alice/links"):
        spend(await begin(metered, party), 1.0)
    assert metered.take().by_user == {"alice": pytest.approx(3.0, abs=0.1)}
    assert (await at_once(begin(metered, "bob"))) is not None


async def test_links_of_one_user_take_turns_however_much_one_of_them_asks_for(metered: Meter) -> None:
    begun: list[tuple[str, Cost]] = []

    async def ask(line: str) -> None:
        cost = metered.open("alice/links", LISTING, line)
        await cost.begin()
        begun.append((line, cost))

    asking = [asyncio.create_task(ask(line)) for line in ["public"] * 30 + ["family"] * 3]
    order = []
    await settled()
    while begun:
        line, cost = begun.pop(0)
        order.append(line)
        spend(cost)
        await settled()
    assert (order[:8].count("family"), len(order)) == (3, 33)
    await asyncio.gather(*asking)


async def test_the_expected_cost_follows_what_requests_cost(metered: Meter, clock: Clock) -> None:
    for _ in range(100):
        spend(await begin(metered, "alice"), seconds=0.004)
        clock.seconds += 1
    assert metered.expected_seconds[LISTING] == pytest.approx(0.004, rel=0.1)


async def test_who_has_paid_all_is_forgotten(metered: Meter, clock: Clock) -> None:
    spend(await begin(metered, "alice"))
    metered.take()
    assert metered._parties
    clock.seconds += 10 * DEAR / meter.CREDIT_RATE
    metered.take()
    assert not metered._parties
