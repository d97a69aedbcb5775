"""`tests/chaos/run`: one round of any length, its result as the table of docs/reliability.md; fails on any violation."""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.chaos.installation import STORES, Setup
from tests.chaos.result import as_table
from tests.chaos.round import run_round
from tests.support.servers import PRIVATE_DATABASES
from uploader.units import parse_size


def main() -> int:
    """The exit code: 1 if anything was found wrong. What the processes wrote is kept then."""
    parser = argparse.ArgumentParser(prog="tests/chaos/run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to kill (default: 1)")
    parser.add_argument("--seed", type=int, default=None, help="what to kill when (default: random)")
    parser.add_argument(
        "--database", choices=PRIVATE_DATABASES, default=Setup.database, help=f"(default: {Setup.database})"
    )
    parser.add_argument(
        "--durability", choices=("power", "process"), default=Setup.durability, help=f"(default: {Setup.durability})"
    )
    parser.add_argument(
        "--chunk-size",
        type=parse_size,
        metavar="SIZE",
        help="64KiB to 64MiB (default: 64KiB; on Ceph the least, 5MiB)",
    )
    parser.add_argument("--store", choices=STORES, default=Setup.store, help=f"(default: {Setup.store})")
    parser.add_argument("--failovers", action="store_true", help="two of each store, with failovers; on MySQL")
    given = parser.parse_args()
    if given.failovers:
        given.database = "mysql"
    more = {} if given.chunk_size is None else {"chunk_size": given.chunk_size}
    setup = Setup.on(
        given.store, database=given.database, durability=given.durability, failovers=given.failovers, **more
    )
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    summary = asyncio.run(run_round(directory, seconds=given.minutes * 60, seed=seed, setup=setup))
    print(as_table(summary))
    if summary.violations or summary.late or summary.errors or summary.drift_bytes:
        print(json.dumps(asdict(summary), indent=2), file=sys.stderr)
        print(f"kept for a look: {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
