"""Digests as clients write them: in hexadecimal, in `Content-MD5` (RFC 1864) and in `Content-Digest` (RFC 9530)."""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass

EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_LENGTHS = {"md5": 16, "sha-256": 32}
# One dictionary member of RFC 8941, section 3.2, with a byte sequence (section 3.3.5) and ignored parameters.
_MEMBER = re.compile(r"\s*([a-z*][a-z0-9_.*-]*)=(:[A-Za-z0-9+/=]*:|[^,;]*)((?:;[^,]*)?)\s*")


@dataclass(frozen=True, slots=True)
class ClaimedDigests:
    """The digests that a client has sent with a chunk: the values of its `Content-Digest` and `Content-MD5` headers."""

    content_digest: Sequence[str] = ()
    content_md5: Sequence[str] = ()

    def parse(self) -> dict[str, bytes]:
        """The known digests by their algorithm. Raises ValueError, saying why, also where two of them differ."""
        found: dict[str, bytes] = {}
        for header in self.content_digest:
            found |= parse_content_digest(header)
        for header in self.content_md5:
            digest = parse_content_md5(header)
            if found.setdefault("md5", digest) != digest:
                raise ValueError("Content-MD5 and Content-Digest differ")
        return found


def parse_hex(text: str, length: int) -> str:
    """A digest of `length` hexadecimal digits, folded to lower case. Raises ValueError."""
    if len(text) != length or not re.fullmatch(r"[0-9a-fA-F]+", text):
        raise ValueError(f"is not {length} hexadecimal digits")
    return text.lower()


def parse_content_md5(header: str) -> bytes:
    """The MD5 of a `Content-MD5` header. Raises ValueError."""
    return _decode(header.strip(), _LENGTHS["md5"])


def parse_content_digest(header: str) -> dict[str, bytes]:
    """The known digests of a `Content-Digest` header; unknown algorithms are left out. Raises ValueError."""
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
