"""Jobs with much to do end between two items when they are stopped."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, func, select, update

from tests.conftest import MakeStack
from tests.support.clock import ManualClock
from tests.support.consumer import events_file
from tests.support.content import KIB, Content
from tests.support.faults import Call, intercepting
from tests.support.stack import Stack
from tests.support.visiting import make_link, send, visit
from tests.support.waiting import eventually
from uploader.bootstrap.application import _create_runner
from uploader.database import models
from uploader.jobs import runner
from uploader.jobs.runner import Job, Pause, Runner
from uploader.runtime.bell import Bell

ITEMS = 30
SLOW_SECONDS = 0.02
QUEUE = '[queues.scan]\ntypes = ["file.finished"]\n[sinks.log]\ntype = "redis"\nstream = "told"\n'
DAY_SECONDS = 86_400.0
Left = Callable[[], Awaitable[int]]


@asynccontextmanager
async def slow(stack: Stack) -> AsyncIterator[None]:
    """Let each call of the database, and each file that is opened, take a while."""
    database = stack.services.database

    def slowed(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(SLOW_SECONDS)
            return await real(*arguments, **options)

        return call

    def around(call: Call) -> Any:
        if call.name == "open" and not call.arguments[1] & os.O_DIRECTORY:
            time.sleep(SLOW_SECONDS)
        return call.make()

    with pytest.MonkeyPatch.context() as patched, intercepting(around):
        for name in ("read", "transact"):
            patched.setattr(database, name, slowed(getattr(database, name)))
        yield


async def with_much_to_do(stack: Stack, clock: ManualClock) -> dict[str, Left]:
    """How many items are left for each job that has many, in the order in which they may run."""
    services, contents = stack.services, [Content(KIB, seed=seed) for seed in range(4 * ITEMS)]
    bob, link = await stack.client_of("bob"), await make_link(stack)
    visitor = await visit(stack, link)
    for content in contents[:ITEMS]:
        for client in (stack.client, visitor, bob):
            assert (await stack.open(content, client)).status_code == 201
    for place, content in enumerate(contents[ITEMS:]):
        assert (await send(stack.client, content, f"{place}")).status_code == 201
    await services.sharing.revoke("alice", link["id"])
    async with services.database.engine.begin() as connection:
        ids = list(
            (await connection.execute(select(models.upload.c.id).where(models.upload.c.user_id == "bob"))).scalars()
        )
        await connection.execute(delete(models.upload).where(models.upload.c.user_id == "bob"))
        files = (await connection.execute(select(models.file.c.id, models.file.c.sha256))).all()
        for file_id, sha256 in files[:ITEMS]:
            await connection.execute(delete(models.file).where(models.file.c.id == file_id))
            await connection.execute(update(models.blob).values(refs=0).where(models.blob.c.sha256 == sha256))
    for file_id, _ in files[ITEMS : 2 * ITEMS]:
        await services.files.delete("alice", file_id)
    clock.advance(40 * DAY_SECONDS)
    await services.redis.flushdb()

    async def count(*conditions: Any) -> int:
        async with services.database.engine.connect() as connection:
            return int((await connection.execute(select(func.count()).where(*conditions))).scalar_one())

    async def unknown_to_redis() -> int:
        states = [(await services.pending.read(upload_id)).state for upload_id in opened]
        return states.count("")

    async def not_looked_at() -> int:
        return 2 * ITEMS - len(looked)

    async def directories() -> int:
        return sum(path.name in ids for path in (stack.data / "temp").glob("*/*/*"))

    async def in_trash() -> int:
        return sum(path.is_file() for path in (stack.data / "trash").rglob("*"))

    look, looked = services.reconciling.audit.upload, set[str]()

    async def looking(upload_id: str) -> Any:
        looked.add(upload_id)
        return await look(upload_id)

    services.reconciling.audit.upload = looking  # type: ignore[method-assign]
    upload, blob = models.upload.c, models.blob.c
    async with services.database.engine.connect() as connection:
        opened = list((await connection.execute(select(upload.id))).scalars())
    return {
        "sweeper 0": unknown_to_redis,
        "reconciler": not_looked_at,
        "link keeper": lambda: count(upload.session != "", upload.open_flag == 1),
        "expirer": lambda: count(upload.session == "", upload.open_flag == 1),
        "cleanup": directories,
        "scrubber": lambda: count(blob.scrubbed_at.is_(None), blob.refs > 0),
        "trash": in_trash,
        "collector": lambda: count(blob.refs == 0),
    }


async def test_each_job_ends_between_two_items(
    make_stack: MakeStack, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_LAST_RUN_SECONDS", 0.05)
    monkeypatch.setattr(Pause, "active", lambda _: False)
    async with make_stack(
        clock=clock, events=events_file(tmp_path / "events", QUEUE), trash_retention_seconds=DAY_SECONDS
    ) as stack:
        left_of = await with_much_to_do(stack, clock)
        queues = [*stack.services.pending.flush_queues, *stack.services.pending.merge_queues]
        jobs = {
            job.name: job
            for job in _create_runner(stack.services, {each.wake_channel: Bell() for each in queues})._bells
        }
        assert set(left_of) <= set(jobs)
        async with slow(stack):
            for name in [*left_of, *(set(jobs) - set(left_of))]:
                await stopped(jobs[name], left_of.get(name))


async def stopped(job: Job, left: Left | None) -> None:
    """Run a job, and stop it once it has done an item; jobs that have few, once they have begun."""
    running = Runner([replace(job, first_delay_seconds=0.0)])
    there = 0 if left is None else await left()
    assert left is None or there >= ITEMS, job.name
    running.start()

    async def has_done_one() -> bool:
        return left is not None and await left() < there

    await (asyncio.sleep(SLOW_SECONDS) if left is None else eventually(has_done_one))
    await running.stop()
    if left is not None:
        then = await left()
        assert 0 < then < there, job.name
        await asyncio.sleep(5 * SLOW_SECONDS)
        assert await left() == then, f"{job.name}: nothing goes on after the stop"
