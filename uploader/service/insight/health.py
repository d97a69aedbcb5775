"""Whether what the server depends on works: for load balancers, and for the person who asks why it does not."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from uploader.accounting.pending import Pending
from uploader.clock import Clock
from uploader.database import migrate
from uploader.database.engine import Database
from uploader.database.meta import durability, recent_mishaps
from uploader.errors import Unavailable, UploaderError
from uploader.service.events.watching import Watching
from uploader.service.insight.integrity import Integrity
from uploader.service.installation import Installation
from uploader.storage.store import Store

_PATIENCE_SECONDS = 5.0
# How long what the servers say of their settings is believed: load balancers ask all day.
_FRESH_SECONDS = 60.0
# How old an answer of the disk may be.
_STORAGE_CHECK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a part works, and what is to be said of it: why it does not, or what could lose data though it does."""

    ok: bool
    reason: str | None = None


class Health:
    """Asks the disk, Redis and the database."""

    def __init__(
        self,
        database: Database,
        storage: Store,
        pending: Pending,
        integrity: Integrity,
        installation: Installation,
        watching: Watching,
        list_aside: Callable[[], Sequence[Path]],
        clock: Clock,
    ) -> None:
        """`list_aside`: the directories of Redis that it could not load; blocks."""
        self._list_aside = list_aside
        self._clock = clock
        self._watching = watching
        self._installation = installation
        self._database = database
        self._storage = storage
        self._pending = pending
        self._integrity = integrity
        self._warnings: dict[str, tuple[float, str | None]] = {}
        # One question of a kind at a time.
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._storage_lock = asyncio.Lock()
        self._storage_failure: UploaderError | None = None
        self._storage_checked_at = float("-inf")

    async def check(self) -> dict[str, Finding]:
        """For each part, how it is. A setting that is not as durable as it should be is a warning, and `ok`."""
        database, redis, storage, content = await asyncio.gather(
            self._find("database", self._check_database, self._database_warning),
            self._find("redis", self._installation.check_redis, self._redis_warning),
            self._find("storage", self._check_storage, self._storage_warning),
            self._warned("content", self._integrity.warning),
        )
        found = {"database": database, "redis": redis, "storage": storage, "content": content}
        events = await self._warned("events", self._watching.warning) if database.ok else Finding(True)
        return found | ({"events": events} if self._watching.names or events.reason else {})

    async def _warned(self, name: str, warn: Callable[[], Awaitable[str | None]]) -> Finding:
        """Damaged content, or an event that nobody takes, is no reason to send requests elsewhere; nor is that nobody can
        tell now: then nobody is asked for a while, because what takes too long would only be begun again and again."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return Finding(True, await self._warning(name, warn))
        except (UploaderError, TimeoutError):
            self._warnings[name] = (time.monotonic(), None)
            return Finding(True)

    async def _find(
        self, name: str, check: Callable[[], Awaitable[None]], warn: Callable[[], Awaitable[str | None]] | None = None
    ) -> Finding:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await check()
                return Finding(True, await self._warning(name, warn) if warn else None)
        except UploaderError as error:
            return Finding(False, error.detail)
        except TimeoutError:
            return Finding(False, f"It did not answer within {_PATIENCE_SECONDS:.0f} s.")

    async def _warning(self, name: str, warn: Callable[[], Awaitable[str | None]]) -> str | None:
        async with self._asking[name]:
            asked_at, warning = self._warnings.get(name, (float("-inf"), None))
            if time.monotonic() - asked_at >= _FRESH_SECONDS:
                warning = await warn()
                self._warnings[name] = (time.monotonic(), warning)
            return warning

    async def _check_database(self) -> None:
        await self._database.look()
        await self._database.check_writable()
        await migrate.check(self._database)
        await self._installation.check_database()

    async def _check_storage(self) -> None:
        """However often it is asked, one check runs at a time, and none right after another: it is a write."""
        async with self._storage_lock:
            if time.monotonic() > self._storage_checked_at + _STORAGE_CHECK_SECONDS:
                self._storage_failure = None
                try:
                    await self._storage.check()
                except UploaderError as error:
                    self._storage_failure = error
                self._storage_checked_at = time.monotonic()
        if self._storage_failure is not None:
            raise self._storage_failure

    async def _database_warning(self) -> str | None:
        found = await self._database.read(durability)
        wanted = {"innodb_flush_log_at_trx_commit": ("1",)}
        if found.get("log_bin") == "1":
            wanted["sync_binlog"] = ("1",)
        return _warning_of(found, wanted)

    async def _storage_warning(self) -> str | None:
        mishaps: list[str] = []
        with suppress(Unavailable):  # the database is a check of its own
            mishaps = await self._database.read(lambda connection: recent_mishaps(connection, self._clock.now()))
        return "; ".join(filter(None, (self._storage.doubt, *mishaps))) or None

    async def _redis_warning(self) -> str | None:
        wanted = {"appendonly": ("yes",), "appendfsync": ("everysec", "always"), "maxmemory-policy": ("noeviction",)}
        odd = _warning_of(await self._pending.configuration(*wanted), wanted)
        aside = [path.name for path in await asyncio.to_thread(self._list_aside)]
        lost = f"could not be loaded, all was rebuilt; find out why, and remove: {', '.join(aside)}" if aside else None
        return "; ".join(filter(None, (odd, lost))) or None


def _warning_of(found: Mapping[str, str], wanted: Mapping[str, tuple[str, ...]]) -> str | None:
    """What is set otherwise than it should be; what the server does not tell is not held against it."""
    odd = [
        f"{name} is {found[name]}, not {' or '.join(values)}"
        for name, values in wanted.items()
        if name in found and found[name] not in values
    ]
    return "; ".join(odd) or None
