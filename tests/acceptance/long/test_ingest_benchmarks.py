"""The benchmarks of receiving run: at a scale that says nothing, with few servers, so that they can't rot."""

import asyncio
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.ingest.__main__ import BENCHMARKS
from benchmarks.ingest.places import Places
from benchmarks.ingest.scale import TINY

# What has to be installed is no business of the tests, and every server takes its time to start.
TAKING_PART = {
    "large": ("bare receiving", "`process`, digests off"),
    "small": ("UPDATE",),
    "latency": (),
    "open": (),
}


@pytest.mark.parametrize("name", TAKING_PART)
async def test_a_benchmark_runs_and_its_figures_make_a_table(name: str, tmp_path: Path) -> None:
    places = Places(tmp_path, tmp_path).of(name)
    rows = await asyncio.to_thread(BENCHMARKS[name], places, TINY, TAKING_PART[name])
    lines = report.table(rows).splitlines()
    assert len(lines) == 2 + len(rows) > 2
    assert {line.count("|") for line in lines} == {5}
    assert not [row for row in rows if "not available" in row.measured]
