"""Digests as clients write them."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.domain.digest import EMPTY_MD5, EMPTY_SHA256, parse_content_digest, parse_content_md5, parse_hex

MD5 = hashlib.md5(b"content").digest()
SHA256 = hashlib.sha256(b"content").digest()
MD5_BASE64 = base64.b64encode(MD5).decode()
SHA256_BASE64 = base64.b64encode(SHA256).decode()


def test_the_digests_of_nothing_are_right() -> None:
    assert hashlib.md5(b"").hexdigest() == EMPTY_MD5
    assert hashlib.sha256(b"").hexdigest() == EMPTY_SHA256


@given(st.binary(min_size=16, max_size=16))
def test_hexadecimal_in_either_case_is_folded_to_lower_case(digest: bytes) -> None:
    assert parse_hex(digest.hex().upper(), 32) == parse_hex(digest.hex(), 32) == digest.hex()


@pytest.mark.parametrize(
    "text", ["", "0" * 31, "0" * 33, "g" + "0" * 31, "0" * 31 + "\n", "0" * 32 + "\n", " " + "0" * 31, "٠" * 32]
)
def test_what_is_not_that_many_hexadecimal_digits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        parse_hex(text, 32)


def test_content_md5_is_base64() -> None:
    assert parse_content_md5(f" {MD5_BASE64} ") == MD5


@pytest.mark.parametrize("header", ["", MD5.hex(), "not base64!", MD5_BASE64[:-1], SHA256_BASE64, "é" * 24])
def test_a_malformed_content_md5_is_refused(header: str) -> None:
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


def test_unknown_algorithms_are_left_out() -> None:
    assert parse_content_digest("sha-512=:AAAA:, unixsum=:AAAA:") == {}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "md5",
        f"md5={MD5_BASE64}",
        f"md5=:{MD5_BASE64}",
        "md5=:",
        "md5=::",
        "md5=:AAAA:",
        "md5=:!!!!:",
        f"sha-256=:{MD5_BASE64}:",
        f"MD5=:{MD5_BASE64}:",
        f"md5=:{MD5_BASE64}:,",
        f"md5=:{MD5_BASE64}: sha-256=:{SHA256_BASE64}:",
    ],
)
def test_a_malformed_content_digest_is_refused(header: str) -> None:
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
