"""The benchmarks of small files run: at a scale that says nothing, with this server alone, so that they can't rot."""

import asyncio
import platform
from pathlib import Path

import pytest

from benchmarks import interpreter, report
from benchmarks.ingest.places import Places
from benchmarks.small_files.__main__ import BENCHMARKS
from benchmarks.small_files.scale import TINY


@pytest.mark.parametrize("name", BENCHMARKS)
async def test_a_benchmark_runs_and_its_figures_make_a_table(name: str, tmp_path: Path) -> None:
    places = Places(tmp_path, tmp_path).of(name)
    rows = await asyncio.to_thread(BENCHMARKS[name], places, TINY)
    lines = report.table(rows).splitlines()
    assert len(lines) == 2 + len(rows) > 2
    assert {line.count("|") for line in lines} == {5}
    assert not [row for row in rows if "not available" in row.measured]


def test_a_table_says_which_python_it_is_of_and_how_that_was_built() -> None:
    assert f"Python {platform.python_version()} (" in report.machine(())
    assert interpreter.described() in report.machine(())
