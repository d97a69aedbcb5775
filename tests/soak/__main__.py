"""`tests/soak/run`: everything that can be made to go wrong here, one fault after the other, within so many minutes. Prints
the table of docs/reliability.md; fails if anything was found wrong, and keeps what the processes left then."""

import argparse
import json
import math
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.soak.installation import STORES, Setup
from tests.soak.parts import FAULTS, Part, flip, hand_out, kill, race, run, try_all_places
from tests.soak.races.table import BY_NAME
from tests.soak.result import as_table
from tests.support.servers import PRIVATE_DATABASES
from uploader.units import parse_size

# Where a part would have less, several are done at once; then nobody is said to be late.
_SHARE_SECONDS, _MAX_LANES = 60.0, 4
# What it takes itself to start and to end.
_OWN_SECONDS = 6.0


def main() -> int:
    """The exit code: 1 if anything was found wrong."""
    parser = argparse.ArgumentParser(prog="tests/soak/run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="it ends by then (default: 3)")
    parser.add_argument(
        "--faults", type=_several(FAULTS), default=FAULTS, help=f"of {', '.join(FAULTS)} (default: all)"
    )
    parser.add_argument(
        "--stores", type=_several(STORES), default=STORES, help=f"of {', '.join(STORES)} (default: all)"
    )
    parser.add_argument("--database", choices=("sqlite", *PRIVATE_DATABASES), default=Setup.database)
    parser.add_argument("--durability", choices=("power", "process"), default=Setup.durability)
    parser.add_argument("--chunk-size", type=parse_size, metavar="SIZE", help="64KiB to 64MiB; on Ceph 5MiB at least")
    parser.add_argument("--race", choices=BY_NAME, action="append", metavar="NAME", help="; ".join(BY_NAME))
    parser.add_argument("--seed", type=int, default=None, help="what goes wrong when (default: random)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="all that was done and found")
    given = parser.parse_args()
    given.seed = random.randrange(1 << 32) if given.seed is None else given.seed
    deadline = time.monotonic() + given.minutes * 60 - _OWN_SECONDS
    all_parts = list(_parts(given))
    missing = [
        f"left out: {each.fault}, {each.on}: {each.needs.lacks} is not here" for each in all_parts if each.needs.lacks
    ]
    parts = [each for each in all_parts if not each.needs.lacks]
    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    lanes = min(_MAX_LANES, len(parts), math.ceil(len(parts) * _SHARE_SECONDS / (given.minutes * 60)))
    with ProcessPoolExecutor(lanes, get_context("spawn")) as pool:
        running = [
            pool.submit(run, part, directory / str(number), deadline, math.ceil((len(parts) - number) / lanes))
            for number, part in enumerate(parts)
        ]
        results = [result for each in running for result in each.result()]
    print(as_table(results), *missing, sep="\n")
    if given.json:
        given.json.write_text(json.dumps([asdict(result) for result in results], indent=2))
    wrong = [f"{result.fault}, {result.on}: {what}" for result in results for what in result.wrong]
    if lanes == 1:
        wrong += [f"late, {result.fault}, {result.on}: {what}" for result in results for what in result.late]
    if wrong:
        print("", *wrong, f"kept for a look: {directory}", sep="\n", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


def _several(all_of_them: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if not set(names) <= set(all_of_them):
            raise argparse.ArgumentTypeError(f"{text} is not of {', '.join(all_of_them)}")
        return names

    return parse


def _parts(given: argparse.Namespace) -> Iterator[Part]:
    chosen = {"database": given.database, "durability": given.durability}
    if given.chunk_size is not None:
        chosen["chunk_size"] = given.chunk_size
    seed = given.seed
    for fault in given.faults:
        match fault:
            case "kills":
                setups = [Setup.on(store, **chosen) for store in given.stores]
            case "failovers":
                setups = [Setup(**chosen | {"database": "mysql"}, failovers=True)]
            case "storms":
                setups = [Setup(**chosen, tells=True)]
            case "leases":
                setup = Setup(**chosen | {"database": "mysql"}, hands_out=True)
                yield Part(fault, setup.store, partial(hand_out, setup, seed), setup)
                continue
            case "flips":
                yield Part(fault, "disk", partial(flip, seed))
                continue
            case "races":
                yield Part(fault, "disk", partial(race, seed, given.race or list(BY_NAME)), Setup())
                continue
            case _:
                yield Part(fault, "all places", partial(try_all_places, seed, fault))
                continue
        for setup in setups:
            yield Part(fault, setup.store, partial(kill, setup, seed), setup)


if __name__ == "__main__":
    sys.exit(main())
