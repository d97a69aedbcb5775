"""Expiry pauses when clients could not have sent a chunk."""

from tests.support.clock import ManualClock
from uploader.jobs.runner import Pause


def pause_of(clock: ManualClock) -> Pause:
    return Pause("expiry", clock, grace_seconds=600, interval_seconds=60)


def run_for(pause: Pause, clock: ManualClock, seconds: int) -> bool:
    """Ask every minute; the last answer."""
    active = pause.active()
    for _ in range(seconds // 60):
        clock.advance(60)
        active = pause.active()
    return active


def test_it_pauses_after_the_start_for_the_grace(clock: ManualClock) -> None:
    pause = pause_of(clock)
    assert pause.active()
    assert run_for(pause, clock, 540)
    assert not run_for(pause, clock, 60)


def test_it_goes_on_while_time_passes_as_it_should(clock: ManualClock) -> None:
    pause = pause_of(clock)
    run_for(pause, clock, 600)
    assert not run_for(pause, clock, 86_400)


def test_an_outage_of_the_runs_starts_the_grace_again(clock: ManualClock) -> None:
    pause = pause_of(clock)
    run_for(pause, clock, 600)
    clock.advance(400)
    assert pause.active()
    assert not run_for(pause, clock, 600)


def test_a_jump_of_the_clock_starts_the_grace_again_in_either_direction(clock: ManualClock) -> None:
    for seconds in (8 * 86_400, -86_400):
        pause = pause_of(clock)
        run_for(pause, clock, 600)
        clock.jump(seconds)
        assert pause.active()
        assert not run_for(pause, clock, 600)


def test_a_small_correction_of_the_clock_is_no_jump(clock: ManualClock) -> None:
    pause = pause_of(clock)
    run_for(pause, clock, 600)
    clock.jump(5)
    assert not pause.active()
