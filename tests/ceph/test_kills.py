"""A short round of the kill harness with the bytes on a real Ceph, whose radosgw is killed and stopped as well."""

from pathlib import Path

from tests.chaos.installation import Setup
from tests.chaos.result import judge
from tests.chaos.round import Least, run_round

LEAST = Least(kills=15, kills_of_each=1, chunks=60, made=1, appends=5, files=10, audits=20)


async def test_nothing_drifts_and_nothing_is_lost_while_everything_is_killed(tmp_path: Path) -> None:
    summary = await run_round(tmp_path / "ceph", seconds=40, seed=1, setup=Setup.on("ceph"), least=LEAST)
    judge(summary, LEAST)
    assert summary.freezes > 0
    assert summary.cleaned["kept"] > 0
