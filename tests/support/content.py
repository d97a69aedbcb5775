"""Content to upload: real bytes, their digests and their chunks."""

import hashlib
import random
from dataclasses import dataclass, field
from functools import cached_property

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class Content:
    """Bytes that are the same for the same seed, and different from all others."""

    size: int
    seed: int = 0
    chunk_size: int = 64 * KIB
    name: str = field(default="folder/file.bin")

    @cached_property
    def data(self) -> bytes:
        generator = random.Random(f"{self.seed}/{self.size}")
        return b"".join(generator.randbytes(min(MIB, self.size - offset)) for offset in range(0, self.size, MIB))

    @cached_property
    def md5(self) -> str:
        return hashlib.md5(self.data).hexdigest()

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def drop(self) -> None:
        """Free the memory of its bytes, until they are asked for again."""
        self.__dict__.pop("data", None)

    @property
    def chunk_count(self) -> int:
        return -(-self.size // self.chunk_size)

    def chunk(self, number: int) -> bytes:
        return self.data[number * self.chunk_size : (number + 1) * self.chunk_size]
