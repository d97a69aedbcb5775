"""One of the two processes: the services of a worker with all its jobs, told by lines of JSON what to do and when.

`python -m tests.soak.races.racer a|b`; its settings are UPLOADER_* as for a server.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import uvloop

from tests.soak.races.rounds import ALICE, Round, Steady, Worker, word_of
from tests.soak.races.table import BY_NAME, Race
from tests.support.faults import open_files_under
from uploader.bootstrap import Services, build_application, running
from uploader.runtime.observability import configure_logging
from uploader.settings import Settings

# From one round to the next; a round takes longer, so several are under way at any time.
_SPACING_SECONDS = 0.004
# The side that starts later does so by as much as this, every second time by less than a quarter of it; but some by as
# much as it takes the other to end, so that both orders are among the rounds of every race.
_MAX_LAG_SECONDS = 0.03
_WHOLE_LAGS, _WHOLE_LAG_SECONDS = 10, 0.4


def lag_seconds(race: Race, number: int, side: str) -> float:
    """How much later than the other this side starts."""
    dice = random.Random(f"{race.name}/{number}")
    if number % 100 < _WHOLE_LAGS:
        late, lag = "ab"[number % 2], _WHOLE_LAG_SECONDS
    else:
        late, lag = dice.choice("ab"), _MAX_LAG_SECONDS * dice.random() ** 2
    return lag if late == side else 0.0


class Racer:
    """One side of every race."""

    def __init__(self, side: str, worker: Worker) -> None:
        self._side = side
        self._worker = worker
        self._steady: asyncio.Task[None] | None = None
        self._enough = asyncio.Event()

    async def do(self, order: dict[str, Any]) -> Any:
        """Carry out one line."""
        race = BY_NAME[order["race"]]
        match order["do"]:
            case "race":
                return await self._race(race, order["rounds"], order["start"])
            case "begin":
                assert race.steady is not None
                self._steady = asyncio.create_task(self._go_on(race.steady))
            case "end":
                await self._end()
            case "rest":
                await self._worker.services.storage.drain()  # of what it keeps open on purpose
                data = self._worker.services.settings.data
                return [path for name in ("temp", "blobs", "spool") for path in open_files_under(data / name)]
        return None

    async def _race(self, race: Race, rounds: list[dict[str, Any]], start: float) -> list[str]:
        runs = []
        for position, facts in enumerate(rounds):
            round_ = Round(facts["number"], race.content(facts["number"]), facts["ids"])
            due = start + position * _SPACING_SECONDS + lag_seconds(race, round_.number, self._side)
            runs.append(self._run(race, round_, due))
        return await asyncio.gather(*runs)

    async def _run(self, race: Race, round_: Round, due: float) -> str:
        act = race.a if self._side == "a" else race.b
        assert act is not None
        _ = round_.content.md5  # computed before the start
        await asyncio.sleep(due - time.monotonic())
        return await word_of(act, self._worker, round_)

    async def _go_on(self, steady: Steady) -> None:
        while not self._enough.is_set():
            await steady(self._worker)
            await asyncio.sleep(0)

    async def _end(self) -> None:
        """After the turn that is under way."""
        assert self._steady is not None
        self._enough.set()
        await self._steady
        self._enough.clear()


async def _lines() -> AsyncIterator[dict[str, Any]]:
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


@asynccontextmanager
async def working() -> AsyncIterator[Worker]:
    """A worker with its jobs, and Alice's client."""
    services = Services(Settings.load())
    async with running(services, jobs=True):
        token = await services.accounts.create_token(ALICE, admin=False)
        transport = httpx2.ASGITransport(app=build_application(services))
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            yield Worker(services, {ALICE: client})


async def main(side: str) -> None:
    async with working() as worker:
        racer = Racer(side, worker)
        print(json.dumps("ready"), flush=True)
        async for order in _lines():
            print(json.dumps(await racer.do(order)), flush=True)


if __name__ == "__main__":
    configure_logging("warning", "text")
    uvloop.run(main(sys.argv[1]))
