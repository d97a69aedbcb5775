"""Ranges (RFC 9110, section 14) and the name of a download (RFC 8187)."""

import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.errors import RangeNotSatisfiable
from uploader.http.native.download import disposition, parse_ranges

SIZE = 10_000

numbers = st.integers(0, 20_000)
optional_spaces = st.sampled_from(["", " ", "\t "])


@pytest.mark.parametrize(
    ("header", "ranges"),
    [
        # The examples of RFC 9110, section 14.1.2, for a representation of 10,000 bytes.
        ("bytes=0-499", [(0, 500)]),
        ("bytes=500-999", [(500, 500)]),
        ("bytes=-500", [(9500, 500)]),
        ("bytes=9500-", [(9500, 500)]),
        ("bytes=0-0,-1", [(0, 1), (9999, 1)]),
        ("bytes= 0-999, 4500-5499, -1000", [(0, 1000), (4500, 1000), (9000, 1000)]),
        ("bytes=500-600,601-999", [(500, 101), (601, 399)]),
        ("bytes=500-700,601-999", [(500, 201), (601, 399)]),
        # What reaches beyond the end is cut; what lies beyond is left out if anything else is within.
        ("bytes=9999-99999999999999999999", [(9999, 1)]),
        ("bytes=-99999999999999999999", [(0, 10_000)]),
        ("bytes=10000-,0-0", [(0, 1)]),
        ("bytes=-0,0-0", [(0, 1)]),
        # The unit is case-insensitive, and a list may have empty elements (sections 14.1 and 5.6.1).
        ("Bytes=0-0", [(0, 1)]),
        ("bytes=,0-0,,\t5-6 ,", [(0, 1), (5, 2)]),
        # Digits without end.
        (f"bytes={'0' * 5000}1-2", [(1, 2)]),
        (f"bytes=1-{'9' * 5000}", [(1, 9999)]),
        (f"bytes=-{'9' * 5000}", [(0, 10_000)]),
    ],
)
def test_ranges_within_the_file_are_given_in_the_order_asked(header: str, ranges: list[tuple[int, int]]) -> None:
    assert parse_ranges(header, SIZE) == ranges


NO_RANGES = ["", "bytes", "bytes=", "bytes=,", "bytes=-", "bytes=5-4", "bytes=0-0,5-4", "bytes=0-0;1-1"]
NO_NUMBERS = ["bytes=a-b", "bytes=+1-2", "bytes=0x1-2", "bytes=1-2-3", "bytes=--1", "bytes=1 - 2", "bytes=٠-٥"]


@pytest.mark.parametrize("header", [*NO_RANGES, *NO_NUMBERS, f"bytes=2{'0' * 5000}-1{'9' * 5000}", "items=0-5", "0-5"])
def test_a_header_that_is_not_valid_is_ignored(header: str) -> None:
    assert parse_ranges(header, SIZE) is None


@pytest.mark.parametrize(
    ("header", "size"),
    [
        *((f"bytes={each}", SIZE) for each in ("10000-", "10000-10001,20000-", "-0", f"{'9' * 5000}-")),
        *(("bytes=0-", 0), ("bytes=-5", 0)),
        (f"bytes=1{'0' * 5000}-1{'0' * 5001}", SIZE),
    ],
)
def test_ranges_of_which_none_lies_within_the_file_are_refused(header: str, size: int) -> None:
    with pytest.raises(RangeNotSatisfiable):
        parse_ranges(header, size)


def test_a_hundred_ranges_are_served_and_one_more_is_refused() -> None:
    assert parse_ranges("bytes=" + ",".join(["0-0"] * 100), SIZE) == [(0, 1)] * 100
    with pytest.raises(RangeNotSatisfiable, match="100"):
        parse_ranges("bytes=" + ",".join(["0-0"] * 101), SIZE)
    # Those that together exceed the file are ignored.
    assert parse_ranges("bytes=0-4999,5000-", SIZE) == [(0, 5000), (5000, 5000)]
    assert parse_ranges("bytes=0-5000,5000-", SIZE) is None


@given(numbers, st.none() | numbers, st.integers(0, SIZE), optional_spaces)
def test_a_range_selects_the_bytes_that_its_numbers_name(first: int, last: int | None, size: int, space: str) -> None:
    header = f"bytes={space}{first}-{'' if last is None else last}{space}"
    wanted = range(size)[first:] if last is None else range(size)[first : last + 1]
    if last is not None and last < first:
        assert parse_ranges(header, size) is None
    elif not wanted:
        with pytest.raises(RangeNotSatisfiable):
            parse_ranges(header, size)
    else:
        assert parse_ranges(header, size) == [(wanted[0], len(wanted))]


@given(numbers, st.integers(0, SIZE))
def test_a_suffix_selects_the_last_bytes(length: int, size: int) -> None:
    wanted = range(size)[-length:] if length else range(0)
    if not wanted:
        with pytest.raises(RangeNotSatisfiable):
            parse_ranges(f"bytes=-{length}", size)
    else:
        assert parse_ranges(f"bytes=-{length}", size) == [(wanted[0], len(wanted))]


@given(st.text(alphabet="bytes=0123456789-, \t", max_size=40), st.integers(0, 100))
def test_whatever_is_sent_only_bytes_of_the_file_are_given(header: str, size: int) -> None:
    try:
        ranges = parse_ranges(header, size)
    except RangeNotSatisfiable:
        return
    assert ranges is None or ranges
    assert all(0 <= offset < offset + length <= size for offset, length in ranges or [])


def parts_of(header: str) -> tuple[str, str]:
    """The plain and the extended name of a header, which has to keep the grammar of RFC 6266 and RFC 8187."""
    match = re.fullmatch(
        r"attachment; filename=\"([ !#-\[\]-~]*)\"; filename\*=UTF-8''((?:[A-Za-z0-9!#$&+.^_`|~-]|%[0-9A-F]{2})*)",
        header,
    )
    assert match is not None, header
    return match[1], unquote(match[2], errors="strict")


@pytest.mark.parametrize(
    ("name", "plain", "extended"),
    [
        ("a.iso", "a.iso", "a.iso"),
        ("docs/2026/a b.iso", "a b.iso", "a b.iso"),
        # The example of RFC 8187, section 3.2.3.
        ("£ and € rates", "_ and _ rates", "£ and € rates"),
        ('quo"te.txt', "quo_te.txt", 'quo"te.txt'),
        ("100%41.txt", "100_41.txt", "100%41.txt"),
        ("semi;colon'.txt", "semi;colon'.txt", "semi;colon'.txt"),
        ("文件.txt", "__.txt", "文件.txt"),
    ],
)
def test_a_download_is_an_attachment_under_the_last_segment(name: str, plain: str, extended: str) -> None:
    assert parts_of(disposition(name)) == (plain, extended)
    # As the RFC spells it.
    assert disposition("£ and € rates").endswith("filename*=UTF-8''%C2%A3%20and%20%E2%82%AC%20rates")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_name_keeps_the_grammar_and_survives_in_the_extended_form(name: str) -> None:
    plain, extended = parts_of(disposition(name))
    assert extended == name.rsplit("/", 1)[-1]
    assert len(plain) == len(extended)
