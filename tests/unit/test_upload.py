"""The tables of an upload's states agree with one another."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.domain.upload import (
    CHUNK_SIZE_STEP_BYTES,
    MAX_CHUNK_COUNT,
    REDIS_WORDS,
    STATE_OF_REASON,
    TRANSITIONS,
    ChunkSizes,
    Reason,
    State,
    chunk_count,
    chunk_length,
    missing_ranges,
    received_bytes,
    to_bitmap,
)

# A part that is consumed has not ended in vain.
ENDED_WITHOUT_FILE = frozenset(State) - {State.OPEN, State.DONE, State.CONSUMED}


def test_only_open_moves_and_can_reach_every_other_state() -> None:
    assert set(TRANSITIONS) == set(State)
    assert TRANSITIONS[State.OPEN] == frozenset(State) - {State.OPEN}
    assert not any(TRANSITIONS[state] for state in State if state is not State.OPEN)
    # Every such end without a file has a reason.
    assert set(STATE_OF_REASON) == set(Reason)
    assert set(STATE_OF_REASON.values()) == ENDED_WITHOUT_FILE


def test_redis_has_a_word_of_its_own_for_every_closed_state() -> None:
    assert set(REDIS_WORDS) == TRANSITIONS[State.OPEN]
    words = set(REDIS_WORDS.values())
    assert len(words) == len(REDIS_WORDS)
    assert not words & {"open", "merging"}


# The arithmetic of chunks, against the obvious way to count.

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SERVER = ChunkSizes(default=8 * MIB, minimum=64 * KIB, maximum=64 * MIB)

presences = st.lists(st.booleans(), max_size=200)


@pytest.mark.parametrize(
    ("asked", "size", "chosen"),
    [
        (None, 1, 8 * MIB),
        (8 * MIB, 1, 8 * MIB),
        (1, 1, 64 * KIB),
        (64 * KIB + 1, 1, 128 * KIB),
        (2**63 - 1, 1, 64 * MIB),
        (64 * KIB, 10_000 * 64 * KIB, 64 * KIB),
        (64 * KIB, 10_000 * 64 * KIB + 1, 128 * KIB),
        (None, 625 * GIB, 64 * MIB),
    ],
)
def test_a_chunk_size_is_clamped_rounded_and_raised_for_large_files(asked: int | None, size: int, chosen: int) -> None:
    assert SERVER.choose(asked, size) == chosen


@given(st.none() | st.integers(1, 2**63 - 1), st.integers(0, SERVER.max_file_size()))
def test_any_chosen_chunk_size_keeps_all_bounds(asked: int | None, size: int) -> None:
    chosen = SERVER.choose(asked, size)
    assert SERVER.minimum <= chosen <= SERVER.maximum
    assert chosen % CHUNK_SIZE_STEP_BYTES == 0
    assert chunk_count(size, chosen) <= MAX_CHUNK_COUNT


def test_the_largest_file_fills_the_most_chunks_and_an_empty_one_none() -> None:
    assert (received_bytes([], 0, 64), missing_ranges([]), to_bitmap([])) == (0, [], b"")
    assert SERVER.max_file_size() == 625 * GIB
    assert chunk_count(SERVER.max_file_size(), SERVER.maximum) == MAX_CHUNK_COUNT
    # A maximum between two steps is rounded down.
    sizes = ChunkSizes(default=64 * KIB, minimum=1, maximum=100 * KIB)
    assert (sizes.choose(100 * KIB, 1), sizes.max_file_size()) == (64 * KIB, 64 * KIB * MAX_CHUNK_COUNT)


@given(st.integers(0, 2**63 - 1), st.integers(1, 2**40))
def test_chunks_cover_a_file_without_gap_or_overlap(size: int, chunk_size: int) -> None:
    count = chunk_count(size, chunk_size)
    if size == 0:
        assert count == 0
        return
    last = chunk_length(count - 1, size, chunk_size)
    assert 1 <= last <= chunk_size
    assert (count - 1) * chunk_size + last == size


@given(presences.filter(bool), st.integers(1, 100), st.integers(1, 100))
def test_received_bytes_are_the_lengths_of_the_present_chunks(present: list[bool], chunk_size: int, rest: int) -> None:
    size = (len(present) - 1) * chunk_size + min(rest, chunk_size)
    expected = sum(chunk_length(number, size, chunk_size) for number, there in enumerate(present) if there)
    assert received_bytes(present, size, chunk_size) == expected
    assert received_bytes(bytearray(present), size, chunk_size) == expected


@given(presences)
def test_missing_ranges_name_each_missing_chunk_once_in_as_few_ranges_as_possible(present: list[bool]) -> None:
    ranges = missing_ranges(present)
    named = [number for first, last in ranges for number in range(first, last + 1)]
    assert named == [number for number, there in enumerate(present) if not there]
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ranges))


@given(presences)
def test_the_bitmap_has_a_chunk_where_redis_looks_for_it(present: list[bool]) -> None:
    bitmap = to_bitmap(present)
    assert len(bitmap) == -(-len(present) // 8)
    bits = "".join(f"{byte:08b}" for byte in bitmap)
    assert bits.rstrip("0") == "".join("1" if there else "0" for there in present).rstrip("0")
