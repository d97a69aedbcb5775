"""More processes that die, start or stop in an outage than at every landing; `tests/soak/outages.py` tries all."""

from pathlib import Path

import pytest

from tests.acceptance.test_outages import installed
from tests.support.outages import survive

CELLS = [
    ("worker", "database away", "running"),
    ("one process", "database slow", "stopping"),
    ("two processes", "Redis away", "start"),
    ("nodes", "bucket away", "start"),
    ("embedded", "disk full", "start"),
]


@pytest.mark.parametrize(("name", "outage", "phase"), CELLS)
def test_everything_works_again(
    tmp_path: Path, request: pytest.FixtureRequest, name: str, outage: str, phase: str
) -> None:
    with installed(name, tmp_path, request) as installation:
        survive(installation, outage, phase)
