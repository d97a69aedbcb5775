"""Bytes of a base: compared with its signature before they are copied, in few reads, and no more than a chunk may cost."""

import io
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.content import KIB, MIB, Content
from uploader.domain import delta
from uploader.domain.delta import Pieces, cuts_for, pieces_of
from uploader.errors import BaseUnusable, InvalidDelta
from uploader.service.delta import DeltaBase, most_compared
from uploader.storage.s3.contents.signatures import BytesBlob

DATA = Content(8 * MIB, seed=3).data
RECORDS = list(pieces_of(io.BytesIO(DATA), cuts_for(len(DATA))))
SIGNATURE = delta.head_of(len(DATA), "") + b"".join(delta.RECORD.pack(*record) for record in RECORDS)
LARGEST = cuts_for(len(DATA)).max
EXTENTS = [Pieces(SIGNATURE).extent(number) for number in range(len(RECORDS))]
Range = tuple[int, int]


class Counted(BytesBlob):
    """A blob in memory, and the ranges that were read of it at a time."""

    def __init__(self, content: bytes = DATA) -> None:
        super().__init__(content)
        self.reads: list[list[Range]] = []

    async def read_all(self, ranges: Sequence[Range]) -> list[bytes]:
        self.reads.append(list(ranges))
        return await super().read_all(ranges)

    @property
    def lengths(self) -> list[int]:
        """In bytes, of each read."""
        return [sum(length for _, length in ranges) for ranges in self.reads]


def base_on(blob: BytesBlob, most: int = 1 << 40) -> DeltaBase:
    async def examine() -> None:
        raise NotImplementedError

    return DeltaBase(blob, len(DATA), Pieces(SIGNATURE), most, examine)


def wanted(ranges: list[Range]) -> list[bytes]:
    return [DATA[offset : offset + length] for offset, length in ranges]


ranges_of_a_turn = st.lists(
    st.tuples(st.integers(0, len(DATA)), st.integers(0, 300 * KIB)).map(
        lambda extent: (extent[0], min(extent[1], len(DATA) - extent[0]))
    ),
    max_size=6,
)


@settings(max_examples=50)
@given(st.lists(ranges_of_a_turn, min_size=1, max_size=4))
async def test_what_is_copied_is_what_the_base_has(turns: list[list[Range]]) -> None:
    base = base_on(Counted())
    for ranges in turns:
        assert await base.read(ranges) == wanted(ranges)


async def test_copies_of_a_turn_are_read_together() -> None:
    """In whatever order they come, and whether their pieces were compared before or not."""
    blob = Counted()
    base = base_on(blob)
    one, other = EXTENTS[3][0], EXTENTS[50][0]
    ranges = [(start + at, 1) for at in range(256) for start in (one, other)]
    for _ in range(3):
        assert await base.read(ranges) == wanted(ranges)
    assert len(blob.reads) <= 3
    assert sum(blob.lengths) <= EXTENTS[3][1] + EXTENTS[50][1] + 2 * len(ranges)


async def test_pieces_are_compared_by_the_mebibyte() -> None:
    """So a turn that meets them all takes neither a read for each, nor memory for all."""
    blob = Counted()
    ranges = [(start, 1) for start, _ in EXTENTS]
    random.Random(1).shuffle(ranges)
    assert await base_on(blob).read(ranges) == wanted(ranges)
    assert len(blob.reads) <= len(DATA) // MIB
    assert max(blob.lengths) < MIB + LARGEST
    assert sum(blob.lengths) == len(DATA), "each is read once"


async def test_a_run_reads_its_bytes_once() -> None:
    blob = Counted()
    base = base_on(blob)
    for offset in range(0, len(DATA), 32 * KIB):
        assert await base.read([(offset, 32 * KIB)]) == wanted([(offset, 32 * KIB)])
    assert sum(blob.lengths) == len(DATA)


async def test_a_piece_that_rotted_is_told_wherever_it_is_copied_from() -> None:
    start, length = EXTENTS[7]
    rotted = bytearray(DATA)
    rotted[start + length - 1] ^= 1
    base = base_on(Counted(bytes(rotted)))
    ranges = [(EXTENTS[6][0], 1), (EXTENTS[8][0], 1)]
    assert await base.read(ranges) == wanted(ranges)
    with pytest.raises(BaseUnusable):
        await base.read([(start, 1)])


async def test_no_more_is_compared_than_a_chunk_may_cost() -> None:
    """And what would be more is told before it is read."""
    blob = Counted()
    base = base_on(blob, MIB)
    with pytest.raises(InvalidDelta, match=f"more than {MIB} bytes"):
        for start, _ in EXTENTS:
            await base.read([(start, 1)])
    assert MIB - LARGEST < sum(blob.lengths) <= MIB
    with pytest.raises(InvalidDelta):
        await base_on(blob, MIB).read([(start, 1) for start, _ in EXTENTS])
    assert sum(blob.lengths) <= MIB


@pytest.mark.parametrize("block_bytes", [None, 4 * KIB])
@pytest.mark.parametrize("chunk_bytes", [1, 64 * KIB, MIB, len(DATA)])
async def test_an_honest_client_does_not_meet_the_bound(block_bytes: int | None, chunk_bytes: int) -> None:
    """Whether it copies pieces, as ours does, or blocks as rsync finds them, though all of them moved."""
    blocks = [(at, 4 * KIB) for at in range(0, len(DATA), 4 * KIB)] if block_bytes else list(EXTENTS)
    random.Random(2).shuffle(blocks)
    base = base_on(Counted(), most_compared(len(DATA), chunk_bytes))
    copied = 0
    for offset, length in blocks:
        if copied == chunk_bytes:
            break
        count = min(length, chunk_bytes - copied)
        assert await base.read([(offset, count)]) == wanted([(offset, count)])
        copied += count
