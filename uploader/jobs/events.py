"""Tells the sinks of events, and forgets old events."""

import logging
from collections.abc import Callable

from uploader.jobs.runner import Job, Pause
from uploader.runtime.clock import Clock
from uploader.service.events import Relay, Takeover, Watching

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 60.0
# For the sinks that could not be told meanwhile.
_GRACE_SECONDS = 3600.0
_BATCH = 500


def relay_job(relay: Relay) -> Job:
    """Make the job of a sink. With a job for each, no sink waits for another. A commit wakes all of them."""
    return Job(f"relay {relay.name}", relay.relay_due, wake_channel=wake_channel(relay.name))


def wake_channel(sink: str) -> str:
    return f"events {sink}"


_TAKEOVER_SECONDS = 5.0


def takeover_job(takeover: Takeover, wake: Callable[[], None]) -> Job:
    """Make the job that looks for dead processes of this node. `wake` wakes the relays."""

    async def run_once() -> float:
        if count := await takeover.take_over():
            logger.warning("deliveries of a process that died are told by this one", extra={"deliveries": count})
            wake()
        return _TAKEOVER_SECONDS

    return Job("takeover", run_once)


class EventKeeper:
    """Forgets old events. Several processes may run this job. After a start, an outage or a jump of the clock events
    may look old that no sink could be told of, so the relays have an hour first."""

    def __init__(self, watching: Watching, clock: Clock) -> None:
        self._watching = watching
        self._pause = Pause(
            "forgetting events", clock, grace_seconds=_GRACE_SECONDS, interval_seconds=_INTERVAL_SECONDS
        )

    async def run_once(self) -> float:
        if self._pause.active():
            return _INTERVAL_SECONDS
        forgotten, untaken = await self._watching.forget_old(_BATCH)
        if untaken:
            logger.error("events that no sink has taken are forgotten", extra={"deliveries": untaken})
        return 0.0 if forgotten == _BATCH else _INTERVAL_SECONDS
