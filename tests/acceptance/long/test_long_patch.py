"""A long PATCH in one body goes on after `kill -9` and broken connections, and little is sent again.

`python -m benchmarks.long_patch` does the same with 10 GiB.
"""

import tempfile
from pathlib import Path

from benchmarks.long_patch import MIB, measure


def test_little_of_a_long_patch_is_sent_again(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as directory:
        rows = measure(Path(directory), size=300 * MIB, kills=3, breaks=4, seed=2)
    assert [row.figure for row in rows if row.met is False] == []
    assert sum(row.met is True for row in rows) == 3
