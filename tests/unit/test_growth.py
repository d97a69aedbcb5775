"""Growth, and room on the disk: the formulas by which reports tell when the disk is full."""

from datetime import UTC, datetime, timedelta

import pytest

from uploader.domain.reports import Growth, Moment, Room, floor_of, growth

GIB = 1 << 30
NOW = datetime(2030, 1, 31, tzinfo=UTC)


def moment(days_ago: float, finished: int, physical: int) -> Moment:
    return Moment(taken_at=NOW - timedelta(days=days_ago), use_space_finished=finished, physical_bytes=physical)


def test_growth_is_told_by_the_day_over_the_time_that_has_passed() -> None:
    found = growth(7, moment(0, 500, 300), moment(8, 100, 220), available_bytes=1000)
    assert found == Growth(
        days=7,
        since=NOW - timedelta(days=8),
        use_space_finished=400,
        physical_bytes=80,
        physical_bytes_per_day=10.0,
        days_until_full=100.0,
    )


@pytest.mark.parametrize(("physical", "per_day"), [(100, 0.0), (80, -2.0)])
def test_a_disk_that_does_not_fill_up_has_no_last_day(physical: int, per_day: float) -> None:
    found = growth(7, moment(0, 500, physical), moment(10, 500, 100), available_bytes=1000)
    assert (found.physical_bytes_per_day, found.days_until_full) == (per_day, None)


def test_a_disk_that_is_full_is_full_today() -> None:
    assert growth(7, moment(0, 2, 2), moment(7, 1, 1), available_bytes=0).days_until_full == 0.0


@pytest.mark.parametrize("earlier", [None, moment(0, 0, 0), moment(-1, 0, 0)])
def test_without_an_earlier_moment_nothing_is_told(earlier: Moment | None) -> None:
    assert growth(30, moment(0, 1, 1), earlier, available_bytes=1) == Growth(days=30)


def room(free: int, promised: int, floor: int) -> Room:
    return Room(total_bytes=1000, free_bytes=free, trash_bytes=0, promised_bytes=promised, floor_bytes=floor)


@pytest.mark.parametrize(
    ("found", "available"), [(room(100, 20, 30), 50), (room(100, 70, 30), 0), (room(10, 70, 30), 0)]
)
def test_what_is_available_is_what_fits(found: Room, available: int) -> None:
    assert found.available_bytes == available
    assert not found.fits(available + 1)
    assert found.fits(available) == (found.free_bytes >= 100)


def test_the_floor_is_as_it_is_set_or_a_share_of_the_disk() -> None:
    assert floor_of(100 * GIB, 0) == 0
    assert floor_of(100 * GIB, None) == 5 * GIB
    assert floor_of(10 * GIB, None) == GIB
