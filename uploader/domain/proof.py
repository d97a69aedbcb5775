"""Proof of possession: which bytes a caller is asked about, and the MAC that only their holder can compute.

Refuses to know where challenges are kept and where the bytes are.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from uploader.domain.upload import IfExists

ALGORITHM: Final = "hmac-sha256"
RANGE_BYTES = 4096

Range = tuple[int, int]  # offset and length in bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """What a user is asked to prove: that they hold this content. Good for one answer, until it expires."""

    id: str
    nonce: bytes
    user_id: str
    md5: str
    sha256: str
    size: int
    ranges: list[Range]
    expires_at: datetime
    # Of the file that was to be opened.
    if_exists: IfExists = IfExists.KEEP
    modified_at: datetime | None = None


def draw_ranges(size: int, count: int, below: Callable[[int], int]) -> list[Range]:
    """The ranges to ask for: `count` of 4 KiB, in order; the whole content if it is not larger than all of them.

    `below(n)` draws evenly from 0 to n - 1. Each range begins in a stretch of its own, and the stretches make up the
    content: so whoever lacks two stretches in a row always lacks a range, and to lack bytes here and there is never
    better than with ranges drawn from the whole.
    """
    if size <= count * RANGE_BYTES:
        return [(0, size)]
    ranges = []
    for number in range(count):
        begin, end = number * size // count, (number + 1) * size // count
        ranges.append((min(begin + below(end - begin), size - RANGE_BYTES), RANGE_BYTES))
    return ranges


def proof_of(challenge: Challenge, contents: Iterable[bytes]) -> bytes:
    """The proof, from the bytes of each range in order."""
    head = f"uploader/1\n{challenge.user_id}\n{challenge.sha256}\n{challenge.size}\n"
    mac = hmac.new(challenge.nonce, head.encode(), hashlib.sha256)
    for (offset, length), content in zip(challenge.ranges, contents, strict=True):
        mac.update(offset.to_bytes(8, "big") + length.to_bytes(8, "big"))
        mac.update(content)
    return mac.digest()
