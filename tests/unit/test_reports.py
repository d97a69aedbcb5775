"""The formula of the quota; growth, and room on the disk; CSV that is opened in a spreadsheet."""

import csv
import io
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from uploader.domain.reports import Day, Growth, Room, Totals, Usage, floor_of, growth
from uploader.service.reports import csv_lines

sizes = st.integers(0, 2**40)


def usage(total: int, finished: int, reserved: int, unfinished: int = 0) -> Usage:
    figures = {"use_space_finished": finished, "use_space_unfinished": unfinished, "reserved": reserved}
    return Usage(user_id="alice", total_space=total, **figures)


def test_available_is_what_files_and_promises_leave() -> None:
    assert usage(100, 30, 50).available == 20
    assert usage(100, 30, 50, unfinished=50).available == 20, "what has arrived is a part of what is reserved"
    over = usage(10, 30, 0)
    assert (over.available, over.fits(0)) == (0, False)


@given(sizes, sizes, sizes)
def test_what_is_available_fits_and_one_byte_more_does_not(total: int, finished: int, reserved: int) -> None:
    account = usage(total, finished, reserved)
    assert account.available >= 0
    assert not account.fits(account.available + 1)
    assert account.fits(account.available) == (finished + reserved <= total)


GIB = 1 << 30
NOW = datetime(2030, 1, 31, tzinfo=UTC)


def moment(days_ago: float, finished: int, physical: int) -> Day:
    taken_at = NOW - timedelta(days=days_ago)
    figures = dict.fromkeys(Totals.__struct_fields__, 0) | {"use_space_finished": finished, "physical_bytes": physical}
    return Day(day=taken_at.date(), taken_at=taken_at, totals=Totals(**figures), free_disk_bytes=0)


def test_growth_is_told_by_the_day_over_the_time_that_has_passed() -> None:
    found = growth(7, moment(0, 500, 300), moment(8, 100, 220), available_bytes=1000)
    assert found == Growth(7, NOW - timedelta(days=8), 400, 80, 10.0, 100.0)


@pytest.mark.parametrize(("physical", "per_day"), [(100, 0.0), (80, -2.0)])
def test_a_disk_that_does_not_fill_up_has_no_last_day(physical: int, per_day: float) -> None:
    found = growth(7, moment(0, 500, physical), moment(10, 500, 100), available_bytes=1000)
    assert (found.physical_bytes_per_day, found.days_until_full) == (per_day, None)
    # One that is full is full today.
    assert growth(7, moment(0, 2, 2), moment(7, 1, 1), available_bytes=0).days_until_full == 0.0


@pytest.mark.parametrize("earlier", [None, moment(0, 0, 0), moment(-1, 0, 0)])
def test_without_an_earlier_moment_nothing_is_told(earlier: Day | None) -> None:
    found = growth(30, moment(0, 1, 1), earlier, available_bytes=1)
    assert astuple(found) == (30, None, None, None, None, None)


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


def read(lines: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(lines)))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\t=1", "\r=1", "＝1", "＋1", "－1", "＠sum", "="])
def test_text_that_begins_like_a_formula_is_put_behind_an_apostrophe(text: str) -> None:
    assert read(csv_lines([[text, "x"]])) == [[f"'{text}", "x"]]


@pytest.mark.parametrize("text", ["", "a=1", "'=1", 'quo"ted', "a,b", "名", " =1"])
def test_any_other_text_stays_as_it_is(text: str) -> None:
    assert read(csv_lines([["x", text]])) == [["x", text]]


def test_figures_stay_as_they_are() -> None:
    assert read(csv_lines([[-1, 2**63, 0.5, None]])) == [["-1", str(2**63), "0.5", ""]]
