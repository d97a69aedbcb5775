"""`tests/flips/run`: one round of any number of flips, as a table and as JSON; fails on any violation."""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.flips.result import as_table
from tests.flips.round import run_round


def main() -> int:
    """The exit code: 1 if anything was found wrong. What the processes left is kept then."""
    parser = argparse.ArgumentParser(prog="tests/flips/run", description=__doc__)
    parser.add_argument("--flips", type=int, default=200, help="how many, of all kinds in turn (default: 200)")
    parser.add_argument("--seed", type=int, default=None, help="what flips (default: random)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="every flip and violation, as JSON")
    given = parser.parse_args()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    directory = Path(tempfile.mkdtemp(prefix="flips-"))
    summary = asyncio.run(run_round(directory, flips=given.flips, seed=seed))
    print(as_table(summary))
    print("\n".join(["", *summary.not_tellable]))
    found = given.json or directory / "flips.json"
    found.write_text(json.dumps(summary.as_json(), indent=2))
    if summary.violations:
        print("\n".join(["", *summary.violations]), file=sys.stderr)
        print(f"kept for a look: {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
