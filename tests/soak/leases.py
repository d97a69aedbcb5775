"""Tasks of a gate while everything is killed: each is acknowledged, nobody holds one together with another, and each file
passes or is refused, as its worker said.

A claim is compared with the one before it of the same task by what the database's clock said to both: it may begin no sooner
than the other one ended, by its lease or by its worker's word.
"""

import asyncio
import json
import math
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import select

from tests.soak.installation import QUEUE, Installation, Setup
from tests.soak.monkey import Monkey
from tests.soak.result import Result
from tests.support.archives import Entry, archive
from tests.support.invariants import checked_accounts
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.database import models, work
from uploader.database.engine import Database
from uploader.runtime.clock import Clock
from uploader.service.access import Accounts
from uploader.service.revocations import Revocations

_WORKERS, _UPLOADERS = 20, 4
# Seldom enough that thousands of files are done between two deaths of the database, which takes seconds to come back.
_ACTS_PER_SECOND = 1.0
# Of a batch, and of leases in seconds.
_FILES, _LEASES = 25, (1.0, 3.0)
# Who uploads waits while so many are to be done.
_MOST_WAITING = 500
# Each so-manieth file of a user is refused.
_REFUSED = 10
# How often a worker dies with its tasks, hangs beyond its lease, or gives a task back.
_DIES, _HANGS, _RELEASES = 0.05, 0.05, 0.1
_END_SECONDS, _LEAST_SHARE = 60.0, 0.5
# Away, or on the way to be.
_PASSING = (httpx2.HTTPError, json.JSONDecodeError)


@dataclass
class Held:
    """A claim as its worker knows it: how long the database said that it holds, and when its worker let go, if it did."""

    fence: int
    begun: datetime
    until: datetime
    # Its worker may have let go: its word was sent, whatever became of the answer.
    let_go: bool = False


@dataclass
class Record:
    """What workers saw, by task."""

    holds: dict[str, list[Held]] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    # The names of files that were sent, by their users' numbers.
    sent: dict[int, set[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def judge(self) -> list[str]:
        """What is wrong with the claims of each task, in the order of their fences."""
        for task_id, holds in self.holds.items():
            holds.sort(key=lambda held: held.fence)
            for before, after in pairwise(holds):
                if before.fence == after.fence:
                    self.wrong.append(f"{task_id}: two claims have the fence {after.fence}")
                elif not before.let_go and after.begun < before.until:
                    self.wrong.append(f"{task_id}: claim {after.fence} began at {after.begun}, {before.fence} held it")
        return self.wrong


class _Person:
    """Somebody with a token who asks one of the servers, and another one if it is away."""

    def __init__(self, urls: list[str], token: str, seed: int, record: Record) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._clients = [httpx2.AsyncClient(base_url=url, headers=headers, timeout=20) for url in urls]
        self.drawn = random.Random(seed)
        self.record = record

    async def ask(self, path: str, **more: Any) -> httpx2.Response | None:
        """None, where it is not known what became of it."""
        try:
            answer = await self.drawn.choice(self._clients).post(path, **more)
        except _PASSING:
            await asyncio.sleep(0.05)
            return None
        if answer.status_code >= 500:
            self.record.counts[f"answers {answer.status_code}"] += 1
            await asyncio.sleep(0.05)
            return None
        return answer

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()


async def _upload(person: _Person, number: int, stopping: asyncio.Event) -> None:
    sent = person.record.sent.setdefault(number, set())
    made = 0
    while not stopping.is_set():
        # What was not acknowledged, all of it again.
        left = [f"{number}/{made + n}" for n in range(_FILES)]
        made += _FILES
        while left:
            written = archive(*(Entry(name, name.encode()) for name in left))
            answer = await person.ask("/files/batch?if_exists=replace", content=written)
            results = answer.json()["results"] if answer is not None and answer.status_code == 200 else []
            sent.update(result["name"] for result in results if result["status"] in (200, 201))
            left = [name for name in left if name not in sent]
        person.record.counts["files"] += _FILES
        while person.record.counts["files"] > len(person.record.acknowledged) + _MOST_WAITING and not stopping.is_set():
            await asyncio.sleep(0.05)


async def _work(person: _Person, is_over: asyncio.Event) -> None:
    drawn, record = person.drawn, person.record
    while not is_over.is_set():
        lease_seconds = drawn.choice(_LEASES)
        asked = {"max": drawn.randint(1, 10), "lease_seconds": lease_seconds, "wait_seconds": drawn.choice((0, 1))}
        answer = await person.ask(f"/queues/{QUEUE}/claim", json=asked)
        if answer is None:
            continue
        assert answer.status_code == 200, answer.text
        tasks = answer.json()["tasks"]
        claims = [(task, _held(task, lease_seconds)) for task in tasks]
        for task, held in claims:
            record.holds.setdefault(task["id"], []).append(held)
        record.counts["claims"] += len(tasks)
        if drawn.random() < _DIES:
            record.counts["workers that died with their tasks"] += bool(tasks)
            continue
        for task, held in claims:
            await _end(person, task, held)


def _held(task: dict[str, Any], lease_seconds: float) -> Held:
    until = datetime.fromisoformat(task["lease_until"])
    return Held(task["fence"], until - timedelta(seconds=lease_seconds), until)


async def _end(person: _Person, task: dict[str, Any], held: Held) -> None:
    drawn, record = person.drawn, person.record
    place, lease = f"/queues/{QUEUE}/tasks/{task['id']}", {"lease": task["lease"]}
    if drawn.random() < _HANGS:
        answer = await person.ask(f"{place}/extend", json={**lease, "lease_seconds": 1.0})
        if answer is not None and answer.status_code == 200:
            held.until = max(held.until, datetime.fromisoformat(answer.json()["lease_until"]))
            record.counts["extended"] += 1
        await asyncio.sleep(drawn.uniform(0.5, 2.0))
    verb = "release" if drawn.random() < _RELEASES else "ack"
    held.let_go = True
    verdict = {"verdict": "refuse", "reason": "no"} if is_refused(task["event"]["data"]["file"]["name"]) else {}
    answer = await person.ask(f"{place}/{verb}", json=lease | (verdict if verb == "ack" else {}))
    if answer is None:
        record.counts[f"{verb} with an unknown end"] += 1
    elif answer.status_code == 204:
        record.counts[verb] += 1
        if verb == "ack":
            record.acknowledged.add(task["id"])
    else:
        assert answer.status_code in (404, 409), answer.text
        record.counts[f"{verb} {answer.status_code}"] += 1


def is_refused(name: str) -> bool:
    return int(name.rpartition("/")[2]) % _REFUSED == 0


async def _misplaced(database: Database, record: Record) -> list[str]:
    """What is wrong with the files: each is seen, or in the trash."""
    wrong = []
    async with database.engine.connect() as connection:
        for number, names in record.sent.items():
            of_user = [
                Counter(
                    (await connection.execute(select(table.c.name).where(table.c.user_id == f"user{number}"))).scalars()
                )
                for table in (models.file, models.trashed_file, models.held_file)
            ]
            refused = {name for name in names if is_refused(name)}
            for what, found, expected in zip(
                ("files", "refused", "held"), of_user, (names - refused, refused, set[str]()), strict=True
            ):
                if found != Counter(expected):
                    wrong.append(
                        f"user{number}: {what}: {sorted((found - Counter(expected)) + (Counter(expected) - found))}"
                    )
    try:
        await checked_accounts(database)
    except AssertionError as error:
        wrong.append(str(error))
    return wrong


async def run_leases(
    directory: Path, *, seconds: float, seed: int, setup: Setup, least_tasks: int = 0, ends_at: float = math.inf
) -> Result:
    """Kill for `seconds`, and for longer, until so many tasks were acknowledged; then all have to be. `ends_at`: of the
    monotonic clock, with time to come to an end."""
    installation = Installation(directory, setup)
    result, started, record = Result("leases", str(setup), seed), time.monotonic(), Record()
    await installation.start()
    database, monkey = Database(installation.database_url), Monkey(installation, seed, _ACTS_PER_SECOND)
    try:
        accounts = Accounts(database, Clock(), Revocations(database, Clock()), default_total_space_bytes=1 << 40)
        scope = f"queue:{QUEUE}"
        working = await accounts.create_token("worker", admin=False, scope=scope)
        people = [_Person(installation.urls, working, seed + n, record) for n in range(_WORKERS)]
        for number in range(_UPLOADERS):
            token = await accounts.create_token(f"user{number}", admin=False)
            people.append(_Person(installation.urls, token, seed - number, record))
        stopping, is_over = asyncio.Event(), asyncio.Event()
        tasks = [asyncio.create_task(_work(person, is_over)) for person in people[:_WORKERS]]
        uploads = [
            asyncio.create_task(_upload(person, number, stopping)) for number, person in enumerate(people[_WORKERS:])
        ]
        try:
            rest = ends_at - time.monotonic()
            monkey.start()
            await asyncio.sleep(min(seconds, max(rest - _END_SECONDS, _LEAST_SHARE * rest)))
            await eventually(partial(_so_many, record, least_tasks))
            await asyncio.to_thread(monkey.heal)
            stopping.set()
            await asyncio.wait_for(asyncio.gather(*uploads), PATIENCE_SECONDS)
            left = await _until_nothing_waits(database)
        finally:
            is_over.set()
            for upload in uploads:
                upload.cancel()  # one whose files nobody takes any more would go on for ever
            await asyncio.gather(*tasks, *uploads, return_exceptions=True)
            for person in people:
                await person.close()
        errors = [repr(task.exception()) for task in tasks if task.done() and task.exception() is not None]
        result.wrong = record.judge() + errors + left + await _misplaced(database, record)
        unknown = record.counts["ack with an unknown end"]
        never = len(record.holds.keys() - record.acknowledged)
        if never > unknown:
            result.wrong.append(f"{never} tasks were never acknowledged, {unknown} with an unknown end")
        result.done = {
            **{f"kills of {kind}": count for kind, count in sorted(monkey.tally.kills.items())},
            **dict(sorted(monkey.tally.harms.items())),
            **dict(sorted(record.counts.items())),
            "tasks": len(record.holds),
            "the most claims of one": max((len(holds) for holds in record.holds.values()), default=0),
        }
        result.wrong += ["an answer 500"] * record.counts["answers 500"]
        result.found = {"held by two at one time, never done, misplaced, or 500": len(result.wrong)}
    finally:
        with suppress(Exception):
            await asyncio.to_thread(monkey.end)
        await database.close()
        installation.stop()
    result.seconds = time.monotonic() - started
    return result


async def _so_many(record: Record, least: int) -> bool:
    return len(record.acknowledged) >= least


async def _until_nothing_waits(database: Database) -> list[str]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = await database.read(partial(work.figures, now=Clock().now()), QUEUE)
        if not found.waiting and not found.dead:
            return []
        if found.dead or time.monotonic() > deadline:
            return [f"{found.waiting} tasks wait, {found.dead} are dead"]
        await asyncio.sleep(0.2)
