"""Wakes those who sleep until a task is due, when something earlier is scheduled, here or in another process.

Pub/sub may lose a message; nothing rests on it but promptness, because nobody sleeps longer than a second.
"""

import asyncio
import logging
from collections.abc import Iterable
from types import TracebackType

from redis.asyncio import Redis

from uploader.accounting.connection import AWAY, RedisConnection
from uploader.tasks import ended

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_READ_SECONDS = 4.0  # shorter than the time-out of the connection


class Wakeups:
    """Listens on channels, from `async with` on, and sets the event of each when something is announced there."""

    def __init__(self, redis: RedisConnection, channels: Iterable[str]) -> None:
        self._redis = redis
        # Set when a channel's queue is to be looked at; whoever looks clears it first.
        self.events = {channel: asyncio.Event() for channel in channels}
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Wakeups":
        # The client of a Cluster has no pub/sub; there the bounded sleep has to do.
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
                        event.set()  # what was announced before is not heard any more
                    while True:
                        message = await subscription.get_message(timeout=_READ_SECONDS)
                        if message is not None:
                            self.events[message["channel"].decode()].set()
            except AWAY as error:
                if not lost:
                    logger.warning("not woken by Redis for now", extra={"reason": str(error)})
                lost = True
            await asyncio.sleep(_RETRY_SECONDS)
