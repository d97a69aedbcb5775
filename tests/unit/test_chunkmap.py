"""The format of the chunk map."""

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.storage.local import formats

BOOT_ID = "0f7b0c3e-5a39-4d57-9f7e-0d8f3c2b1a00"


def a_map(count: int, present: Collection[int] = (), checksum: int = 0) -> bytes:
    content = bytearray(formats.new_map(BOOT_ID, 1000, 100, count))
    for number in present:
        offset = formats.map_record_offset(number)
        content[offset : offset + formats.MAP_RECORD_LENGTH] = formats.map_record(checksum)
    return bytes(content)


@given(st.lists(st.booleans(), max_size=300), st.integers(0, 2**32 - 1))
def test_a_map_is_read_as_it_was_written(present: list[bool], checksum: int) -> None:
    numbers = {number for number, there in enumerate(present) if there}
    parsed = formats.parse_map(a_map(len(present), numbers, checksum))
    assert (parsed.boot_id, parsed.size, parsed.chunk_size) == (BOOT_ID, 1000, 100)
    assert list(parsed.present) == [int(there) for there in present]
    assert parsed.complete == all(present)


@given(st.integers(0, 10_000))
def test_a_record_never_straddles_a_sector_and_leaves_header_and_gate_alone(number: int) -> None:
    first = formats.map_record_offset(number)
    last = first + formats.MAP_RECORD_LENGTH - 1
    assert first // 512 == last // 512
    assert first >= formats.GATE_OFFSET + formats.GATE_LENGTH
    assert len(formats.map_record(0)) == formats.MAP_RECORD_LENGTH


@given(st.integers(0, 2**32 - 1))
def test_a_packed_record_is_present_and_holds_its_checksum(checksum: int) -> None:
    record = formats.map_record(checksum)
    assert formats.is_present(record)
    assert int.from_bytes(record[4:], "little") == checksum


@given(st.lists(st.booleans(), max_size=20))
def test_those_that_are_present_are_counted_up_to_the_first_that_is_not(present: list[bool]) -> None:
    records = b"".join(formats.map_record(0xC1) if there else bytes(8) for there in present)
    assert formats.count_present(records) == [*present, False].index(False)


@pytest.mark.parametrize("record", [b"", bytes(8), b"\x01" + bytes(7), b"\xff" * 8])
def test_anything_but_the_mark_is_absent(record: bytes) -> None:
    assert not formats.is_present(record)


@given(st.sets(st.integers(0, 19)), st.binary(max_size=formats.MAP_RECORDS_OFFSET))
def test_chunks_are_seen_whatever_the_header_says(present: set[int], damage: bytes) -> None:
    content = damage + a_map(20, present, checksum=0xC1C1C1C1)[len(damage) :]
    assert formats.holds_chunks(content) == bool(present)


@pytest.mark.parametrize("content", [b"", bytes(8192), b"orphan", b"\xc1" * formats.MAP_RECORDS_OFFSET])
def test_what_is_no_map_holds_no_chunks(content: bytes) -> None:
    assert not formats.holds_chunks(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        a_map(3)[:100],
        a_map(3)[:-1],
        a_map(3) + b"\0",
        b"X" + a_map(3)[1:],
        bytes(200),
    ],
)
def test_what_is_cut_short_or_no_map_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="chunk map"):
        formats.parse_map(content)
