"""Work in threads: its result or error comes back, and a caller that is gone harms nobody."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from uploader.storage.threads import run_in


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


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


async def test_a_pool_that_is_shut_down_refuses_work(pool: ThreadPoolExecutor) -> None:
    pool.shutdown()
    with pytest.raises(RuntimeError):
        run_in(pool, list)
