"""Uploads, while server, worker and sink are killed: each effect is told, and nothing else.

`UPLOADER_TEST_STORM_KILLS=100` has 10,000 of them; here it is a tenth.
"""

import os
from pathlib import Path

import pytest

from tests.support.event_storm import Storm
from tests.support.servers import PRIVATE_DATABASES
from uploader.database.engine import Database

KILLS = int(os.environ.get("UPLOADER_TEST_STORM_KILLS", "10"))


@pytest.fixture(params=["embedded", *PRIVATE_DATABASES])
def settings(request: pytest.FixtureRequest, redis_url: str) -> dict[str, str]:
    """Before the test: a database that is made by a coroutine can't be asked for inside one."""
    made = {"REDIS_URL": redis_url}
    return (
        made
        if request.param == "embedded"
        else made | {"DATABASE_URL": request.getfixturevalue(f"{request.param}_url")}
    )


@pytest.mark.timeout(3600)
async def test_each_effect_is_told_whoever_is_killed(tmp_path: Path, settings: dict[str, str]) -> None:
    url = settings.get("DATABASE_URL", f"sqlite:///{tmp_path / 'data' / 'uploader.db'}")
    with Storm(tmp_path, settings, seed=2) as storm:
        storm.run(uploads=100 * KILLS, kills=KILLS)
        database = Database(url)
        await storm.settle(database)
        await storm.check(database)
        await database.close()
