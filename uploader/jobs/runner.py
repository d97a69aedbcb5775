"""The loop that runs a job again and again: it stops when told, spreads out, backs off, and says so once."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from uploader.errors import Unavailable

logger = logging.getLogger(__name__)

_MAX_BACKOFF_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Job:
    """`run_once` returns how long to sleep, in seconds; 0 to go on at once."""

    name: str
    run_once: Callable[[], Awaitable[float]]


class Runner:
    """Runs jobs until `stop`. A job that fails is tried again; losing Redis or the database ends nothing."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = jobs
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._loop(job), name=f"job {job.name}") for job in self._jobs]

    async def stop(self) -> None:
        """Let each job end what it is doing."""
        self._stopping.set()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _loop(self, job: Job) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                delay = await job.run_once()
                if failures:
                    logger.info("job works again", extra={"job": job.name, "failures": failures})
                failures = 0
                delay *= random.uniform(0.9, 1.0)  # noqa: S311 (jitter)
            except Exception as error:
                failures += 1
                if failures == 1:
                    _say(job, error)
                delay = min(0.1 * 2 ** min(failures, 10), _MAX_BACKOFF_SECONDS) * random.uniform(0.5, 1.0)  # noqa: S311
            await self._sleep(delay)

    async def _sleep(self, delay_seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), delay_seconds)
        except TimeoutError:
            return


def _say(job: Job, error: Exception) -> None:
    if isinstance(error, Unavailable):
        logger.warning("job waits for what it needs", extra={"job": job.name, "reason": error.detail})
    else:
        logger.error("job failed, and is tried again", extra={"job": job.name}, exc_info=error)
