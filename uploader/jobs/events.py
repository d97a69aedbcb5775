"""Tells the sinks of events, and forgets those that are old."""

import logging
from collections.abc import Callable

from uploader.jobs.runner import Job, Pause
from uploader.runtime.clock import Clock
from uploader.service.events import Relay, Takeover, Watching

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 60.0
# For those who were to be told meanwhile.
_GRACE_SECONDS = 3600.0
_BATCH = 500


def relay_job(relay: Relay) -> Job:
    """Make the job of one sink, so that none waits for another; a commit wakes them all."""
    return Job(f"relay {relay.name}", relay.relay_due, wake_channel=wake_channel(relay.name))


def wake_channel(sink: str) -> str:
    return f"events {sink}"


_TAKEOVER_SECONDS = 5.0


def takeover_job(takeover: Takeover, wake: Callable[[], None]) -> Job:
    """Make the job that looks for processes of this node that died; `wake` wakes the relays."""

    async def run_once() -> float:
        if count := await takeover.take_over():
            logger.warning("deliveries of a process that died are told by this one", extra={"deliveries": count})
            wake()
        return _TAKEOVER_SECONDS

    return Job("takeover", run_once)


class EventKeeper:
    """Forgets. Several at once are safe. After a start, an outage or a jump of the clock, when events seem to be old that
    nobody could be told of, the relays have an hour first."""

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
