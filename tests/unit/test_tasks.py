"""Work that is not interrupted: a cancelled caller waits for its end."""

import asyncio

import pytest

from uploader.tasks import OnePerKey, ended, uninterrupted


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


async def test_the_result_is_given() -> None:
    work = Work()
    work.go_on.set()
    assert await uninterrupted(work.run()) == "done"


async def test_the_error_is_raised() -> None:
    work = Work()
    work.go_on.set()
    with pytest.raises(ValueError, match="broken"):
        await uninterrupted(work.fail())


async def test_a_cancelled_caller_ends_only_after_its_work_and_then_as_cancelled() -> None:
    work = Work()
    caller = asyncio.create_task(uninterrupted(work.run()))
    await work.started.wait()
    caller.cancel()
    await let_all_run()
    assert not caller.done()
    work.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.ended
    assert caller.cancelled()


async def test_a_caller_that_is_cancelled_again_and_again_still_waits() -> None:
    work = Work()
    caller = asyncio.create_task(uninterrupted(work.run()))
    await work.started.wait()
    for _ in range(3):
        caller.cancel()
        await let_all_run()
    assert not caller.done()
    work.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.ended


async def test_nested_work_is_not_interrupted_either() -> None:
    work = Work()
    outer_ended = False

    async def outer() -> None:
        nonlocal outer_ended
        assert await uninterrupted(work.run()) == "done"
        await asyncio.sleep(0)
        outer_ended = True

    caller = asyncio.create_task(uninterrupted(outer()))
    await work.started.wait()
    caller.cancel()
    await let_all_run()
    work.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.ended
    assert outer_ended


async def test_the_error_of_abandoned_work_is_not_reported_as_never_retrieved() -> None:
    reports: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    work = Work()
    caller = asyncio.create_task(uninterrupted(work.fail()))
    await work.started.wait()
    caller.cancel()
    await let_all_run()
    work.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    del caller
    await let_all_run()
    asyncio.get_running_loop().set_exception_handler(None)
    assert work.ended
    assert reports == []


async def test_work_that_cancels_itself_cancels_its_caller() -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await uninterrupted(give_up())


async def test_a_timeout_around_it_waits_and_is_still_a_timeout() -> None:
    work = Work()

    async def release() -> None:
        await work.started.wait()
        await asyncio.sleep(0.05)
        work.go_on.set()

    releasing = asyncio.create_task(release())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await uninterrupted(work.run())
    await releasing
    assert work.ended


async def test_a_task_that_misses_a_cancellation_is_ended_all_the_same() -> None:
    missed = asyncio.Event()

    async def run_for_ever() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if missed.is_set():
                    raise
                missed.set()

    task = asyncio.create_task(run_for_ever())
    await let_all_run()
    await ended(task)
    assert missed.is_set()
    assert task.cancelled()


async def test_the_end_of_a_task_that_failed_raises_nothing() -> None:
    work = Work()
    work.go_on.set()
    task = asyncio.create_task(work.fail())
    await let_all_run()
    await ended(task)
    assert isinstance(task.exception(), ValueError)


async def test_work_of_one_key_is_done_once_at_a_time() -> None:
    works, begun = OnePerKey[str](), [Work(), Work(), Work()]
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


async def test_work_of_one_key_fails_for_all_who_wait() -> None:
    works, work = OnePerKey[None](), Work()
    callers = [asyncio.create_task(works.run("a", work.fail)) for _ in range(2)]
    await let_all_run()
    work.go_on.set()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["broken"] * 2
