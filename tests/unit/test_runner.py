"""Expiry pauses when clients could not have sent a chunk."""

from functools import partial

import pytest

from tests.support.clock import ManualClock
from uploader.jobs.runner import Pause


def run_for(pause: Pause, clock: ManualClock, seconds: int) -> bool:
    """Ask every minute; the last answer."""
    active = pause.active()
    for _ in range(seconds // 60):
        clock.advance(60)
        active = pause.active()
    return active


@pytest.fixture
def pause(clock: ManualClock) -> Pause:
    return Pause("expiry", clock, grace_seconds=600, interval_seconds=60)


def test_it_pauses_for_the_grace_and_goes_on_while_time_passes_as_it_should(pause: Pause, clock: ManualClock) -> None:
    assert pause.active()
    assert run_for(pause, clock, 540)
    assert not run_for(pause, clock, 60)
    assert not run_for(pause, clock, 86_400)
    clock.jump(5)
    assert not pause.active(), "a small correction of the clock is no jump"


def test_an_outage_of_the_runs_and_a_jump_of_the_clock_start_the_grace_again(pause: Pause, clock: ManualClock) -> None:
    run_for(pause, clock, 600)
    for out_of_order in (partial(clock.advance, 400), partial(clock.jump, 8 * 86_400), partial(clock.jump, -86_400)):
        out_of_order()
        assert pause.active()
        assert not run_for(pause, clock, 600)
