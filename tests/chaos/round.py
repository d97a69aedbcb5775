"""One round: everything is started, used, killed, healed, and audited."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.auditor import Auditor
from tests.chaos.clients import Client, Record
from tests.chaos.housekeeping import clean_up
from tests.chaos.installation import Installation, Setup
from tests.chaos.monkey import Monkey
from tests.support.in_bucket import BucketBytes
from uploader.clock import Clock
from uploader.database.engine import Database
from uploader.service.access import Accounts

_CLIENTS = 16
_FINISH_SECONDS = 60.0
_MAX_LONGER = 2.0  # times as long as asked for, if too little happened by then
_ACTIONS_PER_SECOND = 4.0
# Where a start asks the gateway for a dozen things, which is away, too.
_ACTIONS_PER_SECOND_ON_S3 = 0.8
# Events of the log that no kill excuses, each with its trace.
_ERRORS = re.compile(
    r"^[^\n]*(?:job failed, and|request failed|can't be accounted|merge failed|Redis refuses).*?(?=^\d\d:|\Z)",
    re.MULTILINE | re.DOTALL,
)


# Large chunks take memory and time.
_LARGE_BYTES, _CLIENTS_OF_LARGE = 4 << 20, 6
# Something that is done while everything is killed.
Errand = Callable[[Installation, list[Client]], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Least:
    """What has to happen in a round, however slow the machine is."""

    kills: int = 0
    kills_of_each: int = 0
    chunks: int = 0
    made: int = 0  # chunks by instructions
    appends: int = 0
    files: int = 0
    audits: int = 0
    harms: int = 0  # of each kind that kills nobody
    failovers: int = 0  # of each kind of store


@dataclass(frozen=True)
class Summary:
    """What a round did and found."""

    setup: Setup
    seed: int
    seconds: float
    kills: dict[str, int]
    kills_total: int
    aof_cuts: int
    flushalls: int
    freezes: int
    gateway_freezes: int
    clock_jumps: int
    failovers: dict[str, int]
    longest_answer_seconds: float
    longest_act_seconds: float
    ended_unasked: int
    counts: dict[str, int]
    audits: int
    audits_missed: int
    cleaned: dict[str, int]
    drift_bytes: int
    violations: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


async def run_round(
    directory: Path,
    *,
    seconds: float,
    seed: int,
    setup: Setup | None = None,
    least: Least | None = None,
    beside: Errand | None = None,
) -> Summary:
    """Kill for `seconds` in a directory that is empty; on a machine that is slow up to twice as long, for the `least`.
    `beside`: what else is done meanwhile."""
    setup = setup or Setup()
    installation = Installation(directory, setup)
    try:
        return await _run(installation, setup, seconds, seed, least or Least(), beside or _nothing_else)
    finally:
        installation.stop()


async def _nothing_else(_installation: Installation, _clients: list[Client]) -> None:
    pass


async def _run(
    installation: Installation, setup: Setup, seconds: float, seed: int, least: Least, beside: Errand
) -> Summary:
    await installation.start()
    monkey = Monkey(installation, seed, _ACTIONS_PER_SECOND_ON_S3 if setup.is_on_s3 else _ACTIONS_PER_SECOND)
    database = Database(installation.database_url)
    stored = installation.stored(database)
    auditor = Auditor(database, stored)
    record = Record()
    started = time.monotonic()
    try:
        async with _clients(installation, setup, seed, record) as clients:
            errand = asyncio.create_task(beside(installation, clients))
            await _under_fire(monkey, clients, auditor, record, seconds, least)
            await errand
            elapsed = time.monotonic() - started
            drift_bytes = await auditor.conclude(clients, installation.redis.url)
            if isinstance(stored, BucketBytes):
                cleaned = await clean_up(installation, stored)
                drift_bytes += await auditor.conclude_again(clients, installation.redis.url, cleaned)
            await asyncio.gather(*(client.compare_all() for client in clients))
    finally:
        await database.close()
        await asyncio.to_thread(monkey.end)
    tally, findings = monkey.tally, auditor.findings
    return Summary(
        setup=setup,
        seed=seed,
        seconds=round(elapsed, 1),
        kills=dict(tally.kills),
        kills_total=tally.kills.total(),
        aof_cuts=tally.aof_cuts,
        flushalls=tally.flushalls,
        freezes=tally.freezes,
        gateway_freezes=tally.gateway_freezes,
        clock_jumps=tally.clock_jumps,
        failovers=installation.failovers,
        longest_answer_seconds=round(record.longest_seconds, 1),
        longest_act_seconds=round(tally.longest_act_seconds, 1),
        ended_unasked=tally.ended_unasked,
        counts=dict(sorted(record.counts.items())),
        audits=findings.audits,
        audits_missed=findings.missed,
        cleaned=findings.cleaned,
        drift_bytes=drift_bytes,
        violations=findings.violations + record.violations,
        late=record.late,
        errors=_ERRORS.findall(installation.log.read_text()),
    )


async def _under_fire(
    monkey: Monkey, clients: list[Client], auditor: Auditor, record: Record, seconds: float, least: Least
) -> None:
    stopping = asyncio.Event()
    watching = asyncio.create_task(auditor.watch(stopping))
    uploading = {asyncio.create_task(client.live(stopping)): client for client in clients}
    monkey.start()
    await asyncio.sleep(seconds)
    latest = time.monotonic() + (_MAX_LONGER - 1) * seconds
    while not _is_enough(least, monkey, auditor, record) and time.monotonic() < latest:
        await asyncio.sleep(0.1)
    await asyncio.to_thread(monkey.heal)
    stopping.set()
    _, unfinished = await asyncio.wait(uploading, timeout=_FINISH_SECONDS)
    for task in unfinished:
        task.cancel()
        record.violations.append(
            f"{uploading[task].user_id} could not finish within {_FINISH_SECONDS:g} s after all was healed, and was told "
            f"last: {uploading[task].last_told}"
        )
    await asyncio.gather(*uploading, return_exceptions=True)
    for task, client in uploading.items():
        if not task.cancelled() and (error := task.exception()) is not None:
            record.violations.append(f"{client.user_id} failed: {error!r}")
    await watching


def _is_enough(least: Least, monkey: Monkey, auditor: Auditor, record: Record) -> bool:
    counts = record.counts
    done = all(counts[kind] >= getattr(least, kind) for kind in ("chunks", "made", "appends", "files"))
    tally = monkey.tally
    killed = (
        tally.kills.total() >= least.kills and min(tally.kills[kind] for kind in monkey.victims) >= least.kills_of_each
    )
    seen = killed and auditor.findings.audits >= least.audits
    harmed = min(tally.aof_cuts, tally.flushalls, tally.freezes, tally.clock_jumps) >= least.harms
    moved = all(pair.failovers.total() >= least.failovers for pair in monkey.pairs)
    return (done and seen and harmed and moved) or monkey.error is not None


@contextlib.asynccontextmanager
async def _clients(installation: Installation, setup: Setup, seed: int, record: Record) -> AsyncIterator[list[Client]]:
    database = Database(installation.database_url)
    accounts = Accounts(database, Clock(), default_total_space_bytes=1 << 30)
    tokens = {
        user_id: await accounts.create_token(user_id, admin=False)
        for user_id in (
            f"user{n:02}" for n in range(_CLIENTS if setup.chunk_size < _LARGE_BYTES else _CLIENTS_OF_LARGE)
        )
    }
    await database.close()
    clients = [
        Client(user_id, token, installation.urls, setup.chunk_size, seed, record) for user_id, token in tokens.items()
    ]
    try:
        yield clients
    finally:
        for client in clients:
            await client.close()
