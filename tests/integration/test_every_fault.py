"""Any call of the storage fails, on every way through it, at places that are chosen anew for each commit."""

import errno
import itertools
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager

import httpx2
import pytest
from redis.asyncio import Redis

from tests.conftest import MakeStack
from tests.support.at_rest import check_at_rest, read_directory, rests_within
from tests.support.chosen import places
from tests.support.clock import ManualClock
from tests.support.faults import (
    Call,
    Fault,
    OneCall,
    failing,
    open_files_under,
    recorded_calls,
    short_writes,
    sync_nothing,
    without_syncs,
)
from tests.support.journey import SETTINGS, STEP_BYTES, WAYS, Chunk, Journey
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS
from uploader.database import queries
from uploader.domain import upload as domain_upload

ATTEMPTS = 4
DISK_FULL = itertools.cycle([errno.ENOSPC, errno.EDQUOT])

FaultAt = Callable[[OneCall], AbstractContextManager[Fault]]


# Which calls fail, how, and what a client is told where it can't be helped.
FAULTS: dict[str, tuple[Callable[[Call], bool], FaultAt, int | None]] = {
    "EIO": (
        lambda call: call.name not in ("open", "scandir", "close"),
        lambda chosen: failing(chosen, errno.EIO),
        503,
    ),
    "EMFILE": (lambda call: call.name in ("open", "scandir"), lambda chosen: failing(chosen, errno.EMFILE), 503),
    "ENOSPC or EDQUOT": (lambda call: call.needs_room, lambda chosen: failing(chosen, next(DISK_FULL)), 507),
    "short": (lambda call: call.name == "pwrite", lambda chosen: short_writes(5, chosen), None),
}


@pytest.fixture
async def stack(
    make_stack: MakeStack,
    sqlite_url: str,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> AsyncIterator[Stack]:
    """Small chunks, and nobody cuts the power: nothing waits for the disk of this machine."""
    monkeypatch.setattr(domain_upload, "CHUNK_SIZE_STEP_BYTES", STEP_BYTES)
    caplog.set_level(logging.CRITICAL, "uploader")
    clock.advance(2 * 3600)  # what is made now is old enough for the cleanup
    async with make_stack(database_url=sqlite_url, clock=clock, max_concurrent_chunks=1, **SETTINGS) as made:
        sync_nothing(made.services.database, at="checkout")
        with without_syncs():
            yield made


@pytest.mark.timeout(900 * len(FAULTS))
@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("mixed", "at once")])
async def test_whatever_call_fails_nothing_is_lost_and_all_is_done_in_the_end(stack: Stack, way: str) -> None:
    bob = await stack.client_of("bob", total_space=1 << 30)
    for fault, (accepts, fault_at, status) in FAULTS.items():
        call = OneCall(accepts)
        assert await _go(stack, bob, way, call, fault_at) == (0, set()), f"{fault}: nothing is chosen"
        hits, chosen = 0, places(call.noted(), f"{way} {fault}")
        for place in chosen:
            call.arm(place)
            hit, refusals = await _go(stack, bob, way, call, fault_at)
            assert refusals <= {status}, fault
            hits += hit
        assert hits or not chosen, (
            f"{fault}: a call need not come again where others go on meanwhile; but one of them does"
        )
    await _check_memory_for_bodies(stack, Journey(stack, bob, OneCall(lambda _: False)))
    await bob.aclose()


async def _go(
    stack: Stack, bob: httpx2.AsyncClient, way: str, call: OneCall, fault_at: FaultAt
) -> tuple[int, set[int]]:
    """Go a way once; how many calls failed, and with which statuses it was refused."""
    beginning, rest = WAYS[way]
    journey = Journey(stack, bob, call, ATTEMPTS)
    await beginning(journey)
    call.noted()
    with fault_at(call) as injected:
        await rest(journey)
        await stack.services.storage.drain()
    await _check(stack, journey.acknowledged)
    await journey.end()
    _start_anew(stack)
    return injected.hits, set(journey.refusals)


def _start_anew(stack: Stack) -> None:
    assert stack.bytes_on_disk() == []
    for name in ("temp", "blobs", "trash"):
        for directory in (stack.data / name).glob("*"):
            shutil.rmtree(directory)


async def _check(stack: Stack, acknowledged: list[Chunk]) -> None:
    await stack.services.storage.drain()
    await rests_within(PATIENCE_SECONDS, lambda: _flush_and_check(stack))
    rows = await stack.services.database.read(queries.all_open_uploads, "", 9)
    for upload in rows:
        numbers = {chunk.number for chunk in acknowledged if chunk.upload_id == upload.id}
        assert numbers <= read_directory(stack.data / upload.place).sound, "invariant 6"


async def _flush_and_check(stack: Stack) -> None:
    services = stack.services
    await services.flushing.flush_due(services.pending.flush_queues[0])
    assert isinstance(services.redis, Redis)
    await check_at_rest(services.database, services.redis, stack.data, orphans=True)
    assert open_files_under(stack.data / "temp") == []
    assert open_files_under(stack.data / "blobs") == []


async def _check_memory_for_bodies(stack: Stack, journey: Journey) -> None:
    """What a user may have in memory is all there: a chunk that fills it is not spooled."""
    with recorded_calls("pwrite") as calls:
        await journey.begin_what_is_cancelled()
        await stack.services.storage.drain()
    assert {name for _, name in calls} == {"map", "data", "digest"}
    await journey.end()
