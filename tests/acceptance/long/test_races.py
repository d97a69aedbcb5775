"""Every race of the table, between two worker processes on one installation, again and again."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.races.course import course
from tests.races.table import RACES, Race

# So that the suite stays short; `python -m tests.races` runs as many as the table says.
ROUNDS = 200


@pytest.mark.parametrize(
    ("race", "database_url"),
    [pytest.param(race, race.database, id=f"{race.name}, {race.database}") for race in RACES],
    indirect=["database_url"],
)
async def test_whoever_comes_first(race: Race, tmp_path: Path, database_url: str, redis_url: str) -> None:
    async with course(tmp_path, database_url, redis_url) as made:
        record = await made.run(race, ROUNDS)
    print(record.seen)
    assert not record.wrong, record.wrong[:20]
    assert record.seen.total() == ROUNDS
    # Where several endings are allowed it was no race if only one of them was seen.
    assert len(record.seen) > 1 or len(race.allowed) == 1, record.seen


@pytest.mark.parametrize("database", ["sqlite", "mariadb"])
def test_the_command_runs_them_on_each_database(database: str) -> None:
    command = [sys.executable, "-m", "tests.races", "--database", database, "--race", RACES[0].name, "--rounds", "2"]
    run = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{RACES[0].name}: 2 rounds" in run.stdout
