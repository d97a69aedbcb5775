"""A short round of the kill harness. `tests/chaos/run --minutes N` runs longer ones."""

from pathlib import Path

import pytest

from tests.chaos.installation import Setup
from tests.chaos.result import as_table
from tests.chaos.round import Least, run_round

# Enough chunks, files and audits, so that it was not the calm of servers that never came up.
LEAST = Least(kills=150, chunks=200, files=30, audits=60)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("database", [Setup.database])  # the one that is killed, too
async def test_nothing_drifts_and_nothing_is_lost_while_everything_is_killed(database: str, tmp_path: Path) -> None:
    summary = await run_round(tmp_path / database, seconds=60, seed=1, setup=Setup(database), least=LEAST)
    print(as_table(summary), summary.seed, summary.ended_unasked)
    assert summary.violations == []
    assert summary.errors == []
    assert summary.drift_bytes == 0
    assert summary.kills_total >= LEAST.kills
    assert all(summary.kills[kind] > 5 for kind in ("server", "worker", "valkey", "database"))
    assert min(summary.aof_cuts, summary.flushalls, summary.freezes, summary.clock_jumps) > 0
    assert summary.counts["chunks"] >= LEAST.chunks
    assert summary.counts["files"] >= LEAST.files
    assert summary.audits >= LEAST.audits
