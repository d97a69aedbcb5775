"""A short round of the kill harness. `tests/chaos/run --minutes N` runs longer ones."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.chaos.round import run_round

MIN_KILLS = 150


@pytest.mark.timeout(300)
@pytest.mark.parametrize("database", ["mariadb"])  # the one that is killed, too
async def test_nothing_drifts_and_nothing_is_lost_while_everything_is_killed(database: str, tmp_path: Path) -> None:
    summary = await run_round(tmp_path / database, seconds=60, seed=1, min_kills=MIN_KILLS)
    print(json.dumps(asdict(summary), indent=2))
    assert summary.violations == []
    assert summary.errors == []
    assert summary.drift_bytes == 0
    assert summary.kills_total >= MIN_KILLS
    assert all(summary.kills[kind] > 5 for kind in ("server", "worker", "valkey", "mariadb"))
    assert min(summary.aof_cuts, summary.flushalls, summary.freezes) > 0
    # It was not the calm of servers that never came up.
    assert summary.counts["chunks"] > 100
    assert summary.counts["files"] > 20
    assert summary.audits > 50
