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
    # Who is slow sends fewer.
    limit_seconds: float = 2.5
    # For all rounds together; none is begun after it.
    budget_seconds: float = 300.0

    @property
    def total_bytes(self) -> int:
        return self.connections * self.chunks * self.chunk_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    small: Load
    # All at once: their bodies are there but for the last byte.
    held: Load
    idle_connections: int
    # What uploads while small requests are asked.
    busy: tuple[Load, ...]
    # As many chunks as this has, over each of these numbers of connections.
    many: Load
    connections: tuple[int, ...]
    # So many are open while chunks of uploads drawn from them are sent.
    open_uploads: tuple[int, ...]
    drawn_chunks: int
    drawn_rounds: int


FULL = Scale(
    small=Load(connections=16, chunks=2000, chunk_bytes=64 * KIB, rounds=5, limit_seconds=1.5, budget_seconds=120.0),
    held=Load(connections=64, chunks=1, chunk_bytes=8 * MIB, rounds=3),
    idle_connections=1000,
    busy=(
        Load(connections=4, chunks=200, chunk_bytes=8 * MIB, rounds=3, limit_seconds=4.0),
        Load(connections=16, chunks=4000, chunk_bytes=64 * KIB, rounds=3, limit_seconds=4.0),
    ),
    many=Load(connections=4, chunks=32, chunk_bytes=8 * MIB, rounds=3, limit_seconds=1.5),
    connections=(1, 4, 16, 64, 256),
    open_uploads=(10, 1000, 100_000),
    drawn_chunks=400,
    drawn_rounds=5,
)
QUICK = Scale(
    small=Load(connections=16, chunks=600, chunk_bytes=64 * KIB, rounds=1, limit_seconds=1.0),
    held=Load(connections=64, chunks=1, chunk_bytes=8 * MIB, rounds=1),
    idle_connections=1000,
    busy=(Load(connections=4, chunks=50, chunk_bytes=8 * MIB, rounds=1, limit_seconds=2.0),),
    many=Load(connections=4, chunks=16, chunk_bytes=8 * MIB, rounds=1, limit_seconds=1.0),
    connections=(1, 16, 64),
    open_uploads=(10, 1000),
    drawn_chunks=150,
    drawn_rounds=2,
)
TINY = Scale(
    small=Load(connections=2, chunks=2, chunk_bytes=64 * KIB, rounds=1),
    held=Load(connections=2, chunks=1, chunk_bytes=64 * KIB, rounds=1),
    idle_connections=10,
    busy=(Load(connections=1, chunks=20, chunk_bytes=64 * KIB, rounds=1, limit_seconds=0.2),),
    many=Load(connections=2, chunks=2, chunk_bytes=64 * KIB, rounds=1),
    connections=(1, 4),
    open_uploads=(3,),
    drawn_chunks=5,
    drawn_rounds=1,
)


def spelled(size: int) -> str:
    """`8 MiB`, `64 KiB`."""
    return f"{size // MIB} MiB" if size % MIB == 0 else f"{size // KIB} KiB"
