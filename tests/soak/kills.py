"""One round: everything is started, used, killed, healed, and audited."""

import asyncio
import contextlib
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, fields
from pathlib import Path

from tests.soak.auditor import Auditor
from tests.soak.backups import Backups
from tests.soak.clients import EVERYTHING, TOTAL_SPACE, Client, Habits, Record
from tests.soak.housekeeping import clean_up
from tests.soak.installation import Installation, Setup
from tests.soak.monkey import MAX_JUMP_SECONDS, Monkey
from tests.soak.result import Result
from tests.soak.sink import KINDS
from tests.support.in_bucket import BucketBytes
from tests.support.waiting import PATIENCE_SECONDS
from uploader.database.engine import Database
from uploader.database.queries import count_unreadable_blobs
from uploader.runtime.clock import Clock
from uploader.service.access import Accounts
from uploader.service.revocations import Revocations

_CLIENTS = 16
# Large chunks take memory and time.
_LARGE_BYTES, _CLIENTS_OF_LARGE = 4 << 20, 6
# What it takes to be healed, to come to rest and to be looked at; who has less than that kills for this share of it.
_END_SECONDS, _LEAST_SHARE = 120.0, 0.3
_LONGEST_WAIT_SECONDS = 2 * 86_400.0
# Events of the log that no kill excuses, each with its trace.
_ERRORS = re.compile(
    r"^[^\n]*(?:job failed, and|request failed|can't be accounted[^\n]*\n +Traceback|merge failed|Redis refuses)"
    r".*?(?=^\d\d:|\Z)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Least:
    """What has to happen in a round, however slow the machine is; so that it was not the calm of servers that never came
    up. `of_each`: so often everybody was killed, and everything else was done; `told`: events of each type."""

    kills: int = 0
    audits: int = 0
    chunks: int = 0
    made: int = 0  # chunks by instructions
    appends: int = 0
    files: int = 0
    of_each: int = 0
    told: int = 0


@dataclass
class _Round:
    """What is there while a round goes on."""

    monkey: Monkey
    clients: list[Client]
    record: Record
    auditor: Auditor

    def is_enough(self, least: Least) -> bool:
        done = Counter(self.record.counts)
        done["kills"], done["audits"] = self.monkey.tally.kills.total(), self.auditor.findings.audits
        done["of_each"] = min(self.monkey.times.values())
        done["told"] = min(len(self.record.done[kind]) for kind in KINDS)
        return all(done[each.name] >= getattr(least, each.name) for each in fields(least))


async def run_round(
    directory: Path, *, seconds: float, seed: int, setup: Setup, least: Least | None = None, ends_at: float = math.inf
) -> Result:
    """Kill for `seconds` in a directory that is empty, and for longer, until the `least` has happened. `ends_at`: of the
    monotonic clock, with time to come to an end."""
    installation = Installation(directory, setup)
    try:
        await installation.start()
        rest = ends_at - time.monotonic()
        seconds = min(seconds, max(rest - _END_SECONDS, _LEAST_SHARE * rest))
        return await _run(installation, directory, setup, seconds, seed, least or Least())
    finally:
        installation.stop()


async def _run(
    installation: Installation, directory: Path, setup: Setup, seconds: float, seed: int, least: Least
) -> Result:
    fault = "failovers" if setup.failovers else "storms" if setup.tells else "kills"
    result, started = Result(fault, str(setup), seed), time.monotonic()
    database = Database(installation.database_url)
    stored = installation.stored(database)
    auditor = Auditor(database, stored)
    record, monkey = Record(disk=installation.disk), Monkey(installation, seed)
    more: dict[str, float] = {}
    try:
        async with _clients(installation, setup, seed, record) as clients:
            backups = Backups(directory, installation, clients)
            has_backup = setup.store == "disk" and fault == "kills" and installation.database is not None
            going_on = _Round(monkey, clients, record, auditor)
            await _under_fire(going_on, backups if has_backup else None, seconds, least)
            drift_bytes = await auditor.conclude(clients, installation.redis.url)
            if isinstance(stored, BucketBytes):
                cleaned, left = await clean_up(installation, stored)
                more |= cleaned
                result.wrong += [f"left after the housekeeping: {what}" for what in left]
                drift_bytes += await auditor.conclude(clients, installation.redis.url)
            await asyncio.gather(*(client.verify() for client in clients))
            if installation.sink is not None:
                more["events"] = await installation.sink.check(database, record.done, installation.set_clocks)
            if has_backup:
                more["files of a backup restored"] = await backups.check()
            if not await _is_readable_later(installation, database):
                result.wrong.append("contents that could not be read are not looked at again")
    finally:
        await database.close()
        await asyncio.to_thread(monkey.end)
    errors = _ERRORS.findall(installation.log.read_text())
    troubles = [str(trouble) for trouble in record.troubles] + auditor.findings.violations
    result.seconds = time.monotonic() - started
    result.done = {
        **{f"kills of {kind}": count for kind, count in sorted(monkey.tally.kills.items())},
        **dict(sorted(monkey.tally.harms.items())),
        **installation.failovers,
        **dict(sorted(record.counts.items())),
        "audits": auditor.findings.audits,
        "while the database was away": auditor.findings.missed,
        **more,
        "s the longest without an answer": round(record.longest_seconds, 1),
        "s the longest act, as which a stop may last": round(monkey.tally.longest_act_seconds, 1),
    }
    result.found = {
        "broken promises": len(troubles),
        "bytes of drift": drift_bytes,
        "500s": record.counts["status_500"],
        "errors in the log": len(errors),
        "answers after 10 s": len(record.late),
    }
    result.wrong += troubles + errors
    result.late = record.late
    if drift_bytes:
        result.wrong.append(f"the accounts drifted by {drift_bytes} bytes")
    if not going_on.is_enough(least):
        result.wrong.append(f"too little was done: {result.done}, at least {least}")
    return result


async def _is_readable_later(installation: Installation, database: Database) -> bool:
    """What could not be read is looked at again by itself, at the latest a day later; even if a clock was ahead."""
    installation.set_clocks(MAX_JUMP_SECONDS + _LONGEST_WAIT_SECONDS)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while await database.read(count_unreadable_blobs):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.2)
    return True


async def _under_fire(going_on: _Round, backups: Backups | None, seconds: float, least: Least) -> None:
    stopping, monkey, violations = asyncio.Event(), going_on.monkey, going_on.auditor.findings.violations
    watching = asyncio.create_task(going_on.auditor.watch(stopping))
    backing_up = asyncio.create_task(asyncio.sleep(0) if backups is None else backups.make())
    uploading = {asyncio.create_task(client.live(stopping)): client for client in going_on.clients}
    try:
        monkey.start()
        await asyncio.sleep(seconds)
        latest = time.monotonic() + PATIENCE_SECONDS
        while not (going_on.is_enough(least) and backing_up.done()) and not monkey.error and time.monotonic() < latest:
            await asyncio.sleep(0.1)
        await asyncio.to_thread(monkey.heal)
        stopping.set()
        _, unfinished = await asyncio.wait([*uploading, backing_up, watching], timeout=PATIENCE_SECONDS)
    finally:
        for task in (*uploading, backing_up, watching):
            task.cancel()
        await asyncio.gather(*uploading, backing_up, watching, return_exceptions=True)
    for task, client in uploading.items():
        if task in unfinished:
            violations.append(f"{client.user_id} could not finish after all was healed, told last: {client.last_told}")
        elif (error := task.exception()) is not None:
            violations.append(f"{client.user_id} failed: {error!r}")
    backing_up.result()
    watching.result()


@contextlib.asynccontextmanager
async def _clients(installation: Installation, setup: Setup, seed: int, record: Record) -> AsyncIterator[list[Client]]:
    database = Database(installation.database_url)
    accounts = Accounts(database, Clock(), Revocations(database, Clock()), default_total_space_bytes=TOTAL_SPACE)
    count = _CLIENTS if setup.chunk_size < _LARGE_BYTES else _CLIENTS_OF_LARGE
    tokens = {f"user{n:02}": await accounts.create_token(f"user{n:02}", admin=False) for n in range(count)}
    await database.close()
    habits = Habits(EVERYTHING, setup.chunk_size)
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for user_id, token in tokens.items():
            clients.append(Client(user_id, token, installation.urls, habits, seed, record))
            stack.push_async_callback(clients[-1].close)
        yield clients
