"""Recovers a Redis that refuses requests: probes Redis until requests work again, and restarts an embedded Valkey.
After a failed fsync of the append-only file, Valkey refuses writes until a restart (MISCONF).

A Redis that refuses nothing is not probed, and an external one is never restarted. A restart loses nothing: the era
changes, and each upload is rebuilt from disk and database.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from uploader.accounting.probe import Probe
from uploader.accounting.redis import asking
from uploader.errors import Unavailable

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
# Nothing is refused; a bell ends the sleep.
_IDLE_SECONDS = 600.0
# How long Redis may refuse writes before the first restart, and at most before later restarts.
_PATIENCE_SECONDS, _MAX_PATIENCE_SECONDS = 5.0, 40.0


@dataclass(eq=False, repr=False)
class RedisRecovery:
    probe: Probe
    # Ends the embedded Valkey, if this is still the same run; its owner then starts it again. Blocks. None: Redis is
    # external.
    restart: Callable[[str], None] | None
    _: KW_ONLY
    monotonic: Callable[[], float] = time.monotonic
    # The run of the engine that refuses writes, and since when.
    _run_id: str = field(default="", init=False)
    _since: float = field(default=0.0, init=False)
    _patience_seconds: float = field(default=_PATIENCE_SECONDS, init=False)

    async def look(self) -> float:
        """Probe Redis if it refuses requests. Return the seconds until the next look."""
        refusals = self.probe.refusals
        if not refusals.lasts:
            self._run_id, self._patience_seconds = "", _PATIENCE_SECONDS
            return _IDLE_SECONDS
        try:
            await self.probe.run()
        except Unavailable as error:
            if refusals.is_misconf and self.restart is not None:
                await self._restart_in_time(self.restart, error)
        return _LOOK_SECONDS

    async def _restart_in_time(self, restart: Callable[[str], None], error: Unavailable) -> None:
        """Restart the engine after the same run has refused writes for long enough. Each process decides for itself:
        after a restart by another process, the run is a new one."""
        try:
            with asking(self.probe.redis):
                told: dict[str, Any] = await self.probe.redis.info("server")
        except Unavailable:
            return
        now, run_id = self.monotonic(), str(told.get("run_id"))
        if run_id != self._run_id:
            self._run_id, self._since = run_id, now
        if now - self._since < self._patience_seconds:
            return
        level = logging.WARNING if self._patience_seconds == _PATIENCE_SECONDS else logging.DEBUG
        logger.log(level, "embedded Valkey can't write, and is restarted", extra={"reason": error.reason})
        self._since, self._patience_seconds = now, min(2 * self._patience_seconds, _MAX_PATIENCE_SECONDS)
        await asyncio.to_thread(restart, run_id)
