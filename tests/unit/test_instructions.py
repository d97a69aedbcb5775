"""The instructions of a chunk, in pieces of every size, and what is wrong with them."""

import pytest

from tests.support.deltas import copied, literal
from uploader.domain.delta import MAX_INSTRUCTIONS, Copy, literal_head
from uploader.errors import ChunkLengthMismatch, InvalidDelta
from uploader.http.bodies.delta import InstructionReader

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


def test_the_client_writes_what_the_server_reads() -> None:
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
