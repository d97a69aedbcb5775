"""The formula of the quota."""

from hypothesis import given
from hypothesis import strategies as st

from uploader.domain.reports import Usage

sizes = st.integers(0, 2**40)


def usage(total: int, finished: int, reserved: int, unfinished: int = 0) -> Usage:
    return Usage(
        user_id="alice",
        total_space=total,
        use_space_finished=finished,
        use_space_unfinished=unfinished,
        reserved=reserved,
    )


def test_available_is_what_files_and_promises_leave() -> None:
    assert usage(100, 30, 50).available == 20


def test_bytes_that_have_arrived_count_once_as_part_of_what_is_reserved() -> None:
    assert usage(100, 30, 50, unfinished=50).available == 20


@given(sizes, sizes, sizes)
def test_what_is_available_fits_and_one_byte_more_does_not(total: int, finished: int, reserved: int) -> None:
    account = usage(total, finished, reserved)
    assert account.available >= 0
    assert not account.fits(account.available + 1)
    assert account.fits(account.available) == (finished + reserved <= total)


def test_over_a_lowered_total_nothing_fits() -> None:
    account = usage(10, 30, 0)
    assert account.available == 0
    assert not account.fits(0)
