"""How contents are cut into pieces, for clients that cut by themselves."""

import hashlib
import io
import json
import random
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.content import KIB, MIB, Content
from tests.support.deltas import copied, literal
from uploader.domain import delta
from uploader.domain.delta import MAX_INSTRUCTIONS, Copy, Cuts, Pieces, cuts_for, literal_head, pieces_of
from uploader.errors import BaseUnusable, ChunkLengthMismatch, InvalidDelta
from uploader.http.bodies.delta import InstructionReader
from uploader.service.delta import DeltaBase, most_compared
from uploader.storage.store import BytesBlob

GIB = 1 << 30
CONTENT = Content(4 * MIB)


def ends_of(content: bytes) -> list[int]:
    return list(accumulate(length for length, _ in pieces_of(io.BytesIO(content), cuts_for(len(content)))))


@pytest.mark.parametrize(
    ("size", "average"),
    [(0, 64 * KIB), (2 * GIB, 64 * KIB), (3 * GIB, 128 * KIB), (30 * GIB, MIB), (1 << 44, MIB)],
)
def test_larger_contents_have_larger_pieces(size: int, average: int) -> None:
    assert cuts_for(size) == Cuts(min=average // 4, avg=average, max=average * 4)


def test_a_piece_is_known_by_a_part_of_its_sha256() -> None:
    at = 0
    for length, hashed in pieces_of(io.BytesIO(CONTENT.data), cuts_for(CONTENT.size)):
        assert hashed == hashlib.sha256(CONTENT.data[at : at + length]).digest()[:16]
        assert length <= 256 * KIB
        at += length
    assert at == CONTENT.size
    # An insertion moves no cut after it.
    before, after = ends_of(CONTENT.data), ends_of(b"x" + CONTENT.data)
    assert set(before) & {end - 1 for end in after} > set(before[5:])


def test_the_cuts_are_those_that_were_told_once() -> None:
    # Kept signatures, and clients with another version, go by them.
    assert ends_of(Content(MIB).data) == [
        111536,
        238843,
        366899,
        408045,
        498646,
        518783,
        640682,
        734683,
        805292,
        902728,
        1048576,
    ]


def test_the_head_says_how_to_cut() -> None:
    head = delta.head_of(CONTENT.size, CONTENT.sha256)
    assert head.endswith(b"}\n")
    assert json.loads(head) == {
        "algorithm": "fastcdc-2020",
        "min": 16 * KIB,
        "avg": 64 * KIB,
        "max": 256 * KIB,
        "hash": "sha-256-128",
        "size": CONTENT.size,
        "sha256": CONTENT.sha256,
    }


# Bytes of a base: compared with its signature before they are copied, in few reads, and no more than a chunk may cost.

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
    # So are the bytes of a run.
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


# The instructions of a chunk, in pieces of every size, and what is wrong with them.

BASE = bytes(range(200))


def made(body: bytes, chunk_bytes: int, piece_bytes: int, part_bytes: int = 16) -> bytes:
    """What the instructions make of the base, if they come in pieces of this size."""
    reader = InstructionReader(len(BASE), chunk_bytes, part_bytes)
    chunk = b""
    for at in range(0, len(body), piece_bytes):
        for part in reader.feed(memoryview(body)[at : at + piece_bytes]):
            assert (part.length if isinstance(part, Copy) else len(part)) <= part_bytes
            chunk += BASE[part.offset : part.offset + part.length] if isinstance(part, Copy) else part
    reader.end()
    return chunk


@pytest.mark.parametrize("piece_bytes", [1, 2, 5, 13, 14, 1000])
def test_a_chunk_is_made_of_what_is_copied_and_what_is_literal(piece_bytes: int) -> None:
    body = copied(3, 40) + literal(b"x" * 33) + literal(b"") + copied(200, 0) + copied(0, 200) + literal(b"y")
    wanted = BASE[3:43] + b"x" * 33 + BASE + b"y"
    assert made(body, len(wanted), piece_bytes) == wanted
    # The client writes what the server reads.
    assert Copy(3, 40).encode() == copied(3, 40)
    assert literal_head(2) + b"xy" == literal(b"xy")


@pytest.mark.parametrize("piece_bytes", [1, 1000])
@pytest.mark.parametrize(
    "body",
    [
        b"\x02",
        b"\xff" * 20,
        copied(0, 10) + b"\x00\x00",
        literal(b"1234567890")[:-1],
        copied(191, 10),
        copied(2**64 - 1, 10),
        copied(201, 0),
    ],
)
def test_what_is_no_instruction_is_refused(body: bytes, piece_bytes: int) -> None:
    with pytest.raises(InvalidDelta):
        made(body, 10, piece_bytes)


@pytest.mark.parametrize(
    ("body", "received"),
    [
        (b"", 0),
        (copied(0, 9), 9),
        (copied(0, 11), 11),
        (literal(b"12345678901"), 11),
        (literal_head(2**32 - 1), 2**32 - 1),
    ],
)
def test_what_makes_a_chunk_of_another_length_is_refused(body: bytes, received: int) -> None:
    with pytest.raises(ChunkLengthMismatch) as caught:
        made(body, 10, 1000)
    assert caught.value.fields == {"expected": 10, "received": received}


def test_there_are_no_more_instructions_than_that() -> None:
    body = copied(0, 1) * MAX_INSTRUCTIONS
    assert made(body, MAX_INSTRUCTIONS, 1 << 20) == BASE[:1] * MAX_INSTRUCTIONS
    with pytest.raises(InvalidDelta, match="more than 65536"):
        made(body + copied(0, 0), MAX_INSTRUCTIONS, 1 << 20)
