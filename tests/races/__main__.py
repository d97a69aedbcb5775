"""`python -m tests.races`: any race of the table, on either database, for as many rounds as one likes."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from redis import Redis
from sqlalchemy import text

from tests.races.course import course
from tests.races.table import BY_NAME, RACES, Race
from tests.support.servers import PrivateMariaDB, PrivateRedis
from uploader.database import migrate
from uploader.database.engine import Database


def main() -> int:
    """The exit code: 1 if a round ended in a way that is not allowed."""
    parser = argparse.ArgumentParser(prog="python -m tests.races", description=__doc__)
    parser.add_argument("--rounds", type=int, default=None, help="of each race (default: as in the table)")
    parser.add_argument("--database", choices=["sqlite", "mariadb"], default=None, help="(default: as in the table)")
    parser.add_argument("--race", choices=BY_NAME, action="append", metavar="NAME", help="; ".join(BY_NAME))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="races-") as directory:
        return asyncio.run(_run(Path(directory), given.race, given.rounds, given.database))


async def _run(directory: Path, names: list[str] | None, rounds: int | None, database: str | None) -> int:
    redis = PrivateRedis(directory / "redis").start()
    mariadb = PrivateMariaDB(directory / "mariadb")
    wrong = 0
    try:
        for number, race in enumerate(RACES if names is None else [BY_NAME[name] for name in names]):
            place = directory / str(number)
            place.mkdir()
            async with _database(place, mariadb, database or race.database) as url:
                wrong += await _report(race, rounds or race.rounds, place, url, redis.url)
    finally:
        redis.stop()
        mariadb.stop()
    return 1 if wrong else 0


@asynccontextmanager
async def _database(place: Path, mariadb: PrivateMariaDB, kind: str) -> AsyncIterator[str]:
    """The URL of a migrated, empty database."""
    if kind == "sqlite":
        url = f"sqlite:///{place / 'races.db'}"
    else:
        mariadb.start()
        server = Database(mariadb.url("mysql"))
        async with server.engine.connect() as connection:
            await connection.execute(text("CREATE OR REPLACE DATABASE races"))
        await server.close()
        url = mariadb.url("races")
    database = Database(url, creates=True)
    await migrate.upgrade(database)
    await database.close()
    yield url
    mariadb.stop()


async def _report(race: Race, rounds: int, place: Path, database_url: str, redis_url: str) -> int:
    """Run a race, print what was seen, and return how many rounds went wrong."""
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
    async with course(place, database_url, redis_url) as made:
        record = await made.run(race, rounds)
    print(f"{race.name}: {record.seen.total()} rounds")
    for (a, b, standing), times in record.seen.most_common():
        print(f"  {times:6}  A {a}, B {b or '-'}, then {standing}")
    print(*record.wrong[:20], sep="\n", end="\n" if record.wrong else "", flush=True)
    return len(record.wrong)


if __name__ == "__main__":
    sys.exit(main())
