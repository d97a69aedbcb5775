"""The health of what the server depends on, and of what is stored: for load balancers, for gauges,
and for the person who asks why not."""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import Gauge

from uploader import observability
from uploader.accounting.pending import Pending
from uploader.clock import Clock
from uploader.database import migrate, queries
from uploader.database.engine import Database
from uploader.database.meta import durability, recent_mishaps
from uploader.domain.diagnosis import Diagnosis, Subject, error, warning
from uploader.errors import Unavailable, UploaderError
from uploader.service.cleanup import kept_strays
from uploader.service.events import Watching
from uploader.service.installation import Installation
from uploader.service.reconcile import last_reconciled
from uploader.service.scrub import Age, Scrubbing
from uploader.storage.base import Housekeeping
from uploader.storage.store import Store
from uploader.units import format_duration


@dataclass(frozen=True, slots=True)
class Seen:
    damaged_blobs: int
    unreadable_blobs: int
    kept_strays: int
    age: Age


@dataclass(eq=False, repr=False)
class Integrity:
    database: Database
    scrubbing: Scrubbing

    async def look(self) -> Seen:
        """Raises Unavailable."""
        damaged = await self.database.read(queries.count_damaged_blobs)
        unreadable = await self.database.read(queries.count_unreadable_blobs)
        return Seen(damaged, unreadable, await kept_strays(self.database), await self.scrubbing.age())

    async def diagnoses(self) -> list[Diagnosis]:
        """Raises Unavailable."""
        seen, found = await self.look(), []
        if seen.damaged_blobs:
            what = f"damaged contents: {seen.damaged_blobs}"
            found.append(error(Subject.CONTENT, what, "see `uploader scrub`"))
        if seen.unreadable_blobs:
            what = f"contents that can't be read: {seen.unreadable_blobs}"
            found.append(error(Subject.CONTENT, what, "see the log"))
        if seen.kept_strays:
            what = f"blobs that no row names: {seen.kept_strays}, too many to be what crashes left"
            do = "is this their database? `uploader cleanup --yes` puts them away"
            found.append(warning(Subject.CONTENT, what, do))
        if not seen.age.within_goal:
            what = f"a content was not read back for {format_duration(round(seen.age.seconds))}"
            found.append(warning(Subject.CONTENT, what, "raise UPLOADER_SCRUB_RATE, or let a worker run"))
        return found

    async def warning(self) -> str | None:
        """Raises Unavailable."""
        return "; ".join(f"{each.what}, {each.do}" for each in await self.diagnoses()) or None


Warn = Callable[[], Awaitable[str | None]]

_PATIENCE_SECONDS = 5.0
# How long what the servers say of their settings is believed: load balancers ask all day.
_FRESH_SECONDS = 60.0
# How old an answer of the disk may be.
_STORAGE_CHECK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Finding:
    """The health of a part, and the reason: why it does not work, or what could lose data though it does."""

    ok: bool
    reason: str | None = None


@dataclass(eq=False, repr=False)
class Health:
    # `list_aside`: the directories of Redis that it could not load; blocks.
    database: Database
    storage: Store
    pending: Pending
    integrity: Integrity
    installation: Installation
    watching: Watching
    list_aside: Callable[[], Sequence[Path]]
    clock: Clock
    _warnings: dict[str, tuple[float, str | None]] = field(default_factory=dict, init=False)
    # One question of a kind at a time.
    _asking: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock), init=False)
    _storage_lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _storage_failure: UploaderError | None = field(default=None, init=False)
    _storage_checked_at: float = field(default=-math.inf, init=False)

    async def check(self) -> dict[str, Finding]:
        """Tell for each part how it is. A setting that is not as durable as it should be is a warning, and `ok`."""
        database, redis, storage, content = await asyncio.gather(
            self._find("database", self._check_database, self._database_warning),
            self._find("redis", self.installation.check_redis, self._redis_warning),
            self._find("storage", self._check_storage, self._storage_warning),
            self._warned("content", self.integrity.warning),
        )
        found = {"database": database, "redis": redis, "storage": storage, "content": content}
        events = await self._warned("events", self.watching.warning) if database.ok else Finding(True)
        return found | ({"events": events} if self.watching.names or events.reason else {})

    async def _warned(self, name: str, warn: Warn) -> Finding:
        """Damaged content, or an event that nobody takes, is no reason to send requests elsewhere; nor is that nobody can
        tell now: then nobody is asked for a while, because what takes too long would only be begun again and again."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return Finding(True, await self._warning(name, warn))
        except (UploaderError, TimeoutError):
            self._warnings[name] = (time.monotonic(), None)
            return Finding(True)

    async def _find(self, name: str, check: Callable[[], Awaitable[None]], warn: Warn) -> Finding:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await check()
                return Finding(True, await self._warning(name, warn))
        except UploaderError as error:
            return Finding(False, error.detail)
        except TimeoutError:
            return Finding(False, f"It did not answer within {_PATIENCE_SECONDS:.0f} s.")

    async def _warning(self, name: str, warn: Warn) -> str | None:
        async with self._asking[name]:
            asked_at, warning = self._warnings.get(name, (float("-inf"), None))
            if time.monotonic() - asked_at >= _FRESH_SECONDS:
                warning = await warn()
                self._warnings[name] = (time.monotonic(), warning)
            return warning

    async def _check_database(self) -> None:
        await self.database.look()
        await self.database.check_writable()
        await migrate.check(self.database)
        await self.installation.check_database()

    async def _check_storage(self) -> None:
        """However often it is asked, one check runs at a time, and none right after another: it is a write."""
        async with self._storage_lock:
            if time.monotonic() > self._storage_checked_at + _STORAGE_CHECK_SECONDS:
                self._storage_failure = None
                try:
                    await self.storage.check()
                except UploaderError as error:
                    self._storage_failure = error
                self._storage_checked_at = time.monotonic()
        if self._storage_failure is not None:
            raise self._storage_failure

    async def _database_warning(self) -> str | None:
        found = await self.database.read(durability)
        return "; ".join(not_durable(found)) or None

    async def _storage_warning(self) -> str | None:
        mishaps: list[str] = []
        with suppress(Unavailable):  # the database is a check of its own
            mishaps = await self.database.read(recent_mishaps, self.clock.now())
        return "; ".join(filter(None, (self.storage.doubt, *mishaps))) or None

    async def _redis_warning(self) -> str | None:
        odd = "; ".join(odd_settings(await self.pending.configuration(*REDIS_SETTINGS), REDIS_SETTINGS))
        aside = [path.name for path in await asyncio.to_thread(self.list_aside)]
        lost = f"could not be loaded, all was rebuilt; find out why, and remove: {', '.join(aside)}" if aside else None
        return "; ".join(filter(None, (odd, lost))) or None


def not_durable(found: Mapping[str, str]) -> list[str]:
    """Return the settings of a MySQL or MariaDB by which a commit does not survive a power cut."""
    wanted = {"innodb_flush_log_at_trx_commit": ("1",)}
    if found.get("log_bin") == "1":
        wanted["sync_binlog"] = ("1",)
    return odd_settings(found, wanted)


# Each as it should be. Without the last Redis may forget accounts; without the others it is rebuilt after a crash.
REDIS_SETTINGS = {"appendonly": ("yes",), "appendfsync": ("everysec", "always"), "maxmemory-policy": ("noeviction",)}


def odd_settings(found: Mapping[str, str], wanted: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the settings of a server that are not as they should be; those that it does not tell are passed over."""
    return [
        f"{name} is {found[name]}, not {' or '.join(values)}"
        for name, values in wanted.items()
        if name in found and found[name] not in values
    ]


# Who asks more often gets the figures of a moment ago: asking is open to everybody.
_GAUGES_FRESH_SECONDS = 1.0
_GAUGES_PATIENCE_SECONDS = 3.0

_QUEUE_GAUGES = tuple(
    gauge.labels(name)
    for gauge in (observability.QUEUE_TASKS, observability.QUEUE_LAG_SECONDS)
    for name in ("flush", "merge")
)


@dataclass(eq=False, repr=False)
class Gauges:
    """Sets the gauges that are the same whichever process is asked."""

    # `list_aside`: the directories of Redis that it could not load; blocks.
    database: Database
    storage: Housekeeping
    pending: Pending
    integrity: Integrity
    watching: Watching
    list_aside: Callable[[], Sequence[Path]]
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def __post_init__(self) -> None:
        self._event_gauges = tuple(
            gauge.labels(name)
            for gauge in (observability.WAITING_EVENTS, observability.DEAD_EVENTS, observability.EVENT_LAG_SECONDS)
            for name in self.watching.names
        )
        self._asked_at = float("-inf")

    async def observe(self) -> None:
        """Ask, unless that was done a moment ago. What can't be asked is shown as NaN."""
        async with self._asking:
            if time.monotonic() - self._asked_at < _GAUGES_FRESH_SECONDS:
                return
            await asyncio.gather(
                _patiently(self._ask_database, (observability.OPEN_UPLOADS,)),
                _patiently(self._ask_disk, (observability.FREE_DISK_BYTES, observability.TRASH_BYTES)),
                _patiently(
                    self._ask_integrity,
                    (
                        *(observability.DAMAGED_BLOBS, observability.KEPT_STRAYS),
                        *(observability.UNSCRUBBED_SECONDS, observability.DRIFTS),
                    ),
                ),
                _patiently(self._ask_events, self._event_gauges),
                _patiently(self._ask_data_directory, (observability.REDIS_SET_ASIDE,)),
                _patiently(self._ask_redis, (observability.PENDING_BYTES, *_QUEUE_GAUGES)),
            )
            self._asked_at = time.monotonic()

    async def _ask_database(self) -> None:
        observability.OPEN_UPLOADS.set(await self.database.read(queries.count_all_open_uploads))

    async def _ask_disk(self) -> None:
        space = await self.storage.space()
        # A store without a bound has no figures that could fall: 0 would be an alert.
        observability.FREE_DISK_BYTES.set(math.nan if space is None else space.free)
        observability.TRASH_BYTES.set(math.nan if space is None else space.trash)

    async def _ask_integrity(self) -> None:
        seen = await self.integrity.look()
        observability.DAMAGED_BLOBS.set(seen.damaged_blobs)
        observability.KEPT_STRAYS.set(seen.kept_strays)
        observability.UNSCRUBBED_SECONDS.set(seen.age.seconds)
        last = await self.database.read(last_reconciled)
        observability.DRIFTS.set(math.nan if last is None else last.drifts)

    async def _ask_events(self) -> None:
        for name, state in (await self.watching.states()).items():
            observability.WAITING_EVENTS.labels(name).set(state.waiting)
            observability.DEAD_EVENTS.labels(name).set(state.dead)
            observability.EVENT_LAG_SECONDS.labels(name).set(self.watching.lag_seconds(state))

    async def _ask_data_directory(self) -> None:
        observability.REDIS_SET_ASIDE.set(len(await asyncio.to_thread(self.list_aside)))

    async def _ask_redis(self) -> None:
        measured = await self.pending.measure_all()
        for name, found in measured.items():
            observability.QUEUE_TASKS.labels(name).set(found.tasks)
            observability.QUEUE_LAG_SECONDS.labels(name).set(found.lag_seconds)
        observability.PENDING_BYTES.set(sum(found.pending_bytes for found in measured.values()))


async def _patiently(ask: Callable[[], Awaitable[None]], gauges: tuple[Gauge, ...]) -> None:
    try:
        async with asyncio.timeout(_GAUGES_PATIENCE_SECONDS):
            await ask()
    except (UploaderError, TimeoutError):
        for gauge in gauges:
            gauge.set(math.nan)
