"""The benchmarks of the storage run: each at a scale that says nothing, so that they can't rot."""

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.storage.__main__ import BENCHMARKS
from benchmarks.storage.scale import TINY

# tuspyserver comes from a registry, and is no business of the tests.
HERE = [name for name in BENCHMARKS if name != "tus"]


@pytest.mark.parametrize("name", HERE)
async def test_a_benchmark_runs_and_its_figures_make_a_table(name: str, tmp_path: Path) -> None:
    rows = BENCHMARKS[name](tmp_path / name, TINY)
    lines = report.table(rows).splitlines()
    assert len(lines) == 2 + len(rows) > 2
    assert {line.count("|") for line in lines} == {5}
