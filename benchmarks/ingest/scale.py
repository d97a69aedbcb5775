"""How much is measured: everything, a little of it, or so little that it says nothing but that it runs."""

from dataclasses import dataclass

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many chunks over each of so many connections, so many times."""

    connections: int
    chunks: int
    chunk_bytes: int
    rounds: int

    @property
    def total_bytes(self) -> int:
        return self.connections * self.chunks * self.chunk_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    large: Load
    # Of the bounds.
    hashed_bytes: int
    # Whether servers that have to be installed take part.
    peers: bool = True


FULL = Scale(
    large=Load(connections=4, chunks=48, chunk_bytes=8 * MIB, rounds=5),
    hashed_bytes=GIB,
)
QUICK = Scale(
    large=Load(connections=4, chunks=8, chunk_bytes=8 * MIB, rounds=2),
    hashed_bytes=GIB // 4,
)
TINY = Scale(
    large=Load(connections=2, chunks=2, chunk_bytes=64 * KIB, rounds=1),
    hashed_bytes=MIB,
    peers=False,
)
