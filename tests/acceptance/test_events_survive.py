"""Every committed effect is told, and nothing that did not happen, though server, worker and sink are killed. The long run
is `long/test_event_storm.py`."""

from pathlib import Path

from tests.support.event_storm import Storm
from uploader.database.engine import Database


async def test_what_happened_is_told_whoever_is_killed(tmp_path: Path, redis_url: str) -> None:
    url = f"sqlite:///{tmp_path / 'data' / 'uploader.db'}"
    with Storm(tmp_path, {"REDIS_URL": redis_url}, seed=1) as storm:
        storm.run(uploads=150, kills=4)
        database = Database(url)
        await storm.settle(database)
        await storm.check(database)
        await database.close()
