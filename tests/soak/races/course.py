"""Runs a race: prepares rounds, lets two processes run them at the same instants, judges each, and has everything counted
at the end of each batch."""

import asyncio
import json
import math
import shutil
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from sqlalchemy import delete, insert, select, update

from tests.soak.races.after import look
from tests.soak.races.rounds import ALICE, BOB, CROWD, WAVE, Round
from tests.soak.races.table import Race
from tests.soak.result import Result
from tests.support.at_rest import check_at_rest, rests_within
from tests.support.process import environment
from tests.support.waiting import PATIENCE_SECONDS
from uploader.bootstrap import Services, running
from uploader.database import models
from uploader.database.engine import Connection
from uploader.settings import Settings

ROOT = Path(__file__).parents[3]
# Where there is less time, one wave is looked at after the other.
BATCH, _LONG_SECONDS = 100, 30.0
_GIB = 1 << 30
_HEAD_START_SECONDS = 0.02
_REST_SECONDS = PATIENCE_SECONDS
SETTINGS = {
    "QUIET_INTERVAL": "200ms",
    "CLAIM_LEASE": "2s",
    "FREE_SPACE_FLOOR": "0",
    "MAX_OPEN_UPLOADS": "1000000",
    "INSTANT": "trust",
    "DURABILITY": "process",
    "MERGE_WAIT": "60s",
    "LOG_LEVEL": "warning",
}


class _Side:
    """One of the two processes."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def answer(self) -> Any:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert line, "a racer ended; its log says why"
        return json.loads(line)

    async def do(self, **order: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        return await self.answer()

    async def kill(self) -> None:
        self._process.kill()
        await self._process.communicate()


class Course:
    """Two processes on one installation, and a third one, this, that prepares and looks."""

    def __init__(self, a: _Side, b: _Side, services: Services, redis: Redis) -> None:
        self._a = a
        self._b = b
        self._services = services
        self._redis = redis

    async def run(self, race: Race, first: int, rounds: int, seconds: float = math.inf) -> Result:
        """Run a race so many times, from the round of that number on, or as often as there is time for. Each batch is told
        of by its endings, and by those that are not allowed."""
        started, seen, wrong = time.monotonic(), Counter[str](), list[str]()
        numbers, most = range(first, first + rounds), BATCH if seconds > _LONG_SECONDS else WAVE
        while numbers and not wrong and (not seen or time.monotonic() < started + seconds):
            batch, numbers = numbers[:most], numbers[most:]
            async for number, ending in self._endings(race, batch):
                seen[", ".join(ending)] += 1
                if ending not in race.allowed:
                    wrong.append(f"{race.name}, round {number}: {ending}")
            if not wrong:
                await self._check_rest(race)
                await self._wipe()
        found = {"endings that are not allowed": len(wrong)}
        spent = time.monotonic() - started
        return Result(f"race: {race.name}", race.database, first, spent, dict(seen.most_common()), found, wrong)

    async def _endings(self, race: Race, numbers: range) -> AsyncIterator[tuple[int, tuple[str, str, str]]]:
        """What A and B were told, and how it stands then."""
        rounds = await race.before(self._services, [Round(number, race.content(number)) for number in numbers])
        words_a, words_b = await self._race(race, rounds)
        standings = await look(self._services, rounds)
        for number, *ending in zip(numbers, words_a, words_b, standings, strict=True):
            yield number, (ending[0], ending[1], ending[2])

    async def _race(self, race: Race, rounds: list[Round]) -> tuple[list[str], list[str]]:
        """What each side said of each round."""
        words_a: list[str] = []
        words_b: list[str] = []
        if race.steady is not None:
            await self._b.do(do="begin", race=race.name)
        for first in range(0, len(rounds), WAVE):
            wave = [{"number": one.number, "ids": one.ids} for one in rounds[first : first + WAVE]]
            order = {"do": "race", "race": race.name, "rounds": wave, "start": time.monotonic() + _HEAD_START_SECONDS}
            sides = [self._a] if race.steady is not None else [self._a, self._b]
            words = await asyncio.gather(*(side.do(**order) for side in sides))
            words_a += words[0]
            words_b += words[1] if race.steady is None else [""] * len(wave)
        if race.steady is not None:
            await self._b.do(do="end", race=race.name)
        return words_a, words_b

    async def _check_rest(self, race: Race) -> None:
        """Without a touch all comes to rest: no figure is off by a byte, and nothing is left behind."""
        await rests_within(_REST_SECONDS, lambda: self._check_once(race))
        found = await self._services.reconciling.reconcile()
        assert not found.drifts, found.drifts

    async def _check_once(self, race: Race) -> None:
        database, data = self._services.database, self._services.settings.data
        await check_at_rest(database, self._redis, data)
        expected = await database.read(_contents_in_use)
        blobs = {path.name for path in (data / "blobs").rglob("*") if path.is_file()}
        assert blobs == expected, f"blobs without a file: {blobs - expected}"
        for side in (self._a, self._b):
            left_open = await side.do(do="rest", race=race.name)
            assert not left_open, f"descriptors left open: {left_open}"

    async def _wipe(self) -> None:
        """The next batch begins with nothing. What the processes remember of the last one helps nobody."""
        await self._services.database.transact(_delete_all)
        keys = [key async for key in self._redis.scan_iter("up:*")]
        await self._redis.delete(*keys, b"-")
        for name in ("temp", "blobs", "trash"):
            for path in (self._services.settings.data / name).iterdir():
                shutil.rmtree(path)


async def _delete_all(connection: Connection) -> None:
    for table in (models.upload, models.file, models.trashed_file, models.blob):
        await connection.execute(delete(table))
    nothing = {"use_space_finished": 0, "use_space_unfinished": 0, "reserved": 0, "files": 0}
    await connection.execute(update(models.user_info).values(nothing))


async def _contents_in_use(connection: Connection) -> set[str]:
    return set((await connection.execute(select(models.file.c.sha256).distinct())).scalars())


async def _make_users(connection: Connection) -> None:
    users = [{"user_id": user_id, "total_space": _GIB} for user_id in (ALICE, BOB, *CROWD)]
    await connection.execute(insert(models.user_info), users)


@asynccontextmanager
async def course(directory: Path, database_url: str, redis_url: str) -> AsyncIterator[Course]:
    """Everything that races need, on a migrated, empty database and an empty Redis."""
    settings = SETTINGS | {"DATA": str(directory / "data"), "DATABASE_URL": database_url, "REDIS_URL": redis_url}
    log = directory / "racers.log"
    services = Services(Settings.load(environment(settings)))
    async with running(services, jobs=False), Redis.from_url(redis_url) as redis:
        await services.database.transact(_make_users)
        a, b = [await _start(side, settings, log) for side in "ab"]
        try:
            await asyncio.gather(a.answer(), b.answer())
            yield Course(a, b, services, redis)
        finally:
            await asyncio.gather(a.kill(), b.kill())


async def _start(side: str, settings: dict[str, str], log: Path) -> _Side:
    command = (sys.executable, "-m", "tests.soak.races.racer", side)
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=environment(settings), stdin=PIPE, stdout=PIPE, stderr=output, limit=1 << 24
        )
    return _Side(process)
