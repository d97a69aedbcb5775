"""The clock is in UTC, and the one of the tests stands still."""

from datetime import UTC, datetime, timedelta

from tests.support.clock import ManualClock
from uploader.clock import Clock


def test_the_clock_tells_the_present_moment_in_utc() -> None:
    before = datetime.now(UTC)
    now = Clock().now()
    assert before <= now <= datetime.now(UTC)
    assert now.tzinfo is UTC


def test_the_clock_of_the_tests_moves_only_when_it_is_turned(clock: ManualClock) -> None:
    start = clock.now()
    assert clock.now() == start
    clock.advance(90)
    assert clock.now() - start == timedelta(seconds=90)
