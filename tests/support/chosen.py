"""What a run tries of what would take too long to be tried whole: chosen by the commit, so that runs of other commits choose
otherwise, and one run can be had again (UPLOADER_TEST_SEED)."""

import os
import random
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# At how many places a run tries what can go wrong at each of many.
PLACES = int(os.environ.get("UPLOADER_TEST_PLACES", "3"))


def places(options: Sequence[T], of: str) -> list[T]:
    """Those at which this run tries it."""
    return chosen(options, PLACES, of)


def chosen(options: Sequence[T], count: int, of: str) -> list[T]:
    """So many of the options, in their order; others for what is `of` something else."""
    places = random.Random(f"{seed()} {of}").sample(range(len(options)), min(count, len(options)))
    return [options[place] for place in sorted(places)]


def is_in_share(count: int, of: str) -> bool:
    """Take one in so many, without regard to what else is chosen for it, such as its database."""
    return chosen(range(count), 1, f"share {of}") == [0]


@cache
def seed() -> str:
    """The commit, unless another seed is given; where there is no commit, always the same."""
    given = os.environ.get("UPLOADER_TEST_SEED")
    if given is not None:
        return given
    called = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return called.stdout.strip()
