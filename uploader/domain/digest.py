"""Digests as clients write them (hexadecimal; `Content-MD5`, RFC 1864; `Content-Digest`, RFC 9530), and proofs of
possession: the ranges that a challenge asks for, and the MAC that only a holder of the bytes can compute.

Refuses to know where challenges are kept and where the bytes are.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from uploader.domain.upload import IfExists

EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_LENGTHS = {"md5": 16, "sha-256": 32}
# One dictionary member (RFC 8941, section 3.2) with a byte sequence (section 3.3.5) and ignored parameters.
_MEMBER = re.compile(r"\s*([a-z*][a-z0-9_.*-]*)=(:[A-Za-z0-9+/=]*:|[^,;]*)((?:;[^,]*)?)\s*")


@dataclass(frozen=True, slots=True)
class ClaimedDigests:
    """The digests that a client sent with a chunk: the values of its `Content-Digest` and `Content-MD5` headers."""

    content_digest: Sequence[str] = ()
    content_md5: Sequence[str] = ()

    def parse(self) -> dict[str, bytes]:
        """Return the supported digests by algorithm. Raises ValueError for malformed headers, or if two digests
        differ."""
        found: dict[str, bytes] = {}
        for header in self.content_digest:
            found |= parse_content_digest(header)
        for header in self.content_md5:
            digest = parse_content_md5(header)
            if found.setdefault("md5", digest) != digest:
                raise ValueError("Content-MD5 and Content-Digest differ")
        return found


def parse_hex(text: str, length: int) -> str:
    """Return a digest of `length` hexadecimal digits in lower case. Raises ValueError."""
    if len(text) != length or not re.fullmatch(r"[0-9a-fA-F]+", text):
        raise ValueError(f"is not {length} hexadecimal digits")
    return text.lower()


def parse_content_md5(header: str) -> bytes:
    """Return the MD5 of a `Content-MD5` header. Raises ValueError."""
    return _decode(header.strip(), _LENGTHS["md5"])


def parse_content_digest(header: str) -> dict[str, bytes]:
    """Return the supported digests of a `Content-Digest` header; skip unknown algorithms. Raises ValueError."""
    digests: dict[str, bytes] = {}
    for member in header.split(","):
        match = _MEMBER.fullmatch(member)
        if not match:
            raise ValueError("is not a dictionary of byte sequences")
        algorithm, value = match[1], match[2]
        if algorithm not in _LENGTHS:
            continue
        if not (len(value) >= 2 and value[0] == value[-1] == ":"):
            raise ValueError(f"{algorithm} is not a byte sequence")
        digests[algorithm] = _decode(value[1:-1], _LENGTHS[algorithm])
    return digests


def _decode(text: str, length: int) -> bytes:
    try:
        digest = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("is not valid base64") from error
    if len(digest) != length:
        raise ValueError(f"is not {length} bytes long")
    return digest


ALGORITHM: Final = "hmac-sha256"
RANGE_BYTES = 4096

Range = tuple[int, int]  # offset and length in bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """A request to a user to prove that they hold this content. Good for one answer, until `expires_at`."""

    id: str
    nonce: bytes
    user_id: str
    md5: str
    sha256: str
    size: int
    ranges: list[Range]
    expires_at: datetime
    # For the file that the answer will create.
    if_exists: IfExists = IfExists.KEEP
    modified_at: datetime | None = None


def draw_ranges(size: int, count: int, below: Callable[[int], int]) -> list[Range]:
    """Return the ranges to ask for: `count` ranges of 4 KiB in order, or the whole content if it is not larger.

    `below(n)` draws evenly from 0 to n - 1. The content is divided into `count` stretches, and one range begins in
    each. So a client that lacks two neighbouring stretches always lacks a range, and a client that lacks scattered
    bytes never does better than with ranges drawn from the whole content.
    """
    if size <= count * RANGE_BYTES:
        return [(0, size)]
    ranges = []
    for number in range(count):
        begin, end = number * size // count, (number + 1) * size // count
        ranges.append((min(begin + below(end - begin), size - RANGE_BYTES), RANGE_BYTES))
    return ranges


def proof_of(challenge: Challenge, contents: Iterable[bytes]) -> bytes:
    """Return the proof, the MAC over `contents`: the bytes of each range in order."""
    head = f"uploader/1\n{challenge.user_id}\n{challenge.sha256}\n{challenge.size}\n"
    mac = hmac.new(challenge.nonce, head.encode(), hashlib.sha256)
    for (offset, length), content in zip(challenge.ranges, contents, strict=True):
        mac.update(offset.to_bytes(8, "big") + length.to_bytes(8, "big"))
        mac.update(content)
    return mac.digest()
