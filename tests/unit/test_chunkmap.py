"""The formats of the chunk map, and of the record of a digest file: read as they were written, or not at all."""

import random
from collections.abc import Collection
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.storage.base import Defect
from uploader.storage.hashes import STATE_BYTES
from uploader.storage.local import chunks

BOOT_ID = "0f7b0c3e-5a39-4d57-9f7e-0d8f3c2b1a00"


def shape(count: int) -> chunks.MapShape:
    return chunks.MapShape(100 * count, 100, count)


def a_map(count: int, present: Collection[int] = (), checksum: int = 0) -> bytes:
    content = bytearray(chunks.new_map(BOOT_ID, shape(count)))
    for number in present:
        offset = chunks.map_record_offset(number)
        content[offset : offset + chunks.MAP_RECORD_LENGTH] = chunks.map_record(checksum)
    return bytes(content)


@given(st.lists(st.booleans(), max_size=300), st.integers(0, 2**32 - 1))
def test_a_map_is_read_as_it_was_written(present: list[bool], checksum: int) -> None:
    numbers = {number for number, there in enumerate(present) if there}
    parsed = chunks.parse_map(a_map(len(present), numbers, checksum), shape(len(present)), 100 * len(present))
    assert (parsed.boot_id, parsed.defect) == (BOOT_ID, None)
    assert list(parsed.present) == [int(there) for there in present]
    assert parsed.checksums == [checksum if there else None for there in present]
    assert parsed.complete == all(present)


@given(st.integers(0, 10_000))
def test_a_record_never_straddles_a_sector_and_leaves_header_and_gate_alone(number: int) -> None:
    first = chunks.map_record_offset(number)
    last = first + chunks.MAP_RECORD_LENGTH - 1
    assert first // 512 == last // 512
    assert first >= chunks.GATE_OFFSET + chunks.GATE_LENGTH
    assert len(chunks.map_record(0)) == chunks.MAP_RECORD_LENGTH


@given(st.integers(0, 2**32 - 1))
def test_a_packed_record_is_present_and_holds_its_checksum_and_anything_else_is_absent(checksum: int) -> None:
    record = chunks.map_record(checksum)
    assert chunks.is_present(record)
    assert int.from_bytes(record[4:], "little") == checksum
    assert not any(map(chunks.is_present, (b"", bytes(8), b"\x01" + bytes(7), b"\xff" * 8)))


@given(st.lists(st.booleans(), max_size=20))
def test_checksums_lead_up_to_the_first_chunk_that_is_not_there(present: list[bool]) -> None:
    records = b"".join(chunks.map_record(0xC1) if there else bytes(8) for there in present)
    count = [*present, False].index(False)
    assert chunks.leading_checksums(records) == chunks.leading_checksums(records + b"\xc1") == [0xC1] * count


@given(st.sets(st.integers(0, 19)), st.binary(max_size=chunks.MAP_RECORDS_OFFSET))
def test_chunks_are_seen_whatever_the_header_says(present: set[int], damage: bytes) -> None:
    content = damage + a_map(20, present, checksum=0xC1C1C1C1)[len(damage) :]
    assert chunks.holds_chunks(content) == bool(present)
    assert not any(map(chunks.holds_chunks, (b"", bytes(8192), b"orphan", b"\xc1" * chunks.MAP_RECORDS_OFFSET)))


def test_a_record_that_the_disk_refused_is_that_of_no_chunk() -> None:
    assert chunks.is_tainted(chunks.TAINTED_RECORD)
    assert not chunks.is_tainted(bytes(8))
    assert not chunks.is_tainted(chunks.map_record(0))
    assert not chunks.is_present(chunks.TAINTED_RECORD)
    assert not chunks.are_present(chunks.TAINTED_RECORD, 1)
    assert chunks.leading_checksums(chunks.TAINTED_RECORD) == []
    content = chunks.new_map("", shape(1))[: chunks.MAP_RECORDS_OFFSET] + chunks.TAINTED_RECORD
    assert not chunks.holds_chunks(content)
    parsed = chunks.parse_map(content, shape(1), 100)
    assert (list(parsed.present), parsed.checksums, parsed.defect) == ([0], [None], None)


def defect_of(content: bytes, data_bytes: int | None = 300) -> Defect | None:
    return chunks.parse_map(content, shape(3), data_bytes).defect


@pytest.mark.parametrize("boot_id", ["", BOOT_ID])
def test_a_flipped_byte_of_the_header_shows(boot_id: str) -> None:
    for place in range(chunks.MAP_RECORDS_OFFSET):
        content = bytearray(chunks.new_map(boot_id, shape(3)))
        content[place] ^= 0x80
        defect = defect_of(bytes(content))
        assert defect is not None, place
        assert defect.part == "map", place


def with_tail(number: int, length: int, present: Collection[int] = ()) -> bytearray:
    """A map of three chunks of 100 bytes."""
    content = bytearray(a_map(3, present))
    record = chunks.tail_record(chunks.TailRecord(number, length, 77))
    content[chunks.TAIL_OFFSET : chunks.TAIL_OFFSET + chunks.TAIL_LENGTH] = record
    return content


@pytest.mark.parametrize(
    ("number", "present", "in_force", "leading"),
    [
        (0, (), True, 40),
        (2, {0, 1}, True, 240),
        (0, {1}, True, 40),
        (0, {0}, False, 100),  # its chunk is whole
        (1, {0, 1, 2}, False, 300),
        (1, (), False, 0),  # a chunk before it went bad
    ],
)
def test_a_tail_is_in_force_at_the_first_gap(
    number: int, present: Collection[int], in_force: bool, leading: int
) -> None:
    parsed = chunks.parse_map(bytes(with_tail(number, 40, present)), shape(3), 300)
    assert (parsed.tail, parsed.defect) == (chunks.TailRecord(number, 40, 77) if in_force else None, None)
    assert parsed.leading_bytes == leading
    assert parsed.received_bytes == 100 * len(present) + (40 if in_force else 0)


def test_what_can_be_no_tail_of_an_upload_shows() -> None:
    for number, length in ((0, 0), (0, 100), (3, 1), (2**63, 1), (0, 2**63)):
        parsed = chunks.parse_map(bytes(with_tail(number, length)), shape(3), 300)
        assert parsed.tail is None
        assert parsed.defect is not None


def test_a_flipped_byte_of_a_tail_shows() -> None:
    assert chunks.holds_chunks(bytes(with_tail(0, 40)))
    for place in range(chunks.TAIL_OFFSET, chunks.TAIL_OFFSET + chunks.TAIL_LENGTH):
        content = with_tail(0, 40)
        content[place] ^= 0x80
        parsed = chunks.parse_map(bytes(content), shape(3), 300)
        assert parsed.tail is None, place
        assert parsed.defect is not None, place
        assert not chunks.holds_chunks(bytes(content)), place


def test_a_tail_lies_in_the_sector_of_the_header_and_no_byte_is_used_twice() -> None:
    fields = [(0, 72), (chunks.TAIL_OFFSET, chunks.TAIL_LENGTH), (chunks.GATE_OFFSET, chunks.GATE_LENGTH)]
    fields += [(chunks.APPEND_OFFSET, 1), (chunks.CLAIM_OFFSET, 1), (chunks.MAP_RECORDS_OFFSET, 8)]
    assert all(first + length <= start for (first, length), (start, _) in pairwise(fields))


def test_of_a_damaged_map_the_records_that_are_there_count() -> None:
    whole = a_map(3, {0, 2}, checksum=7)
    cut_short = (b"", whole[:100], whole[:-1], whole[: chunks.map_record_offset(1)])
    for content in (*cut_short, whole + b"\0", bytes(len(whole)), b"\x00" + whole[1:]):
        parsed = chunks.parse_map(content, shape(3), 300)
        assert parsed.defect is not None
        there = [offset < len(content) and content[offset] == whole[offset] for offset in (128, 136, 144)]
        assert list(parsed.present) == [int(there[0]), 0, int(there[2])]


@pytest.mark.parametrize(
    ("content", "data_bytes", "expected"),
    [
        (a_map(3, {0, 1, 2}), 300, None),
        (a_map(3, {0, 1, 2}), 299, 300),
        (a_map(3, {0, 1}), 200, None),
        (a_map(3, {0, 1}), 199, 200),
        (a_map(3, ()), 0, None),
        (a_map(3, ()), None, 300),
        (a_map(3, {1}), 301, 300),
        (with_tail(1, 40, {0}), 140, None),
        (with_tail(1, 40, {0}), 139, 140),
    ],
)
def test_data_ends_no_earlier_than_its_chunks_and_tail(
    content: bytes, data_bytes: int | None, expected: int | None
) -> None:
    assert defect_of(bytes(content), data_bytes) == (None if expected is None else Defect("data", expected, data_bytes))


LONGEST = chunks.SavedProgress(generation=2**31, boot_id="f" * 36, position=2**63 - 1, state=b"\xff" * STATE_BYTES)
FINISHED = chunks.Finished(generation=1, md5="a" * 32, sha256="b" * 64)

records = st.one_of(
    st.builds(
        chunks.SavedProgress,
        generation=st.integers(0, 2**31),
        boot_id=st.uuids().map(str),
        position=st.integers(0, 2**63 - 1),
        state=st.one_of(st.just(b""), st.binary(min_size=STATE_BYTES, max_size=STATE_BYTES)),
    ),
    st.just(FINISHED),
    st.just(chunks.Finished(generation=1, md5=None, sha256="b" * 64)),
    st.just(chunks.DataLost()),
)


@given(records)
def test_every_record_has_one_length_and_is_read_as_it_was_written(record: chunks.DigestRecord) -> None:
    assert len(chunks.digest_record(record)) == chunks.DIGEST_RECORD_LENGTH
    assert chunks.parse_digest_record(chunks.digest_record(record)) == record
    for none in (b"", b" ", b"\0" * chunks.DIGEST_RECORD_LENGTH, b"{}", b"00000000 ", b"lost"):
        assert chunks.parse_digest_record(none) is None


@pytest.mark.parametrize("record", [LONGEST, FINISHED, chunks.DataLost()])
def test_any_flipped_bit_makes_it_none(record: chunks.DigestRecord) -> None:
    packed = chunks.digest_record(record)
    generator = random.Random(0)
    for position in range(len(packed.rstrip())):
        flipped = bytearray(packed)
        flipped[position] ^= 1 << generator.randrange(8)
        assert chunks.parse_digest_record(bytes(flipped)) != record
        assert chunks.parse_digest_record(bytes(flipped)) is None


@given(cut=st.integers(0, chunks.DIGEST_RECORD_LENGTH - 1))
def test_a_record_that_was_overwritten_in_part_is_none(cut: int) -> None:
    before, after = chunks.digest_record(LONGEST), chunks.digest_record(FINISHED)
    assert chunks.parse_digest_record(after[:cut] + before[cut:]) in (None, LONGEST, FINISHED)
    assert chunks.parse_digest_record(after[:cut]) in (None, FINISHED)
