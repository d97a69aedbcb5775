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


def parts_around_chunks(chance: random.Random, chunk_size: int) -> list[Content]:
    """Six, of lengths around those of chunks of a whole, with chunks of other lengths than its."""
    lengths = [0, 1, chunk_size - 1, chunk_size, chunk_size + 1]
    sizes = [chance.choice([*lengths, chance.randrange(1, 3 * chunk_size)]) for _ in range(6)]
    return [Content(size, seed=n, chunk_size=chance.choice([1, 2, 3]) * chunk_size) for n, size in enumerate(sizes)]
