"""Every process that dies, starts or stops in every outage: `.venv/bin/pytest -n 0 tests/soak/outages.py`, by hand.

Prints the table of docs/reliability.md: seconds from the end of the outage until everything works again.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_outages import COMMANDS, recovery_seconds
from tests.support.outages import ENGINE_RECOVERS_SECONDS, PHASES, RECOVERS_SECONDS

STATES = ("away", "full", "read-only", "slow")
STORES = [f"{store} {state}" for store in ("database", "Redis", "disk") for state in STATES]
DISKS = [f"disk {state}" for state in STATES]
SMALL_DISKS = ["small disk full", "small disk read-only"]
INSTALLATIONS = {
    **{name: STORES for name in COMMANDS if name != "nodes"},
    "nodes": STORES + [f"bucket {state}" for state in STATES],
    "embedded": DISKS,
    "embedded, two processes": DISKS,
    "small disk": SMALL_DISKS,
    "small disk, two processes": SMALL_DISKS,
}
# The kernel makes no filesystem read-only under open files: there the calls of the processes are refused.
CELLS = [
    (name, outage, phase)
    for name, outages in INSTALLATIONS.items()
    for outage in outages
    for phase in PHASES
    if outage != "small disk read-only" or phase == "start"
]


@pytest.fixture(scope="module")
def seconds() -> Iterator[dict[tuple[str, str, str], float]]:
    found: dict[tuple[str, str, str], float] = {}
    yield found
    print(f"\n| installation | store | {' | '.join(STATES)} |\n|---|---|{'---|' * len(STATES)}")
    for name, outages in INSTALLATIONS.items():
        for store in dict.fromkeys(outage.rpartition(" ")[0] for outage in outages):
            cells = [[found.get((name, f"{store} {state}", phase)) for phase in PHASES] for state in STATES]
            told = [", ".join("–" if cell is None else f"{cell:.1f}" for cell in each if any(each)) for each in cells]
            print(f"| {name} | {store} | {' | '.join(told)} |")


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_everything_works_again(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    seconds: dict[tuple[str, str, str], float],
    cell: tuple[str, str, str],
) -> None:
    seconds[cell] = recovery_seconds(cell, tmp_path, request)
    assert seconds[cell] <= (ENGINE_RECOVERS_SECONDS if cell[0].startswith(("embedded", "small")) else RECOVERS_SECONDS)
