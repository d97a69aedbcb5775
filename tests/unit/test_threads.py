"""Work in threads: its result or error comes back, and a caller that is gone harms nobody."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar

import pytest

from uploader import tasks as threads
from uploader.tasks import Batches, give_way, run_in


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def test_a_thread_that_gives_way_does_so_alone() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    before = niceness()
    with ThreadPoolExecutor(1, initializer=give_way) as patient:
        assert patient.submit(niceness).result(30) > before
    assert niceness() == before


async def test_the_result_and_the_error_come_back(pool: ThreadPoolExecutor) -> None:
    assert await run_in(pool, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run_in(pool, divmod, 7, 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_given_up_is_left_undone_or_goes_on_unheard(pool: ThreadPoolExecutor, fails: bool) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work(name: str) -> None:
        begun.set()
        assert go_on.wait(30)
        done.append(name)
        if fails:
            raise ValueError

    under_way, waiting = run_in(pool, work, "under way"), run_in(pool, work, "waiting")
    assert await asyncio.to_thread(begun.wait, 30)
    under_way.cancel()
    waiting.cancel()
    go_on.set()
    assert await run_in(pool, list, done) == ["under way"]
    assert await run_in(pool, list, done) == ["under way"]


async def test_threads_work_in_the_context_of_who_asked(pool: ThreadPoolExecutor) -> None:
    batches, asked_by = Batches(pool), ContextVar("asked_by", default="nobody")

    async def ask(name: str) -> list[str]:
        asked_by.set(name)
        return [await run_in(pool, asked_by.get), await batches.run(asked_by.get)]

    names = ["alice", "bob", "carol"]
    assert await asyncio.gather(*map(ask, names)) == [[name, name] for name in names]
    assert await run_in(pool, asked_by.get) == "nobody"


async def test_a_pool_that_is_shut_down_refuses_work(pool: ThreadPoolExecutor) -> None:
    pool.shutdown()
    with pytest.raises(RuntimeError):
        run_in(pool, list)


# Batches


async def test_what_comes_in_one_turn_shares_a_hop_and_each_has_its_own_outcome(pool: ThreadPoolExecutor) -> None:
    batches, hops = Batches(pool), count_hops(pool)
    outcomes = await asyncio.gather(*(batches.run(divmod, 7, by) for by in (2, 0, 3)), return_exceptions=True)
    assert (outcomes[0], type(outcomes[1]), outcomes[2]) == ((3, 1), ZeroDivisionError, (2, 1))
    assert len(hops) == 1
    assert await batches.run(divmod, 7, 4) == (1, 3)
    assert len(hops) == 2


async def test_what_comes_while_a_batch_is_under_way_is_the_next_one(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_MAX_BATCH", 3)
    batches, hops = Batches(pool), count_hops(pool)
    begun, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    def work() -> None:
        begun.set()
        assert go_on.wait(30)

    first = batches.run(work)
    assert await asyncio.to_thread(begun.wait, 30)
    rest = [batches.run(done.append, number) for number in range(5)]
    rest[1].cancel()
    first.cancel()
    go_on.set()
    await asyncio.gather(*rest, return_exceptions=True)
    assert done == [0, 2, 3, 4], "in order, and what is given up is left undone"
    assert len(hops) == 3, "of three at most"


async def test_a_pool_that_is_shut_down_refuses_every_batch(pool: ThreadPoolExecutor) -> None:
    batches = Batches(pool)
    pool.shutdown()
    for _ in range(2):
        outcomes = await asyncio.gather(batches.run(str), batches.run(str), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [RuntimeError] * 2


def count_hops(pool: ThreadPoolExecutor) -> list[object]:
    hops: list[object] = []
    submit = pool.submit

    def counted(work: Callable[[], None]) -> "Future[None]":
        hops.append(work)
        return submit(work)

    pool.submit = counted  # type: ignore[method-assign,assignment]
    return hops
