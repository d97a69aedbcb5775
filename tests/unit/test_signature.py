"""How contents are cut into pieces, for clients that cut by themselves."""

import hashlib
import io
import json
from itertools import accumulate

import pytest

from tests.support.content import MIB, Content
from uploader.domain import delta
from uploader.domain.delta import Cuts, cuts_for, pieces_of

KIB, GIB = 1024, 1 << 30
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


def test_an_insertion_moves_no_cut_after_it() -> None:
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
