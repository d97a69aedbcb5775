"""A short round of the kill harness with the bytes on a real Ceph, whose radosgw is killed and stopped as well."""

from pathlib import Path

from tests.soak.installation import Setup
from tests.soak.kills import Least, run_round

LEAST = Least(kills=15, chunks=60, made=1, appends=5, files=10, audits=20, of_each=1)


async def test_nothing_drifts_and_nothing_is_lost_while_everything_is_killed(tmp_path: Path) -> None:
    result = await run_round(tmp_path / "ceph", seconds=20, seed=1, setup=Setup.on("ceph"), least=LEAST)
    print(result)
    assert result.wrong == []
    assert result.done["objects and multipart uploads with a row"] > 0
