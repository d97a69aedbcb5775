"""The health of the server's dependencies and of the stored contents, for load balancers, gauges and operators."""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from prometheus_client import Gauge

from uploader.accounting.pending import Pending
from uploader.accounting.probe import Probe
from uploader.database import migrate, queries
from uploader.database.engine import Database
from uploader.database.meta import Held, Mishap, durability, held_contents, recent_mishaps
from uploader.database.migrate import Schema
from uploader.domain import reasons
from uploader.domain.diagnosis import Diagnosis
from uploader.domain.reasons import Check, spell
from uploader.errors import UploaderError
from uploader.runtime import observability
from uploader.runtime.clock import Clock
from uploader.service.cleanup import kept_strays
from uploader.service.events import Watching
from uploader.service.installation import Installation
from uploader.service.reconcile import last_reconciled
from uploader.service.scrub import Age, Scrubbing
from uploader.service.secret import InstallationSecret
from uploader.storage.base import Housekeeping
from uploader.storage.store import Store
from uploader.units import format_duration


@dataclass(frozen=True, slots=True)
class Seen:
    damaged_blobs: int
    unreadable_blobs: int
    held: Held | None
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
        held = await self.database.read(held_contents)
        return Seen(damaged, unreadable, held, await kept_strays(self.database), await self.scrubbing.age())

    async def diagnoses(self) -> list[Diagnosis]:
        """Raises Unavailable."""
        seen, found = await self.look(), []
        if seen.damaged_blobs:
            found.append(reasons.DAMAGED_CONTENTS(count=seen.damaged_blobs))
        if seen.unreadable_blobs:
            found.append(reasons.UNREADABLE_CONTENTS(count=seen.unreadable_blobs))
        if seen.held is not None:
            found.append(reasons.CONTENTS_HELD(at=f"{seen.held.since:%Y-%m-%d %H:%M:%S} UTC"))
        elif seen.kept_strays:
            found.append(reasons.STRAYS_KEPT(count=seen.kept_strays))
        if not seen.age.within_goal:
            found.append(reasons.NOT_SCRUBBED(duration=format_duration(round(seen.age.seconds))))
        return found


# Returns diagnoses. Raises Unavailable.
Ask = Callable[[], Awaitable[list[Diagnosis]]]

# The limit for all checks together, so that an answer comes even if a store hangs.
_PATIENCE_SECONDS = 5.0
# How long an answer is reused, because load balancers ask all day. Contents are cheap to check, and their news matter.
_FRESH_SECONDS = 60.0
_FRESH_CONTENT_SECONDS = 5.0
# How old the last check of the store may be.
_STORAGE_CHECK_SECONDS = 0.5
# A slow write, in seconds, and the number in a row that counts as a slow disk: a burst of writes may slow one of them.
_SLOW_SECONDS = 3.0
_SLOW_TIMES = 2


@dataclass(eq=False)
class Start:
    """The start of this process: why it waits, and why it failed for good."""

    waits_for: str | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The health of a part. `reason`: the failure, or a risk for data although the part works."""

    ok: bool
    reason: str | None = None


@dataclass(eq=False, repr=False)
class Health:
    # `list_aside`: returns the directories that the embedded Valkey could not load; blocks. `asks`: further sources of
    # diagnoses.
    database: Database
    storage: Store
    pending: Pending
    probe: Probe
    integrity: Integrity
    installation: Installation
    secret: InstallationSecret
    watching: Watching
    list_aside: Callable[[], Sequence[Path]]
    clock: Clock
    start: Start
    asks: Mapping[Check, Sequence[Ask]] = field(default_factory=dict)
    _told: dict[Check, tuple[float, list[Diagnosis]]] = field(default_factory=dict, init=False)
    # One question for each check at a time.
    _asking: defaultdict[Check, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock), init=False)
    # The last write to the store, which may hang; only one at a time.
    _probing: "asyncio.Future[None] | None" = field(default=None, init=False)
    _probed_until: float = field(default=-math.inf, init=False)
    # The durations of the last slow writes in a row.
    _slow_seconds: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._checks = {
            Check.DATABASE: self._check_database,
            Check.REDIS: self._check_redis,
            Check.STORAGE: self._check_storage,
        }
        own: dict[Check, Ask] = {
            Check.DATABASE: self._database_settings,
            Check.REDIS: self._redis_settings,
            Check.STORAGE: self._doubts,
            Check.CONTENT: self.integrity.diagnoses,
            Check.EVENTS: self.watching.diagnoses,
        }
        self._asks = {each: [*([own[each]] if each in own else []), *self.asks.get(each, ())] for each in Check}

    async def check(self) -> dict[str, Finding]:
        """Check each part. Some parts are left out if there is nothing to report. A setting that is not durable, or a
        damaged content, is reported beside `ok`, because it is no reason to send requests elsewhere."""
        if self.start.waits_for is not None:
            return {"start": Finding(False, f"the start waits: {self.start.waits_for}")}
        until = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        found = dict(zip(Check, await asyncio.gather(*(self._find(each, until) for each in Check)), strict=True))
        always = {*self._checks, Check.CONTENT, *([Check.EVENTS] if self.watching.listeners else [])}
        return {each.value: finding for each, finding in found.items() if each in always or finding.reason}

    async def _find(self, check: Check, until: float) -> Finding:
        if check in self._checks:
            try:
                async with asyncio.timeout_at(until):
                    await self._checks[check]()
            except (UploaderError, TimeoutError) as error:
                late = f"it did not answer within {_PATIENCE_SECONDS:.0f} s"
                detail = error.detail.rstrip(".") if isinstance(error, UploaderError) else late
                is_away = check is Check.REDIS and self.probe.diagnosis_of(error) is None
                seen = [] if is_away else self._seen(check)
                return Finding(False, spell(seen or [reasons.FAILS[check](detail=detail)]))
        return Finding(True, spell([*self._seen(check), *await self._asked(check, until)]))

    def _seen(self, check: Check) -> list[Diagnosis]:
        """Return what this process has noticed itself, without asking."""
        if check is Check.DATABASE and self.database.damage is not None:
            return [reasons.DATABASE_DAMAGED(how=self.database.damage)]
        if check is Check.DATABASE and self.database.odd_modes:
            return [reasons.SQL_MODE_CHANGED(how=self.database.odd_modes)]
        if check is Check.DATABASE and self.database.lacks_room is not None:
            return [reasons.DATABASE_FULL(how=self.database.lacks_room)]
        if check is Check.DATABASE and self.database.crowd is not None:
            return [reasons.DATABASE_BUSY(how=self.database.crowd)]
        if check is Check.REDIS and self.probe.refusals.diagnosis is not None:
            return [self.probe.refusals.diagnosis]
        if check is not Check.STORAGE:
            return []
        found, ballast = [], self.storage.ballast
        if ballast is not None and ballast.is_used:
            found.append(reasons.BALLAST_USED())
        elif self.storage.is_full:
            found.append(reasons.DISK_FULL())
        if len(self._slow_seconds) >= _SLOW_TIMES:
            found.append(reasons.DISK_SLOW(seconds=f"{self._slow_seconds[-1]:.1f}"))
        return found

    async def _asked(self, check: Check, until: float) -> list[Diagnosis]:
        """Ask, unless the last answer is fresh. If the question fails, the last answer counts as fresh: a slow question
        would only be asked again and again."""
        fresh_seconds = _FRESH_CONTENT_SECONDS if check is Check.CONTENT else _FRESH_SECONDS
        known = self._told.get(check, (-math.inf, []))[1]
        try:
            async with asyncio.timeout_at(until), self._asking[check]:
                asked_at, known = self._told.get(check, (-math.inf, []))
                if time.monotonic() - asked_at >= fresh_seconds:
                    known = [each for ask in self._asks[check] for each in await ask()]
                    self._told[check] = (time.monotonic(), known)
        except (UploaderError, TimeoutError):
            self._told[check] = (time.monotonic(), known)
        return known

    # Dependencies

    async def _check_database(self) -> None:
        await self.database.look()
        await self.database.check_writable()
        await migrate.check(self.database)
        await self.installation.check_database()
        await self.secret.check()

    async def _check_redis(self) -> None:
        """Run the probe, which needs all rights of chunks and jobs."""
        await self.probe.run()
        await self.installation.check_redis()

    async def _check_storage(self) -> None:
        """Write to the store. Only one check runs at a time, and never right after another, because a check that hangs
        occupies a thread."""
        probing = self._probing
        if probing is None or (probing.done() and time.monotonic() > self._probed_until):
            self._probing = probing = asyncio.ensure_future(self._probe())
            probing.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be waiting for it
        await asyncio.shield(probing)

    async def _probe(self) -> None:
        began = time.monotonic()
        try:
            await self.storage.check()
        finally:
            now = time.monotonic()
            self._probed_until = now + _STORAGE_CHECK_SECONDS
            self._slow_seconds = [*self._slow_seconds[-1:], now - began] if now - began > _SLOW_SECONDS else []

    # Diagnoses

    async def _database_settings(self) -> list[Diagnosis]:
        schema = await migrate.schema_of(self.database)
        return diagnoses_of_schema(schema) + diagnoses_of_durability(await self.database.read(durability))

    async def _doubts(self) -> list[Diagnosis]:
        found = [] if self.storage.doubt is None else [reasons.FILESYSTEM_DOUBTFUL(doubt=self.storage.doubt)]
        with suppress(UploaderError):  # the database has its own check
            found += diagnoses_of_mishaps(await self.database.read(recent_mishaps, self.clock.now()))
        return found

    async def _redis_settings(self) -> list[Diagnosis]:
        found = diagnoses_of_redis_settings(await self.pending.configuration(*REDIS_SETTINGS))
        found += await self.probe.diagnoses()
        return found + diagnoses_of_aside(await asyncio.to_thread(self.list_aside))


def diagnoses_of_schema(schema: Schema) -> list[Diagnosis]:
    return [reasons.SCHEMA_AHEAD(revision=schema.revision)] if schema.is_ahead else []


def diagnoses_of_durability(found: Mapping[str, str]) -> list[Diagnosis]:
    """Report settings of MySQL or MariaDB by which a commit may not survive a power cut."""
    wanted = {"innodb_flush_log_at_trx_commit": ("1",)}
    if found.get("log_bin") == "1":
        wanted["sync_binlog"] = ("1",)
    return [reasons.NOT_DURABLE(setting=odd) for odd in odd_settings(found, wanted)]


def diagnoses_of_mishaps(mishaps: Mapping[Mishap, datetime]) -> list[Diagnosis]:
    return [reasons.MISHAP(mishap=mishap, at=f"{at:%Y-%m-%dT%H:%M:%SZ}") for mishap, at in mishaps.items()]


def diagnoses_of_aside(aside: Sequence[Path]) -> list[Diagnosis]:
    return [reasons.REDIS_ASIDE(names=", ".join(path.name for path in aside))] if aside else []


# The right values. Without `noeviction` Redis may lose accounts; without the others more is rebuilt after a crash.
REDIS_SETTINGS = {"appendonly": ("yes",), "appendfsync": ("everysec", "always"), "maxmemory-policy": ("noeviction",)}


def diagnoses_of_redis_settings(found: Mapping[str, str]) -> list[Diagnosis]:
    """Report settings of Redis with wrong values. Without `noeviction` Redis may drop keys; without the other settings
    more is rebuilt after a crash."""
    odd = {name: odd_settings(found, {name: values}) for name, values in REDIS_SETTINGS.items()}
    return [
        (reasons.REDIS_EVICTS if name == "maxmemory-policy" else reasons.REDIS_FORGETS)(setting=setting)
        for name, settings in odd.items()
        for setting in settings
    ]


def odd_settings(found: Mapping[str, str], wanted: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the settings of a server with wrong values. Skip settings that the server does not report."""
    return [
        f"{name} is {found[name]}, not {' or '.join(values)}"
        for name, values in wanted.items()
        if name in found and found[name] not in values
    ]


# Callers who ask more often get the last figures, because everybody may ask.
_GAUGES_FRESH_SECONDS = 1.0
_GAUGES_PATIENCE_SECONDS = 3.0

_QUEUE_GAUGES = tuple(
    gauge.labels(name)
    for gauge in (observability.QUEUE_TASKS, observability.QUEUE_LAG_SECONDS)
    for name in ("flush", "merge")
)


@dataclass(eq=False, repr=False)
class Gauges:
    """Sets the gauges that have the same value in every process."""

    # `list_aside`: returns the directories that the embedded Valkey could not load; blocks.
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
            for name in self.watching.listeners
        )
        self._asked_at = float("-inf")

    async def observe(self) -> None:
        """Measure, unless the last figures are fresh. A failed measure shows as NaN."""
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
        # A store without a limit has no such figures: 0 would raise an alert.
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
