"""How much is measured: everything, a little of it, or so little that it says nothing but that it runs."""

from dataclasses import dataclass

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes in bytes, each with how often it is uploaded."""

    chunk_size: int
    in_order: tuple[tuple[int, int], ...]
    out_of_order: tuple[tuple[int, int], ...]
    first_chunk_last: tuple[int, int]
    # Of servers that concatenate.
    concatenated: tuple[tuple[int, int], ...]
    written: tuple[int, int]
    # So that the flush is counted, too.
    settling_seconds: float
    # Of each durability, in turn.
    throughput: tuple[int, int]
    hashed: tuple[int, int]


FULL = Scale(
    chunk_size=8 * MIB,
    in_order=((64 * MIB, 100), (GIB, 12), (10 * GIB, 2)),
    out_of_order=((GIB, 6), (10 * GIB, 1)),
    first_chunk_last=(GIB, 2),
    concatenated=((GIB, 2), (10 * GIB, 1)),
    written=(GIB, 2),
    settling_seconds=6.0,
    throughput=(GIB, 4),
    hashed=(GIB, 3),
)
QUICK = Scale(
    chunk_size=8 * MIB,
    in_order=((64 * MIB, 20), (GIB, 2)),
    out_of_order=((GIB, 2),),
    first_chunk_last=(GIB, 1),
    concatenated=((GIB, 1),),
    written=(GIB // 4, 1),
    settling_seconds=6.0,
    throughput=(GIB // 4, 2),
    hashed=(GIB // 4, 3),
)
TINY = Scale(
    chunk_size=64 << 10,
    in_order=((MIB, 2),),
    out_of_order=((MIB, 1),),
    first_chunk_last=(MIB, 1),
    concatenated=((MIB, 1),),
    written=(MIB, 1),
    settling_seconds=0.0,
    throughput=(MIB, 1),
    hashed=(MIB, 1),
)


def spelled(size: int) -> str:
    """`10 GiB`, `64 MiB`."""
    return f"{size // GIB} GiB" if size % GIB == 0 else f"{size // MIB} MiB"
