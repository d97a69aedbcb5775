"""Short rounds of the kill harness. `tests/chaos/run --minutes N` runs longer ones, and so does the variable below."""

import os
from pathlib import Path

import pytest

from tests.chaos.installation import Setup
from tests.chaos.monkey import KILLED
from tests.chaos.result import judge
from tests.chaos.round import Least, run_round

MINUTES = os.environ.get("UPLOADER_TEST_CHAOS_MINUTES")
# Enough chunks, files and audits, so that it was not the calm of servers that never came up.
LEAST = Least(kills=150, kills_of_each=6, chunks=200, made=20, appends=40, files=30, audits=60, harms=1)
LEAST_OF_FAILOVERS = Least(kills=15, chunks=20, made=1, appends=3, files=5, audits=10, failovers=2)


@pytest.mark.timeout(0 if MINUTES else 1800)
@pytest.mark.parametrize("database", [Setup.database])  # the one that is killed, too
async def test_nothing_drifts_and_nothing_is_lost_while_everything_is_killed(database: str, tmp_path: Path) -> None:
    summary = await run_round(tmp_path / database, seconds=_seconds(60), seed=1, setup=Setup(database), least=LEAST)
    judge(summary, LEAST)
    assert all(summary.kills[kind] >= LEAST.kills_of_each for kind in KILLED)
    assert min(summary.aof_cuts, summary.flushalls, summary.freezes, summary.clock_jumps) > 0


@pytest.mark.timeout(0 if MINUTES else 1800)
@pytest.mark.parametrize("database", ["mysql"])
async def test_nothing_drifts_and_nothing_is_lost_while_stores_fail_over(database: str, tmp_path: Path) -> None:
    setup = Setup(database, failovers=True)
    summary = await run_round(tmp_path / "data", seconds=_seconds(25), seed=3, setup=setup, least=LEAST_OF_FAILOVERS)
    judge(summary, LEAST_OF_FAILOVERS)
    assert {kind.split()[0] for kind in summary.failovers} == {"MySQL", "Valkey"}


def _seconds(seconds: float) -> float:
    return seconds if MINUTES is None else float(MINUTES) * 60
