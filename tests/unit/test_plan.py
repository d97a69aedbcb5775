"""What the client decides without any I/O: which chunks, which key, how long to wait, what to show."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import ManualClock
from uploader.cli.terminal import human_seconds
from uploader.client.pace import Patience
from uploader.client.plan import Queue, missing_numbers, resume_key, sample_ranges
from uploader.client.transfer import Meter, Progress
from uploader.units import human_bytes


def test_a_queue_hands_out_each_missing_chunk_once_in_rising_order_and_a_held_last_one_later() -> None:
    queue = Queue([(0, 2), (5, 5)])
    assert [queue.take() for _ in range(5)] == [0, 1, 2, 5, None]
    assert len(queue) == 0
    queue = Queue([(3, 4)], hold_last=True)
    assert (queue.take(), queue.take(), len(queue)) == (3, None, 1)
    queue.release()
    assert (queue.take(), queue.take(), len(queue)) == (4, None, 0)
    assert list(missing_numbers([(1, 1), (4, 6)])) == [1, 4, 5, 6]


@given(st.integers(0, 2**50))
def test_a_sample_lies_within_the_file_and_has_its_first_and_last_bytes(size: int) -> None:
    ranges = sample_ranges(size)
    assert all(offset >= 0 and length > 0 and offset + length <= size for offset, length in ranges)
    assert sum(length for _, length in ranges) <= 1 << 20
    assert all(first[0] + first[1] <= second[0] for first, second in itertools.pairwise(ranges))
    if size:
        assert ranges[0][0] == 0
        assert sum(ranges[-1]) == size


def test_a_key_stands_for_one_name_size_sample_and_attempt() -> None:
    told = [("a", 1, b"x", 0), ("b", 1, b"x", 0), ("a", 2, b"x", 0), ("a", 1, b"y", 0), ("a", 1, b"x", 1)]
    keys = {resume_key(*each) for each in told}
    assert len(keys) == len(told)
    assert all(key.isascii() and key.isprintable() and " " not in key and len(key) <= 128 for key in keys)


def test_a_key_is_the_same_in_every_version() -> None:
    """Another key for the same file would forget every upload that is open."""
    assert resume_key("caf\u00e9/a.iso", 10**10, b"sample", 0) == "put-01ecb455786687791be75b2a10312316ffb5fa87-0"


def test_pauses_double_up_to_a_limit_spread_by_up_to_a_half_and_are_as_long_as_the_server_asks() -> None:
    patience = Patience(first_pause_seconds=1, longest_pause_seconds=8)
    assert [patience.pause_seconds(attempt, None, 0) for attempt in range(5)] == [1, 2, 4, 8, 8]
    assert [patience.pause_seconds(attempt, None, 1) for attempt in range(5)] == [0.5, 1, 2, 4, 4]
    assert patience.pause_seconds(10**6, None, 0) == 8
    assert patience.pause_seconds(0, 30, 1) > 30


def _meter(seen: list[Progress], clock: ManualClock) -> Meter:
    return Meter("name", 1000, seen.append, clock.monotonic)


def test_progress_is_told_ten_times_a_second_at_most_and_at_every_change_of_state() -> None:
    seen: list[Progress] = []
    clock = ManualClock()
    meter = _meter(seen, clock)
    for _ in range(100):
        clock.advance(0.01)
        meter.hashed(10)
    assert 9 <= len(seen) <= 11
    told = len(seen)
    meter.enter("uploading")
    meter.enter("uploading")
    assert [progress.state for progress in seen[told:]] == ["uploading"]


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    seen: list[Progress] = []
    clock = ManualClock()
    meter = _meter(seen, clock)
    meter.tell()
    assert seen[-1].bytes_per_second is None
    for rate in (50, 10):
        for _ in range(20):
            clock.advance(1)
            meter.moving(rate)
            meter.landed(rate)
    meter.received(500)
    assert seen[-1].bytes_per_second == pytest.approx(10, rel=0.1)
    assert meter.progress().seconds_left == pytest.approx(50, rel=0.1)


def test_an_older_figure_of_the_server_does_not_set_progress_back() -> None:
    meter = _meter([], ManualClock())
    meter.received(600)
    meter.received(400)
    assert meter.progress().received_bytes == 600
    meter.begin_anew()
    assert meter.progress().received_bytes == 0


SIZES = {
    0: "0 B",
    999: "999 B",
    1000: "1 KB",
    1001: "1.0 KiB",
    1024: "1 KiB",
    1536: "1.5 KiB",
    12_345_000: "11.8 MiB",
    10 << 20: "10 MiB",
    (10 << 20) + 1: "10.0 MiB",
    10**9: "1 GB",
    1_500_000_000: "1500 MB",
    5 << 29: "2.5 GiB",
    1023 << 30: "1023 GiB",
    (1 << 40) - 1: "1.0 TiB",
    1000 << 40: "1000 TiB",
    3 << 60: "3072 PiB",
}
DURATIONS = {0.04: "0.0 s", 9.9: "9.9 s", 59.4: "59 s", 61: "1 min 1 s", 7300: "2 h 1 min", 90000: "1 d 1 h"}


def test_sizes_are_short_and_exact_if_they_can_be_and_durations_have_the_two_units_that_matter() -> None:
    assert {size: human_bytes(size) for size in SIZES} == SIZES
    assert {seconds: human_seconds(seconds) for seconds in DURATIONS} == DURATIONS
