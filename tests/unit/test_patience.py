"""How long one request waits for stores that are silent."""

import asyncio
import time

import pytest

from uploader.patience import LEAST, Patience, patience, patience_of_request, waiting


def silent_for(seconds: float) -> Patience:
    """That of a request that has waited so long until now."""
    worn = Patience()
    worn.note(time.monotonic() - seconds, 0)
    return worn


def test_the_first_store_has_all_its_time() -> None:
    assert Patience().left("redis", 5) == 5


def test_the_next_one_has_what_is_left() -> None:
    assert silent_for(2).left("redis", 5) == pytest.approx(3, abs=0.1)


def test_each_one_has_some_time() -> None:
    assert silent_for(100).left("redis", 5) == 5 * LEAST


def test_a_short_wait_does_not_count() -> None:
    fresh = Patience()
    fresh.note(time.monotonic() - 0.5, 1)
    assert fresh.left("redis", 5) == 5


def test_what_is_waited_for_side_by_side_counts_once() -> None:
    began, worn = time.monotonic() - 2, Patience()
    worn.note(began, 1)
    worn.note(began, 1)
    assert worn.left("redis", 5) == pytest.approx(3, abs=0.1)


def test_what_goes_on_in_between_does_not_count() -> None:
    worn = silent_for(1)
    time.sleep(0.3)
    assert worn.left("redis", 5) == pytest.approx(4, abs=0.1)


def test_a_store_that_was_given_up_is_not_asked_again_and_others_are() -> None:
    worn = silent_for(5)
    worn.give_up("database")
    assert (worn.left("database", 5), worn.left("redis", 5)) == (0, 5 * LEAST)


def test_a_silence_of_long_ago_is_forgotten() -> None:
    worn = silent_for(5)
    worn.give_up("database")
    time.sleep(0.06)
    assert (worn.left("database", 0.05), worn.left("redis", 0.05)) == (0.05, 0.05)


async def test_a_job_has_all_its_time_for_each_call() -> None:
    patience().note(time.monotonic() - 5, 0)
    assert patience().left("redis", 5) == 5


async def test_what_a_request_begins_beside_itself_is_a_part_of_it() -> None:
    own = Patience()
    patience_of_request.set(own)

    async def begun() -> Patience:
        return patience()

    assert await asyncio.create_task(begun()) is own


async def test_a_store_that_does_not_answer_is_given_up_and_one_that_says_so_itself_is_not() -> None:
    own = Patience()
    patience_of_request.set(own)
    with pytest.raises(OSError, match=r"no answer within 0\.05 s"):
        async with waiting("redis", 0.05, OSError):
            await asyncio.sleep(10)
    with pytest.raises(TimeoutError, match="its own"):
        async with waiting("database", 0.05, OSError):
            raise TimeoutError("its own")
    assert own.left("redis", 5) == 0
    assert own.left("database", 5) > 0
    with pytest.raises(OSError, match="did not answer this request before"):
        async with waiting("redis", 5, OSError):
            raise AssertionError
