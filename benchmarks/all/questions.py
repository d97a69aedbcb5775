"""What is asked, in the order in which it is measured, and how much of it."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import delta, downloads, idle, patches
from benchmarks.ingest.large import large
from benchmarks.ingest.places import Places
from benchmarks.ingest.scale import GIB, KIB, MIB, Load
from benchmarks.ingest.small import small
from benchmarks.small_files import commands
from benchmarks.storage.waiting import waiting
from benchmarks.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured: everything, a little of it, or so little that it says nothing but that it runs."""

    large: Load
    connections: tuple[int, ...]
    small: Load
    patches: Load
    # Put and got as a folder by each client.
    files: int
    # Of files, folders, downloads and changes.
    rounds: int
    downloaded_bytes: int
    finished_bytes: int
    changed_bytes: int
    # In the database of a server that starts.
    stored_files: int
    # In which an idle server comes to rest, and is looked at.
    quiet_seconds: float
    idle_seconds: float
    # Each question is given up after so long.
    limit_seconds: float
    # Whether servers that have to be installed take part.
    with_peers: bool = True


FULL = Scale(
    large=Load(connections=4, chunks=48, chunk_bytes=8 * MIB, rounds=5),
    connections=(4, 16),
    small=Load(connections=16, chunks=2000, chunk_bytes=64 * KIB, rounds=5, limit_seconds=1.5, budget_seconds=120.0),
    patches=Load(connections=4, chunks=1, chunk_bytes=256 * MIB, rounds=5, limit_seconds=60.0),
    files=5000,
    rounds=5,
    downloaded_bytes=GIB,
    finished_bytes=GIB,
    changed_bytes=256 * MIB,
    stored_files=150_000,
    quiet_seconds=90.0,
    idle_seconds=120.0,
    limit_seconds=720.0,
)
QUICK = Scale(
    large=Load(connections=4, chunks=16, chunk_bytes=8 * MIB, rounds=1),
    connections=(4, 16),
    small=Load(connections=16, chunks=600, chunk_bytes=64 * KIB, rounds=1, limit_seconds=1.0),
    patches=Load(connections=4, chunks=1, chunk_bytes=64 * MIB, rounds=1, limit_seconds=30.0),
    files=500,
    rounds=1,
    downloaded_bytes=256 * MIB,
    finished_bytes=256 * MIB,
    changed_bytes=64 * MIB,
    stored_files=2_000,
    quiet_seconds=15.0,
    idle_seconds=20.0,
    limit_seconds=300.0,
)
TINY = Scale(
    large=Load(connections=2, chunks=2, chunk_bytes=64 * KIB, rounds=1),
    connections=(1, 2),
    small=Load(connections=2, chunks=2, chunk_bytes=64 * KIB, rounds=1, limit_seconds=0.1),
    patches=Load(connections=2, chunks=1, chunk_bytes=MIB, rounds=1),
    files=4,
    rounds=1,
    downloaded_bytes=8 * MIB,
    finished_bytes=MIB,
    changed_bytes=2 * MIB,
    stored_files=10,
    quiet_seconds=0.0,
    idle_seconds=0.1,
    limit_seconds=60.0,
    with_peers=False,
)
_CHUNK_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True)
class Question:
    asks: str
    measure: Callable[[Places, Scale], Table]
    # A command that says more about it.
    more: str = ""


QUESTIONS = {
    "chunks": Question(
        "How fast are large chunks?",
        lambda places, scale: large(places, scale.large, scale.connections, with_peers=scale.with_peers),
        "python -m benchmarks.lanes",
    ),
    "small-chunks": Question(
        "How fast are small chunks, and on a busy machine?",
        lambda places, scale: small(places, scale.small, with_peers=scale.with_peers),
        "python -m benchmarks.ingest",
    ),
    "patches": Question(
        "How fast is a file in one PATCH of tus?",
        lambda places, scale: patches.measure(places, scale.patches, with_peers=scale.with_peers),
        "python -m benchmarks.appends",
    ),
    "finishing": Question(
        "How long does a client wait at 100 %?",
        lambda places, scale: waiting(
            places.disk,
            min(_CHUNK_BYTES, scale.large.chunk_bytes),
            scale.finished_bytes,
            scale.rounds,
            with_peers=scale.with_peers,
        ),
        "python -m benchmarks.storage",
    ),
    "up": Question(
        "How fast is a folder of small files up?",
        lambda places, scale: commands.putting(places.disk, scale.files, scale.rounds, with_peers=scale.with_peers),
        "python -m benchmarks.small_files",
    ),
    "down": Question(
        "And down?",
        lambda places, scale: commands.getting(places.disk, scale.files, scale.rounds, with_peers=scale.with_peers),
    ),
    "downloads": Question(
        "How fast is a large file down?",
        lambda places, scale: downloads.measure(
            places, scale.downloaded_bytes, scale.rounds, with_peers=scale.with_peers
        ),
    ),
    "delta": Question(
        "What does a large file that changed a little cost?",
        lambda places, scale: delta.measure(
            places.disk, scale.changed_bytes, scale.rounds, with_peers=scale.with_peers
        ),
    ),
    "idle": Question(
        "How soon is a server ready, and what does it do when nobody asks?",
        lambda places, scale: idle.measure(
            places.memory,
            rounds=scale.rounds,
            files=scale.stored_files,
            quiet_seconds=scale.quiet_seconds,
            seconds=scale.idle_seconds,
        ),
    ),
}
