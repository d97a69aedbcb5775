"""How much is measured: everything, a little of it, or so little that it says nothing but that it runs."""

from dataclasses import dataclass

SIZE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    # Of one round of each way to send a file, and how many of them travel in a batch.
    sent: int
    batch_members: int
    cost_rounds: int
    # Opened in a round by each of the users who have so many files already.
    opened: int
    owned: tuple[int, ...]
    owned_rounds: int
    # Put once, and again as they are.
    unchanged: int
    unchanged_rounds: int
    # For what the disk and the database can do by themselves.
    bound_seconds: float
    bound_rounds: int
    # Whether servers that have to be installed take part.
    peers: bool = True
    # Whether what is measured in memory is measured on the disk, too.
    both_places: bool = True


FULL = Scale(
    sent=2000,
    batch_members=500,
    cost_rounds=5,
    opened=50,
    owned=(0, 1000, 100_000),
    owned_rounds=7,
    unchanged=10_000,
    unchanged_rounds=3,
    bound_seconds=2.0,
    bound_rounds=3,
)
QUICK = Scale(
    sent=200,
    batch_members=100,
    cost_rounds=1,
    opened=20,
    owned=(0, 1000),
    owned_rounds=2,
    unchanged=200,
    unchanged_rounds=1,
    bound_seconds=0.3,
    bound_rounds=1,
)
TINY = Scale(
    sent=4,
    batch_members=2,
    cost_rounds=1,
    opened=2,
    owned=(0, 3),
    owned_rounds=1,
    unchanged=3,
    unchanged_rounds=1,
    bound_seconds=0.05,
    bound_rounds=1,
    peers=False,
    both_places=False,
)
