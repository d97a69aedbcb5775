"""The record of a digest file: read as it was written, or not at all."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.storage.hashes import STATE_BYTES
from uploader.storage.local.chunks import (
    DIGEST_RECORD_LENGTH,
    DataLost,
    DigestRecord,
    Finished,
    SavedProgress,
    digest_record,
    parse_digest_record,
)

LONGEST = SavedProgress(generation=2**31, boot_id="f" * 36, position=2**63 - 1, state=b"\xff" * STATE_BYTES)
FINISHED = Finished(generation=1, md5="a" * 32, sha256="b" * 64)

records = st.one_of(
    st.builds(
        SavedProgress,
        generation=st.integers(0, 2**31),
        boot_id=st.uuids().map(str),
        position=st.integers(0, 2**63 - 1),
        state=st.one_of(st.just(b""), st.binary(min_size=STATE_BYTES, max_size=STATE_BYTES)),
    ),
    st.just(FINISHED),
    st.just(Finished(generation=1, md5=None, sha256="b" * 64)),
    st.just(DataLost()),
)


@given(records)
def test_every_record_has_one_length_and_is_read_as_it_was_written(record: DigestRecord) -> None:
    assert len(digest_record(record)) == DIGEST_RECORD_LENGTH
    assert parse_digest_record(digest_record(record)) == record
    for none in (b"", b" ", b"\0" * DIGEST_RECORD_LENGTH, b"{}", b"00000000 ", b"lost"):
        assert parse_digest_record(none) is None


@pytest.mark.parametrize("record", [LONGEST, FINISHED, DataLost()])
def test_any_flipped_bit_makes_it_none(record: DigestRecord) -> None:
    packed = digest_record(record)
    generator = random.Random(0)
    for position in range(len(packed.rstrip())):
        flipped = bytearray(packed)
        flipped[position] ^= 1 << generator.randrange(8)
        assert parse_digest_record(bytes(flipped)) != record
        assert parse_digest_record(bytes(flipped)) is None


@given(cut=st.integers(0, DIGEST_RECORD_LENGTH - 1))
def test_a_record_that_was_overwritten_in_part_is_none(cut: int) -> None:
    before, after = digest_record(LONGEST), digest_record(FINISHED)
    assert parse_digest_record(after[:cut] + before[cut:]) in (None, LONGEST, FINISHED)
    assert parse_digest_record(after[:cut]) in (None, FINISHED)
