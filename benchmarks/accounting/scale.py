"""How much of everything a run of the benchmarks takes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Counts of one run. Every measurement is repeated `rounds` times, in turn with those it is compared with."""

    rounds: int
    # Uploads with a pending chunk, and how many records are measured in a round.
    pending: int
    few_pending: int
    records: int
    load_seconds: float
    # Uploads that are flushed again and again.
    flushed: int
    # Uploads that fall due one after the other within this time, and the lease of the worker that flushes them.
    due: int
    due_over_seconds: int
    lease_seconds: float
    # The chunks that are written through to the database, and the files that send a chunk every second.
    written_through: int
    files: int
    chunks_a_file: int
    # Uploads that are rebuilt.
    rebuilt: int
    rebuilt_chunks: int
    # For those who have 10 GiB to spare.
    sharded_pending: int = 0


FULL = Scale(
    rounds=3,
    pending=1_000_000,
    few_pending=1000,
    records=20_000,
    load_seconds=4,
    flushed=30_000,
    due=1_000_000,
    due_over_seconds=60,
    lease_seconds=30,
    written_through=20_000,
    files=5000,
    chunks_a_file=200,
    rebuilt=1000,
    rebuilt_chunks=200,
)
QUICK = Scale(
    rounds=3,
    pending=100_000,
    few_pending=1000,
    records=5000,
    load_seconds=2,
    flushed=12_000,
    due=50_000,
    due_over_seconds=3,
    lease_seconds=3,
    written_through=2000,
    files=200,
    chunks_a_file=200,
    rebuilt=100,
    rebuilt_chunks=200,
)
# So small that it says nothing, for the test that the benchmarks run.
TINY = Scale(
    rounds=1,
    pending=300,
    few_pending=100,
    records=200,
    load_seconds=0.1,
    flushed=500,
    due=300,
    due_over_seconds=1,
    lease_seconds=0.5,
    written_through=10,
    files=5,
    chunks_a_file=15,
    rebuilt=3,
    rebuilt_chunks=4,
)
