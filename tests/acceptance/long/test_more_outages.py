"""More processes that die, start or stop in an outage than at every landing; `tests/soak/outages.py` tries all."""

from pathlib import Path

import pytest

from tests.acceptance.test_outages import recovery_seconds

CELLS = [
    ("worker", "database away", "running"),
    ("one process", "database slow", "stopping"),
    ("two processes", "Redis away", "start"),
    ("nodes", "bucket away", "start"),
    ("small disk", "small disk full", "start"),
    ("two processes", "database read-only", "running"),
    ("one process", "database full", "stopping"),
    ("nodes", "bucket full", "running"),
    ("nodes", "bucket read-only", "start"),
    ("embedded", "disk away", "start"),
    ("embedded", "disk slow", "running"),
    ("worker", "disk away", "running"),
]


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_everything_works_again(tmp_path: Path, request: pytest.FixtureRequest, cell: tuple[str, str, str]) -> None:
    recovery_seconds(cell, tmp_path, request)
