"""Asks the stores for what the gauges show. They are the same whichever process is asked."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from prometheus_client import Gauge

from uploader.accounting.pending import Pending
from uploader.database import queries
from uploader.database.engine import Database
from uploader.errors import UploaderError
from uploader.observability import (
    DAMAGED_BLOBS,
    DEAD_EVENTS,
    EVENT_LAG_SECONDS,
    FREE_DISK_BYTES,
    KEPT_STRAYS,
    OPEN_UPLOADS,
    PENDING_BYTES,
    QUEUE_LAG_SECONDS,
    QUEUE_TASKS,
    REDIS_SET_ASIDE,
    TRASH_BYTES,
    UNSCRUBBED_SECONDS,
    WAITING_EVENTS,
)
from uploader.service.events.watching import Watching
from uploader.service.insight.integrity import Integrity
from uploader.storage.base import Bounded

# Who asks more often gets the figures of a moment ago: asking is open to everybody.
_FRESH_SECONDS = 1.0
_PATIENCE_SECONDS = 3.0

_QUEUE_GAUGES = tuple(gauge.labels(name) for gauge in (QUEUE_TASKS, QUEUE_LAG_SECONDS) for name in ("flush", "merge"))


class Gauges:
    """Sets the gauges that no process can know by itself."""

    def __init__(
        self,
        database: Database,
        storage: Bounded,
        pending: Pending,
        integrity: Integrity,
        watching: Watching,
        list_aside: Callable[[], Sequence[Path]],
    ) -> None:
        """`list_aside`: the directories of Redis that it could not load; blocks."""
        self._list_aside = list_aside
        self._database = database
        self._storage = storage
        self._pending = pending
        self._integrity = integrity
        self._watching = watching
        self._event_gauges = tuple(
            gauge.labels(name) for gauge in (WAITING_EVENTS, DEAD_EVENTS, EVENT_LAG_SECONDS) for name in watching.names
        )
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()

    async def observe(self) -> None:
        """Ask, unless that was done a moment ago. What can't be asked is shown as NaN."""
        async with self._asking:
            if time.monotonic() - self._asked_at < _FRESH_SECONDS:
                return
            await asyncio.gather(
                _patiently(self._ask_database, (OPEN_UPLOADS,)),
                _patiently(self._ask_disk, (FREE_DISK_BYTES, TRASH_BYTES)),
                _patiently(self._ask_integrity, (DAMAGED_BLOBS, KEPT_STRAYS, UNSCRUBBED_SECONDS)),
                _patiently(self._ask_events, self._event_gauges),
                _patiently(self._ask_data_directory, (REDIS_SET_ASIDE,)),
                _patiently(self._ask_redis, (PENDING_BYTES, *_QUEUE_GAUGES)),
            )
            self._asked_at = time.monotonic()

    async def _ask_database(self) -> None:
        OPEN_UPLOADS.set(await self._database.read(queries.count_all_open_uploads))

    async def _ask_disk(self) -> None:
        space = await self._storage.space()
        # A store without a bound has no figures that could fall: 0 would be an alert.
        FREE_DISK_BYTES.set(math.nan if space is None else space.free)
        TRASH_BYTES.set(math.nan if space is None else space.trash)

    async def _ask_integrity(self) -> None:
        seen = await self._integrity.look()
        DAMAGED_BLOBS.set(seen.damaged_blobs)
        KEPT_STRAYS.set(seen.kept_strays)
        UNSCRUBBED_SECONDS.set(seen.age.seconds)

    async def _ask_events(self) -> None:
        for name, state in (await self._watching.states()).items():
            WAITING_EVENTS.labels(name).set(state.waiting)
            DEAD_EVENTS.labels(name).set(state.dead)
            EVENT_LAG_SECONDS.labels(name).set(self._watching.lag_seconds(state))

    async def _ask_data_directory(self) -> None:
        REDIS_SET_ASIDE.set(len(await asyncio.to_thread(self._list_aside)))

    async def _ask_redis(self) -> None:
        measured = await self._pending.measure_all()
        for name, found in measured.items():
            QUEUE_TASKS.labels(name).set(found.tasks)
            QUEUE_LAG_SECONDS.labels(name).set(found.lag_seconds)
        PENDING_BYTES.set(sum(found.pending_bytes for found in measured.values()))


async def _patiently(ask: Callable[[], Awaitable[None]], gauges: tuple[Gauge, ...]) -> None:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await ask()
    except (UploaderError, TimeoutError):
        for gauge in gauges:
            gauge.set(math.nan)
