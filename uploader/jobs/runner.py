"""The loop that runs jobs: repeats, spreads them out, backs off after failures, logs each failure once, and stops when
told."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import floor

from uploader.errors import ConfigurationError, Unavailable, UploaderError
from uploader.runtime.bell import Bell
from uploader.runtime.clock import Clock
from uploader.runtime.tasks import ended
from uploader.service.audit_log import Actor, Via, actor_of_context

logger = logging.getLogger(__name__)

_LAST_RUN_SECONDS = 0.5
# Short, because accounting has to continue within 5 s after the stores are back.
_MAX_BACKOFF_SECONDS = 3.0


# Longer sleeps end at a tick of the process, because many jobs then wake the process only once. Each process ticks at
# another moment, to spread the load on the stores.
_TICK_SECONDS = 1.0
_FIRST_TICK = random.random()  # noqa: S311 (jitter)


def last_tick(until: float) -> float:
    return floor((until - _FIRST_TICK) / _TICK_SECONDS) * _TICK_SECONDS + _FIRST_TICK


@dataclass(frozen=True, slots=True)
class Job:
    """A job. `run_once` returns the seconds to sleep; 0 to continue at once. An announcement on `wake_channel` ends the
    sleep."""

    name: str
    run_once: Callable[[], Awaitable[float]]
    wake_channel: str | None = None
    first_delay_seconds: float = 0.0


class Runner:
    """Runs jobs until `stop`. A failed job is tried again, even after a loss of Redis or the database."""

    def __init__(self, jobs: list[Job], bells: Mapping[str, Bell] | None = None) -> None:
        """`bells`: the bell of each wake channel."""
        self._bells = {job: (bells or {}).get(job.wake_channel or "", Bell()) for job in jobs}
        self._stopping = False
        # The reason why each waiting job waits.
        self._waits: dict[Job, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._loop(job, bell), name=f"job {job.name}") for job, bell in self._bells.items()
        ]

    async def stop(self) -> None:
        """Let each job end a short run, then cancel the job. Work that must not be left half done is
        `uninterrupted`, so a job of many items ends between two items."""
        self._stopping = True
        for bell in self._bells.values():
            bell.ring()
        if self._tasks:
            _, busy = await asyncio.wait(self._tasks, timeout=_LAST_RUN_SECONDS)
            await asyncio.gather(*map(ended, busy))

    async def _loop(self, job: Job, bell: Bell) -> None:
        by = Actor(Via.JOB, job.name)
        actor_of_context.set(lambda: by)  # for this task alone
        failures, is_told = 0, True
        if job.first_delay_seconds:
            await self._sleep(bell, bell.rings, job.first_delay_seconds)
        while True:
            rings = bell.rings  # read before the run: an announcement during the run ends the sleep
            if self._stopping:
                return
            try:
                delay = await job.run_once()
                if failures:
                    level = logging.DEBUG if is_told else logging.INFO
                    logger.log(level, "job works again", extra={"job": job.name, "failures": failures})
                failures, is_told = 0, True
                if (reason := self._waits.get(job)) is not None:
                    # The store is back: forget the reason for all jobs. If the store fails again, the reason is logged
                    # again.
                    self._waits = {other: why for other, why in self._waits.items() if why != reason}
            except Exception as error:
                failures += 1
                is_told = is_told and isinstance(error, UploaderError) and error.is_told
                if failures == 1:
                    self._say(job, error)
                delay = min(0.1 * 2 ** min(failures, 10), _MAX_BACKOFF_SECONDS) * random.uniform(0.5, 1.0)  # noqa: S311
            await self._sleep(bell, rings, delay)

    async def _sleep(self, bell: Bell, rings: int, delay_seconds: float) -> None:
        until = asyncio.get_running_loop().time() + delay_seconds
        await bell.listen(rings, until if delay_seconds < _TICK_SECONDS else last_tick(until))

    def _say(self, job: Job, error: Exception) -> None:
        if isinstance(error, Unavailable):
            # A store that is away is away for all jobs.
            is_known = error.reason in self._waits.values() or (error.is_told and bool(self._waits))
            level = logging.DEBUG if is_known else logging.WARNING
            self._waits[job] = error.reason
            logger.log(level, "job waits for what it needs", extra={"job": job.name, "reason": error.reason})
        elif isinstance(error, ConfigurationError):
            logger.error("job does not run until this is put right", extra={"job": job.name, "reason": error.reason})
        else:
            logger.error("job failed, and is tried again", extra={"job": job.name}, exc_info=error)


# More than the drift or correction of the wall clock between two looks.
_JUMP_SECONDS = 60.0


class Pause:
    """Holds back work that depends on age: after a start or an outage, when clients could not send chunks, and after a
    jump of the clock. Ask `active` before every run. The pause lasts `grace_seconds` from its last cause."""

    def __init__(self, what: str, clock: Clock, *, grace_seconds: float, interval_seconds: float) -> None:
        """`interval_seconds`: the expected time between runs. Many missed runs count as an outage."""
        self._what = what
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._outage_seconds = max(3 * interval_seconds, _JUMP_SECONDS)
        self._ends_at = clock.monotonic() + grace_seconds
        self._last = (clock.now().timestamp(), clock.monotonic())

    def active(self) -> bool:
        """Return whether to wait. A suspended machine shows as a jump of the clock, runs that failed for long show as
        an outage."""
        wall, steady = self._clock.now().timestamp(), self._clock.monotonic()
        wall_passed, steady_passed = wall - self._last[0], steady - self._last[1]
        self._last = (wall, steady)
        if steady_passed > self._outage_seconds or abs(wall_passed - steady_passed) > _JUMP_SECONDS:
            logger.warning("pauses after an outage or a jump of the clock", extra={"paused": self._what})
            self._ends_at = steady + self._grace_seconds
        return steady < self._ends_at
