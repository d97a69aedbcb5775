"""One round: everything is started, used, killed, healed, and audited."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.auditor import Auditor
from tests.chaos.clients import Client, Record
from tests.chaos.installation import Installation
from tests.chaos.monkey import Monkey
from uploader.clock import Clock
from uploader.database.engine import Database
from uploader.service.accounts import Accounts

_CLIENTS = 16
_FINISH_SECONDS = 30.0
_ACTIONS_PER_SECOND = 4.0
# Events of the log that no kill excuses, each with its trace.
_ERRORS = re.compile(
    r"^[^\n]*(?:job failed, and|request failed|can't be accounted|merge failed|Redis refuses).*?(?=^\d\d:|\Z)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Summary:
    """What a round did and found."""

    seed: int
    seconds: float
    kills: dict[str, int]
    kills_total: int
    aof_cuts: int
    flushalls: int
    freezes: int
    ended_unasked: int
    counts: dict[str, int]
    audits: int
    audits_missed: int
    drift_bytes: int
    violations: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


async def run_round(directory: Path, *, seconds: float, seed: int, min_kills: int = 0) -> Summary:
    """Kill for `seconds` in a directory that is empty, and on until there were `min_kills`, on a machine that is slow."""
    installation = Installation(directory)
    try:
        return await _run(installation, seconds, seed, min_kills)
    finally:
        installation.stop()


async def _run(installation: Installation, seconds: float, seed: int, min_kills: int) -> Summary:
    await installation.start()
    monkey = Monkey(installation, seed, _ACTIONS_PER_SECOND)
    auditor = Auditor(installation.database_url, installation.redis.url, installation.data)
    record = Record()
    started = time.monotonic()
    try:
        async with _clients(installation, seed, record) as clients:
            await _under_fire(monkey, clients, auditor, record, seconds, min_kills)
            elapsed = time.monotonic() - started
            drift_bytes = await auditor.conclude(clients)
            await asyncio.gather(*(client.compare_all() for client in clients))
    finally:
        await auditor.close()
        await asyncio.to_thread(monkey.end)
    tally, findings = monkey.tally, auditor.findings
    return Summary(
        seed=seed,
        seconds=round(elapsed, 1),
        kills=dict(tally.kills),
        kills_total=tally.kills.total(),
        aof_cuts=tally.aof_cuts,
        flushalls=tally.flushalls,
        freezes=tally.freezes,
        ended_unasked=tally.ended_unasked,
        counts=dict(sorted(record.counts.items())),
        audits=findings.audits,
        audits_missed=findings.missed,
        drift_bytes=drift_bytes,
        violations=findings.violations + record.violations,
        errors=_ERRORS.findall(installation.log.read_text()),
    )


async def _under_fire(
    monkey: Monkey, clients: list[Client], auditor: Auditor, record: Record, seconds: float, min_kills: int
) -> None:
    stopping = asyncio.Event()
    watching = asyncio.create_task(auditor.watch(stopping))
    uploading = [asyncio.create_task(client.live(stopping)) for client in clients]
    monkey.start()
    await asyncio.sleep(seconds)
    while monkey.tally.kills.total() < min_kills and monkey.error is None:
        await asyncio.sleep(0.1)
    await asyncio.to_thread(monkey.heal)
    stopping.set()
    _, unfinished = await asyncio.wait(uploading, timeout=_FINISH_SECONDS)
    for task in unfinished:
        task.cancel()
        record.violations.append(f"a client could not finish within {_FINISH_SECONDS:g} s after all was healed")
    await asyncio.gather(*uploading, return_exceptions=True)
    for task in uploading:
        if not task.cancelled() and (error := task.exception()) is not None:
            record.violations.append(f"a client failed: {error!r}")
    await watching


@contextlib.asynccontextmanager
async def _clients(installation: Installation, seed: int, record: Record) -> AsyncIterator[list[Client]]:
    database = Database(installation.database_url)
    accounts = Accounts(database, Clock(), default_total_space_bytes=1 << 30)
    tokens = {
        user_id: await accounts.create_token(user_id, admin=False)
        for user_id in (f"user{n:02}" for n in range(_CLIENTS))
    }
    await database.close()
    clients = [Client(user_id, token, installation.urls, seed, record) for user_id, token in tokens.items()]
    try:
        yield clients
    finally:
        for client in clients:
            await client.close()
