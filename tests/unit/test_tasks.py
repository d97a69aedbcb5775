"""Work that is not interrupted: a cancelled caller waits for its end."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from tests.support.waiting import PATIENCE_SECONDS
from uploader.runtime import tasks as threads
from uploader.runtime.tasks import Batches, OnePerKey, Rounds, ended, give_way, run_in, uninterrupted


class Work:
    """A coroutine that starts, waits until it is let go on, and ends."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended = False

    async def run(self) -> str:
        self.started.set()
        await self.go_on.wait()
        self.ended = True
        return "done"

    async def fail(self) -> None:
        await self.run()
        raise ValueError("broken")


async def let_all_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_result_is_given_and_the_error_raised() -> None:
    work = Work()
    work.go_on.set()
    assert await uninterrupted(work.run()) == "done"
    with pytest.raises(ValueError, match="broken"):
        await uninterrupted(work.fail())

    async def give_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await uninterrupted(give_up())


async def cancelled(caller: Coroutine[Any, Any, object], work: Work, times: int = 1) -> None:
    """Cancel it in the middle of its work, which then ends, and it with that."""
    task = asyncio.create_task(caller)
    await work.started.wait()
    for _ in range(times):
        task.cancel()
        await let_all_run()
        assert not task.done()
    work.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert work.ended


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancelled_caller_ends_only_after_its_work_and_then_as_cancelled(times: int) -> None:
    work = Work()
    await cancelled(uninterrupted(work.run()), work, times)
    nested, steps = Work(), list[str]()

    async def outer() -> None:
        steps.append(await uninterrupted(nested.run()))
        await asyncio.sleep(0)
        steps.append("outer")

    await cancelled(uninterrupted(outer()), nested, times)
    assert steps == ["done", "outer"]


async def test_the_error_of_abandoned_work_is_not_reported_as_never_retrieved() -> None:
    reports: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    work = Work()
    await cancelled(uninterrupted(work.fail()), work)
    await let_all_run()
    asyncio.get_running_loop().set_exception_handler(None)
    assert reports == []


async def test_a_timeout_around_it_waits_and_is_still_a_timeout() -> None:
    work = Work()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            limit.reschedule(0)
            asyncio.get_running_loop().call_later(0.01, work.go_on.set)
            await uninterrupted(work.run())
    assert work.ended


async def test_a_task_that_misses_a_cancellation_or_failed_is_ended_all_the_same() -> None:
    missed = asyncio.Event()

    async def run_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            missed.set()
        await asyncio.Event().wait()

    async def fail() -> None:
        raise ValueError

    stubborn, failed = asyncio.create_task(run_for_ever()), asyncio.create_task(fail())
    await let_all_run()
    for task in (stubborn, failed):
        await ended(task)
    assert (missed.is_set(), stubborn.cancelled()) == (True, True)
    assert isinstance(failed.exception(), ValueError)


async def test_work_of_one_key_is_done_once_at_a_time() -> None:
    works, begun = OnePerKey[str | None](), [Work(), Work(), Work()]
    unused = iter(begun)
    callers = [asyncio.create_task(works.run(key, lambda: next(unused).run())) for key in ("a", "a", "b", "a")]
    await let_all_run()
    assert [work.started.is_set() for work in begun] == [True, True, False]
    callers[0].cancel()
    await let_all_run()
    assert callers[0].cancelled(), "nobody waits for what goes on"
    for work in begun:
        work.go_on.set()
    assert await asyncio.gather(*callers[1:]) == ["done"] * 3
    assert await works.run("a", lambda: next(unused).run()) == "done"
    assert begun[2].ended, "what comes later is work of its own"
    failing = Work()
    failing.go_on.set()
    alike = (works.run("a", failing.fail) for _ in range(2))
    assert [str(outcome) for outcome in await asyncio.gather(*alike, return_exceptions=True)] == ["broken"] * 2


async def test_what_is_asked_for_during_a_round_is_done_in_the_next_and_whoever_is_gone_holds_nobody_up() -> None:
    rounds, works = list[Sequence[int]](), [Work(), Work(), Work(), Work()]

    async def divide(numbers: Sequence[int]) -> list[float]:
        rounds.append(numbers)
        await works[len(rounds) - 1].run()
        return [1 / number for number in numbers]

    together = Rounds(divide, most=3)
    callers = [asyncio.create_task(together.run(number)) for number in (1, 2)]
    await let_all_run()
    later = [asyncio.create_task(together.run(number)) for number in (4, 5, 8, 0)]
    await let_all_run()
    assert rounds == [[1, 2]], "two that came together"
    later[1].cancel()
    for work in works:
        work.go_on.set()
    assert await asyncio.gather(*callers, later[0], later[2]) == [1, 1 / 2, 1 / 4, 1 / 8]
    with pytest.raises(ZeroDivisionError):
        await later[3]
    await together.close()
    assert rounds == [[1, 2], [4, 5, 8], [0]], "what was asked for is done, whoever still waits"
    assert await together.run(2) == 1 / 2, "after an error there is another round"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def test_a_thread_that_gives_way_does_so_alone() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    before = niceness()
    with ThreadPoolExecutor(1, initializer=give_way) as patient:
        assert patient.submit(niceness).result(PATIENCE_SECONDS) > before
    assert niceness() == before


@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_given_up_is_left_undone_or_goes_on_unheard(pool: ThreadPoolExecutor, fails: bool) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work(name: str) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)
        done.append(name)
        if fails:
            raise ValueError

    under_way, waiting = run_in(pool, work, "under way"), run_in(pool, work, "waiting")
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    under_way.cancel()
    waiting.cancel()
    go_on.set()
    for _ in range(2):
        assert await run_in(pool, list, done) == ["under way"]
    assert await run_in(pool, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run_in(pool, divmod, 7, 0)


async def test_threads_work_in_the_context_of_who_asked(pool: ThreadPoolExecutor) -> None:
    batches, asked_by = Batches(pool), ContextVar("asked_by", default="nobody")

    async def ask(name: str) -> list[str]:
        asked_by.set(name)
        return [await run_in(pool, asked_by.get), await batches.run(asked_by.get)]

    names = ["alice", "bob", "carol"]
    assert await asyncio.gather(*map(ask, names)) == [[name, name] for name in names]
    assert await run_in(pool, asked_by.get) == "nobody"


async def test_what_comes_in_one_turn_shares_a_hop_and_each_has_its_own_outcome(pool: ThreadPoolExecutor) -> None:
    batches, hops = Batches(pool), count_hops(pool)
    outcomes = await asyncio.gather(*(batches.run(divmod, 7, by) for by in (2, 0, 3)), return_exceptions=True)
    assert (outcomes[0], type(outcomes[1]), outcomes[2]) == ((3, 1), ZeroDivisionError, (2, 1))
    assert len(hops) == 1
    assert await batches.run(divmod, 7, 4) == (1, 3)
    assert len(hops) == 2


async def test_what_comes_during_a_batch_is_the_next_one(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_MAX_BATCH", 3)
    batches, hops = Batches(pool), count_hops(pool)
    begun, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    def work() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)

    first = batches.run(work)
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    rest = [batches.run(done.append, number) for number in range(5)]
    rest[1].cancel()
    first.cancel()
    go_on.set()
    await asyncio.gather(*rest, return_exceptions=True)
    assert done == [0, 2, 3, 4], "in order, and what is given up is left undone"
    assert len(hops) == 3, "of three at most"


async def test_a_pool_that_is_shut_down_refuses_work_and_every_batch(pool: ThreadPoolExecutor) -> None:
    batches = Batches(pool)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        run_in(pool, list)
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
