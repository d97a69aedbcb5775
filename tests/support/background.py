"""What jobs and workers do in the background, done by a test when it wants to, or held up by it."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx2
from redis.asyncio import Redis

from tests.support.content import Content
from tests.support.faults import Pause
from tests.support.invariants import Account, Shape, check_pending, checked_accounts
from tests.support.servers import PrivateDatabase, PrivateRedis
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.database import models, queries
from uploader.domain.links import owner
from uploader.domain.upload import Upload
from uploader.jobs.maintenance import Cleaner, Collector, Reconciler, TrashKeeper
from uploader.service.flush import FlushedBatch
from uploader.service.leases import Lease

T = TypeVar("T")

_MONTH_SECONDS = 30 * 86_400.0


async def upload_of(stack: Stack, content: Content, user_id: str = "alice") -> Upload:
    """The open upload of a content."""
    upload = await stack.services.database.read(
        lambda connection: queries.open_upload_by_md5(connection, owner(user_id), content.md5)
    )
    assert upload is not None
    return upload


async def open_with_chunks(stack: Stack, content: Content, *numbers: int) -> Upload:
    await stack.open(content)
    for number in numbers:
        assert (await stack.put(content, number)).status_code == 200
    return await upload_of(stack, content)


async def settle_without_merge(stack: Stack, content: Content) -> Upload:
    """All chunks are here, and the worker that was to merge them ended: a stopping storage leaves the merge undone."""
    upload = await open_with_chunks(stack, content, *range(content.chunk_count - 1))
    stack.services.storage.stop()
    assert (await stack.put(content, content.chunk_count - 1)).status_code == 503
    return upload


async def flush_due(stack: Stack) -> FlushedBatch:
    return await stack.services.flushing.flush_due(stack.services.pending.flush_queues[0])


async def account_of(stack: Stack, user_id: str = "alice") -> Account:
    """The checked account of a user; Redis is checked as well."""
    async with stack.services.database.engine.connect() as connection:
        rows = (await connection.execute(models.upload.select())).mappings().all()
    assert isinstance(stack.services.redis, Redis)
    await check_pending(stack.services.redis, {row["id"]: Shape(row["size"], row["chunk_size"]) for row in rows})
    return (await checked_accounts(stack.services.database))[user_id]


def collector_of(stack: Stack) -> Collector:
    services = stack.services
    parts = (services.files, services.closers, services.cleanup, services.audit_log, services.clock)
    return Collector(*parts, closed_retention_seconds=_MONTH_SECONDS)


def lease_of(stack: Stack, job: str) -> Lease:
    """Of a worker of its own."""
    return Lease(stack.services.database, stack.services.clock, job)


def cleaner_of(stack: Stack) -> Cleaner:
    return Cleaner(stack.services.cleanup, lease_of(stack, "cleanup"), stack.services.clock)


def keeper_of(stack: Stack) -> TrashKeeper:
    services = stack.services
    return TrashKeeper(
        services.trash, services.deleted_files, services.admission, lease_of(stack, "trash"), services.clock
    )


def reconciler_of(stack: Stack) -> Reconciler:
    services = stack.services
    return Reconciler(services.reconciling, services.cleanup, lease_of(stack, "reconciler"), services.clock)


async def reached(pause: Pause) -> None:
    """Wait until a call is held up."""
    assert await asyncio.to_thread(pause.reached.wait, PATIENCE_SECONDS)


async def while_paused(pause: Pause, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Start `work` and wait until it is held up by `pause`."""
    task = asyncio.create_task(work)
    await reached(pause)
    return task


async def still_waits(task: "asyncio.Task[Any]") -> bool:
    await asyncio.wait({task}, timeout=0.1)
    return not task.done()


async def until(holds: Callable[[], object]) -> None:
    async def is_so() -> bool:
        return bool(holds())

    await eventually(is_so)


async def becomes(ask: Callable[[], Awaitable[T]], expected: T) -> None:
    """Wait until that is the answer."""

    async def is_so() -> bool:
        return bool(await ask() == expected)

    await eventually(is_so)


async def succeeds(ask: Callable[[], Awaitable[httpx2.Response]]) -> None:
    """Wait until the answer is 200."""

    async def is_so() -> bool:
        return (await ask()).status_code == 200

    await eventually(is_so)


async def is_in_state(ask: Callable[[], Awaitable[httpx2.Response]], state: str) -> None:
    """Wait until the answer says so."""

    async def is_so() -> bool:
        answer = await ask()
        return answer.is_success and answer.json().get("state") == state

    await eventually(is_so)


@contextmanager
def stopped(server: PrivateRedis | PrivateDatabase) -> Iterator[None]:
    """Within, it says nothing."""
    server.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.send_signal(signal.SIGCONT)
