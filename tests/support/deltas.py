"""Instructions as a client of its own would write them, and signatures as one would read them."""

import json
import random
import struct
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from tests.support.content import Content

HEAD_OF_COPY, HEAD_OF_LITERAL = 13, 5
_FRONT_BYTES = 7


def copied(offset: int, length: int) -> bytes:
    return struct.pack(">BQI", 0, offset, length)


def literal(content: bytes) -> bytes:
    return struct.pack(">BI", 1, len(content)) + content


def read_signature(content: bytes) -> tuple[dict[str, Any], list[tuple[int, bytes]]]:
    """Its head, and the length and the hash of each piece."""
    head, _, records = content.partition(b"\n")
    assert len(records) % 20 == 0
    return json.loads(head), [struct.unpack_from(">I16s", records, at) for at in range(0, len(records), 20)]


@dataclass(frozen=True)
class Edited(Content):
    """What became of `base`, which is not empty: bytes in front that it has not, and in its middle one that is another."""

    base: Content = Content(1)

    @classmethod
    def of(cls, base: Content, seed: int) -> "Edited":
        return cls(_FRONT_BYTES + base.size, seed, base.chunk_size, base.name, base)

    @cached_property
    def data(self) -> bytes:
        was, middle = self.base.data, self.base.size // 2
        front = random.Random(self.seed).randbytes(_FRONT_BYTES)
        return front + was[:middle] + bytes([was[middle] ^ 1]) + was[middle + 1 :]

    def drop(self) -> None:
        super().drop()
        self.base.drop()

    def instructions(self, number: int) -> bytes:
        """What makes a chunk of the base."""
        begin, end = number * self.chunk_size, min((number + 1) * self.chunk_size, self.size)
        middle = _FRONT_BYTES + self.base.size // 2
        made = b""
        borders = (0, _FRONT_BYTES, middle, middle + 1, self.size)
        for is_there, (first, last) in zip((False, True, False, True), pairwise(borders), strict=True):
            at, length = max(first, begin), min(last, end) - max(first, begin)
            if length > 0:
                made += copied(at - _FRONT_BYTES, length) if is_there else literal(self.data[at : at + length])
        return made
