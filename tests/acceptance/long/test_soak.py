"""A short round of each fault, with choices of the commit; `tests/soak/run` has longer ones."""

import os
import random
from pathlib import Path

import pytest

from tests.soak.flips.flipping import LIVE, STOPPED
from tests.soak.flips.round import run_flips
from tests.soak.installation import Setup
from tests.soak.kills import Least, run_round
from tests.soak.leases import run_leases
from tests.soak.races.course import course
from tests.soak.races.table import RACES
from tests.support.chosen import chosen, seed

SEED = random.Random(f"{seed()} soak").randrange(1 << 30)
# Enough that it was not the calm of servers that never came up.
LEAST = Least(kills=30, audits=5, chunks=60, made=2, appends=8, files=20, of_each=1)
LEAST_ON_S3 = Least(kills=7, audits=5, chunks=30, appends=3, files=10, of_each=1)
LEAST_OF_FAILOVERS = Least(kills=10, audits=5, chunks=20, appends=3, files=5, of_each=1)
LEAST_OF_STORMS = Least(kills=5, audits=5, chunks=30, appends=3, files=20, of_each=1, told=1)
# So many of each race, of which ten have each order for sure.
ROUNDS = 20


def _here(*setups: Setup) -> list[Setup]:
    """In CI all: what is not installed fails."""
    return [setup for setup in setups if os.environ.get("CI") == "true" or not setup.lacks]


(STORM,) = chosen(_here(*(Setup(kind, tells=True) for kind in ("sqlite", "mariadb", "mysql"))), 1, "storm")
ROUNDS_OF_KILLS = {
    "kills": (Setup(), LEAST),
    "kills on S3": (Setup.on("juicefs"), LEAST_ON_S3),
    "failovers": (Setup("mysql", failovers=True), LEAST_OF_FAILOVERS),
    "storm": (STORM, LEAST_OF_STORMS),
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", [fault for fault, (setup, _) in ROUNDS_OF_KILLS.items() if _here(setup)])
async def test_nothing_drifts_and_nothing_is_lost_while_everything_is_killed(fault: str, tmp_path: Path) -> None:
    setup, least = ROUNDS_OF_KILLS[fault]
    result = await run_round(tmp_path / "round", seconds=5, seed=SEED, setup=setup, least=least)
    print(result)
    assert result.wrong == []


async def test_bytes_that_flip_are_never_served_as_right_and_harm_nobody_else(tmp_path: Path) -> None:
    result = await run_flips(tmp_path / "round", flips=len(LIVE) + len(STOPPED), seed=SEED)
    print(result)
    assert result.wrong == []
    assert result.done["flips"] == len(LIVE) + len(STOPPED)
    assert result.done["ranges"] > result.done["downloads"] > 0


@pytest.mark.parametrize("database_url", ["sqlite", "mariadb"], indirect=True)
async def test_whoever_comes_first(database_url: str, redis_url: str, tmp_path: Path) -> None:
    races = [race for race in RACES if database_url.startswith("sqlite") == (race.database == "sqlite")]
    async with course(tmp_path, database_url, redis_url) as made:
        for race in races:
            # Where several endings are allowed it was no race if only one of them was seen.
            endings: set[str] = set()
            for first in range(SEED // 100 * 100, SEED // 100 * 100 + 10 * ROUNDS, ROUNDS):
                result = await made.run(race, first, ROUNDS)
                assert result.wrong == []
                assert sum(result.done.values()) == ROUNDS
                endings |= set(result.done)
                if len(endings) > 1 or len(race.allowed) == 1:
                    break
            else:
                raise AssertionError(f"{race.name}: {endings}")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("setup", _here(Setup("mysql", hands_out=True)), ids=["mysql"])
async def test_a_task_has_one_holder_whatever_is_killed(tmp_path: Path, setup: Setup) -> None:
    result = await run_leases(tmp_path / "round", seconds=15, seed=SEED, setup=setup, least_tasks=30)
    assert result.wrong == [], result
