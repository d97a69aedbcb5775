"""The formula of the quota; growth, and room on the disk; CSV that is opened in a spreadsheet."""

import csv
import io
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from uploader.domain.reports import Day, Growth, Totals, growth
from uploader.domain.upload import Room, Usage, floor_of
from uploader.service.reports import csv_lines

sizes = st.integers(0, 2**40)


def usage(total: int, finished: int, reserved: int, unfinished: int = 0) -> Usage:
    figures = {"use_space_finished": finished, "use_space_unfinished": unfinished, "reserved": reserved}
    return Usage(user_id="alice", total_space=total, files=0, **figures)


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
    for physical, per_day in ((100, 0.0), (80, -2.0)):
        found = growth(7, moment(0, 500, physical), moment(10, 500, 100), available_bytes=1000)
        assert (found.physical_bytes_per_day, found.days_until_full) == (per_day, None), "it does not fill up"
    assert growth(7, moment(0, 2, 2), moment(7, 1, 1), available_bytes=0).days_until_full == 0.0


@pytest.mark.parametrize("earlier", [None, moment(0, 0, 0), moment(-1, 0, 0)])
def test_without_an_earlier_moment_nothing_is_told(earlier: Day | None) -> None:
    found = growth(30, moment(0, 1, 1), earlier, available_bytes=1)
    assert astuple(found) == (30, None, None, None, None, None)


def test_what_is_available_on_the_disk_is_what_fits_above_the_floor() -> None:
    for free, promised, available in ((100, 20, 50), (100, 70, 0), (10, 70, 0)):
        found = Room(total_bytes=1000, free_bytes=free, trash_bytes=0, promised_bytes=promised, floor_bytes=30)
        assert found.available_bytes == available
        assert not found.fits(available + 1)
        assert found.fits(available) == (free >= 100)
    floors = [floor_of(100 * GIB, 0), floor_of(100 * GIB, None), floor_of(10 * GIB, None)]
    assert floors == [0, 5 * GIB, GIB], "as it is set, or a share of the disk"


def read(lines: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(lines)))


def test_text_that_begins_like_a_formula_is_put_behind_an_apostrophe_and_nothing_else() -> None:
    for text in ("=1+1", "+1", "-1", "@sum", "\t=1", "\r=1", "＝1", "＋1", "－1", "＠sum", "="):
        assert read(csv_lines([[text, "x"]])) == [[f"'{text}", "x"]]
    for text in ("", "a=1", "'=1", 'quo"ted', "a,b", "名", " =1"):
        assert read(csv_lines([["x", text]])) == [["x", text]]
    assert read(csv_lines([[-1, 2**63, 0.5, None]])) == [["-1", str(2**63), "0.5", ""]]
