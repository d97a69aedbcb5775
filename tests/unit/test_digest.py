"""Digests as clients write them."""

import base64
import hashlib
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.content import KIB, MIB, Content
from tests.support.proofs import proof_by
from uploader.domain.digest import (
    EMPTY_MD5,
    EMPTY_SHA256,
    RANGE_BYTES,
    Challenge,
    draw_ranges,
    parse_content_digest,
    parse_content_md5,
    parse_hex,
    proof_of,
)

MD5 = hashlib.md5(b"content").digest()
SHA256 = hashlib.sha256(b"content").digest()
MD5_BASE64 = base64.b64encode(MD5).decode()
SHA256_BASE64 = base64.b64encode(SHA256).decode()


def test_the_digests_of_nothing_are_right() -> None:
    assert (hashlib.md5(b"").hexdigest(), hashlib.sha256(b"").hexdigest()) == (EMPTY_MD5, EMPTY_SHA256)


@given(st.binary(min_size=16, max_size=16))
def test_hexadecimal_in_either_case_is_folded_to_lower_case(digest: bytes) -> None:
    assert parse_hex(digest.hex().upper(), 32) == parse_hex(digest.hex(), 32) == digest.hex()


def test_what_is_not_that_many_hexadecimal_digits_is_refused() -> None:
    zeros = "0" * 31
    for text in ("", zeros, f"{zeros}00", f"g{zeros}", f"{zeros}\n", f"{zeros}0\n", f" {zeros}", "٠" * 32):
        with pytest.raises(ValueError, match="32 hexadecimal digits"):
            parse_hex(text, 32)


@pytest.mark.parametrize("header", ["", MD5.hex(), "not base64!", MD5_BASE64[:-1], SHA256_BASE64, "é" * 24])
def test_a_malformed_content_md5_is_refused(header: str) -> None:
    assert parse_content_md5(f" {MD5_BASE64} ") == MD5
    with pytest.raises(ValueError, match=r"base64|bytes|ASCII"):
        parse_content_md5(header)


@pytest.mark.parametrize(
    "header",
    [
        f"md5=:{MD5_BASE64}:,sha-256=:{SHA256_BASE64}:",
        f"  sha-256=:{SHA256_BASE64}: ,\tmd5=:{MD5_BASE64}:",
        f"md5=:{MD5_BASE64}:;q=1;x, sha-256=:{SHA256_BASE64}:",
        f"sha-512=:AAAA:, md5=:{MD5_BASE64}:, crc32c=1, sha-256=:{SHA256_BASE64}:",
        f"md5=:AAAAAAAAAAAAAAAAAAAAAA==:, sha-256=:{SHA256_BASE64}:, md5=:{MD5_BASE64}:",  # the last one counts
    ],
)
def test_content_digest_gives_the_known_digests(header: str) -> None:
    assert parse_content_digest(header) == {"md5": MD5, "sha-256": SHA256}


@pytest.mark.parametrize(
    "header",
    [
        *("", "md5", "md5=:", "md5=::", "md5=:AAAA:", "md5=:!!!!:", f"md5={MD5_BASE64}", f"md5=:{MD5_BASE64}"),
        *(f"sha-256=:{MD5_BASE64}:", f"MD5=:{MD5_BASE64}:", f"md5=:{MD5_BASE64}:,"),
        f"md5=:{MD5_BASE64}: sha-256=:{SHA256_BASE64}:",
    ],
)
def test_a_malformed_content_digest_is_refused(header: str) -> None:
    assert parse_content_digest("sha-512=:AAAA:, unixsum=:AAAA:") == {}, "unknown algorithms are left out"
    with pytest.raises(ValueError, match=r"dictionary|byte sequence|base64|bytes"):
        parse_content_digest(header)


@given(st.text(max_size=60))
def test_any_header_is_parsed_or_refused(header: str) -> None:
    for parse in (parse_content_md5, parse_content_digest):
        try:
            parsed = parse(header)
        except ValueError:
            continue
        assert isinstance(parsed, dict) or len(parsed) == 16


COUNT = 64
WHOLE = COUNT * RANGE_BYTES


def drawn(size: int, seed: int, count: int = COUNT) -> list[tuple[int, int]]:
    return draw_ranges(size, count, random.Random(seed).randrange)


@given(st.integers(1, 2**63 - 1), st.integers(0, 2**32), st.integers(1, 1024))
def test_ranges_lie_within_the_content_in_order_and_as_many_as_asked_for(size: int, seed: int, count: int) -> None:
    ranges = drawn(size, seed, count)
    assert ranges == sorted(ranges)
    assert all(offset >= 0 and length > 0 and offset + length <= size for offset, length in ranges)
    assert sum(length for _, length in ranges) == min(size, count * RANGE_BYTES)


def test_of_small_content_the_whole_is_asked_for_and_of_large_64_ranges_of_4_kib() -> None:
    assert [drawn(size, 0) for size in (1, RANGE_BYTES, WHOLE)] == [[(0, 1)], [(0, RANGE_BYTES)], [(0, WHOLE)]]
    ranges = drawn(64 * MIB, 0)
    assert [length for _, length in ranges] == [4 * KIB] * 64
    assert [offset // MIB for offset, _ in ranges] == list(range(64))
    assert len({tuple(drawn(MIB, seed)) for seed in range(100)}) == 100, "they are drawn anew each time"


@given(st.integers(WHOLE + 1, 2**40), st.integers(0, 2**32), st.data())
def test_who_lacks_two_stretches_in_a_row_always_lacks_a_range(size: int, seed: int, data: st.DataObject) -> None:
    lacking = -(-2 * size // COUNT) + RANGE_BYTES
    begin = data.draw(st.integers(0, size - lacking))
    assert any(offset < begin + lacking and offset + length > begin for offset, length in drawn(size, seed))


@pytest.mark.parametrize("percent", [50, 75, 90])
def test_who_lacks_pieces_here_and_there_is_found_out_as_often_as_the_documents_say(percent: int) -> None:
    """The bound is (share held) ** 64: with 4 KiB pieces drawn at random, a range touches up to two of them."""
    size, tries, passed = MIB, 1000, 0
    for seed in range(tries):
        generator = random.Random(seed)
        held = [generator.randrange(100) < percent for _ in range(size // RANGE_BYTES)]
        ranges = draw_ranges(size, COUNT, generator.randrange)
        passed += all(
            held[offset // RANGE_BYTES] and held[(offset + length - 1) // RANGE_BYTES] for offset, length in ranges
        )
    assert passed <= tries * (percent / 100) ** COUNT + 5


def test_the_proof_is_the_one_of_the_contract() -> None:
    content = Content(MIB)
    ranges = drawn(content.size, 7)
    sent = {"nonce": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "user_id": "alice", "ranges": ranges}
    facts: dict[str, Any] = {
        "md5": content.md5,
        "sha256": content.sha256,
        "size": content.size,
        "expires_at": datetime.now(UTC),
    }
    challenge = Challenge(id="c", nonce=bytes(range(32)), user_id="alice", ranges=ranges, **facts)
    proof = proof_of(challenge, [content.data[offset : offset + length] for offset, length in ranges])
    assert proof.hex() == proof_by(content.data, sent, content.sha256)
