"""Wakes workers that sleep until a task is due, when a script schedules an earlier task, here or for another process.

Pub/sub may lose a message. Then a worker is late, and no more, because no worker sleeps longer than a second.
"""

import asyncio
import logging
from collections.abc import Iterable
from types import TracebackType

from redis.asyncio import Redis

from uploader.accounting.scripting import AWAY, RedisConnection
from uploader.tasks import ended

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_READ_SECONDS = 4.0  # shorter than the time-out of the connection, which would break a silent one off


class Wakeups:
    """Listens on channels, from `async with` on, and sets the event of a channel when a script announces a task there."""

    def __init__(self, redis: RedisConnection, channels: Iterable[str]) -> None:
        self._redis = redis
        # An event that is set tells the workers of its queue to look. A worker clears it before it looks.
        self.events = {channel: asyncio.Event() for channel in channels}
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Wakeups":
        # redis-py has no pub/sub for a Cluster; there the workers rely on their short sleep.
        if isinstance(self._redis, Redis):
            self._listening = asyncio.create_task(self._listen(self._redis), name="waker")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listening is not None:
            await ended(self._listening)

    async def _listen(self, redis: Redis) -> None:
        lost = False
        while True:
            try:
                async with redis.pubsub(ignore_subscribe_messages=True) as subscription:
                    await subscription.subscribe(*self.events)
                    lost = False
                    for event in self.events.values():
                        event.set()  # a script may have announced a task before the subscription
                    while True:
                        message = await subscription.get_message(timeout=_READ_SECONDS)
                        if message is not None:
                            self.events[message["channel"].decode()].set()
            except AWAY as error:
                if not lost:
                    logger.warning("not woken by Redis for now", extra={"reason": str(error)})
                lost = True
            await asyncio.sleep(_RETRY_SECONDS)
