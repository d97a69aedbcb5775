"""How long one request waits for stores that are silent."""

import asyncio
from types import SimpleNamespace

import pytest

from tests.support.waits import as_request
from uploader.runtime.wait_budget import IN_ALL_SECONDS, LEAST, WaitBudget, in_passing, wait_budget, waiting


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """As the module `time`, for who asks for the time alone."""
    manual = SimpleNamespace(seconds=1000.0)
    manual.monotonic = lambda: manual.seconds
    monkeypatch.setattr("uploader.runtime.wait_budget.time", manual)
    return manual


def silent_for(seconds: float, time: SimpleNamespace) -> WaitBudget:
    """That of a request that has waited so long until now."""
    worn = WaitBudget()
    began = time.seconds
    time.seconds += seconds
    worn.note(began, 1)
    return worn


@pytest.mark.parametrize(
    ("silent", "left"),
    [(0, 5), (0.5, 5), (2, 3), (100, 5 * LEAST)],  # a short wait does not count; each one has some time
)
def test_the_next_store_has_what_is_left(time: SimpleNamespace, silent: float, left: float) -> None:
    assert silent_for(silent, time).left("redis", 5) == left
    # A job has all its time for each call.
    wait_budget().note(time.seconds - 5, 1)
    assert wait_budget().left("redis", 5) == 5


def test_what_is_waited_for_side_by_side_counts_once_and_what_goes_on_in_between_not(time: SimpleNamespace) -> None:
    worn = silent_for(2, time)
    worn.note(time.seconds - 2, 1)
    assert worn.left("redis", 5) == 3
    time.seconds += 4
    assert worn.left("redis", 5) == 3


def test_a_store_that_was_given_up_is_not_asked_again_until_it_is_forgotten(time: SimpleNamespace) -> None:
    worn = silent_for(5, time)
    worn.give_up("database")
    assert (worn.left("database", 5), worn.left("redis", 5)) == (0, 5 * LEAST)
    time.seconds += 5.5
    assert (worn.left("database", 5), worn.left("redis", 5)) == (5, 5)


def test_who_worked_meanwhile_has_no_less_time_and_others_have(time: SimpleNamespace) -> None:
    worn = silent_for(1.5, time)
    began = time.seconds
    time.seconds += 3
    worn.note(began, 1, worked="database")
    assert (worn.left("database", 5), worn.left("redis", 5)) == (3.5, 1)


def test_only_a_request_that_gave_up_a_store_has_an_end_for_those_that_work(time: SimpleNamespace) -> None:
    worn = silent_for(3, time)
    assert worn.left_in_all() is None
    worn.give_up("redis")
    assert worn.left_in_all() == IN_ALL_SECONDS - 3
    worn = silent_for(100, time)
    worn.give_up("redis")
    assert worn.left_in_all() == 1


def test_what_is_gone_on_without_has_as_little_time_as_any_call(time: SimpleNamespace) -> None:
    with in_passing():
        assert WaitBudget().left("redis", 5) == 5 * LEAST
        assert silent_for(4.5, time).left("redis", 5) == 5 * LEAST
        worn = silent_for(1, time)
        worn.give_up("redis")
        assert worn.left("redis", 5) == 0
        time.seconds += 5.5
        assert worn.left("redis", 5) == 5 * LEAST
    assert WaitBudget().left("redis", 5) == 5


async def test_what_a_request_begins_beside_itself_is_a_part_of_it() -> None:
    async def begun() -> WaitBudget:
        return wait_budget()

    with as_request() as own:
        assert await asyncio.create_task(begun()) is own


async def test_a_store_that_does_not_answer_is_given_up_and_one_that_says_so_itself_is_not() -> None:
    with as_request() as own:
        with pytest.raises(OSError, match=r"no answer within 0\.05 s"):
            async with waiting("redis", 0.05, OSError):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError, match="its own"):
            async with waiting("database", 0.05, OSError):
                raise TimeoutError("its own")
        assert own.left("redis", 5) == 0
        assert own.left("database", 5) > 0
        with pytest.raises(OSError, match="did not answer this request before"):
            async with waiting("redis", 5, OSError):
                raise AssertionError
